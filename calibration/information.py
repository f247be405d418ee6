"""Which runs to measure next: those that tell most within a budget of device time.

ln t of all runs, measured or not, is normal: what a fit leaves open of the coefficients, K, and
what the model lacks of a run, alike in runs that are near each other, L = `τ² exp(−d² / 2 ℓ²)`
(`dmodel.uncertainty`). A fit takes what a run shows for the work of its coefficients and carries
that over to others: what the model lacks of measured runs is noise to it. So measuring runs with
weights w
(1 = once) and noise s takes

    K W (s² + (K + L) W)⁻¹ K

off the coefficients' part of the variance; a second run next to a first says little, and runs are
spread. A choice is worth the nats that it tells about the time of each run to be predicted, `mean_t
½ ln (V_t / (V_t − taken_t))` with V = K + L + s² ("prediction"), or about everything, `½ ln |1 + (K
+ L) W / s²|` ("everything", D-optimal). Nats about each run's time ask for the typical run; the
mean variance would ask for the extreme one, of which the model is most likely wrong. Both are
concave in w, so a bound on all choices within the budget comes from the gradient of the relaxed one
(Frank & Wolfe 1956).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibration import pooling
from calibration.ratios import rows_of_fit, slopes
from calibration.traces import Cases
from calibration.uncertainty.cells import cells_of
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
      covariance: of ln t before measuring, K + L `[run, run]`. across: of the targets' with the
        runs' as far as a fit carries it over,
        K `[target, run]`. open: variance of a measurement of each target before `[target]`. noise:
        scale of one measurement `[run]`.
      cost_s: device-seconds `[run]`. candidates, targets: runs that can be measured, runs to be
        predicted; indices.
    """

    covariance: np.ndarray
    across: np.ndarray
    open: np.ndarray
    noise: np.ndarray
    cost_s: np.ndarray
    candidates: np.ndarray
    targets: np.ndarray


class Spread(NamedTuple):
    """What is open of ln t: covariance by the coefficients, of what the model lacks `[run, run]`,
    and noise of measurements `[run]`."""

    coefficients: np.ndarray
    lacking: np.ndarray
    noise: np.ndarray


class Choice(NamedTuple):
    """Runs to measure, the most valuable for its cost first.

    Attributes:
      runs: indices. value: of the criterion with the first, the first two, … of them. cost_s: of
        them all. bound: no choice within the budget has more value than this.
    """

    runs: list[int]
    value: list[float]
    cost_s: float
    bound: float


def spread(cases: Cases, profile: Profile) -> Spread:
    """What a fit from a profile would begin with; of a known stack that is a normal distribution,
    where a fit may replay its rows."""
    labels = cases.labels
    stacks = labels.stack.astype(str)
    groups = pooling.groups_of(labels.accelerator.tolist(), stacks.tolist())
    cells = cells_of(pooling.prior_for(groups, profile, fresh=False), groups)
    data = rows_of_fit(cases, groups, np.ones(len(cases)))
    slope = slopes(cells.mean[cells.of].T, data)[1]
    design = np.stack([row @ cells.factor[cell] for row, cell in zip(slope, cells.of, strict=True)])
    found = np.array([scatter_of(profile, stack) for stack in stacks.tolist()])
    place = features(cases.system, cases.model, cases.plan)
    alike = np.exp(-0.5 * (nearest(place, stacks, place, stacks) / REACH) ** 2)
    return Spread(design @ design.T, found[:, 1:] * alike * found[:, 1], found[:, 0])


def problem(
    found: Spread, cost_s: np.ndarray, candidates: np.ndarray, targets: np.ndarray
) -> Problem:
    """The problem of choosing among candidates what is to tell about targets."""
    whole = found.coefficients + found.lacking
    return Problem(
        whole,
        found.coefficients[targets],
        np.diag(whole)[targets] + found.noise[targets] ** 2,
        found.noise,
        cost_s,
        candidates,
        targets,
    )


def known(problem: Problem, runs: np.ndarray) -> Problem:
    """The problem after some runs have been measured."""
    if not len(runs):
        return problem
    own, across = problem.covariance[:, runs], problem.across[:, runs]
    inner = np.linalg.inv(
        problem.covariance[np.ix_(runs, runs)] + np.diag(problem.noise[runs] ** 2)
    )
    return problem._replace(
        covariance=problem.covariance - own @ inner @ own.T,
        across=problem.across - across @ inner @ own.T,
        open=problem.open - ((across @ inner) * across).sum(1),
    )


def value(problem: Problem, runs: list[int], criterion: str = "prediction") -> float:
    """What measuring runs is worth [nats]: about the time of each target, in the mean, or about
    everything."""
    if not runs:
        return 0.0
    at = np.array(runs)
    if criterion == "prediction":
        return 0.5 * float(np.log(problem.open / known(problem, at).open).mean())
    inner = problem.covariance[np.ix_(at, at)] + np.diag(problem.noise[at] ** 2)
    return 0.5 * float(np.linalg.slogdet(inner)[1] - 2.0 * np.log(problem.noise[at]).sum())


def _gains(problem: Problem, criterion: str) -> np.ndarray:
    """Value of each candidate alone `[candidate]`."""
    at = problem.candidates
    own = np.maximum(np.diag(problem.covariance)[at], 0.0)
    if criterion == "everything":
        return 0.5 * np.log1p(own / problem.noise[at] ** 2)
    taken = problem.across[:, at] ** 2 / (problem.noise[at] ** 2 + own)
    return -0.5 * np.log1p(-taken / problem.open[:, None]).mean(0)


