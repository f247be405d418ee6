"""Attention: every head scores keys and sums values; over all tokens, a window, or a chunk."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from dmodel import struct
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
from dmodel.types import Array, at_hand, larger, smaller

ALL = 1e12
"""A window, or a chunk, that no sequence fills [token]."""

ROTARY = Passes(2.0, 2.0)
"""Touches of queries and keys by a rotary embedding in one kernel [count]."""

SPLIT_ROTARY = Passes(12.0, 10.0)
"""The same in PyTorch's operations (Megatron-LM's `rope_utils.py`: two products, half negated, two
joins, a sum)."""

GATE = Passes(3.0, 5.0)
"""Touches of attention's output by a gate: both read, the product written; backward both and the
gradient read, two written."""

MOVED, MOVED_SPLIT = 13.0, 24.0
"""Bytes that unfused attention moves for a score, forward: by one kernel for scale, mask and
softmax in 16 bits, 13 (written and read, probabilities written and read, and dropout's read, write
and mask); by a kernel each, 24: written (2), scaled (4), masked (4), softmax to fp32 (6), cast (6),
read (2), no dropout (Transformers, modeling_llama.py, eager attention, 2023-03 to today)."""

HELD, HELD_SPLIT = 5.0, 6.0
"""Bytes of a score that unfused attention keeps: probabilities before and after dropout, and its
mask (Korthikanti et al. 2022); or probabilities in fp32, and cast."""

VECTOR = 16.0
"""Peak rate of 16-bit products on matrix units over that without: 312 to 19.5 TFLOP/s on A100, 989
to 67 on H100 (NVIDIA data sheets)."""


def seen(at: Site, window: Array, chunk: Array = ALL) -> Array:
    """Share of the sequence that a token's keys are, of those that fused kernels go through [1].

    With ω the window over the sequence, a causal token sees `ω − ω²/2` on average, in a chunk of
    the sequence's share χ `χ (ω' − ω'²/2)`, ω' the window over the chunk. Where ranks of cp hold
    the sequence in order, the last one that holds a chunk decides, of `n = max(χ cp, 1)`: `ω' − n
    max(ω' − 1 + 1/n, 0)² / 2`, the same for 1. Kernels that are not fused go through all keys.

    Limits: a last chunk that the sequence does not fill counts as full.
    """
    balanced = at.software.cp_balanced
    inside = smaller(chunk / at.s, 1.0)
    share = smaller(window / (inside * at.s), 1.0)
    ranks = larger(inside * at.layout.cp, 1.0)
    last = ranks * larger(share - 1.0 + 1.0 / ranks, 0.0) ** 2
    skipped = balanced * share**2 + (1.0 - balanced) * last
    through = inside * (share - 0.5 * at.causal * skipped)
    return 1.0 - at.software.flash * (1.0 - through)


def scored(at: Site, heads: Array, sizes: Array, share: Array) -> Core:
    """The core of attention over a share of the keys: `2 t s a (scores' + values' size) share / tp`
    FLOPs and one exponential for each score; softmax's traffic where it is not fused, `13 b a s
    (s/cp) / tp`, or 24 (`MOVED`, `MOVED_SPLIT`).

    Args:
      sizes: of a head's scores and values together [count].
    """
    pairs = at.t * at.s * heads / at.layout.tp
    flash = at.software.flash
    scores = pairs * share
    moved = MOVED + (MOVED_SPLIT - MOVED) * at.software.split_softmax
    return Core(2.0 * scores * sizes, flash * scores, moved * pairs * (1.0 - flash))


def off_matrix_units(head_dim: Array, flash: Array) -> Array:
    """Times as long as unfused attention takes because its heads miss the matrix units [1]: 16
    where a head is no multiple of 8 elements.

    Such a head does not begin on 16 bytes, which loads into the matrix units need (NVIDIA, Deep
    Learning Performance Guide). On 384 A100, 182B with 128 heads of 108 took 163 s a step, with 96
    of 144 and 64 of 216 125 and 121 (BigScience chronicles). Flash attention pads. Heads are whole
    numbers: one within half an element of a multiple counts as one, so that the slope beside it is
    0.
    """
    at = np if at_hand(head_dim, flash) else jnp
    away = at.abs(head_dim - 8.0 * at.round(head_dim / 8.0))
    return 1.0 + (VECTOR - 1.0) * (1.0 - flash) * at.where(away > 0.5, 1.0, 0.0)


def rotated(at: Site, turned: Array) -> Passes:
    """Elements that turning queries and keys touches; turned: their width [count]."""
    apart = at.software.split_rotary
    width = at.t * turned / at.layout.tp
    return Passes(
        *(width * (a + (b - a) * apart) for a, b in zip(ROTARY, SPLIT_ROTARY, strict=True))
    )


def kernels(at: Site) -> Array:
    """Kernels of attention in a forward layer [count]: 2 products, a norm, a residual, rotary (1,
    or 12), the core (1 fused, 6 not), 1 more for a tensor-parallel collective."""
    rotary, unfused = at.software.split_rotary, 1.0 - at.software.flash
    return 6.0 + 5.0 * unfused + 11.0 * rotary + at.several


def scores_kept(at: Site, heads: Array) -> Array:
    """Bytes of scores that unfused attention keeps, `5 t s a`, or 6 (`HELD`, `HELD_SPLIT`); none
    where the core is done again [byte]."""
    unfused, again = 1.0 - at.software.flash, at.layout.recompute_attention
    held = HELD + (HELD_SPLIT - HELD) * at.software.split_softmax
    return held * at.s * heads * unfused * (1.0 - again)


class Attention(struct.PyTreeNode, kw_only=True):
    """Heads of queries over fewer, or as many, heads of keys and values.

    Attributes:
      n_heads: a, heads of queries [count].
      n_kv_heads: g, heads of keys and values [count]; a for MHA, fewer for GQA, 1 for MQA.
      head_dim: e, width of a head's values [count].
      qk_extra: x, what heads of queries and keys are wider than values [count]; 0 = as wide.
      window: keys that a query sees [token]; `ALL` = those of the whole chunk.
      chunk: tokens that see each other and no others [token]; `ALL` = the sequence.
      output_gate: 1 = queries come with a gate of the output (Qwen3-Next); 0 = none.
      own_keys: 1 = the layer has keys of its own; 0 = it reads those of an earlier layer.
      own_values: 1 = values of its own; 0 = projected as its keys are, or an earlier layer's.
      small: parameters of biases, sinks and norms beside the layer's first [count]; 0 = none.
    """

    KIND = "attention"
    COUNTED = ("n_heads", "n_kv_heads", "head_dim")
    SPLIT = ("n_heads",)
    COPIED = ("n_kv_heads",)
    CHOICES = frozenset(("output_gate", "own_keys", "own_values"))

    n_heads: Array
    n_kv_heads: Array
    head_dim: Array
    qk_extra: Array = 0.0
    window: Array = ALL
    chunk: Array = ALL
    output_gate: Array = 0.0
    own_keys: Array = 1.0
    own_values: Array = 1.0
    small: Array = 0.0

    def _widths(self) -> tuple[Array, Array]:
        """Columns of queries (with a gate), keys and values; width of the output."""
        e, wide = self.head_dim, self.head_dim + self.qk_extra
        keys = self.n_kv_heads * (self.own_keys * wide + self.own_values * e)
        out = self.n_heads * e
        return self.n_heads * wide + self.output_gate * out + keys, out

    def parameters(self, h: Array) -> Weights:
        """`h (a + g) (2 e + x)` (with the output's projection), a norm `h`, and what is small."""
        columns, out = self._widths()
        core = self.n_heads * (2.0 * self.head_dim + self.qk_extra)
        return Weights(split=h * (columns + out) + h + self.small, core=core)

    def work(self, at: Site) -> Work:
        """Two products around the core (Vaswani et al. 2017; Ainslie et al. 2023 for g < a).

        Limits: ranks of tp beyond the KV heads split a head's columns, and what Megatron-Core then
        gathers of it is left out.
        """
        (columns, out), tp = self._widths(), at.layout.tp
        wide = self.head_dim + self.qk_extra
        sizes = 2.0 * self.head_dim + self.qk_extra
        core = scored(at, self.n_heads, sizes, seen(at, self.window, self.chunk))
        turned = rotated(at, (self.n_heads + self.n_kv_heads * self.own_keys) * wide)
        gate = self.output_gate * at.t * out / tp
        inside = Passes(*(x + n * gate for x, n in zip(turned, GATE, strict=True)))
        stretch = off_matrix_units(self.head_dim, at.software.flash)
        return Work(
            products=(
                Product("first", at.t, columns / tp, at.h),
                Product("out", at.t, at.h, out / tp),
            ),
            cores=(core._replace(stretch=stretch),),
            streams=wrapped(at, inside),
            kernels=kernels(at) + self.output_gate,
            dense=2.0,
            mixed=1.0,
            returned=at.t * out / tp,
            ring=WORD * at.t * at.layout.cp * self.n_kv_heads * sizes / tp,
        )

    def keeps(self, at: Site) -> Kept:
        """Queries, keys, values and the output, with scores where they are not fused.

        `t [2 ((a + g) (e + x) + g e) + w a e] / tp`, w the bytes of an operand, which the output
        is. A gate is kept, and the output before it. Values projected as keys are get a norm of
        their own and are not turned (transformers' `gemma4`), so they are kept beside them.
        """
        wide, tp = self.head_dim + self.qk_extra, at.layout.tp
        valued = larger(self.own_keys, self.own_values)
        keys = self.own_keys * wide + valued * self.head_dim
        out = self.n_heads * self.head_dim
        gated = self.output_gate * out
        queries = self.n_heads * wide + self.n_kv_heads * keys + gated
        held = at.operand * out + WORD * gated + scores_kept(at, self.n_heads)
        return Kept(**entered(at), queries=at.t * WORD * queries / tp, core=at.t * held / tp)
