"""Claim: how fast the critical batch grows with compute decides where linear scaling ends:
constant, C^(1/6), or DeepSeek's C^0.33.

H100, dense. `python -m experiments.data_movement_limits_batch [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from dmodel.report import style
from experiments import data_movement as shared
from experiments.data_movement import curve
from experiments.study import run as run_study

LAWS = {
    "none": "constant, 4 Mi tokens",
    "default": "C^(1/6), the study's",
    "deepseek": "DeepSeek, C^0.327",
}


def main() -> None:
    """Sweep the three laws, compare the headlines, draw utilization and batch."""
    args = shared.options(__doc__ or "")
    names = list(LAWS)
    curves = {n: curve("H100 SXM", LAWS[n], law=shared.batch_law(n)) for n in names}
    comparison = [line for n in names for line in shared.headlines(curves[n], n)]
    figure = style.new_figure(9.6, 4.0)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    colors = {LAWS[n]: color for n, color in zip(names, shared.COLORS, strict=False)}
    shared.draw_curves(left, list(curves.values()), colors)
    left.set_title("H100, dense models")
    shared.legend(left, loc="lower left")
    for c in curves.values():
        x, y = ([float(getattr(b.run, name)) for b in c.known] for name in ("flop", "batch_tokens"))
        right.loglog(x, y, color=colors[c.label], linewidth=1.6)
    shared.compute_axis(right)
    right.set_ylabel("tokens per step")
    right.set_title("Critical batch")
    lines = [
        {**point, "batch_tokens": float(b.run.batch_tokens)}
        for c in curves.values()
        for point, b in zip(shared.points(c), c.known, strict=True)
    ]
    shared.deliver("data_movement_limits_batch", comparison, lines, figure, args)


if __name__ == "__main__":
    run_study(main)
