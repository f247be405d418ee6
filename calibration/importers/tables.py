"""From files of others to one table: what a person adds (`--set`), shapes of known models, what is
still missing, and the file."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibration.importers import formats
from calibration.importers.found import (
    COLLECTIVES,
    PROFILE_COLUMNS,
    TRACES,
    Result,
    Trouble,
    cell,
    column,
)
from calibration.importers.source import Source
from calibration.micro.schema import COLLECTIVE
from calibration.traces import COLUMNS, TraceTable, write
from calibration.traces.questions import from_catalog
from calibration.traces.reader import problems
from calibration.traces.schema import SHAPE, misspelled
from calibration.traces.table import Row
from dmodel.errors import InputError
from dmodel.question import degrees
from dmodel.recomputation import CHOICES
from dmodel.settings import ALIASES, KNOWN, parse, shown, text_of, unknown, value_of

NEEDED = {
    TRACES: (*SHAPE, "accelerator", "n_accel", "global_batch"),
    COLLECTIVES: ("collective", "accelerator", "n_accel", "nodes"),
}
"""Cells without which a row of a table cannot be used."""

LAYOUT = ("dp", "tp", "pp")
LOGGED = ("n_layers", "d_model", "d_ff", "gated_mlp", "n_heads", "n_kv_heads")
"""Columns of a shape that logs tell; one that is blank asks the catalog."""

AGAIN = ("recompute", "recompute_policy", *CHOICES)
"""Columns and settings of which one says what is recomputed: a given one is in place of all."""


class Imported(NamedTuple):
    """Rows of all files.

    Attributes:
      table: "traces" or "collectives". rows: cells by column. origin: (file, line) of each row.
      files: `{file, format, rows, troubles, …}`; format and number of troubles are None of a file
        that could not be used at all.
      troubles: what could not be read, and where; files that could not be used included.
      needed: column → rows that are blank there and cannot be used so. unusable: (row, reason) of
        rows that have another fault.
    """

    table: str
    rows: list[dict[str, str]]
    origin: list[tuple[str, int]]
    files: list[dict[str, Any]]
    troubles: list[Trouble]
    needed: dict[str, list[int]]
    unusable: dict[int, str]


def settings(pairs: Sequence[str]) -> dict[str, str]:
    """`name=value` of the command line as cells; what is no column goes into `set`.

    Raises:
      InputError: neither a column nor a setting, or a value that it does not allow.

    >>> settings(["precision=FP8", "graphed=1"])
    {'precision': 'fp8', 'set': 'graphed=1'}
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, text = _setting(pair)
        for each, value in _flat({name: text}).items():
            if found.get(each, value) != value:
                raise InputError(
                    f"--set {each} is given twice, as {found[each]} and {value}; give one"
                )
            found[each] = value
    return _cells(found)


def _setting(pair: str) -> tuple[str, str]:
    """Name and text of a cell, or of one setting."""
    name, equals, value = (part.strip() for part in pair.partition("="))
    name = ALIASES.get(name, name)
    if not equals or not name:
        raise InputError(f"--set {pair}: expected name=value, such as --set model=llama-3-8b")
    if not value:
        raise InputError(
            f"--set {pair}: no value given; expected {name}=value (was a variable of the "
            "shell empty?)"
        )
    kind = TRACES if column(name, TRACES) else COLLECTIVES
    try:
        return name, _of_column(name, value, kind) if column(name, kind) else _of_set(name, value)
    except InputError as error:
        raise InputError(f"--set {pair}: {error}") from None


def _of_column(name: str, value: str, table: str) -> str:
    text, why = cell(name, value, table)
    if why:
        raise InputError(why)
    return text_of(parse(text)) if name == "set" else text


def _of_set(name: str, value: str) -> str:
    if name not in KNOWN:
        near = misspelled([name]).get(name)
        raise InputError(unknown(name) + (f"; nearest column: {near}" if near else ""))
    return shown(value_of(name, value))


