"""Rows of a trace file as questions: the cells that are written, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from calibration.traces.table import Row
from dmodel.columns import BY_NAME, CONFIGURATION, parse_number
from dmodel.question import Question
from dmodel.shape import FROM_MODEL, SIZES, filled

FLAGS = {"lora": ("tuning", "lora"), "composed": ("composed", 1.0)}
"""Flags that say how a configuration ran, as settings."""


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


def question_of(row: Row) -> Question:
    """The question that a usable row asks: its cells, typed."""
    columns: dict[str, float | str] = {}
    for column in CONFIGURATION:
        if cell := row.text(column.name):
            columns[column.name] = cell if column.kind == "text" else parse_number(column, cell)
    columns |= {"stack": row.stack, "accelerator": row.accelerator}
    settings: dict[str, Any] = dict(FLAGS[flag] for flag in row.flags if flag in FLAGS)
    return Question(columns, {**settings, **row.settings}, where=f"{row.file}:{row.line}")
