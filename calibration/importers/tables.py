"""From files of others to one table: what a person adds (`--set`), shapes of known models, what is
still missing, and the file."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibration.importers import formats, judged
from calibration.importers.beside import Beside, beside
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
from calibration.importers.told import Said, cells_of, filled, flat, timed, with_given
from calibration.micro.schema import COLLECTIVE
from calibration.traces import COLUMNS, TraceTable, write
from calibration.traces.questions import from_catalog, question_of
from calibration.traces.reader import problems
from calibration.traces.schema import SHAPE, misspelled
from calibration.traces.table import Row
from dmodel.errors import InputError
from dmodel.question import degrees
from dmodel.settings import ALIASES, KNOWN, parse, shown, text_of, unknown, value_of

NEEDED = {
    TRACES: (*SHAPE, "accelerator", "n_accel", "global_batch"),
    COLLECTIVES: ("collective", "accelerator", "n_accel", "nodes"),
}
"""Cells without which a row of a table cannot be used."""

LAYOUT = ("dp", "tp", "pp")
LOGGED = ("n_layers", "d_model", "d_ff", "gated_mlp", "n_heads", "n_kv_heads")
"""Columns of a shape that logs tell; one that is blank asks the catalog."""


class Imported(NamedTuple):
    """Rows of all files.

    Attributes:
      table: "traces" or "collectives". rows: cells by column. origin: (file, line) of each row.
      files: `{file, format, rows, troubles, …}`; format and number of troubles are None of a file
        that could not be used at all.
      troubles: what could not be read, and where; files that could not be used included.
      needed: column → rows that are blank there and cannot be used so. unusable: (row, reason) of
        rows that have another fault.
      hints: column → what files let guess of it, as it is to be typed, and why.
      conflicts: what files, files beside them and given cells say of the same, and which counts.
      doubts: what is wrong with rows by physics, in one line each: (file, line, reason), and
        whether the row is left out, or kept with its flag.
    """

    table: str
    rows: list[dict[str, str]]
    origin: list[tuple[str, int]]
    files: list[dict[str, Any]]
    troubles: list[Trouble]
    needed: dict[str, list[int]]
    unusable: dict[int, str]
    hints: dict[str, str]
    conflicts: list[str]
    doubts: list[judged.Doubt]


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
        for each, value in flat({name: text}).items():
            if found.get(each, value) != value:
                raise InputError(
                    f"--set {each} is given twice, as {found[each]} and {value}; give one"
                )
            found[each] = value
    return cells_of(found)


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
    paths: Sequence[Path],
    format: str | None = None,
    given: Mapping[str, str] | None = None,
    with_files: Sequence[Path] = (),
) -> Imported:
    """Import files into one table.

    Args:
      format: of all files; None = by their contents.
      given: cells that hold for all rows, in place of what the files say.
      with_files: files that say how the run was made; they fill blank cells of all rows.
    Raises:
      InputError: no file could be used, files of two kinds of tables, cells given that the table
        does not have, or nothing but rows that physics forbids.
    """
    known = [beside(path) for path in with_files]
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
    return together(files.results, files.about, files.troubles, given or {}, known)


def _table(results: Sequence[tuple[str, Result]]) -> str:
    tables = {result.table for _, result in results}
    if len(tables) > 1:
        named = ", ".join(f"{result.file} ({name})" for name, result in results[:6])
        raise InputError(
            "logs of collectives and training runs make different tables; import them apart: "
            f"{named}"
        )
    return tables.pop()


class _Rows(NamedTuple):
    """Rows while they are put together: cells, (file, line), and what is to be said of them."""

    rows: list[dict[str, str]]
    origin: list[tuple[str, int]]
    conflicts: list[str]


def together(
    results: Sequence[tuple[str, Result]],
    files: list[dict[str, Any]],
    troubles: list[Trouble],
    given: Mapping[str, str],
    known: Sequence[Beside] = (),
) -> Imported:
    """Rows of several files as one table, with what is still missing.

    Raises:
      InputError: the files make two kinds of tables, cells are given that the table does not have,
        or physics forbids every row.
    """
    table = _table(results)
    _check_fits(table, given, known)
    found = _Rows([], [], [])
    for _, result in results:
        for i in range(len(result.rows)):
            _put(found, result, i, Said(given, known, result.file), table)
    unusable = _unusable(table, found.rows, found.origin)
    needed = _needed(table, found.rows)
    judgement = judged.judge(found.rows, found.origin, table, unusable)
    if found.rows and not judgement.kept:
        raise InputError("; ".join(str(doubt) for doubt in judgement.doubts[:3]))
    return Imported(
        table,
        [found.rows[i] for i in judgement.kept],
        [found.origin[i] for i in judgement.kept],
        files,
        troubles,
        _renumbered(needed, judgement.kept),
        {n: unusable[i] for n, i in enumerate(judgement.kept) if i in unusable},
        _hints([result for _, result in results], needed),
        list(dict.fromkeys(found.conflicts)),
        judgement.doubts,
    )


def _hints(results: Sequence[Result], needed: Mapping[str, Any]) -> dict[str, str]:
    """What files let guess of columns that are needed."""
    found = [pair for result in results for pair in result.hints.items()]
    return {name: text for name, text in found if name in needed}


def _check_fits(table: str, given: Mapping[str, str], known: Sequence[Beside]) -> None:
    """Refuse cells that a table does not have, and files that say nothing of it."""
    foreign = [name for name in given if column(name, table) is None]
    if foreign:
        raise InputError(
            f"--set {foreign[0]}=…: the files make a table of {table}, which has no such column"
        )
    if known and table == COLLECTIVES:
        raise InputError(
            f"--with {known[0].path}: the files make a table of collectives, of which it says "
            "nothing; use --set"
        )


def _renumbered(needed: dict[str, list[int]], kept: Sequence[int]) -> dict[str, list[int]]:
    """Rows by their places among those that are kept."""
    place = {i: n for n, i in enumerate(kept)}
    found = {name: [place[i] for i in rows if i in place] for name, rows in needed.items()}
    return {name: rows for name, rows in found.items() if rows}


def _put(found: _Rows, result: Result, i: int, said: Said, table: str) -> None:
    """Put a row of a file together: given cells before its own, its own before those beside it."""
    line, cells = result.rows[i]
    cells = {"source": Path(result.file).name} | cells
    whole = with_given(filled(cells, said, found.conflicts), said.given, table)
    whole = timed(with_shape(whole), result.rates[i]) if table == TRACES else whole
    found.rows.append(whole)
    found.origin.append((result.file, line))


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
        degrees(question_of(Row("", 0, row)))
        return ()
    except InputError:
        open_ = ("dp",) if blank == LAYOUT else blank
    return open_ if devices else ()


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
