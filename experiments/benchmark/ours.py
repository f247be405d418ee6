"""This package's own answers, from fits that have none of the hidden rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from calibration.fit import fit
from calibration.footprints import fit_footprints
from calibration.predict import predict
from calibration.traces import published, to_cases
from dmodel.profiles import Profile, default_profile
from dmodel.units import GIB
from experiments.bases import Bases
from experiments.benchmark.answers import Answer, Answers
from experiments.benchmark.protocols import (
    BYTES,
    PROBABILITY,
    SECONDS,
    Task,
    protocol,
    row_of,
    size_of,
    tasks,
    usable,
)
from experiments.benchmark.table import table
from experiments.memory import SIZES, answered
from experiments.study import say

Base = Callable[[np.ndarray, str], Profile]
"""Gives the fit of all rows but the hidden ones, `[row]` bool, with a word on which these are."""


def fitted(bases: Bases) -> Base:
    """Bases that are fitted, each once, without all sources of the hidden rows."""
    everything = to_cases(published())

    def base(hidden: np.ndarray, why: str) -> Profile:
        sources = np.unique(table().cases.labels.source[hidden])
        return bases.without(everything, np.isin(everything.labels.source, sources), why)

    return base


def answers(name: str, base: Base) -> Answers:
    """The answers to a protocol."""
    found: Answers = {}
    for task in tasks(name):
        timed = protocol(name).answer == SECONDS
        found |= _times(name, task, base) if timed else _peaks(name, task)
        say(f"{name}, {task.name}, draw {task.draw}: {len(task.judge)} answers")
    return found


def _times(name: str, task: Task, base: Base) -> Answers:
    """Step times with their intervals: of the base, or of a fit of the rows given from it."""
    known = table()
    given, judged = known.mask(task.train), known.mask(task.judge)
    profile = base(protocol(name).hidden(given | judged), task.name)
    if given.any():
        profile = fit(known.cases.take(given), profile, seed=task.draw - 1)
    found = predict(known.cases.take(judged), profile)
    low, high = found.interval()
    ids = np.array(known.ids)[judged].tolist()
    values = zip(found.step_time_s.tolist(), low.tolist(), high.tolist(), strict=True)
    return {(row, task.draw): Answer(*each) for row, each in zip(ids, values, strict=True)}


def _peaks(name: str, task: Task) -> Answers:
    """Peaks, or the risks that they do not fit, by footprints of the rows that are not hidden."""
    known = table()
    judged = known.mask(row_of(question) for question in task.judge)
    profile = _of_peaks(usable(name, task).tobytes())
    peaks, risks = answered(known.cases.take(judged), profile)
    place = {row: i for i, row in enumerate(np.array(known.ids)[judged].tolist())}
    if protocol(name).answer == BYTES:
        return {(row, task.draw): Answer(float(peaks[place[row]])) for row in task.judge}
    assert protocol(name).answer == PROBABILITY
    size = {each * GIB: i for i, each in enumerate(SIZES)}
    return {
        (q, task.draw): Answer(float(risks[size[size_of(q)], place[row_of(q)]])) for q in task.judge
    }


@lru_cache(maxsize=32)
def _of_peaks(rows: bytes) -> Profile:
    """What stacks hold in memory, fitted to the peaks of a mask of rows."""
    mask = np.frombuffer(rows, bool)
    footprints = fit_footprints(table().cases.take(mask), {})
    return replace(default_profile(), footprints=footprints)
