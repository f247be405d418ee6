"""Fit the coefficients to measured step times by gradient descent: Student-t noise, priors, Adam and then L-BFGS from many starts.

The result is a `Profile`. Deterministic for a seed. Rows are judged by `ln(predicted / measured)`; a profile to start from turns a dozen
rows into a usable fit, because whatever the rows do not determine stays where the profile has it, or, of a stack that it knows, where its
own rows have it (`calibration.replay`).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import metadata
from typing import Any, NamedTuple, cast

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from calibration import pooling
from calibration.footprints import fit_footprints
from calibration.padding import padded_groups, padded_rows, without_padding
from calibration.pooling import Groups, Parameters, Prior
from calibration.replay import NOTHING, WEIGHT, replay, together
from calibration.traces import Cases
from calibration.uncertainty import Laplace, laplace
from calibration.uncertainty.scatter import known_places, misses, scatter
from dmodel.coefficients import NAMES, from_unconstrained
from dmodel.profiles import GROUPINGS, Profile, default_profile
from dmodel.profiles.record import pair_key
from dmodel.step import step_time
from dmodel.sweep import quick_to_compile
from dmodel.types import Array, InputError, enable_float64

FREEDOM = 4.0
"""Degrees of freedom of the Student-t noise: published tables hold outliers of five and more scales."""

FLAG_WEIGHTS = {"derived-from-tflops": 0.5, "offload": 0.0}
"""Weight of flagged rows in a fit: times derived from rounded TFLOP/s carry a convention; host-side optimizers are set apart, because the
model has no mechanism for them. Rows that are slow for no listed reason count in full: the noise has heavy tails, and most of those found
so far had a mechanism (`coefficients.SPECS["rendezvous"]`)."""

COMPOSED_ROWS = 75.0
"""Rows flagged `composed` are sums of few measured parts: together they count as this many at most, however many there are."""

ADAM_STEPS, LBFGS_STEPS = 250, 120

SCATTER = 0.8
"""Spread of the starts around the prior mean, in prior standard deviations."""

SLOW_HOST = 2.0
"""How many prior standard deviations above its mean the time between launches starts, for all stacks together. Where the device decides,
that time has no slope, so a fit that begins there never learns which rows wait for their host, and lets other coefficients stand in for
it (loss of all rows after a round: −2,684 from the mean, −2,784 to −2,794 from 2 to 3 above). Where the host decides, it falls until it
fits."""

PSEUDO = 2.0
"""How many members the width before any fit counts for, when widths are learned."""


class Data(NamedTuple):
    """Rows of a fit: records stacked on the last axis, measured step times [s], weights, the members `[G, row]`, the stack."""

    system: Any
    model: Any
    plan: Any
    log_measured: Array
    weight: Array
    of: Array
    stack_of: Array


class Result(NamedTuple):
    """What the optimizer returns: parameters, final loss of every start, and the uncertainty at the best."""

    parameters: Parameters
    losses: np.ndarray
    laplace: Laplace


def log_ratio(z: Array, data: Data) -> jax.Array:
    """ln(predicted / measured) of every row under its unconstrained coefficients `[C, row]`."""
    predicted = step_time(data.system, data.model, data.plan, from_unconstrained(z)).total
    return jnp.log(predicted) - data.log_measured


def negative_log_posterior(p: Parameters, prior: Prior, data: Data) -> jax.Array:
    """Student-t misfit of the rows plus the prior's penalty.

    `Σ_i w_i [ ln s + (ν + 1)/2 · ln(1 + r_i² / (ν s²)) ] + ½ |θ|²` with r the log ratio and s the scale of the row's stack.
    """
    r = log_ratio(pooling.rows_of(p, prior, data.of), data)
    scale = pooling.noise_scale(p, prior)[jnp.asarray(data.stack_of)]
    misfit = jnp.log(scale) + 0.5 * (FREEDOM + 1.0) * jnp.log1p((r / scale) ** 2 / FREEDOM)
    return (data.weight * misfit).sum() + pooling.penalty(p)


def _all_finite(tree: Any) -> bool:
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(tree))


Losses = Callable[[Parameters, Prior, Data], tuple[jax.Array, Parameters]]

FEW = 512
"""Rows times starts up to which compiling quickly saves more than running quickly: a dozen rows of a stack that the base does not know fit
in seconds, not in half a minute."""


@cache
def _losses(few: bool) -> Losses:
    """Loss and gradient of every start: the one compiled function that both optimizers call."""
    every = jax.vmap(jax.value_and_grad(negative_log_posterior), in_axes=(0, None, None))
    return jax.jit(every, compiler_options=quick_to_compile() if few else None)


@partial(jax.jit, static_argnames="steps")
def _adam_update(grads: Any, state: Any, p: Any, steps: int) -> tuple:
    updates, state = jax.vmap(_adam(steps).update)(grads, state, p)
    return optax.apply_updates(p, updates), state


def _adam(steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(0.08, steps, 0.05))


@jax.jit
def _lbfgs_direction(grads: Any, state: Any, p: Any) -> tuple:
    """Preconditioned descent direction of every start, its slope, and the new memory."""
    ascent, state = jax.vmap(optax.scale_by_lbfgs(memory_size=20).update)(grads, state, p)
    direction = jax.tree.map(jnp.negative, ascent)
    return direction, jax.vmap(optax.tree.vdot)(direction, grads), state


@jax.jit
def _moved(p: Parameters, direction: Parameters, length: Array) -> Parameters:
    """p + length · direction, a length for every start."""
    return jax.vmap(lambda x, d, t: optax.tree.add_scale(x, t, d))(p, direction, length)


def _descend(losses: Callable, p: Parameters, steps: int, progress: Callable[[float, float], None]) -> Parameters:
    """Adam, all starts at once."""
    state: Any = jax.vmap(_adam(steps).init)(cast(Any, p))
    for i in range(steps):
        loss, grads = losses(p)
        p, state = _adam_update(grads, state, p, steps)
        if i % 10 == 9:
            progress((i + 1) / steps, float(loss.min()))
    return p


def _polish(losses: Callable, p: Parameters, steps: int, progress: Callable[[float, float], None]) -> tuple[Parameters, jax.Array]:
    """L-BFGS with an Armijo search by halving, all starts in step; stops when no start gains more than 1e-9 of its loss."""
    state: Any = jax.vmap(optax.scale_by_lbfgs(memory_size=20).init)(cast(Any, p))
    loss, grads = losses(p)
    for i in range(steps):
        direction, slope, state = _lbfgs_direction(grads, state, p)
        length, accepted = jnp.ones_like(loss), jnp.zeros(loss.shape, bool)
        for _ in range(12):
            trial, trial_grads = losses(_moved(p, direction, length))
            accepted = trial <= loss + 1e-4 * length * slope
            if bool(accepted.all()):
                break
            length = jnp.where(accepted, length, 0.5 * length)
        length = jnp.where(accepted, length, 0.0)
        gain = jnp.where(accepted, loss - trial, 0.0)
        p = _moved(p, direction, length)
        loss, grads = (trial, trial_grads) if bool(accepted.all()) else losses(p)
        if i % 10 == 9:
            progress((i + 1) / steps, float(loss.min()))
        if float((gain / jnp.abs(loss)).max()) < 1e-9:
            break
    return p, loss


def _settled(losses: Callable, p: Parameters) -> Parameters:
    """Parameters at the prior mean wherever no row has a slope, so that the prior's alone, `θ`, is the whole: where descents were scattered
    they come near it only."""
    return jax.tree.map(lambda x, slope: jnp.where(slope == x, 0.0, x), p, losses(p)[1])


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
) -> Result:
    """Adam and then L-BFGS from many starts by vmap; start 0 is the prior mean, the others scatter around it; the best one wins.

    Args:
      first: parameters to start from besides; None = nothing is known.

    Raises:
      FloatingPointError: the loss is not finite at any start.
    """
    rows, wide = padded_rows(data), padded_groups(prior)
    leaves, tree = jax.tree.flatten(pooling.start(wide, len(NAMES)))
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    spread = [SCATTER * jax.random.normal(k, (starts, *x.shape)).at[0].set(0.0) for k, x in zip(keys, leaves, strict=True)]
    spread[0] = spread[0].at[:, NAMES.index("launch")].add(SLOW_HOST)
    if first is not None:
        known = [jnp.zeros(x.shape).at[: len(y)].set(y) for x, y in zip(leaves, jax.tree.leaves(first), strict=True)]
        spread = [jnp.concatenate([x, y[None]]) for x, y in zip(spread, known, strict=True)]
    p = jax.tree.unflatten(tree, spread)
    compiled = _losses(len(spread[0]) * len(rows.weight) <= FEW)
    p = _descend(lambda q: compiled(q, wide, rows), p, ADAM_STEPS, lambda done, loss: progress(0.6 * done, loss))
    p, losses = _polish(lambda q: compiled(q, wide, rows), p, polish, lambda done, loss: progress(0.6 + 0.4 * done, loss))
    p = _settled(lambda q: compiled(q, wide, rows), p)
    best = without_padding(jax.tree.map(lambda x: x[int(jnp.nanargmin(losses))], p), groups)
    if not _all_finite(best):
        raise FloatingPointError("the fit left the finite numbers; this is a defect of dmodel: please report the traces that caused it")
    progress(1.0, float(losses.min()))
    return Result(best, np.asarray(losses), laplace(best, prior, rows, groups, log_ratio, FREEDOM))


def weights_of(flags: np.ndarray) -> np.ndarray:
    """Weight of each row by its flags: the least of `FLAG_WEIGHTS` that applies, and for composed rows their share of `COMPOSED_ROWS`."""
    words = [str(flag).replace(";", " ").split() for flag in flags]
    composed = np.array(["composed" in w for w in words])
    weight = np.array([min((FLAG_WEIGHTS.get(f, 1.0) for f in w), default=1.0) for w in words])
    return np.where(composed, weight * min(1.0, COMPOSED_ROWS / max(composed.sum(), 1)), weight)


def refined_widths(result: Result, prior: Prior, groups: Groups) -> dict[str, np.ndarray]:
    """Width of each coefficient among the members of each grouping, learned from the fitted ones (empirical Bayes).

    `τ² = (n₀ τ₀² + Σ_members (v² + var v)) / (n₀ + n)`, with `PSEUDO` members n₀ of the width before any fit.
    """
    width = np.diagonal(prior.factor, axis1=1, axis2=2)
    offset = np.asarray(pooling.mixed(result.parameters, prior)[1])
    second = width**2 * (offset**2 + result.laplace.offset_errors[: len(width)] ** 2)
    of = np.array([g for g, _ in groups.members])
    found = {}
    for grouping, before in pooling.fresh_widths().items():
        mine = second[of == grouping]
        found[grouping] = np.sqrt((PSEUDO * before**2 + mine.sum(0)) / (PSEUDO + len(mine)))
    return found


def rows_of_fit(used: Cases, groups: Groups, weight: np.ndarray) -> Data:
    """The data of a fit of some rows."""
    system, model, plan = jax.tree.map(jnp.asarray, (used.system, used.model, used.plan))
    return Data(
        system=system,
        model=model,
        plan=plan,
        log_measured=jnp.log(jnp.asarray(used.labels.step_time_s)),
        weight=jnp.asarray(weight),
        of=jnp.asarray(groups.of),
        stack_of=jnp.asarray(groups.stack_of),
    )


def fit(
    cases: Cases,
    base: Profile | None = None,
    *,
    seed: int = 0,
    held_out: np.ndarray | None = None,
    starts: int = 8,
    progress: Callable[[float, float], None] | None = None,
    name: str = "fitted",
    rounds: int = 2,
    held: Mapping[str, float] | None = None,
    polish: int = LBFGS_STEPS,
) -> Profile:
    """Fit a profile to measured step times.

    Args:
      cases: rows as records, from `calibration.traces.to_cases`.
      base: profile to start from; None fits everything from the default priors, in `rounds` rounds that learn the widths among stacks.
        Of stacks that it knows its own rows are fitted beside the new ones, at less weight (`calibration.replay`).
      seed: of the scattered starts. held_out: rows to keep out, `[row]` bool. starts: how many descents.
      progress: called with the share done and the loss. name: of the result. rounds: of a fit without a base.
      held: coefficients that stay at a value for all rows, by name.
      polish: steps of L-BFGS at most, of each round.

    Returns:
      A profile with offsets for every accelerator and stack seen (those of the base included).

    Raises:
      InputError: no row is left to fit.
    """
    enable_float64()
    report = progress or (lambda done, loss: None)
    kept = np.ones(len(cases), bool) if held_out is None else ~np.asarray(held_out)
    kept &= (weights_of(cases.labels.flag) > 0.0) & np.isfinite(cases.labels.step_time_s)
    if not kept.any():
        raise InputError("nothing to fit: no usable row with a time and a positive weight is left; see which rows were set aside, and why")
    used = cases.take(kept)
    old = NOTHING if base is None else replay(used, base, cases.labels.fingerprint)
    every = together(used, old.rows)
    weights = _weights(cases.labels.flag, kept, old.rows)
    groups = pooling.groups_of(every.labels.accelerator.tolist(), every.labels.stack.tolist())
    data = rows_of_fit(every, groups, weights)
    start_from = base or default_profile()
    prior = pooling.holding(pooling.prior_for(groups, start_from, fresh=base is None, told=old.families), held or {})
    total, first = rounds if base is None else 1, None
    for i in range(total):
        result = optimize(
            prior,
            data,
            groups,
            seed=seed,
            starts=starts,
            polish=polish,
            progress=lambda done, loss, i=i: report((i + done) / total, loss),
            first=first,
        )
        if base is None:
            widths = refined_widths(result, prior, groups)
            if i + 1 < total:
                found = [f(result.parameters, prior) for f in (pooling.center, pooling.offsets, pooling.noise_scale)]
                prior = pooling.holding(pooling.prior_for(groups, dataclasses.replace(start_from, widths=widths), fresh=True), held or {})
                first = pooling.located(prior, *found)
        else:
            widths = base.widths
    seen = cases if held_out is None else cases.take(~np.asarray(held_out))
    footprints = {**start_from.footprints, **fit_footprints(seen, start_from.footprints)}
    # what old rows miss by is in the base's scatter
    missed = misses(result.laplace.rows, every, np.where(np.arange(len(every)) < len(used), weights, 0.0), start_from.seen)
    return dataclasses.replace(
        _profile(name, result, prior, groups, start_from, widths, used, old.said),
        footprints=footprints,
        scatter=scatter(missed, start_from, fresh=base is None),
        seen=known_places(start_from, used),
    )


def _weights(flags: np.ndarray, kept: np.ndarray, old: Cases | None) -> np.ndarray:
    """Weights of the kept rows, then of those replayed; composed rows of both share what they count for."""
    told = flags[:0] if old is None else old.labels.flag
    weight = weights_of(np.append(flags, told))
    return np.append(weight[: len(flags)][kept], WEIGHT * weight[len(flags) :])


def _profile(
    name: str, result: Result, prior: Prior, groups: Groups, base: Profile, widths: Mapping[str, np.ndarray], used: Cases, said: str
) -> Profile:
    """The fitted parameters as a profile, with its data and versions."""
    center, moved = (np.asarray(f(result.parameters, prior)) for f in (pooling.center, pooling.offsets))
    offsets = {g: dict(base.offsets[g]) for g in GROUPINGS}
    for (grouping, member), offset in list(zip(groups.members, moved, strict=True))[1:]:
        offsets[grouping][member] = offset
    noise = np.asarray(pooling.noise_scale(result.parameters, prior))
    frozen = not np.any(prior.center_width)
    sources, counts = np.unique(used.labels.source, return_counts=True)
    return Profile(
        name=name,
        description=f"fitted to {len(used)} rows of {len(sources)} sources, starting from {base.name}{said}",
        accelerators=tuple(sorted({*base.accelerators, *map(str, used.labels.accelerator)})),
        stacks=tuple(sorted({*base.stacks, *map(str, used.labels.stack)})),
        center=center,
        offsets=offsets,
        widths=widths,
        standard_errors=base.standard_errors if frozen else result.laplace.center_errors * np.asarray(prior.center_width),
        covariance=base.covariance if frozen else result.laplace.center_covariance * np.outer(prior.center_width, prior.center_width),
        stack_covariances={**base.stack_covariances, **result.laplace.totals},
        pair_covariances={**base.pair_covariances, **{pair_key(*pair): c for pair, c in result.laplace.pairs.items()}},
        data=(*base.data, *({"source": str(s), "rows": int(n)} for s, n in zip(sources, counts, strict=True))),
        fitted_rows=(*base.fitted_rows, *map(str, used.labels.fingerprint)),
        noise={**base.noise, **{s: float(x) for s, x in zip(groups.stacks, noise, strict=True)}},
        versions={
            "python": sys.version.split()[0],
            "jax": jax.__version__,
            "flax": flax.__version__,
            "optax": optax.__version__,
            "dmodel": metadata.version("dmodel") if _installed("dmodel") else "source",
        },
    )


def _installed(package: str) -> bool:
    return any(d.metadata["Name"] == package for d in metadata.distributions(name=package))
