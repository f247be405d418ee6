"""Designs that hold although the coefficients are not known exactly: expected value or quantile
over samples, and how often a plan is
best."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.codesign.laws import quality
from dmodel.codesign.outcome import NAMES, OBJECTIVES, QUANTITIES
from dmodel.codesign.plans import Planner, Ranked, step_of
from dmodel.codesign.question import Question
from dmodel.coefficients import Coefficients, from_unconstrained
from dmodel.design.elsewhere import evaluate_draws
from dmodel.design.rows import plans
from dmodel.errors import InputError
from dmodel.profiles import Profile, family
from dmodel.profiles.record import pair_key
from dmodel.records import Plan

WITHIN = 1.25
"""Plans are sampled that cost at most this factor of the best one at the center of the
coefficients."""

MOST = 2000
"""Plans that are sampled at the most, best ones first."""


class Candidate(NamedTuple):
    """One plan under uncertainty: at the center, the mean, the asked quantile (the mean when none
    is asked) and the 10th and 90th percentiles of the objective over the samples; share of the
    samples in which it is the best of all candidates, and how much worse than the best it is on
    average [1]."""

    plan: Plan
    center: float
    mean: float
    quantile: float
    low: float
    high: float
    best_share: float
    regret: float


class Robust(NamedTuple):
    """Attributes:
    chosen: the candidate with the least mean, or quantile. nominal: the best at the center of the
      coefficients. candidates: those that are best in some sample, most often first. samples,
      compared, considered: samples, plans compared in all of them, and valid plans. objective,
      unit. statement: in words.
    """

    chosen: Candidate
    nominal: Candidate
    candidates: tuple[Candidate, ...]
    samples: int
    compared: int
    considered: int
    objective: str
    unit: str
    statement: str


def draw(center: np.ndarray, covariance: np.ndarray, n: int, seed: int = 0) -> Coefficients:
    """Samples of the coefficients, leaves `[n]`; the first is the center.

    Args:
      center: unconstrained `[coefficient]`. covariance: of it `[coefficient, coefficient]`;
        directions without variance do not move.
    """
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    spread = vectors * np.sqrt(np.maximum(values, 0.0))
    z = np.random.default_rng(seed).standard_normal((n - 1, len(center))) @ spread.T
    return jax.tree.map(
        np.asarray,
        from_unconstrained(
            jnp.asarray((center + np.concatenate([np.zeros((1, len(center))), z])).T)
        ),
    )


def profile_samples(
    profile: Profile, accelerator: str | None, stack: str | None, n: int = 64, seed: int = 0
) -> Coefficients:
    """Samples of what a profile knows of an accelerator and a stack, leaves `[n]`; the first is its
    best guess.

    The covariance is that of the chip and stack together where the profile keeps it, else of the
    stack, else of the center.

    Raises:
      InputError: the profile keeps no covariance.
    """
    chip, software = accelerator or "", stack or ""
    known = (
        profile.pair_covariances.get(pair_key(chip, software)),
        profile.stack_covariances.get(family(software)),
        profile.covariance,
    )
    covariance = next((c for c in known if c is not None), None)
    if covariance is None:
        raise InputError(
            f"profile {profile.name}: it keeps no covariance, so nothing is known of its "
            "uncertainty; fit it again"
        )
    return draw(profile.unconstrained(accelerator, stack), np.asarray(covariance), n, seed)


def robust(
    stated: Question,
    sizes: dict[str, float],
    samples: Coefficients,
    *,
    threads: int | None = None,
    executor: Executor | None = None,
) -> Robust:
    """Compare the plans at given sizes under every sample of the coefficients.

    A budget that a sample overruns trains fewer tokens there; a time, rent or energy that a sample
    overruns counts as it is.

    Args:
      stated: its objective and, where it has one, quantile; its own coefficients are not used.
        sizes: as in `Design.sizes`.
      samples: leaves `[sample]`, the first one the center.
      executor: whose workers evaluate the plans under all samples; None for this process.

    Raises:
      InputError: fewer than two samples, or no plan that keeps the limits at the center.
    """
    n = int(np.shape(jax.tree.leaves(samples)[0])[0])
    if n < 2:
        raise InputError(f"robust design: expected at least 2 samples of the coefficients; got {n}")
    planner = stated._replace(world=stated.world.replace(coefficients=samples)).planner(threads)
    ranked, kept = _leading(planner, sizes)
    table = _objective(planner, sizes, ranked, kept, executor)
    q = float(stated.at.quantile)
    better = -1.0 if stated.objective == "largest" else 1.0
    cost = better * table
    best = cost.min(0)
    # two plans of one value are equally good; the first, which the search prefers, counts
    winner = cost.argmin(0)
    share = np.bincount(winner, minlength=len(table)) / n
    regret = (cost / best[None] - 1.0).mean(1) * np.sign(best.mean())
    statistic = cost.mean(1) if q < 0.0 else np.quantile(cost, q, axis=1)
    shown = sorted({0, int(statistic.argmin()), *np.unique(winner).tolist()})
    chosen_plans = plans(ranked.stated.space, ranked.stated.system, ranked.rows[kept[shown]])
    records = {
        i: _record(plan, table, i, q, better, share, regret)
        for i, plan in zip(shown, chosen_plans, strict=True)
    }
    chosen, nominal = records[int(statistic.argmin())], records[0]
    order = sorted(np.unique(winner).tolist(), key=lambda i: -share[i])
    unit = QUANTITIES[OBJECTIVES[stated.objective]]
    return Robust(
        chosen=chosen,
        nominal=nominal,
        candidates=tuple(records[i] for i in order),
        samples=n,
        compared=len(table),
        considered=ranked.considered,
        objective=stated.objective,
        unit=unit,
        statement=_statement(chosen, nominal, n, len(table), ranked.considered, unit, q),
    )


def _leading(planner: Planner, sizes: dict[str, float]) -> tuple[Ranked, np.ndarray]:
    """All valid plans, and the places of those near the best at the center, best first."""
    ranked = planner.ranked(sizes)
    if ranked is None or not (ranked.over <= 1e-9).any():
        raise InputError(
            "robust design: no plan keeps the limits at these sizes; ask for the nearest "
            "change "
            "that makes one do so"
        )
    fits = np.flatnonzero(ranked.over <= 1e-9)
    cost = ranked.cost[fits]
    span = cost / cost.min() if cost.min() > 0.0 else cost.min() / cost
    return ranked, fits[np.argsort(cost, kind="stable")][: min(MOST, int((span <= WITHIN).sum()))]


def _objective(
    planner: Planner,
    sizes: dict,
    ranked: Ranked,
    kept: np.ndarray,
    executor: Executor | None,
) -> np.ndarray:
    """The objective of every kept plan under every sample `[plan, sample]`."""
    model, system, n = ranked.model, ranked.stated.system, planner.samples
    rows, samples = ranked.rows[kept], planner.world.coefficients
    drawn = evaluate_draws(ranked.stated, rows, samples, executor)
    seen = jax.tree.map(lambda leaf: np.asarray(leaf).T.ravel(), step_of(drawn))
    rates, tokens = planner.tokens_of(seen, sizes, model, system, n * len(kept))
    name = NAMES[int(np.abs(np.asarray(planner.at.weight)).argmax())]
    if name in rates:
        found = tokens * rates[name]
    else:
        flop = float(planner.about(model)[1])
        found = flop * tokens if name == "flop" else _losses(planner, sizes, model, tokens, flop)
    return found.reshape(len(kept), n)


def _losses(
    planner: Planner, sizes: dict, model: Any, tokens: np.ndarray, flop: float
) -> np.ndarray:
    """Loss of a run of each number of tokens, on a fine grid of their logarithm and linear
    between."""
    grid = np.linspace(np.log(tokens.min()) - 1e-9, np.log(tokens.max()) + 1e-9, 1024)
    known = planner.about(model)[0]
    batch = sizes["global_batch"] * float(model.seq_len)
    losses = quality(known, np.exp(grid), batch, flop * np.exp(grid), planner.world.laws).loss
    return np.interp(np.log(tokens), grid, np.asarray(losses))


def _record(
    plan: Plan,
    table: np.ndarray,
    i: int,
    q: float,
    better: float,
    share: np.ndarray,
    regret: np.ndarray,
) -> Candidate:
    row = table[i]
    low, high = np.quantile(row, (0.1, 0.9))
    asked = row.mean() if q < 0.0 else better * np.quantile(better * row, q)
    return Candidate(plan, *map(float, (row[0], row.mean(), asked, low, high, share[i], regret[i])))


def _statement(
    chosen: Candidate,
    nominal: Candidate,
    n: int,
    compared: int,
    considered: int,
    unit: str,
    q: float,
) -> str:
    what = "expected value" if q < 0.0 else f"{q:.0%} quantile"
    same = (
        "which is also the best at the center"
        if chosen is nominal
        else f"where the best at the center has {nominal.quantile:.5g}"
    )
    return (
        f"{what} {chosen.quantile:.5g} {unit}, {same}; best plan in {chosen.best_share:.0%} of "
        f"{n} samples, {chosen.regret:.2%} from the "
        f"best of each on average; compared: the {compared:,} of {considered:,} valid plans that "
        "keep the limits and come within "
        f"{WITHIN - 1.0:.0%} at the center"
    )
