"""From relaxed plans to valid ones: the nearest valid values, then a discrete descent with the same
model.

A move of the descent takes a prime factor from one degree to another, with the micro-batch,
recomputation and sharding that may have to follow, or changes one of the other choices. It ends
where no move helps; then all plans of the splits around the best ends are decided by their bounds.
"""

from __future__ import annotations

import numpy as np

from dmodel import struct
from dmodel.design import rows as rows_
from dmodel.design.judge import Problem, drawn, evaluate, excess, merits, rank_key
from dmodel.design.moves import Lattice, moved_splits, nearest, neighbours, split_of, thrifty
from dmodel.design.relax import Relaxed
from dmodel.design.remedy import roomiest
from dmodel.design.rows import COLUMNS, INDEX
from dmodel.design.search import improved
from dmodel.design.space import Degrees, Space
from dmodel.records import MIXED, SCHEDULES, Plan

POINTS, POLISHED, FIRSTS, ENDS = 64, 8, 1, 3
"""Relaxed plans that are rounded, rows from which the descent
starts (the best of all, and the best one of each ZeRO stage and schedule), and splits at its ends
around which all plans are decided."""

SEVERAL = 1.4
"""Chunks of a relaxed plan from which on they are several [count]."""

BROKEN = 1e30
"""Merit of a row that breaks a limit, before its excess is added."""


class Rounded(struct.PyTreeNode, kw_only=True):
    """row: the best plan found, None when the space is empty. fits: whether it keeps all limits.
    evaluated: plans looked at [count]."""

    row: np.ndarray | None
    fits: bool
    evaluated: int


