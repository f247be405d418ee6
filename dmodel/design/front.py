"""The Pareto front: plans that no other one beats in everything that counts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmodel.design.rows import plainest_first


class Front(NamedTuple):
    """rows `[n, columns]`, and what each costs `[n, quantities]`, the smaller the better: step
    time, memory and energy. Rent is devices · price · time, so it is least where time is."""

    rows: np.ndarray
    costs: np.ndarray


def undominated(costs: np.ndarray) -> np.ndarray:
    """Places of the costs that no other is at most as large as in all quantities and smaller in
    one; of equal ones the first.

    In the order of the first quantity, each is compared with those kept so far.
    """
    order = np.lexsort(costs.T[::-1])
    kept: list[int] = []
    held = np.empty((len(costs), costs.shape[1]))
    for place in order:
        n = len(kept)
        if not (held[:n] <= costs[place]).all(1).any():
            held[n] = costs[place]
            kept.append(int(place))
    return np.asarray(kept, dtype=int)


def _worth_a_look(costs: np.ndarray, cells: int = 64) -> np.ndarray:
    """Which costs may be on the front: not those beaten by the best of the cells, of the logarithm
    of the first two, before theirs."""
    logs = np.log(np.maximum(costs, 1e-300))
    low, high = logs.min(0), logs.max(0)
    at = np.minimum((cells * (logs - low) / np.maximum(high - low, 1e-12)).astype(int), cells - 1)
    least = np.full((cells, cells), np.inf)
    np.minimum.at(least, (at[:, 0], at[:, 1]), costs[:, 2])
    # least energy of all cells strictly before this one in time and memory
    before = np.minimum.accumulate(np.minimum.accumulate(least, 0), 1)
    padded = np.full((cells + 1, cells + 1), np.inf)
    padded[1:, 1:] = before
    return padded[at[:, 0], at[:, 1]] > costs[:, 2]


def joined_front(one: Front, other: Front) -> Front:
    """The front of both together, the plainest of equal plans: the same whatever order plans come
    in."""
    rows, costs = np.concatenate([one.rows, other.rows]), np.concatenate([one.costs, other.costs])
    if not len(rows):
        return one
    hopeful = np.flatnonzero(_worth_a_look(costs))
    rows, costs = rows[hopeful], costs[hopeful]
    order = plainest_first(rows, np.zeros(len(rows)))
    rows, costs = rows[order], costs[order]
    kept = np.sort(undominated(costs))
    kept = kept[plainest_first(rows[kept], costs[kept, 0])]
    return Front(rows[kept], costs[kept])
