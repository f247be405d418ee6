"""Rows flagged as slow, by a fit of the others.

Claim: half of the rows flagged as slow for no listed reason are what a fit of the others says;
most of the rest stall.

Sources that have flagged rows are fitted without these, from the shipped profile, and asked about
them. A flagged row counts as explained within a fifth of its time. The others are late by so much
for each micro-batch that passes the pipeline,
`(measured − predicted) / (m + pp − 1)`; its quartiles stand by number of stages. `python -m
experiments.slow_rows --traces FILE [--quick] [--json] [--out DIR]`; the published table has no
flagged row, so a table that has some must be given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calibration.fit import fit
from calibration.predict import predict
from calibration.traces import Cases
from dmodel.errors import InputError
from dmodel.profiles import default_profile
from dmodel.report import style
from experiments.divisions import shipped, unflagged
from experiments.study import arguments, deliver, rows, run, say

NEEDS = "a table with rows flagged slow-unexplained: --traces FILE"

EXPLAINED = 0.2
"""Error within which a flagged row is what the fit of the others says."""

STAGES = {"1 stage": (1.0, 1.0), "2 stages": (2.0, 2.0), "more": (3.0, np.inf)}


def late_per_micro_batch(cases: Cases, predicted: np.ndarray) -> np.ndarray:
    """What a row takes beyond its prediction, for each micro-batch that passes the pipeline [s]:
    `(t − t̂) / (m + pp − 1)`."""
    passes = np.asarray(cases.plan.n_microbatches) + np.asarray(cases.plan.layout.pp) - 1.0
    return (cases.labels.step_time_s - predicted) / passes


def line(name: str, cases: Cases, predicted: np.ndarray, wanted: np.ndarray) -> dict[str, Any]:
    """One line of the table: rows, those explained, and quartiles of how late those are that are
    slower than that [ms]."""
    ratio = predicted / cases.labels.step_time_s
    slow = wanted & (ratio < 1.0 - EXPLAINED)
    late = 1e3 * late_per_micro_batch(cases, predicted)[slow]
    names = ("late_q1_ms", "late_median_ms", "late_q3_ms")
    quartiles = (
        dict(zip(names, np.quantile(late, (0.25, 0.5, 0.75)).tolist(), strict=True))
        if slow.any()
        else {}
    )
    return {
        "rows": name,
        "count": int(wanted.sum()),
        "explained": int((np.abs(ratio - 1.0) < EXPLAINED)[wanted].sum()),
        "median": 100.0 * float(np.median(np.abs(ratio - 1.0)[wanted])),
        "slower": int(slow.sum()),
        **quartiles,
    }


def asked(files: list[str]) -> Cases:
    """The rows of sources that have flagged ones among the rows that the user brings.

    Raises:
      InputError: no row is flagged, or all are.
    """
    cases = rows(files)
    flagged = ~unflagged(cases) & ~shipped(cases)
    if not flagged.any():
        raise InputError(
            "no row is flagged slow-unexplained; give a table with such rows: --traces FILE"
        )
    cases = cases.take(np.isin(cases.labels.source, np.unique(cases.labels.source[flagged])))
    if not unflagged(cases).any():
        raise InputError(
            "every row of these sources is flagged slow-unexplained: none is left to fit"
        )
    return cases


def lines_of(cases: Cases, predicted: np.ndarray) -> list[dict[str, Any]]:
    """Rows without the flag, those with it, and the latter by number of stages."""
    flagged, stages = ~unflagged(cases), np.asarray(cases.plan.layout.pp)
    lines = [
        line("not flagged (fitted)", cases, predicted, ~flagged),
        line("flagged", cases, predicted, flagged),
    ]
    for name, (least, most) in STAGES.items():
        some = flagged & (stages >= least) & (stages <= most)
        lines += [line(f"flagged, {name}", cases, predicted, some)] if some.any() else []
    return lines


def draw(cases: Cases, predicted: np.ndarray) -> Any:
    """How late every row is for each micro-batch, against its measured time; flagged rows apart."""
    figure = style.new_figure(6.6, 4.2)
    axes = figure.subplots()
    late, measured = 1e3 * late_per_micro_batch(cases, predicted), cases.labels.step_time_s
    for name, mask, colour in (
        ("not flagged (fitted)", unflagged(cases), style.GREY),
        ("flagged", ~unflagged(cases), style.VERMILLION),
    ):
        axes.plot(measured[mask], late[mask], "o", ms=3, alpha=0.6, color=colour, label=name)
    axes.axhline(0.0, color=style.INK, lw=0.8)
    axes.set(xscale="log", xlabel="measured step time [s]", ylabel="late per micro-batch [ms]")
    axes.set_title("What rows take beyond a fit of those without the flag")
    axes.legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    """Fit the unflagged rows of every source with flagged ones, judge both kinds."""
    options = arguments(__doc__ or "").parse_args()
    cases = asked(options.traces)
    flagged = ~unflagged(cases)
    say(
        f"fitting {int((~flagged).sum())} rows without the flag, judging {int(flagged.sum())} "
        "with it"
    )
    profile = fit(cases, default_profile(), held_out=flagged, starts=1 if options.quick else 4)
    predicted = predict(cases, profile).step_time_s
    deliver("slow_rows", lines_of(cases, predicted), draw(cases, predicted), options)


if __name__ == "__main__":
    run(main)
