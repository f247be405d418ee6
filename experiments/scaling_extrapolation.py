"""To 131,072 devices and beyond, with uncertainty.

Extrapolation to 131,072 devices and beyond, with uncertainty: throughput per device and of the
whole, with and without failures.

Assumed in advance: H100 on a flat network of 400 Gb/s per device. Three runs: Llama-2 7B by FSDP
alone, 2 sequences per device (weak); Llama-3.1 405B as its report trains it, tensor 8, pipeline 16,
optimizer and gradients sharded, 8,192 tokens, 16 sequences per replica (weak); and the same at
2,048 sequences per step whatever the scale (strong). One chunk of the pipeline per layer; gradients
are reduced behind every micro-batch, as sharding them asks, and beside the anchors once per step,
which the report leaves open. The band, 80 % of the draws: coefficients from what the fits leave
open (the profile's covariance and the spread of stacks, the curves' fit between nodes), and what
the model lacks, which grows with the distance from the smallest scale (from residuals of rows left
out of the fit).
Anchors: the Llama 3 report's 430, 400 and 380 TFLOP/s per device on 8,192 and 16,384 H100. Failures
at the rate of the same report.
`python -m experiments.scaling_extrapolation [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel import catalog
from dmodel.coefficients import NAMES, to_unconstrained
from dmodel.counts import model_flops_per_token
from dmodel.goodput import Reliability, goodput
from dmodel.records import Plan
from dmodel.report import style
from experiments import scaling as shared
from experiments import scaling_compared as compared
from experiments import scaling_figures as figures
from experiments.scaling import Answers, coefficients, draws, fsdp
from experiments.study import COLORS, options
from experiments.study import run as run_study

SYSTEM, CHIP, LARGE, SMALL = "H100-DGX", "H100-80GB", "llama-3.1-405b", "llama-2-7b"
SCALES = {
    "7B, FSDP alone, weak": tuple(float(2**i) for i in range(7, 19)),
    "405B, tensor 8 · pipeline 16, weak": tuple(float(2**i) for i in range(11, 20)),
    "405B, 2,048 sequences per step": tuple(float(2**i) for i in range(11, 19)),
}
FAR = 131072.0

ANCHORS = {
    "8,192 H100": ({"dp": 64.0}, 8192, 430.0),
    "16,384 H100": ({"dp": 128.0}, 8192, 400.0),
    "16,384 H100, 131,072 tokens": ({"dp": 8.0, "cp": 16.0, "global_batch": 128.0}, 131072, 380.0),
}
"""What changes, tokens of a sequence, and published model TFLOP/s per device (Llama 3 report, table
4)."""

ASSUMPTIONS = {
    "405B": (
        "tp 8, pp 16, ZeRO-2 reducing every micro-batch, one chunk per layer, bf16, no "
        "recomputation; weak: 16 sequences per replica"
    ),
    "7B": "ZeRO-3 over all devices, 2 sequences of 4,096 tokens per device",
    "band": (
        "80 % of draws: the profile's covariance, the spread of stacks, the curves' fit, and what "
        "the model lacks far from fitted runs"
    ),
    "failures": "Llama 3's rate, 5 s per checkpoint, 10 minutes to restart",
    "beyond": "one flat network: no further tier, no oversubscription",
}


class Band(NamedTuple):
    """Of one run by scale: answers at the fitted coefficients; of every draw tokens per second and
    device, relative to the smallest scale, from the coefficients alone and with what the model
    lacks, `[draw, scale]`."""

    scales: np.ndarray
    middle: Answers
    coefficients: np.ndarray
    drawn: np.ndarray

    def quantile(self, q: float) -> np.ndarray:
        """Throughput per device over that at the smallest scale [1]."""
        return np.quantile(self.drawn, q, axis=0)

    @property
    def far(self) -> int:
        """Place of `FAR` among the scales."""
        return int(np.flatnonzero(self.scales == FAR)[0])


def large(**changed: Any) -> Plan:
    """The 405B plan of the report."""
    layers = float(np.asarray(catalog.transformer(LARGE).n_layers)) / 16.0
    base: dict[str, Any] = {
        "dp": 128.0,
        "tp": 8.0,
        "pp": 16.0,
        "sp": 1.0,
        "zero": 2.0,
        "micro_batch": 1.0,
        "global_batch": 2048.0,
    }
    given = base | {"interleave": layers} | shared.kernels() | changed
    shard = given["dp"]
    return Plan.of(
        dp=given.pop("dp"), global_batch=given.pop("global_batch"), schedule="interleaved"
    ).having(**given, shard=shard)


def plans() -> dict[str, tuple[Any, Plan]]:
    """Model and plans `[scale]` of every run."""
    small = catalog.transformer(SMALL, seq_len=shared.SEQ_LEN)
    model = catalog.transformer(LARGE, seq_len=8192)
    n = {name: np.array(scales) for name, scales in SCALES.items()}
    alone, weak, strong = n
    return {
        alone: (small, fsdp(n[alone])),
        weak: (model, large(dp=n[weak] / 128.0, global_batch=16.0 * n[weak] / 128.0)),
        strong: (model, large(dp=n[strong] / 128.0, global_batch=np.full(len(n[strong]), 2048.0))),
    }


def bands(count: int) -> tuple[dict[str, Band], np.ndarray]:
    """Every run at the fitted coefficients and at every draw, as one batch; and the draws,
    unconstrained, `[coefficient, draw]`."""
    system, c, many = catalog.system(SYSTEM), coefficients(CHIP), draws(CHIP, count)
    parts = {}
    for name, (model, plan) in plans().items():
        n = len(SCALES[name])
        parts[name] = shared.cases(system, model, plan, c)
        repeated = jax.tree.map(
            lambda x, n=n: np.tile(np.broadcast_to(np.asarray(x, float), (n,)), count), plan
        )
        each = jax.tree.map(lambda x, n=n: np.repeat(x, n), many)
        parts[name + " drawn"] = shared.cases(system, model, repeated, each)
    found = shared.answers(parts)
    result = {}
    for name, scales in SCALES.items():
        drawn = found[name + " drawn"].tokens_per_s_per_device.reshape(count, len(scales))
        relative, n = drawn / drawn[:, :1], np.array(scales)
        result[name] = Band(n, found[name], relative, relative * shared.lacking(n, count))
    return result, np.asarray(to_unconstrained(many))


def anchors() -> dict[str, Answers]:
    """The report's three runs, with gradients reduced behind every micro-batch, and once per step,
    two cases each."""
    system, c, each = catalog.system(SYSTEM), coefficients(CHIP), np.array([0.0, 1.0])
    parts = {
        name: shared.cases(
            system, catalog.transformer(LARGE, seq_len=seq), large(**changed, accumulate=each), c
        )
        for name, (changed, seq, _) in ANCHORS.items()
    }
    return shared.answers(parts)


def useful(scales: np.ndarray) -> np.ndarray:
    """Share of the time that trains, failures taken off."""
    return np.asarray(goodput(scales, Reliability()))


def findings(found: dict[str, Band], at: dict[str, Answers]) -> list[dict[str, Any]]:
    """Anchors; then the far end of every run with its band."""
    lines, tflops = [], {}
    for name, (_, seq, published) in ANCHORS.items():
        per_token = float(model_flops_per_token(catalog.transformer(LARGE, seq_len=seq), "6N+6Lhs"))
        tflops[name], once = (
            per_token * float(rate) / 1e12 for rate in at[name].tokens_per_s_per_device
        )
        note = f"model FLOPs 6N + 6Lhs; gradients reduced once per step: {once:.0f}"
        lines.append(
            compared.ratio(f"Llama 3 405B on {name}", "TFLOP/s", published, tflops[name], 0.1, note)
        )
    first, second, _ = tflops.values()
    lines.append(
        compared.points(
            "Llama 3 405B: 8,192 → 16,384 devices",
            100.0 * (400.0 / 430.0 - 1.0),
            100.0 * (second / first - 1.0),
            5.0,
        )
    )
    for name, band in found.items():
        i, rate = band.far, band.middle.tokens_per_s_per_device
        kept = 100.0 * float(rate[i] / rate[0])
        low, high = (100.0 * float(band.quantile(q)[i]) for q in (0.1, 0.9))
        what = f"{name}: throughput per device left, {band.scales[0]:,.0f} → {FAR:,.0f}"
        lines.append(
            compared.points(what, None, kept, None, f"80 % of draws: {low:.0f} to {high:.0f} %")
        )
        whole = rate * band.scales * useful(band.scales)
        peak = band.scales[int(np.argmax(whole))]
        what = f"{name}: with failures, most tokens per second on"
        lines.append(compared.ratio(what, "H100", None, float(peak), None, "of the scales shown"))
    return lines


def why(found: dict[str, Band], z: np.ndarray) -> list[str]:
    """What makes the band: correlation of each coefficient with the throughput at the far end; and
    where the step goes there."""
    text = [
        (
            "What the band comes from (correlation of draws with the logarithm of the throughput "
            "left "
            "at 131,072):"
        )
    ]
    for name, band in found.items():
        i = band.far
        y = np.log(band.coefficients[:, i])
        moved = z.std(1) > 1e-9
        r = np.array(
            [
                np.corrcoef(row, y)[0, 1] if ok and y.std() > 1e-12 else 0.0
                for row, ok in zip(z, moved, strict=True)
            ]
        )
        order = np.argsort(-np.abs(r))[:5]
        text.append(f"  {name}: " + ", ".join(f"{NAMES[k]} {r[k]:+.2f}" for k in order))
        share = {
            g: 100.0 * float(x[i] / band.middle.step_time_s[i])
            for g, x in shared.grouped(band.middle).items()
        }
        text.append(
            "    step there: " + ", ".join(f"{g} {x:.0f} %" for g, x in share.items() if x >= 0.5)
        )
    return text


def table(found: dict[str, Band]) -> list[dict[str, Any]]:
    """One line per run and scale."""
    return [
        {
            "run": name,
            "devices": int(n),
            "tokens_per_s_per_device": float(band.middle.tokens_per_s_per_device[i]),
            "relative": float(
                band.middle.tokens_per_s_per_device[i] / band.middle.tokens_per_s_per_device[0]
            ),
            **{
                f"relative_{k}": float(band.quantile(q)[i])
                for k, q in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9))
            },
            "mfu": float(band.middle.mfu[i]),
            "exposed_share": float(band.middle.exposed_share[i]),
            "goodput": float(useful(band.scales)[i]),
            "tokens_per_s_with_failures": float(
                n * band.middle.tokens_per_s_per_device[i] * useful(band.scales)[i]
            ),
        }
        for name, band in found.items()
        for i, n in enumerate(band.scales)
    ]


def draw(found: dict[str, Band]) -> Any:
    """Throughput per device relative to the smallest scale with its band, and the whole with and
    without failures."""
    figure = style.new_figure(11.6, 4.5)
    left, right = figure.subplots(1, 2)
    for (name, band), color in zip(found.items(), COLORS, strict=False):
        left.fill_between(
            band.scales,
            *(100.0 * band.quantile(q) for q in (0.1, 0.9)),
            color=color,
            alpha=0.16,
            linewidth=0.0,
        )
        rate = band.middle.tokens_per_s_per_device
        left.plot(band.scales, 100.0 * rate / rate[0], color=color, linewidth=1.8, label=name)
        whole = band.scales * rate
        first = whole[0]
        right.plot(band.scales, whole / first, color=color, linewidth=1.8)
        right.plot(
            band.scales,
            whole * useful(band.scales) / first,
            color=color,
            linewidth=1.4,
            linestyle="--",
        )
    for axes in (left, right):
        figures.scale_axis(axes, [128.0, 524288.0], "H100")
        axes.axvline(FAR, color=style.GREY, linewidth=0.8, linestyle=":")
        axes.annotate(
            f"{FAR:,.0f}",
            (FAR, 1.0),
            (4, -10),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=8,
        )
    left.set_ylim(0.0, 112.0)
    left.set_title("Throughput per device [% of the smallest scale]", fontsize=9.5)
    left.legend(frameon=False, loc="lower left", fontsize=8)
    right.set_yscale("log")
    right.set_title("Throughput of the whole, over that at the smallest scale", fontsize=9.5)
    right.plot([], [], color=style.GREY, label="healthy")
    right.plot(
        [], [], color=style.GREY, linestyle="--", label="with failures, checkpoints and restarts"
    )
    right.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
    right.legend(frameon=False, loc="upper left", fontsize=8)
    return figure


def main() -> None:
    """Draw coefficients, evaluate all, compare, explain."""
    args = options(__doc__ or "")
    found, z = bands(48 if args.quick else 256)
    assumed = shared.assumed(ASSUMPTIONS, SYSTEM, CHIP)
    compared.deliver(
        "scaling_extrapolation",
        assumed,
        findings(found, anchors()),
        table(found),
        draw(found),
        args,
        why(found, z),
    )


if __name__ == "__main__":
    run_study(main)
