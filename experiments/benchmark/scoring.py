"""How good answers are: errors, bias, rows covered, coverage of intervals, area under the curve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from experiments.benchmark.answers import Answers, Key
from experiments.benchmark.protocols import (
    BYTES,
    PROBABILITY,
    SECONDS,
    Protocol,
    Task,
    protocol,
    row_of,
    size_of,
    tasks,
)
from experiments.benchmark.table import measured, table
from experiments.memory import area_under_curve, balanced_accuracy


class Score(NamedTuple):
    """What the answers to some questions are worth; None where it cannot be said.

    Attributes:
      asked, answered: questions, counted once for each draw. covered: answered of asked [%].
      median, mean: absolute percentage error of those answered [%]. bias: middle of the signed
        error, + = too large [%]. inside: measured values within `lo` and `hi`, of the answers that
        have both [%]. area: under the receiver operating characteristic [1]. balanced: accuracy
        of calling what has a probability of a half or more [%].
    """

    asked: int
    answered: int
    covered: float
    median: float | None = None
    mean: float | None = None
    bias: float | None = None
    inside: float | None = None
    area: float | None = None
    balanced: float | None = None


def keys(asked: Iterable[Task]) -> list[Key]:
    """Questions of tasks, with their draws."""
    return [(question, task.draw) for task in asked for question in task.judge]


def truth(name: str) -> dict[str, float]:
    """What was measured of each row: seconds, or bytes."""
    return measured(table())[SECONDS if protocol(name).answer == SECONDS else BYTES]


def score(name: str, answers: Answers, among: Sequence[Key] | None = None) -> Score:
    """Score the answers to a protocol, or to some of its questions.

    Args:
      among: questions that count; None = all of the protocol. Those without an answer are counted
        as asked.
    """
    asked = keys(tasks(name)) if among is None else list(among)
    there = [key for key in asked if key in answers]
    share = 100.0 * len(there) / len(asked) if asked else 0.0
    counted = Score(len(asked), len(there), share)
    if not there:
        return counted
    found = np.array([answers[key] for key in there], float)
    known = truth(name)
    was = np.array([known[row_of(question)] for question, _ in there])
    of: Protocol = protocol(name)
    if of.answer == PROBABILITY:
        size = np.array([size_of(question) for question, _ in there])
        return counted._replace(**_risks(found[:, 0], was > size))
    return counted._replace(**_errors(found, was))


def _errors(found: np.ndarray, was: np.ndarray) -> dict[str, float | None]:
    signed = found[:, 0] / was - 1.0
    lo, hi = found[:, 1], found[:, 2]
    ends = ~(np.isnan(lo) | np.isnan(hi))
    inside = (lo <= was) & (was <= hi)
    return {
        "median": 100.0 * float(np.median(np.abs(signed))),
        "mean": 100.0 * float(np.abs(signed).mean()),
        "bias": 100.0 * float(np.median(signed)),
        "inside": 100.0 * float(inside[ends].mean()) if ends.any() else None,
    }


def _risks(risk: np.ndarray, beyond: np.ndarray) -> dict[str, float | None]:
    area, balanced = area_under_curve(risk, beyond), balanced_accuracy(risk, beyond)
    return {
        "area": None if np.isnan(area) else area,
        "balanced": None if np.isnan(balanced) else 100.0 * balanced,
    }


def by_task(name: str, answers: Answers) -> dict[str, Score]:
    """Scores of the tasks of a protocol, all draws of one together."""
    found: dict[str, list[Task]] = {}
    for task in tasks(name):
        found.setdefault(task.name, []).append(task)
    return {task: score(name, answers, keys(own)) for task, own in found.items()}
