"""What communication costs once compute hides some of it, and what waiting for the slowest device
costs."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dmodel.smooth import SHARPNESS, positive_part
from dmodel.types import Array


def exposed_time(
    communication: Array, window: Array, overlap: Array, sharpness: float = SHARPNESS
) -> jax.Array:
    """Communication that is not hidden [s]: smooth positive part of `communication − ω · window`.

    Limits: all of it when ω = 0 or the window is empty; 0 when there is nothing to send.
    """
    return jnp.asarray(positive_part(communication, overlap * window, sharpness))


MOST_SLOWED = 0.9
"""Largest κ ω: beyond it whatever hides makes nearly as much room as it takes."""


def lengthened(overlap: Array, contention: Array) -> jax.Array:
    """Share of a window that hides communication, once the communication in it has slowed its
    compute: `ω / (1 − κ ω)`.

    Hidden time h ≤ ω (W + κ h) for a window of W seconds of undisturbed compute, each hidden second
    of which lengthens it by κ; κ ω counts as `MOST_SLOWED` at most.

    Limits: ω without contention. A step of compute W wholly behind a longer message C takes `C + (1
    − ω)/(1 − κω) W`: C when ω = 1.
    """
    return jnp.asarray(overlap / (1.0 - jnp.minimum(contention * overlap, MOST_SLOWED)))


def straggler_share(devices: Array, jitter: Array) -> Array:
    """Relative delay of a step that waits for the slowest of n devices.

    The maximum of n normal jitters of size σ grows as `σ sqrt(2 ln n)`; here `σ x / sqrt(1 + x)`
    with `x = 2 ln n`, which agrees for large n and has a finite slope at n = 1, where it is 0.
    """
    x = 2.0 * jnp.log(devices)
    return jitter * x / jnp.sqrt(1.0 + x)
