"""Rows of a table in blocks of bounded memory.

Text without quotes is split by pyarrow. Where a piece of a file has a quote, or a line that is not
as wide as the header, the reader of small tables (`calibration.traces.files.records`) takes it, so
that errors and numbers of lines are the same.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from calibration.fleets.columns import trimmed
from calibration.fleets.sources import PIECE, Source, is_parquet, parquet
from calibration.traces import Row
from calibration.traces.files import (
    check_names,
    empty,
    header_of,
    opened,
    records,
    text_of,
    unreadable,
    width,
)
from calibration.traces.reader import check_header
from calibration.traces.systems import extend_beside

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 1 << 16
"""Rows of a block at most, but of a piece of text."""

NEEDED = "accelerator"
"""A column that every row fills: where it is blank the whole line may be."""


class Block(NamedTuple):
    """Some rows of one file.

    Attributes:
      file: its name. columns: its header, in order. table: cells by column, as stored; of CSV text.
      lines: of the file, `[row]`. broken: rows that are broken as lines, each with the reason.
    """

    file: str
    columns: tuple[str, ...]
    table: pa.Table
    lines: np.ndarray
    broken: list[tuple[Row, str]]


def blocks(files: Sequence[Source], require_time: bool) -> Iterator[Block]:
    """Rows of files, block by block.

    Raises:
      InputError: a file is no table of traces.
    """
    for path, constants in files:
        found = _parquet(path) if is_parquet(path) else _csv(path)
        first = True
        for block in found:
            block = _with(block, constants)
            if first:
                extend_beside(path)
                check_names(path, block.columns)
                check_header(path, block.columns, require_time)
                first = False
            yield block


def _with(block: Block, constants: dict[str, str]) -> Block:
    """A block with columns that the path of its file says."""
    import pyarrow as pa

    table = block.table
    new = {name: value for name, value in constants.items() if name not in block.columns}
    for name, value in new.items():
        table = table.append_column(name, pa.repeat(pa.scalar(value), table.num_rows))
    return block._replace(table=table, columns=(*block.columns, *new))


def _parquet(path: Path) -> Iterator[Block]:
    import pyarrow as pa

    file = parquet(path)
    names, line = tuple(file.schema_arrow.names), 2
    empty_one = pa.Table.from_batches([], file.schema_arrow)
    yield Block(str(path), names, empty_one, np.zeros(0, np.int64), [])
    try:
        for batch in file.iter_batches(ROWS, use_threads=True):
            lines = np.arange(line, line + batch.num_rows)
            line += batch.num_rows
            yield Block(str(path), names, pa.Table.from_batches([batch]), lines, [])
    except (pa.ArrowException, OSError, OverflowError) as error:
        raise unreadable(path, error) from None


class _Piece(NamedTuple):
    """Whole lines of a file. start: its first byte; line: its first line."""

    content: bytes
    start: int
    line: int


def _pieces(path: Path) -> Iterator[_Piece]:
    """A file of text as whole lines, each piece of UTF-8 without NUL."""
    rest, start, line, blank = b"", 0, 1, True
    with opened(path) as file:
        while True:
            read = file.read(PIECE)
            content = rest + read
            end = content.rfind(b"\n") + 1 if read else len(content)
            content, rest = content[:end], content[end:]
            blank = blank and not content.strip()
            if not blank:
                text_of(path, content, start)
                yield _Piece(content, start, line)
            start, line = start + end, line + content.count(b"\n")
            if not read:
                break
    if blank:
        raise empty(path)


def _csv(path: Path) -> Iterator[Block]:
    pieces = _pieces(path)
    first = next(pieces)
    if not _simple(first.content):
        yield from _by_record(path, (), 1, chain([first], pieces))
        return
    line, columns = header_of(path, records(text_of(path, first.content)))
    yield Block(str(path), columns, _table(columns, []), np.zeros(0, np.int64), [])
    after = b"".join(first.content.splitlines(keepends=True)[line:])
    pieces = chain([_Piece(after, len(first.content) - len(after), line + 1)], pieces)
    for piece in pieces:
        if not _simple(piece.content):
            yield from _by_record(path, columns, piece.line, chain([piece], pieces))
            return
        table = _split(piece.content, columns)
        if table is None:
            yield from _by_record(path, columns, piece.line, [piece])
        else:
            lines = np.arange(piece.line, piece.line + table.num_rows)
            yield Block(str(path), columns, table, lines, [])


def _simple(content: bytes) -> bool:
    """Whether every line is a record: no quotes, no line ends of old."""
    return b'"' not in content and content.count(b"\r") == content.count(b"\r\n")


def _split(content: bytes, columns: tuple[str, ...]) -> pa.Table | None:
    """Lines as a table of text; None where one is no row of the header's width."""
    import pyarrow as pa
    from pyarrow import csv

    if not content:
        return _table(columns, [])
    rows = content.count(b"\n") + (not content.endswith(b"\n"))
    # names may be none of the header's, which says a column twice at times
    names = [str(i) for i in range(len(columns))]
    try:
        table = csv.read_csv(
            pa.BufferReader(content),
            csv.ReadOptions(column_names=names, block_size=len(content) + 1),
            csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=False,
                check_utf8=False,
            ),
        )
    except pa.ArrowInvalid:
        return None
    table = table.rename_columns(list(columns))
    if table.num_rows != rows:
        return None
    if NEEDED in columns and trimmed(table[NEEDED]).null_count:
        return None
    return table


def _by_record(
    path: Path, columns: tuple[str, ...], line: int, pieces: Iterable[_Piece]
) -> Iterator[Block]:
    """Blocks of text that is read record by record, the first at a line; no columns = it is the
    header."""
    ends = (
        text
        for piece in pieces
        for text in io.StringIO(text_of(path, piece.content, piece.start), newline="")
    )
    found = records(ends, line)
    if not columns:
        columns = header_of(path, found)[1]
        yield Block(str(path), columns, _table(columns, []), np.zeros(0, np.int64), [])
    while some := list(islice(found, ROWS)):
        yield _of_records(path, columns, some)


def _of_records(
    path: Path, columns: tuple[str, ...], found: list[tuple[int, list[str], str]]
) -> Block:
    """Records as a block, those that are not as wide as the header apart."""
    rows, lines, broken = [], [], []
    for at, fields, reason in found:
        if reason := reason or width(fields, columns):
            row = Row(str(path), at, dict(zip(columns, fields, strict=False)))
            broken.append((row, reason))
        else:
            rows.append(fields)
            lines.append(at)
    return Block(str(path), columns, _table(columns, rows), np.array(lines, np.int64), broken)


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> pa.Table:
    """Rows of cells as a table of text."""
    import pyarrow as pa

    cells = zip(*rows, strict=True) if rows else ((),) * len(columns)
    return pa.Table.from_arrays([pa.array(c, pa.string()) for c in cells], list(columns))