class Judge:
    """Merit of rows, lowest first: the objective where all limits are kept, else `BROKEN` times 1 +
    the excess; each is evaluated once."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.merit: dict[bytes, float] = {}

    def __call__(self, rows: list[np.ndarray]) -> np.ndarray:
        fresh = list({k: row for row in rows if (k := row.tobytes()) not in self.merit}.values())
        if fresh:
            stacked = np.stack(fresh)
            found = evaluate(self.problem, stacked)
            over = excess(self.problem, stacked, found)
            judged = np.where(
                over > 0.0, BROKEN * (1.0 + over), rank_key(merits(self.problem, found))
            )
            self.merit |= {row.tobytes(): float(m) for row, m in zip(fresh, judged, strict=True)}
        return np.asarray([self.merit[row.tobytes()] for row in rows])


def _relaxed_rows(space: Space, relaxed: Relaxed) -> np.ndarray:
    """The relaxed plans to round, as rows: the best of every arm, then the best of all."""
    arm = relaxed.arms
    kinds = np.stack([arm.zero, arm.reshard, arm.log_domain, arm.precision], 1)
    first = np.sort(np.unique(kinds, axis=0, return_index=True)[1])
    picked = list(dict.fromkeys([*first.tolist(), *range(len(kinds))]))[:POINTS]
    given = {
        "schedule": _schedules(space, relaxed.plan),
        "placement": np.zeros(len(kinds)),
        "precision": arm.precision,
    }
    columns = [
        np.broadcast_to(
            np.asarray(given.get(n, getattr(relaxed.plan.layout, n, 0.0)), dtype=float), len(kinds)
        )
        for n in COLUMNS
    ]
    return np.stack(columns, 1)[picked]


def _schedules(space: Space, plans: Plan) -> np.ndarray:
    """Codes of the schedules that relaxed plans are nearest to: the one with more than half of
    them, else 1F1B, interleaved where chunks are several."""
    plain = SCHEDULES.index(space.choices.schedules[0])
    several = np.asarray(plans.layout.interleave) > SEVERAL
    found = np.where(several, SCHEDULES.index("interleaved"), plain)
    for name, share in drawn(plans).mix.items():
        found = np.where(np.asarray(share) > 0.5, SCHEDULES.index(MIXED[name]), found)
    return found


def descend(lattice: Lattice, judge: Judge, rows: list[np.ndarray]) -> list[np.ndarray]:
    """Move every row to its best neighbour until none is better."""
    active, ended, seen = rows, [], {row.tobytes() for row in rows}
    while active:
        around = [neighbours(lattice, row) for row in active]
        judge([row for some in around for row in some] + active)
        moved = {}
        for row, some in zip(active, around, strict=True):
            merit = judge(some)
            if len(some) and merit.min() < judge([row])[0]:
                best = some[int(merit.argmin())]
                # where another descent has been, this one would only follow it
                if best.tobytes() not in seen:
                    moved[best.tobytes()] = best
            else:
                ended.append(row)
        seen |= set(moved)
        active = list(moved.values())
    return ended


def _diverse(rows: list[np.ndarray], merit: np.ndarray) -> list[np.ndarray]:
    """The best rows of every ZeRO stage and schedule, then the best of all: a descent seldom
    crosses from one to another."""
    order = np.argsort(merit, kind="stable")
    kinds = [
        tuple(rows[i][[INDEX[name] for name in ("zero", "reshard", "schedule")]]) for i in order
    ]
    firsts = [
        order[at]
        for kind in dict.fromkeys(kinds)
        for at in [i for i, k in enumerate(kinds) if k == kind][:FIRSTS]
    ]
    return [rows[i] for i in dict.fromkeys([*firsts, *order[:POLISHED]])]


def _fitting(problem: Problem) -> tuple[list[np.ndarray], int]:
    """The best rows that keep all limits, of those that need little memory, and how many those are:
    to start from where the relaxed plans lead to none."""
    rows = roomiest(problem.space)
    found = evaluate(problem, rows)
    fits = np.flatnonzero(excess(problem, rows, found) <= 0.0)
    return list(
        rows[fits[np.argsort(merits(problem, found)[fits], kind="stable")][:POLISHED]]
    ), len(rows)


def round_plans(problem: Problem, relaxed: Relaxed) -> Rounded:
    """Round relaxed plans to valid ones and improve them by discrete moves; the best is returned.

    A row that breaks a limit is worse than all that do not, and the worse the more it does.
    """
    lattice, judge = Lattice(problem.space), Judge(problem)
    if not lattice.splits:
        return Rounded(row=None, fits=False, evaluated=0)
    started = _started(lattice, judge, relaxed)
    ended, more = descend(lattice, judge, _diverse(started, judge(started))), 0
    if judge(ended).min() >= BROKEN:
        fitting, more = _fitting(problem)
        ended += descend(lattice, judge, fitting)
    found, merit = np.stack(ended), judge(ended)
    best = rows_.plainest_first(found, merit)[0]
    if merit[best] >= BROKEN:
        return Rounded(row=found[best], fits=False, evaluated=len(judge.merit) + more)
    order = [i for i in np.argsort(merit, kind="stable") if merit[i] < BROKEN]
    ends = list({split_of(found[i]): None for i in (best, *order)})[:ENDS]
    row, looked_at = _settled(problem, lattice, found[best], ends)
    return Rounded(row=row, fits=True, evaluated=len(judge.merit) + more + looked_at)


def _started(lattice: Lattice, judge: Judge, relaxed: Relaxed) -> list[np.ndarray]:
    """Valid rows near relaxed plans, and thrifty ones of the same degrees where few of them fit."""
    points = _relaxed_rows(lattice.space, relaxed)
    near = [row for point in points for row in nearest(lattice, point)]
    unique = list({row.tobytes(): row for row in near}.values())
    if (judge(unique) < BROKEN).sum() >= POLISHED:
        return unique
    more = (*unique, *(thrifty(lattice, row) for row in unique))
    return list({row.tobytes(): row for row in more}.values())


def _settled(
    problem: Problem, lattice: Lattice, row: np.ndarray, ends: list[Degrees]
) -> tuple[np.ndarray, int]:
    """A row than which no plan of its own split of the devices, of some others, or of any a move
    away from these, is better; and what was looked at for it.

    Bounds decide that for nearly all of them, as in the exact search.
    """
    settled: set[Degrees] = set()
    looked_at, around = 0, ends
    while open_ := [
        s for end in around for s in (end, *moved_splits(lattice, end)) if s not in settled
    ]:
        open_ = list(dict.fromkeys(open_))
        row, more = improved(problem, row, open_)
        settled |= set(open_)
        looked_at += more
        around = [split_of(row)]
    return row, looked_at
