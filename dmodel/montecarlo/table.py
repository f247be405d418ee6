"""What a sweep holds of its pairs so far: merged block by block, never larger than what may still
be the answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dmodel.montecarlo import histogram as bins
from dmodel.montecarlo import moments as means
from dmodel.montecarlo.histogram import Histogram, histogram
from dmodel.montecarlo.moments import Moments, moments

Arrays = dict[str, np.ndarray]

NOBODY = -1
"""In place of a plan where none fits."""


class Leaders(NamedTuple):
    """Plans that may be part of the answer, by their number, `[n]`.

    Attributes:
      plan: their numbers, rising, int64. row: what describes them `[n, column]`.
      memory, center: bytes of the fullest device, and the step time at the coefficients' mean [s].
      moments, bins: of their step times over the draws.
    """

    plan: np.ndarray
    row: np.ndarray
    memory: np.ndarray
    center: np.ndarray
    moments: Moments
    bins: Histogram


class Table(NamedTuple):
    """What is known of some plans under some draws.

    Attributes:
      considered, fits, pairs: plans, those that fit, and evaluations [count], int64 `[1]`; each
        plan counts with its first draws.
      moments, bins: of all step times. leaders: plans.
      draw: numbers of the draws, rising `[draw]`. best, winner: of each the least step time [s],
        infinite where no plan fits, and its plan.
    """

    considered: np.ndarray
    fits: np.ndarray
    pairs: np.ndarray
    moments: Moments
    bins: Histogram
    leaders: Leaders
    draw: np.ndarray
    best: np.ndarray
    winner: np.ndarray


def table_of(
    times: np.ndarray,
    plan: np.ndarray,
    row: np.ndarray,
    memory: np.ndarray,
    center: np.ndarray,
    draw: np.ndarray,
) -> Table:
    """Of step times `[plan, draw]` of plans that fit."""
    n = len(plan)
    if n:
        at = times.argmin(0)
        whole, best, winner = moments(times.reshape(1, -1)), times.min(0), plan[at]
    else:
        whole = Moments(*(np.zeros(1) for _ in range(3)))
        best, winner = np.full(len(draw), np.inf), np.full(len(draw), NOBODY, np.int64)
    own = moments(times) if n else Moments(*(np.empty(0) for _ in range(3)))
    return Table(
        considered=np.zeros(1, np.int64),
        fits=np.zeros(1, np.int64),
        pairs=np.array([times.size], np.int64),
        moments=whole,
        bins=histogram(times.reshape(1, -1)),
        leaders=Leaders(plan, row, memory, center, own, histogram(times)),
        draw=draw,
        best=best,
        winner=winner,
    )


def joined(a: Table, b: Table) -> Table:
    """What both know; b has other plans, or other draws of the same."""
    draw = np.union1d(a.draw, b.draw)
    best, winner = np.full(len(draw), np.inf), np.full(len(draw), NOBODY, np.int64)
    for each in (a, b):
        at = np.searchsorted(draw, each.draw)
        better = each.best < best[at]
        best[at[better]], winner[at[better]] = each.best[better], each.winner[better]
    return Table(
        considered=a.considered + b.considered,
        fits=a.fits + b.fits,
        pairs=a.pairs + b.pairs,
        moments=means.merged(a.moments, b.moments),
        bins=bins.merged(a.bins, b.bins),
        leaders=_joined(a.leaders, b.leaders),
        draw=draw,
        best=best,
        winner=winner,
    )


def _joined(a: Leaders, b: Leaders) -> Leaders:
    plan = np.union1d(a.plan, b.plan)
    at = [np.searchsorted(plan, each.plan) for each in (a, b)]

    def both(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        whole = np.zeros((len(plan), *x.shape[1:]))
        for place, values in zip(at, (x, y), strict=True):
            whole[place] = values
        return whole

    def alone(found: Moments, place: np.ndarray) -> Moments:
        whole = Moments(*(np.zeros(len(plan)) for _ in found))
        for into, values in zip(whole, found, strict=True):
            into[place] = values
        return whole

    of = [h._replace(of=p[h.of]) for h, p in zip((a.bins, b.bins), at, strict=True)]
    return Leaders(
        plan=plan,
        row=both(a.row, b.row),
        memory=both(a.memory, b.memory),
        center=both(a.center, b.center),
        moments=means.merged(alone(a.moments, at[0]), alone(b.moments, at[1])),
        bins=bins.merged(of[0], of[1]),
    )


def thinned(table: Table, draws: int, top: int) -> Table:
    """Without plans that cannot be part of the answer any more.

    What stays: plans that have not seen all draws; of the others the `top` of least mean, the
    Pareto front of mean and memory, and those that are the best in some draw.
    """
    known = table.leaders
    complete = known.moments.count >= draws
    kept = ~complete | np.isin(known.plan, table.winner)
    done = np.flatnonzero(complete)
    mean, memory = known.moments.mean[done], known.memory[done]
    kept[done[front(mean, memory)]] = True
    kept[done[np.lexsort((known.plan[done], mean))[:top]]] = True
    return table._replace(leaders=_chosen(known, np.flatnonzero(kept)))


def front(mean: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Places of plans that no other beats in mean step time and memory, the fastest first; of equal
    ones the first."""
    order = np.lexsort((np.arange(len(mean)), memory, mean))
    before = np.minimum.accumulate(np.r_[np.inf, memory[order]])[:-1]
    return order[memory[order] < before]


def _chosen(known: Leaders, at: np.ndarray) -> Leaders:
    return Leaders(
        plan=known.plan[at],
        row=known.row[at],
        memory=known.memory[at],
        center=known.center[at],
        moments=Moments(*(x[at] for x in known.moments)),
        bins=bins.chosen(known.bins, at),
    )


def flat(value: Any, name: str = "") -> Arrays:
    """A table as arrays by dotted name."""
    found: Arrays = {}
    for field, each in zip(value._fields, value, strict=True):
        where = f"{name}.{field}".lstrip(".")
        found |= flat(each, where) if isinstance(each, tuple) else {where: each}
    return found


def whole(arrays: Arrays) -> Table:
    """The table of arrays that `flat` made."""

    def record(kind: Any, name: str) -> Any:
        return kind(*(arrays[f"{name}.{field}".lstrip(".")] for field in kind._fields))

    known = {"moments": Moments, "bins": Histogram}
    own: dict[str, Any] = {n: arrays[f"leaders.{n}"] for n in ("plan", "row", "memory", "center")}
    leaders = Leaders(**own, **{n: record(k, f"leaders.{n}") for n, k in known.items()})
    top: dict[str, Any] = {n: record(k, n) for n, k in known.items()}
    rest: dict[str, Any] = {n: arrays[n] for n in Table._fields if n in arrays}
    return Table(**rest, **top, leaders=leaders)
