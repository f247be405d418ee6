"""Would other prior widths predict unseen rows better? The slope of a held-out error along the
widths, through the fit, without another.

A fit from a base weighs the rows against the widths among members. Of an error E on rows that the
fit has not seen, the response of the optimum to a width τ of a member's offset `v = mean + τ θ`
gives, by the implicit function theorem with H the curvature of the loss in θ,

`dE / d ln τ = 2 Σ_members θ · (H⁻¹ ∂E/∂θ)`

because at the optimum the misfit pulls with `−θ` and the penalty's part of H is 1. Negative: wider
would be better. H is that of Gauss and Newton with the Student-t weights, as for the Laplace
approximation (`calibration.uncertainty`): right in sign, and beside refits within a factor of two
where the rows ask for what the prior did not expect. (Noise scales in H, and the exact curvature of
the Student-t, changed the slopes of the test by less than a thousandth.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibration import fit, pooling
from calibration.objective import FREEDOM
from calibration.ratios import rows_of_fit, slopes
from calibration.traces import Cases
from calibration.uncertainty.cells import cells_of
from calibration.uncertainty.laplace import student_weight
from calibration.weights import weights_of
from dmodel.errors import InputError
from dmodel.profiles import GROUPINGS, Profile
from dmodel.types import enable_float64

SMALL = 0.01
"""Ratios below this count as met: it rounds off the corner of the absolute value."""


class WidthSlopes(NamedTuple):
    """How a held-out error answers to prior widths.

    Attributes:
      error: mean of `√(ln² (predicted / measured) + SMALL²)` over the judged rows [1].
      by_grouping: d ln(error) / d ln(width) by grouping `[coefficient]`; 0 where the fit moves no
        member. Of a stack that the base knows only their sum means something: its widths are a
        covariance, which scales as a whole.
    """

    error: float
    by_grouping: dict[str, np.ndarray]


def width_slopes(
    cases: Cases,
    fitted: np.ndarray,
    judged: np.ndarray,
    base: Profile,
    *,
    seed: int = 0,
    starts: int = 1,
) -> WidthSlopes:
    """Fit some rows from a base, without replaying any of its own, and differentiate the error of
    others by the widths of that fit.

    Args:
      cases: rows as records. fitted, judged: which of them, `[row]` bool. base: the profile to
        start from. seed, starts: of the descents.

    Raises:
      InputError: no row is fitted, or none judged.
    """
    enable_float64()
    if not np.any(fitted) or not np.any(judged):
        raise InputError(
            f"slopes of widths need rows to fit and rows to judge; got {int(np.sum(fitted))} "
            "and "
            f"{int(np.sum(judged))}"
        )
    both = cases.take(np.concatenate([np.flatnonzero(fitted), np.flatnonzero(judged)]))
    known = np.arange(len(both)) < np.sum(fitted)
    groups = pooling.groups_of(both.labels.accelerator.tolist(), both.labels.stack.tolist())
    weight = weights_of(np.where(known, both.labels.flag, ""))
    own = groups._replace(of=groups.of[:, known], stack_of=groups.stack_of[known])
    prior = pooling.prior_for(groups, base, fresh=False)
    found = fit.optimize(
        prior,
        rows_of_fit(both.take(known), own, weight[known]),
        own,
        seed=seed,
        starts=starts,
        polish=fit.LBFGS_STEPS,
        progress=lambda done, loss: None,
    )
    data = rows_of_fit(both, groups, weight)
    ratio, slope = slopes(pooling.rows_of(found, prior, data.of), data)
    cells = cells_of(prior, groups)
    design = np.einsum("rc,rcp->rp", slope, cells.factor[cells.of])
    scale = pooling.noise_scale(found, prior)
    scale = pooling.row_scale(scale, groups.stack_of, data.variance)
    information = np.where(known, weight * student_weight(ratio**2, scale, FREEDOM), 0.0)
    curvature = (design * information[:, None]).T @ design + np.eye(design.shape[1])
    softened = np.sqrt(ratio**2 + SMALL**2)
    error = float(softened[~known].mean())
    pull = ((ratio / softened)[:, None] * design)[~known].mean(0) / error
    moved = np.concatenate([np.asarray(found.center)[None], np.asarray(found.offset)])
    response = 2.0 * moved * np.linalg.solve(curvature, pull).reshape(moved.shape)
    of = np.array(["", *(grouping for grouping, _ in groups.members)])
    return WidthSlopes(error, {g: response[of == g].sum(0) for g in GROUPINGS})
