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

COLOURS = {
    "compute": style.BLUE,
    "memory": style.GREEN,
    "bandwidth": style.ORANGE,
    "latency": style.PURPLE,
}


def regimes(found: RegimeMap, title: str = "What bounds the step") -> Figure:
    """Areas coloured by their largest share, the deeper the larger; dots where two shares are
    equal. A cross at the case; hatched where the plan does not fit."""
    figure = style.new_figure(6.2, 4.8)
    draw(figure.add_subplot(), found, title)
    return figure


def draw(axes: Axes, found: RegimeMap, title: str) -> None:
    """Draw a map into axes."""
    from matplotlib.colors import to_rgb

    x, y = found.x.values, found.y.values
    fine_x, fine_y = (np.geomspace(v[0], v[-1], FINE * (len(v) - 1) + 1) for v in (x, y))
    shares = np.stack([_finer(share, FINE) for share in found.shares])
    colour = np.array([to_rgb(COLOURS[name]) for name in REGIMES])[shares.argmax(0)]
    # a quarter share is the least that can be the largest
    depth = np.clip(0.15 + 0.75 * (shares.max(0) - 0.25) / 0.75, 0.0, 1.0)[..., None]
    axes.pcolormesh(
        fine_x, fine_y, 1.0 - depth * (1.0 - colour), shading="nearest", rasterized=True
    )
    for points in found.boundaries.values():
        axes.plot(points[0], points[1], ".", color=style.INK, markersize=2.2)
    if (found.headroom_bytes < 0.0).any():
        _does_not_fit(axes, found)
    axes.plot(*found.at, marker="+", color=style.INK, markersize=12, markeredgewidth=2.0)
    frame = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.7}
    axes.annotate(
        "here",
        found.at,
        (9, -4),
        textcoords="offset points",
        color=style.INK,
        fontsize=7,
        va="top",
        bbox=frame,
    )
    axes.set(xscale="log", yscale="log", xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
    axes.set_xlabel(axis_label(found.x.name, found.x.shown))
    axes.set_ylabel(axis_label(found.y.name, found.y.shown))
    axes.set_title(title)
    _names(axes, found)


def _does_not_fit(axes: Axes, found: RegimeMap) -> None:
    """Hatch what does not fit, and say so in the middle of it."""
    x, y, room = found.x.values, found.y.values, found.headroom_bytes
    axes.contourf(x, y, room, levels=[-np.inf, 0.0], colors="none", hatches=["//"])
    middle = np.argwhere(room < 0.0).mean(0).round().astype(int)
    if not (room >= 0.0).any():
        middle = np.array([len(y) - 2, len(x) // 2])
    axes.text(
        float(x[middle[1]]),
        float(y[middle[0]]),
        "does not fit",
        ha="center",
        va="center",
        color=style.INK,
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 2.0},
    )


FINE = 6
"""Points of the picture to one of the grid: shares are interpolated, the dots of the boundaries are
exact."""


def _finer(values: np.ndarray, times: int) -> np.ndarray:
    """Bilinear interpolation of a grid."""
    for axis in (0, 1):
        n = values.shape[axis]
        at = np.linspace(0.0, n - 1.0, times * (n - 1) + 1)
        values = np.apply_along_axis(
            lambda v, at=at, n=n: np.interp(at, np.arange(n), v), axis, values
        )
    return values


def _names(axes: Axes, found: RegimeMap) -> None:
    """Names of the areas that are large enough. Each stands at the point of its area that is
    farthest from all others, from the frame and the cross."""
    n = found.regime.shape[0]
    cross = np.array(
        [
            np.abs(np.log(v.values / at)).argmin()
            for v, at in ((found.y, found.at[1]), (found.x, found.at[0]))
        ]
    )
    for i, name in enumerate(REGIMES):
        fits = (found.regime == i) & (found.headroom_bytes >= 0.0)
        mine = fits if fits.mean() >= 0.03 else found.regime == i
        if mine.mean() < 0.03:
            continue
        inside, others = np.argwhere(mine), np.vstack([np.argwhere(~mine), cross[None]])
        frame = np.minimum(inside, n - 1 - inside) * np.array([1.0, 0.5])
        # a name is wider than high
        far = np.sqrt((((inside[:, None] - others[None]) * np.array([1.0, 0.5])) ** 2).sum(-1)).min(
            1
        )
        row, column = inside[np.minimum(far, frame.min(1)).argmax()]
        share = digits(100.0 * found.shares[i, row, column], 2)
        axes.text(
            float(found.x.values[column]),
            float(found.y.values[row]),
            f"{name}-bound\n{share} %",
            ha="center",
            va="center",
            weight="bold",
            fontsize=8,
            color=style.INK,
            bbox=None if mine is fits else {"facecolor": "white", "edgecolor": "none", "pad": 2.0},
        )
