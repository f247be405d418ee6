"""Delta nets: linear mixers whose state forgets and is corrected by every token."""

from __future__ import annotations

from typing import NamedTuple

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
from dmodel.smooth import ramp
from dmodel.types import Array, larger

CHUNK = 64.0
"""Tokens of one chunk [token] (flash-linear-attention's `chunk_gated_delta_rule`, `chunk_kda`)."""

BLOCK = 16.0
"""Tokens of a block on the diagonal of a chunk's matrix, which is inverted by blocks [token]."""


class Touched(NamedTuple):
    """How often kernels touch what a token has of one thing, in words of 2 bytes [count].

    Attributes:
      keys: of all key heads. values: of all value heads. wide: keys of all value heads. matrices:
        rows of matrices of a chunk. states: its share of the state of a chunk.
    """

    keys: float
    values: float
    wide: float
    matrices: float
    states: float


HEADS = Touched(13, 11, 2, 3, 2), Touched(21, 23, 12, 2, 4)
"""Touches with one decay a head, forward and backward (flash-linear-attention's
`gated_delta_rule/chunk.py`, states of chunks in 16 bits).

Forward: a convolution reads and writes queries, keys and values, norms queries and keys;
`fwd_intra` reads keys and values, writes the inverse of a chunk's matrix (cleared before) and both
of its products, `fwd_h` reads these and keys, writes states and corrected values, `fwd_o` reads
queries, keys, values and states and writes the output, which the gated norm reads with the gate.
Backward both products and the states are made again before five kernels of gradients."""

CHANNELS = Touched(12, 11, 13, 6, 2), Touched(20, 23, 44, 11, 4)
"""The same with a decay a channel (`kda/chunk_fwd.py`, `kda/chunk_bwd.py`): sums of decays, and
gradients of queries, keys, decays and of two matrices, are in fp32."""


