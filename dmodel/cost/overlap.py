"""What communication costs once compute hides some of it, and what waiting for the slowest device
costs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dmodel.once import once
from dmodel.smooth import SHARPNESS, positive_part, with_slope
from dmodel.types import Array, at_hand


def exposed_time(
    communication: Array, window: Array, overlap: Array, sharpness: float = SHARPNESS
) -> jax.Array:
    """Communication that is not hidden [s]: smooth positive part of `communication − ω · window`.

    Limits: all of it when ω = 0 or the window is empty; 0 when there is nothing to send.
    """
    return jnp.asarray(positive_part(communication, overlap * window, sharpness))


MOST_SLOWED = 0.9
"""Largest κ ω: beyond it whatever hides makes nearly as much room as it takes."""


def _lengthened_slope(primals: tuple, tangents: tuple) -> tuple:
    (overlap, contention), (d_overlap, d_contention) = primals, tangents
    slowed = contention * overlap
    more = 1.0 / (1.0 - jnp.minimum(slowed, MOST_SLOWED))
    found = overlap * more
    # of a minimum that is a tie, half
    within = 0.5 - 0.5 * lax.sign(slowed - MOST_SLOWED)
    by_overlap = more * (1.0 + within * contention * found)
    return found, by_overlap * d_overlap + within * found * found * d_contention


@with_slope(_lengthened_slope)
def _lengthened(overlap: jax.Array, contention: jax.Array) -> jax.Array:
    return overlap / (1.0 - jnp.minimum(contention * overlap, MOST_SLOWED))


def lengthened(overlap: Array, contention: Array) -> jax.Array:
    """Share of a window that hides communication, once the communication in it has slowed its
    compute: `ω / (1 − κ ω)`.

    Hidden time h ≤ ω (W + κ h) for a window of W seconds of undisturbed compute, each hidden second
    of which lengthens it by κ; κ ω counts as `MOST_SLOWED` at most.

    Limits: ω without contention. A step of compute W wholly behind a longer message C takes `C + (1
    − ω)/(1 − κω) W`: C when ω = 1.
    """
    return _lengthened(jnp.asarray(overlap), jnp.asarray(contention))


def straggler_share(devices: Array, jitter: Array) -> Array:
    """Relative delay of a step that waits for the slowest of n devices.

    The maximum of n normal jitters of size σ grows as `σ sqrt(2 ln n)`; here `σ x / sqrt(1 + x)`
    with `x = 2 ln n`, which agrees for large n and has a finite slope at n = 1, where it is 0.
    """
    return jitter * _spread(devices)


@once
def _spread(devices: Array) -> Array:
    """The maximum of n normal deviations over one of them [1]."""
    if at_hand(devices):
        x = 2.0 * np.log(devices)
        return x / np.sqrt(1.0 + x)
    x = 2.0 * jnp.log(devices)
    return x * lax.rsqrt(1.0 + x)
