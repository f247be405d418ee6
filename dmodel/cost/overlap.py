"""What communication costs once compute hides some of it, and what waiting for the slowest device costs."""

from __future__ import annotations

import jax.numpy as jnp

from dmodel.smooth import SHARPNESS, positive_part
from dmodel.types import Array


def exposed_time(communication: Array, window: Array, overlap: Array, sharpness: float = SHARPNESS) -> Array:
    """Communication that is not hidden [s]: smooth positive part of `communication − ω · window`.

    Limits: all of it when ω = 0 or the window is empty; 0 when there is nothing to send.
    """
    return positive_part(communication, overlap * window, sharpness)


def straggler_share(devices: Array, jitter: Array) -> Array:
    """Relative delay of a step that waits for the slowest of n devices.

    The maximum of n normal jitters of size σ grows as `σ sqrt(2 ln n)`; here `σ x / sqrt(1 + x)` with `x = 2 ln n`, which agrees for large
    n and has a finite slope at n = 1, where it is 0.
    """
    x = 2.0 * jnp.log(devices)
    return jitter * x / jnp.sqrt(1.0 + x)
