"""How sure a fit is, by fitting again: rows weighted at random by group, and every start its own
prior mean (the Bayesian bootstrap of Rubin 1981, with a randomised prior so that directions of
which the rows say nothing keep their width).

All fits descend at once, as rows of one batch: Gauss-Newton steps with Student-t weights at one
noise scale by stack.
"""

from __future__ import annotations

import numpy as np

from calibration.objective import FREEDOM
from calibration.ratios import ratios
from calibration.uncertainty.laplace import student_weight
from calibration.uncertainty.posterior import Posterior

STEPS, LONGEST = 15, 1.0
"""Gauss-Newton steps, and the longest of any direction, in prior standard deviations."""


def bootstrap(
    found: Posterior,
    start: np.ndarray,
    noise: np.ndarray,
    groups: np.ndarray,
    *,
    draws: int = 64,
    seed: int = 0,
) -> np.ndarray:
    """Directions u of every draw `[draw, U]`.

    Args:
      start: u of the fit. noise: scale by row `[row]`. groups: name of every row's group; its rows
        share a weight.
    """
    rng, (count, size) = np.random.default_rng(seed), (len(groups), found.size)
    _, index = np.unique(groups, return_inverse=True)
    own = np.asarray(found.data.weight) * rng.exponential(size=(draws, index.max() + 1))[:, index]
    origin, basis = rng.standard_normal((draws, size)), found.basis[found.of]
    u, of = start + 0.0 * origin, ratios(found.data, draws)
    for _ in range(STEPS):
        z = (found.mean[found.of] + np.einsum("rcu,du->drc", basis, u)).reshape(draws * count, -1).T
        ratio, slope = (x.T.reshape(draws, count, -1) for x in of(z))
        ratio, design = ratio[..., 0], np.einsum("drc,rcu->dru", slope, basis)
        weight = own * student_weight(ratio**2, noise, FREEDOM)
        scaled = design * weight[..., None]
        inner = np.eye(size) + np.swapaxes(scaled, 1, 2) @ design
        step = -np.linalg.solve(
            inner, (np.einsum("dru,dr->du", scaled, ratio) + u - origin)[..., None]
        )[..., 0]
        u = u + step * np.minimum(1.0, LONGEST / np.abs(step).max(1))[:, None]
    return u
