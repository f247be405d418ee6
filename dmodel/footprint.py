"""What a software stack holds in memory beyond the least: few numbers, fitted to measured peaks as
the coefficients are to times.

The defaults of `Footprint` are the least that the plan says; `SPECS` is what is expected of a stack
before any measurement.
"""

from __future__ import annotations

from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np

from dmodel import struct
from dmodel.coefficients import Spec
from dmodel.types import Array, at_hand, larger
from dmodel.units import GIB

RESERVED_BYTES = 2.5 * GIB
"""CUDA context, communication buffers, library workspace and what fragmentation wastes of one
device: assumed, not fitted."""

SPREAD = 0.3
"""Standard deviation of ln(measured / predicted) peak memory of a stack that nobody has measured:
assumed. Over 720 peaks of a public sweep (H100, 1B to 80B parameters, recomputation set to none)
the least footprint predicts a fifth too little, with this spread about it."""


RISK = 0.1
"""Probability that a device has too little memory that a plan may have where none is said."""


class Footprint(struct.PyTreeNode, kw_only=True):
    """Numbers of one stack; units and meanings in `SPECS`. Scalars, or one value per case
    `[*batch]`."""

    gradient: Array = 1.0
    optimizer: Array = 1.0
    activation: Array = 1.0
    copies: Array = 0.0
    kept: Array = 0.0
    gathered: Array = 0.0
    logit: Array = 1.0
    last_stage: Array = 1.0
    reserved: Array = RESERVED_BYTES


LEAST = Footprint()
"""No more than the plan says, and what the driver and libraries reserve."""

SPECS: dict[str, Spec] = {
    # 16 bits, fp32 accumulation alone, or both: 2 to 6 bytes
    "gradient": Spec("1", "bytes of gradients over the plan's", "positive", 1.25, 0.4, "software"),
    # a master weight and two moments in 8 to 12 bytes; with fp32 gradients of the shard 16
    "optimizer": Spec(
        "1", "bytes of optimizer state over the plan's", "positive", 1.0, 0.3, "software"
    ),
    # automatic differentiation also keeps what could be computed again: the activation's own
    # output, rotated queries and keys
    "activation": Spec(
        "1",
        "activations kept over what the backward pass must read",
        "positive",
        1.3,
        0.25,
        "software",
    ),
    "copies": Spec(
        "1",
        "share of the activations that tensor parallelism keeps twice",
        "share",
        0.1,
        1.0,
        "software",
    ),
    "kept": Spec(
        "1",
        "share of a layer's activations kept although recomputation is asked for",
        "share",
        0.1,
        2.5,
        "software",
    ),
    "gathered": Spec(
        "1",
        "share of the gathered inputs that stay while the host runs ahead",
        "share",
        0.2,
        2.0,
        "software",
    ),
    "logit": Spec("1", "bytes alive per logit over the plan's", "positive", 1.6, 0.4, "software"),
    "last_stage": Spec(
        "1",
        "1: the fullest device is reported; 0: one of the first stage",
        "share",
        0.5,
        2.0,
        "software",
    ),
    "reserved": Spec(
        "byte", "what is reported beside tensors", "positive", 0.5 * GIB, 1.5, "software"
    ),
}

NAMES: tuple[str, ...] = tuple(SPECS)


def whole(footprint: Footprint) -> Footprint:
    """The same stack's fullest device with everything that it holds, whatever the stack reports:
    for whether a plan fits."""
    return footprint.replace(
        last_stage=_ones_like(footprint.last_stage),
        reserved=larger(footprint.reserved, RESERVED_BYTES),
    )


def _ones_like(x: Array) -> Array:
    return np.ones_like(x) if at_hand(x) else jnp.ones_like(x)


def prior() -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of the unconstrained numbers before any measurement, `[number]`
    each."""
    x = np.array([s.default for s in SPECS.values()])
    share = np.array([s.bound == "share" for s in SPECS.values()])
    return np.log(x) - np.where(share, np.log1p(-np.where(share, x, 0.0)), 0.0), np.array(
        [s.width for s in SPECS.values()]
    )


def to_unconstrained(values: Footprint) -> np.ndarray:
    """Inverse of `from_unconstrained`, scalars; shares are kept a thousandth off their ends, where
    the logit has none."""
    rows = []
    for name, spec in SPECS.items():
        x = float(getattr(values, name))
        share = min(max(x, 1e-3), 1.0 - 1e-3)
        rows.append(np.log(share / (1.0 - share)) if spec.bound == "share" else np.log(x))
    return np.array(rows)


def from_unconstrained(z: Array) -> Footprint:
    """Logarithms of positive numbers and logits of shares, `[number, *batch]`, as numbers."""
    rows = {}
    for i, (name, spec) in enumerate(SPECS.items()):
        kind = jax.nn.sigmoid if spec.bound == "share" else jnp.exp
        rows[name] = kind(z[i])  # type: ignore
    return Footprint(**rows)


def share_at_risk(risk: float, spread: Array) -> Array:
    """Share of a device's memory that a plan may need at a probability that it is not enough [1]:
    `exp(spread Φ⁻¹(risk))`, the inverse of `cost.memory.out_of_memory_probability`.

    Args:
      risk: between 0 and 1 [1]. spread: standard deviation of the logarithm of the need.

    >>> f"{share_at_risk(0.1, 0.1):.3f} {share_at_risk(0.5, 0.1):.3f}"
    '0.880 1.000'
    """
    return np.exp(np.asarray(spread) * NormalDist().inv_cdf(risk))
