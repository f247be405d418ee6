"""From the predicted step to the measured one, cause by cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dmodel.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 6
"""Causes with a bar of their own."""


class Part(NamedTuple):
    """A cause: its name, how probable it is, and the seconds that it explains where it is the
    cause."""

    name: str
    probability: float
    seconds: float


def waterfall(
    predicted: float, measured: float, interval: tuple[float, float], causes: Sequence[Part]
) -> Figure:
    """Bars from the predicted step [s] to the measured one: each cause by its seconds times its
    probability, the rest together.

    Args:
      interval: ends of what nine of ten such runs take [s].
      causes: single ones; the largest `MOST` are drawn.
    """
    shown = sorted(causes, key=lambda c: -abs(c.probability * c.seconds))[:MOST]
    figure = style.new_figure(6.8, 1.6 + 0.34 * (len(shown) + 3))
    draw(figure.add_subplot(), predicted, measured, interval, shown)
    return figure


def draw(
    axes: Axes,
    predicted: float,
    measured: float,
    interval: tuple[float, float],
    shown: Sequence[Part],
) -> None:
    """Draw the bars into axes."""
    at, labels = predicted, ["predicted"]
    axes.axvspan(*interval, color=style.PALE, zorder=0)
    axes.barh(0, predicted, color=style.BLUE, height=0.7)
    for row, part in enumerate(shown, 1):
        step = part.probability * part.seconds
        axes.barh(row, step, left=at, color=style.ORANGE, height=0.7)
        _say(axes, row, max(at, at + step), f"{step:+.3g} s ({part.probability:.0%})")
        at += step
        labels.append(part.name.replace("-", " "))
    rest = measured - at
    row = len(shown) + 1
    axes.barh(row, rest, left=at, color=style.GREY, height=0.7)
    _say(axes, row, max(at, measured), f"{rest:+.3g} s")
    axes.barh(row + 1, measured, color=style.VERMILLION, height=0.7)
    labels += ["scatter and all else", "measured"]
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.25 * max(predicted, measured, interval[1]))
    axes.set_xlabel("seconds of a step; grey: what such runs take")
    axes.tick_params(axis="y", length=0)
    axes.set_title("From the predicted step to the measured one")


def _say(axes: Axes, row: int, x: float, text: str) -> None:
    axes.annotate(text, (x, row), (4, 0), textcoords="offset points", va="center", fontsize=8)
