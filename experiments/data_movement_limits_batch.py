"""How the critical batch decides where linear scaling ends.

Claim: how fast the critical batch grows with compute decides where linear scaling ends:
constant, C^(1/6), or DeepSeek's C^0.33.

H100, dense. `python -m experiments.data_movement_limits_batch [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

from dmodel.report import style
from experiments import data_movement as shared
from experiments.data_movement import Curve, curve
from experiments.study import COLORS, options
from experiments.study import run as run_study

LAWS = {
    "none": "constant, 4 Mi tokens",
    "default": "C^(1/6), the study's",
    "deepseek": "DeepSeek, C^0.327",
}


def draw(curves: list[Curve]) -> Any:
    """Utilization and batch against compute."""
    figure = style.new_figure(9.6, 4.0)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    colors = {c.label: color for c, color in zip(curves, COLORS, strict=False)}
    shared.draw_curves(left, curves, colors)
    left.set_title("H100, dense models")
    shared.legend(left, loc="lower left")
    for c in curves:
        x, y = ([float(getattr(b.run, name)) for b in c.known] for name in ("flop", "batch_tokens"))
        right.loglog(x, y, color=colors[c.label], linewidth=1.6)
    shared.compute_axis(right)
    right.set_ylabel("tokens per step")
    right.set_title("Critical batch")
    return figure


def main() -> None:
    """Sweep the three laws, compare the headlines, draw utilization and batch."""
    args = options(__doc__ or "")
    curves = {n: curve("H100 SXM", words, law=shared.batch_law(n)) for n, words in LAWS.items()}
    comparison = [line for n, c in curves.items() for line in shared.headlines(c, n)]
    lines = [
        {**point, "batch_tokens": float(b.run.batch_tokens)}
        for c in curves.values()
        for point, b in zip(shared.points(c), c.known, strict=True)
    ]
    figure = draw(list(curves.values()))
    shared.deliver("data_movement_limits_batch", comparison, lines, figure, args)


if __name__ == "__main__":
    run_study(main)
