"""What bounds a step over two axes, as a map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dmodel.report import style
from dmodel.report.text import digits
from dmodel.report.words import axis_label
from dmodel.sensitivity.regimes import REGIMES, RegimeMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"compute": style.BLUE, "memory": style.GREEN, "bandwidth": style.ORANGE, "latency": style.PURPLE}


def regimes(found: RegimeMap, title: str = "What bounds the step") -> Figure:
    """Areas coloured by their largest share, the deeper the larger; dots where two shares are equal; a cross at the case; hatched where the
    plan does not fit."""
    figure = style.new_figure(6.2, 4.8)
    draw(figure.add_subplot(), found, title)
    return figure


def draw(axes: Axes, found: RegimeMap, title: str) -> None:
    """Draw a map into axes."""
    from matplotlib.colors import to_rgb

    x, y = found.x.values, found.y.values
    colour = np.array([to_rgb(COLOURS[name]) for name in REGIMES])[found.regime]
    # a quarter share is the least that can be the largest
    depth = (0.15 + 0.75 * (found.shares.max(0) - 0.25) / 0.75)[..., None]
    axes.pcolormesh(x, y, 1.0 - depth * (1.0 - colour), shading="nearest", rasterized=True)
    for points in found.boundaries.values():
        axes.plot(points[0], points[1], ".", color=style.INK, markersize=2.2)
    if (found.headroom_bytes < 0.0).any():
        axes.contourf(x, y, found.headroom_bytes < 0.0, levels=[0.5, 1.5], colors="none", hatches=["///"])
        missing = np.argwhere(found.headroom_bytes < 0.0).mean(0).round().astype(int)
        axes.text(x[missing[1]], y[missing[0]], "does not fit", ha="center", color=style.INK, fontsize=8, backgroundcolor="white")
    axes.plot(*found.at, marker="+", color=style.INK, markersize=12, markeredgewidth=2.0)
    axes.set(xscale="log", yscale="log", xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
    axes.set_xlabel(axis_label(found.x.name, found.x.shown))
    axes.set_ylabel(axis_label(found.y.name, found.y.shown))
    axes.set_title(title)
    _names(axes, found)


def _names(axes: Axes, found: RegimeMap) -> None:
    """Names of the areas that are large enough, each at the point of its area farthest from all others."""
    for i, name in enumerate(REGIMES):
        mine = found.regime == i
        if mine.mean() < 0.02:
            continue
        inside, others = np.argwhere(mine), np.argwhere(~mine)
        edge = np.minimum(inside, np.array(mine.shape) - 1 - inside).min(1) + 1.0
        far = np.sqrt(((inside[:, None] - others[None]) ** 2).sum(-1)).min(1) if len(others) else edge
        row, column = inside[np.minimum(far, 2.0 * edge).argmax()]
        share = digits(100.0 * found.shares[i, row, column], 2)
        axes.text(
            found.x.values[column],
            found.y.values[row],
            f"{name}-bound\n{share} %",
            ha="center",
            va="center",
            weight="bold",
            fontsize=8,
            color=style.INK,
        )
