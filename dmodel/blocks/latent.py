"""Multi-head latent attention."""

from __future__ import annotations

from dmodel import struct
from dmodel.blocks.attention import (
    ALL,
    kernels,
    off_matrix_units,
    rotated,
    scored,
    scores_kept,
    seen,
)
from dmodel.blocks.part import WORD, Kept, Product, Site, Weights, Work, entered, wrapped
from dmodel.smooth import ramp
from dmodel.types import Array


class Latent(struct.PyTreeNode, kw_only=True):
    """Keys and values, and mostly queries, are projected from narrow latents (DeepSeek-AI 2024,
    arXiv 2405.04434).

    Attributes:
      n_heads: a, heads [count].
      head_dim: e, width of a head's values [count].
      qk_extra: x, what heads of queries and keys are wider than values, rotary part included
        [count]; 0 = as wide.
      kv_rank: width of the latents of keys and values [count].
      q_rank: width of the latents of queries [count]; 0 = projected directly.
      rope_dim: width of the rotary key that all heads share [count].
      small: parameters of biases and norms beside the layer's and the latents' [count]; 0 = none.
    """

    KIND = "latent"
    COUNTED = ("n_heads", "head_dim", "kv_rank")
    SPLIT = ("n_heads",)
    COPIED = ()

    n_heads: Array
    head_dim: Array
    kv_rank: Array
    qk_extra: Array = 0.0
    q_rank: Array = 0.0
    rope_dim: Array = 0.0
    small: Array = 0.0

    def _widths(self) -> tuple[Array, Array, Array, Array]:
        """Columns that every rank of tp has, those that ranks split, those from the latents of
        queries, and of keys and values."""
        wide, ranked = self.head_dim + self.qk_extra, ramp(self.q_rank)
        heads = self.n_heads * wide
        pairs = self.n_heads * (wide + self.head_dim - self.rope_dim)
        whole = ranked * self.q_rank + self.kv_rank + self.rope_dim
        return whole, (1.0 - ranked) * heads, ranked * heads, pairs

    def parameters(self, h: Array) -> Weights:
        """`h (r_q + r_kv + d) + r_q a (e + x) + r_kv a (2 e + x − d) + a e h`, norms `h + r_q +
        r_kv`."""
        whole, split, queries, pairs = self._widths()
        out = self.n_heads * self.head_dim
        up = queries * self.q_rank + pairs * self.kv_rank
        return Weights(
            split=h * (split + out) + up + h + self.q_rank + self.kv_rank + self.small,
            whole=h * whole,
            core=self.n_heads * (2.0 * self.head_dim + self.qk_extra),
        )

    def work(self, at: Site) -> Work:
        """Products into latents, from them (both as one row of their mean inner size), the core
        over all keys and the output."""
        whole, split, queries, pairs = self._widths()
        out, tp = self.n_heads * self.head_dim, at.layout.tp
        inner = (queries * self.q_rank + pairs * self.kv_rank) / (queries + pairs)
        wide = 2.0 * self.n_heads * (self.head_dim + self.qk_extra)
        sizes = 2.0 * self.head_dim + self.qk_extra
        stretch = off_matrix_units(self.head_dim, at.software.flash)
        return Work(
            products=(
                Product("first", at.t, whole + split / tp, at.h),
                Product("latents", at.t, (queries + pairs) / tp, inner),
                Product("out", at.t, at.h, out / tp),
            ),
            cores=(scored(at, self.n_heads, sizes, seen(at, ALL))._replace(stretch=stretch),),
            streams=wrapped(at, rotated(at, wide)),
            kernels=kernels(at) + 5.0,
            dense=4.0,
            mixed=1.0,
            returned=at.t * out / tp,
            ring=WORD * at.t * at.layout.cp * self.n_heads * sizes / tp,
        )

    def keeps(self, at: Site) -> Kept:
        """As attention; latents are kept as operands."""
        wide, tp = self.head_dim + self.qk_extra, at.layout.tp
        queries = self.n_heads * (2.0 * wide + self.head_dim)
        held = at.operand * self.n_heads * self.head_dim + scores_kept(at, self.n_heads)
        return Kept(
            **entered(at),
            latents=at.t * at.operand * (self.q_rank + self.kv_rank),
            queries=at.t * WORD * queries / tp,
            core=at.t * held / tp,
        )
