"""A small interior-point method: the maximum of a smooth function under smooth inequalities, with
the price of each of them.

Many programs are solved side by side, for a dozen unknowns each by dense Newton steps. Only values
and slopes are compiled; the
curvature comes from differences of slopes, because second derivatives of a large model take minutes
to compile.

Nocedal & Wright 2006, "Numerical Optimization", chapter 19 (primal-dual steps, fraction to the
boundary, monotone barrier).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

STEPS, BARRIER, SHRINK, BOUNDARY = 120, 1e-9, 0.2, 0.99
"""Newton steps at most; the last barrier parameter; its factor from one to the next; how far a step
may go towards the boundary."""

SHORTEST = 2.0**-40
"""Share of a step below which it counts as none."""

DIFFERENCE = 1e-7
"""Step by which slopes are taken for the curvature; unknowns are of order 1."""

PENALTY = 1e3
"""Price of violating a soft constraint by 1, far above any multiplier of a well-scaled problem."""

Values = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Program(NamedTuple):
    """Programs of the same form, side by side.

    Attributes:
      values: unknowns `[program, n]` to objectives `[program]`, of order 1, and constraints
        `[program, c]`, each of order 1.
      slopes: unknowns `[program, point, n]` to their slopes `[program, point, n]` and `[program,
        point, c, n]`.
      soft: 1 for constraints that may be violated on the way `[c]`; the others must hold strictly
        at the start, and hold at every step.
    """

    values: Values
    slopes: Values
    soft: np.ndarray


class Optima(NamedTuple):
    """Stationary points, or what was reached after `STEPS`.

    Attributes:
      z: unknowns `[program, n]`. multipliers: price of each constraint, ∂ objective / ∂ its slack
        `[program, c]`, ≥ 0.
      slack: the constraints there `[program, c]`. value: the objectives `[program]`.
      residual: largest of |∂ Lagrangian / ∂z|, |multiplier · slack| and violation; 0 at an exact
        optimum `[program]`.
      steps: Newton steps taken `[program]`.
    """

    z: np.ndarray
    multipliers: np.ndarray
    slack: np.ndarray
    value: np.ndarray
    residual: np.ndarray
    steps: np.ndarray


class _Relaxed:
    """The programs with one more unknown each, r ≥ 0, by which all soft constraints are relaxed at
    a high price."""

    def __init__(self, program: Program):
        self.program = program

    def values(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slack = self.program.values(y[:, :-1])
        return value - PENALTY * y[:, -1], np.concatenate(
            [slack + self.program.soft * y[:, -1:], y[:, -1:]], 1
        )

    def slopes(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slope, jacobian = self.program.slopes(y[..., :-1])
        by_r = np.broadcast_to(
            np.append(self.program.soft, 1.0)[:, None],
            (*jacobian.shape[:2], len(self.program.soft) + 1, 1),
        )
        padded = np.concatenate([jacobian, np.zeros_like(jacobian[:, :, :1])], 2)
        return np.concatenate([slope, np.full_like(slope[..., :1], -PENALTY)], -1), np.concatenate(
            [padded, by_r], -1
        )

    def derivatives(
        self, y: np.ndarray, prices: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Slope of the objective, of the constraints, and curvature of the Lagrangian."""
        n = y.shape[1]
        around = y[:, None] + DIFFERENCE * np.concatenate([np.zeros((1, n)), np.eye(n)])
        slopes, jacobians = self.slopes(around)
        total = slopes + np.einsum("pc,pkcn->pkn", prices, jacobians)
        curvature = (total[:, 1:] - total[:, :1]) / DIFFERENCE
        return slopes[:, 0], jacobians[:, 0], 0.5 * (curvature + curvature.swapaxes(1, 2))


