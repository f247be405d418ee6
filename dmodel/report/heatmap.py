"""Interactions of inputs as a heat map: which pairs do more together than apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dmodel.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def heatmap(names: Sequence[str], hessian: np.ndarray, output: str = "step time") -> Figure:
    """The lower triangle of a Hessian in logarithms: vermillion where raising both does more than
    the sum, blue where less.

    Args:
      names: of the inputs, `[m]`. hessian: `∂² ln y / ∂ ln x_i ∂ ln x_j`, `[m, m]`.
    """
    figure = style.new_figure(2.9 + 0.46 * len(names), 1.7 + 0.36 * len(names))
    draw(figure.add_subplot(), names, hessian, output)
    return figure


def draw(axes: Axes, names: Sequence[str], hessian: np.ndarray, output: str = "step time") -> None:
    """Draw the triangle into axes."""
    from matplotlib.colors import LinearSegmentedColormap

    m = len(names)
    shown = np.where(np.tri(m, dtype=bool), hessian, np.nan)
    widest = max(float(np.nanmax(np.abs(shown))), 1e-12)
    colours = LinearSegmentedColormap.from_list(
        "interaction", [style.BLUE, "white", style.VERMILLION]
    )
    image = axes.imshow(
        np.ma.masked_invalid(shown), cmap=colours, vmin=-widest, vmax=widest, aspect="auto"
    )
    for i in range(m):
        for j in range(i + 1):
            value = float(hessian[i, j])
            if abs(value) >= 0.005:
                ink = "white" if abs(value) > 0.6 * widest else style.INK
                axes.text(
                    j,
                    i,
                    f"{value:+.2f}".replace("-", "−"),
                    ha="center",
                    va="center",
                    fontsize=7.0,
                    color=ink,
                )
    axes.set_xticks(range(m), names, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(m), names)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(f"What changes together in the {output}")
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02)
    bar.set_label("∂²ln y / ∂ln a ∂ln b")
    bar.outline.set_visible(False)  # type: ignore[operator]
