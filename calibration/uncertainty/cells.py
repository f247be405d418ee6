"""A fit as its rows see it: one vector of coefficients for every cell, the rows of one chip and
stack.

A row knows only the sum of the center and of its members' offsets. So a posterior over a few
thousand parameters is one over the cells' sums, z = m + F θ with θ standard normal before the data:
`[cell, C]` numbers with prior covariance F Fᵀ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibration.pooling import Groups, Prior
from dmodel.profiles import GROUPINGS


class Cells(NamedTuple):
    """Cells of a fit.

    Attributes:
      of: cell of every row `[row]`. members: their members `[cell, G]`, as `Groups.of` has them.
      mean: prior mean of the coefficients `[cell, C]`. factor: F, `[cell, C, P]`, by center and
        offset parameters, P = (1 + M) C.
    """

    of: np.ndarray
    members: np.ndarray
    mean: np.ndarray
    factor: np.ndarray

    @property
    def prior(self) -> np.ndarray:
        """Covariance of all cells' coefficients before the data, `[cell · C, cell · C]`."""
        flat = self.factor.reshape(-1, self.factor.shape[2])
        return flat @ flat.T


def cells_of(prior: Prior, groups: Groups) -> Cells:
    """The cells of some rows' groups."""
    n = np.shape(prior.center)[0]
    blocks = [np.diag(np.asarray(prior.center_width)), *np.asarray(prior.factor)]
    members, of = np.unique(groups.of.T, axis=0, return_inverse=True)
    mean = np.tile(np.asarray(prior.center), (len(members), 1))
    factor = np.zeros((len(members), n, len(blocks) * n))
    for i, found in enumerate(members):
        for m in (0, *(1 + m for m in found if m)):
            factor[i, :, m * n : (m + 1) * n] += blocks[m]
        mean[i] += np.asarray(prior.offset)[found[found > 0]].sum(0)
    if prior.mixing is not None:
        apart = factor.reshape(len(members), n, len(blocks), n)
        at = np.ix_(
            np.arange(len(members)),
            np.arange(n),
            np.asarray(prior.mixing.members),
            np.asarray(prior.mixing.coefficients),
        )
        apart[at] = np.einsum(
            "kcmd,dmn->kcnd", apart[at], np.asarray(prior.mixing.root), optimize=True
        )
    return Cells(of.reshape(-1), members, mean, factor)


def names(cells: Cells, groups: Groups) -> list[tuple[str, str]]:
    """Chip and stack, its variant among them, of every cell."""
    found = [
        {g: groups.members[m][1] for g, m in zip(GROUPINGS, of, strict=True)}
        for of in cells.members
    ]
    return [(each["accelerator"], each["variant"] or each["stack"]) for each in found]


class Reduced(NamedTuple):
    """The same prior in as few independent directions as it has: z = mean + `basis` u with u
    standard normal, basis `[cell, C, U]`."""

    mean: np.ndarray
    basis: np.ndarray


def reduced(cells: Cells, least: float = 1e-6) -> Reduced:
    """Principal directions of the cells' prior; those below a share `least` of the widest are left
    out, as nothing moves there."""
    values, axes = np.linalg.eigh(cells.prior)
    sd = np.sqrt(np.maximum(values, 0.0))
    kept = sd > least * sd.max()
    return Reduced(cells.mean, (axes * sd)[:, kept].reshape(*cells.mean.shape, -1))
