"""Compressed attention: a window of tokens, and beside it keys that stand for several tokens."""

from __future__ import annotations

from flax import struct

from dmodel.blocks.attention import ALL
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
from dmodel.types import Array


class Compressed(struct.PyTreeNode, kw_only=True):
    """One head of keys, which are the values as well, for all heads of queries; compressed beyond a
    window (DeepSeek-V4; transformers' `deepseek_v4`).

    Attributes:
      n_heads: a, heads of queries [count].
      head_dim: e, width of a head, rotary part included [count].
      q_rank: width of the latents of queries [count].
      out_groups: groups of heads that are projected into latents of the output [count].
      out_rank: width of those latents, of one group [count].
      rope_dim: width of a head that is turned [count]; 0 = none.
      window: tokens that a query sees uncompressed [token]; `ALL` = those of the whole sequence.
      ratio: tokens that a compressed key stands for [token]; 0 = no compressed keys.
      overlap: 1 = compressed keys overlap, each of 2 ratio tokens; 0 = of ratio.
      index_heads: heads of the indexer of compressed keys [count]; 0 = none.
      index_dim: width of one of them [count]; 0 = none.
      index_top: compressed keys that a query attends to [count]; `ALL` = every one.
      residual_streams: r, streams between layers, mixed around the mixer and around the layer's
        feed-forward part (hyper-connections) [count]; 1 = one.
      small: parameters of sinks and biases beside norms and compressed keys' positions [count]; 0 =
        none.
    """

    KIND = "compressed"
    COUNTED = ("n_heads", "head_dim", "q_rank", "out_groups", "out_rank")
    CHOICES = frozenset(("overlap",))

    n_heads: Array
    head_dim: Array
    q_rank: Array
    out_groups: Array
    out_rank: Array
    rope_dim: Array = 0.0
    window: Array = ALL
    ratio: Array = 0.0
    overlap: Array = 0.0
    index_heads: Array = 0.0
    index_dim: Array = 0.0
    index_top: Array = ALL
    residual_streams: Array = 1.0
    small: Array = 0.0

    def parameters(self, h: Array) -> Weights:
        """Of its matrices and a norm h."""
        heads = self.n_heads * self.head_dim
        return Weights(split=heads * (self.q_rank + self.out_rank) + h + self.small)

    def work(self, at: Site) -> Work:
        """Products around the core."""
        tp = at.layout.tp
        return Work(
            products=(Product("out", at.t, at.h, self.out_groups * self.out_rank / tp),),
            streams=wrapped(at, Passes(0.0, 0.0)),
            mixed=1.0,
        )

    def keeps(self, at: Site) -> Kept:
        """Its input."""
        return Kept(**entered(at))
