"""Draws of the coefficients from what a fit left open: the same on every machine."""

from __future__ import annotations

import numpy as np

GROUP = 1024
"""Draws that one stream of random numbers gives [count]: the first draws of a sweep stay the first
when it is asked for more."""

LEAST = 1e-12
"""Share of the widest direction's variance below which nothing moves [1]."""


def factor(sigma: np.ndarray) -> np.ndarray:
    """L with L Lᵀ = Σ, `[C, C]`, by Cholesky with pivots; directions without variance do not move.

    By element-wise operations alone, so that its bits do not depend on how many threads a library
    of linear algebra has.
    """
    left, size = np.array(sigma, float), len(sigma)
    found, done = np.zeros((size, size)), np.zeros(size, bool)
    least = LEAST * float(np.diagonal(left).max(initial=0.0))
    for k in range(size):
        rest = np.where(done, -np.inf, np.diagonal(left))
        pivot = int(rest.argmax())
        if not rest[pivot] > least:
            break
        column = np.where(done, 0.0, left[:, pivot]) / np.sqrt(left[pivot, pivot])
        found[:, k] = column
        left = left - column[:, None] * column[None]
        done[pivot] = True
    return found


def drawn(mean: np.ndarray, sigma: np.ndarray, seed: int, first: int, stop: int) -> np.ndarray:
    """Draws first … stop of unconstrained coefficients, `[C, draw]`: normal, with a mean `[C]` and
    a covariance `[C, C]`.

    Args:
      first: a multiple of `GROUP`.
    """
    normal = [
        np.random.default_rng((seed, group)).standard_normal((GROUP, len(mean)))
        for group in range(first // GROUP, -(-stop // GROUP))
    ]
    z = np.concatenate(normal)[: stop - first].T
    out = np.repeat(np.asarray(mean, float)[:, None], stop - first, 1)
    for column, x in zip(factor(sigma).T, z, strict=True):
        out += column[:, None] * x[None]
    return out
