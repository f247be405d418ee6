"""Read micro-benchmarks: every row is either usable or set aside with file, line and reason; none
is dropped."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibration.micro import schema
from calibration.micro.schema import COLLECTIVES, KINDS, PASSES, Kind
from calibration.traces.files import records, width
from calibration.traces.schema import Column, parse_number
from calibration.traces.table import Problem, Row
from dmodel import catalog
from dmodel.catalog.loader import resolve
from dmodel.errors import InputError

DATA = Path(__file__).parent / "data"

SHIPPED = ".csv.xz"
"""How the names of shipped tables end."""

RATE_AGREES = 0.05
"""Largest relative difference between a row's time and its rate; beyond it one of the two is a
slip."""


class MicroTable(NamedTuple):
    """Rows of one kind; `rows` and `aside` together are every row that was read.

    Attributes:
      kind: "matmul", "attention" or "collective". columns: header, in order.
      rows: usable rows. aside: rows that cannot be used, each with one entry of `problems` in the
        same order.
    """

    kind: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    aside: tuple[Row, ...]
    problems: tuple[Problem, ...]

    def numbers(self, name: str) -> np.ndarray:
        """A number column of the usable rows, `[row]`; NaN where blank."""
        column = _column(KINDS[self.kind], name)
        cells = (row.text(name) for row in self.rows)
        return np.array([parse_number(column, cell) if cell else np.nan for cell in cells], float)

    def texts(self, name: str) -> np.ndarray:
        """A text column of the usable rows, `[row]`."""
        return np.array([row.text(name) for row in self.rows], str)

    def chips(self) -> np.ndarray:
        """The catalog's name of each usable row's accelerator, `[row]`."""
        return np.array([resolve("chips", row.text("accelerator")) for row in self.rows], str)

    def seconds(self) -> np.ndarray:
        """Measured times [s], `[row]`."""
        return np.array([seconds(KINDS[self.kind], row) for row in self.rows], float)

    def select(self, keep: Sequence[bool] | np.ndarray | Callable[[Row], bool]) -> MicroTable:
        """The table with only some of its usable rows; what was set aside stays reported."""
        wanted = [keep(row) for row in self.rows] if callable(keep) else list(keep)
        return self._replace(rows=tuple(row for row, k in zip(self.rows, wanted, strict=True) if k))


@lru_cache(maxsize=len(KINDS))
def published(kind: str) -> MicroTable:
    """The shipped table of a kind ("matmul", "attention", "collective"); read once.

    Figures of permissively licensed repositories and of papers, each row with its source and
    licence.
    """
    path = DATA / f"{kind}{SHIPPED}"
    if not path.is_file():
        raise InputError(
            f"{path.name}: not in an installed wheel; single operations are in the source "
            "distribution and in a checkout"
        )
    return read(path)


def read(path: str | Path) -> MicroTable:
    """Read a CSV file, or one packed by gzip or xz, of matrix products, attention cores or
    collectives; its columns say which.

    Raises:
      InputError: the file cannot be read as such a table: missing, empty, not text, of no known
        kind, columns missing, without rows.
    """
    path = Path(path)
    found = records(_text(path))
    columns, kind = _header(path, *next(found, (1, [], "no header")))
    judged = [
        (Row(str(path), line, dict(zip(columns, cells, strict=False))), bad, cells)
        for line, cells, bad in found
    ]
    if not judged:
        raise InputError(
            f"{path}: the file has a header but no rows; expected one row for each measurement"
        )
    return _table(kind, columns, judged)


Judged = tuple[Row, str, list[str]]
"""A row, why its line cannot be read or "", and its cells."""


def _table(kind: Kind, columns: tuple[str, ...], judged: Sequence[Judged]) -> MicroTable:
    pairs = [
        (row, bad or width(cells, columns) or "; ".join(problems(kind, row)))
        for row, bad, cells in judged
    ]
    return MicroTable(
        kind.name,
        columns,
        rows=tuple(row for row, why in pairs if not why),
        aside=tuple(row for row, why in pairs if why),
        problems=tuple(Problem(row.file, row.line, why) for row, why in pairs if why),
    )


def _header(path: Path, line: int, header: list[str], reason: str) -> tuple[tuple[str, ...], Kind]:
    """The columns of a file and its kind, checked."""
    columns = tuple(name.strip() for name in header)
    kind = schema.kind_of(columns)
    if reason or kind is None:
        raise InputError(
            f"{path}: {reason or f'of no known kind, its columns are {_listed(columns)}'}; "
            f"expected {_expected()}"
        )
    lacking = [name for name in kind.required if name not in columns]
    if not {"time_us", kind.rate} & set(columns):
        lacking.append(f"time_us (or {kind.rate})")
    if lacking:
        raise InputError(
            f"{path}: missing columns of a {kind.name} table: {', '.join(lacking)}; got "
            f"{_listed(columns)}"
        )
    if len(set(columns)) < len(columns):
        raise InputError(
            f"{path}: columns stand in the header more than once: {_listed(columns)}; keep one of "
            "each"
        )
    return columns, kind


def _text(path: Path) -> str:
    try:
        text = _unpacked(path.read_bytes()).decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected {_expected()}") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError) as error:
        raise InputError(
            f"{path}: cannot be read as text ({error}); expected {_expected()}"
        ) from None
    if not text.strip() or "\0" in text:
        raise InputError(f"{path}: empty or not a text file; expected {_expected()}")
    return text


def _unpacked(content: bytes) -> bytes:
    if content.startswith(b"\x1f\x8b"):
        return gzip.decompress(content)
    return lzma.decompress(content) if content.startswith(b"\xfd7zXZ\0") else content


def _expected() -> str:
    return (
        "a CSV file of matmuls (m, n, k), attention cores (seq_len, head_dim) or collectives "
        "(message_bytes), with a header"
    )


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(columns[:12]) or "none"


def _column(kind: Kind, name: str) -> Column:
    return next(c for c in kind.columns if c.name == name)


def problems(kind: Kind, row: Row) -> list[str]:
    """Why a row cannot be used; nothing when it can."""
    found = list(_cells(kind, row))
    if not found:
        found.extend(_size(kind, row))
    if not found:
        found.extend(_time(kind, row))
    return found


def _cells(kind: Kind, row: Row) -> Iterator[str]:
    """What is wrong with single cells."""
    for column in kind.columns:
        cell = row.text(column.name)
        if not cell:
            if column.required:
                yield f"{column.name} is blank"
        elif column.kind != "text":
            try:
                parse_number(column, cell)
            except ValueError as error:
                yield str(error)
    accelerator = row.text("accelerator")
    if accelerator and (unknown := _unknown(accelerator)):
        yield unknown


@cache
def _unknown(accelerator: str) -> str:
    """Why a chip is none of the catalog, or ""."""
    try:
        resolve("chips", accelerator)
    except InputError:
        return (
            f"accelerator: the catalog has no {accelerator!r}; `dmodel catalog chips` lists those "
            "it has"
        )
    return ""


@cache
def _precisions(accelerator: str) -> tuple[str, ...]:
    return tuple(catalog.precisions(accelerator))


def _size(kind: Kind, row: Row) -> Iterator[str]:
    """What is wrong with cells taken together."""
    if kind.name == "collective":
        yield from _ranks(kind, row)
        return
    have = _precisions(row.text("accelerator"))
    if schema.precision(row.text("dtype")) not in have:
        yield f"dtype: {row.text('accelerator')} has {', '.join(have)}; got {row.text('dtype')!r}"
    yield from _heads(kind, row) if kind.name == "attention" else _groups(kind, row)


def _ranks(kind: Kind, row: Row) -> Iterator[str]:
    if row.text("collective") not in COLLECTIVES:
        known = ", ".join(COLLECTIVES)
        yield f"collective: expected one of {known}, got {row.text('collective')!r}"
    n, nodes = (number(kind, row, name) for name in ("n_accel", "nodes"))
    if n < 2 or n % nodes:
        yield (
            f"n_accel {n:g} on {nodes:g} nodes: expected two ranks or more, the same number on "
            "every node"
        )


def _heads(kind: Kind, row: Row) -> Iterator[str]:
    if row.text("pass") not in PASSES:
        yield f"pass: expected {' or '.join(PASSES)}, got {row.text('pass')!r}"
    heads, shared = (number(kind, row, name) for name in ("n_heads", "n_kv_heads"))
    if heads % shared:
        yield f"n_heads {heads:g} is no multiple of n_kv_heads {shared:g}"


def _groups(kind: Kind, row: Row) -> Iterator[str]:
    if row.text("groups") and number(kind, row, "m") % number(kind, row, "groups"):
        yield f"m {row.text('m')} is no multiple of groups {row.text('groups')}"


def _time(kind: Kind, row: Row) -> Iterator[str]:
    """What is wrong with the measurement."""
    if not row.text("time_us") and not row.text(kind.rate):
        yield f"neither time_us nor {kind.rate} is given"
    elif row.text("time_us") and row.text(kind.rate):
        implied = work(kind, row) / number(kind, row, kind.rate)
        given = 1e-6 * number(kind, row, "time_us")
        # rates of tiny messages are rounded to few digits
        coarse = kind.name == "collective" and number(kind, row, kind.rate) < 1.0
        if abs(implied / given - 1.0) > RATE_AGREES and not coarse:
            yield (
                f"{kind.rate} gives {1e6 * implied:g} us, time_us {1e6 * given:g}: one of them is "
                "wrong"
            )


def number(kind: Kind, row: Row, name: str) -> float:
    """A number of a usable row."""
    return parse_number(_column(kind, name), row.text(name))


def work(kind: Kind, row: Row) -> float:
    """Size of the operation in units of its rate × second."""
    if kind.name == "collective":
        return number(kind, row, "message_bytes") / 1e9
    if kind.name == "attention":
        b, a, s, e = (
            number(kind, row, name) for name in ("batch", "n_heads", "seq_len", "head_dim")
        )
        return 2.0 * b * a * s * s * e / 1e12
    m, n, k = (number(kind, row, name) for name in "mnk")
    return 2.0 * m * n * k / 1e12


def seconds(kind: Kind, row: Row) -> float:
    """Measured time of a usable row [s]."""
    if row.text("time_us"):
        return 1e-6 * number(kind, row, "time_us")
    return work(kind, row) / number(kind, row, kind.rate)
