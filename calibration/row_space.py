"""The parameters of a fit as its rows see them.

What they add to a row's coefficients, the transpose of that, and the covariance between rows.
"""

from __future__ import annotations

import numpy as np

from calibration.pooling import Parameters, Prior, mixed


def moved(p: Parameters, prior: Prior, of: np.ndarray) -> np.ndarray:
    """What parameters add to the prior mean of the coefficients of every row, `[C, row]`."""
    center, offset = mixed(p, prior)
    each = (prior.factor @ offset[:, :, None])[:, :, 0]
    return (prior.center_width * center)[:, None] + each[of].sum(0).T


def covariance(by_row: np.ndarray, prior: Prior, of: np.ndarray) -> np.ndarray:
    """Covariance between rows, `[row, row]`, before the data, of what has slopes by the
    coefficients of every row.

    Args:
      by_row: `[row, C]`. of: members of every row, `[G, row]`, each in one grouping.

    Limits: of a prior without `mixing`.
    """
    wide = by_row * prior.center_width
    found = wide @ wide.T
    for each in of:
        for member in np.unique(each):
            mine = np.flatnonzero(each == member)
            own = by_row[mine] @ prior.factor[member]
            found[np.ix_(mine, mine)] += own @ own.T
    return found


def pulled(by_row: np.ndarray, prior: Prior, own: np.ndarray) -> np.ndarray:
    """Slope by center and offsets, `[1 + M, C]`, of what has slopes by the coefficients of every
    row: the transpose of `moved`.

    Args:
      by_row: `[row, C]`. own: how often each row has each member, `[row, M]`.
    """
    moved = np.swapaxes(prior.factor, 1, 2) @ (own.T @ by_row)[:, :, None]
    found = np.vstack([prior.center_width * by_row.sum(0), moved[:, :, 0]])
    if prior.mixing is not None:
        at = prior.mixing.at
        found[at] = np.einsum("kmn,mk->nk", prior.mixing.root, found[at])
    return found
