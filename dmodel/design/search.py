"""Exact search: the best plans that keep all limits, of all valid ones.

A small space is evaluated plan by plan. In a large one groups whose proven bound
(`dmodel.design.bounds`) is worse than what is already found are left out, the most promising groups
come first, and the answer is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

import numpy as np

from dmodel import struct
from dmodel.design import elsewhere
from dmodel.design import rows as rows_
from dmodel.design import space as spaces
from dmodel.design.bounds import (
    SLACK,
    Bound,
    group_bounds,
    keeps_limits,
    merit_bounds,
)
from dmodel.design.front import Front, joined_front
from dmodel.design.judge import (
    Evaluation,
    Judged,
    Problem,
    evaluate,
    excess,
    merits,
    rank_key,
)
from dmodel.design.rows import EMPTY, INDEX

LARGE = 1 << 21
"""Plans from which on groups are bounded before they are evaluated [count]: below, evaluating all
takes less time than compiling bounds."""

BATCH, GROUPS, POOL, DECIDED = 1 << 17, 1 << 16, 1 << 20, 1 << 14
"""Rows evaluated at once, groups bounded at once, held for later, and decided at once [count]: what
bounds the memory in use."""

MORE_MEMORY = 0.1
"""Share by which the device's memory grows to say what it is worth."""

Progress = Callable[[int, int], None]
"""Called with the plans decided so far, and all there are."""


class Ranking(struct.PyTreeNode, kw_only=True):
    """Result of an exact search.

    Attributes:
      rows, merits: the best that keep all limits, best first, and what the objective says of each.
      considered: valid plans of the space. evaluated: those evaluated one by one; the others are
      proven to be worse, or not to fit. feasible: plans that keep all limits; None where groups
      were left out.
      closest: the row that comes nearest to keeping all limits, None when the space is empty.
      unlimited, beyond: best merit whatever the limits, and a row of it; None where groups were
        left out.
      bound: no plan is better than this; the best merit, unless time ran out first.
      front: rows of the Pareto front, if asked for.
      eased: best merit if each device had `MORE_MEMORY` more; None without one, or where groups
        were left out.
      filled: best merit if plans might need all memory of a device (`Limits.memory` of 1); None
        without one, or where groups were left out.
    """

    rows: np.ndarray
    merits: np.ndarray
    considered: int
    evaluated: int
    feasible: int | None
    closest: np.ndarray | None
    unlimited: float | None
    bound: float
    front: np.ndarray | None = None
    beyond: np.ndarray | None = None
    eased: float | None = None
    filled: float | None = None


def with_more_memory(problem: Problem) -> Problem:
    """The problem with `MORE_MEMORY` more memory on each device."""
    chip = problem.system.chip
    grown = chip.replace(hbm_bytes=(1.0 + MORE_MEMORY) * chip.hbm_bytes)
    return problem.replace(system=problem.system.replace(chip=grown))


def with_all_memory(problem: Problem) -> Problem:
    """The problem whose plans may need all memory of a device."""
    return problem.replace(limits=problem.limits.replace(memory=1.0))


class _Best:
    """The best rows so far: always the same for the same plans, whatever order they come in."""

    def __init__(self, problem: Problem, top: int, pareto: bool):
        self.problem, self.top = problem, top
        self.roomier, self.eased = with_more_memory(problem), np.inf
        self.whole, self.filled = with_all_memory(problem), np.inf
        self.rows, self.merits = EMPTY, np.empty(0)
        self.evaluated = self.feasible = 0
        self.closest, self.least, self.beyond, self.unlimited = None, np.inf, None, np.inf
        self.front = Front(EMPTY, np.empty((0, 3))) if pareto else None

    @property
    def enough(self) -> float:
        """Merit that a plan must not exceed to be among the best."""
        return float(self.merits[-1]) if len(self.merits) == self.top else np.inf

    def add(self, rows: np.ndarray, found: Evaluation | Judged) -> None:
        """Take note of evaluated rows."""
        over, merit = excess(self.problem, rows, found), rank_key(merits(self.problem, found))
        fits = over <= 0.0
        self.eased = _least_that_fits(self.roomier, rows, found, merit, self.eased)
        self.filled = _least_that_fits(self.whole, rows, found, merit, self.filled)
        self.evaluated, self.feasible = self.evaluated + len(rows), self.feasible + int(fits.sum())
        self.beyond, self.unlimited = _least(rows, merit, self.beyond, self.unlimited)
        self.closest, self.least = _least(rows, over, self.closest, self.least)
        chosen = np.flatnonzero(fits & (merit <= self.enough))
        if len(chosen) > self.top:
            chosen = chosen[
                merit[chosen] <= np.partition(merit[chosen], self.top - 1)[self.top - 1]
            ]
        rows_now, merits_now = (
            np.concatenate([self.rows, rows[chosen]]),
            np.concatenate([self.merits, merit[chosen]]),
        )
        order = rows_.plainest_first(rows_now, merits_now)[: self.top]
        self.rows, self.merits = rows_now[order], merits_now[order]
        if self.front is not None:
            costs = np.stack(
                [
                    np.asarray(found.step_time_s),
                    np.asarray(found.memory_bytes),
                    np.asarray(found.joules),
                ],
                1,
            )
            self.front = joined_front(self.front, Front(rows[fits], rank_key(costs[fits])))

    def ranking(self, considered: int, bound: float | None = None) -> Ranking:
        """The answer; `bound` where groups were left out."""
        whole = bound is None
        return Ranking(
            rows=self.rows,
            merits=self.merits,
            considered=considered,
            evaluated=self.evaluated,
            feasible=self.feasible if whole else None,
            closest=self.closest,
            unlimited=self.unlimited if whole and self.evaluated else None,
            bound=min(
                float(self.merits[0]) if len(self.merits) else np.inf,
                np.inf if bound is None else bound,
            ),
            front=None if self.front is None else self.front.rows,
            beyond=self.beyond if whole else None,
            eased=self.eased if whole and np.isfinite(self.eased) else None,
            filled=self.filled if whole and np.isfinite(self.filled) else None,
        )


