"""Rows predicted without themselves, or without their group, from one fit: the Laplace
approximation does not fit again.

Leaving rows g out of the information turns their ratios r, whose covariance the data leave at A,
into

    r₋ = (1 − A_gg W_g)⁻¹ r_g   with covariance   (1 − A_gg W_g)⁻¹ A_gg .
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibration.uncertainty.laplace import Rows, open_ratios


class LeftOut(NamedTuple):
    """What a fit without them says of rows: ln(predicted / measured) `[row]`, and its variance by
    the coefficients `[row]`."""

    ratio: np.ndarray
    variance: np.ndarray


def left_out(rows: Rows, names: np.ndarray) -> LeftOut:
    """Every row as a fit without all rows of its name would predict it, to first order.

    Args:
      names: `[row]`; a name of its own for each row leaves single rows out.
    """
    after = open_ratios(rows.prior, rows.weight)
    fitted = np.linalg.solve(np.eye(len(after)) + rows.prior * rows.weight, rows.before)
    ratio, variance = np.empty(len(after)), np.empty(len(after))
    for name in np.unique(names):
        mine = np.flatnonzero(names == name)
        own = after[np.ix_(mine, mine)]
        found = np.linalg.solve(
            np.eye(len(mine)) - own * rows.weight[mine], np.column_stack([fitted[mine], own])
        )
        ratio[mine], variance[mine] = found[:, 0], np.maximum(np.diag(found[:, 1:]), 0.0)
    return LeftOut(ratio, variance)