class Delta(struct.PyTreeNode, kw_only=True):
    """A gated delta net (Yang et al. 2024, arXiv 2412.06464), or Kimi delta attention (Kimi Team
    2025, arXiv 2510.26692).

    Attributes:
      key_heads: heads of queries and keys [count].
      value_heads: n, heads of values, each with a state of its own [count].
      key_dim: k, width of a head's queries and keys [count].
      value_dim: v, width of a head's values [count].
      taps: of the convolution of queries, keys and values [count].
      gate_rank: width of the latents of the output's gate [count]; 0 = projected directly.
      decay_rank: width of the latents of decays, one a channel of the keys [count]; 0 = projected
        directly.
      channel_decays: 1 = decays that are projected directly are one a channel (Ling 3); 0 = one a
        head.
      small: parameters of biases beside its norm, taps and scales [count]; 0 = none.
    """

    KIND = "delta"
    COUNTED = ("key_heads", "value_heads", "key_dim", "value_dim")
    SPLIT = ("value_heads",)
    COPIED = ("key_heads",)
    CHOICES = frozenset(("channel_decays",))

    key_heads: Array
    value_heads: Array
    key_dim: Array
    value_dim: Array
    taps: Array = 4.0
    gate_rank: Array = 0.0
    decay_rank: Array = 0.0
    channel_decays: Array = 0.0
    small: Array = 0.0

    def _widths(self) -> tuple[Array, Array, Array]:
        """Of all keys, of all values, of keys by value heads."""
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        return keys, values, self.value_heads * self.key_dim

    def _channels(self) -> tuple[Array, Array]:
        """1 where decays come from latents, and where there is one a channel."""
        latents = ramp(self.decay_rank)
        return latents, larger(latents, self.channel_decays)

    def _columns(self) -> tuple[Array, Array]:
        """Columns of the first product that ranks of tp split, and those that every one has."""
        keys, values, wide = self._widths()
        gate, (latents, channels) = ramp(self.gate_rank), self._channels()
        decays = self.value_heads + channels * (wide - self.value_heads)
        direct = (1.0 - gate) * values + (1.0 - latents) * decays
        split = 2.0 * keys + values + self.value_heads + direct
        return split, self.gate_rank + self.decay_rank

    def parameters(self, h: Array) -> Weights:
        """Matrices `h (2 K + V + n + gate + decay) + V h`, taps, norms, scales.

        K is of all keys and V of all values; the gate is V wide and decays n, or n k, or both are
        from latents; `taps (2 K + V)`; norms v and h; scales n, and biases of decays n, or n k
        (transformers' `qwen3_next`, `qwen3_5`; flash-linear-attention's `layers/kda.py`).
        """
        keys, values, wide = self._widths()
        split, whole = self._columns()
        decay = self._channels()[1]
        scales = self.value_heads + (1.0 - decay) * self.value_heads + decay * wide
        filters = self.taps * (2.0 * keys + values) + scales + self.value_dim
        latents = self.gate_rank * values + self.decay_rank * wide
        return Weights(
            split=h * (split + values) + latents + filters + h + self.small, whole=h * whole
        )

    def core(self, at: Site) -> Core:
        """What flash-linear-attention's kernels run on matrix units, in chunks of c tokens.

        Forward `6 k v + c (5¼ k + 4 v) + c² / 2` FLOPs a token and head of values; `3½ k` with a
        decay a channel, whose blocks on the diagonal run beside matrix units. Three products with
        states (two to make them, one to read), the matrix of keys by blocks of 16 (10 of 16, of
        them 6 off the diagonal, there of queries, too), its inverse, and products of it and of
        scores with keys and values. Exponentials: of pairs in both matrices, or of channels, half a
        block and six a token.

        Backward `16 k v + c (18 k + 10 v) + 4 c²`, `9 k` with a decay a channel: states and both
        products made again, gradients.

        Limits: they count as fast as attention's kernels.
        """
        k, v, decay = self.key_dim, self.value_dim, self._channels()[1]
        pairs = (5.25 - 1.75 * decay) * k + 4.0 * v
        flops = 6.0 * k * v + CHUNK * pairs + 0.5 * CHUNK**2
        exponentials = (1.0 - decay) * 1.625 * CHUNK + decay * (0.5 * BLOCK + 6.0) * k
        backward = 16.0 * k * v + CHUNK * ((18.0 - 9.0 * decay) * k + 10.0 * v) + 4.0 * CHUNK**2
        heads = at.t * self.value_heads / at.layout.tp
        behind = backward / ((2.0 + 0.5 * at.software.flash) * flops)
        return Core(heads * flops, heads * exponentials, behind=behind)

    def _touched(self, at: Site) -> Passes:
        """Elements that its kernels touch, by pass.

        Gates a head and sums of gradients over heads that share keys are left out.
        """
        keys, values, wide = self._widths()
        decay, tp = self._channels()[1], at.layout.tp
        matrices = self.value_heads * CHUNK
        states = wide * self.value_dim / CHUNK
        sizes = keys, values, wide, matrices, states
        found = []
        for heads, channels in zip(HEADS, CHANNELS, strict=True):
            many = (a + (b - a) * decay for a, b in zip(heads, channels, strict=True))
            found.append(at.t * sum(n * x for n, x in zip(many, sizes, strict=True)) / tp)
        return Passes(*found)

    def work(self, at: Site) -> Work:
        """Two products around the chunked scan, one more for each kind of latents.

        Ranks of cp hand over states with what a part of the sequence does to one, `n k (v + k)`
        (flash-linear-attention's `cp/chunk_delta_h.py`).

        Kernels: a norm, a residual, 2 products, the convolution, 2 norms, gates 2, 4 of the scan,
        the gated norm; with decays a channel one more for the diagonal.
        """
        keys, values, wide = self._widths()
        split, whole = self._columns()
        gate, (latents, channels) = ramp(self.gate_rank), self._channels()
        tp = at.layout.tp
        return Work(
            products=(
                Product("first", at.t, whole + split / tp, at.h),
                Product("latents", at.t, values / tp, self.gate_rank, gate),
                Product("latents", at.t, wide / tp, self.decay_rank, latents),
                Product("out", at.t, at.h, values / tp),
            ),
            cores=(self.core(at),),
            streams=wrapped(at, self._touched(at)),
            kernels=14.0 + gate + latents + channels + at.several,
            dense=2.0 + gate + latents,
            mixed=1.0,
            returned=at.t * values / tp,
            ring=handed_over(at, wide * (self.value_dim + self.key_dim)),
        )

    def keeps(self, at: Site) -> Kept:
        """What the convolution reads and returns, the gate, the output, matrices, latents.

        The output before and behind its norm; two matrices with decays a channel, and what these
        come from; latents as operands. States are made again.
        """
        keys, values, wide = self._widths()
        decay, tp = self._channels()[1], at.layout.tp
        mixed = 2.0 * (2.0 * keys + values) + values + decay * wide
        held = WORD * (values + (1.0 + decay) * self.value_heads * CHUNK) + at.operand * values
        latents = at.operand * (self.gate_rank + self.decay_rank)
        return Kept(
            **entered(at),
            latents=at.t * latents,
            queries=at.t * WORD * mixed / tp,
            core=at.t * held / tp,
        )
