"""Predicted against measured step time, fitted and held-out rows told apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dmodel.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND = 0.10
"""Half-width of the band around equality, relative."""

EDGE = 40.0
"""Largest error that the lower panel shows at its place [%]."""


class Point(NamedTuple):
    """One row: measured and predicted step time [s], and whether the fit saw it."""

    measured_s: float
    predicted_s: float
    held_out: bool


def scatter(points: Sequence[Point]) -> Figure:
    """Log-log scatter with the line of equality and its ±10 % band. Below it is the relative error
    of the same points.

    The legend is the coloured text with counts and errors. Errors beyond the lower panel's scale
    are drawn as triangles at its edge.
    """
    figure = style.new_figure(5.8, 6.6)
    axes, errors = figure.subplots(2, 1, sharex=True, height_ratios=(3.0, 1.3))
    low, high = _limits(points)
    _equality(axes, low, high)
    _band(errors, low, high)
    looks = {
        False: ("fitted", style.BLUE, 14, 0.45),
        True: ("held out", style.VERMILLION, 18, 0.85),
    }
    for i, (held_out, (name, colour, size, alpha)) in enumerate(looks.items()):
        part = [p for p in points if p.held_out is held_out]
        if part:
            _dots(axes, part, colour, size, alpha)
            _error_dots(errors, part, colour, size, alpha)
            axes.text(
                0.03,
                0.97 - 0.06 * i,
                _caption(name, part),
                color=colour,
                transform=axes.transAxes,
                va="top",
                weight="bold",
            )
    axes.set(ylabel="predicted step time [s]", title="Predicted against measured step time")
    errors.set(xlabel="measured step time [s]", ylabel="error [%]")
    figure.align_ylabels()
    return figure


def _limits(points: Sequence[Point]) -> tuple[float, float]:
    times = [t for p in points for t in (p.measured_s, p.predicted_s)]
    return min(times) / 1.4, max(times) * 1.4


def _equality(axes: Axes, low: float, high: float) -> None:
    from matplotlib.ticker import FuncFormatter

    ends = np.array([low, high])
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.fill_between(
        ends, ends * (1.0 - BAND), ends * (1.0 + BAND), color=style.PALE, linewidth=0, zorder=0
    )
    axes.plot(ends, ends, color=style.GREY, linewidth=0.8, zorder=1)
    where = low * (high / low) ** 0.12
    axes.annotate(
        f"±{100 * BAND:.0f} %",
        (where, where),
        xytext=(26, -14),
        textcoords="offset points",
        color=style.GREY,
        arrowprops={"arrowstyle": "-", "color": style.GREY, "linewidth": 0.6},
    )


def _band(axes: Axes, low: float, high: float) -> None:
    axes.axhspan(-100 * BAND, 100 * BAND, color=style.PALE, linewidth=0, zorder=0)
    axes.axhline(0.0, color=style.GREY, linewidth=0.8, zorder=1)
    axes.set(ylim=(-EDGE * 1.08, EDGE * 1.08), yticks=(-EDGE, -EDGE / 2, -10, 10, EDGE / 2, EDGE))


def _dots(axes: Axes, points: Sequence[Point], colour: str, size: float, alpha: float) -> None:
    x, y = [p.measured_s for p in points], [p.predicted_s for p in points]
    axes.scatter(
        x, y, s=size, color=colour, alpha=alpha, edgecolors="white", linewidths=0.3, zorder=2
    )


def _error_dots(
    axes: Axes, points: Sequence[Point], colour: str, size: float, alpha: float
) -> None:
    x, y = (
        np.array([p.measured_s for p in points]),
        np.array([100.0 * (p.predicted_s / p.measured_s - 1.0) for p in points]),
    )
    for where, marker in ((abs(y) <= EDGE, "o"), (y > EDGE, "^"), (y < -EDGE, "v")):
        shown = np.clip(y[where], -EDGE, EDGE)
        axes.scatter(
            x[where],
            shown,
            s=size,
            color=colour,
            alpha=alpha,
            edgecolors="white",
            linewidths=0.3,
            marker=marker,
            zorder=2,
        )


def _caption(name: str, points: Sequence[Point]) -> str:
    errors = [abs(p.predicted_s / p.measured_s - 1.0) for p in points]
    return f"{name}: {len(points)} rows, median error {100.0 * float(np.median(errors)):.1f} %"
