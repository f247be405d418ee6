"""Fit the coefficients to measured step times by gradient descent: Student-t noise, priors, Adam
and then L-BFGS from many starts.

The result is a `Profile`. Deterministic for a seed. Rows are judged by `ln(predicted / measured)`;
a profile to start from turns a dozen rows into a usable fit, because whatever the rows do not
determine stays where the profile has it, or, of a stack that it knows, where its own rows have it
(`calibration.replay`).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from itertools import pairwise
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from calibration import pooling
from calibration.descent import End, Loss, descents
from calibration.footprints import fit_footprints
from calibration.padding import padded_groups, padded_rows, without_padding
from calibration.pooling import Groups, Parameters, Prior
from calibration.replay import NOTHING, WEIGHT, replay, together
from calibration.traces import Cases
from calibration.uncertainty import Laplace, laplace, narrowing, offset_errors
from calibration.uncertainty.scatter import known_places, misses, scatter
from dmodel.coefficients import NAMES, from_unconstrained
from dmodel.profiles import GROUPINGS, Profile, default_profile
from dmodel.profiles.record import pair_key
from dmodel.step import step_time
from dmodel.sweep import quick_to_compile
from dmodel.types import Array, InputError, enable_float64

FREEDOM = 4.0
"""Degrees of freedom of the Student-t noise: published tables hold outliers of five and more
scales."""

FLAG_WEIGHTS = {"derived-from-tflops": 0.5, "offload": 0.0}
"""Weight of flagged rows in a fit: times derived from rounded TFLOP/s carry a convention; host-side
optimizers are set apart, because the model has no mechanism for them. Rows that are slow for no
listed reason count in full: the noise has heavy tails, and most of those found so far had a
mechanism (`coefficients.SPECS["rendezvous"]`)."""

COMPOSED_ROWS = 75.0
"""Rows flagged `composed` are sums of few measured parts: together they count as this many at most,
however many there are."""

ADAM_STEPS, LBFGS_STEPS = 250, 120

SCATTER = 0.8
"""Spread of the starts around the prior mean, in prior standard deviations."""

SLOW_HOST = 2.1
"""How many prior standard deviations above its mean the time between launches starts, at 22
latencies, for all stacks together. Where the device decides, that time has no slope, so a fit that
begins there never learns which rows wait for their host, and lets other coefficients stand in for
it (loss of all rows after a round: −2,684 from 2 latencies, −2,784 to −2,794 from 22 to 73). Where
the host decides, it falls until it fits."""

SLOW_MEETING = 0.7
"""How many prior standard deviations above its mean the wait of hosts for each other (`rendezvous`)
begins, in one more start of a fit from a base, in every group that may move. Where hosts have time
it has no slope, like launching: in three of 30 draws of twelve rows of the nanotron sweep no
scattered start came near the 40 times that its pipelines take, whose rows passed for outliers (loss
−8.7 for −32.2)."""

STARTS, STARTS_FROM_BASE = 8, 12
"""Descents of a fit, and of one from a base, whose dozen rows have more places to end in and cost
less. Of ten draws of twelve rows of B200, other chips of its stacks known, four scattered starts
left three at places of twice the error (5.2 / 6.9 %, worst draw 22.9; by the most likely place of
twelve 3.6 / 7.0 %, 10.7)."""

PSEUDO = 2.0
"""How many members the width before any fit counts for, when widths are learned."""


class Data(NamedTuple):
    """Rows of a fit: records stacked on the last axis, measured step times [s], weights, the
    members `[G, row]`, the stack."""

    system: Any
    model: Any
    plan: Any
    log_measured: Array
    weight: Array
    of: Array
    stack_of: Array


def log_ratio(z: Array, data: Data) -> jax.Array:
    """ln(predicted / measured) of every row under its unconstrained coefficients `[C, row]`."""
    predicted = step_time(data.system, data.model, data.plan, from_unconstrained(z)).total
    return jnp.log(predicted) - data.log_measured


def negative_log_posterior(p: Parameters, prior: Prior, data: Data) -> jax.Array:
    """Student-t misfit of the rows plus the prior's penalty.

    `Σ_i w_i [ ln s + (ν + 1)/2 · ln(1 + r_i² / (ν s²)) ] + ½ |θ|²` with r the log ratio and s the
    scale of the row's stack.
    """
    r = log_ratio(pooling.rows_of(p, prior, data.of), data)
    scale = pooling.noise_scale(p, prior)[jnp.asarray(data.stack_of)]
    misfit = jnp.log(scale) + 0.5 * (FREEDOM + 1.0) * jnp.log1p((r / scale) ** 2 / FREEDOM)
    return (data.weight * misfit).sum() + pooling.penalty(p)


FEW = 512
"""Rows times starts up to which compiling quickly saves more than running quickly: a dozen rows of
a stack that the base does not know fit in seconds, not in half a minute."""


@cache
def _compiled(few: bool) -> Callable[[Parameters, Prior, Data], tuple[jax.Array, Parameters]]:
    """Loss and gradient: the one compiled function that both optimizers call."""
    return jax.jit(
        jax.value_and_grad(negative_log_posterior),
        compiler_options=quick_to_compile() if few else None,
    )


def _settled(loss: Loss, p: Parameters) -> Parameters:
    """Parameters at the prior mean wherever no row has a slope, so that the prior's alone, `θ`, is
    the whole: where descents were scattered they come near it only."""
    return jax.tree.map(lambda x, slope: jnp.where(slope == x, 0.0, x), p, loss(p)[1])


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
) -> Parameters:
    """Descend from many starts; start 0 is the prior mean, with slow hosts where the center is
    free, the others scatter around it; the least loss wins. A fit from a base has one start more,
    start 0 with hosts that wait for each other (`SLOW_MEETING`), and its most likely place wins
    (`_likeliest`).

    Args:
      first: parameters to start from besides; None = nothing is known.

    Raises:
      FloatingPointError: the loss is not finite at any start.
    """
    rows, wide = padded_rows(data), jax.device_put(padded_groups(prior))
    leaves, tree = jax.tree.flatten(pooling.start(wide, len(NAMES)))
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    spread = [
        SCATTER * np.array(jax.random.normal(k, (starts, *x.shape)))
        for k, x in zip(keys, leaves, strict=True)
    ]
    for x in spread:
        x[0] = 0.0
    spread[0][:, NAMES.index("launch")] += SLOW_HOST
    if not prior.fresh:
        waiting = [x[0].copy() for x in spread]
        waiting[1][:, NAMES.index("rendezvous")] = SLOW_MEETING
        spread = [np.concatenate([x, y[None]]) for x, y in zip(spread, waiting, strict=True)]
    if first is not None:
        known = [np.zeros(x.shape) for x in leaves]
        for x, y in zip(known, jax.tree.leaves(first), strict=True):
            x[: len(y)] = y
        spread = [np.concatenate([x, y[None]]) for x, y in zip(spread, known, strict=True)]
    begin = [jax.tree.unflatten(tree, each) for each in zip(*spread, strict=True)]
    compiled = _compiled(starts * len(rows.weight) <= FEW)

    def loss(p: Parameters) -> tuple[jax.Array, Parameters]:
        return compiled(p, wide, rows)

    ends = descents(loss, begin, adam=ADAM_STEPS, lbfgs=polish, progress=progress)
    ends = sorted((end for end in ends if np.isfinite(end.loss)), key=lambda end: end.loss)
    if not ends:
        raise FloatingPointError(
            "the fit left the finite numbers; this is a defect of dmodel: please report the "
            "traces that caused it"
        )
    places = (
        End(without_padding(_settled(loss, end.parameters), groups), end.loss) for end in ends
    )
    return next(places).parameters if prior.fresh else _likeliest(list(places), prior, rows, groups)


SAME = 1e-3
"""Losses closer than this are of one place."""


def _likeliest(places: list[End], prior: Prior, rows: Data, groups: Groups) -> Parameters:
    """The place with the least loss and `uncertainty.narrowing` together: a dozen rows may be met
    best, by a hair, in a corner where nothing beside it meets them.

    Args:
      places: by their loss, the least first.
    """
    apart = [
        places[0],
        *(place for before, place in pairwise(places) if place.loss - before.loss > SAME),
    ]
    found = np.array(
        [
            place.loss + narrowing(place.parameters, prior, rows, groups, log_ratio, FREEDOM)
            for place in apart
        ]
    )
    return apart[int(np.where(np.isfinite(found), found, np.inf).argmin())].parameters


def weights_of(flags: np.ndarray) -> np.ndarray:
    """Weight of each row by its flags: the least of `FLAG_WEIGHTS` that applies, and for composed
    rows their share of `COMPOSED_ROWS`."""
    words = [str(flag).replace(";", " ").split() for flag in flags]
    composed = np.array(["composed" in w for w in words])
    weight = np.array([min((FLAG_WEIGHTS.get(f, 1.0) for f in w), default=1.0) for w in words])
    return np.where(composed, weight * min(1.0, COMPOSED_ROWS / max(composed.sum(), 1)), weight)


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
    offset = np.asarray(pooling.mixed(p, prior)[1])
    second = width**2 * (offset**2 + errors[: len(width)] ** 2)
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
    starts: int | None = None,
    progress: Callable[[float, float], None] | None = None,
    name: str = "fitted",
    rounds: int = 2,
    held: Mapping[str, float] | None = None,
    polish: int = LBFGS_STEPS,
) -> Profile:
    """Fit a profile to measured step times.

    Args:
      cases: rows as records, from `calibration.traces.to_cases`.
      base: profile to start from; None fits everything from the default priors, in `rounds` rounds
        that learn the widths among stacks.
        Of stacks that it knows its own rows are fitted beside the new ones, at less weight
        (`calibration.replay`).
      seed: of the scattered starts. held_out: rows to keep out, `[row]` bool.
      starts: how many descents, and one more from a base; None = `STARTS`, from a base
        `STARTS_FROM_BASE`.
      progress: called with the share done and the loss. name: of the result. rounds: of a fit
        without a base.
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
        raise InputError(_nothing_left(cases, held_out))
    used = cases.take(kept)
    old = NOTHING if base is None else replay(used, base, cases.labels.fingerprint)
    every = together(used, old.rows)
    weights = _weights(cases.labels.flag, kept, old.rows)
    groups = pooling.groups_of(every.labels.accelerator.tolist(), every.labels.stack.tolist())
    data = rows_of_fit(every, groups, weights)
    padded = padded_rows(data)
    start_from = base or default_profile()
    prior = pooling.holding(
        pooling.prior_for(groups, start_from, fresh=base is None, told=old.families), held or {}
    )
    total, first = rounds if base is None else 1, None
    for i in range(total):
        p = optimize(
            prior,
            data,
            groups,
            seed=seed,
            starts=starts if starts is not None else STARTS if base is None else STARTS_FROM_BASE,
            polish=polish,
            progress=lambda done, loss, i=i: report((i + done) / total, loss),
            first=first,
        )
        if i + 1 < total:
            widths = refined_widths(
                p, offset_errors(p, prior, padded, groups, log_ratio, FREEDOM), prior, groups
            )
            known = [f(p, prior) for f in (pooling.center, pooling.offsets, pooling.noise_scale)]
            prior = pooling.holding(
                pooling.prior_for(
                    groups, dataclasses.replace(start_from, widths=widths), fresh=True
                ),
                held or {},
            )
            first = pooling.located(prior, *known)
    found = laplace(p, prior, padded, groups, log_ratio, FREEDOM)
    widths = refined_widths(p, found.offset_errors, prior, groups) if base is None else base.widths
    seen = cases if held_out is None else cases.take(~np.asarray(held_out))
    footprints = {**start_from.footprints, **fit_footprints(seen, start_from.footprints)}
    # what old rows miss by is in the base's scatter
    missed = misses(
        found.rows,
        every,
        np.where(np.arange(len(every)) < len(used), weights, 0.0),
        start_from.seen,
    )
    return dataclasses.replace(
        _profile(name, p, found, prior, groups, start_from, widths, used, old.said),
        footprints=footprints,
        scatter=scatter(missed, start_from, fresh=base is None),
        seen=known_places(start_from, used),
    )


