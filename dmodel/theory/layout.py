"""How a run of the study is laid out: degrees of five kinds of parallelism at every level of the
network, and the pipeline's schedule."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dmodel import struct
from dmodel.smooth import ramp
from dmodel.types import Array

KINDS = ("dp", "tp_model", "tp_ff", "pp", "ep")
"""Kinds of parallelism; the two of tensor parallelism cut d_model and d_ff."""


class LevelLayout(struct.PyTreeNode, kw_only=True):
    """One way to run the steps of the study. Degrees are float leaves, so that they can be
    differentiated.

    Attributes:
      dp_levels, tp_model_levels, tp_ff_levels, pp_levels, ep_levels: factor of each degree at every
      level of the network, innermost
        first, `[K]` or `[K, *batch]`; the product of all is the number of GPUs.
      n_microbatches: m, per pipeline and step. interleave: v, model chunks per pipeline stage.
      zero_bubble: 1 = zero-bubble schedule (m ≥ 2 pp, v = 1), 0 = interleaved 1F1B.
      overlap_tp, overlap_dp, overlap_pp: 1 = that communication hides behind compute, that of
        experts with pp.
      recompute: 1 = forward passes are done again for the backward one. activations: 1 = memory
        counts activations.
    """

    dp_levels: Array
    tp_model_levels: Array
    tp_ff_levels: Array
    pp_levels: Array
    ep_levels: Array
    n_microbatches: Array
    interleave: Array = 1.0
    zero_bubble: Array = 0.0
    overlap_tp: Array = 1.0
    overlap_dp: Array = 0.0
    overlap_pp: Array = 1.0
    recompute: Array = 0.0
    activations: Array = 0.0

    @property
    def dp(self) -> jax.Array:
        """Replicas, each with its share of the batch."""
        return product(self.dp_levels)

    @property
    def tp_model(self) -> jax.Array:
        """Parts that d_model is cut into."""
        return product(self.tp_model_levels)

    @property
    def tp_ff(self) -> jax.Array:
        """Parts that d_ff is cut into."""
        return product(self.tp_ff_levels)

    @property
    def pp(self) -> jax.Array:
        """Pipeline stages."""
        return product(self.pp_levels)

    @property
    def ep(self) -> jax.Array:
        """Groups of experts; beside dp, unlike that of `dmodel.records`."""
        return product(self.ep_levels)

    @property
    def devices(self) -> jax.Array:
        """dp · tp_model · tp_ff · pp · ep."""
        return self.dp * self.tp_model * self.tp_ff * self.pp * self.ep


def product(levels: Array) -> jax.Array:
    """Product over levels, axis 0, one multiplication each: its slope is finite at any value."""
    first, *rest = jnp.unstack(jnp.asarray(levels))
    for factor in rest:
        first = first * factor
    return first


def above(levels: Array) -> jax.Array:
    """For each level the product of the factors above it, `[K, *batch]`: groups of the level that
    do the same side by side."""
    factors = jnp.unstack(jnp.asarray(levels))
    found = [jnp.ones_like(factors[-1])]
    for factor in factors[:0:-1]:
        found.append(found[-1] * factor)
    return jnp.stack(found[::-1])


def joined(levels: Array) -> jax.Array:
    """1 where a level joins several, 0 where it does not, `[K, *batch]`; linear for factors between
    one and two."""
    return ramp(jnp.asarray(levels) - 1.0)


def top(levels: Array) -> jax.Array:
    """1 at the highest level that joins several, 0 elsewhere, `[K, *batch]`; all 0 for a degree of
    one."""
    at = jnp.unstack(joined(levels))
    free, found = jnp.ones_like(at[-1]), []
    for here in at[::-1]:
        found.append(free * here)
        free = free * (1.0 - here)
    return jnp.stack(found[::-1])
