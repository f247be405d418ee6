"""Lightning attention: linear attention with a fixed decay a head, in blocks of tokens."""

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
from dmodel.types import Array


class Lightning(struct.PyTreeNode, kw_only=True):
    """Heads with a state `e × e` each (Qin et al. 2024, arXiv 2401.04658; MiniMax 2025, arXiv
    2501.08313).

    Attributes:
      n_heads: a, heads of queries, keys and values alike [count].
      head_dim: e, width of a head [count].
      small: parameters of norms of queries and keys and of biases, beside the norm of the output
        [count]; 0 = none.
    """

    KIND = "lightning"
    COUNTED = ("n_heads", "head_dim")

    n_heads: Array
    head_dim: Array
    small: Array = 0.0

    def parameters(self, h: Array) -> Weights:
        """`5 h a e`, the output's norm `a e`, a norm h."""
        inner = self.n_heads * self.head_dim
        return Weights(split=5.0 * h * inner + inner + h + self.small)

    def work(self, at: Site) -> Work:
        """Two products around the core."""
        inner, tp = self.n_heads * self.head_dim, at.layout.tp
        return Work(
            products=(
                Product("first", at.t, 4.0 * inner / tp, at.h),
                Product("out", at.t, at.h, inner / tp),
            ),
            streams=wrapped(at, Passes(0.0, 0.0)),
            mixed=1.0,
            ring=handed_over(at, inner * self.head_dim),
        )

    def keeps(self, at: Site) -> Kept:
        """Its input."""
        return Kept(**entered(at))
