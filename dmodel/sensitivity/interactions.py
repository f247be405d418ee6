"""Second order: how the elasticity to one input changes with another, `∂² ln y / ∂ ln x_i ∂ ln
x_j`.

Positive: raising both does more than the sum (or helps less); the diagonal says how long an
elasticity lasts. Columns are differences of exact gradients, which need no further compilation;
`exact=True` takes them by forward over reverse mode, to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dmodel.sensitivity.case import Inputs, Point, inputs
from dmodel.sensitivity.gradient import NUDGE, directional, elasticities_of
from dmodel.sensitivity.local import KINK, check_positive, of_case, scaled
from dmodel.sensitivity.outputs import output_name
from dmodel.smooth import SHARPNESS

STEP = 1e-3
"""Logarithmic step of the differences: of fourth order, so that their error is some 1e-9."""


class Interactions(NamedTuple):
    """Names of the inputs; elasticities `[m]`; Hessian of ln y by ln x `[m, m]`, symmetric; names
    at a kink, whose rows are the mean of both sides; asymmetry: the largest difference of two mixed
    derivatives that should agree, kinks left out."""

    output: str
    names: tuple[str, ...]
    elasticities: np.ndarray
    hessian: np.ndarray
    kinks: tuple[str, ...]
    asymmetry: float


def interactions(
    case: Point,
    output: str = "step_time",
    names: Sequence[str] | None = None,
    *,
    most: int = 12,
    exact: bool = False,
    sharpness: float = SHARPNESS,
    level_names: Sequence[str] | None = None,
) -> Interactions:
    """Hessian of ln output in the logarithms of some inputs.

    Limits: zero rows for an input that enters as a factor of the whole output; at a kink there is
    none across it, and the mean of the two sides stands for it.

    Args:
      names: of the inputs; None for the `most` largest elasticities, without the shares of layers
        that hold a part.
      exact: by forward over reverse (takes half a minute).
    """
    output, known = output_name(output), inputs(case, level_names)
    if names is None:
        found = of_case(case, output, sharpness=sharpness, level_names=level_names).largest
        names = [e.name for e in found if not e.name.endswith("_share")][:most]
    places = [known.index(name) for name in names]
    values, around = elasticities_of(
        known, scaled(known, places, np.exp(np.array([-2, -1, 1, 2]) * STEP)), output, sharpness
    )
    check_positive(values, output)
    _, nudged = elasticities_of(
        known, scaled(known, places, np.array([1.0 - NUDGE, 1.0 + NUDGE])), output, sharpness
    )
    m = len(places)
    far_below, below, above, far_above = np.moveaxis(around[places].reshape(m, m, 4), -1, 0)
    left, right = np.moveaxis(nudged[places].reshape(m, m, 2), -1, 0)
    central = (8.0 * (above - below) - (far_above - far_below)) / (12.0 * STEP)
    sided = (
        0.5
        * ((-3.0 * right + 4.0 * above - far_above) + (3.0 * left - 4.0 * below + far_below))
        / (2.0 * STEP)
    )
    kink: np.ndarray = np.any(np.abs(right - left) > KINK, axis=0)
    columns = np.where(kink[None], sided, central)
    if exact:
        columns = np.where(
            kink[None], sided, _forward_over_reverse(known, places, output, sharpness)
        )
    # the gradient on top of a kink is of neither side, so rows of such inputs are taken from their
    # columns
    columns = np.where(kink[:, None] & ~kink[None], columns.T, columns)
    smooth = ~(kink[:, None] | kink[None])
    return Interactions(
        output=output,
        names=tuple(names),
        elasticities=np.diag(0.5 * (left + right)).copy(),
        hessian=0.5 * (columns + columns.T),
        kinks=tuple(name for name, k in zip(names, kink, strict=True) if k),
        asymmetry=float(np.abs(np.where(smooth, columns - columns.T, 0.0)).max(initial=0.0)),
    )


def _forward_over_reverse(
    known: Inputs, places: list[int], output: str, sharpness: float
) -> np.ndarray:
    """`∂ e_i / ∂ ln x_j = x_i x_j ∂² ln y / ∂x_i ∂x_j + δ_ij e_i`, one tangent for each column."""
    m = len(places)
    x = np.repeat(known.values[:, None], m, 1)
    tangent = np.zeros_like(x)
    tangent[places, np.arange(m)] = known.values[places]
    change = (
        directional(known, x, tangent, output, sharpness)[places] * known.values[places][:, None]
    )
    _, own = elasticities_of(known, x[:, :1], output, sharpness)
    return change + np.diag(own[places, 0])
