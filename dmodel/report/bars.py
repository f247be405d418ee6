"""Where the time of a step goes: one stacked bar for each plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dmodel.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "matrix products": (style.BLUE, ("matmul",)),
    "attention": (style.SKY, ("attention",)),
    "memory-bound": (style.GREEN, ("elementwise",)),
    "recompute": (style.YELLOW, ("recompute",)),
    "LM head": (style.PURPLE, ("head",)),
    "exposed communication": (
        style.VERMILLION,
        (
            "tensor_parallel",
            "context_parallel",
            "expert_parallel",
            "fsdp",
            "data_parallel",
            "pipeline_transfer",
            "contention",
        ),
    ),
    "pipeline bubble": (style.ORANGE, ("bubble",)),
    "launch, optimizer, waiting, fixed": (
        "#B8B8B8",
        ("launch", "optimizer", "offload", "straggler", "overhead"),
    ),
}
"""Name of a segment → its colour and the terms it adds up; every term stands in exactly one."""

KNOWN = {term for _, terms in GROUPS.values() for term in terms}
"""Terms that some segment adds up."""

INSIDE = 0.05
"""Share of the longest bar from which a segment has room for its number."""


class Bar(NamedTuple):
    """One plan: its label, seconds by term (the names of `dmodel.breakdown.TERMS`), and a remark at
    the end of the bar."""

    label: str
    seconds: Mapping[str, float]
    remark: str


def grouped(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds by segment. Terms that no segment knows go to the last one, so that the bar is as
    long as the step."""
    out = {
        name: sum(seconds.get(term, 0.0) for term in terms) for name, (_, terms) in GROUPS.items()
    }
    out[next(reversed(GROUPS))] += sum(x for term, x in seconds.items() if term not in KNOWN)
    return out


def breakdown(bars: Sequence[Bar]) -> Figure:
    """Horizontal stacked bars, first on top, numbers inside wide segments, total and remark at the
    end."""
    figure = style.new_figure(8.0, 1.6 + 0.45 * len(bars))
    axes = figure.add_subplot()
    longest = max(sum(bar.seconds.values()) for bar in bars)
    used = set()
    for row, bar in enumerate(bars):
        used |= _stack(axes, row, bar, longest)
    _legend(figure, used)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axes.invert_yaxis()
    axes.set(xlabel="time of one step [s]", xlim=(0.0, longest * 1.24))
    figure.suptitle(
        "Where the time of a step goes", x=0.01, ha="left", weight="bold", fontsize=10.5
    )
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def _stack(axes: Axes, row: int, bar: Bar, longest: float) -> set[str]:
    left, used = 0.0, set()
    for name, width in grouped(bar.seconds).items():
        if width <= 0.0:
            continue
        used.add(name)
        axes.barh(
            row,
            width,
            left=left,
            height=0.66,
            color=GROUPS[name][0],
            edgecolor="white",
            linewidth=0.6,
        )
        if width >= INSIDE * longest:
            dark = GROUPS[name][0] in (style.BLUE, style.VERMILLION, style.GREEN)
            axes.text(
                left + width / 2,
                row,
                _short(width),
                ha="center",
                va="center",
                fontsize=7.5,
                color="white" if dark else style.INK,
            )
        left += width
    axes.text(
        left + 0.012 * longest, row, f"{left:#.3g} s   {bar.remark}", va="center", fontsize=8.5
    )
    return used


def _short(x: float) -> str:
    """Two digits, three from 10 on."""
    return f"{x:.3g}" if x >= 10.0 else f"{x:#.2g}"


def _legend(figure: Figure, used: set[str]) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(color=colour, label=name) for name, (colour, _) in GROUPS.items() if name in used
    ]
    figure.legend(
        handles=patches,
        loc="outside lower left",
        ncols=4,
        frameon=False,
        fontsize=8,
        handlelength=1.0,
        handleheight=1.0,
        columnspacing=1.4,
    )
