"""Figures of measured against predicted scaling: one per source, a panel for each curve, and an
overview with a panel per source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from dmodel.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 12
"""Panels of one figure."""

Curves = Sequence[Any]
"""Curves of `scaling_measured`."""


def draw(by_source: Mapping[str, tuple[str, Curves]], folder: Path) -> dict[str, str]:
    """Write the overview and one figure per source; title → (source, curves). Names of the files by
    what they show."""
    written = {
        "figure": str(
            overview(
                {title: found for title, (_, found) in by_source.items()},
                folder / "scaling_measured.png",
            )
        )
    }
    for title, (source, found) in by_source.items():
        written[f"figure of {source}"] = str(
            one_source(title, found, folder / f"scaling_measured_{source.replace('.', '_')}.png")
        )
    return written


def one_source(title: str, found: Curves, path: Path) -> Path:
    """A panel for each curve, those with most scales first."""
    shown = sorted(found, key=lambda c: -len(c.devices))[:MOST]
    columns = min(len(shown), 4)
    rows = -(-len(shown) // columns)
    figure = style.new_figure(max(3.3 * columns, 5.6), 2.75 * rows + 0.7)
    grid = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for axes, c in zip(grid, shown, strict=False):
        curve(axes, c)
        axes.set_title(fill(c.name, 42), fontsize=7.5, fontweight="normal")
    for axes in grid[len(shown) :]:
        axes.set_visible(False)
    more = f" ({len(shown)} of {len(found)} curves)" if len(found) > len(shown) else ""
    heading = fill(
        f"{title}: FLOP/s of a device over that at the smallest scale{more}",
        64 if columns <= 2 else 140,
    )
    figure.suptitle(heading, fontsize=9.5, x=0.01, ha="left")
    figure.legend(handles=_marks(), frameon=False, ncols=4, loc="outside lower center", fontsize=8)
    return style.save_png(figure, path)


def curve(axes: Axes, c: Any) -> None:
    """One curve: measured points, and both predictions; hollow where the held-out fit has not seen
    the point."""
    from matplotlib.ticker import MaxNLocator

    axes.plot(c.devices, c.fitted, color=style.SKY, linewidth=1.4)
    axes.plot(c.devices, c.held_out, color=style.VERMILLION, linewidth=1.4, linestyle="--")
    for seen in (True, False):
        here = c.seen_held_out == seen
        axes.plot(
            c.devices[here],
            c.measured[here],
            "o",
            markersize=4.5,
            color=style.INK,
            markerfacecolor=style.INK if seen else "white",
        )
    _scales(axes, c.devices)
    axes.yaxis.set_major_formatter(lambda v, _: f"{v:.2f}")
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    values = np.concatenate([c.measured, c.fitted, c.held_out])
    axes.set_ylim(min(0.9, values.min() - 0.05), max(1.1, values.max() + 0.05))


def _scales(axes: Axes, devices: np.ndarray) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    marks = (
        devices
        if len(devices) <= 4
        else devices[np.linspace(0, len(devices) - 1, 4).round().astype(int)]
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(marks)))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{m:,.0f}" for m in marks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(color=style.PALE, linewidth=0.6)
    axes.set_axisbelow(True)


def _marks() -> list[Any]:
    from matplotlib.lines import Line2D

    point = {"marker": "o", "linestyle": "", "markersize": 5, "color": style.INK}
    return [
        Line2D([], [], **point, label="measured, in the held-out fit"),
        Line2D([], [], **point, markerfacecolor="white", label="measured, not in it"),
        Line2D([], [], color=style.SKY, linewidth=1.6, label="fitted"),
        Line2D([], [], color=style.VERMILLION, linewidth=1.6, linestyle="--", label="held out"),
    ]


def overview(by_source: Mapping[str, Curves], path: Path) -> Path:
    """Predicted against measured ratio, a panel for each source; hollow where the held-out fit has
    not seen the point."""
    columns = min(len(by_source), 4)
    rows = -(-len(by_source) // columns)
    figure = style.new_figure(3.1 * columns, 3.0 * rows + 0.4)
    grid = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for axes, (title, found) in zip(grid, by_source.items(), strict=False):
        parts = zip(*((c.measured, c.held_out, c.seen_held_out) for c in found), strict=True)
        measured, predicted, seen = (np.concatenate(x) for x in parts)
        low, high = (
            min(measured.min(), predicted.min()) - 0.05,
            max(measured.max(), predicted.max()) + 0.05,
        )
        ends = np.array([low, high])
        axes.fill_between(ends, 0.95 * ends, 1.05 * ends, color=style.PALE, linewidth=0.0)
        axes.plot(ends, ends, color=style.GREY, linewidth=0.8)
        for known in (True, False):
            here = seen == known
            inside = style.BLUE if known else "white"
            axes.plot(
                measured[here],
                predicted[here],
                "o",
                markersize=4,
                color=style.BLUE,
                markerfacecolor=inside,
            )
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        axes.set_title(title, fontsize=7.5, fontweight="normal")
    for axes in grid[len(by_source) :]:
        axes.set_visible(False)
    figure.supxlabel("measured: FLOP/s of a device over that at the smallest scale", fontsize=8.5)
    figure.supylabel("held-out prediction (filled: in the fit), band ± 5 %", fontsize=8.5)
    return style.save_png(figure, path)
