"""CSV files of the shell's bulk answers. Rows of text with the line they came from, and the same
rows with columns added."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dmodel.errors import InputError


class Sheet(NamedTuple):
    """A CSV file. Its header, rows as column → text, the file's line of each (the header is line
    1), and why a row is broken, or ""."""

    path: Path
    columns: tuple[str, ...]
    rows: list[dict[str, str]]
    lines: list[int]
    broken: list[str]


def read_sheet(path: Path, needed: Sequence[str | tuple[str, ...]]) -> Sheet:
    """Read a CSV file.

    Args:
      needed: columns that have to be there; of a tuple, one of them.

    Raises:
      InputError: no such file, not UTF-8, no header, no rows, a column missing or named twice.
    """
    from calibration.traces.files import records

    either = [(name,) if isinstance(name, str) else name for name in needed]
    expected = f"expected a CSV file with the columns {', '.join(names[0] for names in either)}"
    found = list(records(_content(path, expected)))
    columns = _columns(path, found, expected)
    _check_columns(path, columns, either, expected)
    if len(found) == 1:
        raise InputError(f"{path}: a header, but no rows")
    return _sheet(path, columns, found[1:])


Record = tuple[int, list[str], str]
"""Line, fields, and why it is broken or ""."""


def _columns(path: Path, found: Sequence[Record], expected: str) -> tuple[str, ...]:
    """Names in the header.

    Raises:
      InputError: there is none, it is broken, or names one column twice.
    """
    _, names, broken = found[0] if found else (1, [], "the file is empty")
    if broken:
        raise InputError(f"{path}: {broken}; {expected}")
    columns = tuple(map(str.strip, names))
    for name in columns:
        if columns.count(name) > 1:
            raise InputError(
                f"{path}: column {name or 'without a name'} stands in the header more than once; "
                "keep one of each"
            )
    return columns


def _check_columns(
    path: Path, columns: tuple[str, ...], either: Sequence[tuple[str, ...]], expected: str
) -> None:
    """Refuse a header without one of each of the names in `either`."""
    missing = [" or ".join(names) for names in either if not set(names) & set(columns)]
    if missing:
        raise InputError(
            f"{path}: missing columns: {', '.join(missing)}; {expected}{_separator(columns)}"
        )


def _sheet(path: Path, columns: tuple[str, ...], found: Sequence[Record]) -> Sheet:
    """Rows below the header."""
    from calibration.traces.files import width

    return Sheet(
        path,
        columns,
        [dict(zip(columns, fields, strict=False)) for _, fields, _ in found],
        [line for line, _, _ in found],
        [why or width(fields, columns) for _, fields, why in found],
    )


def _separator(columns: tuple[str, ...]) -> str:
    """A likely cause of missing columns: the whole header is one."""
    if len(columns) != 1:
        return ""
    for sign, other in ((";", "semicolons"), ("\t", "tabs")):
        if sign in columns[0]:
            return f"; the header is separated by {other}: save the file with commas"
    return ""


def _content(path: Path, expected: str) -> str:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not a text file, or not in UTF-8 (byte {error.start}); {expected}"
        ) from None
    except OSError as error:
        reason = (
            (error.strerror or "cannot be read")
            .lower()
            .replace("no such file or directory", "no such file")
        )
        raise InputError(f"{path}: {reason}; {expected}") from None
    if "\0" in text:
        raise InputError(f"{path}: not a text file (it has NUL bytes); {expected}")
    return text


def check_folder(path: Path | None) -> None:
    """Refuse a file that cannot be written before the work is done.

    Raises:
      InputError: its folder does not exist, it is a folder itself, or permissions forbid it.
    """
    if path is None:
        return
    if not path.parent.is_dir():
        raise InputError(
            f"{path}: cannot write, the folder {path.parent} does not exist; make it first or "
            "name another file"
        )
    if path.is_dir():
        raise InputError(f"{path}: cannot write, it is a folder; name a file in it")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{path}: cannot write, permission denied; name another file")


def write_sheet(path: Path, columns: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
    """Write rows as CSV."""
    import csv

    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(columns)
        out.writerows([row.get(name, "") for name in columns] for row in rows)