def _flat(cells: Mapping[str, str]) -> dict[str, str]:
    """Cells with each setting of `set` under its own name."""
    said = {name: shown(value) for name, value in parse(cells.get("set", "")).items()}
    return {**{name: text for name, text in cells.items() if name != "set"}, **said}


def _cells(flat: Mapping[str, str]) -> dict[str, str]:
    """Cells again, settings together in `set`."""
    cells = {name: text for name, text in flat.items() if name not in KNOWN}
    said = text_of({name: text for name, text in flat.items() if name in KNOWN})
    return cells | ({"set": said} if said else {})


class _Files(NamedTuple):
    """Files while they are read: results with the name of their format, what is said of each file,
    what could not be read."""

    results: list[tuple[str, Result]]
    about: list[dict[str, Any]]
    troubles: list[Trouble]

    def take(self, path: Path, name: str, result: Result) -> None:
        """Take what was read from a file."""
        self.results.append((name, result))
        self.troubles.extend(result.troubles)
        about = {
            "file": str(path),
            "format": name,
            "rows": len(result.rows),
            "troubles": len(result.troubles) + result.unnamed,
        }
        self.about.append(about | result.details)

    def twice(self, path: Path) -> None:
        """Note a file that is named again."""
        why = "named more than once; read once, so that its rows do not count twice"
        self.troubles.append(Trouble(str(path), "whole file", why))

    def unusable(self, path: Path, error: InputError) -> None:
        """Note a file that could not be used."""
        why = str(error).removeprefix(f"{path}: ")
        self.troubles.append(Trouble(str(path), "whole file", why))
        self.about.append({"file": str(path), "format": None, "rows": 0, "troubles": None})


def read(
    paths: Sequence[Path], format: str | None = None, given: Mapping[str, str] | None = None
) -> Imported:
    """Import files into one table.

    Args:
      format: of all files; None = by their contents.
      given: cells that hold for all rows, in place of what the files say.
    Raises:
      InputError: no file could be used, files of two kinds of tables, or cells given that the table
        does not have.
    """
    files = _Files([], [], [])
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            files.twice(path)
            continue
        seen.add(path.resolve())
        try:
            files.take(path, *formats.parse(Source.of(path), format))
        except InputError as error:
            if len(paths) == 1:
                raise
            files.unusable(path, error)
    if not files.results:
        raise InputError(
            "; ".join(f"{t.file}: {t.reason}" for t in files.troubles[:3])
            or "no file given; name one or more logs or profiles"
        )
    return together(files.results, files.about, files.troubles, given or {})


def _table(results: Sequence[tuple[str, Result]]) -> str:
    tables = {result.table for _, result in results}
    if len(tables) > 1:
        named = ", ".join(f"{result.file} ({name})" for name, result in results[:6])
        raise InputError(
            "logs of collectives and training runs make different tables; import them apart: "
            f"{named}"
        )
    return tables.pop()


def together(
    results: Sequence[tuple[str, Result]],
    files: list[dict[str, Any]],
    troubles: list[Trouble],
    given: Mapping[str, str],
) -> Imported:
    """Rows of several files as one table, with what is still missing.

    Raises:
      InputError: the files make two kinds of tables, or cells are given that the table does not
        have.
    """
    table = _table(results)
    foreign = [name for name in given if column(name, table) is None]
    if foreign:
        raise InputError(
            f"--set {foreign[0]}=…: the files make a table of {table}, which has no such column"
        )
    rows, origin = [], []
    for _, result in results:
        for line, cells in result.rows:
            whole = _with_given({"source": Path(result.file).name} | cells, given, table)
            rows.append(with_shape(whole) if table == TRACES else whole)
            origin.append((result.file, line))
    unusable = _unusable(table, rows, origin)
    return Imported(table, rows, origin, files, troubles, _needed(table, rows), unusable)


