"""Throughput over what varies: lines over numbers, bars of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dmodel.report import style
from dmodel.report.text import digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE = 4.0
"""Ratio of the largest to the smallest number from which the axis is logarithmic."""


class Point(NamedTuple):
    """One value: tokens/s of all devices and of each, and the 90 % interval of both over them."""

    value: float | str
    rate: float
    per_device: float
    span: tuple[float, float] | None


def curve(name: str, points: Sequence[Point]) -> Figure:
    """Tokens/s and tokens/s per device beside each other: lines over numbers, else bars.

    Args:
      name: what varies. points: at least one.
    """
    numbers = all(not isinstance(point.value, str) for point in points)
    figure = style.new_figure(8.0, 3.2 if numbers else 0.6 + 0.3 * len(points))
    left, right = figure.subplots(1, 2)
    if numbers:
        _over_numbers(left, right, name, sorted(points, key=lambda p: float(p.value)))
    else:
        _bars(left, points, [p.rate for p in points])
        _bars(right, points, [p.per_device for p in points])
        right.tick_params(labelleft=False)
    left.set_title("tokens/s")
    right.set_title("tokens/s per device")
    return figure


def _over_numbers(left: Axes, right: Axes, name: str, points: Sequence[Point]) -> None:
    """Both rates over numbers, these in order; the axis of these is logarithmic where they span
    much."""
    least, most = float(points[0].value), float(points[-1].value)
    wide = least > 0.0 and most > WIDE * least
    _lines(left, points, [p.rate for p in points], wide)
    _lines(right, points, [p.per_device for p in points], wide)
    if name == "devices":
        _linear(left, points)
    if name == "devices" and wide:
        left.set_yscale("log")
    else:
        left.set_ylim(bottom=0.0)
    right.set_ylim(bottom=0.0)
    for axes in (left, right):
        axes.set_xlabel(name)
        axes.yaxis.set_major_formatter("{x:,.0f}")
    if right.get_legend_handles_labels()[0]:
        right.legend(frameon=False, loc="lower left")


def _linear(axes: Axes, points: Sequence[Point]) -> None:
    """What as much per device as with the fewest would be."""
    values = [float(p.value) for p in points]
    rates = [points[0].per_device * value for value in values]
    (line,) = axes.plot(values, rates, "--", color=style.GREY, linewidth=0.9, label="linear")
    axes.legend(handles=[line], frameon=False, loc="upper left")


def _lines(axes: Axes, points: Sequence[Point], rates: Sequence[float], wide: bool) -> None:
    """Rates over numbers, with their intervals as a band where all are known."""
    values = [float(point.value) for point in points]
    if wide:
        axes.set_xscale("log")
    axes.plot(values, rates, "o-", color=style.BLUE, markersize=4.0)
    spans = [point.span for point in points if point.span is not None]
    if len(spans) == len(points):
        low, high = ([r * s[i] for r, s in zip(rates, spans, strict=True)] for i in (0, 1))
        axes.fill_between(
            values, low, high, color=style.SKY, alpha=0.25, linewidth=0.0, label="90 % interval"
        )
    axes.minorticks_off()
    axes.set_xticks(values, [f"{value:,g}" for value in values])


def _bars(axes: Axes, points: Sequence[Point], rates: Sequence[float]) -> None:
    """A bar for each word, the first on top, with its number at the end."""
    rows = range(len(points))
    axes.barh(rows, rates, height=0.66, color=style.BLUE)
    for row, rate in zip(rows, rates, strict=True):
        axes.text(rate, row, f" {digits(rate)}", va="center", fontsize=8.5)
    axes.set_yticks(rows, [str(point.value) for point in points])
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.25 * max(rates))
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=0, labelbottom=False)
