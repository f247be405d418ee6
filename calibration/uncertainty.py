"""How sure a fit is: the Laplace approximation in the unconstrained space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibration import pooling
from calibration.pooling import Groups, Parameters, Prior
from dmodel.profiles import GROUPINGS
from dmodel.sweep import quick_to_compile


class Laplace(NamedTuple):
    """Posterior of the parameters in prior standard deviations: 1 = the data said nothing, 0 = they decide.

    Attributes:
      center_errors `[C]`, offset_errors `[M, C]`: standard deviations. center_covariance `[C, C]`.
      totals: covariance of a row's coefficients, center and all offsets together, unconstrained, by stack (mean over what it ran on).
    """

    center_errors: np.ndarray
    offset_errors: np.ndarray
    totals: dict[str, np.ndarray]
    center_covariance: np.ndarray


def _design_matrix(jacobian: np.ndarray, prior: Prior, data: Any) -> np.ndarray:
    """Derivative of each row's log ratio by center and offset parameters, `[row, (1 + M) C]`."""
    rows, n = jacobian.shape
    factor = np.asarray(prior.factor)
    design = np.zeros((rows, 1 + len(factor), n))
    i = np.arange(rows)
    design[:, 0] = jacobian * np.asarray(prior.center_width)
    for of in np.asarray(data.of):
        design[i, 1 + of] += np.einsum("rc,rcd->rd", jacobian, factor[of])
    return design.reshape(rows, -1)


def _ratio_and_slope(z: jax.Array, data: Any, log_ratio: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Each row's log ratio, and its derivative by the row's own coefficients `[C, row]`."""
    r, pull = jax.vjp(lambda z: log_ratio(z, data), z)
    return r, pull(jnp.ones_like(r))[0]


def _totals(covariance: np.ndarray, prior: Prior, groups: Groups) -> dict[str, np.ndarray]:
    """Covariance of a row's coefficients by stack, `[C, C]`: center and offsets move together, so their sum is known better than each of
    them. covariance: `[1 + M, C, 1 + M, C]`, in prior standard deviations."""
    factors = [np.diag(np.asarray(prior.center_width)), *np.asarray(prior.factor)]
    found: dict[str, list[np.ndarray]] = {}
    for of in np.unique(groups.of, axis=1).T:
        parts = (0, *(1 + m for m in of if m))
        total = sum(factors[g] @ covariance[g, :, h] @ factors[h].T for g in parts for h in parts)
        found.setdefault(groups.members[of[GROUPINGS.index("stack")]][1], []).append(np.asarray(total))
    return {stack: np.mean(each, 0) for stack, each in found.items()}


def laplace(
    p: Parameters, prior: Prior, data: Any, groups: Groups, log_ratio: Callable[..., jax.Array], freedom: float
) -> Laplace:
    """Gauss-Newton Laplace approximation: `H = Σ_i ω_i J_i J_iᵀ + 1`, with the Student-t weight `ω = (ν + 1) / (ν s² + r²)`.

    Rows are independent, so one reverse pass gives every row's Jacobian; the noise scales are held at their fit.
    """
    z = pooling.rows_of(p, prior, data.of)
    r, by_row = jax.jit(_ratio_and_slope, static_argnums=2, compiler_options=quick_to_compile())(z, data, log_ratio)
    scale = np.asarray(pooling.noise_scale(p, prior))[np.asarray(data.stack_of)]
    omega = np.asarray(data.weight) * (freedom + 1.0) / (freedom * scale**2 + np.asarray(r) ** 2)
    design = _design_matrix(np.asarray(by_row).T, prior, data)
    information = (design * omega[:, None]).T @ design
    covariance = np.linalg.inv(information + np.eye(len(information)))
    n = np.shape(prior.center)[0]
    errors = np.sqrt(np.diag(covariance)).reshape(-1, n)
    return Laplace(
        center_errors=errors[0],
        offset_errors=errors[1:],
        totals=_totals(covariance.reshape(len(errors), n, len(errors), n), prior, groups),
        center_covariance=covariance[:n, :n],
    )
