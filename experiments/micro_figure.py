"""Figure of the micro-benchmark study: predicted against measured times of the held-out half, one
panel for each kind of operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.micro.groups import Group
from dmodel.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Held = tuple[Group, np.ndarray, np.ndarray]
"""A group, its held-out rows `[row]` bool, and ln(predicted / measured) of those."""


def draw(held: Sequence[Held]) -> Figure:
    """One panel for each kind, one colour for each chip."""
    import matplotlib
    from matplotlib.lines import Line2D

    kinds = list(dict.fromkeys(group.kind for group, _, _ in held)) or [""]
    chips = sorted({group.chip for group, _, _ in held})
    shades = matplotlib.colormaps["tab20"](np.linspace(0, 1, max(len(chips), 2)))
    colors = dict(zip(chips, shades, strict=False))
    figure = style.new_figure(4.6 * len(kinds), 4.8)
    grid = figure.subplots(1, len(kinds), squeeze=False)[0]
    for axes, kind in zip(grid, kinds, strict=True):
        _panel(axes, kind, [h for h in held if h[0].kind == kind], colors)
    grid[0].set_ylabel("predicted [µs], shapes not fitted")
    marks = [Line2D([], [], ls="", marker="o", color=colors[c], label=c) for c in chips]
    figure.legend(
        handles=marks, loc="outside lower center", ncols=6, frameon=False, title="band: ± 25 %"
    )
    return figure


def _panel(axes: Axes, kind: str, held: Sequence[Held], colors: dict[str, Any]) -> None:
    for group, rows, ratio in held:
        measured = 1e6 * group.table.seconds()[rows]
        predicted = measured * np.exp(ratio)
        axes.loglog(measured, predicted, ".", ms=3, alpha=0.6, color=colors[group.chip])
    ends = np.array(axes.get_xlim())
    axes.plot(ends, ends, color="0.2", lw=0.8)
    axes.fill_between(ends, ends / 1.25, ends * 1.25, color="0.85", zorder=0)
    axes.set(title=kind, xlabel="measured [µs]", xlim=tuple(ends))
