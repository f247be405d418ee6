"""How sure a fit is: the Laplace approximation in the unconstrained space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibration import pooling
from calibration.pooling import Parameters, Prior
from dmodel.sweep import quick_to_compile


class Laplace(NamedTuple):
    """Posterior of the parameters in prior standard deviations: 1 = the data said nothing, 0 = they decide.

    Attributes:
      center_errors `[C]`, stack_errors `[S, C]`: standard deviations. center_covariance `[C, C]`.
      totals: covariance of center and offsets together, unconstrained, by stack (mean over its accelerators) `[S, C, C]`.
    """

    center_errors: np.ndarray
    stack_errors: np.ndarray
    totals: np.ndarray
    center_covariance: np.ndarray


def _design_matrix(jacobian: np.ndarray, prior: Prior, data: Any) -> np.ndarray:
    """Derivative of each row's log ratio by center, accelerator and stack parameters, `[row, (1 + A + S) C]`."""
    rows, n = jacobian.shape
    a, s = np.shape(prior.accelerator)[0], np.shape(prior.stack)[0]
    design = np.zeros((rows, 1 + a + s, n))
    i, at, st = np.arange(rows), np.asarray(data.accelerator_of), np.asarray(data.stack_of)
    design[:, 0] = jacobian * np.asarray(prior.center_width)
    design[i, 1 + at] = jacobian * np.asarray(prior.accelerator_width)[at]
    design[i, 1 + a + st] = np.einsum("rc,rcd->rd", jacobian, np.asarray(prior.stack_factor)[st])
    return design.reshape(rows, -1)


def _ratio_and_slope(z: jax.Array, data: Any, log_ratio: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Each row's log ratio, and its derivative by the row's own coefficients `[C, row]`."""
    r, pull = jax.vjp(lambda z: log_ratio(z, data), z)
    return r, pull(jnp.ones_like(r))[0]


def _totals(covariance: np.ndarray, prior: Prior, data: Any) -> np.ndarray:
    """Covariance of `center + u[accelerator] + v[stack]` by stack, `[S, C, C]`: the three move together, so their sum is known better than
    each of them. covariance: `[group, C, group, C]`, in prior standard deviations."""
    a = np.shape(prior.accelerator)[0]
    widths = [np.asarray(prior.center_width), *np.asarray(prior.accelerator_width)]
    factors = [*(np.diag(w) for w in widths), *np.asarray(prior.stack_factor)]
    totals = []
    for stack in range(np.shape(prior.stack)[0]):
        found = []
        for at in np.unique(np.asarray(data.accelerator_of)[np.asarray(data.stack_of) == stack]):
            members = (0, 1 + at, 1 + a + stack)
            found.append(sum(factors[g] @ covariance[g, :, h] @ factors[h].T for g in members for h in members))
        totals.append(np.mean(found, 0))
    return np.stack(totals)


def laplace(p: Parameters, prior: Prior, data: Any, log_ratio: Callable[..., jax.Array], freedom: float) -> Laplace:
    """Gauss-Newton Laplace approximation: `H = Σ_i ω_i J_i J_iᵀ + 1`, with the Student-t weight `ω = (ν + 1) / (ν s² + r²)`.

    Rows are independent, so one reverse pass gives every row's Jacobian; the noise scales are held at their fit.
    """
    z = pooling.rows_of(p, prior, data.accelerator_of, data.stack_of)
    r, by_row = jax.jit(_ratio_and_slope, static_argnums=2, compiler_options=quick_to_compile())(z, data, log_ratio)
    scale = np.asarray(pooling.noise_scale(p, prior))[np.asarray(data.stack_of)]
    omega = np.asarray(data.weight) * (freedom + 1.0) / (freedom * scale**2 + np.asarray(r) ** 2)
    design = _design_matrix(np.asarray(by_row).T, prior, data)
    information = (design * omega[:, None]).T @ design
    covariance = np.linalg.inv(information + np.eye(len(information)))
    n, a = np.shape(prior.center)[0], np.shape(prior.accelerator)[0]
    errors = np.sqrt(np.diag(covariance)).reshape(-1, n)
    return Laplace(
        center_errors=errors[0],
        stack_errors=errors[1 + a :],
        totals=_totals(covariance.reshape(len(errors), n, len(errors), n), prior, data),
        center_covariance=covariance[:n, :n],
    )