def _nothing_left(cases: Cases, held_out: np.ndarray | None) -> str:
    """Why no row is left to fit, and what to do: rows held out, those whose flag leaves them out,
    those without a time."""
    flags, n = cases.labels.flag, len(cases)
    held = np.zeros(n, bool) if held_out is None else np.asarray(held_out, bool)
    flagged = ~held & (weights_of(flags) == 0.0)
    untimed = int((~held & ~flagged).sum())
    words = {word for flag in flags[flagged] for word in str(flag).replace(";", " ").split()}
    names = ", ".join(sorted(word for word in words if FLAG_WEIGHTS.get(word) == 0.0))
    why, remedies = [], []
    if held.any():
        groups = len(set(cases.labels.group[held].tolist()))
        why.append(
            f"{held.sum()} are held out (whole groups of model, accelerator and devices: here "
            f"{groups})"
        )
        remedies.append("hold out a smaller share, or add rows of other groups")
    if flagged.any():
        why.append(f"{flagged.sum()} are flagged {names}, which is judged but never fitted")
        remedies.append(f"add rows without the flag {names}")
    if untimed:
        why.append(f"{untimed} have no measured time")
        remedies.append("fill step_time_s or tokens_per_s_per_accel")
    return (
        f"nothing to fit: of {n} usable rows {', '.join(why)}; expected at least one row that has "
        "a time, is not held out and has no such "
        f"flag: {'; '.join(remedies)}"
    )


