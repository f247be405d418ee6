"""Failures and checkpoints: the share of time that a synchronous run on many devices trains.

One device that fails stops all; the run goes back to its last checkpoint. Failures come
independently, at one rate per device.

Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006, "A higher
order estimate of the optimum
checkpoint interval for restart dumps"; rates: Llama team 2024, "The Llama 3 herd of models" (arXiv
2407.21783), section 3.3.4.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dmodel import struct
from dmodel.errors import InputError
from dmodel.types import Array

DAY_S = 86400.0

LLAMA_3 = 419.0 / (54.0 * DAY_S * 16384.0)
"""Unexpected interruptions per device and second: 419 in 54 days on 16,384 H100; one in 5.8 years
of a device [1/s]."""


SHORTEST_S = 1e-6
"""No two checkpoints are closer: free ones would follow each other at once, and the shares be 0/0
[s]."""


class Reliability(struct.PyTreeNode, frozen=True, kw_only=True):
    """What failures cost.

    Args:
      failures_per_device_s: rate of interruptions of one device, its share of host and network with
        it [1/s]; 0 = never.
      checkpoint_s: training stands still for each checkpoint [s]; asynchronous ones cost the copy
        to host memory only.
      restart_s: from a failure until training goes on at the checkpoint [s]. restart_per_device_s:
        what each device adds to it, where processes and communicators start one after the other
        [s].
      write_s: an asynchronous checkpoint is on its way to storage, and not yet to be relied on [s];
        the next one waits for it.

    The defaults of checkpoint and restart are assumptions, chosen so that the run of the Llama 3
    report trains more than 90 % of the time, as it did.
    """

    failures_per_device_s: Array = LLAMA_3
    checkpoint_s: Array = 5.0
    restart_s: Array = 600.0
    restart_per_device_s: Array = 0.0
    write_s: Array = 0.0


def _check(devices: Array, reliability: Reliability) -> None:
    """Refuse plain numbers that are negative or none; arrays are taken as they are.

    Raises:
      InputError: with the name of the number.
    """
    for name, value in {"devices": devices, **vars(reliability)}.items():
        if isinstance(value, int | float) and not value >= 0.0:
            raise InputError(f"goodput: {name}: expected a number from 0 on; got {value!r}")


def mean_time_between_failures(devices: Array, reliability: Reliability) -> jax.Array:
    """Of the whole cluster: `M = 1 / (devices · rate)` [s]; infinite when devices never fail.

    >>> print(f"{mean_time_between_failures(16384.0, Reliability()) / 3600.0:.2f} hours")
    3.09 hours
    """
    return 1.0 / jnp.asarray(devices * reliability.failures_per_device_s, float)


def young_interval(mtbf_s: Array, checkpoint_s: Array) -> jax.Array:
    """Training between two checkpoints that loses least, to first order: `τ = sqrt(2 δ M)` [s]
    (Young 1974).

    Limits: too long once it is not far below M.
    """
    return _root(jnp.asarray(2.0 * checkpoint_s * mtbf_s))


def _root(x: jax.Array) -> jax.Array:
    """Square root, with slope 0 at 0: intervals so short are lengthened to `SHORTEST_S`, and 0 · ∞
    is no number."""
    above = x > 0.0
    return jnp.where(above, jnp.sqrt(jnp.where(above, x, 1.0)), 0.0)


def daly_interval(mtbf_s: Array, checkpoint_s: Array) -> jax.Array:
    """The same to higher order: `τ = sqrt(2 δ M) (1 + x/3 + x²/9) − δ`, `x = sqrt(δ / 2M)`, for δ <
    2M; else M (Daly 2006, eq. 37) [s].

    Limits: Young's as δ/M → 0; M when a checkpoint takes longer than two failures are apart.
    """
    mtbf_s, checkpoint_s = jnp.asarray(mtbf_s, float), jnp.asarray(checkpoint_s, float)
    x = _root(jnp.minimum(checkpoint_s / (2.0 * mtbf_s), 1.0))
    tau = young_interval(mtbf_s, checkpoint_s) * (1.0 + x / 3.0 + x**2 / 9.0) - checkpoint_s
    return jnp.where(checkpoint_s < 2.0 * mtbf_s, tau, mtbf_s)


class Shares(struct.PyTreeNode, kw_only=True):
    """Shares of wall time; they add up to 1 [1]: training that is kept, checkpoints, work done
    again after failures, restarts."""

    useful: Array
    checkpoints: Array
    lost: Array
    restarts: Array


def shares(devices: Array, reliability: Reliability, interval_s: Array | None = None) -> Shares:
    """Where the wall time of a synchronous run goes.

    Useful: `(τ / M) / (e^(R/M) (e^((τ + δ)/M) − 1))` (Daly 2006, eq. 20): exact for exponential
    failures, τ of training between checkpoints. Checkpoints take δ/τ of that, restarts `1 −
    e^(−R/M)`, also those that fail in turn; work done again is the rest. R is
    the restart, with what an unfinished asynchronous checkpoint sends back beside it; τ is no
    shorter than the write of one.

    Limits: `1 − δ/τ − (τ + δ)/2M − R/M` useful when failures are rare; 1 without failures and with
    free checkpoints; `e^(−R/M)` and below once failures are closer together than a restart: a
    cluster that waits for all its devices stops training.

    Args:
      devices: N. interval_s: τ [s]; None for Daly's optimum.

    Raises:
      InputError: a plain number is negative, or none.
    """
    _check(devices, reliability)
    r = reliability
    rate = jnp.asarray(devices * r.failures_per_device_s, float)
    # without failures every interval is as good as another, and there is none to be best
    reliable = rate <= 0.0
    mtbf = 1.0 / jnp.where(reliable, 1.0, rate)
    chosen = (
        daly_interval(mtbf, r.checkpoint_s)
        if interval_s is None
        else jnp.asarray(interval_s, float)
    )
    tau = jnp.maximum(jnp.maximum(chosen, r.write_s), SHORTEST_S)
    cycle = (tau + r.checkpoint_s) / mtbf
    back = (r.restart_s + r.restart_per_device_s * devices + r.write_s) / mtbf
    # by e^-x, which does not overflow where failures are frequent
    kept = jnp.exp(-back - cycle) / -jnp.expm1(-cycle) / mtbf
    healthy = jnp.ones(()) if interval_s is None else tau / (tau + r.checkpoint_s)
    useful = jnp.where(reliable, healthy, tau * kept)
    checkpoints = jnp.where(reliable, 1.0 - healthy, r.checkpoint_s * kept)
    restarts = jnp.where(reliable, 0.0, -jnp.expm1(-back))
    return Shares(
        useful=useful,
        checkpoints=checkpoints,
        lost=1.0 - useful - checkpoints - restarts,
        restarts=restarts,
    )


def goodput(devices: Array, reliability: Reliability, interval_s: Array | None = None) -> jax.Array:
    """Share of wall time that trains, checkpoints and failures, also those during checkpoints and
    restarts, taken off [1]: the useful one of `shares`.

    >>> print(f"{goodput(16384.0, Reliability()):.3f}")
    0.919
    """
    return jnp.asarray(shares(devices, reliability, interval_s).useful)


def largest_cluster(reliability: Reliability, share: float = 0.5) -> float:
    """Devices at which goodput falls to a share, by bisection of ln N; infinite when devices never
    fail [count].

    Raises:
      InputError: a share that is not between 0 and 1.

    >>> print(f"{largest_cluster(Reliability()):.2g}")
    1.8e+05
    """
    if not 0.0 < share < 1.0:
        raise InputError(
            f"share of time that trains: expected a number between 0 and 1; got {share!r}"
        )
    low, high = 0.0, 60.0
    if float(goodput(jnp.exp(high), reliability)) >= share:
        return float("inf")
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (
            (middle, high)
            if float(goodput(jnp.exp(middle), reliability)) >= share
            else (low, middle)
        )
    return float(jnp.exp(low))
