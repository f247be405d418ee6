"""Files that make up a table: what a path names, and whether the table is large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from calibration.traces.files import check_pyarrow, opened, unreadable
from dmodel.errors import InputError

MANY = 10_000
"""Rows from which on repeats of a configuration are judged together, unless asked otherwise."""

ENDINGS = (".csv", ".parquet")

PIECE = 1 << 24
"""Bytes of a text file that are read at once."""


class Source(NamedTuple):
    """A file of a table. constants: columns that its path says (`name=value` of Hive), as text."""

    path: Path
    constants: dict[str, str]


def sources(path: Path) -> list[Source]:
    """The files that a path names: itself, or all tables of a folder, by name.

    Folders `name=value` are columns, as Hive writes them. Names that begin with `.` or `_` are
    passed over, as every reader of such folders does.

    Raises:
      InputError: a folder without a table.
    """
    if not path.is_dir():
        return [Source(path, {})]
    inside = (p for p in path.rglob("*") if p.suffix.lower() in ENDINGS and p.is_file())
    found = sorted(p for p in inside if not _hidden(p.relative_to(path)))
    if not found:
        raise InputError(
            f"{path}: no table in the folder; expected files that end in {' or '.join(ENDINGS)}"
        )
    return [Source(p, _constants(p, path)) for p in found]


def _hidden(path: Path) -> bool:
    return any(part[0] in "._" for part in path.parts)


def _constants(path: Path, root: Path) -> dict[str, str]:
    """What the folders between a root and a file say."""
    from pyarrow import dataset, field, schema, string

    folder = path.parent.relative_to(root)
    columns = [field(part.partition("=")[0], string()) for part in folder.parts if "=" in part]
    said = dataset.HivePartitioning(schema(columns)).parse(f"{folder.as_posix()}/")
    return {name: value or "" for name, value in dataset.get_partition_keys(said).items()}


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet: by its name, or its first bytes."""
    if path.suffix.lower() == ".parquet":
        return True
    with opened(path) as file:
        return file.read(4) == b"PAR1"


def is_large(paths: Sequence[Path]) -> bool:
    """Whether a table has `MANY` rows, or is a folder: rows are counted as lines."""
    if any(path.is_dir() for path in paths):
        return True
    total = 0
    for path in paths:
        for count in _lines(path):
            total += count
            if total > MANY:
                return True
    return False


def _lines(path: Path) -> Iterator[int]:
    """Rows of a file, or lines piece by piece."""
    if is_parquet(path):
        yield parquet(path).metadata.num_rows + 1
        return
    with opened(path) as file:
        while piece := file.read(PIECE):
            yield piece.count(b"\n")


def parquet(path: Path):
    """A Parquet file, open.

    Raises:
      InputError: it is none, or nothing reads it.
    """
    check_pyarrow(path)
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        with opened(path):
            raise unreadable(path, error) from None
