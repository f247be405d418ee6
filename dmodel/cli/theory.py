"""`dmodel theory`: the study of data movement limits, table by table."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dmodel.cli.compiled import ready
from dmodel.cli.options import Json
from dmodel.cli.output import Document, check_apart, deliver, digits, say, show_lines, show_table
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.cli.sheet import Sheet
    from dmodel.theory.rows import Answers
    from dmodel.theory.search import Best
    from dmodel.theory.study import SmallestCluster

BATCH_LAWS = ("default", "none", "deepseek")

Layouts = Annotated[
    Path | None,
    typer.Option(
        metavar="IN.csv",
        help="Fixed layouts → time, utilization, communication, memory of the whole run.",
    ),
]
Matmuls = Annotated[
    Path | None, typer.Option(metavar="IN.csv", help="gpu, d1, d2, b, for_weight_grads → time_s.")
]
Optima = Annotated[
    Path | None,
    typer.Option(
        metavar="IN.csv",
        help="gpu, model_type, d_model, d_ff, n_gpus → the best layout and its time.",
    ),
]
Sweep = Annotated[
    str | None,
    typer.Option(
        metavar="GPU",
        help="The smallest cluster by model width: curve, end of linear scaling, largest run.",
    ),
]
Sparse = Annotated[bool, typer.Option("--sparse", help="With --sweep: MoE models.")]
Law = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(BATCH_LAWS), help="With --sweep: how the batch grows with compute."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="OUT.csv", help="Write the rows with the new columns; bad rows say why in `error`."
    ),
]

SAID, SHOWN = 10, 20
"""Messages about single rows on stderr; rows of a table for people. The JSON document and OUT.csv
have all."""


def command(
    layouts: Layouts = None,
    matmuls: Matmuls = None,
    optima: Optima = None,
    sweep: Sweep = None,
    sparse: Sparse = False,
    batch_law: Law = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Evaluate the model of "Data movement limits to frontier model training" (arXiv
    2411.01137), exactly as its own code does."""
    asked = {"--layouts": layouts, "--matmuls": matmuls, "--optima": optima, "--sweep": sweep}
    _check_one(asked, sparse or batch_law is not None)
    ready()
    if layouts is not None:
        _layouts(layouts, out, json)
    elif matmuls is not None:
        _matmuls(matmuls, out, json)
    elif optima is not None:
        _optima(optima, out, json)
    elif sweep is not None:
        _sweep(sweep, sparse, batch_law or BATCH_LAWS[0], out, json)


def _layouts(path: Path, out: Path | None, json: bool) -> None:
    """The time of every row's layout."""
    from dmodel.theory import rows

    _table(path, rows.LAYOUT_COLUMNS, rows.layouts, out, json)


def _matmuls(path: Path, out: Path | None, json: bool) -> None:
    """The time of every row's product."""
    from dmodel.theory import rows

    _table(path, rows.MATMUL_COLUMNS, rows.matmuls, out, json)


