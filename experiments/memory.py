"""Peaks of memory by source: without a row of the stack, and after twelve.

Claim: twelve rows of a source predict its other peaks, and whether a layout fits a device.

Without rows: a footprint fitted to all other sources' rows (the stack's own rows are hidden). After
`--rows` rows: they are fitted from that, and the others are judged. Whether a layout fits is asked
of devices of `SIZES` that were never there: a row fits where its measured peak does. Judged are the
area under the curve of the risk, and the balanced accuracy of calling what has a risk below a half
one that fits. `--traces FILE` adds the sources of further files as targets; no base knows them.
`python -m experiments.memory [--rows 12] [--seeds 5] [--traces FILE …] [--quick] [--json]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibration.footprints import fit_footprints
from calibration.traces import Cases
from dmodel.cost.memory import out_of_memory_probability
from dmodel.footprint import whole
from dmodel.profiles import Profile, default_profile
from dmodel.report import style
from dmodel.step import memory_use
from dmodel.units import GIB
from experiments.divisions import shipped, with_peak
from experiments.few_shot import draw as drawn
from experiments.study import arguments, deliver, middle, parse, rows, run, say, summary

SIZES = (16.0, 24.0, 32.0, 40.0, 48.0, 64.0, 80.0)
"""Devices that rows are asked to fit [GiB]."""

LEAST_JUDGED = 4
"""Rows of a source that are left to judge, at least."""


def answered(cases: Cases, profile: Profile) -> tuple[np.ndarray, np.ndarray]:
    """Peaks as their stacks report them [byte] `[row]`, and the risks that they do not fit devices
    of `SIZES` `[size, row]`."""
    peaks, risks = np.empty(len(cases)), np.empty((len(SIZES), len(cases)))
    stacks = cases.labels.stack.astype(str)
    for name in np.unique(stacks).tolist():
        at = stacks == name
        own, known = cases.take(at), profile.footprint_for(name)
        records = own.model.replace(order=()), own.plan
        told = known.footprint.replace(reserved=known.footprint.reserved * own.beside)
        peaks[at] = memory_use(*records, footprint=told).total
        needed = np.asarray(memory_use(*records, footprint=whole(known.footprint)).total)
        for i, size in enumerate(SIZES):
            risks[i, at] = out_of_memory_probability(needed, np.float64(size * GIB), known.spread)
    return peaks, risks


def area_under_curve(risk: np.ndarray, beyond: np.ndarray) -> float:
    """Share of pairs of one that does not fit and one that does in which the first has the higher
    risk; ties count half; NaN where all are alike.

    >>> area_under_curve(np.array([0.1, 0.4, 0.9]), np.array([False, False, True]))
    1.0
    """
    high, low = risk[beyond], np.sort(risk[~beyond])
    if not (len(high) and len(low)):
        return float("nan")
    below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return float(below.mean() / (2.0 * len(low)))


def balanced_accuracy(risk: np.ndarray, beyond: np.ndarray) -> float:
    """Mean of the shares of both kinds that a risk of a half tells right; NaN where all are
    alike."""
    if beyond.all() or not beyond.any():
        return float("nan")
    told = risk >= 0.5
    return 0.5 * float(told[beyond].mean() + (~told[~beyond]).mean())


def judged(cases: Cases, profile: Profile) -> dict[str, float]:
    """Errors of peaks [%] with their bias, area under the curve, and balanced accuracy [%]."""
    measured = cases.labels.peak_memory_bytes
    peaks, risks = answered(cases, profile)
    ratio = peaks / measured
    beyond = (measured[None] > np.array(SIZES)[:, None] * GIB).ravel()
    return {
        **summary(np.abs(ratio - 1.0)),
        "bias": 100.0 * float(np.median(ratio - 1.0)),
        "area": area_under_curve(risks.ravel(), beyond),
        "balanced": 100.0 * balanced_accuracy(risks.ravel(), beyond),
    }


def lines_of(cases: Cases, source: str, size: int, seeds: int) -> list[dict[str, Any]]:
    """A line of a source without rows, and one after some where enough are left."""
    at = cases.labels.source == source
    own, stacks = cases.take(at), np.unique(cases.labels.stack[at])
    others = ~at & ~np.isin(cases.labels.stack, stacks) & shipped(cases)
    known = fit_footprints(cases.take(others), {}) if others.any() else {}
    base = replace(default_profile(), footprints=known)
    found = [_line(source, 0, len(own), [judged(own, base)])]
    if len(own) - size >= LEAST_JUDGED:
        parts = [drawn(len(own), size, seed) for seed in range(seeds)]
        after = [
            judged(
                own.take(~part),
                replace(base, footprints={**known, **fit_footprints(own.take(part), known)}),
            )
            for part in parts
        ]
        found.append(_line(source, size, len(own) - size, after))
    return found


def _line(source: str, size: int, count: int, found: Sequence[dict[str, float]]) -> dict[str, Any]:
    errors = middle(found)
    line = {"source": source, "rows_used": size, "rows_judged": count, **errors}
    say(
        f"{source}, {size} rows: median {errors['median']:.1f} %, mean {errors['mean']:.1f} %, "
        f"bias {errors['bias']:+.1f} %; area {errors['area']:.3f}, "
        f"balanced {errors['balanced']:.0f} %"
    )
    return line


def draw(lines: list[dict[str, Any]]) -> Any:
    """The median error of every source, without rows and after some."""
    names = list(dict.fromkeys(line["source"] for line in lines))[::-1]
    figure = style.new_figure(7.4, 1.3 + 0.3 * len(names))
    axes = figure.subplots()
    for used, color in ((False, style.GREY), (True, style.BLUE)):
        some = [line for line in lines if (line["rows_used"] > 0) == used]
        axes.plot(
            [line["median"] for line in some],
            [names.index(line["source"]) for line in some],
            "o",
            color=color,
            label="after some rows" if used else "without a row",
        )
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("median error of peaks [%]")
    axes.set_xlim(left=0.0)
    axes.legend(frameon=False)
    axes.set_title("Peak memory by source")
    return figure


def _options() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rows", type=int, default=12, help="how many rows to fit")
    return parse(parser)


def main() -> None:
    """Every source with peaks: without a row of its stacks, and after a few."""
    options = _options()
    cases = rows(options.traces)
    cases = cases.take(with_peak(cases))
    sources = np.unique(cases.labels.source).tolist()
    if options.quick:
        sources = ["kempnerforge"]
    seeds = 1 if options.quick else options.seeds
    lines = [line for s in sources for line in lines_of(cases, s, options.rows, seeds)]
    deliver("memory", lines, draw(lines), options)


if __name__ == "__main__":
    run(main)
