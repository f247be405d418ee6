"""Axes, colours and areas of the figures of hardware scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dmodel.report import style
from experiments.scaling import GROUPS, Answers, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROUP_COLORS = dict(
    zip(GROUPS, (style.BLUE, style.SKY, style.VERMILLION, style.ORANGE, style.PURPLE), strict=True)
)


def draw_shares(axes: Axes, x: Sequence[float] | np.ndarray, found: Answers) -> None:
    """Where the step's time goes, as stacked areas in percent."""
    percent = {
        group: 100.0 * seconds / found.step_time_s for group, seconds in grouped(found).items()
    }
    shown = {group: values for group, values in percent.items() if np.max(values) > 0.1}
    axes.stackplot(x, *shown.values(), colors=[GROUP_COLORS[g] for g in shown], labels=list(shown))
    axes.set_ylim(0.0, 100.0)
    axes.set_xlim(min(x), max(x))
    axes.set_ylabel("share of the step [%]")


def scale_axis(axes: Axes, scales: Sequence[float] | np.ndarray, label: str = "devices") -> None:
    """A logarithmic axis of device counts, marked at powers of two (every second or third where
    there are many)."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    low, high = int(np.round(np.log2(min(scales)))), int(np.round(np.log2(max(scales))))
    marks = [2.0**i for i in range(low, high + 1, max(1, -(-(high - low) // 5)))]
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(marks))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{m:,.0f}" for m in marks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)
    axes.grid(color=style.PALE, linewidth=0.6)
    axes.set_axisbelow(True)


def published_points(
    axes: Axes, x: Sequence[float], y: Sequence[float], label: str = "published"
) -> None:
    """Measured points over the lines."""
    axes.plot(
        x,
        y,
        "o",
        color=style.INK,
        markerfacecolor="white",
        markersize=6,
        markeredgewidth=1.4,
        label=label,
        zorder=5,
    )
