"""`dmodel evaluate`: how far predictions are from measurements, overall and by source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmodel.cli.compiled import ready, use_one_thread_for_matrices
from dmodel.cli.options import Json, ProfileOption, Strict, Together, TraceFiles
from dmodel.cli.output import Document, deliver, percent, say, show_lines, show_table, stop

if TYPE_CHECKING:
    import numpy as np

    from calibration.predict import Predictions
    from calibration.traces import Cases, TraceTable
    from dmodel.profiles import Profile


def command(
    traces: TraceFiles = None,
    profile: ProfileOption = None,
    together: Together = None,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Compare predicted with measured step times. Without files, on the shipped published table; a
    fifth of it is held out from the profile `held-out`."""
    use_one_thread_for_matrices()
    from calibration.same import published_cases
    from calibration.traces import to_cases
    from dmodel.cli.fleet import by_configuration, evaluate_fleet
    from dmodel.cli.rows import faults, report_problems
    from dmodel.profiles import EVIDENCE

    ready()
    if traces and by_configuration(traces, together):
        evaluate_fleet(traces, profile, strict, json)
        return
    table = table_of(traces)
    report_problems(table)
    cases = to_cases(table) if traces else published_cases()
    table, _, document = judged(table, cases, profile if profile or traces else EVIDENCE)
    deliver(document, json, show)
    if strict and (wrong := faults(table)):
        say(f"dmodel: {wrong} (--strict)")
        stop(1)


def table_of(traces: list[Path] | None) -> TraceTable:
    """The files as one table, or the shipped published one."""
    from calibration.traces import published, read

    return read(list(traces)) if traces else published()


def judged(
    table: TraceTable, cases: Cases, profile: str | None
) -> tuple[TraceTable, Predictions, Document]:
    """The table as far as its predictions are numbers, these, and what is to be said of it."""
    from calibration.evaluate import evaluate
    from calibration.predict import assign, predict
    from dmodel import profiles
    from dmodel.cli.noticed import noticed, say_noticed
    from dmodel.cli.rows import errors_by_source, finite, reasons, say_profiles

    base = None if profile is None else profiles.load(profile)
    table, cases, found = finite(table, cases, predict(cases, base))
    say_profiles(found.profile, found.reason)
    seen = noticed(table, cases, found.step_time_s, found.profile)
    say_noticed(seen, table)
    fitted, doubtful = _fitted(cases, assign(cases, base)[0])
    errors = evaluate(cases, found.step_time_s, fitted)
    document = {
        "rows_read": table.total,
        "rows_used": int(cases.labels.repeats.sum()),
        "set_aside": [p._asdict() for p in table.problems],
        "reasons": reasons(table),
        **seen,
        "maybe_fitted": doubtful,
        "profiles": {name: found.profile.count(name) for name in dict.fromkeys(found.profile)},
        **with_coverage(
            with_memory(
                with_choosing(errors_by_source(errors), cases, found.step_time_s),
                cases,
                found.memory_bytes,
            ),
            cases,
            found,
            fitted,
        ),
        "dense_16_bit_gpu_without_flags": headline(cases, found.step_time_s, fitted),
    }
    return table, found, document


def _fitted(cases: Cases, used: list[Profile]) -> tuple[np.ndarray, int]:
    """Rows that the profile which predicts them was fitted on, as they are written or another way,
    `[rows]` bool. And how many others may be, which count as held out: said on stderr."""
    import numpy as np

    from calibration.same import maybe_fitted, written_otherwise
    from dmodel.cli.rows import fitted_mask

    fitted, doubtful = fitted_mask(cases, used), 0
    names = np.array([p.name for p in used])
    for name, p in {p.name: p for p in used}.items():
        rows = np.flatnonzero((names == name) & ~fitted)
        if len(rows) and p.fitted_rows:
            fitted[rows] = written_otherwise(cases.take(rows), p.fitted_rows)
            doubtful += int((maybe_fitted(cases.take(rows), p) & ~fitted[rows]).sum())
    _say_doubtful(doubtful, len(cases))
    return fitted, doubtful


def _say_doubtful(doubtful: int, rows: int) -> None:
    """How many rows may be known to the profile that predicts them."""
    if doubtful:
        say(
            f"{doubtful} of {rows} rows count as held out although their profile was fitted "
            "on a run of the same configuration: if "
            "it is the same measurement, written another way (a throughput for a step time, a "
            "blank cell), write it as the fitted file does"
        )


def with_choosing(document: Document, cases: Cases, predicted: np.ndarray) -> Document:
    """The same errors with how well the predictions choose. `regret_percent` and
    `worst_regret_percent` of the plan predicted fastest (mean and largest over `choices` sets of
    alternatives), `order_accuracy` over `pairs` that differ by more than 2 %; null without a
    choice."""
    from calibration.choosing import alternatives, choosing

    names, measured = alternatives(cases), cases.labels.step_time_s
    for line in (*document["by_source"].values(), document["overall"]):
        rows = (
            measured > 0.0
            if line is document["overall"]
            else (cases.labels.source == line["source"]) & (measured > 0.0)
        )
        found = choosing(names[rows], predicted[rows], measured[rows])
        line |= {
            "choices": found.choices,
            "regret_percent": None if found.regret is None else 100.0 * found.regret,
            "worst_regret_percent": None
            if found.worst_regret is None
            else 100.0 * found.worst_regret,
            "pairs": found.pairs,
            "order_accuracy": found.order,
        }
    return document


