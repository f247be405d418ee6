"""Partial pooling: which coefficients a row shares with which others, and how far they may differ.

A row's coefficients, in the unconstrained space, are `center + u[accelerator] + v[stack]`: u moves what belongs to hardware, v what belongs
to software (a coefficient of scope "both" moves with either). Everything is fitted in units of its prior standard deviation, so one step
size suits all directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from dmodel.coefficients import SPECS
from dmodel.profiles import Profile
from dmodel.types import Array

HARDWARE = np.array([s.scope in ("hardware", "both") for s in SPECS.values()], float)
SOFTWARE = np.array([s.scope in ("software", "both") for s in SPECS.values()], float)

ACCELERATOR_SHARE, STACK_SHARE = 0.9, 0.6
"""Widths among accelerators and stacks before any fit, as a share of a coefficient's prior width; `refine_widths` learns them."""

KNOWN_INFLATION = 3.0
"""How many of its standard errors a stack that the base knows may move: releases differ by more than the rows of one of them say. With ten
rows of groups held out of each stack of the published table, 1, 2, 3 and 5 left median errors of 5.0, 4.3, 4.2 and 3.9 % (geometric mean;
6.5 % without a fit, 4.7 % when nothing is taken as known); the more it may move, the more a few odd rows lead it."""

NOISE, NOISE_WIDTH = 0.03, 0.5
"""Prior of the Student-t scale of ln(predicted / measured) of a stack: median, and standard deviation of its logarithm. Releases of one
published table that repeat a configuration differ by 4 % in the median."""


class Groups(NamedTuple):
    """Members of each grouping and the member of every row: `accelerators[accelerator_of[i]]` is that of row i."""

    accelerators: tuple[str, ...]
    stacks: tuple[str, ...]
    accelerator_of: np.ndarray
    stack_of: np.ndarray


def groups_of(accelerators: Sequence[str], stacks: Sequence[str]) -> Groups:
    """Index the rows by accelerator and stack, names sorted."""
    a, ia = np.unique(np.asarray(accelerators, str), return_inverse=True)
    s, js = np.unique(np.asarray(stacks, str), return_inverse=True)
    return Groups(tuple(map(str, a)), tuple(map(str, s)), ia.reshape(-1), js.reshape(-1))


class Prior(struct.PyTreeNode, kw_only=True):
    """Means, and standard deviations (0 freezes a direction): center `[C]`, accelerator `[A, C]`, stack `[S, C]`; of a stack the Cholesky
    factor of its covariance, `[S, C, C]`. noise: median of the Student-t scale by stack `[S]`."""

    center: Array
    center_width: Array
    accelerator: Array
    accelerator_width: Array
    stack: Array
    stack_factor: Array
    noise: Array


class Parameters(struct.PyTreeNode, kw_only=True):
    """What is fitted, in prior standard deviations from the prior mean: center `[C]`, accelerator `[A, C]`, stack `[S, C]`, noise `[S]`."""

    center: Array
    accelerator: Array
    stack: Array
    noise: Array


def prior_for(groups: Groups, base: Profile, fresh: bool) -> Prior:
    """The prior of a fit.

    A stack that the base knows moves by what is still open about it (`stack_covariances`, `KNOWN_INFLATION` standard errors), and does not
    move what it shares with others. A new one moves the center by its standard errors, the accelerator's offset, and its own offset by the
    width among stacks.

    Args:
      base: profile to start from: its center, the offsets it knows and its widths.
      fresh: the base is only the prior of a fit from nothing, in which everything moves freely.
    """
    n = len(base.center)
    full = np.array([s.width for s in SPECS.values()])
    known = np.array([s in base.stack_covariances and not fresh for s in groups.stacks])
    new = STACK_SHARE * full * SOFTWARE if fresh else base.widths * SOFTWARE
    factors = [_factor(base.stack_covariances[s]) if k else np.diag(new) for s, k in zip(groups.stacks, known, strict=True)]
    # an accelerator moves when a new stack runs on it, or when the base has never seen it
    moves = [
        a not in base.offsets["accelerator"] or not known[groups.stack_of[groups.accelerator_of == i]].all()
        for i, a in enumerate(groups.accelerators)
    ]

    def mean(kind: str, members: Sequence[str]) -> np.ndarray:
        return np.stack([np.asarray(base.offsets[kind].get(m, np.zeros(n))) for m in members])

    return Prior(
        center=base.center,
        center_width=base.standard_errors * (not known.all()),
        accelerator=mean("accelerator", groups.accelerators),
        accelerator_width=np.array(moves, float)[:, None] * ACCELERATOR_SHARE * full * HARDWARE,
        stack=mean("stack", groups.stacks),
        stack_factor=np.stack(factors),
        noise=np.array([NOISE if fresh else base.noise.get(s, NOISE) for s in groups.stacks]),
    )


def _factor(covariance: np.ndarray) -> np.ndarray:
    """Cholesky factor of a known stack's covariance, inflated; a little is added for what rounding on disk takes from its eigenvalues."""
    n = len(covariance)
    return KNOWN_INFLATION * np.linalg.cholesky(covariance + 1e-5 * np.trace(covariance) / n * np.eye(n))


def start(prior: Prior, n: int) -> Parameters:
    """The prior mean as parameters."""
    a, s = len(prior.accelerator), len(prior.stack)  # type: ignore[arg-type]
    return Parameters(center=jnp.zeros(n), accelerator=jnp.zeros((a, n)), stack=jnp.zeros((s, n)), noise=jnp.zeros(s))


def vectors(p: Parameters, prior: Prior) -> tuple[Array, Array, Array]:
    """Center `[C]` and offsets `[A, C]`, `[S, C]` in the unconstrained space."""
    return (
        prior.center + prior.center_width * p.center,
        prior.accelerator + prior.accelerator_width * p.accelerator,
        prior.stack + jnp.einsum("scd,sd->sc", jnp.asarray(prior.stack_factor), jnp.asarray(p.stack)),
    )


def rows_of(p: Parameters, prior: Prior, accelerator_of: Array, stack_of: Array) -> jax.Array:
    """Unconstrained coefficients of every row, `[C, row]`."""
    center, accelerator, stack = vectors(p, prior)
    return jnp.asarray(center)[:, None] + accelerator[accelerator_of].T + stack[stack_of].T  # type: ignore[index]


def noise_scale(p: Parameters, prior: Prior) -> jax.Array:
    """Student-t scale of ln(predicted / measured) by stack, `[S]`."""
    return jnp.asarray(prior.noise) * jnp.exp(NOISE_WIDTH * p.noise)


def penalty(p: Parameters) -> jax.Array:
    """Minus the log prior, up to a constant: half the sum of squares."""
    return 0.5 * sum(((jnp.asarray(x) ** 2).sum() for x in (p.center, p.accelerator, p.stack, p.noise)), start=jnp.asarray(0.0))
