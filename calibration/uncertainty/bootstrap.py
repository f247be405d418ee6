"""How sure a fit is, by fitting again: rows weighted at random by group, and every start its own
prior mean (the Bayesian bootstrap of Rubin 1981, with a randomised prior so that directions of
which the rows say nothing keep their width).

All fits descend at once, as rows of one batch: Gauss-Newton steps with Student-t weights at one
noise scale by stack.
"""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np

from calibration.objective import FREEDOM
from calibration.ratios import Data, ratios
from calibration.uncertainty.laplace import student_weight
from calibration.uncertainty.posterior import Posterior
from dmodel.parts import Arrays, Block, parts

STEPS, LONGEST = 15, 1.0
"""Gauss-Newton steps, and the longest of any direction, in prior standard deviations."""

DRAWS_OF_BLOCK = 8
"""Draws that a worker makes at once [count]."""


def bootstrap(
    found: Posterior,
    start: np.ndarray,
    noise: np.ndarray,
    groups: np.ndarray,
    *,
    draws: int = 64,
    seed: int = 0,
    executor: Executor | None = None,
) -> np.ndarray:
    """Directions u of every draw `[draw, U]`.

    Args:
      start: u of the fit. noise: scale by row `[row]`. groups: name of every row's group; its rows
        share a weight.
      executor: whose workers fit again; None for this process, all at once.
    """
    rng = np.random.default_rng(seed)
    _, index = np.unique(groups, return_inverse=True)
    own = np.asarray(found.data.weight) * rng.exponential(size=(draws, index.max() + 1))[:, index]
    origin = rng.standard_normal((draws, found.size))
    known = {
        "data": found.data,
        "mean": found.mean[found.of],
        "basis": found.basis[found.of],
        "start": start,
        "noise": noise,
    }
    if executor is None:
        return bootstrap_block(**known, own=own, origin=origin)["u"]
    cut = (slice(i, i + DRAWS_OF_BLOCK) for i in range(0, draws, DRAWS_OF_BLOCK))
    blocks = [Block(bootstrap_block, {**known, "own": own[c], "origin": origin[c]}) for c in cut]
    return np.concatenate([part.arrays["u"] for part in parts(blocks, executor)])


def bootstrap_block(
    *,
    data: Data,
    mean: np.ndarray,
    basis: np.ndarray,
    start: np.ndarray,
    noise: np.ndarray,
    own: np.ndarray,
    origin: np.ndarray,
) -> Arrays:
    """Directions u of some draws.

    Args:
      mean, basis: of every row. own: its weight in each draw `[draw, row]`. origin: prior mean of
        each draw `[draw, U]`.
    """
    draws, count = own.shape
    size = origin.shape[1]
    u, of = start + 0.0 * origin, ratios(data, draws)
    for _ in range(STEPS):
        z = (mean + np.einsum("rcu,du->drc", basis, u)).reshape(draws * count, -1).T
        ratio, slope = (x.T.reshape(draws, count, -1) for x in of(z))
        ratio, design = ratio[..., 0], np.einsum("drc,rcu->dru", slope, basis)
        weight = own * student_weight(ratio**2, noise, FREEDOM)
        scaled = design * weight[..., None]
        inner = np.eye(size) + np.swapaxes(scaled, 1, 2) @ design
        step = -np.linalg.solve(
            inner, (np.einsum("dru,dr->du", scaled, ratio) + u - origin)[..., None]
        )[..., 0]
        u = u + step * np.minimum(1.0, LONGEST / np.abs(step).max(1))[:, None]
    return {"u": u}
