"""Write a trace table to CSV or Parquet; what `read` gives back is the same table."""

from __future__ import annotations

import csv
from contextlib import suppress
from pathlib import Path
from typing import Any

from calibration.traces.schema import BY_NAME
from calibration.traces.table import Row, TraceTable
from dmodel.errors import InputError


def write(table: TraceTable, path: str | Path, aside: bool = True) -> None:
    """Write every column of the table, unknown ones too, rows in the order they were read.

    Args:
      path: the suffix decides: `.parquet` (needs pyarrow), else CSV.
      aside: write the rows that were set aside as well; they are reported again on reading.
    Raises:
      InputError: the folder does not exist or pyarrow is missing.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(
            f"{path}: cannot write, the folder {path.parent} does not exist; make it first or "
            "name another file"
        )
    rows = _in_order(table) if aside else list(table.rows)
    if path.suffix == ".parquet":
        _write_parquet(table.columns, rows, path)
    else:
        _write_csv(table.columns, rows, path)


def _in_order(table: TraceTable) -> list[Row]:
    """Usable and set-aside rows, file by file, by line."""
    everything = table.rows + table.aside
    files = {name: i for i, name in enumerate(dict.fromkeys(row.file for row in everything))}
    return sorted(everything, key=lambda row: (files[row.file], row.line))


def _write_csv(columns: tuple[str, ...], rows: list[Row], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(columns)
        out.writerows([row.cells.get(name, "") for name in columns] for row in rows)


def _typed(name: str, cells: list[str]) -> list[Any]:
    """Cells of a column as Parquet values: numbers where the format has numbers and every cell is
    one, else text; blank = null."""
    if name in BY_NAME and BY_NAME[name].kind != "text":
        with suppress(ValueError):
            return [float(c) if c.strip() else None for c in cells]
    return [c if c else None for c in cells]


def _write_parquet(columns: tuple[str, ...], rows: list[Row], path: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            f"{path}: Parquet needs pyarrow, which is not installed; install dmodel-jax[cli], or "
            "write a .csv file"
        ) from None
    data = {name: _typed(name, [row.cells.get(name, "") for row in rows]) for name in columns}
    arrays = {
        name: pyarrow.array(v, None if any(x is not None for x in v) else pyarrow.string())
        for name, v in data.items()
    }
    pyarrow.parquet.write_table(pyarrow.table(arrays), path)
