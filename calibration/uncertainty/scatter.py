"""How far measurements lie from predictions that were not fitted to them, by stack: noise, and a discrepancy that grows with distance.

Fitted rows are predicted once without themselves and once without their whole group (`left_out`). Their ratios are Student-t with scale²
`v + s² + τ² (1 − exp(−d² / 2 ℓ²))`: v from the coefficients, d the distance to the nearest row that was kept (`dmodel.uncertainty`). ln s
and ln τ of the stacks are normal about means that all stacks share; both are integrated over a grid, so a stack with few rows keeps wide
tails.
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
"""Standard deviation of ln s and of ln τ among stacks, and of a stack whose scatter a base profile has."""

NEW = Scatter(1.2, 1.5)
"""How many times as far a stack that no fit has seen lies, in noise and in discrepancy, as the stacks of a fit from nothing, whose shared
coefficients and widths were learned with it."""

BEYOND = 1.25
"""How many times as far held-out rows lie as rows left out to first order: a fit without them also learns other widths. Five folds of the
published rows had 83 % inside their 90 % intervals without it, and too few at every other level by the same factor."""

PSEUDO = 2.0
"""How many stacks the means before any fit (`STRANGER`) count for."""

NOISES, DISCREPANCIES = np.geomspace(2e-3, 0.5, 30), np.geomspace(2e-3, 1.0, 30)
"""Grid of s and τ."""


class Misses(NamedTuple):
    """Rows left out: family of the stack, ln(predicted / measured), its variance by the coefficients, distance, weight; `[miss]` each."""

    family: np.ndarray
    ratio: np.ndarray
    variance: np.ndarray
    distance: np.ndarray
    weight: np.ndarray


def places(cases: Cases) -> dict[str, np.ndarray]:
    """Places of the rows by stack, each once, `[row, feature]`, to three decimals."""
    found, stacks = features(cases.system, cases.model, cases.plan).round(3), cases.labels.stack.astype(str)
    return {stack: np.unique(found[stacks == stack], axis=0) for stack in np.unique(stacks).tolist()}


def misses(rows: Rows, cases: Cases, own: np.ndarray, seen: Mapping[str, np.ndarray]) -> Misses:
    """Every row left out alone and with its group.

    Args:
      own: weight of each row in the fit. seen: places of rows that an earlier fit has used, by stack.
    """
    stacks, group = cases.labels.stack.astype(str), cases.labels.group.astype(str)
    place, alone = features(cases.system, cases.model, cases.plan), np.arange(len(cases))
    apart = nearest(place, stacks, place, stacks)
    earlier = np.full(len(cases), np.inf)
    if seen:
        names = np.repeat(list(seen), [len(s) for s in seen.values()])
        earlier = nearest(place, stacks, np.concatenate(list(seen.values())), names).min(1)
    _, index = np.unique(group, return_inverse=True)
    # what the model lacks is alike within a group: together its rows say what one says
    weight = 0.5 * own / np.bincount(index)[index]
    ratio, variance, distance = [], [], []
    for names in (alone, group):
        found = left_out(rows, names)
        ratio.append(found.ratio)
        variance.append(found.variance)
        distance.append(np.minimum(np.where(names[:, None] == names[None], np.inf, apart).min(1), earlier))
    families = np.array([family(s) for s in stacks])
    joined = [np.concatenate(each) for each in (ratio, variance, distance)]
    return Misses(np.tile(families, 2), joined[0], joined[1], joined[2], np.tile(weight, 2))


def _table(found: Misses, mine: np.ndarray) -> np.ndarray:
    """Weighted Student-t misfit of some misses at every point of the grid `[noise, discrepancy]`."""
    far = -np.expm1(-0.5 * (found.distance[mine] / REACH) ** 2)
    scale2 = NOISES[:, None, None] ** 2 + DISCREPANCIES[None, :, None] ** 2 * far + found.variance[mine]
    misfit = 0.5 * np.log(scale2) + 0.5 * (FREEDOM + 1.0) * np.log1p(found.ratio[mine] ** 2 / (FREEDOM * scale2))
    return misfit @ found.weight[mine]


def _posterior(table: np.ndarray, mean: np.ndarray, width: float) -> np.ndarray:
    """Probability of every point of the grid."""
    prior = ((np.log(NOISES) - mean[0]) ** 2)[:, None] + ((np.log(DISCREPANCIES) - mean[1]) ** 2)[None]
    loss = table + 0.5 * prior / width**2
    chance = np.exp(loss.min() - loss)
    return chance / chance.sum()


def _means(chance: np.ndarray) -> np.ndarray:
    """Expected ln s and ln τ."""
    return np.array([chance.sum(1) @ np.log(NOISES), chance.sum(0) @ np.log(DISCREPANCIES)])


def _scatter(chance: np.ndarray) -> Scatter:
    """Roots of the expected s² and τ²."""
    return Scatter(float(np.sqrt(chance.sum(1) @ NOISES**2)), float(np.sqrt(chance.sum(0) @ DISCREPANCIES**2)))


def _center(found: Scatter, width: float) -> np.ndarray:
    """Mean of ln s and ln τ where the expected squares are known."""
    return np.log(np.array(found)) - width**2


def scatter(found: Misses, base: Profile, fresh: bool) -> dict[str, Scatter]:
    """Scatter of every family of stacks among the rows, and under "" that of any other.

    Args:
      base: profile of the start, whose stacks stay as they are when no row is theirs. fresh: a fit from nothing, which learns the means.
    """
    mean = _center(STRANGER if fresh else base.scatter.get("", STRANGER), WIDTH)
    families = np.unique(found.family).tolist()
    tables = {name: _table(found, found.family == name) for name in families}
    for _ in range(8 if fresh else 0):
        each = np.array([_means(_posterior(table, mean, WIDTH)) for table in tables.values()])
        mean = (PSEUDO * _center(STRANGER, WIDTH) + each.sum(0)) / (PSEUDO + len(each))
    result = {} if fresh else dict(base.scatter)
    for name, table in tables.items():
        known = None if fresh else base.scatter.get(name)
        chance = _posterior(table, mean, WIDTH) if known is None else _posterior(table, _center(known, KNOWN_WIDTH), KNOWN_WIDTH)
        own = _scatter(chance)
        result[name] = Scatter(BEYOND * own.noise, BEYOND * own.discrepancy) if fresh else own
    other = np.exp(mean + WIDTH**2) * (np.array(NEW) if fresh else 1.0)
    return {**result, "": Scatter(*map(float, other))}


def known_places(profile: Profile, cases: Cases) -> dict[str, np.ndarray]:
    """Places of a profile's rows and of more, by stack."""
    found = dict(profile.seen)
    for stack, place in places(cases).items():
        found[stack] = np.unique(np.concatenate([found[stack], place]), axis=0) if stack in found else place
    return found


