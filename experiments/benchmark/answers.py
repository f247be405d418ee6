"""Answers of a tool: a CSV of `id` and `seconds`, `bytes` or `probability`, with `draw`, `lo` and
`hi` where there are any."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from dmodel.errors import InputError
from experiments.benchmark.protocols import PROBABILITY, protocol, tasks

Key = tuple[str, int]
"""Name of a question, and the draw."""


class Answer(NamedTuple):
    """One answer, with the ends of an interval of 90 % where the tool gives them."""

    value: float
    lo: float = math.nan
    hi: float = math.nan


Answers = dict[Key, Answer]


def read(path: Path, name: str) -> Answers:
    """The answers to a protocol in a file. Without a column `draw`, or with a blank one, an answer
    counts for every draw.

    Raises:
      InputError: no such file, a column is missing, a cell is not what it should be, a question is
        not in the protocol, or one is answered twice.
    """
    column = protocol(name).answer
    asked: dict[str, list[int]] = {}
    for task in tasks(name):
        for question in task.judge:
            asked.setdefault(question, []).append(task.draw)
    found: Answers = {}
    for line, cells in enumerate(_cells(path, column), start=2):
        where = f"{path}:{line}"
        question = (cells.get("id") or "").strip()
        if question not in asked:
            raise InputError(
                f"{where}: id {question!r} is not asked by the protocol {name}; see "
                f"`python -m experiments.benchmark questions --protocol {name}`"
            )
        if not (cells.get(column) or "").strip():
            continue
        answer = _answer(cells, column, where)
        for draw in _draws(cells.get("draw") or "", asked[question], where):
            if (question, draw) in found:
                raise InputError(f"{where}: id {question}, draw {draw} is answered twice")
            found[question, draw] = answer
    return found


def _cells(path: Path, column: str) -> Iterable[Mapping[str, str | None]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: cannot be read ({e}); expected a CSV of answers") from None
    reader = csv.DictReader(text.splitlines())
    header = reader.fieldnames or []
    if missing := [name for name in ("id", column) if name not in header]:
        raise InputError(
            f"{path}: the header lacks {' and '.join(missing)}; it has {', '.join(header) or 'no'} "
            "columns"
        )
    return reader


def _answer(cells: Mapping[str, str | None], column: str, where: str) -> Answer:
    value = _number(cells, column, where)
    if column == PROBABILITY:
        if not 0.0 <= value <= 1.0:
            raise InputError(f"{where}: {column}: expected 0 to 1, got {value:g}")
        return Answer(value)
    ends = [_number(cells, end, where) for end in ("lo", "hi")]
    if value <= 0.0 or ends[0] > ends[1]:
        raise InputError(
            f"{where}: expected {column} above 0 and lo below hi, got {value:g}, "
            f"{ends[0]:g} and {ends[1]:g}"
        )
    return Answer(value, *ends)


def _number(cells: Mapping[str, str | None], column: str, where: str) -> float:
    """A number; NaN where an optional cell is blank."""
    text = (cells.get(column) or "").strip()
    if not text:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where}: {column}: expected a finite number, got {text!r}")
    return value


def _draws(cell: str, asked: list[int], where: str) -> list[int]:
    text = cell.strip()
    if not text:
        return asked
    if text not in map(str, asked):
        raise InputError(
            f"{where}: draw {text!r} does not judge this row; expected one of {asked} or a blank"
        )
    return [int(text)]


def write(path: Path, answers: Answers, name: str) -> None:
    """Answers to a protocol as a CSV that `read` takes."""
    column = protocol(name).answer
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("id", "draw", column, "lo", "hi"))
        for (question, draw), answer in answers.items():
            cells = ["" if math.isnan(x) else repr(float(x)) for x in answer]
            writer.writerow((question, draw, *cells))
