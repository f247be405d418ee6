"""Models of 1B to 405B at equal GPU counts (finding 10).

Model size, 1B to 405B, at equal GPU counts: larger models spend more energy per token, and more
GPUs return less per watt (finding 10).

Assumed in advance: Llama models, 4,096 tokens, 2 sequences per device, H100, at every size and
scale FSDP over all devices alone, and the fastest plan that fits, by search: tensor degrees to 8,
pipeline degrees to 16, ZeRO 1 or 3, over all ranks or in groups, recomputation. Energy is that of
the device alone. Marginal: what doubling the devices adds to throughput, over the watts that it
adds.
`python -m experiments.scaling_size [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dmodel import catalog
from dmodel.counts import model_flops_per_token
from dmodel.report import style
from experiments import scaling as shared
from experiments import scaling_compared as compared
from experiments import scaling_figures as figures
from experiments.scaling import Answers, Cases, coefficients, fsdp
from experiments.scaling_plans import Choice, Searched, every_plan, search
from experiments.study import COLORS, options, say
from experiments.study import run as run_study

SYSTEM, CHIP = "H100-DGX", "H100-80GB"
LLAMA_2 = {size: f"llama-2-{size.lower()}" for size in ("7B", "13B", "34B", "70B")}
MODELS = {"1B": "llama-3.2-1b", **LLAMA_2, "405B": "llama-3.1-405b"}
SCALES = (128.0, 256.0, 512.0, 1024.0, 2048.0)
AT = 512.0
"""Devices at which sizes are compared: the least of these that hold the largest model."""

ASSUMPTIONS = {
    "workload": "Llama models, 2 sequences of 4,096 tokens per device",
    "best plan": (
        "the fastest that fits: tp to 8, pp to 16, ZeRO 1 or 3 over all ranks or groups of 8 or "
        "64, with or without recomputation"
    ),
    "FSDP alone": "ZeRO-3 over all devices, weights gathered again, whether it fits or not",
    "energy": "of the device alone, without host and cooling",
}


class Size(NamedTuple):
    """One model: FLOPs of a token [FLOP], scales that a plan fits on, answers of the best plan and
    of FSDP alone, the plans in words."""

    name: str
    flops: float
    scales: tuple[float, ...]
    best: Answers
    alone: Answers
    plans: tuple[str, ...]


def searched(name: str, quick: bool) -> tuple[Cases, Cases, tuple[float, ...], tuple[str, ...]]:
    """Best plans and FSDP alone at every scale on which one fits."""
    system, model, c = (
        catalog.system(SYSTEM),
        catalog.transformer(MODELS[name], seq_len=shared.SEQ_LEN),
        coefficients(CHIP),
    )
    choice = Choice(
        tp=(1, 2, 4, 8), pp=(1, 2, 4, 8, 9, 16) if not quick else (1, 4, 9), groups=(8, 64)
    )
    scales = SCALES[::2] if quick else SCALES
    found = search(
        system, model, c, [every_plan(model, n, shared.PER_DEVICE * n, choice) for n in scales]
    )
    rows = {n: row for n in scales if (row := found.best(found.devices == n)) is not None}
    where = tuple(rows)
    from_on = f"fits from {where[0]:,.0f} devices on" if where else "fits nowhere"
    say(f"{name}: {len(found.step_time_s):,} plans, {from_on}")
    words = tuple(in_words(found, row) for row in rows.values())
    best = shared.cases(system, model, found.plan([*rows.values()]), c)
    return best, shared.cases(system, model, fsdp(np.array(where)), c), where, words


def in_words(found: Searched, row: int) -> str:
    """What a plan of a search does."""
    names = ("tp", "pp", "dp", "zero", "shard", "recompute_layers")
    said = {name: found.columns[name][row] for name in names}
    return ", ".join(f"{name} {x:g}" for name, x in said.items() if x not in (0.0, 1.0))


def sizes(quick: bool) -> list[Size]:
    """Every model, all cases evaluated as one batch."""
    found = {name: searched(name, quick) for name in MODELS}
    parts = {f"{name} {i}": case for name, each in found.items() for i, case in enumerate(each[:2])}
    answered = shared.answers(parts)
    flops = {
        name: float(model_flops_per_token(catalog.transformer(m, seq_len=shared.SEQ_LEN)))
        for name, m in MODELS.items()
    }
    return [
        Size(n, flops[n], scales, answered[f"{n} 0"], answered[f"{n} 1"], words)
        for n, (_, _, scales, words) in found.items()
    ]


def marginal(scales: tuple[float, ...], found: Answers) -> np.ndarray:
    """Tokens that one more joule buys when devices double, `Δ(tokens/s) / Δ(watts)`, over what each
    joule bought before, by scale [1]."""
    rate, watts = found.tokens_per_s, np.array(scales) * found.device_watts
    return np.diff(rate) / np.diff(watts) / (rate / watts)[:-1]


def findings(found: list[Size]) -> list[dict[str, Any]]:
    """Energy by size, and what doubling returns."""
    at = [s.scales.index(AT) for s in found]
    per_joule = np.array(
        [s.best.tokens_per_device_joule[i] for s, i in zip(found, at, strict=True)]
    )
    flops_per_joule = per_joule * np.array([s.flops for s in found])
    result = [
        compared.direction(
            f"10 energy of a token grows with the model, {AT:.0f} H100",
            bool(np.all(np.diff(per_joule) < 0.0)),
        ),
        compared.direction(
            f"10 405B: more energy per FLOP than 7B, {AT:.0f} H100",
            bool(flops_per_joule[-1] < flops_per_joule[1]),
        ),
    ]
    for s, (way, kind) in product(found, (("FSDP alone", "alone"), ("best plan", "best"))):
        returns = marginal(s.scales, getattr(s, kind))
        note = ", ".join(f"{n:,.0f}: {x:.2f}" for n, x in zip(s.scales, returns, strict=False))
        result.append(
            compared.direction(
                f"10 {s.name}, {way}: doubling returns less per watt",
                bool(np.all(returns < 1.0)),
                note,
            )
        )
    for s in found:
        rate = s.alone.tokens_per_s_per_device
        what = (
            f"FSDP alone, {s.name}: throughput per device, {s.scales[0]:,.0f} → {s.scales[-1]:,.0f}"
        )
        result.append(compared.points(what, None, 100.0 * float(rate[-1] / rate[0] - 1.0), None))
    return result


def table(found: list[Size]) -> list[dict[str, Any]]:
    """One line per model and scale."""
    return [
        {
            "model": s.name,
            "devices": int(n),
            "plan": s.plans[i],
            "tokens_per_s_per_device": float(s.best.tokens_per_s_per_device[i]),
            "mfu": float(s.best.mfu[i]),
            "device_watts": float(s.best.device_watts[i]),
            "joules_per_token": float(1.0 / s.best.tokens_per_device_joule[i]),
            "flop_per_joule": float(s.flops * s.best.tokens_per_device_joule[i]),
            "marginal_tokens_per_joule_over_mean": float(marginal(s.scales, s.best)[i])
            if i + 1 < len(s.scales)
            else None,
            "fsdp_tokens_per_s_per_device": float(s.alone.tokens_per_s_per_device[i]),
            "fsdp_mfu": float(s.alone.mfu[i]),
            "fsdp_exposed_share": float(s.alone.exposed_share[i]),
        }
        for s in found
        for i, n in enumerate(s.scales)
    ]


def draw(found: list[Size]) -> Any:
    """Energy of a token, utilization of best plan and FSDP, and the marginal return."""
    figure = style.new_figure(13.0, 4.2)
    grid = figure.subplots(1, 3)
    for s, color in zip(found, COLORS, strict=True):
        grid[0].plot(
            s.scales,
            1.0 / s.best.tokens_per_device_joule,
            color=color,
            linewidth=1.7,
            marker="o",
            markersize=3.5,
            label=s.name,
        )
        grid[1].plot(s.scales, 100.0 * s.best.mfu, color=color, linewidth=1.7)
        grid[1].plot(s.scales, 100.0 * s.alone.mfu, color=color, linewidth=1.2, linestyle="--")
        grid[2].plot(s.scales[:-1], marginal(s.scales, s.best), color=color, linewidth=1.7)
        grid[2].plot(
            s.scales[:-1], marginal(s.scales, s.alone), color=color, linewidth=1.2, linestyle="--"
        )
    grid[0].set_yscale("log")
    grid[0].set_title("Energy of one token, best plan [J]")
    grid[0].legend(
        frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 0.86)
    )
    grid[1].set_title("MFU [%]: best plan, and FSDP alone (dashed)", fontsize=9.5)
    grid[1].set_ylim(0.0, None)
    grid[2].set_title("Tokens per added joule over the mean", fontsize=9.5)
    grid[2].axhline(1.0, color=style.GREY, linewidth=0.9)
    for axes in grid:
        figures.scale_axis(axes, SCALES, "H100, 2 sequences each")
    grid[2].set_xlabel("H100 before doubling")
    return figure


def main() -> None:
    """Search every model at every scale, compare, draw."""
    args = options(__doc__ or "")
    found = sizes(args.quick)
    text = ["Best plans:"] + [
        f"  {s.name:>5} on {n:>5,.0f}: {words}"
        for s in found
        for n, words in zip(s.scales, s.plans, strict=True)
    ]
    assumed = shared.assumed(ASSUMPTIONS, SYSTEM, CHIP)
    compared.deliver(
        "scaling_size", assumed, findings(found), table(found), draw(found), args, text
    )


if __name__ == "__main__":
    run_study(main)
