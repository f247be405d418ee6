"""From relaxed plans to valid ones: the nearest valid values, then a discrete descent with the same
model.

A move of the descent takes a prime factor from one degree to another, with the micro-batch,
recomputation and sharding that may have to follow, or changes one of the other choices. It ends
where no move helps; then all plans of the splits around the best ends are decided by their bounds.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from flax import struct

from dmodel.design import rows as rows_
from dmodel.design import space as spaces
from dmodel.design.judge import Problem, evaluate, excess, merits, rank_key
from dmodel.design.relax import Relaxed
from dmodel.design.remedy import roomiest
from dmodel.design.rows import COLUMNS, INDEX
from dmodel.design.search import improved
from dmodel.design.space import Degrees, Options, Space
from dmodel.records import SCHEDULES

POINTS, ROUNDED, POLISHED, FIRSTS, ENDS = 64, 3, 8, 1, 3
"""Relaxed plans that are rounded, splits of the devices taken for each, rows from which the descent
starts (the best of all, and the best one of each ZeRO stage and schedule), and splits at its ends
around which all plans are decided."""

BROKEN = 1e30
"""Merit of a row that breaks a limit, before its excess is added."""

RUN = ("schedule", "interleave", "micro_batch")
CORE = ("recompute_layers", "recompute_attention")


class Rounded(struct.PyTreeNode, kw_only=True):
    """row: the best plan found, None when the space is empty. fits: whether it keeps all limits.
    evaluated: plans looked at [count]."""

    row: np.ndarray | None
    fits: bool
    evaluated: int


class Lattice:
    """The valid values around any row, worked out when first asked for."""

    def __init__(self, space: Space):
        self.space = space
        self.splits = spaces.degrees(space)
        self.known = set(self.splits)
        self.logs = np.log2(np.asarray(self.splits, dtype=float).reshape(-1, len(Degrees._fields)))
        self._options: dict[Degrees, Options] = {}

    def options(self, split: Degrees) -> Options:
        """What may be chosen with these degrees."""
        if split not in self._options:
            self._options[split] = spaces.options(self.space, split)
        return self._options[split]


def primes(n: int) -> list[int]:
    """Distinct prime factors of n."""
    return [d for d in spaces.divisors(n)[1:] if len(spaces.divisors(d)) == 2]


def split_of(row: np.ndarray) -> Degrees:
    """The degrees of a row."""
    return Degrees(*(int(x) for x in row[rows_.SPLIT]))


def _nearest_run(
    offered: list[tuple[int, int, int]], schedule: float, interleave: float, batch: float
) -> tuple[int, int, int]:
    """The nearest (schedule, interleave, micro-batch), in log distance; another schedule lies
    far."""
    far = [
        8.0 * (code != schedule) + abs(np.log2(v / interleave)) + abs(np.log2(b / batch))
        for code, v, b in offered
    ]
    return offered[int(np.argmin(far))]


def _nearest_sharding(
    offered: list[tuple[int, int, int]], zero: float, share: float, reshard: float
) -> tuple[int, int, int]:
    """The nearest (zero, shard, reshard): the stage first, then the sharding group as a share of dp
    (0: none below dp)."""
    far = [
        8.0 * abs(z - zero) + abs(np.log2(s / share)) + 4.0 * (r != reshard) for z, s, r in offered
    ]
    return offered[int(np.argmin(far))]


def fitted(lattice: Lattice, split: Degrees, row: np.ndarray) -> np.ndarray:
    """The valid row of these degrees that is nearest to a row, which may be continuous, in
    everything else."""
    offered = lattice.options(split)
    at = {name: row[INDEX[name]] for name in COLUMNS}
    schedule, interleave, batch = _nearest_run(offered.runs, *(at[name] for name in RUN))
    core = min(
        offered.recompute,
        key=lambda x: (
            abs(x[0] - at["recompute_layers"]) + 2.0 * abs(x[1] - at["recompute_attention"])
        ),
    )
    whole = at["shard"] >= at["dp"] * 0.999
    zero, shard, reshard = _nearest_sharding(
        offered.sharding, at["zero"], split.dp if whole else at["shard"], at["reshard"]
    )
    values = {
        **split._asdict(),
        "sp": min(offered.sp, key=lambda x: abs(x - at["sp"])),
        **dict(zip(RUN, (schedule, interleave, batch), strict=True)),
        "placement": at["placement"]
        if at["placement"] in offered.placement
        else offered.placement[0],
        "precision": at["precision"],
        **dict(zip(CORE, core, strict=True)),
        **dict(zip(rows_.SHARDING, (zero, shard, reshard), strict=True)),
    }
    return np.asarray([float(values[name]) for name in COLUMNS])


def nearest(lattice: Lattice, row: np.ndarray) -> list[np.ndarray]:
    """Valid rows nearest to a continuous one: of the nearest splits of the devices each the
    nearest."""
    order = np.argsort(((lattice.logs - np.log2(row[rows_.SPLIT])) ** 2).sum(1), kind="stable")[
        :ROUNDED
    ]
    return [fitted(lattice, lattice.splits[i], row) for i in order]


def thrifty(lattice: Lattice, row: np.ndarray) -> np.ndarray:
    """The row of the same degrees and schedule that needs little memory: one sequence at a time,
    all sharded, recomputed as allowed."""
    offered = lattice.options(split_of(row))
    run = min(offered.runs, key=lambda r: (r[0] != row[INDEX["schedule"]], r[2], r[1]))
    found = row.copy()
    for names, values in (
        (RUN, run),
        (CORE, max(offered.recompute)),
        (rows_.SHARDING, max(offered.sharding)),
    ):
        found[[INDEX[name] for name in names]] = values
    return found


def _split(degrees: list[int], ep: int, etp: int) -> Degrees:
    dp, tp, cp, pp = degrees
    return Degrees(dp, tp, cp, pp, ep, etp)


def _moved_splits(lattice: Lattice, split: Degrees) -> list[Degrees]:
    """Splits in which one prime factor, or its square, has changed its place; ep and etp move by
    one factor, or follow."""
    found = []
    n = lattice.space.n_devices
    for p in (factor for prime in primes(n) for factor in (prime, prime * prime)):
        for a, b in product(range(4), range(4)):
            if a != b and split[a] % p == 0:
                moved = list(split[:4])
                moved[a], moved[b] = split[a] // p, split[b] * p
                found += [
                    _split(moved, split.ep, split.etp),
                    _split(moved, max(split.ep // p, 1), split.etp),
                ]
                found += [
                    _split(moved, split.ep, max(split.etp // p, 1)),
                    _split(moved, split.ep, moved[1]),
                ]
    for p in primes(int(lattice.space.model.n_experts)):
        found += [split._replace(ep=split.ep * p), split._replace(ep=max(split.ep // p, 1))]
        found += [
            split._replace(ep=max(split.ep // p, 1), etp=split.etp * p),
            split._replace(ep=split.ep * p, etp=max(split.etp // p, 1)),
        ]
    found += [split._replace(etp=etp) for etp in spaces.divisors(split.tp)]
    return [s for s in dict.fromkeys(found) if s in lattice.known and s != split]


def _followed(lattice: Lattice, split: Degrees, row: np.ndarray) -> list[np.ndarray]:
    """Rows of other degrees, everything else as near as can be: with the micro-batch halved, kept
    or doubled, and as much recomputed as before, nothing or everything."""
    found = []
    most = max(share for share, _ in lattice.options(split).recompute)
    for factor, share in product((0.5, 1.0, 2.0), (row[INDEX["recompute_layers"]], 0.0, most)):
        wanted = row.copy()
        wanted[INDEX["micro_batch"]] *= factor
        wanted[INDEX["recompute_layers"]] = share
        found.append(fitted(lattice, split, wanted))
    return found


def _with(row: np.ndarray, names: tuple[str, ...], values: list) -> list[np.ndarray]:
    """Copies of a row with some columns replaced, one for each of the values."""
    found = np.repeat(row[None], len(values), 0)
    found[:, [INDEX[name] for name in names]] = np.asarray(values, dtype=float).reshape(
        len(values), -1
    )
    return list(found)


def _near_shares(
    offered: list[tuple[float, float]], row: np.ndarray, at_most: int = 12
) -> list[tuple[float, float]]:
    """Shares of recomputed layers to try: all when they are few, else those beside the row's and
    some over the whole range."""
    if len(offered) <= at_most:
        return offered
    at = int(np.argmin([abs(share - row[INDEX["recompute_layers"]]) for share, _ in offered]))
    places = {
        at - 2,
        at - 1,
        at,
        at + 1,
        at + 2,
        *np.linspace(0, len(offered) - 1, at_most - 5).round().astype(int).tolist(),
    }
    return [offered[i] for i in sorted(places) if 0 <= i < len(offered)]


def neighbours(lattice: Lattice, row: np.ndarray) -> list[np.ndarray]:
    """Rows one move away: other degrees with what follows from them, or one other setting."""
    split = split_of(row)
    offered = lattice.options(split)
    found = [
        near for moved in _moved_splits(lattice, split) for near in _followed(lattice, moved, row)
    ]
    found += _with(row, rows_.SHARDING, offered.sharding) + _with(
        row, CORE, _near_shares(offered.recompute, row)
    )
    now = tuple(row[[INDEX[name] for name in RUN]])
    runs = [r for r in offered.runs if r[0] != now[0] or r[1] == now[1] or r[2] == now[2]]
    found += _with(
        row, RUN, runs if len(runs) <= 64 else [*runs[:: len(runs) // 64 + 1], *_beside(runs, now)]
    )
    # the two settings that trade memory for time, together
    found += [
        near
        for other in _beside(offered.runs, now)
        for base in _with(row, RUN, [other])
        for near in _with(base, CORE, _near_shares(offered.recompute, row, 6))
    ]
    found += (
        _with(row, ("sp",), offered.sp)
        + _with(row, ("placement",), offered.placement)
        + _with(row, ("precision",), offered.precision)
    )
    kept = {x.tobytes(): x for x in found}
    kept.pop(row.tobytes(), None)
    return list(kept.values())


def _beside(runs: list[tuple[int, int, int]], now: tuple[float, ...]) -> list[tuple[int, int, int]]:
    """Runs of the same schedule next to one: the next smaller and larger interleaving and
    micro-batch."""
    same = sorted(r for r in runs if r[0] == now[0])
    batches, chunks = (
        sorted(r for r in same if r[1] == now[1]),
        sorted((r for r in same if r[2] == now[2]), key=lambda r: r[1]),
    )
    found = []
    for line, column in ((batches, 2), (chunks, 1)):
        found += [r for r in line if r[column] < now[column]][-1:] + [
            r for r in line if r[column] > now[column]
        ][:1]
    return found


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
    plain = SCHEDULES.index(space.choices.schedules[0])
    bubble_free = np.asarray(relaxed.plan.layout.zero_bubble) > 0.5
    given = {
        "schedule": np.where(
            bubble_free,
            SCHEDULES.index("zero-bubble"),
            np.where(np.asarray(relaxed.plan.layout.interleave) > 1.4, 2, plain),
        ),
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
    near = [
        row for point in _relaxed_rows(problem.space, relaxed) for row in nearest(lattice, point)
    ]
    unique = list({row.tobytes(): row for row in near}.values())
    if (judge(unique) < BROKEN).sum() < POLISHED:
        # where few plans fit, the descent needs some to start from
        unique = list(
            {
                row.tobytes(): row for row in (*unique, *(thrifty(lattice, row) for row in unique))
            }.values()
        )
    ended = descend(lattice, judge, _diverse(unique, judge(unique)))
    more = 0
    if judge(ended).min() >= BROKEN:
        fitting, more = _fitting(problem)
        ended += descend(lattice, judge, fitting)
    found = np.stack(ended)
    merit = judge(ended)
    best = rows_.plainest_first(found, merit)[0]
    if merit[best] >= BROKEN:
        return Rounded(row=found[best], fits=False, evaluated=len(judge.merit) + more)
    order = [i for i in np.argsort(merit, kind="stable") if merit[i] < BROKEN]
    ends = list({split_of(found[i]): None for i in (best, *order)})[:ENDS]
    row, looked_at = _settled(problem, lattice, found[best], ends)
    return Rounded(row=row, fits=True, evaluated=len(judge.merit) + more + looked_at)


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
        s for end in around for s in (end, *_moved_splits(lattice, end)) if s not in settled
    ]:
        open_ = list(dict.fromkeys(open_))
        row, more = improved(problem, row, open_)
        settled |= set(open_)
        looked_at += more
        around = [split_of(row)]
    return row, looked_at
