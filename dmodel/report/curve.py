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
    shown = sorted(points, key=lambda p: p.value) if numbers else list(points)  # type: ignore
    figure = style.new_figure(8.0, 3.2 if numbers else 1.2 + 0.4 * len(points))
    left, right = figure.subplots(1, 2)
    draw = _lines if numbers else _bars
    draw(left, shown, [p.rate for p in shown])
    draw(right, shown, [p.per_device for p in shown])
    left.set_title("tokens/s")
    right.set_title("tokens/s per device")
    if numbers:
        left.set_xlabel(name)
        right.set_xlabel(name)
    else:
        right.tick_params(labelleft=False)
    if numbers and name == "devices":
        _linear(left, shown)
    return figure


def _lines(axes: Axes, points: Sequence[Point], rates: Sequence[float]) -> None:
    """Rates over numbers, with their intervals as a band."""
    values = [float(point.value) for point in points]
    if values[0] > 0.0 and values[-1] > WIDE * values[0]:
        axes.set_xscale("log")
    axes.plot(values, rates, "o-", color=style.BLUE, markersize=4.0)
    spans = [point.span for point in points]
    if None not in spans:
        low, high = ([r * s[i] for r, s in zip(rates, spans, strict=True) if s] for i in (0, 1))
        axes.fill_between(values, low, high, color=style.SKY, alpha=0.25, linewidth=0.0)
    axes.set_xticks(values, [f"{value:,g}" for value in values])
    axes.minorticks_off()
    axes.set_ylim(bottom=0.0)


def _linear(axes: Axes, points: Sequence[Point]) -> None:
    """What as much per device as with the fewest devices would be."""
    values = [float(point.value) for point in points]
    axes.plot(
        values,
        [points[0].per_device * value for value in values],
        "--",
        color=style.GREY,
        linewidth=0.9,
        label="linear",
    )
    axes.legend(frameon=False, loc="upper left")


def _bars(axes: Axes, points: Sequence[Point], rates: Sequence[float]) -> None:
    """A bar for each word, the first on top, with its number at the end."""
    rows = range(len(points))
    axes.barh(rows, rates, height=0.66, color=style.BLUE)
    for row, rate in zip(rows, rates, strict=True):
        axes.text(rate, row, f" {digits(rate)}", va="center", fontsize=8.5)
    axes.set_yticks(rows, [str(point.value) for point in points])
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.25 * max(rates))
    axes.tick_params(axis="y", length=0)
