"""Rows of a trace file as questions: the cells that are written, and nothing else."""

from __future__ import annotations

from typing import Any

from calibration.traces.table import Row
from dmodel.columns import CONFIGURATION
from dmodel.question import Question

FLAGS = {"lora": ("tuning", "lora"), "composed": ("composed", 1.0)}
"""Flags that say how a configuration ran, as settings."""


def question_of(row: Row) -> Question:
    """The question that a usable row asks: its cells, typed."""
    columns: dict[str, float | str] = {}
    for column in CONFIGURATION:
        cell = row.text(column.name)
        if not cell:
            continue
        value = row.number(column.name) if column.kind != "text" else cell
        columns[column.name] = cell if value is None else value
    columns |= {"stack": row.stack, "accelerator": row.accelerator}
    settings: dict[str, Any] = {k: v for flag in row.flags if flag in FLAGS for k, v in [FLAGS[flag]]}
    return Question(columns, settings | row.settings, where=f"{row.file}:{row.line}")
