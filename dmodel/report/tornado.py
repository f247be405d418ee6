"""Elasticities as a tornado: the longest bar on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dmodel.report import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"hardware": style.BLUE, "workload": style.ORANGE, "plan": style.GREEN, "coefficient": style.PURPLE}
OTHER = style.GREY


class Elasticity(NamedTuple):
    """d ln(output) / d ln(input) of one input, and the group it belongs to."""

    name: str
    group: str
    value: float


def tornado(items: Sequence[Elasticity], output: str = "step time", most: int = 18, marks: Mapping[str, float] | None = None) -> Figure:
    """Bars sorted by size, right = the output grows with the input; the `most` largest that are not 0.

    Args:
      marks: elasticities when the best plan follows, by name: drawn as rings.
    """
    shown = sorted((i for i in items if abs(i.value) >= 5e-4), key=lambda i: -abs(i.value))[:most]
    figure = style.new_figure(6.8, 1.1 + 0.25 * len(shown))
    axes = figure.add_subplot()
    widest = max((abs(i.value) for i in shown), default=1.0)
    for row, item in enumerate(shown):
        axes.barh(row, item.value, height=0.7, color=COLOURS.get(item.group, OTHER))
        side = 1.0 if item.value >= 0.0 else -1.0
        axes.text(
            item.value + side * 0.015 * widest,
            row,
            f"{item.value:+.3f}".replace("-", "−"),
            va="center",
            ha="left" if side > 0 else "right",
            fontsize=8,
        )
    marked = [(marks[i.name], row) for row, i in enumerate(shown) if marks and i.name in marks]
    if marked:
        axes.plot(*zip(*marked, strict=True), "o", color=style.INK, markersize=5, markerfacecolor="white", label="the best plan follows")
        axes.legend(loc="lower left", frameon=False, fontsize=8)
    axes.set_yticks(range(len(shown)), [i.name for i in shown])
    axes.axvline(0.0, color=style.GREY, linewidth=0.8)
    axes.invert_yaxis()
    low, high = min([0.0] + [i.value for i in shown]), max([0.0] + [i.value for i in shown])
    axes.set(xlim=(low - 0.26 * widest, high + 0.2 * widest), xlabel=f"change of the {output} when the input grows by 1 % [%]")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(f"What the {output} depends on")
    groups = [g for g in COLOURS if any(i.group == g for i in shown)]
    for i, group in enumerate(reversed(groups)):
        place = {"xy": (1.0, 0.0), "xycoords": "axes fraction", "xytext": (-4, 8 + 15 * i), "textcoords": "offset points"}
        axes.annotate(group, **place, color=COLOURS[group], ha="right", weight="bold")
    return figure
