"""Numbers of the bench: one beside its target, as a line of text, a table and a figure."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dmodel.report import style


class Result(NamedTuple):
    """One line of the answer; `target` is a bound from below where `at_least`, else from above;
    None where there is none."""

    name: str
    value: float | None
    unit: str
    target: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def verdict(self) -> str:
        """Reached, missed, or nothing to say."""
        if self.target is None or self.value is None:
            return ""
        return (
            "reached"
            if (self.value >= self.target if self.at_least else self.value <= self.target)
            else "MISSED"
        )


def show(result: Result) -> str:
    """One line of text."""
    value = (
        "–"
        if result.value is None
        else f"{result.value:,.0f}"
        if result.value > 1e4
        else f"{result.value:.2f}"
    )
    bound = (
        "" if result.target is None else f"{'≥' if result.at_least else '≤'} {result.target:,.10g}"
    )
    return (
        f"{result.name:<52} {value:>11} {result.unit:<8} {bound:>12}  {result.verdict:<8} "
        f"{result.note}"
    ).rstrip()


def answers(found: list[Result]) -> str:
    """A table of commands over the start of JAX, T: with an empty folder of what is kept, and
    again."""
    by_name = {r.name: r for r in found if r.unit == "T"}
    lines = [f"Seconds of processors over T, {' '.join(_start(found))}"]
    lines.append(f"{'':<52}{'very first':>16}{'again':>16}")
    for name in dict.fromkeys(name.rpartition(", ")[0] for name in by_name):
        first, again = (_cell(by_name.get(f"{name}, {when}")) for when in ("first", "again"))
        lines.append(f"{_short(name):<52}{first}{again}")
    return "\n".join(lines)


def _short(name: str) -> str:
    return name if len(name) < 52 else f"{name[:30]} … {name[-18:]}"


def _start(found: list[Result]) -> list[str]:
    """What T is here."""
    return [f"{r.name}: {r.value:.2f} s" for r in found if r.note.startswith("T,")]


def _cell(result: Result | None) -> str:
    if result is None or result.value is None:
        return f"{'–':>16}"
    bound = "" if result.target is None else f" (≤ {result.target:g})"
    return f"{result.value:.2f}{bound}".rjust(16)


def keep(found: list[Result], folder: Path) -> None:
    """Write the numbers as a table, and those that have a target as a figure."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "bench.csv").open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow([*Result._fields, "verdict"])
        out.writerows([*r, r.verdict] for r in found)
    style.save_png(_figure([r for r in found if r.target and r.value]), folder / "bench.png")


def _figure(found: list[Result]) -> Figure:
    """How many times better than its target each number is, on a logarithmic axis."""
    figure = style.new_figure(8.0, 0.32 * len(found) + 1.0)
    axes = figure.subplots()
    better = [r.value / r.target if r.at_least else r.target / r.value for r in found]
    places = range(len(found))[::-1]
    axes.barh(
        places,
        [b - 1.0 for b in better],
        left=1.0,
        color=[style.BLUE if b >= 1.0 else style.VERMILLION for b in better],
        height=0.6,
    )
    axes.set_yticks(places, [r.name for r in found])
    axes.set(xscale="log", xlabel="times better than the target (1 = just reached)")
    axes.set_xlim(
        min(0.5, min(better, default=1.0) / 1.3), max(2.0, max(better, default=1.0) * 2.2)
    )
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.axvline(1.0, color=style.GREY, linewidth=0.8)
    for place, r, b in zip(places, found, better, strict=True):
        value = f"{r.value:,.0f}" if r.value > 1e4 else f"{r.value:.3g}"  # type: ignore[operator]
        axes.annotate(
            f"{value} {r.unit}",
            (max(b, 1.0), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    return figure