def _needed(table: str, rows: list[dict[str, str]]) -> dict[str, list[int]]:
    """Column → rows that are blank there and cannot be used so."""
    needed: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        blank = [name for name in NEEDED[table] if not row.get(name)]
        for name in (*blank, *(_open_degrees(row) if table == TRACES else ())):
            needed.setdefault(name, []).append(i)
    return needed


def _open_degrees(row: dict[str, str]) -> tuple[str, ...]:
    """Blank degrees without which a row's layout is unknown, or cannot multiply to its devices;
    "dp" alone where nothing is known of it."""
    devices = row.get("n_accel")
    blank = tuple(n for n in LAYOUT if not row.get(n))
    if blank == LAYOUT and row.get("zero_stage") != "3":
        return ("dp",) if devices != "1" else ()
    try:
        degrees(Row("", 0, row).question)
        return ()
    except InputError:
        open_ = ("dp",) if blank == LAYOUT else blank
    return open_ if devices else ()


def _with_given(row: dict[str, str], given: Mapping[str, str], table: str) -> dict[str, str]:
    """A row with the cells and settings that a person gave; where the file says something else, the
    note keeps it."""
    was, now = _flat(row), _flat(given)
    gone = set(AGAIN) & set(was) - set(now) if set(AGAIN) & set(now) else set()
    other = _otherwise(was, now) + [f"{n} {was[n]} left out" for n in AGAIN if n in gone]
    row = _cells({name: text for name, text in (was | now).items() if name not in gone})
    if other and table == TRACES:
        row["note"] = "; ".join(filter(None, [row.get("note"), *other]))
    return row


def _otherwise(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What a file says otherwise than is given."""
    return [
        f"{name} given in place of {was[name]}"
        for name, value in now.items()
        if was.get(name, value) != value and name != "note"
    ]


def with_shape(row: dict[str, str]) -> dict[str, str]:
    """A row whose blank shape is that of its model, where the catalog has it; the note says so."""
    blank = from_catalog(row, LOGGED)
    # how long sequences were is the run's, not the model's
    blank.pop("seq_len", None)
    if not blank:
        return row
    note = "; ".join(
        part for part in (row.get("note", ""), f"shape of the catalog's {row['model']}") if part
    )
    return row | blank | {"note": note}


def _unusable(
    table: str, rows: list[dict[str, str]], origin: list[tuple[str, int]]
) -> dict[int, str]:
    """Why `fit` would set rows aside, by the reader's own rules."""
    if table == COLLECTIVES:
        return {}
    found = {i: problems(Row(origin[i][0], origin[i][1], row)) for i, row in enumerate(rows)}
    return {i: "; ".join(reasons) for i, reasons in found.items() if reasons}


def save(imported: Imported, path: Path) -> None:
    """Write the table: traces as CSV or Parquet, collectives as CSV.

    Raises:
      InputError: the folder does not exist, or collectives as Parquet.
    """
    if imported.table == TRACES:
        _save_traces(imported, path)
    else:
        _save_collectives(imported, path)


def _save_traces(imported: Imported, path: Path) -> None:
    extra = (name for name in PROFILE_COLUMNS if any(name in row for row in imported.rows))
    names = (*(c.name for c in COLUMNS), *extra)
    rows = tuple(Row(str(path), i + 2, row) for i, row in enumerate(imported.rows))
    write(TraceTable(names, rows, (), (), ()), path)


def _save_collectives(imported: Imported, path: Path) -> None:
    if path.suffix == ".parquet":
        raise InputError(f"{path}: tables of collectives are CSV files; name a .csv file")
    if not path.parent.is_dir():
        raise InputError(
            f"{path}: cannot write, the folder {path.parent} does not exist; make it first or "
            "name another file"
        )
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(
            file, [c.name for c in COLLECTIVE.columns], restval="", lineterminator="\n"
        )
        out.writeheader()
        out.writerows(imported.rows)


__all__ = ["Imported", "read", "save", "settings", "with_shape"]
