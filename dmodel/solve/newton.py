"""Roots of a curve in a range: brackets, then Newton's steps inside of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dmodel.solve.curve import POINTS, Curve

NEWTON, CLOSE = 60, 1e-12
"""Most steps towards a root, and the relative width at which it is one."""


class Scale(NamedTuple):
    """Where a range is searched evenly: on logarithms where it is positive."""

    is_log: bool

    def to(self, x: Any) -> Any:
        return np.log(x) if self.is_log else np.asarray(x, float)

    def back(self, u: Any) -> Any:
        return np.exp(u) if self.is_log else np.asarray(u, float)

    def slope(self, x: Any, slope: Any) -> Any:
        """Derivative by the scale's variable."""
        return slope * x if self.is_log else slope


def bracketed(
    line: Curve, scale: Scale, x: np.ndarray, found: Mapping[str, Any], target: float
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of inputs between which the output passes the target, `[pair, 2]`, and all outputs
    seen. Where it turns between two points, the turning point is one, too."""
    gap, slope = found["value"] - target, scale.slope(x, found["slope"])
    turns = np.flatnonzero(slope[:-1] * slope[1:] < 0.0)
    if turns.size:
        more = _turning(line, scale, x[turns], x[turns + 1])
        x = np.concatenate([x, more])
        gap = np.concatenate([gap, line(more)["value"] - target])
        order = np.argsort(x)
        x, gap = x[order], gap[order]
    at = np.flatnonzero((gap[:-1] * gap[1:] < 0.0) | (gap[:-1] == 0.0))
    pairs = [(x[i], x[i] if gap[i] == 0.0 else x[i + 1]) for i in at]
    pairs += [(x[-1], x[-1])] if gap[-1] == 0.0 else []
    return np.array(pairs).reshape(-1, 2), gap + target


def _turning(line: Curve, scale: Scale, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Where the slope changes its sign between pairs, by bisection."""
    a, b = scale.to(low), scale.to(high)
    first = np.sign(line(low)["slope"])
    for _ in range(40):
        middle = 0.5 * (a + b)
        same = np.sign(line(scale.back(middle))["slope"]) == first
        a, b = np.where(same, middle, a), np.where(same, b, middle)
    return scale.back(0.5 * (a + b))


def newton(line: Curve, scale: Scale, pairs: np.ndarray, target: float) -> np.ndarray:
    """Roots inside of brackets `[pair, 2]`: Newton's steps, and halves where they leave it."""
    if not len(pairs):
        return np.empty(0)
    pairs = pairs[:POINTS]
    a, b = scale.to(pairs[:, 0]), scale.to(pairs[:, 1])
    rises = line(pairs[:, 1])["value"] >= target
    u = 0.5 * (a + b)
    for _ in range(NEWTON):
        x = scale.back(u)
        found = line(x)
        gap, slope = found["value"] - target, scale.slope(x, found["slope"])
        above = (gap > 0.0) == rises
        a, b = np.where(above, a, u), np.where(above, u, b)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = u - gap / slope
        inside = (step >= np.minimum(a, b)) & (step <= np.maximum(a, b))
        new = np.where(gap == 0.0, u, np.where(inside, step, 0.5 * (a + b)))
        if (np.abs(new - u) <= CLOSE * np.maximum(np.abs(u), 1.0)).all():
            return np.unique(scale.back(new))
        u = new
    return np.unique(scale.back(u))