def _least_that_fits(
    problem: Problem,
    rows: np.ndarray,
    found: Evaluation | Judged,
    merit: np.ndarray,
    so_far: float,
) -> float:
    """The least merit of rows that keep the limits of a problem, or the one so far."""
    kept = merit[excess(problem, rows, found) <= 0.0]
    return min(so_far, float(kept.min(initial=np.inf)))


def _least(
    rows: np.ndarray, values: np.ndarray, row: np.ndarray | None, value: float
) -> tuple[np.ndarray | None, float]:
    """The row of the least value, of some and the one so far; of equal ones the plainest."""
    least = float(values.min())
    if least > value:
        return row, value
    near = np.concatenate(
        [rows[values == least], *([row[None]] if least == value and row is not None else [])]
    )
    return near[rows_.plainest_first(near, np.zeros(len(near)))[0]], least


def exact(
    problem: Problem,
    top: int = 5,
    *,
    prune: bool | None = None,
    pareto: bool = False,
    seconds: float = np.inf,
    progress: Progress | None = None,
    chunk: int = 1024,
    threads: int | None = None,
    batches: Iterable[np.ndarray] | None = None,
    executor: Executor | None = None,
) -> Ranking:
    """The best plans of the space that keep all limits.

    The answer does not depend on prune, chunk, threads, batches or executor: merits equal to 10
    digits are ordered by plainness.

    Args:
      top: plans to keep. prune: leave out groups by their bounds; None = where the space is large.
        pareto: also the Pareto front of step time, memory and energy (evaluates all). seconds: stop
        then with the bound reached, where groups are left out [s].
      progress: called now and then. chunk, threads: of the sweep. batches: arrays of rows instead
        of the whole space.
      executor: whose workers evaluate plans, and bound groups of them; None for this process.
    """
    splits = spaces.splits(problem.space) if batches is None else []
    total = spaces.count(problem.space, splits)
    best = _Best(problem, top, pareto)
    if batches is None and not pareto and (prune if prune is not None else total > LARGE):
        bounded = _bounded(problem, threads, executor)
        return _pruned(problem, best, total, time.monotonic() + seconds, progress, threads, bounded)
    every = rows_.batches(problem.space, BATCH, splits) if batches is None else batches
    judged = (
        ((rows, evaluate(problem, rows, chunk=chunk, threads=threads)) for rows in every)
        if executor is None
        else elsewhere.judged(problem, every, executor, chunk)
    )
    for rows, found in judged:
        best.add(rows, found)
        if progress is not None:
            progress(best.evaluated, max(total, best.evaluated))
    return best.ranking(best.evaluated)


