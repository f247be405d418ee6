"""Rows of a large table written again, block by block, with columns of what is known of their
configurations."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.fleets.blocks import Block, blocks
from calibration.fleets.fleet import Fleet
from calibration.fleets.keys import encoded
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
    import pyarrow as pa

    own = [name for name in fleet.table.columns if name not in new]
    anew = _flags(fleet)
    own += [name for name in anew if name not in own]
    of = iter(fleet.of)
    for block in blocks(fleet.files, False):
        if block.table.num_rows:
            index = next(of)
            group = pa.array(np.where(index < 0, len(fleet.table.rows), index))
            found = {n: _column(block, n, types.get(n)) for n in own}
            found |= {n: _either(found[n], values.take(group)) for n, values in anew.items()}
            yield pa.table(found | {name: values.take(group) for name, values in new.items()})
        if block.broken:
            cells = [row.cells for row, _ in block.broken]
            found = {n: pa.array([c.get(n) for c in cells], pa.string()) for n in own}
            none = {name: pa.nulls(len(cells), values.type) for name, values in new.items()}
            yield pa.table(found | none)


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
    import pyarrow.compute as pc

    return pc.coalesce(new, old)


def _column(block: Block, name: str, wanted: pa.DataType | None):
    """A column of a block as it is to be written."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if name not in block.columns:
        return pa.nulls(block.table.num_rows, wanted or pa.string())
    column = block.table[name]
    if wanted is None or column.type == wanted:
        return column
    if pa.types.is_string(wanted):
        values, index = encoded(column)
        texts = pa.array([*map(cell, values), None], pa.string())
        return texts.take(pa.array(np.where(index < 0, len(values), index)))
    trimmed = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.equal(trimmed, ""), None, trimmed).cast(wanted)


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
