"""Where tensor or pipeline degrees beat FSDP alone (finding 5).

Parallelism crossover: beyond some hundred H100, FSDP with tensor or pipeline degree 2 to 4 beats
FSDP alone (finding 5).

Assumed in advance: weak scaling as in `scaling_weak` (Llama-2 7B, 2 sequences of 4,096 tokens per
device), 8 to 32,768 H100. FSDP alone: ZeRO-3 over all devices, weights kept or gathered again,
whichever is faster. Beside tensor parallelism the same; beside a pipeline also ZeRO-1, which keeps
the weights of all micro-batches, as PyTorch does there. The best plan also may shard inside groups
of 8, 64 or 512 devices and recompute; a plan fits when the model counts 90 % of the memory or less.
The crossover is the first scale from which a degree stays ahead.
`python -m experiments.scaling_crossover [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmodel import catalog
from dmodel.report import style
from experiments import scaling as shared
from experiments import scaling_compared as compared
from experiments import scaling_figures as figures
from experiments.scaling import coefficients
from experiments.scaling_plans import Searched, every_plan, search
from experiments.study import COLORS, options, say
from experiments.study import run as run_study

SYSTEM, CHIP, MODEL = "H100-DGX", "H100-80GB", "llama-2-7b"
SCALES = tuple(float(2**i) for i in range(3, 16))
PUBLISHED = 300.0
""""In the hundreds of devices": the middle of 100 to 1,000, on a logarithmic axis [count]."""

STRATEGIES = {
    "FSDP alone": (1, 1),
    "tensor 2": (2, 1),
    "tensor 4": (4, 1),
    "tensor 8": (8, 1),
    "pipeline 2": (1, 2),
    "pipeline 4": (1, 4),
}
"""Tensor and pipeline degree of each strategy."""

ASSUMPTIONS = {
    "workload": "Llama-2 7B, 2 sequences of 4,096 tokens per device at every scale",
    "FSDP alone": "ZeRO-3 over all devices, weights kept or gathered again, any micro-batch",
    "with tensor or pipeline": (
        "the same beside tensor parallelism, ZeRO-1 too beside a pipeline; sequence parallelism, "
        "1F1B"
    ),
    "best plan": (
        "any of these degrees together up to 16, ZeRO 1 or 3, sharding inside 8, 64 or 512 "
        "devices, recomputation"
    ),
}


def searched(model: Any, scales: tuple[float, ...], per_device: float) -> Searched:
    """Every plan at every scale."""
    parts = [every_plan(model, n, per_device * n) for n in scales]
    found = search(catalog.system(SYSTEM), model, coefficients(CHIP), parts)
    say(f"{len(found.step_time_s):,} plans on {len(scales)} scales")
    return found


def of(found: Searched, scale: float, strategy: str | None) -> int | None:
    """The fastest plan of a strategy at a scale; of all plans without a strategy."""
    c, here = found.columns, found.devices == scale
    if strategy is None:
        return found.best(here)
    tp, pp = STRATEGIES[strategy]
    plain = (
        (c["tp"] == tp) & (c["pp"] == pp) & (c["shard"] == c["dp"]) & (c["recompute_layers"] == 0.0)
    )
    return found.best(here & plain & ((c["zero"] == 3.0) | (pp > 1)))


def curves(
    found: Searched, scales: tuple[float, ...], tokens: float
) -> dict[str, list[float | None]]:
    """Tokens per second and device of each strategy, and of the best plan, by scale; None where
    none fits."""
    rows = {name: [of(found, n, name) for n in scales] for name in STRATEGIES} | {
        "best plan": [of(found, n, None) for n in scales]
    }
    return {
        name: [None if i is None else tokens / float(found.step_time_s[i]) for i in row]
        for name, row in rows.items()
    }


def crossover(
    scales: tuple[float, ...], alone: list[float | None], other: list[float | None]
) -> float | None:
    """First scale from which the other stays ahead, interpolated on ln n; None where it never
    does."""
    gain = np.array([np.log(b / a) if a and b else -1.0 for a, b in zip(alone, other, strict=True)])
    if gain[-1] <= 0.0:
        return None
    behind = np.flatnonzero(gain <= 0.0)
    start = int(behind[-1]) if len(behind) else 0
    return compared.crossing(scales[start:], gain[start:], 0.0)


def findings(
    scales: tuple[float, ...], speed: dict[str, list[float | None]]
) -> list[dict[str, Any]]:
    """Where each strategy overtakes FSDP alone."""
    alone = speed["FSDP alone"]
    others = [name for name in STRATEGIES if name != "FSDP alone"]
    at = {name: crossover(scales, alone, speed[name]) for name in others}
    first = min(at[name] or np.inf for name in ("tensor 2", "tensor 4", "pipeline 2", "pipeline 4"))
    what, note = "5 a degree of 2 or 4 overtakes FSDP alone from", "published: hundreds of devices"
    return [
        compared.ratio(what, "H100", PUBLISHED, first if np.isfinite(first) else None, 10.0, note),
        *(
            compared.ratio(
                f"5 {name} overtakes FSDP alone from", "H100", None, n, None, "" if n else "never"
            )
            for name, n in at.items()
        ),
        fastest_of_few(speed),
        *gains(scales, alone, speed["best plan"]),
    ]


def fastest_of_few(speed: dict[str, list[float | None]]) -> dict[str, Any]:
    """Whether FSDP alone is fastest at the smallest scale."""
    at = {name: speed[name][0] or 0.0 for name in STRATEGIES}
    low = max(at, key=at.__getitem__)
    ahead = 100.0 * (at[low] / (at["FSDP alone"] or np.inf) - 1.0)
    note = f"fastest: {low}, by {ahead:.1f} %"
    return compared.direction("5 at 8 devices FSDP alone is fastest", low == "FSDP alone", note)


def gains(
    scales: tuple[float, ...], alone: list[float | None], best: list[float | None]
) -> list[dict[str, Any]]:
    """The best plan over FSDP alone at some scales."""
    return [
        compared.points(
            f"best plan over FSDP alone at {n:,.0f} devices", None, 100.0 * (b / a - 1.0), None
        )
        for n, a, b in zip(scales, alone, best, strict=True)
        if a and b and n in (128.0, 2048.0, 32768.0)
    ]


def best_plans(found: Searched, scales: tuple[float, ...]) -> list[dict[str, Any]]:
    """The best plan at every scale."""
    rows = [(n, of(found, n, None)) for n in scales]
    names = ("tp", "pp", "dp", "zero", "shard", "reshard", "micro_batch", "recompute_layers")
    lines = []
    for n, i in rows:
        if i is None:
            lines.append({"devices": int(n), "strategy": "best plan", "note": "no plan fits"})
            continue
        plan = {name: float(found.columns[name][i]) for name in names}
        lines.append(
            {
                "devices": int(n),
                "strategy": "best plan",
                "step_time_s": float(found.step_time_s[i]),
                **plan,
            }
        )
    return lines


def described(line: dict[str, Any]) -> str:
    """A best plan in a line."""
    if "step_time_s" not in line:
        return f"  {line['devices']:>7,}  {line['note']}"
    sharded = f"ZeRO-{line['zero']:.0f} over {line['shard']:,.0f} of {line['dp']:,.0f}"
    kept = ", weights kept" if line["zero"] == 3.0 and not line["reshard"] else ""
    return (
        f"  {line['devices']:>7,}  tp {line['tp']:.0f}, pp {line['pp']:.0f}, {sharded}{kept}, "
        f"micro-batch {line['micro_batch']:.0f}"
    )


def table(
    scales: tuple[float, ...], speed: dict[str, list[float | None]], plans: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Throughput of every strategy at every scale, then the best plans."""
    lines = [
        {"devices": int(n), "strategy": name, "tokens_per_s_per_device": values[i]}
        for name, values in speed.items()
        for i, n in enumerate(scales)
    ]
    return lines + plans


