"""`dmodel theory`: the study of data movement limits, table by table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dmodel.cli.options import Json
from dmodel.cli.output import Document, deliver, digits, say, show_lines, show_table
from dmodel.types import InputError

if TYPE_CHECKING:
    from dmodel.cli.sheet import Sheet
    from dmodel.theory.rows import Answers

Layouts = Annotated[
    Path | None, typer.Option(metavar="IN.csv", help="Fixed layouts → time, utilization, communication, memory of the whole run.")
]
Matmuls = Annotated[Path | None, typer.Option(metavar="IN.csv", help="gpu, d1, d2, b, for_weight_grads → time_s.")]
Out = Annotated[Path | None, typer.Option(metavar="OUT.csv", help="Write the rows with the new columns; bad rows say why in `error`.")]

SAID, SHOWN = 10, 20
"""Messages about single rows on stderr; rows of a table for people. The JSON document and OUT.csv have all."""


def command(layouts: Layouts = None, matmuls: Matmuls = None, out: Out = None, json: Json = False) -> None:
    """Answer tables of the study "Data movement limits to frontier model training" (arXiv 2411.01137), exactly as its own code does."""
    from dmodel.theory import rows

    asked = {"--layouts": layouts, "--matmuls": matmuls}
    given = [option for option, value in asked.items() if value is not None]
    if len(given) != 1:
        raise InputError(f"expected one of {', '.join(asked)}, got {' and '.join(given) or 'none'}")
    if layouts is not None:
        _table(layouts, rows.LAYOUT_COLUMNS, rows.layouts, out, json)
    if matmuls is not None:
        _table(matmuls, rows.MATMUL_COLUMNS, rows.matmuls, out, json)


def _table(path: Path, columns: tuple[str, ...], answer: Any, out: Path | None, json: bool) -> None:
    """Answer every row of a table; rows that cannot be answered are named, and the others answered."""
    from dmodel.cli.sheet import check_folder, read_sheet

    check_folder(out)
    sheet = read_sheet(path, [("gpu", "gpu_variable") if name == "gpu" else name for name in columns])
    found = answer(sheet.rows)
    reasons = [broken or reason for broken, reason in zip(sheet.broken, found.reasons, strict=True)]
    report(sheet, reasons)
    if out is not None:
        write_answers(out, sheet, found, reasons)
        say(f"wrote {len(reasons)} rows to {out}")
    deliver(answers_document(sheet, found, reasons), json, _show)


def report(sheet: Sheet, reasons: list[str]) -> None:
    """Say on stderr which rows have no answer, with file, line and reason.

    Raises:
      InputError: no row has one.
    """
    bad = [f"{sheet.path}:{line}: {reason}" for line, reason in zip(sheet.lines, reasons, strict=True) if reason]
    if len(bad) == len(reasons):
        raise InputError(f"no usable row; the first: {bad[0]}")
    for text in bad[:SAID]:
        say(f"no answer: {text}")
    if bad:
        more = f"{len(bad) - SAID} rows more have none; " if len(bad) > SAID else ""
        say(f"{more}{len(bad)} of {len(reasons)} rows without an answer")


def write_answers(out: Path, sheet: Sheet, found: Answers, reasons: list[str]) -> None:
    """The rows in their order with the results beside them, in full precision; a column `error` only where some row has one."""
    from dmodel.cli.sheet import write_sheet

    new = [*found.columns, *(["error"] if any(reasons) else [])]
    columns = [*(name for name in sheet.columns if name not in new), *new]
    results = {name: values.tolist() for name, values in found.columns.items()}
    rows = [
        {**row, "error": reason, **{name: "" if reason else repr(values[i]) for name, values in results.items()}}
        for i, (row, reason) in enumerate(zip(sheet.rows, reasons, strict=True))
    ]
    write_sheet(out, columns, rows)


def answers_document(sheet: Sheet, found: Answers, reasons: list[str]) -> Document:
    """Counts, the rows that were answered, and the reasons of those that were not."""
    results = {name: values.tolist() for name, values in found.columns.items()}
    lines = list(enumerate(zip(sheet.lines, reasons, strict=True)))
    return {
        "file": str(sheet.path),
        "rows_read": len(reasons),
        "rows_answered": sum(not reason for reason in reasons),
        "no_answer": [{"file": str(sheet.path), "line": line, "reason": reason} for _, (line, reason) in lines if reason],
        "rows": [{"line": line, **{name: v[i] for name, v in results.items()}} for i, (line, reason) in lines if not reason],
    }


def _show(d: Document) -> None:
    shown = d["rows"][:SHOWN]
    show_table("", tuple(shown[0]), [[digits(value, 4) if key != "line" else value for key, value in row.items()] for row in shown])
    rest = len(d["rows"]) - len(shown)
    show_lines(f"{d['rows_answered']} of {d['rows_read']} rows answered" + (f", {rest} not shown (--out writes all)" if rest else ""))
