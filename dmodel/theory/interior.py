"""A small interior-point method: the maximum of a smooth function under smooth inequalities, with the price of each of them.

Written in jax, so that many starts and many problems run as one batch; for a dozen unknowns, by dense Newton steps.

Nocedal & Wright 2006, "Numerical Optimization", chapter 19 (primal-dual steps, fraction to the boundary, monotone barrier).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from dmodel.types import Array

STEPS, BARRIER, SHRINK, BOUNDARY = 300, 1e-10, 0.2, 0.99
"""Newton steps at most; the last barrier parameter; its factor from one to the next; how far a step may go towards the boundary."""

SHORTEST = 1e-12
"""Share of a step below which it counts as none."""

DIFFERENCE = 1e-7
"""Step by which slopes are taken for the curvature; unknowns are of order 1."""

PENALTY = 1e3
"""Price of violating a soft constraint by 1, far above any multiplier of a well-scaled problem."""


class Optimum(struct.PyTreeNode, frozen=True, kw_only=True):
    """A stationary point, or the best that was found.

    Args:
      z: the unknowns `[n]`. multipliers: price of each constraint, ∂ objective / ∂ its slack `[c]`, ≥ 0. slack: constraints there `[c]`.
      value: the objective. residual: largest of |∂ Lagrangian / ∂z|, |multiplier · slack| and violation; 0 at an exact optimum.
      steps: Newton steps taken.
    """

    z: Array
    multipliers: Array
    slack: Array
    value: Array
    residual: Array
    steps: Array


class _State(struct.PyTreeNode, kw_only=True):
    y: jax.Array
    prices: jax.Array
    barrier: jax.Array
    stuck: jax.Array
    steps: jax.Array


def _newton(hessian: jax.Array, slope: jax.Array) -> jax.Array:
    """Ascent step of a concave model; directions of no or the wrong curvature take that curvature's size instead."""
    values, vectors = jnp.linalg.eigh(hessian)
    size = jnp.abs(values)
    return vectors @ ((vectors.T @ slope) / jnp.maximum(size, 1e-12 * size.max() + 1e-14))


def _length(along: Callable[[jax.Array], tuple[jax.Array, jax.Array]], expected: jax.Array, slack: jax.Array) -> jax.Array:
    """Longest of 1, ½, ¼, … of a step that keeps clear of the boundary and raises the merit by a part of what its slope promises."""
    before, _ = along(jnp.zeros(()))

    def too_far(length: jax.Array) -> jax.Array:
        after, moved = along(length)
        close = (moved < (1.0 - BOUNDARY) * slack).any()
        # at the last digits of the merit no increase can be seen
        return (close | (after < before + 1e-4 * length * expected - 1e-13 * (1.0 + jnp.abs(before)))) & (length > SHORTEST)

    return jax.lax.while_loop(too_far, lambda length: 0.5 * length, jnp.ones(()))


def maximize(
    objective: Callable[[jax.Array], jax.Array],
    constraints: Callable[[jax.Array], jax.Array],
    start: jax.Array,
    soft: jax.Array,
    last_barrier: Array = BARRIER,
) -> Optimum:
    """A local maximum of `objective(z)` under `constraints(z) ≥ 0`.

    Newton steps on `∇f + Jᵀλ = 0, λ c = μ` with a barrier parameter μ → 0. Soft constraints may be violated at the start, and are relaxed by
    one more unknown r ≥ 0, `c + r ≥ 0`, at `PENALTY · r`; it vanishes where they can be met. The others hold strictly at every step, so that
    functions need no meaning beyond them.

    Limits: the maximum, where the problem is concave; a local one otherwise.

    Args:
      objective: `[n]` to a scalar of order 1. constraints: `[n]` to `[c]`, each of order 1.
      start: `[n]`, strictly inside the constraints that are not soft. soft: which constraints are `[c]`, of 0 and 1.
      last_barrier: where to stop; the value is then within `[c] · last_barrier` of the optimum.
    """
    zero = jnp.zeros(1)

    def split(y: jax.Array) -> tuple[jax.Array, jax.Array]:
        z, r = y[:-1], y[-1]
        return objective(z) - PENALTY * r, jnp.concatenate([constraints(z) + soft * r, y[-1:]])

    def merit(y: jax.Array, barrier: jax.Array) -> jax.Array:
        value, slack = split(y)
        inside = (slack > 0.0).all() & jnp.isfinite(value)
        return jnp.where(inside, value + barrier * jnp.log(jnp.where(slack > 0.0, slack, 1.0)).sum(), -jnp.inf)

    def derivatives(y: jax.Array, prices: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        # second derivatives by differences: those of a large model take minutes to compile
        around = jnp.concatenate([y[None], y[None] + DIFFERENCE * jnp.eye(len(y))])
        slopes, jacobians = jax.vmap(jax.jacfwd(split))(around)
        total = slopes + jnp.einsum("c,pcn->pn", prices, jacobians)
        curvature = (total[1:] - total[:1]) / DIFFERENCE
        return slopes[0], jacobians[0], split(y)[1], 0.5 * (curvature + curvature.T)

    def step(state: _State) -> _State:
        y, prices = state.y, state.prices
        slope, jacobian, slack, curvature = derivatives(y, prices)
        error = jnp.maximum(jnp.abs(slope + jacobian.T @ prices).max(), jnp.abs(prices * slack - state.barrier).max())
        barrier = jnp.where((error < 10.0 * state.barrier) | state.stuck, SHRINK * state.barrier, state.barrier)
        gradient = slope + barrier * (jacobian.T @ (1.0 / slack))
        move = _newton(-curvature + (jacobian.T * (prices / slack)) @ jacobian, gradient)
        length = _length(lambda a: (merit(y + a * move, barrier), split(y + a * move)[1]), gradient @ move, slack)
        change = barrier / slack - prices - prices / slack * (jacobian @ move)
        room = jnp.where(change < 0.0, -BOUNDARY * prices / jnp.where(change < 0.0, change, -1.0), 1.0).min()
        y = y + length * move
        _, slack = split(y)
        # prices stay within a factor of those of the barrier alone, as convergence asks
        prices = jnp.clip(prices + jnp.minimum(room, 1.0) * change, 1e-10 * barrier / slack, 1e10 * barrier / slack)
        return _State(y=y, prices=prices, barrier=barrier, stuck=length <= SHORTEST, steps=state.steps + 1)

    def unfinished(state: _State) -> jax.Array:
        return (state.barrier > last_barrier) & (state.steps < STEPS)

    worst = jnp.max(-constraints(start) * soft)
    y = jnp.concatenate([start, jnp.maximum(worst, 0.0) + 0.1 + zero])
    barrier = jnp.asarray(1.0)
    state = _State(y=y, prices=barrier / split(y)[1], barrier=barrier, stuck=barrier < 0.0, steps=jnp.asarray(0))
    state = jax.lax.while_loop(unfinished, step, state)
    return _finish(objective, constraints, state)


def _finish(objective: Callable, constraints: Callable, state: _State) -> Optimum:
    z, prices = state.y[:-1], state.prices[:-1]
    slack = constraints(z)
    slope = jax.grad(lambda z: objective(z) + prices @ constraints(z))(z)
    residual = jnp.maximum(jnp.abs(slope).max(), jnp.maximum(jnp.abs(prices * slack).max(), jnp.max(-slack)))
    return Optimum(z=z, multipliers=prices, slack=slack, value=objective(z), residual=residual, steps=state.steps)
