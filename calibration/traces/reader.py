"""Read traces: every row is either usable or set aside with file, line and reason; none is
dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from calibration.traces import schema
from calibration.traces.files import expected, lines
from calibration.traces.notes import advice
from calibration.traces.questions import completed
from calibration.traces.systems import extend_beside
from calibration.traces.table import HEADER, NOTED, REFUSED, Problem, Row, TraceTable
from dmodel.catalog.loader import nearest
from dmodel.catalog.stack import names as stacks
from dmodel.catalog.stack import stack
from dmodel.checks import problems as problems_of
from dmodel.errors import InputError
from dmodel.question import Question, degrees
from dmodel.resolve import part


def read(
    paths: str | Path | Sequence[str | Path],
    require_time: bool = True,
    wanted: Callable[[Row], bool] | None = None,
) -> TraceTable:
    """Read CSV or Parquet files into one table.

    Args:
      paths: one file or several.
      require_time: rows without a measured time are set aside; False for tables that are only to be
        predicted.
      wanted: which rows to read at all, usable or not; None = all.
    Returns:
      Rows with their cells as written, but for words of the format, which are spelled as it spells
      them (`schema.spelled`).
    Raises:
      InputError: a file cannot be read as a table of traces: missing, empty, binary, without the
        needed columns, without rows.
    """
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if not paths:
        raise InputError("no trace file given; name one or more CSV or Parquet files")
    return concatenate([_read_one(Path(path), require_time, wanted) for path in paths])


def unread(path: Path) -> list[Row]:
    """Rows of a file, usable or not, as `read` spells them, without a look at what they say."""
    return [spelled(row) for row in lines(path).rows]


def concatenate(tables: Sequence[TraceTable]) -> TraceTable:
    """One table of several; columns in the order in which they first appear."""
    whole = {
        name: tuple(chain.from_iterable(getattr(table, name) for table in tables))
        for name in TraceTable._fields
    }
    return TraceTable(**whole | {"columns": tuple(dict.fromkeys(whole["columns"]))})


def check_header(path: Path, columns: tuple[str, ...], require_time: bool) -> None:
    """Refuse a file that is no table of traces."""
    lacking = schema.missing(columns, require_time)
    if lacking:
        raise InputError(
            f"{path}: missing columns: {', '.join(lacking)}; got {_header(columns)}; "
            f"{expected()} (blank cells are fine). "
            "Likely causes: another file, no header line, or a separator that is not a comma."
        )


def no_rows(path: Path) -> InputError:
    """What is wrong with a file that is only a header."""
    return InputError(
        f"{path}: the file has a header but no rows; expected one row for each measured "
        "configuration"
    )


def _read_one(path: Path, require_time: bool, wanted: Callable[[Row], bool] | None) -> TraceTable:
    file = lines(path)
    extend_beside(path)
    check_header(path, file.columns, require_time)
    if not file.rows and not file.broken:
        raise no_rows(path)
    whole = [spelled(row) for row in file.rows]
    whole = whole if wanted is None else [row for row in whole if wanted(row)]
    found = sorted([*file.broken, *judged(whole, require_time)], key=lambda pair: pair[0].line)
    return table_of(file.columns, found, misspelled(path, file.columns))


def table_of(
    columns: tuple[str, ...], found: Sequence[tuple[Row, str]], notes: Iterable[Problem]
) -> TraceTable:
    """Judged rows as a table; notes: on its header."""
    rows = tuple(row for row, reason in found if not reason)
    aside = tuple(row for row, reason in found if reason)
    reasons = tuple(Problem(row.file, row.line, reason) for row, reason in found if reason)
    told = (Problem(row.file, row.line, text) for row in rows for text in remarks(row))
    return TraceTable(columns, rows, aside, reasons, (*notes, *_strangers(rows), *told))


def judged(rows: Sequence[Row], require_time: bool) -> Iterator[tuple[Row, str]]:
    """Every row, in order, and why it cannot be used, "" when it can."""
    reasons = [problems(row, require_time) for row in rows]
    sound = _doubted([row for row, wrong in zip(rows, reasons, strict=True) if not wrong])
    for row, why in zip(rows, reasons, strict=True):
        yield (row, _reason(row, why)) if why else next(sound)


def _doubted(rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """Rows whose cells make sense with what is to be said of them, and why they cannot be used."""
    # the checks know rows, so they stand on this package
    from calibration.plausible import doubts

    for row, found in zip(rows, doubts(rows), strict=True):
        wrong = [str(each) for each in found if each.severity == REFUSED]
        if wrong:
            yield row, _reason(row, wrong)
        else:
            yield row._replace(found=tuple(found)) if found else row, ""


def misspelled(path: Path, header: Sequence[str]) -> Iterator[Problem]:
    """A remark on each column that is not read, though it resembles one of the format."""
    for name, near in schema.misspelled(header).items():
        text = f"column {name!r} is none of the format, so it is not read; if it is {near}, "
        yield Problem(str(path), HEADER, text + "rename it")


def _strangers(rows: Sequence[Row]) -> Iterator[Problem]:
    """A remark on each stack that no file describes, at its first row."""
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault(stack(row.stack).id, row)
    for name, row in found.items():
        if not stack(name).known and (row.text("stack") or row.text("source")):
            near = nearest(name, stacks())
            hint = f"; nearest: {', '.join(near)}" if near else ""
            yield Problem(
                row.file,
                row.line,
                f"stack {name!r}: no file describes it, so only what holds for every stack is "
                f"known of it{hint}. `dmodel catalog stacks` lists all",
            )


def spelled(row: Row) -> Row:
    """The row with words of the format as the format spells them, so that `Flash` is the same
    measurement as `flash`, and with the blank columns of its shape as the catalog has them."""
    words = (name for name in ("flag", *schema.OF_WORDS) if row.cells.get(name))
    said = {name: schema.spelled(name, row.cells[name]) for name in words}
    return completed(row._replace(cells={**row.cells, **said}))


def _reason(row: Row, wrong: Sequence[str]) -> str:
    """Why a row cannot be used; whose numbers are not in the file is said, and what its note says
    in vain."""
    text = "; ".join([*wrong, *_unread(row)])
    filled = f" (blank columns of the shape as of {row.text('model')} in the catalog)"
    return text + filled * bool(row.filled)


def _header(columns: tuple[str, ...]) -> str:
    """The columns got, shortened."""
    text = ", ".join(columns)
    return repr(text if len(text) < 200 else text[:200] + "…")


def problems(row: Row, require_time: bool = True) -> list[str]:
    """Reasons why a row cannot be used; none when it can. Later checks wait until the numbers are
    numbers."""
    wrong = list(_bad_cells(row)) + list(_blank_cells(row))
    if wrong:
        return wrong
    wrong = [*_layout_unknown(row), *_unanswerable(row)]
    if require_time and measured_time(row) is None:
        wrong.append("no measured time: step_time_s and tokens_per_s_per_accel are both blank")
    return wrong


def _bad_cells(row: Row) -> Iterator[str]:
    """Cells that are not what their column holds."""
    told = row.told
    for column in schema.COLUMNS:
        cell = told.get(column.name)
        if not cell:
            continue
        if column.kind != "text":
            try:
                schema.parse_number(column, cell)
            except ValueError as error:
                yield str(error)
        elif column.allowed and _base(column.name, cell) not in column.allowed:
            yield f"{column.name}: expected one of {', '.join(column.allowed)}, got {cell[:60]!r}"


def _blank_cells(row: Row) -> Iterator[str]:
    """Cells without which nothing can be said."""
    shape = [name for name in schema.SHAPE if not row.text(name)]
    if shape:
        yield f"missing shape: {', '.join(shape)} blank"
    yield from (
        f"{name} is blank"
        for name in ("accelerator", "n_accel", "global_batch")
        if not row.text(name)
    )


def _base(name: str, cell: str) -> str:
    return schema.base_precision(cell) if name == "precision" else cell


def _layout_unknown(row: Row) -> Iterator[str]:
    """A layout from nothing: only ZeRO-3, where all devices shard, or a single device says
    enough."""
    open_ = not any(row.text(name) for name in ("dp", "tp", "pp"))
    if open_ and row.known("n_accel") > 1.0 and row.number("zero_stage") != 3.0:
        yield (
            "layout unknown: dp, tp and pp are all blank, and zero_stage does not say that all "
            "devices shard (3)"
        )


def _unanswerable(row: Row) -> Iterator[str]:
    """Settings, degrees and hardware that make no sense."""
    try:
        question = row.question
    except InputError as error:
        yield str(error)
        return
    try:
        # what a row says together is found out by doing it
        part(question, [])
    except InputError as error:
        yield from _said_of(question, error)


def _said_of(question: Question, error: InputError) -> list[str]:
    """Why a question has no answer: all that is wrong with it, else what was said."""
    try:
        return problems_of(question) or [str(error)]
    except InputError as first:
        return [str(first)]


INTEGERS = tuple(column.name for column in schema.COLUMNS if column.kind == "integer")
"""Columns of counts."""


def _rounded(row: Row) -> Iterator[str]:
    """Counts that are nearly whole."""
    told = row.told
    for name in INTEGERS:
        cell = told.get(name)
        if cell and float(cell) != row.number(name):
            yield f"{name} = {cell} read as {row.number(name):g}"


def remarks(row: Row) -> Iterator[str]:
    """Mild things about a usable row, which change no decision."""
    yield from _uneven(row)
    yield from _rounded(row)
    yield from (str(each) for each in row.found if each.severity == NOTED)
    unknown = sorted(set(row.flags) - set(schema.FLAGS))
    if unknown:
        yield f"flag {', '.join(unknown)} is none of {', '.join(schema.FLAGS)}; kept as it is"
    policy = row.settings.get("recompute_policy")
    if policy and policy not in stack(row.stack).asks("recompute_policy"):
        yield f"recompute_policy = {policy}: not read, no fact of the stack {row.stack} knows it"
    yield from _unread(row)


def _uneven(row: Row) -> Iterator[str]:
    """Degrees that do not divide."""
    plan = degrees(row.question)
    chunks = plan.pp * (row.number("interleave") or 1.0)
    if row.known("n_layers") % chunks and not row.text("stage_layers"):
        yield (
            f"uneven pipeline stages: n_layers = {row.text('n_layers')} over pp·interleave = "
            f"{chunks:g}"
        )
    ranks = plan.dp * plan.tp * plan.cp
    if plan.ep > ranks:
        yield f"ep = {plan.ep:g} is more than dp·tp·cp = {ranks:g}; counted as ep = {ranks:g}"


def _unread(row: Row) -> list[str]:
    """What version 0.1 read in the row's note, in a table without the column that holds it now."""
    return [] if "set" in row.cells else advice(row.cells)


def derived_time(row: Row) -> float | None:
    """Step time from the throughput: `global_batch · seq_len / (tokens_per_s_per_accel · n_accel)`
    [s], None when blank."""
    rate = row.number("tokens_per_s_per_accel")
    if rate is None:
        return None
    return row.known("global_batch") * row.known("seq_len") / (rate * row.known("n_accel"))


def measured_time(row: Row) -> float | None:
    """Measured step time [s]: as given, else from the throughput, else None."""
    return row.number("step_time_s") or derived_time(row)
