"""How sure an elasticity is, as far as the coefficients decide it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmodel.coefficients import NAMES, from_unconstrained
from dmodel.sensitivity.case import Point, inputs
from dmodel.sensitivity.gradient import elasticities_of
from dmodel.sensitivity.outputs import output_name
from dmodel.smooth import SHARPNESS


def deviations(
    case: Point,
    points: np.ndarray,
    output: str = "step_time",
    *,
    sharpness: float = SHARPNESS,
    level_names: Sequence[str] | None = None,
) -> dict[str, float]:
    """Standard deviations of elasticities by input, from coefficients at sigma points: `√Σ_k ⅓ (½
    (e₊ − e₋))²`.

    Args:
      points: unconstrained coefficients, the mean and then √3 standard deviations to either side
        along directions that add up to their covariance, `[C, 1 + 2 k]`
        (`dmodel.uncertainty.points`).
    """
    known = inputs(case, level_names)
    x = np.repeat(known.values[:, None], points.shape[1], 1)
    drawn = from_unconstrained(points)
    for name in NAMES:
        x[known.index(f"coefficients.{name}")] = np.asarray(getattr(drawn, name))
    _, found = elasticities_of(known, x, output_name(output), sharpness)
    half = (points.shape[1] - 1) // 2
    deviation = np.sqrt(((found[:, 1 : half + 1] - found[:, half + 1 :]) ** 2).sum(1) / 12.0)
    return dict(zip(known.names, deviation.tolist(), strict=True))
