"""Lines of a CSV or Parquet file as cells of text; whether a row makes sense is not decided
here."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

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
    check_names(out.path, out.columns)
    return out


def check_names(path: Path, columns: Sequence[str]) -> None:
    """Refuse a header that names a column twice."""
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        named = ", ".join(name or "without a name" for name in repeated)
        raise InputError(
            f"{path}: column {named} stands in the header more than once; keep one of each"
        )


def expected() -> str:
    """The columns that every file must have, for messages."""
    return (
        f"expected a header with the columns {', '.join(schema.REQUIRED)}, model (or the shape: "
        f"{', '.join(schema.SHAPE)}) and step_time_s or tokens_per_s_per_accel"
    )


def _content(path: Path) -> bytes:
    with opened(path) as file:
        content = file.read()
    if not content.strip():
        raise empty(path)
    return content


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file to read.

    Raises:
      InputError: there is none, or it cannot be read.
    """
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such file; expected a CSV or Parquet file of traces"
        ) from None
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); expected a CSV or Parquet file of traces"
        ) from None


def empty(path: Path) -> InputError:
    """What is wrong with a file without content."""
    return InputError(f"{path}: the file is empty; {expected()}")


def text_of(path: Path, content: bytes, start: int = 0) -> str:
    """Bytes of a file, from `start` on, as text.

    Raises:
      InputError: they are none.
    """
    try:
        text = content.decode("utf-8" if start else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not a text file, or not in UTF-8 (byte {start + error.start}): save it as "
            f"UTF-8; {expected()}"
        ) from None
    if "\0" in text:
        raise InputError(f"{path}: not a text file (it has NUL bytes); {expected()}")
    return text


def header_of(path: Path, found: Iterator[tuple[int, list[str], str]]) -> tuple[int, tuple]:
    """Line and names of the first of some records.

    Raises:
      InputError: there is none, or it is broken.
    """
    line, header, reason = next(found, (1, [], "no header"))
    if reason:
        raise InputError(f"{path}: not a CSV file ({reason}, line {line}); {expected()}")
    return line, tuple(name.strip() for name in header)


def _csv(out: Lines, content: bytes) -> None:
    found = records(text_of(out.path, content))
    out.columns = header_of(out.path, found)[1]
    for line, fields, reason in found:
        row = Row(str(out.path), line, dict(zip(out.columns, fields, strict=False)))
        reason = reason or width(fields, out.columns)
        if reason:
            out.broken.append((row, reason))
        else:
            out.rows.append(row)


def records(text: str | Iterable[str], first: int = 1) -> Iterator[tuple[int, list[str], str]]:
    """(line on which it starts, fields, what is wrong with it or "") of each record of a text, or
    of its lines with their ends; blank lines are no records. first: number of its first line."""
    reader = csv.reader(
        io.StringIO(text, newline="") if isinstance(text, str) else text, strict=True
    )
    while True:
        line = reader.line_num + first
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cut, line_of_end = "unexpected end of data" in str(error), reader.line_num + first - 1
            ends = (
                f"the file ends inside quotes, line {line_of_end}: truncated, or a quote too many"
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


def check_pyarrow(path: Path) -> None:
    """Refuse Parquet where nothing reads it."""
    if find_spec("pyarrow") is None:
        raise InputError(
            f"{path}: Parquet needs pyarrow, which is not installed; install dmodel-jax[cli], or "
            "give a CSV file"
        )


def _parquet(out: Lines) -> None:
    check_pyarrow(out.path)
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(out.path)
        values = [column.to_pylist() for column in table.columns]
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise unreadable(out.path, error) from None
    out.columns = tuple(table.column_names)
    for i, cells in enumerate(zip(*values, strict=True)):
        texts = {name: cell(value) for name, value in zip(out.columns, cells, strict=True)}
        out.rows.append(Row(str(out.path), i + 2, texts))


def unreadable(path: Path, error: Exception) -> InputError:
    """What is wrong with a Parquet file that pyarrow does not read."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InputError(
        f"{path}: not a readable Parquet file, perhaps truncated ({said}); {expected()}"
    )


def cell(value: object) -> str:
    """A Parquet value as text; null = blank, truth values as 0/1, floats so that they read back
    equal."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else str(value)
