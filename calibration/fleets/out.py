"""Rows of a large table written again, block by block, with columns of what is known of their
configurations."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.fleets.blocks import Block, blocks
from calibration.fleets.columns import encoded, trimmed
from calibration.fleets.fleet import Fleet
from calibration.traces.files import cell
from dmodel.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

FLAGS = ("flag", "flag_reason")
"""Columns that are written anew where a row can hardly be right."""


def write(fleet: Fleet, columns: Mapping[str, Sequence[Any]], path: Path) -> None:
    """Write every row that was read, in order, with more columns.

    Args:
      columns: of the usable rows of the fleet's table; a row has what its configuration has, one
        that was set aside has none.
      path: the suffix decides: `.parquet`, else CSV.
    Raises:
      InputError: the folder does not exist.
    """
    if not path.parent.is_dir():
        raise InputError(
            f"{path}: cannot write, the folder {path.parent} does not exist; make it first or "
            "name another file"
        )
    new = {name: _array(values) for name, values in columns.items()}
    if path.suffix == ".parquet":
        _parquet(_with(fleet, new, fleet.kinds), path)
    else:
        _csv(_with(fleet, new, {}), path)


def _array(values: Sequence[Any]) -> pa.Array:
    """Values of configurations, then none."""
    import pyarrow as pa

    plain = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return pa.array([*plain, None])


def _with(
    fleet: Fleet, new: Mapping[str, pa.Array], types: Mapping[str, pa.DataType]
) -> Iterator[pa.Table]:
    """All rows with all columns, block by block; columns without a type are as they are stored."""
    anew = _flags(fleet)
    own = [name for name in dict.fromkeys((*fleet.table.columns, *anew)) if name not in new]
    of = iter(fleet.of)
    for block in blocks(fleet.files, False):
        index = next(of)
        if len(index):
            group = np.where(index < 0, len(fleet.table.rows), index)
            found = {n: _column(block, n, types.get(n)) for n in own}
            yield _filled(found, new, anew, group)
        if block.broken:
            yield _broken(block, own, new)


def _filled(
    found: dict[str, Any],
    new: Mapping[str, pa.Array],
    anew: Mapping[str, pa.Array],
    group: np.ndarray,
) -> pa.Table:
    """Columns of a block with new ones, and with new text of some."""
    import pyarrow as pa

    at = pa.array(group)
    found |= {name: _either(found[name], values.take(at)) for name, values in anew.items()}
    return pa.table(found | {name: values.take(at) for name, values in new.items()})


def _broken(block: Block, own: Sequence[str], new: Mapping[str, pa.Array]) -> pa.Table:
    """The broken lines of a block, as far as they are cells."""
    import pyarrow as pa

    cells = [row.cells for row, _ in block.broken]
    found = {name: pa.array([c.get(name) for c in cells], pa.string()) for name in own}
    none = {name: pa.nulls(len(cells), values.type) for name, values in new.items()}
    return pa.table(found | none)


def _flags(fleet: Fleet) -> dict[str, pa.Array]:
    """Flags of rows that can hardly be right, and why, by index; null for others."""
    if not any(row.doubts for row in fleet.table.rows):
        return {}
    return {
        name: _array([getattr(row, name) if row.doubts else None for row in fleet.table.rows])
        for name in FLAGS
    }


def _either(old: pa.ChunkedArray, new: pa.Array):
    """New text, where there is any."""
    from pyarrow.compute import call_function

    return call_function("coalesce", [new, old])


def _column(block: Block, name: str, wanted: pa.DataType | None):
    """A column of a block as it is to be written."""
    import pyarrow as pa

    if name not in block.columns:
        return pa.nulls(block.table.num_rows, wanted or pa.string())
    column = block.table[name]
    if wanted is None or column.type == wanted:
        return column
    if pa.types.is_string(wanted):
        values, index = encoded(column)
        texts = pa.array([*map(cell, values), None], pa.string())
        return texts.take(pa.array(np.where(index < 0, len(values), index)))
    return trimmed(column).cast(wanted)


def _parquet(tables: Iterator[pa.Table], path: Path) -> None:
    from pyarrow import parquet

    writer = None
    try:
        for table in tables:
            writer = writer or parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _csv(tables: Iterator[pa.Table], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        for i, table in enumerate(tables):
            if not i:
                out.writerow(table.column_names)
            columns = [[cell(x) for x in column.to_pylist()] for column in table.columns]
            out.writerows(zip(*columns, strict=True))
