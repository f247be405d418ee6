"""Elasticities as a tornado: the longest bar on top."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
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
    ends = {item.name: _ends(item, rings) for item in shown}
    widest = max(map(abs, chain(*ends.values())), default=1.0)
    for row, item in enumerate(shown):
        axes.barh(row, item.value, height=0.7, color=COLOURS.get(item.group, OTHER))
        _number(axes, row, item, ends[item.name], widest * _side(item, rings))
    _rings(axes, shown, rings)
    axes.set_yticks(range(len(shown)), [i.name for i in shown])
    axes.axvline(0.0, color=style.GREY, linewidth=0.8)
    axes.invert_yaxis()
    axes.set(
        xlim=_limits(ends.values(), 0.26 * widest),
        xlabel=f"change of the {output} when the input grows by 1 % [%]",
    )
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(f"What the {output} depends on")
    _groups(axes, {item.group for item in shown})


def _ends(item: Elasticity, rings: Mapping[str, float]) -> tuple[float, float]:
    """Left and right end of a bar and its ring."""
    ring = rings.get(item.name, item.value)
    return min(item.value, ring), max(item.value, ring)


def _limits(ends: Iterable[tuple[float, float]], room: float) -> tuple[float, float]:
    """Ends of the axis: those of all bars and 0, with room for numbers."""
    lows, highs = zip((0.0, 0.0), *ends, strict=True)
    return min(lows) - room, max(highs) + room


def _side(item: Elasticity, rings: Mapping[str, float]) -> float:
    """Room between a number and its bar, or its ring, as a share of the longest bar."""
    return 0.035 if item.name in rings else 0.02


def _number(axes: Axes, row: int, item: Elasticity, ends: tuple[float, float], room: float) -> None:
    """The number of a bar, clear of the bar and of its ring."""
    text = f"{item.value:+.3f}".replace("-", "−")
    how = {"va": "center", "fontsize": 8}
    if item.value >= 0.0:
        axes.text(max(ends[1], 0.0) + room, row, text, ha="left", **how)
    else:
        axes.text(min(ends[0], 0.0) - room, row, text, ha="right", **how)


def _rings(axes: Axes, shown: Sequence[Elasticity], rings: Mapping[str, float]) -> None:
    """Elasticities when the best plan follows."""
    marked = [(rings[i.name], row) for row, i in enumerate(shown) if i.name in rings]
    if not marked:
        return
    axes.plot(
        *zip(*marked, strict=True),
        "o",
        color=style.INK,
        markersize=4.5,
        markerfacecolor="white",
        label="the best plan follows",
    )
    axes.legend(loc="upper left", frameon=False, fontsize=8)


def _groups(axes: Axes, there: set[str]) -> None:
    """Names of the groups in their colours."""
    for i, group in enumerate(reversed([name for name in COLOURS if name in there])):
        place = {
            "xy": (1.0, 0.0),
            "xycoords": "axes fraction",
            "xytext": (-4, 8 + 15 * i),
            "textcoords": "offset points",
        }
        axes.annotate(group, **place, color=COLOURS[group], ha="right", weight="bold")
