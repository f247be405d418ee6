"""Which runs to measure next: those that tell most within a budget of device time.

To first order ln t of all runs, measured or not, is normal: what a fit leaves open of the coefficients (`D Dᵀ`), and what the model lacks,
alike in runs that are near each other (`τ² exp(−d² / 2 ℓ²)`, `dmodel.uncertainty`). Measuring runs with weights w (1 = once) and noise s
leaves of their covariance K

    C(w) = (1 + K W / s²)⁻¹ K,

and is worth `½ ln |1 + K W / s²|` nats about everything ("everything", D-optimal), or takes `mean_t (K_tt − C_tt)` off the variance of the
runs that are to be predicted ("prediction"). Both are concave in w, so a bound on all choices within the budget comes from the gradient of
the relaxed one (Frank & Wolfe 1956).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibration import pooling
from calibration.fit import log_ratio, rows_of_fit
from calibration.padding import padded
from calibration.traces import Cases
from calibration.uncertainty.cells import cells_of
from calibration.uncertainty.laplace import slopes
from dmodel.profiles import Profile
from dmodel.types import Array
from dmodel.uncertainty import REACH, features, nearest, scatter_of

CRITERIA = ("prediction", "everything")

ROUNDS = 40
"""Steps towards the relaxed optimum."""

CHANGE = 1e-9
"""An exchange must gain more than this."""


class Problem(NamedTuple):
    """What there is to choose from.

    Attributes:
      covariance: K of ln t before measuring `[run, run]`. noise: scale of one measurement `[run]`. cost_s: device-seconds `[run]`.
      candidates, targets: runs that can be measured, runs to be predicted; indices.
    """

    covariance: np.ndarray
    noise: np.ndarray
    cost_s: np.ndarray
    candidates: np.ndarray
    targets: np.ndarray


class Choice(NamedTuple):
    """Runs to measure, the most valuable for its cost first.

    Attributes:
      runs: indices. value: of the criterion with the first, the first two, … of them. cost_s: of them all. bound: no choice within the
        budget has more value than this.
    """

    runs: list[int]
    value: list[float]
    cost_s: float
    bound: float


def covariance(cases: Cases, profile: Profile) -> tuple[np.ndarray, np.ndarray]:
    """K of ln t of runs as a fit from a profile would begin with it `[run, run]`, and the noise of a measurement `[run]`."""
    labels = cases.labels
    stacks = labels.stack.astype(str)
    groups = pooling.groups_of(labels.accelerator.tolist(), stacks.tolist())
    cells = cells_of(pooling.prior_for(groups, profile, fresh=False), groups)
    data = rows_of_fit(cases, groups, np.ones(len(cases)))
    longer = padded(data._replace(log_measured=jnp.zeros(len(cases))), len(cases))
    z = cells.mean[cells.of].T
    wide = np.concatenate([z, np.repeat(z[:, -1:], len(longer.weight) - len(cases), 1)], 1)
    slope = slopes(wide, longer, log_ratio)[1][: len(cases)]
    design = np.stack([row @ cells.factor[cell] for row, cell in zip(slope, cells.of, strict=True)])
    found = np.array([scatter_of(profile, stack) for stack in stacks.tolist()])
    place = features(cases.system, cases.model, cases.plan)
    alike = np.exp(-0.5 * (nearest(place, stacks, place, stacks) / REACH) ** 2)
    return design @ design.T + found[:, 1:] * alike * found[:, 1], found[:, 0]


def known(problem: Problem, runs: np.ndarray) -> Problem:
    """The problem after some runs have been measured."""
    if not len(runs):
        return problem
    across = problem.covariance[:, runs]
    inner = problem.covariance[np.ix_(runs, runs)] + np.diag(problem.noise[runs] ** 2)
    return problem._replace(covariance=problem.covariance - across @ np.linalg.solve(inner, across.T))


def value(problem: Problem, runs: list[int], criterion: str = "prediction") -> float:
    """What measuring runs is worth: variance that it takes off the targets, in the mean, or nats."""
    if not runs:
        return 0.0
    at = np.array(runs)
    inner = problem.covariance[np.ix_(at, at)] + np.diag(problem.noise[at] ** 2)
    if criterion == "everything":
        return 0.5 * float(np.linalg.slogdet(inner)[1] - 2.0 * np.log(problem.noise[at]).sum())
    across = problem.covariance[np.ix_(problem.targets, at)]
    return float((across * np.linalg.solve(inner, across.T).T).sum(1).mean())


def _gains(problem: Problem, criterion: str) -> np.ndarray:
    """Value of each candidate alone `[candidate]`."""
    at = problem.candidates
    own = np.diag(problem.covariance)[at] / problem.noise[at] ** 2
    if criterion == "everything":
        return 0.5 * np.log1p(np.maximum(own, 0.0))
    square = (problem.covariance[np.ix_(problem.targets, at)] ** 2).mean(0)
    return square / (problem.noise[at] ** 2 * (1.0 + own))


def greedy(problem: Problem, budget_s: float, criterion: str, count: int | None = None) -> list[int]:
    """Runs one by one, each the one of most value per cost given those before it, as long as one fits the budget."""
    chosen: list[int] = []
    now, left = problem, budget_s
    while count is None or len(chosen) < count:
        cost = problem.cost_s[problem.candidates]
        rate = np.where((cost <= left) & ~np.isin(problem.candidates, chosen), _gains(now, criterion) / cost, -1.0)
        if not len(rate) or rate.max() <= 0.0:
            break
        run = int(problem.candidates[rate.argmax()])
        chosen.append(run)
        left -= float(problem.cost_s[run])
        now = known(now, np.array([run]))
    return chosen


def exchange(problem: Problem, chosen: list[int], budget_s: float, criterion: str, sweeps: int = 3) -> list[int]:
    """Replace single runs by better ones that fit the budget, until none is better."""
    chosen = list(chosen)
    for _ in range(sweeps):
        before = value(problem, chosen, criterion)
        for i in range(len(chosen)):
            rest = chosen[:i] + chosen[i + 1 :]
            others = known(problem, np.array(rest, int))
            allowed = problem.cost_s[problem.candidates] <= budget_s - problem.cost_s[rest].sum()
            gains = np.where(allowed & ~np.isin(problem.candidates, rest), _gains(others, criterion), -1.0)
            own = gains[problem.candidates == chosen[i]].max(initial=0.0)
            if gains.max(initial=-1.0) > own + CHANGE:
                chosen[i] = int(problem.candidates[gains.argmax()])
        if value(problem, chosen, criterion) <= before + CHANGE:
            break
    return chosen


def choose(problem: Problem, budget_s: float, criterion: str = "prediction", count: int | None = None) -> Choice:
    """Greedy, then exchanges, then in the order of value for cost; and the bound on every choice."""
    chosen = exchange(problem, greedy(problem, budget_s, criterion, count), budget_s, criterion)
    ordered = greedy(problem._replace(candidates=np.array(chosen, int)), np.inf, criterion)
    chosen = ordered + [run for run in chosen if run not in ordered]
    values = [value(problem, chosen[: i + 1], criterion) for i in range(len(chosen))]
    return Choice(chosen, values, float(problem.cost_s[chosen].sum()), bound(problem, budget_s, criterion, count))


def _relaxed(weights: Array, covariance: Array, target: Array, criterion: str) -> jax.Array:
    """The criterion of fractional measurements: `½ ln |1 + K W|`, or `tr W (1 + K W)⁻¹ M` with M = mean_t K_ct K_tc; K, M over noise²."""
    inner = jnp.eye(len(target)) + covariance * weights[None]  # type: ignore[arg-type,index]
    if criterion == "everything":
        return 0.5 * jnp.linalg.slogdet(inner)[1]
    return (jnp.diag(jnp.linalg.solve(inner, target)) * weights).sum()


@cache
def _slope(criterion: str) -> Callable[..., tuple[jax.Array, jax.Array]]:
    return jax.jit(jax.value_and_grad(partial(_relaxed, criterion=criterion)))


def _best_direction(slope: np.ndarray, cost: np.ndarray, budget_s: float, count: float) -> np.ndarray:
    """Weights in 0..1 of most linear value within the budget and the count: fill by value for cost, the last in part. Each limit alone
    gives a bound; with both limits it is the lower one."""
    best = np.zeros(len(slope))
    for price, limit in ((cost, budget_s), (np.ones(len(cost)), count)):
        if not np.isfinite(limit):
            continue
        filled, left = np.zeros(len(slope)), limit
        for at in np.argsort(-slope / price):
            filled[at] = min(1.0, max(left / price[at], 0.0))
            left -= filled[at] * price[at]
            if left <= 0.0:
                break
        if not best.any() or slope @ filled < slope @ best:
            best = filled
    return best if best.any() or np.isfinite(min(budget_s, count)) else np.ones(len(slope))


def bound(problem: Problem, budget_s: float, criterion: str = "prediction", count: int | None = None) -> float:
    """No choice of candidates within the budget (and the count) is worth more: `f(w) + max_v ∇f(w) · (v − w)`, the least over the steps.

    The relaxed problem gives all candidates the least noise of any: more value, never less.
    """
    at = problem.candidates
    noise2 = problem.noise[at].min() ** 2
    across = problem.covariance[np.ix_(problem.targets, at)]
    scaled, target = problem.covariance[np.ix_(at, at)] / noise2, across.T @ across / (max(len(across), 1) * noise2)
    weights, least = np.zeros(len(at)), np.inf
    for step in range(ROUNDS):
        reached, slope = map(np.asarray, _slope(criterion)(jnp.asarray(weights), jnp.asarray(scaled), jnp.asarray(target)))
        to = _best_direction(slope, problem.cost_s[at], budget_s, np.inf if count is None else float(count))
        least = min(least, float(reached + slope @ (to - weights)))
        weights = weights + 2.0 / (step + 2.0) * (to - weights)
    return least
