"""Rows of a trace file whose shape the catalog completes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from calibration.traces.table import Row
from dmodel.columns import BY_NAME, parse_number
from dmodel.named_shape import FROM_MODEL, SIZES, filled
from dmodel.question import Question


def completed(row: Row) -> Row:
    """The row with the blank columns of its shape as the catalog has them for its model."""
    filled = from_catalog(row.cells)
    return row._replace(filled=filled) if filled else row


def from_catalog(cells: Mapping[str, str], needed: Collection[str] = SIZES) -> dict[str, str]:
    """Blank columns of a shape as the catalog has them for the model that the cells name, as text;
    none where no needed one is blank, the catalog has no such model, or a cell says another."""
    said: dict[str, float | str] = {"model": cells.get("model", "").strip()}
    for name in (*FROM_MODEL, "n_params", "seq_len"):
        if cell := cells.get(name, "").strip():
            try:
                said[name] = parse_number(BY_NAME[name], cell)
            except ValueError:
                return {}
    found = filled(Question(said), needed)
    return {name: f"{value:.12g}" for name, value in found.items()}
