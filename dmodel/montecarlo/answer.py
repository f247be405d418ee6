"""The answer of a sweep: blocks merged in order, and the plans that lead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from dmodel.design import rows as rows_
from dmodel.montecarlo.cut import Sweep, blocks
from dmodel.montecarlo.histogram import chosen, quantile
from dmodel.montecarlo.table import NOBODY, Table, front, joined, thinned, whole
from dmodel.parts import Folder, Part, State, parts
from dmodel.records import Plan

LEVELS = (0.05, 0.5, 0.95)
"""Shares of the draws whose step times are told [1]."""


class Ranked(NamedTuple):
    """A plan under all draws.

    Attributes:
      number: its place among the job's plans, from 0. plan: of a space; None of a list. words: of a
        list; "" of a space.
      mean, deviation: of its step time over the draws [s]. quantiles: at `LEVELS` [s], within
        `histogram.ERROR`.
      center: step time at the mean of the coefficients [s]. memory_bytes: of the fullest device.
      best: share of the draws in which it is the fastest of all plans [1].
    """

    number: int
    plan: Plan | None
    words: str
    mean: float
    deviation: float
    quantiles: tuple[float, ...]
    center: float
    memory_bytes: float
    best: float


class Swept(NamedTuple):
    """The answer for a job.

    Attributes:
      sweep: what was asked. considered, fits, evaluations: plans, those that fit, and pairs of plan
        and draw [count].
      mean, deviation, quantiles: of the step time over all pairs [s]; None where no plan fits.
      best: plans of least mean, the fastest first. front: the Pareto front of mean step time and
        memory, likewise. often: plans that are the fastest in some draw, most often first.
      processors: kinds of processors that computed the blocks.
    """

    sweep: Sweep
    considered: int
    fits: int
    evaluations: int
    mean: float | None
    deviation: float | None
    quantiles: tuple[float, ...] | None
    best: tuple[Ranked, ...]
    front: tuple[Ranked, ...]
    often: tuple[Ranked, ...]
    processors: tuple[str, ...]


Progress = Callable[[State], None]


def swept(
    sweeps: Sequence[Sweep],
    *,
    executor: Executor | None = None,
    folder: Folder | None = None,
    progress: Progress | None = None,
) -> list[Swept]:
    """Evaluate all plans of all jobs under all draws of their coefficients.

    The answer is the same to the last bit on one kind of processor, whatever the executor and
    however often the run was ended and begun again in one folder.

    Limits: the draws are of the coefficients; what the model lacks beyond them, which is common to
    plans of one kind, is not drawn.

    Args:
      sweeps: a job each. executor: of what computes; None for a thread for each core. folder: of
        parts, where a second run finds what the first did. progress: called when a block is there.

    Raises:
      InputError: a worker died, or runs other sources.
    """
    every = [(i, block) for i, each in enumerate(sweeps) for block in [blocks(each)]]
    counts: list[int] = []

    def counted(number: int, some: Iterable) -> Iterable:
        for block in some:
            counts.append(number)
            yield block

    ordered = chain.from_iterable(counted(i, some) for i, some in every)
    merged = [_Merged(each) for each in sweeps]
    for place, part in enumerate(parts(ordered, executor, folder, progress)):
        merged[counts[place]].add(part)
    return [each.answer() for each in merged]


class _Merged:
    """The blocks of a job so far."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep, self.processors = sweep, dict[str, None]()
        self.table: Table | None = None

    def add(self, part: Part) -> None:
        """Take note of a block, the next one in order."""
        table = whole(part.arrays)
        if self.table is not None:
            table = joined(self.table, table)
        self.table = thinned(table, self.sweep.draws, self.sweep.top)
        self.processors[part.processor] = None

    def answer(self) -> Swept:
        """The answer, once all blocks are there."""
        table, sweep = self.table, self.sweep
        assert table is not None, "a job has one plan at least"
        some = bool(table.fits[0])
        ranked = partial(_ranked, sweep, table)
        leaders = table.leaders
        by_mean = np.lexsort((leaders.plan, leaders.moments.mean))
        won = np.array([(table.winner == plan).sum() for plan in leaders.plan], int)
        often = np.lexsort((leaders.plan, -won))
        return Swept(
            sweep=sweep,
            considered=int(table.considered[0]),
            fits=int(table.fits[0]),
            evaluations=int(table.pairs[0]),
            mean=float(table.moments.mean[0]) if some else None,
            deviation=float(table.moments.deviation[0]) if some else None,
            quantiles=tuple(quantile(table.bins, x) for x in LEVELS) if some else None,
            best=ranked(by_mean[: sweep.top]),
            front=ranked(front(leaders.moments.mean, leaders.memory)),
            often=ranked(often[won[often] > 0]),
            processors=tuple(self.processors),
        )


def _ranked(sweep: Sweep, table: Table, at: np.ndarray) -> tuple[Ranked, ...]:
    """Leaders at some places."""
    known, plans = table.leaders, sweep.plans
    found: list[Plan | None] = [None] * len(at)
    if plans.words is None and len(at):
        found = list(rows_.plans(plans.problem.space, plans.problem.system, known.row[at]))
    draws = max(int((table.winner != NOBODY).sum()), 1)
    return tuple(
        Ranked(
            number=int(known.plan[i]),
            plan=plan,
            words="" if plans.words is None else plans.words[int(known.plan[i])],
            mean=float(known.moments.mean[i]),
            deviation=float(known.moments.deviation[i]),
            quantiles=tuple(quantile(chosen(known.bins, np.array([i])), x) for x in LEVELS),
            center=float(known.center[i]),
            memory_bytes=float(known.memory[i]),
            best=float((table.winner == known.plan[i]).sum() / draws),
        )
        for i, plan in zip(at, found, strict=True)
    )
