"""Maxima, minima and positive parts that are homogeneous of degree 1, smooth at a chosen sharpness
and hard at infinity.

`f(c·x) = c·f(x)` keeps units and makes elasticities add up; a log-sum-exp in seconds would break
both. Every function has a
`custom_jvp` that reuses the ratios of the value: cheap, and finite at zeros and ties, where the
textbook derivative is 0/0.

`sharpness` is static: a power of two (2, 4, 8, …) is computed by squaring and square roots only,
infinity is the hard function.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from math import isinf, log2, prod
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dmodel.types import Array, at_hand

SHARPNESS = 8.0
"""Default sharpness p: at a tie of two, the smooth maximum is 2^(1/8) = 9 % above the hard one."""

TIE = 1e-12
"""Values this close, relatively, count as equal in the gradient of the hard maximum, which is the
mean of theirs."""


def _check(sharpness: float) -> None:
    if not (isinf(sharpness) or (sharpness >= 2.0 and log2(sharpness).is_integer())):
        raise ValueError(
            f"sharpness: expected a power of two from 2 on, or infinity; got {sharpness!r}"
        )


def with_slope(
    rule: Callable[..., tuple], static: tuple[int, ...] = ()
) -> Callable[[Callable[..., jax.Array]], Callable[..., Any]]:
    """Give a function the rule of its slopes; both are traced once for each shape."""

    def decorated(function: Callable[..., jax.Array]) -> Callable[..., Any]:
        made = jax.custom_jvp(function, nondiff_argnums=static)
        made.defjvp(rule)
        return jax.jit(made, static_argnums=static)

    return decorated


def _divisor(x: jax.Array) -> jax.Array:
    """A non-negative x to divide by, or to take a root of, so that 0/0 is 0 and slopes are finite:
    at least the root of the smallest number, whose inverse squared is finite in slopes of
    slopes."""
    return lax.max(x, x.dtype.type(float(jnp.finfo(x.dtype).tiny) ** 0.5))


def _squares(x: jax.Array, sharpness: float) -> list[jax.Array]:
    """x, x², x⁴, … up to x^p for p a power of two."""
    return list(accumulate(range(int(log2(sharpness))), lambda y, _: y * y, initial=x))


def _roots(x: jax.Array, sharpness: float) -> list[jax.Array]:
    """x^(1/2), x^(1/4), … down to x^(1/p) for p a power of two."""
    return list(accumulate(range(int(log2(sharpness))), lambda y, _: lax.sqrt(y), initial=x))[1:]


def _scale(x: jax.Array, sharpness: float) -> jax.Array:
    """What values are divided by: a sum is cheaper than a maximum, but a high power of x / Σx would
    underflow."""
    return x.sum(0) if sharpness <= 64.0 else x.max(0)


def _maximum_jvp(sharpness: float, primals: tuple, tangents: tuple) -> tuple:
    (x,), (dx,) = primals, tangents
    if isinf(sharpness):
        value = maximum(x, sharpness)
        # a compiler may round x in one fusion otherwise than in another: by equality alone nothing
        # might hit, and 0/0
        hit = (x >= value[None] * (1.0 - TIE)).astype(x.dtype)
        return value, (hit * dx).sum(0) / hit.sum(0)
    scale = _scale(x, sharpness)
    # d max_p / dx_i = (x_i / max_p)^(p-1); share^p / share would be 0/0 at zero, so the power p-1
    # is built as 1+2+4+…
    *lower, highest = _squares(x / _divisor(scale)[None], sharpness)
    total = _divisor(highest.sum(0))
    root = _roots(total, sharpness)[-1]
    slope = prod(lower[1:], start=lower[0]) * (root / total)[None]
    return scale * root, (slope * dx).sum(0)


@with_slope(_maximum_jvp, (1,))
def maximum(x: jax.Array, sharpness: float = SHARPNESS) -> jax.Array:
    """Smooth maximum over axis 0 of non-negative values.

    `max_p(x) = (Σ_i x_i^p)^(1/p)`, computed on `x / Σx` (`x / max x` for p > 64), so that nothing
    over- or underflows.

    Limits: the hard maximum as p → ∞; x when there is one value; 0, with a zero gradient, when all
    values are 0.

    Args:
      x: values, `[n, *batch]`, any unit, ≥ 0.
      sharpness: p, a power of two, or infinity for the hard maximum.

    Returns:
      `[*batch]`, the unit of x.
    """
    _check(sharpness)
    if isinf(sharpness):
        return x.max(0)
    scale = _scale(x, sharpness)
    powers = _squares(x / _divisor(scale)[None], sharpness)
    return scale * _roots(powers[-1].sum(0), sharpness)[-1]


def _maximum_of_two_jvp(sharpness: float, primals: tuple, tangents: tuple) -> tuple:
    (a, b), (da, db) = primals, tangents
    scale = a + b
    whole = _divisor(scale)
    *first, a_power = _squares(a / whole, sharpness)
    *second, b_power = _squares(b / whole, sharpness)
    total = _divisor(a_power + b_power)
    root = _roots(total, sharpness)[-1]
    over = root / total
    by_a, by_b = (prod(lower, start=over) for lower in (first, second))
    return scale * root, by_a * da + by_b * db


@with_slope(_maximum_of_two_jvp, (2,))
def _maximum_of_two(a: jax.Array, b: jax.Array, sharpness: float) -> jax.Array:
    scale = a + b
    whole = _divisor(scale)
    total = _squares(a / whole, sharpness)[-1] + _squares(b / whole, sharpness)[-1]
    return scale * _roots(total, sharpness)[-1]


def maximum_of_two(a: Array, b: Array, sharpness: float = SHARPNESS) -> Any:
    """`maximum` of two values that are not stacked, broadcastable; the hard one by numpy where
    both are at hand."""
    _check(sharpness)
    if isinf(sharpness) and at_hand(a, b):
        return np.maximum(a, b)
    a, b = jnp.broadcast_arrays(a, b)
    if sharpness > 64.0:
        return maximum(jnp.stack([a, b]), sharpness)
    return _maximum_of_two(a, b, sharpness)


def _parts(low: jax.Array, high: jax.Array, sharpness: float) -> tuple[jax.Array, ...]:
    """What `excess` and its slopes have in common.

    Returns:
      `scale`; of `l = low / scale` and `h = high / scale`: `l^(p−1)`, `h^(p−1)`, `h^p`,
      `s^p = l^p + h^p`, s, and the quotient of `s^p − l^p` and `s − l`, `(s + l) (s² + l²) …`.
    """
    scale = low + high if sharpness <= 64.0 else lax.max(lax.abs(low), lax.abs(high))
    # a difference that should be 0 may be a hair below it
    whole = _divisor(lax.abs(scale))
    *lows, low_power = _squares(low / whole, sharpness)
    *highs, high_power = _squares(high / whole, sharpness)
    total = _divisor(low_power + high_power)
    roots = _roots(total, sharpness)
    first, *others = (a + b for a, b in zip(roots, lows[::-1], strict=True))
    before, behind = (prod(powers[1:], start=powers[0]) for powers in (lows, highs))
    quotient = _divisor(prod(others, start=first))
    return scale, before, behind, high_power, total, roots[-1], quotient


def _excess_jvp(sharpness: float, primals: tuple, tangents: tuple) -> tuple:
    (low, high), (d_low, d_high) = primals, tangents
    if isinf(sharpness):
        slope = 0.5 * (1.0 + jnp.sign(high - low))
        return excess(low, high, sharpness), slope * (d_high - d_low)
    scale, before, behind, high_power, total, root, quotient = _parts(low, high, sharpness)
    # d/d high = (high / s)^(p−1); d/d low = (low / s)^(p−1) − 1, whose digits a difference loses
    by_high = behind * (root / total)
    by_low = (high_power / total) * (before / quotient - 1.0)
    return scale * (high_power / quotient), by_high * d_high + by_low * d_low


@with_slope(_excess_jvp, (2,))
def excess(low: jax.Array, high: jax.Array, sharpness: float = SHARPNESS) -> jax.Array:
    """What the smooth maximum of two non-negative values adds to the first one: `max_p(low, high) −
    low`, without cancellation.

    `s^p − low^p = (s − low) (s + low) (s² + low²) … = high^p` for s the maximum and p a power of
    two.

    Limits: high when low = 0; `high (high / low)^(p−1) / p` for low ≫ high; 0 when high = 0;
    max(high − low, 0) as p → ∞.

    Args:
      low, high: ≥ 0, same unit and shape.
    """
    _check(sharpness)
    if isinf(sharpness):
        return jnp.maximum(high - low, 0.0)
    scale, _, _, high_power, _, _, quotient = _parts(low, high, sharpness)
    return scale * (high_power / quotient)


def _positive_part_jvp(sharpness: float, primals: tuple, tangents: tuple) -> tuple:
    (cost, cover), (d_cost, d_cover) = primals, tangents
    gap = cost - cover
    if isinf(sharpness):
        slope, some = 0.5 * (1.0 + jnp.sign(gap)), cost + cover > 0.0
        value = _positive_part(cost, cover, sharpness)
        return value, jnp.where(some, slope, 1.0) * d_cost - jnp.where(some, slope, 0.0) * d_cover
    value, root = _positive_root(gap, cost * cover, sharpness)
    delta, least = 1.0 / sharpness**2, float(jnp.finfo(gap.dtype).tiny) ** 0.5
    # the value solves x² − (c − w) x − δ c w = 0, and 2 x − (c − w) is the root
    over = 1.0 / (root + least)
    by_cost = (value + delta * cover + least) * over
    by_cover = (delta * cost - value) * over
    return value, by_cost * d_cost + by_cover * d_cover


@with_slope(_positive_part_jvp, (2,))
def _positive_part(cost: jax.Array, cover: jax.Array, sharpness: float) -> jax.Array:
    gap = cost - cover
    if isinf(sharpness):
        return jnp.maximum(gap, 0.0)
    return _positive_root(gap, cost * cover, sharpness)[0]


def _positive_root(
    gap: jax.Array, product: jax.Array, sharpness: float
) -> tuple[jax.Array, jax.Array]:
    """Positive root of `x² − gap x − product / p²`, and twice its distance from the mean of both
    roots."""
    part = (4.0 / sharpness**2) * product
    root = lax.sqrt(_divisor(gap * gap + part))
    # for cover >> cost the difference of gap and root would cancel; the conjugate form does not
    sum_ = lax.abs(gap) + root
    return 0.5 * lax.select(gap > 0.0, sum_, part / _divisor(sum_)), root


def positive_part(cost: Array, cover: Array, sharpness: float = SHARPNESS) -> jax.Array:
    """Smooth positive part of `cost - cover`: what is left of a cost when a cover hides some of it.

    `½ (c − w + sqrt((c − w)² + 4 c w / p²))` for cost c and cover w.

    Limits: exactly c when w = 0, exactly 0 when c = 0, `c / p` at c = w, and max(c − w, 0) as p →
    ∞.
    The gradient is finite everywhere; at c = w = 0 it is that of a cost without cover, at a hard
    tie the mean of its two sides.

    Args:
      cost, cover: ≥ 0, same unit, broadcastable.
      sharpness: p ≥ 2, or infinity.
    """
    cost, cover = jnp.broadcast_arrays(cost, cover)
    return _positive_part(cost, cover, sharpness)


def minimum(x: jax.Array, sharpness: float = SHARPNESS) -> jax.Array:
    """Smooth minimum over axis 0 of non-negative values: `Σx − max_p` for two values, hard as p →
    ∞.

    `min_p(a, b) = a − positive_part(a, b)` is exact when either is 0.
    """
    low, *others = jnp.unstack(x)
    for other in others:
        low = minimum_of_two(low, other, sharpness)
    return low


def minimum_of_two(a: Array, b: Array, sharpness: float = SHARPNESS) -> jax.Array:
    """`minimum` of two values that are not stacked, broadcastable."""
    return jnp.asarray(a - positive_part(a, b, sharpness))


def _clip_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x, low, high), (dx, d_low, d_high) = primals, tangents
    inner = jnp.maximum(x, low)
    above = 0.5 + 0.5 * lax.sign(x - low)
    below = 0.5 - 0.5 * lax.sign(inner - high)
    by_x = below * above
    slope = by_x * dx + (below - by_x) * d_low + (1.0 - below) * d_high
    return jnp.minimum(inner, high), slope


@with_slope(_clip_jvp)
def clip(x: Array, low: Array, high: Array) -> jax.Array:
    """`min(max(x, low), high)`, in every sharpness.

    The gradient at both ends is the mean of the two sides, as that of `jnp.clip`; this one takes
    fewer operations.
    """
    return jnp.minimum(jnp.maximum(x, low), high)


@overload
def ramp(x: jax.Array) -> jax.Array: ...
@overload
def ramp(x: Array) -> Array: ...
def ramp(x: Array) -> Array:
    """0 below 0, 1 above 1, x in between: `clip(x, 0, 1)`, in every sharpness; by numpy of what is
    at hand.

    The gradient at both corners is ½, the mean of the two sides, as that of `jnp.clip`; this one
    takes a third of its operations.
    """
    return np.clip(x, 0.0, 1.0) if at_hand(x) else _ramp(jnp.asarray(x))


def _ramp_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x,), (dx,) = primals, tangents
    return _ramp(x), (0.5 + 0.5 * lax.sign(x - x * x)) * dx


@with_slope(_ramp_jvp)
def _ramp(x: jax.Array) -> jax.Array:
    return lax.clamp(x.dtype.type(0.0), x, x.dtype.type(1.0))


def _positive_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x,), (dx,) = primals, tangents
    return positive(x), (0.5 + 0.5 * lax.sign(x)) * dx


@with_slope(_positive_jvp)
def positive(x: jax.Array) -> jax.Array:
    """`max(x, 0)`, in every sharpness; at 0 the gradient is ½, the mean of the two sides."""
    return lax.max(x, x.dtype.type(0.0))


def _inverse_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x,), (dx,) = primals, tangents
    value = inverse(x)
    return value, -(value * value) * dx


@with_slope(_inverse_jvp)
def inverse(x: jax.Array) -> jax.Array:
    """`1 / x`, whose slope `−1/x²` is that of the value: half the operations of a quotient's."""
    return 1.0 / x
