"""Elasticities as a tornado: the longest bar on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dmodel.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "hardware": style.BLUE,
    "workload": style.ORANGE,
    "plan": style.GREEN,
    "coefficient": style.PURPLE,
}
OTHER = style.GREY


class Elasticity(NamedTuple):
    """d ln(output) / d ln(input) of one input, and the group it belongs to."""

    name: str
    group: str
    value: float


def tornado(
    items: Sequence[Elasticity],
    output: str = "step time",
    most: int = 18,
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """Bars sorted by size, right = the output grows with the input; the `most` largest that are not
    0.

    Args:
      marks: elasticities when the best plan follows, by name: drawn as rings.
    """
    figure = style.new_figure(6.8, 1.1 + 0.25 * len(largest(items, most)))
    draw(figure.add_subplot(), items, output, most, marks)
    return figure


def largest(items: Sequence[Elasticity], most: int) -> list[Elasticity]:
    """The `most` largest that are not 0, the largest first."""
    return sorted((i for i in items if abs(i.value) >= 5e-4), key=lambda i: -abs(i.value))[:most]


def draw(
    axes: Axes,
    items: Sequence[Elasticity],
    output: str = "step time",
    most: int = 18,
    marks: Mapping[str, float] | None = None,
) -> None:
    """Draw the bars into axes."""
    shown, rings = largest(items, most), marks or {}
    ends = {
        i.name: (min(i.value, rings.get(i.name, i.value)), max(i.value, rings.get(i.name, i.value)))
        for i in shown
    }
    widest = max((abs(x) for pair in ends.values() for x in pair), default=1.0)
    for row, item in enumerate(shown):
        axes.barh(row, item.value, height=0.7, color=COLOURS.get(item.group, OTHER))
        right = item.value >= 0.0
        # a number stands clear of the bar and of its ring
        at = max(ends[item.name][1], 0.0) if right else min(ends[item.name][0], 0.0)
        side = 0.02 if item.name not in rings else 0.035
        text = f"{item.value:+.3f}".replace("-", "−")
        axes.text(
            at + (side if right else -side) * widest,
            row,
            text,
            va="center",
            ha="left" if right else "right",
            fontsize=8,
        )
    marked = [(rings[i.name], row) for row, i in enumerate(shown) if i.name in rings]
    if marked:
        axes.plot(
            *zip(*marked, strict=True),
            "o",
            color=style.INK,
            markersize=4.5,
            markerfacecolor="white",
            label="the best plan follows",
        )
        axes.legend(loc="upper left", frameon=False, fontsize=8)
    axes.set_yticks(range(len(shown)), [i.name for i in shown])
    axes.axvline(0.0, color=style.GREY, linewidth=0.8)
    axes.invert_yaxis()
    low, high = (
        min([0.0] + [x for x, _ in ends.values()]),
        max([0.0] + [x for _, x in ends.values()]),
    )
    axes.set(
        xlim=(low - 0.26 * widest, high + 0.26 * widest),
        xlabel=f"change of the {output} when the input grows by 1 % [%]",
    )
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(f"What the {output} depends on")
    groups = [g for g in COLOURS if any(i.group == g for i in shown)]
    for i, group in enumerate(reversed(groups)):
        place = {
            "xy": (1.0, 0.0),
            "xycoords": "axes fraction",
            "xytext": (-4, 8 + 15 * i),
            "textcoords": "offset points",
        }
        axes.annotate(group, **place, color=COLOURS[group], ha="right", weight="bold")
