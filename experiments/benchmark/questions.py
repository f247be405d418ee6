"""The files that a tool gets: jobs to answer, and measured rows that it may be fitted to."""

from __future__ import annotations

import csv
from pathlib import Path

from experiments.benchmark.protocols import (
    PROBABILITY,
    protocol,
    row_of,
    size_of,
    tasks,
    usable,
)
from experiments.benchmark.table import Inputs, inputs, measured, table

MEASURED = ("step_time_s", "peak_memory_bytes")
"""Columns of measured values, in the training rows alone."""


def asked(name: str) -> list[Inputs]:
    """A line for each question: its row's inputs, and the draws in which it is judged. Questions
    about fitting have the device's memory in `memory_bytes`."""
    found: dict[str, Inputs] = {}
    known = inputs()
    for task in tasks(name):
        for question in task.judge:
            if question not in found:
                cells = {**known[row_of(question)], "id": question}
                if protocol(name).answer == PROBABILITY:
                    cells["memory_bytes"] = format(size_of(question), ".12g")
                found[question] = {"id": question, "task": task.name, "draws": "", **cells}
            found[question]["draws"] = f"{found[question]['draws']} {task.draw}".strip()
    return list(found.values())


def training(name: str) -> list[Inputs]:
    """A line for each row that some task may be fitted to: `usable_for` names tasks, with
    `task/draw` where not every draw of it may."""
    values = measured(table())
    return [
        {
            "id": row,
            "usable_for": " ".join(where),
            **inputs()[row],
            MEASURED[0]: _cell(values["seconds"][row]),
            MEASURED[1]: _cell(values["bytes"][row]),
        }
        for row, where in _usable_for(name).items()
    ]


def _usable_for(name: str) -> dict[str, list[str]]:
    """Tasks, or draws of them, that each row may be used for; rows without any are left out."""
    found: dict[str, list[str]] = {}
    own = tasks(name)
    for label in dict.fromkeys(task.name for task in own):
        may = {task.draw: usable(name, task) for task in own if task.name == label}
        for i, row in enumerate(table().ids):
            where = [draw for draw, mask in may.items() if mask[i]]
            said = [label] if len(where) == len(may) else [f"{label}/{draw}" for draw in where]
            if said:
                found.setdefault(row, []).extend(said)
    return found


def _cell(value: float) -> str:
    return "" if value != value else repr(value)


def write(lines: list[Inputs], path: Path) -> Path:
    """Lines as a CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return path
