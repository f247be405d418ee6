"""Fit the coefficients to measured step times by gradient descent: Student-t noise, priors, and
L-BFGS from as many starts as still end in new places, after Adam where no base is known.

The result is a `Profile`. Deterministic for a seed. Rows are judged by `ln(predicted / measured)`;
a profile to start from turns a dozen rows into a usable fit, because whatever the rows do not
determine stays where the profile has it, or, of a stack that it knows, where its own rows have it
(`calibration.replay`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from calibration import pooling
from calibration.descent import TOGETHER, End, descents
from calibration.elsewhere import descents_elsewhere
from calibration.fitted import profile_of
from calibration.footprints import fit_footprints
from calibration.objective import FREEDOM, Objective
from calibration.pooling import Groups, Parameters, Prior
from calibration.ratios import Data, rows_of_fit
from calibration.replay import NOTHING, Replay, replay, together
from calibration.starts import begun
from calibration.traces import Cases
from calibration.uncertainty import laplace, narrowing, offset_errors
from calibration.uncertainty.scatter import known_places, misses, scatter
from calibration.weights import nothing_left, weights_beside, weights_of
from dmodel.errors import InputError
from dmodel.profiles import Profile, default_profile
from dmodel.types import enable_float64

ADAM_STEPS, LBFGS_STEPS, FROM_BASE_STEPS = 250, 120, 400
"""Steps of Adam, of L-BFGS behind it at most, and of L-BFGS alone from a base. A base is near to
where rows lead: there L-BFGS alone ends where it ends behind Adam, after 35 to 140 evaluations
instead of 280."""

STARTS, STARTS_FROM_BASE = 8, 12
"""Descents of a fit, and of one from a base, whose dozen rows have more places to end in and cost
less; at most, as none begins once `AGREE` further ones have ended where the best one did. Of ten
draws of twelve rows of B200, other chips of its stacks known, four scattered starts left three at
places of twice the error (5.2 / 6.9 %, worst draw 22.9; by the most likely place of twelve 3.6 /
7.0 %, 10.7)."""

PSEUDO = 2.0
"""How many members the width before any fit counts for, when widths are learned."""


def _settled(loss: Objective, ends: Sequence[np.ndarray]) -> list[Parameters]:
    """Parameters at the prior mean wherever no row has a slope, so that the prior's alone, `θ`, is
    the whole: where descents were scattered they come near it only."""
    at = np.stack(ends)
    return [loss.whole(x) for x in np.where(loss(at)[1] == at, 0.0, at)]


def optimize(
    prior: Prior,
    data: Data,
    groups: Groups,
    *,
    seed: int,
    starts: int,
    polish: int,
    progress: Callable[[float, float], None],
    first: Parameters | None = None,
    executor: Executor | None = None,
) -> Parameters:
    """Descend from starts until they end alike; start 0 is the prior mean, with slow hosts where
    the center is free, the others scatter around it; the least loss wins. A fit from a base has one
    start more, start 0 with hosts that wait for each other (`SLOW_MEETING`), which comes next, and
    its most likely place wins (`_likeliest`).

    Args:
      first: parameters to start from besides; None = nothing is known.
      executor: whose workers descend; None for this process.

    Raises:
      FloatingPointError: the loss is not finite at any start.
    """
    loss = Objective(prior, data)
    begin = [loss.flat(p) for p in begun(prior, seed, starts, first)]
    ends, same = _descended(loss, begin, polish, progress, executor)
    ends = sorted((end for end in ends if np.isfinite(end.loss)), key=lambda end: end.loss)
    if not ends:
        raise FloatingPointError(
            "the fit left the finite numbers; this is a defect of dmodel: please report the "
            "traces that caused it"
        )
    apart = ends[:1] if prior.fresh else _apart(ends, same)
    places = _settled(loss, [end.parameters for end in apart])
    if len(places) == 1:
        return places[0]
    losses = [end.loss for end in apart]
    return places[_likeliest(places, losses, prior, data, groups)]


def _descended(
    loss: Objective,
    begin: Sequence[np.ndarray],
    polish: int,
    progress: Callable[[float, float], None],
    executor: Executor | None,
) -> tuple[list[End], float]:
    """Where descents end, and the difference below which their losses are of one place."""
    prior = loss.prior
    many = len(loss.data.weight) >= MANY and not prior.fresh and prior.mixing is None
    same, near, agree, together = OF_MANY if many else (SAME, SAME, AGREE, TOGETHER)
    how = {"adam": ADAM_STEPS if prior.fresh else 0, "lbfgs": polish, "progress": progress}
    how |= {"enough": partial(_alike, near=near, agree=agree), "together": together}
    if executor is not None:
        return descents_elsewhere(loss, begin, executor, **how, curved=many), same
    return descents(loss, begin, **how, curvature=loss.inverse if many else None), same


def _apart(ends: Sequence[End], same: float) -> list[End]:
    """One end of each place; ends by their loss, the least first."""
    others = (end for before, end in pairwise(ends) if end.loss - before.loss > same)
    return [ends[0], *others]


AGREE = 2
"""Further starts that have to end where the best one did before no more are tried [count]."""


def _alike(ends: Sequence[End], near: float, agree: int) -> bool:
    """Whether the best place of descents, or one nearly as good, was reached by so many starts that
    others hardly lead to a better one."""
    losses = [end.loss for end in ends if np.isfinite(end.loss)]
    return sum(x - min(losses) <= near for x in losses) > agree


SAME = 1e-3
"""Losses closer than this are of one place: descents that ended in one agree to three decimals,
and of 104 from eight draws of twelve rows no two places were nearer than 0.009."""

MANY, OF_MANY = 1000, (0.02, 0.5, 1, 2)
"""From so many rows on a fit from a base is told the curvature of its rows, as L-BFGS alone comes
to the end of its steps before it rests: of all 1,770 published rows the best of four starts ended
at -4,716.8 after 400 steps each; with the curvature the first two rest at the same place, -4,717.9,
after 110. The four numbers replace `SAME`, the distance from the least loss that is as good as it,
`AGREE` and `TOGETHER`: a start takes ten seconds and more. Fits of many stacks have many optima
that differ in a coefficient that rows hardly determine. Those within 0.5, odds of 1.6 to 1, are as
good as each other."""


def _likeliest(
    places: Sequence[Parameters],
    losses: Sequence[float],
    prior: Prior,
    rows: Data,
    groups: Groups,
) -> int:
    """The place with the least loss and `uncertainty.narrowing` together: a dozen rows may be met
    best, by a hair, in a corner where nothing beside it meets them."""
    found = np.array(
        [
            loss + narrowing(p, prior, rows, groups, FREEDOM)
            for p, loss in zip(places, losses, strict=True)
        ]
    )
    return int(np.where(np.isfinite(found), found, np.inf).argmin())


def refined_widths(
    p: Parameters, errors: np.ndarray, prior: Prior, groups: Groups
) -> dict[str, np.ndarray]:
    """Width of each coefficient among the members of each grouping, learned from the fitted ones
    (empirical Bayes).

    `τ² = (n₀ τ₀² + Σ_members (v² + var v)) / (n₀ + n)`, with `PSEUDO` members n₀ of the width
    before any fit; errors: of the offsets,
    `[M, C]` (`uncertainty.offset_errors`).
    """
    width = np.diagonal(prior.factor, axis1=1, axis2=2)
    offset = pooling.mixed(p, prior)[1]
    second = width**2 * (offset**2 + errors[: len(width)] ** 2)
    of = np.array([g for g, _ in groups.members])
    found = {}
    for grouping, before in pooling.fresh_widths().items():
        mine = second[of == grouping]
        found[grouping] = np.sqrt((PSEUDO * before**2 + mine.sum(0)) / (PSEUDO + len(mine)))
    return found


def fit(
    cases: Cases,
    base: Profile | None = None,
    *,
    seed: int = 0,
    held_out: np.ndarray | None = None,
    starts: int | None = None,
    progress: Callable[[float, float], None] | None = None,
    name: str = "fitted",
    rounds: int = 2,
    held: Mapping[str, float] | None = None,
    polish: int | None = None,
    executor: Executor | None = None,
    drift: float = 0.0,
) -> Profile:
    """Fit a profile to measured step times.

    Args:
      cases: rows as records, from `calibration.traces.to_cases`.
      base: profile to start from; None fits everything from the default priors, in `rounds` rounds
        that learn the widths among stacks.
        Of stacks that it knows its own rows are fitted beside the new ones, at less weight
        (`calibration.replay`).
      seed: of the scattered starts. held_out: rows to keep out, `[row]` bool.
      starts: how many descents at most, and one more from a base; None = `STARTS`, from a base
        `STARTS_FROM_BASE`.
      progress: called with the share done and the loss. name: of the result. rounds: of a fit
        without a base.
      held: coefficients that stay at a value for all rows, by name.
      polish: steps of L-BFGS at most, of each round; None = `LBFGS_STEPS`, from a base
        `FROM_BASE_STEPS`.
      executor: of `concurrent.futures`, whose workers descend from the starts; None for this
        process. The result is the same.
      drift: what coefficients of known stacks may have changed by since the base, see
        `pooling.prior_for`.

    Returns:
      A profile with offsets for every accelerator and stack seen (those of the base included).

    Raises:
      InputError: no row is left to fit.
    """
    enable_float64()
    rows = _rows(cases, base, held_out)._replace(drift=drift)
    if starts is None:
        starts = STARTS if base is None else STARTS_FROM_BASE
    if polish is None:
        polish = LBFGS_STEPS if base is None else FROM_BASE_STEPS
    descend = partial(optimize, seed=seed, starts=starts, polish=polish, executor=executor)
    p, prior = _rounds(rows, rounds if base is None else 1, held or {}, descend, progress)
    return _described(name, p, prior, rows, _seen(cases, held_out))


def _seen(cases: Cases, held_out: np.ndarray | None) -> Cases:
    """Rows that are not held out, those that are never fitted too."""
    return cases if held_out is None else cases.take(~np.asarray(held_out))


class _Rows(NamedTuple):
    """Rows of a fit. used: of the caller; every: with those replayed behind them; base: what it
    starts from, fresh where that is only the prior of a fit from nothing; drift: of known stacks
    since the base."""

    used: Cases
    old: Replay
    every: Cases
    weights: np.ndarray
    groups: Groups
    data: Data
    base: Profile
    fresh: bool
    drift: float = 0.0


def _rows(cases: Cases, base: Profile | None, held_out: np.ndarray | None) -> _Rows:
    """Rows that are fitted; raises where there are none."""
    kept = np.ones(len(cases), bool) if held_out is None else ~np.asarray(held_out)
    kept &= (weights_of(cases.labels.flag) > 0.0) & np.isfinite(cases.labels.step_time_s)
    if not kept.any():
        raise InputError(nothing_left(cases, held_out))
    used = cases.take(kept)
    old = NOTHING if base is None else replay(used, base, cases.labels.fingerprint)
    every = together(used, old.rows)
    weights = weights_beside(cases.labels.flag, kept, old.rows)
    groups = pooling.groups_of(every.labels.accelerator.tolist(), every.labels.stack.tolist())
    data = rows_of_fit(every, groups, weights)
    start_from = base or default_profile()
    return _Rows(used, old, every, weights, groups, data, start_from, base is None)


def _prior(rows: _Rows, base: Profile, held: Mapping[str, float]) -> Prior:
    prior = pooling.prior_for(
        rows.groups, base, fresh=rows.fresh, told=rows.old.families, drift=rows.drift
    )
    return pooling.holding(prior, held)


def _rounds(
    rows: _Rows,
    total: int,
    held: Mapping[str, float],
    descend: Callable[..., Parameters],
    progress: Callable[[float, float], None] | None,
) -> tuple[Parameters, Prior]:
    """Parameters of the last of some rounds, and its prior; widths are learned between them."""
    groups, prior = rows.groups, _prior(rows, rows.base, held)
    p, first = None, None
    for i in range(total):
        if p is not None:
            errors = offset_errors(p, prior, rows.data, groups, FREEDOM)
            known = [f(p, prior) for f in (pooling.center, pooling.offsets, pooling.noise_scale)]
            widths = refined_widths(p, errors, prior, groups)
            prior = _prior(rows, dataclasses.replace(rows.base, widths=widths), held)
            first = pooling.located(prior, *known)
        p = descend(prior, rows.data, groups, progress=_part(progress, i, total), first=first)
    assert p is not None, "a fit has one round at least"
    return p, prior


def _part(
    progress: Callable[[float, float], None] | None, i: int, total: int
) -> Callable[[float, float], None]:
    """What reports the progress of one of several rounds."""

    def report(done: float, loss: float) -> None:
        if progress is not None:
            progress((i + done) / total, loss)

    return report


def _described(name: str, p: Parameters, prior: Prior, rows: _Rows, seen: Cases) -> Profile:
    """The profile of fitted parameters, with what is known of its doubt; seen: rows that are not
    held out."""
    base, used, groups = rows.base, rows.used, rows.groups
    found = laplace(p, prior, rows.data, groups, FREEDOM)
    widths = base.widths
    if rows.fresh:
        widths = refined_widths(p, found.offset_errors, prior, groups)
    # what old rows miss by is in the base's scatter
    weights = np.where(np.arange(len(rows.every)) < len(used), rows.weights, 0.0)
    missed = misses(found.rows, rows.every, weights, base.seen)
    return dataclasses.replace(
        profile_of(name, p, found, prior, groups, base, widths, used, rows.old.said),
        footprints={**base.footprints, **fit_footprints(seen, base.footprints)},
        scatter=scatter(missed, base, fresh=rows.fresh),
        seen=known_places(base, used),
    )
