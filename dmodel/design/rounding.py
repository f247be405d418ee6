"""From relaxed plans to valid ones: nearest rows of the space in log distance, then a discrete descent with the same model.

A move of the descent takes a prime factor from one degree to another (and halves or doubles the micro-batch with it, or not), or changes
one of the other choices: sharding, micro-batch, recomputation, interleaving. It ends where no move helps.
"""

from __future__ import annotations

import numpy as np
from flax import struct

from dmodel.design import space as spaces
from dmodel.design.relax import Relaxed
from dmodel.design.search import Problem, evaluate, rank_key
from dmodel.design.space import DEGREES, INDEX, SHARDING, Space

RECOMPUTE = ("recompute_layers", "recompute_attention")
GROUP = [INDEX[name] for name in (*DEGREES, "ep")]

POINTS, ROUNDED, POLISHED = 48, 3, 12
"""Relaxed plans that are rounded, valid rows taken for each, and rows from which the descent starts."""


class Rounded(struct.PyTreeNode, kw_only=True):
    """row: the best plan found, None when the space is empty. fits: whether it does. evaluated: plans looked at on the way [count]."""

    row: np.ndarray | None
    fits: bool
    evaluated: int


class Blocks:
    """The rows of each group of degrees, built when first asked for."""

    def __init__(self, space: Space):
        self.space = space
        self.groups = spaces.degrees(space)
        self.known = set(self.groups)
        self._rows: dict[tuple, np.ndarray] = {}

    def __getitem__(self, group: tuple[int, ...]) -> np.ndarray:
        if group not in self._rows:
            self._rows[group] = spaces.block(self.space, group)
        return self._rows[group]


def primes(n: int) -> list[int]:
    """Distinct prime factors of n."""
    return [d for d in spaces.divisors(n)[1:] if len(spaces.divisors(d)) == 2]


def _group(row: np.ndarray) -> tuple[int, ...]:
    return tuple(int(x) for x in row[GROUP])