def _newton(hessian: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Ascent step of a concave model; directions of no or the wrong curvature take that curvature's
    size instead.

    Unknowns are scaled to a unit diagonal first: next to a stiff one, a slack one would drown in
    rounding.
    """
    scale = 1.0 / np.sqrt(np.maximum(np.abs(np.diagonal(hessian, axis1=1, axis2=2)), 1e-12))
    values, vectors = np.linalg.eigh(scale[:, :, None] * hessian * scale[:, None])
    size = np.abs(values)
    along = np.einsum("pnk,pn->pk", vectors, scale * slope) / np.maximum(
        size, 1e-14 * size.max(1, keepdims=True) + 1e-14
    )
    return scale * np.einsum("pnk,pk->pn", vectors, along)


def _merit(value: np.ndarray, slack: np.ndarray, barrier: np.ndarray) -> np.ndarray:
    """Objective and logarithmic barrier; -inf outside."""
    inside = (slack > 0.0).all(1) & np.isfinite(value)
    logs = np.log(np.where(slack > 0.0, slack, 1.0)).sum(1)
    return np.where(inside, np.where(np.isfinite(value), value, 0.0) + barrier * logs, -np.inf)


def _length(
    relaxed: _Relaxed,
    y: np.ndarray,
    here: tuple[np.ndarray, np.ndarray],
    move: np.ndarray,
    barrier: np.ndarray,
    expected: np.ndarray,
) -> np.ndarray:
    """Longest of 1, ½, ¼, … of each step that keeps clear of the boundary and raises the merit by a
    part of what its slope promises.

    Args:
      here: value and slack at y.
    """
    value, slack = here
    before, length = _merit(value, slack, barrier), np.ones(len(y))
    while True:
        value, moved = relaxed.values(y + length[:, None] * move)
        close = ~(moved >= (1.0 - BOUNDARY) * slack).all(1)
        # at the last digits of the merit no increase can be seen
        enough = before + 1e-4 * length * expected - 1e-13 * (1.0 + np.abs(before))
        too_far = (close | ~(_merit(value, moved, barrier) >= enough)) & (length > SHORTEST)
        if not too_far.any():
            return length
        length = np.where(too_far, 0.5 * length, length)


def maximize(program: Program, start: np.ndarray, last_barrier: float = BARRIER) -> Optima:
    """Local maxima of objectives under `constraints ≥ 0`.

    Newton steps on `∇f + Jᵀλ = 0, λ c = μ` with a barrier parameter μ → 0. Soft constraints are
    relaxed by an unknown r ≥ 0,
    `c + r ≥ 0`, at a price of `PENALTY · r`; it vanishes where they can be met.

    Limits: the maximum, where the program is concave; a local one otherwise.

    Args:
      start: `[program, n]`. last_barrier: where to stop; a value is then within `c · last_barrier`
        of its optimum.
    """
    relaxed, n = _Relaxed(program), len(start)
    worst = np.maximum(-program.values(start)[1] * program.soft, 0.0).max(1)
    y = np.concatenate([start, worst[:, None] + 0.1], 1)
    barrier, stuck, steps = np.ones(n), np.zeros(n, bool), np.zeros(n, int)
    value, slack = relaxed.values(y)
    prices = barrier[:, None] / slack
    for _ in range(STEPS):
        slope, jacobian, curvature = relaxed.derivatives(y, prices)
        gradient = slope + np.einsum("pc,pcn->pn", prices, jacobian)
        error = np.maximum(
            np.abs(gradient).max(1), np.abs(prices * slack - barrier[:, None]).max(1)
        )
        barrier = np.where((error < 10.0 * barrier) | stuck, SHRINK * barrier, barrier)
        active = (barrier > last_barrier) & np.isfinite(error)
        if not active.any():
            break
        toward = slope + barrier[:, None] * np.einsum("pc,pcn->pn", 1.0 / slack, jacobian)
        hessian = -curvature + np.einsum("pc,pcn,pcm->pnm", prices / slack, jacobian, jacobian)
        move = np.zeros_like(y)
        move[active] = _newton(hessian[active], toward[active])
        length = _length(relaxed, y, (value, slack), move, barrier, (toward * move).sum(1))
        change = (
            barrier[:, None] / slack
            - prices
            - prices / slack * np.einsum("pcn,pn->pc", jacobian, move)
        )
        room = np.where(
            change < 0.0, -BOUNDARY * prices / np.where(change < 0.0, change, -1.0), 1.0
        ).min(1, keepdims=True)
        y = y + length[:, None] * move
        value, slack = relaxed.values(y)
        # prices stay within a factor of those of the barrier alone, as convergence asks
        central = barrier[:, None] / slack
        prices = np.where(
            active[:, None],
            np.clip(prices + np.minimum(room, 1.0) * change, 1e-10 * central, 1e10 * central),
            prices,
        )
        stuck, steps = length <= SHORTEST, steps + active
    return _finish(program, y[:, :-1], prices[:, :-1], steps)


def _finish(program: Program, z: np.ndarray, prices: np.ndarray, steps: np.ndarray) -> Optima:
    value, slack = program.values(z)
    slope, jacobian = (x[:, 0] for x in program.slopes(z[:, None]))
    gradient = slope + np.einsum("pc,pcn->pn", prices, jacobian)
    residual = np.maximum(
        np.abs(gradient).max(1), np.maximum(np.abs(prices * slack).max(1), (-slack).max(1))
    )
    return Optima(z=z, multipliers=prices, slack=slack, value=value, residual=residual, steps=steps)
