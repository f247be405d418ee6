"""Findings of the studies of hardware scaling beside the published ones: lines of a comparison, and
how they are told.

Published figures are those of Fernandez et al., "Hardware Scaling Trends and Diminishing Returns in
Large-Scale Distributed Training" (arXiv 2411.13055), as others quote them: ratios, no absolute
throughputs.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.study import keep, print_cells, print_paths, tell

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def crossing(
    x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, level: float
) -> float | None:
    """Where y first rises through a level, interpolated over ln x; None where it never does, the
    first x where it starts above it."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    above = np.flatnonzero(y >= level)
    if not len(above):
        return None
    i = int(above[0])
    if i == 0:
        return float(x[0])
    share = (level - y[i - 1]) / (y[i] - y[i - 1])
    return float(np.exp(np.log(x[i - 1]) + share * np.log(x[i] / x[i - 1])))


def points(
    what: str,
    published: float | None,
    predicted: float | None,
    within: float | None,
    assumptions: str = "",
) -> dict[str, Any]:
    """One finding in %, or percentage points: the difference is predicted − published [points]."""
    gap = None if published is None or predicted is None else predicted - published
    reached = None if published is None or within is None else _within(gap, within)
    return _line(what, "%", (published, predicted), gap, "points", within, reached, assumptions)


def ratio(
    what: str,
    unit: str,
    published: float | None,
    predicted: float | None,
    within: float | None,
    note: str = "",
) -> dict[str, Any]:
    """One finding of another unit: the difference is predicted / published − 1 [%]; `within` a
    factor above 1 or a share; None misses."""
    times = None if published is None or predicted is None else predicted / published
    gap = None if times is None else 100.0 * (times - 1.0)
    reached = None
    if published is not None and within is not None:
        factor = within > 1.0
        off = np.log(times) if factor and times is not None else gap
        reached = _within(off, np.log(within) if factor else 100.0 * within)
    return _line(what, unit, (published, predicted), gap, "%", within, reached, note)


def _within(off: float | None, limit: float) -> bool:
    """Whether a distance keeps a limit; what is not known misses it."""
    return off is not None and bool(abs(off) <= limit)


def _line(
    what: str,
    unit: str,
    values: tuple[float | None, float | None],
    difference: float | None,
    of: str,
    target: float | None,
    reached: bool | None,
    note: str,
) -> dict[str, Any]:
    """A line of the comparison; values: published and predicted."""
    return {
        "what": what,
        "unit": unit,
        "published": values[0],
        "predicted": values[1],
        "difference": difference,
        "difference_unit": of,
        "target": target,
        "reached": reached,
        "assumptions": note,
    }


def error(what: str, found: Mapping[str, float], target: float | None) -> dict[str, Any]:
    """The median error of a comparison [%]; mean and 90th percentile beside it."""
    note = f"mean {found['mean']:.1f} %, 90th percentile {found['p90']:.1f} %"
    reached = None if target is None else bool(found["median"] <= 100.0 * target)
    return _line(what, "% off (median)", (None, found["median"]), None, "", target, reached, note)


def direction(what: str, predicted: bool, note: str = "") -> dict[str, Any]:
    """A finding that is a direction: published as true."""
    return _line(what, "direction", (1.0, float(predicted)), None, "", None, predicted, note)


def deliver(
    name: str,
    assumptions: Mapping[str, str],
    findings: list[dict[str, Any]],
    lines: list[dict[str, Any]],
    figure: Figure,
    args: argparse.Namespace,
    why: Sequence[str] = (),
) -> None:
    """Write the figure, the curves and the comparison; print assumptions, comparison and
    explanation, or all as JSON."""
    written = keep(name, figure, {"": lines, "_compared": findings}, args.out)

    def show() -> None:
        print("Assumed, before looking at any finding:")
        print(*(f"  {key}: {text}" for key, text in assumptions.items()), "", sep="\n")
        print_cells([["", "published", "predicted", "difference", "", ""], *map(_cells, findings)])
        if why:
            print("", *why, sep="\n")
        print()
        print_paths(written)

    said = {"assumptions": dict(assumptions), "rows": findings, "why": list(why)}
    tell({"study": name, **written, **said}, args.json, show)


def _cells(f: dict[str, Any]) -> list[str]:
    """A finding as the cells of a row."""
    if f["unit"] == "direction":
        numbers = ["as published" if f["predicted"] else "not as published", "", ""]
    else:
        predicted = f"{_digits(f['predicted'], 'none')} {f['unit']}"
        gap = _signed(f["difference"], f["difference_unit"])
        numbers = [_digits(f["published"]), predicted, gap]
    return [f["what"], *numbers, VERDICTS[f["reached"]], f["assumptions"]]


VERDICTS = {None: "", True: "reached", False: "MISSED"}
"""What is said of a target."""


def _digits(x: float | None, missing: str = "") -> str:
    return missing if x is None else f"{x:,.0f}" if abs(x) >= 1000.0 else f"{x:.4g}"


def _signed(x: float | None, unit: str) -> str:
    return "" if x is None else f"{x:+.1f} {unit}"