def greedy(
    problem: Problem, budget_s: float, criterion: str, count: int | None = None
) -> list[int]:
    """Runs one by one, each the one of most value per cost given those before it, as long as one
    fits the budget."""
    chosen: list[int] = []
    now, left = problem, budget_s
    while count is None or len(chosen) < count:
        cost = problem.cost_s[problem.candidates]
        rate = np.where(
            (cost <= left) & ~np.isin(problem.candidates, chosen),
            _gains(now, criterion) / cost,
            -1.0,
        )
        if not len(rate) or rate.max() <= 0.0:
            break
        run = int(problem.candidates[rate.argmax()])
        chosen.append(run)
        left -= float(problem.cost_s[run])
        now = known(now, np.array([run]))
    return chosen


def exchange(
    problem: Problem, chosen: list[int], budget_s: float, criterion: str, sweeps: int = 3
) -> list[int]:
    """Replace single runs by better ones that fit the budget, until none is better."""
    chosen = list(chosen)
    for _ in range(sweeps):
        before = value(problem, chosen, criterion)
        for i in range(len(chosen)):
            rest = chosen[:i] + chosen[i + 1 :]
            others = known(problem, np.array(rest, int))
            allowed = problem.cost_s[problem.candidates] <= budget_s - problem.cost_s[rest].sum()
            gains = np.where(
                allowed & ~np.isin(problem.candidates, rest), _gains(others, criterion), -1.0
            )
            own = gains[problem.candidates == chosen[i]].max(initial=0.0)
            if gains.max(initial=-1.0) > own + CHANGE:
                chosen[i] = int(problem.candidates[gains.argmax()])
        if value(problem, chosen, criterion) <= before + CHANGE:
            break
    return chosen


def choose(
    problem: Problem, budget_s: float, criterion: str = "prediction", count: int | None = None
) -> Choice:
    """Greedy, then exchanges, then in the order of value for cost; and the bound on every
    choice."""
    chosen = exchange(problem, greedy(problem, budget_s, criterion, count), budget_s, criterion)
    ordered = greedy(problem._replace(candidates=np.array(chosen, int)), np.inf, criterion)
    chosen = ordered + [run for run in chosen if run not in ordered]
    values = [value(problem, chosen[: i + 1], criterion) for i in range(len(chosen))]
    return Choice(
        chosen,
        values,
        float(problem.cost_s[chosen].sum()),
        bound(problem, budget_s, criterion, count),
    )


def _relaxed(weights: Array, covariance: Array, across: Array, criterion: str) -> jax.Array:
    """The criterion of fractional measurements: `½ ln |1 + S W|`, or `−½ mean_t ln (1 − A W (1 + S
    W)⁻¹ Aᵀ)`; S over noise², A over the root of what is open of each target times noise."""
    inner = jnp.eye(len(covariance)) + covariance * weights[None]  # type: ignore[arg-type,index]
    if criterion == "everything":
        return 0.5 * jnp.linalg.slogdet(inner)[1]
    taken = (across * weights[None] * jnp.linalg.solve(inner, across.T).T).sum(1)  # type: ignore
    return -0.5 * jnp.log1p(-taken).mean()


@cache
def _slope(criterion: str) -> Callable[..., tuple[jax.Array, jax.Array]]:
    return jax.jit(jax.value_and_grad(partial(_relaxed, criterion=criterion)))


def _best_direction(
    slope: np.ndarray, cost: np.ndarray, budget_s: float, count: float
) -> np.ndarray:
    """Weights in 0..1 of most linear value within the budget and the count: fill by value for cost,
    the last in part. Each limit alone gives a bound; with both limits it is the lower one."""
    if not np.isfinite(min(budget_s, count)):
        return np.ones(len(slope))
    best = np.zeros(len(slope))
    for price, limit in ((cost, budget_s), (np.ones(len(cost)), count)):
        if np.isfinite(limit):
            filled = _filled(slope, price, limit)
            if not best.any() or slope @ filled < slope @ best:
                best = filled
    return best


def _filled(slope: np.ndarray, price: np.ndarray, limit: float) -> np.ndarray:
    """Weights of most linear value within one limit."""
    filled, left = np.zeros(len(slope)), limit
    for at in np.argsort(-slope / price):
        filled[at] = min(1.0, max(left / price[at], 0.0))
        left -= filled[at] * price[at]
        if left <= 0.0:
            break
    return filled


def bound(
    problem: Problem, budget_s: float, criterion: str = "prediction", count: int | None = None
) -> float:
    """No choice of candidates within the budget (and the count) is worth more: `f(w) + max_v ∇f(w)
    · (v − w)`, the least over the steps.

    The relaxed problem gives all candidates the least noise of any: more value, never less.
    """
    at = problem.candidates
    noise = problem.noise[at].min()
    scaled = problem.covariance[np.ix_(at, at)] / noise**2
    target = problem.across[:, at] / (np.sqrt(problem.open)[:, None] * noise)
    weights, least = np.zeros(len(at)), np.inf
    for step in range(ROUNDS):
        reached, slope = map(
            np.asarray,
            _slope(criterion)(jnp.asarray(weights), jnp.asarray(scaled), jnp.asarray(target)),
        )
        to = _best_direction(
            slope, problem.cost_s[at], budget_s, np.inf if count is None else float(count)
        )
        least = min(least, float(reached + slope @ (to - weights)))
        weights = weights + 2.0 / (step + 2.0) * (to - weights)
    return least