def _distance(rows: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Distance between settings beside the degrees: log2 for sizes, 4 × the share of recomputed layers; another ZeRO stage lies far."""
    logs = [INDEX["micro_batch"], INDEX["interleave"], INDEX["shard"]]
    far = (rows[:, [INDEX["zero"], INDEX["reshard"]]] != row[[INDEX["zero"], INDEX["reshard"]]]).sum(1)
    shares = [INDEX[name] for name in RECOMPUTE]
    return np.abs(np.log2(rows[:, logs] / row[logs])).sum(1) + 4.0 * np.abs(rows[:, shares] - row[shares]).sum(1) + 16.0 * far


def nearest(blocks: Blocks, row: np.ndarray) -> list[np.ndarray]:
    """Valid rows nearest to a continuous one: the nearest groups of degrees, and of each the nearest settings."""
    groups = np.asarray(blocks.groups, dtype=float)
    order = np.argsort((np.log2(groups / row[GROUP]) ** 2).sum(1), kind="stable")[:ROUNDED]
    found = []
    for group in (blocks.groups[i] for i in order):
        rows = blocks[group]
        found += list(rows[np.argsort(_distance(rows, row), kind="stable")[:ROUNDED]])
    return found


def _moved_degrees(blocks: Blocks, group: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Groups in which one prime factor has changed its place; ep moves by one factor, or follows dp."""
    found = []
    for p in primes(blocks.space.n_devices):
        for a in range(4):
            for b in range(4):
                if a != b and group[a] % p == 0:
                    moved = list(group)
                    moved[a], moved[b] = group[a] // p, group[b] * p
                    found += [tuple(moved), (*moved[:4], max(group[4] // p, 1))]
    for p in primes(int(blocks.space.model.n_experts)):
        found += [(*group[:4], group[4] * p), (*group[:4], group[4] // p)]
    return [g for g in dict.fromkeys(found) if g in blocks.known]


def neighbours(blocks: Blocks, row: np.ndarray) -> list[np.ndarray]:
    """Rows one move away: other degrees with the nearest settings and the micro-batch within a factor of two, or one other setting."""
    group, batch = _group(row), INDEX["micro_batch"]
    found = []
    for moved in _moved_degrees(blocks, group):
        follows = row.copy()
        if row[INDEX["shard"]] == row[INDEX["dp"]]:
            follows[INDEX["shard"]] = moved[0]
        for factor in (0.5, 1.0, 2.0):
            follows[batch] = row[batch] * factor
            distance = _distance(blocks[moved], follows)
            found += [blocks[moved][distance.argmin()]] if len(distance) else []
    rows = blocks[group]
    settings = [[INDEX[n] for n in names] for names in (SHARDING, ("micro_batch",), RECOMPUTE, ("interleave",))]
    changed = np.stack([(rows[:, columns] != row[columns]).any(1) for columns in settings]).sum(0)
    return found + list(rows[changed == 1])


class _Judge:
    """Merit of rows, lowest first: step time where they fit, else 1e12 + the missing bytes; every row is evaluated once."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.merit: dict[bytes, float] = {}

    def __call__(self, rows: list[np.ndarray]) -> np.ndarray:
        fresh = list({k: row for row in rows if (k := row.tobytes()) not in self.merit}.values())
        if fresh:
            found = evaluate(self.problem, np.stack(fresh))
            missing = -np.asarray(found.headroom_bytes)
            merits = np.where(missing > 0.0, 1e12 + missing, rank_key(found.step_time_s))
            self.merit |= {row.tobytes(): float(m) for row, m in zip(fresh, merits, strict=True)}
        return np.asarray([self.merit[row.tobytes()] for row in rows])


def _relaxed_rows(relaxed: Relaxed) -> np.ndarray:
    """The relaxed plans to round, as rows: the best of every arm, then the best of all."""
    kinds = np.stack([relaxed.arms.zero, relaxed.arms.reshard, relaxed.arms.ep, relaxed.arms.log_domain], 1)
    first = np.sort(np.unique(kinds, axis=0, return_index=True)[1])
    picked = list(dict.fromkeys([*first.tolist(), *range(len(kinds))]))[:POINTS]
    columns = [np.broadcast_to(np.asarray(getattr(relaxed.plan, name)), len(kinds)) for name in spaces.COLUMNS]
    return np.stack(columns, 1)[picked]


def _descend(blocks: Blocks, judge: _Judge, rows: list[np.ndarray]) -> list[np.ndarray]:
    """Move every row to its best neighbour until none is better."""
    active, ended = rows, []
    while active:
        around = [neighbours(blocks, row) for row in active]
        judge([row for some in around for row in some] + active)
        moved = {}
        for row, some in zip(active, around, strict=True):
            merits = judge(some)
            better = len(some) > 0 and merits.min() < judge([row])[0]
            if better:
                best = some[int(merits.argmin())]
                moved[best.tobytes()] = best
            else:
                ended.append(row)
        active = list(moved.values())
    return ended


def round_plans(problem: Problem, relaxed: Relaxed) -> Rounded:
    """Round relaxed plans to valid ones and improve them by discrete moves; the best is returned.

    A row that does not fit is worse than all that fit, and the worse the more memory it lacks.
    """
    blocks, judge = Blocks(problem.space), _Judge(problem)
    if not blocks.groups:
        return Rounded(row=None, fits=False, evaluated=0)
    near = [row for point in _relaxed_rows(relaxed) for row in nearest(blocks, point)]
    unique = list({row.tobytes(): row for row in near}.values())
    order = np.argsort(judge(unique), kind="stable")[:POLISHED]
    ended = _descend(blocks, judge, [unique[i] for i in order])
    merits = judge(ended)
    best = int(merits.argmin())
    return Rounded(row=ended[best], fits=bool(merits[best] < 1e12), evaluated=len(judge.merit))
