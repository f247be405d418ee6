"""How far measurements lie from predictions that were not fitted to them, by stack: noise, and a
discrepancy that grows with distance.

Fitted rows are predicted without their whole group (`left_out`). Their ratios are Student-t with
scale²
`v + s² + τ² (1 − exp(−d² / 2 ℓ²))`: v from the coefficients, d the distance to the nearest row that
was kept (`dmodel.uncertainty`). ln s and ln τ of the stacks are normal about means that all stacks
share; both are integrated over a grid, so a stack with few rows keeps wide tails.

A fit from nothing takes v as 0 here. Its coefficients bend to explain every stack, and where they
explain slow rows, by a collective that is no longer hidden, the ratios are steep in them; a fit
that has not seen those rows hides the collective and is flat. Of one stack whose releases disagree
(Pax), v was 0.15² at the fit of all rows and 0.05² at fits without the rows, which missed by 0.3:
what the slopes at the fit could excuse, predictions do not admit to, so scatter has to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from calibration.traces import Cases
from calibration.uncertainty.laplace import Rows
from calibration.uncertainty.left_out import left_out
from dmodel.profiles import Profile, family
from dmodel.profiles.record import Scatter
from dmodel.uncertainty import FREEDOM, REACH, STRANGER, features, nearest

WIDTH, KNOWN_WIDTH = 0.6, 0.35
"""Standard deviation of ln s and of ln τ among stacks, and of a stack whose scatter a base profile
has."""

PSEUDO = 2.0
"""How many stacks the means before any fit (`STRANGER`) count for."""

NOISES, DISCREPANCIES = np.geomspace(2e-3, 0.5, 30), np.geomspace(2e-3, 1.0, 30)
"""Grid of s and τ."""


class Misses(NamedTuple):
    """Rows left out: family of the stack, ln(predicted / measured), its variance by the
    coefficients, distance, weight; `[miss]` each."""

    family: np.ndarray
    ratio: np.ndarray
    variance: np.ndarray
    distance: np.ndarray
    weight: np.ndarray


def places(cases: Cases) -> dict[str, np.ndarray]:
    """Places of the rows by stack, each once, `[row, feature]`, to three decimals."""
    found, stacks = (
        features(cases.system, cases.model, cases.plan).round(3),
        cases.labels.stack.astype(str),
    )
    return {
        stack: np.unique(found[stacks == stack], axis=0) for stack in np.unique(stacks).tolist()
    }


def misses(rows: Rows, cases: Cases, own: np.ndarray, seen: Mapping[str, np.ndarray]) -> Misses:
    """Every row left out with its group.

    Args:
      own: weight of each row in what is learned of scatter; those of 0 stay in the fit where others
        are left out.
      seen: places of rows that an earlier fit has used, by stack.
    """
    stacks, group = cases.labels.stack.astype(str), cases.labels.group.astype(str)
    place = features(cases.system, cases.model, cases.plan)
    distance = np.where(
        group[:, None] == group[None], np.inf, nearest(place, stacks, place, stacks)
    ).min(1)
    if seen:
        names = np.repeat(list(seen), [len(s) for s in seen.values()])
        distance = np.minimum(
            distance, nearest(place, stacks, np.concatenate(list(seen.values())), names).min(1)
        )
    # what the model lacks is alike in a group, not in different releases: of each, together its
    # rows say what one says
    _, index = np.unique(np.char.add(np.char.add(group, " "), stacks), return_inverse=True)
    share = own / np.maximum(np.bincount(index, own > 0.0), 1.0)[index]
    found = left_out(rows, np.where(own > 0.0, group, ""))
    return Misses(
        np.array([family(s) for s in stacks]), found.ratio, found.variance, distance, share
    )


def _table(found: Misses, mine: np.ndarray) -> np.ndarray:
    """Weighted Student-t misfit of some misses at every point of the grid `[noise,
    discrepancy]`."""
    far = -np.expm1(-0.5 * (found.distance[mine] / REACH) ** 2)
    scale2 = (
        NOISES[:, None, None] ** 2 + DISCREPANCIES[None, :, None] ** 2 * far + found.variance[mine]
    )
    misfit = 0.5 * np.log(scale2) + 0.5 * (FREEDOM + 1.0) * np.log1p(
        found.ratio[mine] ** 2 / (FREEDOM * scale2)
    )
    return misfit @ found.weight[mine]


def _posterior(table: np.ndarray, mean: np.ndarray, width: float) -> np.ndarray:
    """Probability of every point of the grid."""
    prior = ((np.log(NOISES) - mean[0]) ** 2)[:, None] + ((np.log(DISCREPANCIES) - mean[1]) ** 2)[
        None
    ]
    loss = table + 0.5 * prior / width**2
    chance = np.exp(loss.min() - loss)
    return chance / chance.sum()


def _means(chance: np.ndarray) -> np.ndarray:
    """Expected ln s and ln τ."""
    return np.array([chance.sum(1) @ np.log(NOISES), chance.sum(0) @ np.log(DISCREPANCIES)])


def _scatter(chance: np.ndarray) -> Scatter:
    """Roots of the expected s² and τ²."""
    return Scatter(
        float(np.sqrt(chance.sum(1) @ NOISES**2)), float(np.sqrt(chance.sum(0) @ DISCREPANCIES**2))
    )


def _center(found: Scatter, width: float) -> np.ndarray:
    """Mean of ln s and ln τ where the expected squares are known."""
    return np.log(np.array(found)) - width**2


def scatter(found: Misses, base: Profile, fresh: bool) -> dict[str, Scatter]:
    """Scatter of every family of stacks among the rows, and under "" that of any other.

    Args:
      base: profile of the start, whose stacks stay as they are when no row is theirs. fresh: a fit
        from nothing, which learns the means.
    """
    if fresh:
        found = found._replace(variance=np.zeros_like(found.variance))
    before = {} if fresh else dict(base.scatter)
    tables = {
        name: _table(found, found.family == name) for name in np.unique(found.family).tolist()
    }
    mean = _center(before.get("", STRANGER), WIDTH)
    if fresh:
        mean = _learned(tables, mean)
    result = dict(before)
    for name, table in tables.items():
        center, width = mean, WIDTH
        if name in before:
            center, width = _center(before[name], KNOWN_WIDTH), KNOWN_WIDTH
        result[name] = _scatter(_posterior(table, center, width))
    return {**result, "": Scatter(*map(float, np.exp(mean + WIDTH**2)))}


def _learned(tables: dict[str, np.ndarray], mean: np.ndarray) -> np.ndarray:
    """The mean among families of stacks, begun at one and learned from their tables."""
    for _ in range(8):
        each = np.array([_means(_posterior(table, mean, WIDTH)) for table in tables.values()])
        mean = (PSEUDO * _center(STRANGER, WIDTH) + each.sum(0)) / (PSEUDO + len(each))
    return mean


def known_places(profile: Profile, cases: Cases) -> dict[str, np.ndarray]:
    """Places of a profile's rows and of more, by stack."""
    found = dict(profile.seen)
    for stack, place in places(cases).items():
        found[stack] = (
            np.unique(np.concatenate([found[stack], place]), axis=0) if stack in found else place
        )
    return found
