"""Lines of a CSV or Parquet file as cells of text; whether a row makes sense is not decided
here."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from calibration.traces import schema
from calibration.traces.table import Row
from dmodel.errors import InputError

TABLES = (".csv", ".parquet", ".tsv")
"""How names of tables end."""


def is_table(path: Path) -> bool:
    """Whether a file is a table by its name; any other is a log or a profile."""
    return path.suffix.lower() in TABLES


class Lines:
    """A file's header, its rows, and the rows that are broken as lines, each with the reason."""

    def __init__(self, path: Path):
        self.path = path
        self.columns: tuple[str, ...] = ()
        self.rows: list[Row] = []
        self.broken: list[tuple[Row, str]] = []


def lines(path: str | Path) -> Lines:
    """Read a file; the suffix `.parquet`, or its first bytes, tell Parquet from CSV.

    Raises:
      InputError: no such file, empty, neither CSV nor Parquet, pyarrow missing, columns named
        twice.
    """
    out = Lines(Path(path))
    content = _content(out.path)
    if content[:4] == b"PAR1" or out.path.suffix == ".parquet":
        _parquet(out)
    else:
        _csv(out, content)
    repeated = sorted({name for name in out.columns if out.columns.count(name) > 1})
    if repeated:
        named = ", ".join(name or "without a name" for name in repeated)
        raise InputError(
            f"{path}: column {named} stands in the header more than once; keep one of each"
        )
    return out


def expected() -> str:
    """The columns that every file must have, for messages."""
    return (
        f"expected a header with the columns {', '.join(schema.REQUIRED)}, model (or the shape: "
        f"{', '.join(schema.SHAPE)}) and step_time_s or tokens_per_s_per_accel"
    )


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such file; expected a CSV or Parquet file of traces"
        ) from None
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); expected a CSV or Parquet file of traces"
        ) from None
    if not content.strip():
        raise InputError(f"{path}: the file is empty; {expected()}")
    return content


def _csv(out: Lines, content: bytes) -> None:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{out.path}: not a text file, or not in UTF-8 (byte {error.start}): save it as "
            f"UTF-8; {expected()}"
        ) from None
    if "\0" in text:
        raise InputError(f"{out.path}: not a text file (it has NUL bytes); {expected()}")
    found = records(text)
    line, header, reason = next(found, (1, [], "no header"))
    if reason:
        raise InputError(f"{out.path}: not a CSV file ({reason}, line {line}); {expected()}")
    out.columns = tuple(name.strip() for name in header)
    for line, fields, reason in found:
        row = Row(str(out.path), line, dict(zip(out.columns, fields, strict=False)))
        reason = reason or width(fields, out.columns)
        if reason:
            out.broken.append((row, reason))
        else:
            out.rows.append(row)


def records(text: str) -> Iterator[tuple[int, list[str], str]]:
    """(line on which it starts, fields, what is wrong with it or "") of each record; blank lines
    are no records."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cut = "unexpected end of data" in str(error)
            ends = (
                f"the file ends inside quotes, line {reader.line_num}: truncated, or a quote too "
                "many"
            )
            yield line, [], ends if cut else f"not valid CSV: {error}"
            continue
        if any(field.strip() for field in fields):
            yield line, fields, ""


def width(fields: list[str], columns: tuple[str, ...]) -> str:
    """Why a record does not match the header, or ""."""
    if len(fields) == len(columns):
        return ""
    cause = (
        "the line is cut short"
        if len(fields) < len(columns)
        else "a comma too many, or text with a comma that is not in quotes"
    )
    return f"{len(fields)} fields where the header has {len(columns)}: {cause}"


def _parquet(out: Lines) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            f"{out.path}: Parquet needs pyarrow, which is not installed; install dmodel-jax[cli], "
            "or "
            "give a CSV file"
        ) from None
    try:
        table = pyarrow.parquet.read_table(out.path)
        values = [column.to_pylist() for column in table.columns]
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"{out.path}: not a readable Parquet file, perhaps truncated "
            f"({_first_line(error)}); "
            f"{expected()}"
        ) from None
    out.columns = tuple(table.column_names)
    for i, cells in enumerate(zip(*values, strict=True)):
        texts = {name: _text(value) for name, value in zip(out.columns, cells, strict=True)}
        out.rows.append(Row(str(out.path), i + 2, texts))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _text(value: object) -> str:
    """A Parquet value as text; null = blank, truth values as 0/1, floats so that they read back
    equal."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else str(value)