def _check_one(asked: dict[str, Any], of_sweep: bool) -> None:
    """Refuse none and several questions, and options of a sweep (`of_sweep`) without one."""
    given = [option for option, value in asked.items() if value is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise InputError(f"expected one of {', '.join(asked)}, got {got}")
    if of_sweep and "--sweep" not in given:
        raise InputError(
            "--sparse and --batch-law belong to --sweep; the rows of a table say for themselves "
            "what they are"
        )


def _optima(path: Path, out: Path | None, json: bool) -> None:
    """The best layout of every row."""
    from dmodel.theory.optima import COLUMNS, OUTLINE, optima

    _table(path, COLUMNS, optima, out, json, OUTLINE)


def _table(
    path: Path,
    columns: tuple[str, ...],
    answer: Any,
    out: Path | None,
    json: bool,
    shown: tuple[str, ...] = (),
) -> None:
    """Answer every row of a table; rows that cannot be answered are named, and the others answered.
    People see the columns `shown`."""
    from dmodel.cli.sheet import check_folder, read_sheet

    check_folder(out)
    check_apart(out, path)
    sheet = read_sheet(
        path, [("gpu", "gpu_variable") if name == "gpu" else name for name in columns]
    )
    found = answer(sheet.rows)
    reasons = [broken or reason for broken, reason in zip(sheet.broken, found.reasons, strict=True)]
    report(sheet, reasons)
    if out is not None:
        write_answers(out, sheet, found, reasons)
        say(f"wrote {len(reasons)} rows to {out}")
    deliver(answers_document(sheet, found, reasons), json, partial(_show, shown))


def report(sheet: Sheet, reasons: list[str]) -> None:
    """Say on stderr which rows have no answer, with file, line and reason.

    Raises:
      InputError: no row has one.
    """
    bad = [
        f"{sheet.path}:{line}: {reason}"
        for line, reason in zip(sheet.lines, reasons, strict=True)
        if reason
    ]
    if len(bad) == len(reasons):
        raise InputError(f"no usable row; the first: {bad[0]}")
    if bad:
        _say_without_answer(bad, len(reasons))


def _say_without_answer(bad: list[str], rows: int) -> None:
    """The first of the rows without an answer, and how many there are."""
    for text in bad[:SAID]:
        say(f"no answer: {text}")
    more = f"{len(bad) - SAID} rows more have none; " if len(bad) > SAID else ""
    say(f"{more}{len(bad)} of {rows} rows without an answer")


def write_answers(out: Path, sheet: Sheet, found: Answers, reasons: list[str]) -> None:
    """The rows in their order with the results beside them, in full precision. A column `error`
    only where some row has one."""
    from dmodel.cli.sheet import write_sheet

    new = [*found.columns, *(["error"] if any(reasons) else [])]
    columns = [*(name for name in sheet.columns if name not in new), *new]
    results = _by_row(found)
    blank = dict.fromkeys(found.columns, "")
    rows = [
        {**row, "error": reason, **(blank if reason else _texts(result))}
        for row, reason, result in zip(sheet.rows, reasons, results, strict=True)
    ]
    write_sheet(out, columns, rows)


def _texts(result: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in result.items()}


def _by_row(found: Answers) -> list[dict[str, Any]]:
    """Results of each row, column → value."""
    lists = (values.tolist() for values in found.columns.values())
    return [dict(zip(found.columns, row, strict=True)) for row in zip(*lists, strict=True)]


def answers_document(sheet: Sheet, found: Answers, reasons: list[str]) -> Document:
    """Counts, the rows that were answered, and the reasons of those that were not."""
    lines = list(zip(sheet.lines, reasons, _by_row(found), strict=True))
    return {
        "file": str(sheet.path),
        "rows_read": len(reasons),
        "rows_answered": reasons.count(""),
        "no_answer": [
            {"file": str(sheet.path), "line": line, "reason": reason}
            for line, reason, _ in lines
            if reason
        ],
        "rows": [{"line": line, **result} for line, reason, result in lines if not reason],
    }


def _show(columns: tuple[str, ...], d: Document) -> None:
    rows = d["rows"][:SHOWN]
    header = ("line", *columns) if columns else tuple(rows[0])
    show_table(
        "",
        header,
        [
            [digits(row[key], 4) if isinstance(row[key], float) else row[key] for key in header]
            for row in rows
        ],
    )
    rest = len(d["rows"]) - len(rows)
    show_lines(
        f"{d['rows_answered']} of {d['rows_read']} rows answered"
        + (f", {rest} not shown (--out writes all)" if rest else "")
    )


def _sweep(name: str, sparse: bool, batch_law: str, out: Path | None, json: bool) -> None:
    """The study's sweep over widths, its table and its headline."""
    from dmodel.cli.sheet import check_folder
    from dmodel.theory.gpus import gpu
    from dmodel.theory.study import headline, sweep_widths

    law = _law_of(batch_law)
    check_folder(out)
    system = gpu(name)
    clusters = sweep_widths(system, sparse=sparse, law=law)
    found, lost = [_cells(cluster) for cluster in clusters], _without_answer(clusters)
    for width, reason in lost.items():
        say(f"no answer: width {width}: {reason}")
    if out is not None:
        _write_sweep(out, found)
    ends = headline(clusters, system)
    document = {
        "gpu": name,
        "model_type": "sparse" if sparse else "dense",
        "batch_law": batch_law,
        "linear_end": _end(ends.linear_end),
        "largest_feasible": _end(ends.largest),
        "rows": found,
        "no_answer": [{"d_model": width, "reason": reason} for width, reason in lost.items()],
    }
    deliver(document, json, _show_sweep)


def _law_of(batch_law: str) -> Any:
    """The study's law of training, with that law of the batch.

    Raises:
      InputError: there is none of that name.
    """
    from dmodel.theory.laws import BATCH_LAWS as LAWS
    from dmodel.theory.laws import STUDY

    if batch_law not in LAWS:
        raise InputError(f"--batch-law: expected one of {', '.join(LAWS)}, got {batch_law!r}")
    return STUDY.replace(batch=LAWS[batch_law])


def _without_answer(clusters: Iterable[SmallestCluster]) -> dict[int, str]:
    """Widths that no cluster trains, and why."""
    return {int(c.run.d_model): c.problem for c in clusters if c.problem}


def _write_sweep(out: Path, found: list[Document]) -> None:
    """The rows of a sweep; blank where a width has no answer."""
    from dmodel.cli.sheet import write_sheet

    rows = [
        {key: "" if value is None else str(value) for key, value in row.items()} for row in found
    ]
    write_sheet(out, list(SWEEP), rows)
    say(f"wrote {len(found)} rows to {out}")


SWEEP = ("d_model", "training_flop", "n_gpus", "utilization", "train_time_months")
"""Columns of a sweep."""


def _cells(cluster: SmallestCluster) -> Document:
    best = cluster.best
    return {
        "d_model": int(cluster.run.d_model),
        "training_flop": float(cluster.run.flop),
        **dict.fromkeys(SWEEP[2:]),
        **(_end(best) or {}),
    }


def _end(best: Best | None) -> Document | None:
    """A run on its smallest cluster."""
    from dmodel.theory.study import MONTH_S

    if best is None:
        return None
    values = (
        int(best.run.d_model),
        float(best.run.flop),
        best.n_gpus,
        best.utilization,
        best.train_time_s / MONTH_S,
    )
    return dict(zip(SWEEP, values, strict=True))


def _show_sweep(d: Document) -> None:
    rows = [
        ["" if value is None else digits(value, 4) for value in row.values()] for row in d["rows"]
    ]
    show_table(
        (
            f"{d['gpu']}, {d['model_type']} models, batch law {d['batch_law']}: the smallest "
            "cluster "
            "within three months"
        ),
        SWEEP,
        rows,
    )
    for name, text in (
        ("linear_end", "Linear scaling ends at"),
        ("largest_feasible", "Largest run within three months"),
    ):
        show_lines(f"{text}: {_shown_end(d[name])}")


def _shown_end(end: Document | None) -> str:
    """A run at an end of the sweep, in words."""
    if end is None:
        return "none in this sweep"
    return (
        f"{end['training_flop']:.2e} FLOP, utilization {end['utilization']:.3f}, "
        f"{end['n_gpus']:.3g} GPUs"
    )
