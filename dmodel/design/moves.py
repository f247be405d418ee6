"""Valid rows around a row: the nearest to a continuous one, and those that are one move away."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np

from dmodel.design import rows as rows_
from dmodel.design import space as spaces
from dmodel.design.rows import COLUMNS, INDEX
from dmodel.design.space import Degrees, Options, Space
from dmodel.records import value

RUN = ("schedule", "interleave", "micro_batch")
CORE = ("recompute_layers", "recompute_attention")

ROUNDED = 3
"""Splits of the devices taken for each relaxed plan."""


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


def moved_splits(lattice: Lattice, split: Degrees) -> list[Degrees]:
    """Splits in which one prime factor, or its square, has changed its place; ep and etp move by
    one factor, or follow."""
    found: list[Degrees] = []
    for prime in primes(lattice.space.n_devices):
        found += [*_factor_moved(split, prime), *_factor_moved(split, prime**2)]
    for p in primes(int(value(lattice.space.model, "n_experts", 1.0))):
        found += _experts_moved(split, p)
    found += [split._replace(etp=etp) for etp in spaces.divisors(split.tp)]
    return [s for s in dict.fromkeys(found) if s in lattice.known and s != split]


def _factor_moved(split: Degrees, p: int) -> Iterator[Degrees]:
    """Splits in which a factor has changed its place among the first four degrees."""
    for a, b in permutations(range(4), 2):
        if split[a] % p == 0:
            moved = list(split[:4])
            moved[a], moved[b] = split[a] // p, split[b] * p
            yield from _followed_by_experts(moved, split, p)


def _experts_moved(split: Degrees, p: int) -> list[Degrees]:
    """Splits with a factor more or fewer of experts' groups, which tensor parallelism may take."""
    fewer, narrower = max(split.ep // p, 1), max(split.etp // p, 1)
    return [
        split._replace(ep=split.ep * p),
        split._replace(ep=fewer),
        split._replace(ep=fewer, etp=split.etp * p),
        split._replace(ep=split.ep * p, etp=narrower),
    ]


def _followed_by_experts(moved: list[int], split: Degrees, p: int) -> list[Degrees]:
    """Splits of moved degrees, with ep and etp as they were, fewer by a factor, or as large as
    they can be."""
    return [
        _split(moved, split.ep, split.etp),
        _split(moved, max(split.ep // p, 1), split.etp),
        _split(moved, split.ep, max(split.etp // p, 1)),
        _split(moved, split.ep, moved[1]),
    ]


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
    moved = moved_splits(lattice, split)
    found = [near for other in moved for near in _followed(lattice, other, row)]
    found += _with(row, rows_.SHARDING, offered.sharding)
    found += _with(row, CORE, _near_shares(offered.recompute, row))
    found += _other_runs(offered, row)
    for name in ("sp", "placement", "precision"):
        found += _with(row, (name,), getattr(offered, name))
    kept = {x.tobytes(): x for x in found}
    kept.pop(row.tobytes(), None)
    return list(kept.values())


def _other_runs(offered: Options, row: np.ndarray) -> list[np.ndarray]:
    """Rows of another schedule, interleaving or micro-batch; those next to the row's also with
    other recomputation, as these trade memory for time together."""
    now = tuple(row[[INDEX[name] for name in RUN]])
    runs = [r for r in offered.runs if r[0] != now[0] or r[1] == now[1] or r[2] == now[2]]
    beside = _beside(offered.runs, now)
    few = runs if len(runs) <= 64 else [*runs[:: len(runs) // 64 + 1], *_beside(runs, now)]
    shares = _near_shares(offered.recompute, row, 6)
    both = [near for other in beside for near in _with(_with(row, RUN, [other])[0], CORE, shares)]
    return [*_with(row, RUN, few), *both]


def _beside(runs: list[tuple[int, int, int]], now: tuple[float, ...]) -> list[tuple[int, int, int]]:
    """Runs of the same schedule next to one: the next smaller and larger interleaving and
    micro-batch."""
    same = sorted(r for r in runs if r[0] == now[0])
    batches = [r for r in same if r[1] == now[1]]
    chunks = sorted((r for r in same if r[2] == now[2]), key=lambda r: r[1])
    return [*_next_to(batches, 2, now[2]), *_next_to(chunks, 1, now[1])]


def _next_to(
    line: list[tuple[int, int, int]], column: int, value: float
) -> list[tuple[int, int, int]]:
    """Of runs in order, the last below and the first above a value of a column."""
    below = [r for r in line if r[column] < value]
    above = [r for r in line if r[column] > value]
    return [*below[-1:], *above[:1]]