def with_memory(document: Document, cases: Cases, predicted: np.ndarray) -> Document:
    """The same errors with those of peak memory under `memory`. `{rows, median, mean, p90, max,
    bias}`, null where no row has a peak."""
    import numpy as np

    from calibration.evaluate import errors

    measured = cases.labels.peak_memory_bytes
    for line in (*document["by_source"].values(), document["overall"]):
        rows = np.isfinite(measured)
        rows &= True if line is document["overall"] else cases.labels.source == line["source"]
        found = errors(predicted[rows], measured[rows])
        line["memory"] = None if found is None else dict(found._asdict())
    return document


def with_coverage(
    document: Document, cases: Cases, found: Predictions, fitted: np.ndarray
) -> Document:
    """The same errors with the share of measurements inside the 90 % intervals under `coverage`.
    `{rows, inside, half_width}` of rows that were not fitted, the half width the median over the
    prediction; null where no row has an interval."""
    import numpy as np

    low, high = found.interval()
    measured = cases.labels.step_time_s
    known = np.isfinite(low) & (measured > 0.0) & ~fitted
    inside, half = (low <= measured) & (measured <= high), high / found.step_time_s - 1.0
    for line in (*document["by_source"].values(), document["overall"]):
        rows = (
            known
            if line is document["overall"]
            else known & (cases.labels.source == line["source"])
        )
        if not rows.any():
            line["coverage"] = None
            continue
        line["coverage"] = {
            "rows": int(rows.sum()),
            "inside": float(inside[rows].mean()),
            "half_width": float(np.median(half[rows])),
        }
    return document


def show_coverage(lines: list[Document]) -> None:
    """Table of how many measurements that were not fitted lie in their intervals."""
    told = [(line["source"], line["coverage"]) for line in lines if line["coverage"]]
    rows = [
        (source, c["rows"], percent(c["inside"], 0), percent(c["half_width"], 0))
        for source, c in told
    ]
    if rows:
        show_table(
            "Measurements that were not fitted inside their 90 % intervals",
            ("source", "rows", "inside", "± (median)"),
            rows,
        )


def headline(cases: Cases, predicted: np.ndarray, fitted: np.ndarray) -> Document | None:
    """Errors of dense 16-bit GPU rows without flags, or None when there are none."""
    from calibration.evaluate import dense_gpu_rows, evaluate
    from dmodel.cli.rows import errors_document

    judged = evaluate(cases, predicted, fitted, dense_gpu_rows(cases))
    return errors_document(judged)[-1] if judged.overall.all.rows else None


def show_headline(line: Document | None) -> None:
    """One line about the dense 16-bit GPU rows."""
    for part, name in (("fitted", "fitted"), ("held_out", "not fitted")):
        if line and line[part]:
            e = line[part]
            show_lines(
                f"Dense bf16/fp16 GPU rows without flags, {name}: {e['rows']} rows, median "
                f"{percent(e['median'])}, "
                f"mean {percent(e['mean'])}, 90th percentile {percent(e['p90'])}"
            )


def show_choosing(lines: list[Document]) -> None:
    """Table of how well the predictions choose, of the sources that hold alternatives."""
    rows = [
        (
            line["source"],
            line["choices"],
            percent(line["regret_percent"] / 100.0),
            percent(line["worst_regret_percent"] / 100.0),
            line["pairs"],
            "" if line["order_accuracy"] is None else f"{line['order_accuracy']:.2f}",
        )
        for line in lines
        if line["choices"]
    ]
    if rows:
        title = (
            "Choosing among measured plans: regret of the one predicted fastest, pairs (more than "
            "2 % apart) in the right order"
        )
        show_table(
            title, ("source", "choices", "mean regret", "largest", "pairs", "in order"), rows
        )


def show_memory(lines: list[Document]) -> None:
    """Table of the errors of peak memory, of the sources that report it."""
    told = [(line["source"], line["memory"]) for line in lines if line["memory"]]
    rows = [
        (
            source,
            e["rows"],
            *(percent(e[name]) for name in ("median", "mean", "p90", "max", "bias")),
        )
        for source, e in told
    ]
    if rows:
        title = (
            "|predicted / measured − 1| of peak memory; bias: median of ln(predicted / measured)"
        )
        show_table(title, ("source", "rows", "median", "mean", "p90", "max", "bias"), rows)


def show(d: dict[str, Any]) -> None:
    """The document of `judged` for people."""
    from dmodel.cli.rows import show_errors

    lines = [*d["by_source"].values(), d["overall"]]
    show_errors(
        lines,
        (
            '|predicted / measured − 1| of step time; "held out" = the profile was not fitted on '
            "the "
            "row"
        ),
    )
    show_headline(d["dense_16_bit_gpu_without_flags"])
    show_choosing(lines)
    show_memory(lines)
    show_coverage(lines)
    show_lines(
        f"{d['rows_used']} of {d['rows_read']} rows used; profiles: "
        f"{', '.join(f'{n} ({k})' for n, k in d['profiles'].items())}"
    )
