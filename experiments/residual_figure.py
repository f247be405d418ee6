"""The figure of the study of learned corrections: error with a correction over error without, by
target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dmodel.report import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Scored(Protocol):
    """A target, and its errors `[method, (median, mean)]`, the first method being none."""

    @property
    def protocol(self) -> str: ...
    @property
    def errors(self) -> np.ndarray: ...


def draw(scores: Sequence[Scored]) -> Figure:
    """Ratios of the median (left) and of the mean (right), one line per target; left of 1 the
    correction helps."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    figure = style.new_figure(8.6, 1.3 + 0.24 * len(scores))
    axes = figure.subplots(1, 2, sharey=True, sharex=True, squeeze=False)[0]
    height = np.arange(len(scores))[::-1]
    for k, (panel, what) in enumerate(zip(axes, ("median", "mean"), strict=True)):
        panel.axvline(1.0, color=style.GREY, linewidth=0.8)
        panel.hlines(height, 0.3, 3.0, color=style.PALE, linewidth=0.6, zorder=0)
        network, kriging = np.array([s.errors[1:, k] / s.errors[0, k] for s in scores]).T
        panel.scatter(
            network, height, s=26, color=style.VERMILLION, marker="o", label="network", zorder=2
        )
        # hollow, so that it hides nothing
        panel.scatter(
            kriging,
            height,
            s=34,
            marker="D",
            facecolors="none",
            edgecolors=style.BLUE,
            label="kriging",
            zorder=3,
        )
        panel.set(
            xscale="log",
            ylim=(-0.7, len(scores) - 0.3),
            xlabel=f"{what} error, with the correction / without",
        )
        panel.xaxis.set_major_locator(FixedLocator([0.4, 0.5, 0.7, 1.0, 1.4, 2.0]))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        panel.tick_params(axis="y", length=0)
    everything = np.array([s.errors[1:] / s.errors[:1] for s in scores])
    axes[0].set_xlim(min(0.65, 0.93 * everything.min()), max(1.45, 1.07 * everything.max()))
    axes[0].set_yticks(height, [s.protocol for s in scores])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False)
    return figure
