"""H100 with a better network, lower latency, or both.

Claim: bandwidth decides where scaling stops being linear, latency where it ends: H100 with a
better network, lower latency, or both.

Variants of the study, dense and sparse, against its optima where those are known.
`python -m experiments.data_movement_limits_grand [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

from dmodel.report import style
from experiments import data_movement as shared
from experiments.data_movement import Curve, compared, curve
from experiments.data_movement_limits_utilization import against_optima
from experiments.study import COLORS, options
from experiments.study import run as run_study

BASE = "H100 SXM"
VARIANTS = {
    BASE: "H100",
    "H100 SXM Global NVLink": "Global NVLink",
    "H100 SXM Low Latency": "low latency",
    "H100 SXM Global NVLink and LL": "Global NVLink, low latency",
    "H100 SXM Infinite Network and LL": "infinite network, low latency",
}


def over_base(curves: list[Curve]) -> list[dict[str, Any]]:
    """Both ends of every variant over those of the H100 as it is."""
    return [
        compared(f"{c.label}: {what.replace('_', ' ')} over H100's", None, times, "times")
        for base in curves
        if base.gpu == BASE and base.largest
        for c in curves
        if c.sparse == base.sparse and c is not base
        for what, times in shared.growth(c, base).items()
    ]


def draw(curves: list[Curve], names: list[str], kinds: tuple[bool, ...]) -> Any:
    """Dense and sparse models side by side."""
    colors = {VARIANTS[name]: color for name, color in zip(names, COLORS, strict=False)}
    figure = style.new_figure(5.2 * len(kinds) + 0.4, 4.0)
    grid = figure.subplots(1, len(kinds), squeeze=False, sharey=True)[0]
    for axes, sparse in zip(grid, kinds, strict=True):
        some = [
            c._replace(sparse=False, label=VARIANTS[c.gpu]) for c in curves if c.sparse == sparse
        ]
        shared.draw_curves(axes, some, colors)
        axes.set_title("sparse models" if sparse else "dense models")
    for axes in grid[1:]:
        axes.set_ylabel("")
    shared.legend(grid[0], loc="lower left")
    return figure


def main() -> None:
    """Sweep the variants, compare, draw dense and sparse side by side."""
    args = options(__doc__ or "")
    names = list(VARIANTS)[: 3 if args.quick else None]
    kinds = (False,) if args.quick else (False, True)
    curves = [
        curve(n, f"{VARIANTS[n]}, {'sparse' if sparse else 'dense'}", sparse=sparse)
        for sparse in kinds
        for n in names
    ]
    comparison = [line for c in curves for line in shared.headlines(c)]
    comparison += [*over_base(curves), *against_optima(tuple(names))]
    lines = [p for c in curves for p in shared.points(c)]
    figure = draw(curves, names, kinds)
    shared.deliver("data_movement_limits_grand", comparison, lines, figure, args)


if __name__ == "__main__":
    run_study(main)
