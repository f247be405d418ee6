"""The figure of the accuracy study: predicted against measured step time, one panel for each
protocol's first seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dmodel.report import style
from dmodel.units import GIB
from experiments.protocols import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 4
EDGE = 2.0
"""Ratios beyond this factor are drawn at the edge of a panel, as triangles."""


def panels(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """What is shown: one panel for each target of the 12-row fits, and memory, or for every
    protocol when there is none of them."""
    few = [
        o for o in outcomes if o.protocol.startswith(("few-shot 12 ", "memory half")) and not o.part
    ]
    return few or [o for o in outcomes if not o.part]


def draw(outcomes: Sequence[Outcome]) -> Figure:
    """Ratio of what is predicted to what was measured over the latter, judged rows only, with the
    ±10 % band."""
    shown = panels(outcomes)
    lines = -(-len(shown) // COLUMNS)
    columns = min(COLUMNS, len(shown))
    figure = style.new_figure(2.9 * columns + 0.6, 2.5 * lines + 0.4)
    grid = np.atleast_1d(figure.subplots(lines, columns, squeeze=False, sharey=True)).ravel()
    for axes, outcome in zip(grid, shown, strict=False):
        _panel(axes, outcome)
    for axes in grid[len(shown) :]:
        axes.set_axis_off()
    for axes in grid[::columns]:
        axes.set_ylabel("predicted / measured")
    return figure


def _panel(axes: Axes, outcome: Outcome) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    memory = outcome.protocol.startswith("memory")
    measured = outcome.measured / (GIB if memory else 1.0)
    ratio = outcome.predicted / outcome.measured
    axes.axhspan(1 / 1.1, 1.1, color=style.PALE, linewidth=0, zorder=0)
    axes.axhline(1.0, color=style.GREY, linewidth=0.8, zorder=1)
    for where, marker in (
        (np.abs(np.log(ratio)) <= np.log(EDGE), "o"),
        (ratio > EDGE, "^"),
        (ratio < 1 / EDGE, "v"),
    ):
        y = np.clip(ratio[where], 1 / EDGE, EDGE)
        axes.scatter(
            measured[where],
            y,
            s=12,
            color=style.BLUE,
            alpha=0.55,
            edgecolors="white",
            linewidths=0.3,
            marker=marker,
            zorder=2,
        )
    axes.set(xscale="log", yscale="log", ylim=(1 / EDGE / 1.05, EDGE * 1.05))
    axes.yaxis.set_major_locator(FixedLocator([0.5, 0.7, 1.0, 1.4, 2.0]))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.xaxis.set_major_locator(
        LogLocator(subs=(1.0, 2.0, 5.0) if measured.max() < 100.0 * measured.min() else (1.0,))
    )
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.set_xlabel("measured peak memory [GiB]" if memory else "measured step time [s]")
    axes.set_title(outcome.protocol, fontsize=9)
    axes.text(
        0.03,
        0.04,
        f"median {outcome.median:.1f} %, mean {outcome.mean:.1f} %",
        transform=axes.transAxes,
        fontsize=8,
    )