def _weights(flags: np.ndarray, kept: np.ndarray, old: Cases | None) -> np.ndarray:
    """Weights of the kept rows, then of those replayed; composed rows of both share what they count
    for."""
    told = flags[:0] if old is None else old.labels.flag
    weight = weights_of(np.append(flags, told))
    return np.append(weight[: len(flags)][kept], WEIGHT * weight[len(flags) :])


def _profile(
    name: str,
    p: Parameters,
    found: Laplace,
    prior: Prior,
    groups: Groups,
    base: Profile,
    widths: Mapping[str, np.ndarray],
    used: Cases,
    said: str,
) -> Profile:
    """The fitted parameters as a profile, with its data and versions."""
    center, moved = (np.asarray(f(p, prior)) for f in (pooling.center, pooling.offsets))
    offsets = {g: dict(base.offsets[g]) for g in GROUPINGS}
    for (grouping, member), offset in list(zip(groups.members, moved, strict=True))[1:]:
        offsets[grouping][member] = offset
    noise = np.asarray(pooling.noise_scale(p, prior))
    frozen = not np.any(prior.center_width)
    sources, counts = np.unique(used.labels.source, return_counts=True)
    return Profile(
        name=name,
        description=(
            f"fitted to {len(used)} rows of {len(sources)} sources, starting from {base.name}{said}"
        ),
        accelerators=tuple(sorted({*base.accelerators, *map(str, used.labels.accelerator)})),
        stacks=tuple(sorted({*base.stacks, *map(str, used.labels.stack)})),
        own=() if prior.fresh else tuple(sorted(set(map(str, used.labels.stack)))),
        center=center,
        offsets=offsets,
        widths=widths,
        standard_errors=base.standard_errors
        if frozen
        else found.center_errors * np.asarray(prior.center_width),
        covariance=base.covariance
        if frozen
        else found.center_covariance * np.outer(prior.center_width, prior.center_width),
        stack_covariances={**base.stack_covariances, **found.totals},
        pair_covariances={
            **base.pair_covariances,
            **{pair_key(*pair): c for pair, c in found.pairs.items()},
        },
        data=(
            *base.data,
            *({"source": str(s), "rows": int(n)} for s, n in zip(sources, counts, strict=True)),
        ),
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
