"""Delta nets: linear mixers whose state forgets and is corrected by every token."""

from __future__ import annotations

from flax import struct

from dmodel.blocks.mamba import handed_over
from dmodel.blocks.part import (
    Kept,
    Passes,
    Product,
    Site,
    Weights,
    Work,
    entered,
    wrapped,
)
from dmodel.smooth import ramp
from dmodel.types import Array


class Delta(struct.PyTreeNode, kw_only=True):
    """A gated delta net (Yang et al. 2024, arXiv 2412.06464), or Kimi delta attention (Kimi Team
    2025, arXiv 2510.26692).

    Attributes:
      key_heads: heads of queries and keys [count].
      value_heads: n, heads of values, each with a state of its own [count].
      key_dim: width of a head's queries and keys [count].
      value_dim: width of a head's values [count].
      taps: of the convolution of queries, keys and values [count].
      gate_rank: width of the latents of the output's gate [count]; 0 = projected directly.
      decay_rank: width of the latents of decays, one a channel of the keys [count]; 0 = one decay a
        head, projected directly.
      small: parameters of biases beside its norm, taps and scales [count]; 0 = none.
    """

    KIND = "delta"
    COUNTED = ("key_heads", "value_heads", "key_dim", "value_dim")

    key_heads: Array
    value_heads: Array
    key_dim: Array
    value_dim: Array
    taps: Array = 4.0
    gate_rank: Array = 0.0
    decay_rank: Array = 0.0
    small: Array = 0.0

    def parameters(self, h: Array) -> Weights:
        """Of its matrices and a norm h."""
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        return Weights(split=h * (2.0 * keys + 3.0 * values) + h + self.small)

    def work(self, at: Site) -> Work:
        """Two products around a scan."""
        values, tp = self.value_heads * self.value_dim, at.layout.tp
        low = ramp(self.gate_rank)
        return Work(
            products=(Product("out", at.t, at.h, values / tp, 1.0 + 0.0 * low),),
            streams=wrapped(at, Passes(0.0, 0.0)),
            mixed=1.0,
            ring=handed_over(at, values * self.key_dim),
        )

    def keeps(self, at: Site) -> Kept:
        """Its input."""
        return Kept(**entered(at))
