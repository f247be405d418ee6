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

from functools import partial
from math import isinf, log2
from typing import overload

import jax
import jax.numpy as jnp
import numpy as np

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


def _nonzero(x: jax.Array) -> jax.Array:
    """A non-negative x to divide by: 0 becomes 1, so that 0/0 is 0; not the smallest number, whose
    inverse squared is infinite in slopes
    of slopes."""
    return jnp.where(x >= jnp.finfo(x.dtype).tiny, x, 1.0)


def _power(x: jax.Array, sharpness: float) -> jax.Array:
    """x^p for p a power of two, by squaring."""
    for _ in range(int(log2(sharpness))):
        x = x * x
    return x


def _root(x: jax.Array, sharpness: float) -> jax.Array:
    """x^(1/p) for p a power of two, by square roots."""
    for _ in range(int(log2(sharpness))):
        x = jnp.sqrt(x)
    return x


@partial(jax.custom_jvp, nondiff_argnums=(1,))
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
    return scale * _root(_power(x / _nonzero(scale)[None], sharpness).sum(0), sharpness)


def _scale(x: jax.Array, sharpness: float) -> jax.Array:
    """What values are divided by: a sum is cheaper than a maximum, but a high power of x / Σx would
    underflow."""
    return x.sum(0) if sharpness <= 64.0 else x.max(0)


@maximum.defjvp
def _maximum_jvp(sharpness: float, primals: tuple, tangents: tuple) -> tuple:
    (x,), (dx,) = primals, tangents
    if isinf(sharpness):
        value = maximum(x, sharpness)
        # a compiler may round x in one fusion otherwise than in another: by equality alone nothing
        # might hit, and 0/0
        hit = (x >= value[None] * (1.0 - TIE)).astype(x.dtype)
        return value, (hit * dx).sum(0) / hit.sum(0)
    scale = _scale(x, sharpness)
    share = x / _nonzero(scale)[None]
    # d max_p / dx_i = (x_i / max_p)^(p-1); share^p / share would be 0/0 at zero, so the power p-1
    # is built as 1+2+4+…
    weight, square = share, share
    for _ in range(int(log2(sharpness)) - 1):
        square = square * square
        weight = weight * square
    total = _nonzero((square * square).sum(0))
    root = _root(total, sharpness)
    return scale * root, root / total * (weight * dx).sum(0)


def _geometric(x: jax.Array, sharpness: float) -> jax.Array:
    """`1 + x + … + x^(p−2)`; above p = 16, where p steps would be long to compile, as `(1 + x) (1 +
    x²) (1 + x⁴) … − x^(p−1)`."""
    series = jnp.ones_like(x)
    if sharpness <= 16.0:
        for _ in range(int(sharpness) - 2):
            series = 1.0 + x * series
        return series
    last = jnp.ones_like(x)
    for _ in range(int(log2(sharpness))):
        series, last, x = series * (1.0 + x), last * x, x * x
    return series - last


@partial(jax.custom_jvp, nondiff_argnums=(2,))
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
    if isinf(sharpness):
        return jnp.maximum(high - low, 0.0)
    value = maximum(jnp.stack([low, high]), sharpness)
    share, rest = low / _nonzero(value), high / _nonzero(value)
    below = 1.0 + share
    for _ in range(int(log2(sharpness)) - 1):
        share = share * share
        below = below * (1.0 + share)
    return value * _power(rest, sharpness) / below


@excess.defjvp
def _excess_jvp(sharpness: float, primals: tuple, tangents: tuple) -> tuple:
    (low, high), (d_low, d_high) = primals, tangents
    found = excess(low, high, sharpness)
    if isinf(sharpness):
        slope = 0.5 * (1.0 + jnp.sign(high - low))
        return found, slope * (d_high - d_low)
    value = _nonzero(low + found)
    share, rest = low / value, high / value
    # d/d low = −(1 − share^(p−1)), by the geometric series; d/d high = rest^(p−1)
    series = _geometric(share, sharpness)
    by_high = rest
    for _ in range(int(log2(sharpness)) - 1):
        by_high = by_high * by_high * rest
    return found, by_high * d_high - found / value * series * d_low


@partial(jax.custom_jvp, nondiff_argnums=(2,))
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
    gap = jnp.asarray(cost - cover)
    if isinf(sharpness):
        return jnp.maximum(gap, 0.0)
    delta = 1.0 / sharpness**2
    root = jnp.sqrt(gap * gap + 4.0 * delta * cost * cover)
    # for cover >> cost the sum would cancel; the conjugate form does not
    return jnp.where(
        gap >= 0.0,
        0.5 * (gap + root),
        0.5 * (4.0 * delta * cost * cover) / jnp.where(root > gap, root - gap, 1.0),
    )


@positive_part.defjvp
def _positive_part_jvp(sharpness: float, primals: tuple, tangents: tuple) -> tuple:
    (cost, cover), (d_cost, d_cover) = primals, tangents
    value = positive_part(cost, cover, sharpness)
    gap = jnp.asarray(cost - cover)
    if isinf(sharpness):
        slope, some = 0.5 * (1.0 + jnp.sign(gap)), cost + cover > 0.0
        return value, jnp.where(some, slope, 1.0) * d_cost - jnp.where(some, slope, 0.0) * d_cover
    delta = 1.0 / sharpness**2
    root = jnp.sqrt(gap * gap + 4.0 * delta * cost * cover)
    some = root > 0.0
    safe = jnp.where(some, root, jnp.inf)
    # the value solves x² − (c − w) x − δ c w = 0, and 2 x − (c − w) is the root
    by_cost = jnp.where(some, (value + delta * cover) / safe, 1.0)
    by_cover = (delta * cost - value) / safe
    return value, by_cost * d_cost + by_cover * d_cover


def minimum(x: jax.Array, sharpness: float = SHARPNESS) -> jax.Array:
    """Smooth minimum over axis 0 of non-negative values: `Σx − max_p` for two values, hard as p →
    ∞.

    `min_p(a, b) = a − positive_part(a, b)` is exact when either is 0.
    """
    low, *others = jnp.unstack(x)
    for other in others:
        low = low - positive_part(low, other, sharpness)
    return low


@jax.custom_jvp
def clip(x: Array, low: Array, high: Array) -> jax.Array:
    """`min(max(x, low), high)`, in every sharpness.

    The gradient at both ends is the mean of the two sides, as that of `jnp.clip`; this one takes
    fewer operations.
    """
    return jnp.clip(x, low, high)


@clip.defjvp
def _clip_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x, low, high), (dx, d_low, d_high) = primals, tangents
    above = 0.5 + 0.5 * jnp.sign(x - low)
    below = 0.5 - 0.5 * jnp.sign(jnp.maximum(x, low) - high)
    return clip(x, low, high), below * (above * dx + (1.0 - above) * d_low) + (1.0 - below) * d_high


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
    return np.clip(x, 0.0, 1.0) if at_hand(x) else _ramp(x)


@jax.custom_jvp
def _ramp(x: jax.Array) -> jax.Array:
    return jnp.clip(x, 0.0, 1.0)


@_ramp.defjvp
def _ramp_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x,), (dx,) = primals, tangents
    return _ramp(x), 0.5 * (jnp.sign(x) - jnp.sign(x - 1.0)) * dx


@jax.custom_jvp
def inverse(x: jax.Array) -> jax.Array:
    """`1 / x`, whose slope `−1/x²` is that of the value: half the operations of a quotient's."""
    return 1.0 / x


@inverse.defjvp
def _inverse_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x,), (dx,) = primals, tangents
    value = inverse(x)
    return value, -(value * value) * dx