def draw(scales: tuple[float, ...], speed: dict[str, list[float | None]]) -> Any:
    """Throughput of every strategy, and its ratio to FSDP alone."""
    figure = style.new_figure(11.4, 4.4)
    left, right = figure.subplots(1, 2)
    colors = dict(zip(STRATEGIES, COLORS, strict=True)) | {"best plan": style.INK}
    alone = np.array([x or np.nan for x in speed["FSDP alone"]])
    for name, values in speed.items():
        y = np.array([x or np.nan for x in values])
        line = {
            "color": colors[name],
            "linewidth": 1.7,
            "linestyle": ":" if name == "best plan" else "-",
            "label": name,
        }
        left.plot(scales, y, **line)
        if name != "FSDP alone":
            right.plot(scales, y / alone, **line)
    right.axhline(1.0, color=style.GREY, linewidth=0.9)
    right.axvspan(100.0, 1000.0, color=style.PALE, zorder=0, label="published crossover")
    right.set_yscale("log", base=2)
    right.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
    left.set_title("Tokens/s per device")
    right.set_title("Over FSDP alone")
    left.set_ylim(0.0, None)
    left.legend(frameon=False, loc="lower left")
    right.legend(frameon=False, loc="upper left")
    for axes in (left, right):
        figures.scale_axis(axes, scales, "H100, 2 sequences each")
    return figure


def main() -> None:
    """Sweep all plans at all scales, compare, draw."""
    args = options(__doc__ or "")
    scales = SCALES[::2] if args.quick else SCALES
    model = catalog.transformer(MODEL, seq_len=shared.SEQ_LEN)
    found = searched(model, scales, shared.PER_DEVICE)
    speed = curves(found, scales, shared.PER_DEVICE * shared.SEQ_LEN)
    plans = best_plans(found, scales)
    text = ["Best plan at every scale:", *map(described, plans)]
    assumed = shared.assumed(ASSUMPTIONS, SYSTEM, CHIP)
    compared.deliver(
        "scaling_crossover",
        assumed,
        findings(scales, speed),
        table(scales, speed, plans),
        draw(scales, speed),
        args,
        text,
    )


if __name__ == "__main__":
    run_study(main)
