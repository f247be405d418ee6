"""A fixed batch on 2 to 32 nodes of 8 H100 (finding 8).

Strong scaling at a fixed batch of 32 sequences, 2 to 32 nodes of 8 H100: utilization falls from
40 % to below 15 % (finding 8).

Assumed in advance: Llama-2 7B, 4,096 tokens, at every scale the fastest plan that fits, by search:
tensor, pipeline and context degrees of 1 to 16, ZeRO 1 or 3, sharding over all ranks or inside a
node, with or without recomputation. FSDP alone ends at 32 devices, one sequence each. Model FLOPs
by 6N + 12Lhs. `python -m experiments.scaling_strong [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmodel import catalog
from dmodel.report import style
from experiments import scaling as shared
from experiments import scaling_compared as compared
from experiments import scaling_figures as figures
from experiments.scaling import Answers, coefficients
from experiments.scaling_plans import Choice, Searched, every_plan, search
from experiments.study import options, say
from experiments.study import run as run_study

SYSTEM, CHIP, MODEL, BATCH = "H100-DGX", "H100-80GB", "llama-2-7b", 32.0
SCALES = tuple(float(8 * 2**i) for i in range(6))
LOW, HIGH = 16.0, 256.0
PUBLISHED = {LOW: 40.0, HIGH: 15.0}
"""Model FLOP utilization [%]; the second is an upper bound."""

ASSUMPTIONS = {
    "workload": "Llama-2 7B, 32 sequences of 4,096 tokens per step at every scale",
    "plan": (
        "the fastest that fits: tp, pp, cp of 1 to 16, ZeRO 1 or 3 over all ranks or inside a "
        "node, with or without recomputation"
    ),
    "utilization": "model FLOPs by 6N + 12Lhs over the bf16 peak",
}


def best(model: Any, quick: bool) -> tuple[Searched, list[int]]:
    """All plans at all scales, and the row of the best at each."""
    degrees = (1, 2, 4, 8) if quick else (1, 2, 4, 8, 16)
    choice = Choice(tp=degrees, pp=degrees, cp=degrees, groups=(8,))
    found = search(
        catalog.system(SYSTEM),
        model,
        coefficients(CHIP),
        [every_plan(model, n, BATCH, choice) for n in SCALES],
    )
    say(f"{len(found.step_time_s):,} plans on {len(SCALES)} scales")
    rows = [found.best(found.devices == n) for n in SCALES]
    return found, [row for row in rows if row is not None]


def findings(found: Answers) -> list[dict[str, Any]]:
    """Utilization at both ends, and how much of it is left."""
    low, high = (100.0 * float(found.mfu[SCALES.index(n)]) for n in (LOW, HIGH))
    rate = found.tokens_per_s
    return [
        compared.points(
            "8 utilization on 2 nodes", PUBLISHED[LOW], low, None, "published: about 40 %"
        ),
        compared.points(
            "8 utilization on 32 nodes", PUBLISHED[HIGH], high, None, "published: below 15 %"
        ),
        compared.ratio(
            "8 utilization left, 2 → 32 nodes",
            "×",
            PUBLISHED[HIGH] / PUBLISHED[LOW],
            high / low,
            2.0,
            "published: below this",
        ),
        compared.direction(
            "8 utilization falls at every doubling", bool(np.all(np.diff(found.mfu) < 0.0))
        ),
        compared.ratio(
            "speed-up of 16 times the devices",
            "×",
            None,
            float(rate[SCALES.index(HIGH)] / rate[SCALES.index(LOW)]),
            None,
        ),
    ]


def table(searched: Searched, rows: list[int], found: Answers) -> list[dict[str, Any]]:
    """Plan, utilization and shares of the step by scale."""
    share = shared.shares(found)
    names = ("tp", "pp", "cp", "dp", "zero", "shard", "micro_batch", "recompute_layers")
    return [
        {
            "devices": int(n),
            **{name: float(searched.columns[name][row]) for name in names},
            "step_time_s": float(found.step_time_s[i]),
            "mfu": float(found.mfu[i]),
            "exposed_share": float(found.exposed_share[i]),
            **{f"share_{name}": float(x[i]) for name, x in share.items()},
        }
        for i, (n, row) in enumerate(zip(SCALES, rows, strict=True))
    ]


def why(lines: list[dict[str, Any]]) -> list[str]:
    """The best plan at each scale, and the largest causes of what is lost."""
    text = ["Best plan and largest shares of its step:"]
    for line in lines:
        parts = sorted(
            ((v, k.removeprefix("share_")) for k, v in line.items() if k.startswith("share_")),
            reverse=True,
        )[:4]
        degrees = ", ".join(f"{name} {line[name]:.0f}" for name in ("tp", "pp", "cp", "dp"))
        text.append(
            f"  {line['devices']:>4} devices: {degrees}; "
            + ", ".join(f"{name} {100 * v:.0f} %" for v, name in parts)
        )
    return text


def draw(found: Answers) -> Any:
    """Utilization, and where the step goes."""
    figure = style.new_figure(9.6, 3.9)
    left, right = figure.subplots(1, 2)
    left.plot(
        SCALES,
        100.0 * found.mfu,
        color=style.BLUE,
        linewidth=1.8,
        marker="o",
        markersize=4,
        label="predicted, best plan",
    )
    figures.published_points(left, list(PUBLISHED), list(PUBLISHED.values()))
    left.annotate(
        "or below",
        (HIGH, PUBLISHED[HIGH]),
        (0, 8),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        color=style.GREY,
    )
    left.set_ylim(0.0, None)
    left.set_ylabel("MFU [%]")
    left.set_title("Utilization at 32 sequences")
    left.legend(frameon=False, loc="lower left")
    figures.draw_shares(right, SCALES, found)
    right.set_title("Where the step goes")
    right.legend(frameon=True, framealpha=0.9, edgecolor="none", loc="lower left", fontsize=7.5)
    for axes in (left, right):
        figures.scale_axis(axes, SCALES, "H100")
    return figure


def main() -> None:
    """Search at every scale, compare, draw."""
    args = options(__doc__ or "")
    model = catalog.transformer(MODEL, seq_len=shared.SEQ_LEN)
    searched, rows = best(model, args.quick)
    found = shared.answer(
        shared.cases(catalog.system(SYSTEM), model, searched.plan(rows), coefficients(CHIP))
    )
    lines = table(searched, rows, found)
    assumed = shared.assumed(ASSUMPTIONS, SYSTEM, CHIP)
    compared.deliver(
        "scaling_strong", assumed, findings(found), lines, draw(found), args, why(lines)
    )


if __name__ == "__main__":
    run_study(main)