class _Pool:
    """Groups that may hold one of the best plans: their rows and bounds."""

    def __init__(self) -> None:
        self.rows, self.bounds = EMPTY, np.empty(0)
        self.dropped = np.inf

    def add(self, rows: np.ndarray, bounds: np.ndarray) -> None:
        """Hold more groups."""
        self.rows, self.bounds = (
            np.concatenate([self.rows, rows]),
            np.concatenate([self.bounds, bounds]),
        )

    def take(self, n: int, enough: float) -> np.ndarray:
        """Drop what is not good enough, and take out the n most promising of the rest."""
        places = np.flatnonzero(self.bounds <= enough)
        chosen = places[np.argpartition(self.bounds[places], n)[:n]] if len(places) > n else places
        taken = self.rows[chosen]
        keep = np.setdiff1d(places, chosen, assume_unique=True)
        self.rows, self.bounds = self.rows[keep], self.bounds[keep]
        return taken

    def halve(self) -> None:
        """Forget the less promising half; `least` remembers its bound."""
        order = np.argsort(self.bounds, kind="stable")
        kept, lost = np.split(order, [len(order) // 2])
        self.dropped = min(self.dropped, float(self.bounds[lost].min()))
        self.rows, self.bounds = self.rows[kept], self.bounds[kept]

    @property
    def least(self) -> float:
        """Least bound of the groups that were not decided."""
        return min(float(self.bounds.min(initial=np.inf)), self.dropped)


Bounded = Iterable[tuple[np.ndarray, Bound]]
"""Groups in arrays, and their bounds."""


def _bounded(problem: Problem, threads: int | None, executor: Executor | None) -> Bounded:
    """All groups of a space, and their bounds whatever their sharding, in order."""
    every = rows_.groups(problem.space, GROUPS)
    if executor is not None:
        return elsewhere.bounded(problem, every, executor)
    return ((rows, group_bounds(problem, rows, sharded=False, threads=threads)) for rows in every)


def _hopeful(
    problem: Problem, rows: np.ndarray, enough: float, found: Bound
) -> tuple[np.ndarray, ...]:
    """Groups that may fit and be good enough by their bounds: their rows, bounds of merit, and
    least shares of recomputed layers."""
    bounds = merit_bounds(problem, found)
    chosen = np.flatnonzero(keeps_limits(problem, rows, found) & (bounds <= enough * (1.0 + SLACK)))
    return rows[chosen], bounds[chosen], np.asarray(found.share)[chosen]


def _decide(problem: Problem, best: _Best, rows: np.ndarray, threads: int | None) -> None:
    """Evaluate all of the groups that their own sharding does not rule out."""
    inside = {split: spaces.options(problem.space, split) for split, _ in rows_.by_degrees(rows)}
    alone = {
        split: found._replace(recompute=[(0.0, 0.0), (0.0, 1.0)]) for split, found in inside.items()
    }
    for part in rows_.joined(
        (rows_.expanded(rows[p], alone[split]) for split, p in rows_.by_degrees(rows)), GROUPS
    ):
        found = group_bounds(problem, part, sharded=True, threads=threads)
        hopeful, _, shares = _hopeful(problem, part, best.enough, found)
        parts = [
            _recomputed(hopeful[p], shares[p], inside[split].recompute)
            for split, p in rows_.by_degrees(hopeful)
        ]
        for batch in rows_.joined(parts, BATCH):
            best.add(batch, evaluate(problem, batch, threads=threads))


def _recomputed(
    rows: np.ndarray, least: np.ndarray, offered: list[tuple[float, float]]
) -> np.ndarray:
    """Rows with every share of recomputed layers from the least on that fits."""
    shares = np.asarray(offered)
    core = rows[:, INDEX["recompute_attention"]]
    which, share = np.nonzero(
        (shares[None, :, 0] >= least[:, None] - SLACK) & (shares[None, :, 1] == core[:, None])
    )
    found = rows[which]
    found[:, INDEX["recompute_layers"]] = shares[share, 0]
    return found


def _pruned(
    problem: Problem,
    best: _Best,
    total: int,
    until: float,
    progress: Progress | None,
    threads: int | None,
    every: Bounded,
) -> Ranking:
    """Bound all groups, the most promising of each batch decided at once; then the rest, most
    promising first."""
    pool, bounded, n_groups = _Pool(), 0, spaces.count_groups(problem.space)
    for rows, found in every:
        pool.add(*_hopeful(problem, rows, best.enough, found)[:2])
        bounded += len(rows)
        _decide(problem, best, pool.take(16, best.enough), threads)
        while len(pool.rows) > POOL:
            if time.monotonic() < until:
                _decide(problem, best, pool.take(DECIDED, best.enough), threads)
            else:
                pool.halve()
        if progress is not None:
            progress(int(total * 0.5 * bounded / max(n_groups, 1)), total)
    size = 64
    while (hopeful := int((pool.bounds <= best.enough).sum())) and time.monotonic() < until:
        _decide(problem, best, pool.take(size, best.enough), threads)
        size = min(2 * size, DECIDED)
        if progress is not None:
            progress(int(total * (1.0 - 0.5 * hopeful / max(n_groups, 1))), total)
    if progress is not None:
        progress(total, total)
    return best.ranking(total, pool.least)


def improved(
    problem: Problem, row: np.ndarray, splits: Iterable[spaces.Degrees], threads: int | None = None
) -> tuple[np.ndarray, int]:
    """The best of all plans of some splits of the devices, or the row if none of them is better;
    and the plans and groups looked at.

    Args:
      row: a plan that keeps all limits, which rules out most groups by their bounds.
    """
    best = _Best(problem, 1, False)
    best.add(row[None], evaluate(problem, row[None], threads=threads))
    bounded = 0
    groups = (rows_.group_rows(split, spaces.options(problem.space, split)) for split in splits)
    for rows in rows_.joined(groups, GROUPS):
        bounded += len(rows)
        found = group_bounds(problem, rows, sharded=False, threads=threads)
        hopeful, bounds, _ = _hopeful(problem, rows, best.enough, found)
        order = np.argsort(bounds, kind="stable")
        for start in range(0, len(order), 256):
            chosen = order[start : start + 256]
            _decide(problem, best, hopeful[chosen[bounds[chosen] <= best.enough]], threads)
    return best.rows[0], best.evaluated + bounded
