"""What a run of 1e28 FLOP depends on, by the theory.

What a run of 1e28 FLOP depends on, by the theory of data movement: the shortest training time
and its elasticities.

`T(C)` is the time in which the largest run is C; where C_max(T, x) is known with its slopes, the
implicit function theorem gives
`d ln T/d ln x = −(∂ ln C/∂ ln x)/(∂ ln C/∂ ln T)`. Two ends: linear scaling (0.8 of the utilization
ceiling) and finishing at all. Laws and GPUs are those of Erdil & Schneider-Joseph 2024 (arXiv
2411.01137).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmodel.report import style
from dmodel.theory import gpu
from dmodel.theory.elasticity import EXPONENTS, elasticities
from dmodel.theory.frontier import Frontier, case, largest_run
from dmodel.theory.study import LINEAR, MONTH_S
from experiments.study import deliver, options, say
from experiments.study import run as run_study

FLOP = 1e28
GPU = "H100 SXM"
ENDS = {"linear scaling": LINEAR, "finishing at all": 0.0}

SHOWN = (
    "FLOP/s",
    "network bandwidth",
    "network latency",
    "matmul latency",
    "HBM bandwidth",
    "HBM capacity",
    "L2 bandwidth",
    "L2 capacity",
    "batch constant",
    "depth constant",
    "tokens per parameter",
)
CLOSE, ROUGHLY = 1e-6, 0.05
"""Difference of ln C at which the time counts as found, and in a quick run."""


def shortest(threshold: float, close: float = CLOSE) -> tuple[float, Frontier, dict[str, float]]:
    """Training time in which the largest run is `FLOP` [s], by Newton's method on ln C(ln T); the
    frontier there and its elasticities."""
    seconds = 0.7 * MONTH_S  # near the time of the first end
    for _ in range(12):
        asked = case(gpu(GPU), threshold=threshold, deadline_s=seconds)
        found = largest_run(asked)
        slopes = elasticities(asked, found)
        say(f"{seconds / MONTH_S:.4g} months: {found.flop:.4g} FLOP")
        missing = float(np.log(FLOP / found.flop))
        if abs(missing) < close:
            break
        # far off, the exponent changes on the way
        seconds *= float(np.exp(np.clip(missing / slopes["training time"], -1.5, 1.5)))
    return seconds, found, slopes


def lines_of(end: str, days: float, slopes: dict[str, float]) -> list[dict[str, Any]]:
    """The table of one end: elasticities of the time that are not nothing."""
    return [
        {
            "end": end,
            "days": days,
            "input": name,
            "elasticity of time": value,
            "per unit": name in EXPONENTS,
        }
        for name, value in slopes.items()
        if abs(value) > 1e-9
    ]


def main() -> None:
    """Find both times, differentiate, draw."""
    args = options(__doc__ or "")
    lines: list[dict[str, Any]] = []
    shown: dict[str, dict[str, float]] = {}
    titles = {}
    for end in list(ENDS)[: 1 if args.quick else None]:
        seconds, found, slopes = shortest(ENDS[end], ROUGHLY if args.quick else CLOSE)
        days, of_time = seconds / MONTH_S * 30.4, slopes.pop("training time")
        titles[end] = f"{end}: {days:.3g} days"
        shown[end] = {name: -slope / of_time for name, slope in slopes.items()}
        lines += lines_of(end, days, shown[end])
        say(
            f"{titles[end]}; {found.pattern.describe()}; "
            f"{'smooth' if found.smooth else 'slopes of one side'}"
        )
    deliver("sensitivity_theory_1e28", lines, _draw(shown, titles), args)


def _draw(shown: dict[str, dict[str, float]], titles: dict[str, str]) -> Any:
    figure = style.new_figure(7.4, 4.6)
    axes = figure.add_subplot()
    y, height = np.arange(len(SHOWN)), 0.8 / len(shown)
    for i, (end, values) in enumerate(shown.items()):
        at = y + (i - 0.5 * (len(shown) - 1)) * height
        bars = axes.barh(
            at,
            [values[name] for name in SHOWN],
            0.9 * height,
            color=(style.BLUE, style.ORANGE)[i],
            label=titles[end],
        )
        axes.bar_label(bars, [_text(values[name]) for name in SHOWN], padding=3, fontsize=7)
    axes.axvline(0.0, color=style.GREY, linewidth=0.8)
    axes.set_yticks(y, SHOWN)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("change of the shortest training time when the input grows by 1 % [%]")
    axes.set_title(f"A run of 1e28 FLOP on {GPU}: what the shortest time depends on")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _text(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−") if abs(value) >= 0.005 else "0"


if __name__ == "__main__":
    run_study(main)
