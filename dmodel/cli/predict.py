"""`dmodel predict`: step times of the rows of a trace file, or everything about one plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dmodel.cli import emitted
from dmodel.cli.compiled import ready, use_one_thread_for_matrices
from dmodel.cli.options import Degrees, Job, Json, Strict, Together, takes
from dmodel.cli.output import (
    Document,
    check_apart,
    deliver,
    gib,
    percent,
    say,
    seconds,
    show_lines,
    show_table,
    stop,
)
from dmodel.cli.peak import over_peak
from dmodel.cli.run_options import (
    Amount,
    Anyway,
    Terms,
    add_sense,
    check_amount,
    check_positive,
    flat,
    priced,
    run_answer,
    run_lines,
    sense_lines,
    stop_beyond_sense,
)
from dmodel.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from calibration.traces import TraceTable
    from dmodel.question import Question

Traces = Annotated[
    Path | None,
    typer.Argument(
        metavar="[TRACES.csv]",
        help="Rows to predict, CSV, Parquet or a folder; without it, one plan.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="PRED.csv", help="Write the rows with predictions, CSV or .parquet."),
]

Against = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=VALUE,…",
        help=(
            "Compare with a second plan, given by its differences (tp=8, system=B200-DGX, "
            "devices=256, …): both by term, and how likely the first is faster and cheaper."
        ),
    ),
]


Explain = Annotated[
    str | None,
    typer.Option(
        metavar="all|TERM",
        help=(
            "Where a term of the step comes from: formula, work, rate, coefficients, overlap, "
            "source."
        ),
    ),
]


Peak = Annotated[
    float | None,
    typer.Option(
        metavar="TFLOP/s",
        help="Peak for MFU; default: the chip's dense peak at the precision.",
    ),
]


@takes(job=Job, degrees=Degrees, amount=Amount, terms=Terms)
def command(
    traces: Traces = None,
    *,
    explain: Explain = None,
    peak: Peak = None,
    anyway: Anyway = False,
    against: Against = None,
    emit: emitted.EmitTo = None,
    emit_out: emitted.EmitFile = None,
    out: Out = None,
    together: Together = None,
    strict: Strict = False,
    json: Json = False,
    job: Job,
    degrees: Degrees,
    amount: Amount,
    terms: Terms,
) -> None:
    """Predict the rows of a trace file, or one plan given by options."""
    if traces is None:
        if out is not None:
            raise InputError(
                "--out goes with a trace file: dmodel predict TRACES.csv --out PRED.csv; for "
                "one plan, use --json"
            )
        if together is not None:
            raise InputError("--configurations and --rows go with a trace file")
        check_amount(amount, terms)
        check_positive("--peak", peak)
        emitted.check_target(emit, emit_out)
        job = job._replace(settings=priced(job.settings, terms))
        more = More(peak, against, explain, emit, emit_out, anyway, strict)
        _one_plan(job, degrees, (amount, terms), more, json)
    else:
        one = {"--against": against, "--explain": explain, "--peak": peak, "--anyway": anyway}
        one |= {"--emit": emit, "--emit-out": emit_out}
        for option, given in one.items():
            if given not in (None, False):
                raise InputError(f"{option} is about one plan; leave it out, or the trace file")
        _refuse_plan_options(job, degrees, amount, terms)
        check_apart(out, traces)
        _rows(traces, job.profile, out, together, strict, json)


class More(NamedTuple):
    """What is asked of one plan beside its answer, as the options of `command`."""

    peak: float | None
    against: str | None
    explain: str | None
    emit: str | None
    emit_out: Path | None
    anyway: bool
    strict: bool


def _one_plan(
    job: Job, degrees: Degrees, run: tuple[Amount, Terms], more: More, json: bool
) -> None:
    from dmodel.cli.question import question_of

    question = question_of(job, degrees)
    ready()
    document, show = _answered(question, job.profile, run, more)
    if more.peak is not None:
        document |= over_peak(document, 1e12 * more.peak)
    deliver(document, json, show)
    if "emit" in document:
        emitted.write_emitted(document["emit"], more.emit_out)
    stop_beyond_sense(document, more.anyway)
    if more.strict:
        _stop_where_too_large(document)


def _answered(
    question: Question, profile: str | None, run: tuple[Amount, Terms], more: More
) -> tuple[Document, Callable[[Document], None]]:
    """What is known of one plan, and how people see it."""
    from dmodel.asked import ask, laid, provenance
    from dmodel.cli.against import against, show_against
    from dmodel.cli.answer import show_answer
    from dmodel.cli.not_given import faster, faster_lines
    from dmodel.cli.question import plan_document, short, title
    from dmodel.prediction import prediction
    from dmodel.room import advice
    from dmodel.run import CONVENTION

    asked = ask(question, profile)
    found = prediction(asked, resolved := laid(asked, {}))
    say(provenance(asked))
    document = {
        **asked.document(),
        "plan": plan_document(found.plan),
        **found.document,
        **advice(asked, resolved, found.document),
        **flat(run_answer(asked, found.document, *run)),
        "assumptions": [str(each) for each in found.assumptions],
    }
    tokens = document.get("run", {}).get("tokens")
    add_sense(document, asked, found.document["mfu"][CONVENTION], tokens, run[0].loss)
    if more.against is not None:
        document["against"] = against(asked, found.plan, more.against, profile)
    if (beside := faster(asked, found.plan, document, more.against)) is not None:
        document["faster"] = beside
    if more.explain is not None:
        document["explained"] = [each.document() for each in found.explained(more.explain)]
    if more.emit is not None:
        document["emit"] = emitted.emit_document(asked, asked.model, found.plan, more.emit)

    def show(d: Document) -> None:
        show_lines(f"{title(d)}: {short(d['plan'])}", *sense_lines(d), "")
        show_answer(d)
        if "run" in d:
            show_lines(*run_lines(d["run"]))
        if "against" in d:
            show_against(d)
        show_lines(*faster_lines(d))
        if more.explain is not None:
            show_lines("", found.explain(more.explain))
        show_lines("", "Assumed:", *(f"  {text}" for text in d["assumptions"]))
        if "emit" in d and more.emit_out is None:
            emitted.show_emitted(d["emit"])

    return document, show


def _stop_where_too_large(document: Document) -> None:
    """Exit code 1 where a plan does not fit."""
    if not document["fits"]:
        say(
            f"dmodel: the plan does not fit: {gib(-document['headroom_bytes'])} more than the "
            "device has (--strict)"
        )
        stop(1)


def _refuse_plan_options(*records: Job | Degrees | Amount | Terms) -> None:
    """With a trace file the rows say what to predict: options that would be ignored are a
    mistake."""
    given = [name for record in records for name in _given(record) if name != "profile"]
    if given:
        names = ", ".join(f"--{n.replace('_', '-')}" for n in given)
        raise InputError(
            f"{names}: a trace file says this row by row; leave the option out, or the file"
        )


def _given(record: Job | Degrees | Amount | Terms) -> list[str]:
    """Options that are not at their defaults."""
    default = record._field_defaults
    return [name for name, value in record._asdict().items() if value != default[name]]


def _rows(
    path: Path, profile: str | None, out: Path | None, how: bool | None, strict: bool, json: bool
) -> None:
    use_one_thread_for_matrices()
    from calibration.predict import as_asked
    from calibration.traces import read, to_cases, write
    from dmodel.cli.fleet import by_configuration, predict_fleet
    from dmodel.cli.noticed import say_doubted, say_notes
    from dmodel.cli.rows import faults, predicted, report_problems
    from dmodel.profiles import load

    ready()
    if by_configuration([path], how):
        predict_fleet(path, profile, out, strict, json)
        return
    table = read(path, require_time=False)
    report_problems(table)
    cases = as_asked(table, to_cases(table), None if profile is None else load(profile))
    table, cases, found, columns = predicted(table, cases, profile)
    doubted = [p._asdict() for p in table.doubts]
    say_doubted(doubted, table)
    say_notes([note._asdict() for note in table.notes])
    if out is not None:
        write(table.with_flags().with_columns(_texts(columns)), out)
        say(
            f"wrote {len(cases)} predicted rows to {out}, and {len(table.aside)} set aside, as "
            "they were"
        )
    headroom = columns["headroom_bytes"]
    document = {
        "file": str(path),
        "rows_read": table.total,
        "rows_used": len(cases),
        "set_aside": [p._asdict() for p in table.problems],
        "implausible": doubted,
        "notes": [p._asdict() for p in table.notes],
        "does_not_fit": int((headroom < 0.0).sum()),
        "mfu_convention": found.convention,
        "rows": row_documents(table, cases, columns),
    }
    deliver(document, json, show_rows)
    if strict:
        stop_where_wrong(faults(table), document["does_not_fit"])


def stop_where_wrong(found: str, too_large: int) -> None:
    """Exit code 1 where rows are wrong (`found` says how), or plans too large."""
    wrong = [found, f"{too_large} plans that do not fit" if too_large else ""]
    if any(wrong):
        say(f"dmodel: {', '.join(filter(None, wrong))} (--strict)")
        stop(1)


def _texts(columns: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    """Columns of a table; what there is none of is blank."""
    return {
        name: ["" if value is None else value for value in values]
        for name, values in columns.items()
    }


def row_documents(table: TraceTable, cases: Any, columns: dict[str, np.ndarray]) -> list[Document]:
    """One record per usable row; a time that was not measured is null, and so is the reason of a
    row that can be believed."""
    import numpy as np

    labels = cases.labels
    fixed = [
        {
            "file": f,
            "line": n,
            "model": m,
            "accelerator": a,
            "devices": int(d),
            "measured_step_time_s": None if np.isnan(t) else t,
            "flag": row.flag,
            "flag_reason": row.flag_reason or None,
            "assumptions": s,
        }
        for row, f, n, m, a, d, t, s in zip(
            table.rows,
            labels.file.tolist(),
            labels.line.tolist(),
            labels.model.tolist(),
            labels.accelerator.tolist(),
            labels.n_accel.tolist(),
            labels.step_time_s.tolist(),
            labels.assumptions.tolist(),
            strict=True,
        )
    ]
    lists = [x.tolist() if isinstance(x, np.ndarray) else list(x) for x in columns.values()]
    every = zip(*lists, strict=True)
    return [row | dict(zip(columns, of, strict=True)) for row, of in zip(fixed, every, strict=True)]


SHOWN = 40
"""Rows of the table on the screen."""


def half_width(row: Document) -> str:
    """Half of the interval over the prediction, upwards; blank where there is none."""
    high = row["predicted_step_time_s_high"]
    return "" if high is None else percent(high / row["predicted_step_time_s"] - 1.0, 0)


def _cells(row: Document) -> tuple[object, ...]:
    """A row of the table on the screen; blank where nothing was measured."""
    measured, predicted = row["measured_step_time_s"], row["predicted_step_time_s"]
    return (
        row["line"],
        row["model"],
        row["accelerator"],
        row["devices"],
        "" if measured is None else seconds(measured),
        seconds(predicted),
        half_width(row),
        "" if measured is None else f"{100 * (predicted / measured - 1):+.1f} %",
        percent(row["mfu"]),
        gib(row["headroom_bytes"]),
        row["profile"],
        row["flag"],
    )


def show_rows(d: Document) -> None:
    """The document of some predicted rows for people."""
    rows = [_cells(row) for row in d["rows"][:SHOWN]]
    header = (
        *("line", "model", "accelerator", "devices", "measured", "predicted", "± (90 %)"),
        *("error", "MFU", "headroom", "profile", "flag"),
    )
    show_table(
        f"{d['file']}: {d['rows_used']} rows",
        header,
        rows,
        right="line|devices|measured|predicted|± (90 %)|error|MFU|headroom",
    )
    if len(d["rows"]) > SHOWN:
        show_lines(
            f"… and {len(d['rows']) - SHOWN} rows more; --out PRED.csv writes all, --json prints "
            "all."
        )
    for p in d["implausible"]:
        show_lines(f"line {p['line']} is implausible: {p['reason']}")
    if d["does_not_fit"]:
        show_lines(
            f"{d['does_not_fit']} rows need more memory than their device has by this model "
            "(negative headroom)."
        )
    if d["set_aside"]:
        show_lines(f"{len(d['set_aside'])} of {d['rows_read']} rows set aside; see the messages.")
