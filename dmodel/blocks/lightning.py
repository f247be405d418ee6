"""Lightning attention: linear attention with a fixed decay a head, in blocks of tokens."""

from __future__ import annotations

from dmodel import struct
from dmodel.blocks.mamba import handed_over
from dmodel.blocks.part import (
    WORD,
    Core,
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

BLOCK = 256.0
"""Tokens of one block [token] (`BLOCK` of MiniMax-Text-01's `modeling_minimax_text_01.py`)."""

TOUCHED = Passes(20.0, 35.0)
"""Touches of the width of all heads [count]: SiLU of queries, keys and values (6; 9), the core (9;
twice that), the norm of the output (2; 3), its gate (3; 5)."""

STATES = Passes(8.0, 16.0)
"""Touches of the states of blocks, in words of 2 bytes [count]: in fp32 written, summed up in
place, read (vLLM's `lightning_attn.py`: kernels of the diagonal, of states, of their sums, of the
rest); twice that backward (assumed)."""


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
    SPLIT = ("n_heads",)
    COPIED = ()

    n_heads: Array
    head_dim: Array
    small: Array = 0.0

    def parameters(self, h: Array) -> Weights:
        """`5 h a e` (queries, keys, values, gate, output), the output's norm `a e`, a norm h."""
        inner = self.n_heads * self.head_dim
        return Weights(split=5.0 * h * inner + inner + h + self.small)

    def work(self, at: Site) -> Work:
        """Products around the core, in blocks of c tokens `4 e (c + e)` FLOPs a token and head.

        They are the block's scores and sums, all of them, the state read and added to. Decays are
        fixed, so there are no exponentials. Kernels: a norm, a residual, 3 products,
        SiLU, 4 of the core, the norm and the gate of the output.
        """
        inner, tp = self.n_heads * self.head_dim, at.layout.tp
        width = at.t * inner / tp
        states = width * self.head_dim / BLOCK
        inside = (n * width + m * states for n, m in zip(TOUCHED, STATES, strict=True))
        return Work(
            products=(
                Product("first", at.t, 4.0 * inner / tp, at.h),
                Product("out", at.t, at.h, inner / tp),
            ),
            cores=(Core(4.0 * width * (BLOCK + self.head_dim)),),
            streams=wrapped(at, Passes(*inside)),
            kernels=12.0 + at.several,
            dense=3.0,
            mixed=1.0,
            returned=width,
            ring=handed_over(at, inner * self.head_dim),
        )

    def keeps(self, at: Site) -> Kept:
        """Queries, keys and values before and behind SiLU, the gate, the output.

        The output before and behind its norm, and behind its gate; states are made again.
        """
        width = at.t * self.n_heads * self.head_dim / at.layout.tp
        return Kept(
            **entered(at), queries=7.0 * WORD * width, core=(2.0 * WORD + at.operand) * width
        )
