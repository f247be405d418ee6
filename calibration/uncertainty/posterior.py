"""The exact posterior of a fit from a base profile, in as few directions as its prior has: for
samplers, and to judge Laplace by.

z = m + B u by cell (`cells.reduced`), u and the noise's η standard normal before the data, the
misfit that of the fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibration import pooling
from calibration.objective import FREEDOM
from calibration.ratios import Data, log_time, rows_of_fit, slopes
from calibration.replay import replay
from calibration.traces import Cases
from calibration.uncertainty.cells import cells_of, names, reduced
from calibration.uncertainty.laplace import student_weight
from calibration.weights import weights_of
from dmodel.errors import InputError
from dmodel.profiles import Profile


class Posterior(NamedTuple):
    """Posterior of few rows.

    Attributes:
      log_density: of x = (u, η). coefficients: u → unconstrained coefficients by cell `[cell, C]`.
        size: of u. stacks: of η.
      names: chip and stack of every cell. of: cell of every row. data: its rows. mean, basis: of
        the cells.
    """

    log_density: Callable[[jax.Array], jax.Array]
    coefficients: Callable[[jax.Array], jax.Array]
    size: int
    stacks: int
    names: list[tuple[str, str]]
    of: np.ndarray
    data: Data
    mean: np.ndarray
    basis: np.ndarray


def posterior(rows: Cases, base: Profile) -> Posterior:
    """The posterior of a fit of rows that a base profile has not seen.

    Args:
      rows: all usable, with a measured time.
    Raises:
      InputError: the base knows a stack of theirs by rows that a fit would replay, which is another
        posterior.
    """
    if known := replay(rows, base).families:
        raise InputError(
            f"the base has seen {', '.join(sorted(known))}, whose rows a fit replays; give one "
            "that has not"
        )
    groups = pooling.groups_of(rows.labels.accelerator.tolist(), rows.labels.stack.tolist())
    prior = pooling.prior_for(groups, base, fresh=False)
    cells, data = cells_of(prior, groups), rows_of_fit(rows, groups, weights_of(rows.labels.flag))
    found = reduced(cells)
    mean, basis, of, size = (
        jnp.asarray(found.mean),
        jnp.asarray(found.basis),
        jnp.asarray(cells.of),
        found.basis.shape[2],
    )
    stack_of, measured = jnp.asarray(groups.stack_of), jnp.asarray(data.log_measured)
    weight, noise = jnp.asarray(data.weight), jnp.asarray(prior.noise)

    def coefficients(u: jax.Array) -> jax.Array:
        return mean + basis @ u

    def log_density(x: jax.Array) -> jax.Array:
        z = coefficients(x[:size])[of].T
        r = log_time(data.system, data.model, data.plan, z) - measured
        own = noise * jnp.exp(pooling.NOISE_WIDTH * x[size:])  # as `pooling.noise_scale`
        s = jnp.sqrt((prior.noise_floor**2 + own**2)[stack_of] + data.variance)
        misfit = jnp.log(s) + 0.5 * (FREEDOM + 1.0) * jnp.log1p((r / s) ** 2 / FREEDOM)
        return -(weight * misfit).sum() - 0.5 * (x**2).sum()

    return Posterior(
        log_density,
        coefficients,
        size,
        len(groups.stacks),
        names(cells, groups),
        cells.of,
        data,
        *found,
    )


class Approximation(NamedTuple):
    """Where a sampler starts: mean and Cholesky factor of a normal approximation of x."""

    mean: np.ndarray
    factor: np.ndarray


def approximation(found: Posterior, fitted: Profile) -> Approximation:
    """Laplace around a fitted profile in the directions of u; η at the prior, as wide as it."""
    z = np.stack([fitted.unconstrained(*name) for name in found.names])
    flat = found.basis.reshape(-1, found.size)
    u = np.linalg.lstsq(flat, (z - found.mean).reshape(-1), rcond=None)[0]
    ratio, slope = slopes(z[found.of].T, found.data)
    design = np.einsum("rc,rcu->ru", slope, found.basis[found.of])
    scale = 1.5 * np.maximum(pooling.NOISE, np.median(np.abs(ratio)))
    weight = np.asarray(found.data.weight) * student_weight(
        ratio**2, np.full(len(ratio), scale), FREEDOM
    )
    factor = np.eye(found.size + found.stacks)
    factor[: found.size, : found.size] = np.linalg.cholesky(
        np.linalg.inv(np.eye(found.size) + (design.T * weight) @ design)
    )
    return Approximation(np.concatenate([u, np.zeros(found.stacks)]), factor)
