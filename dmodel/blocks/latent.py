"""Multi-head latent attention, over all keys or over those that an indexer picks."""

from __future__ import annotations

from flax import struct

from dmodel.blocks.attention import (
    ALL,
    kernels,
    off_matrix_units,
    rotated,
    scored,
    scores_kept,
    seen,
)
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
from dmodel.types import Array, larger, smaller

SCORED, LEARNT = 8.0, 1.2
"""Traffic of an indexer's score [byte], in fp32 written and read for the top; FLOPs of its backward
pass over those of attention for as many forward: three products (scores again, gradients of queries
and keys) for one, where attention has five for two."""


def scoring(at: Site, top: Array, width: Array, there: Array) -> Core:
    """An indexer's scores of every pair of tokens, `2 t s n d_i` FLOPs, half where causal.

    Every rank of tp has all of them. It learns from picked keys alone (DeepSeek-AI 2025, arXiv
    2512.02556, the sparse stage; a dense warm-up learns from all).

    Args:
      top: keys that are picked [token]. width: of all its heads, n d_i [count].
    """
    every = seen(at, ALL)
    pairs = there * at.t * at.s * every
    behind = LEARNT * seen(at, top) / every
    return Core(2.0 * pairs * width, softmax_bytes=SCORED * pairs, behind=behind)


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
      index_heads: heads of the indexer of sparse attention (DSA) [count]; 0 = none.
      index_dim: width of one of them [count]; 0 = none.
      index_top: keys that a query attends to [token]; `ALL` = every one.
      picked: 1 = what an earlier layer's indexer picked is attended to; 0 = what its own does, or
        all.
      small: parameters of biases and norms beside the layer's, the latents' and the indexer's
        [count]; 0 = none.
    """

    KIND = "latent"
    COUNTED = ("n_heads", "head_dim", "kv_rank")
    CHOICES = frozenset(("picked",))

    n_heads: Array
    head_dim: Array
    kv_rank: Array
    qk_extra: Array = 0.0
    q_rank: Array = 0.0
    rope_dim: Array = 0.0
    index_heads: Array = 0.0
    index_dim: Array = 0.0
    index_top: Array = ALL
    picked: Array = 0.0
    small: Array = 0.0

    def _there(self) -> tuple[Array, Array]:
        """1 where there is an indexer, and where keys are picked."""
        index = ramp(self.index_heads)
        return index, larger(index, self.picked)

    def _widths(self) -> tuple[Array, Array, Array, Array]:
        """Columns that every rank of tp has, those that ranks split, those from the latents of
        queries, and of keys and values."""
        wide, ranked = self.head_dim + self.qk_extra, ramp(self.q_rank)
        heads = self.n_heads * wide
        pairs = self.n_heads * (wide + self.head_dim - self.rope_dim)
        whole = ranked * self.q_rank + self.kv_rank + self.rope_dim
        return whole, (1.0 - ranked) * heads, ranked * heads, pairs

    def parameters(self, h: Array) -> Weights:
        """Matrices, norms `h + r_q + r_kv`, and an indexer's.

        `h (r_q + r_kv + d) + r_q a (e + x) + r_kv a (2 e + x − d) + a e h`; the indexer's `r_q n
        d_i + h (d_i + n)` and `2 d_i` of a layer norm (transformers' `deepseek_v32`,
        `glm_moe_dsa`).
        """
        whole, split, queries, pairs = self._widths()
        out = self.n_heads * self.head_dim
        latents = self.q_rank + self.kv_rank
        index, keys = self.index_heads * self.index_dim, self._there()[0] * self.index_dim
        return Weights(
            split=h * (split + out)
            + queries * self.q_rank
            + pairs * self.kv_rank
            + h
            + latents
            + 2.0 * keys
            + self.small,
            whole=h * whole + self.q_rank * index + h * (keys + self.index_heads),
            core=self.n_heads * (2.0 * self.head_dim + self.qk_extra),
        )

    def _core(self, at: Site) -> Core:
        """Over all keys as wide as heads are; over picked ones as wide as latents.

        Kernels then score latents (of `r_kv + d`) and sum them (`r_kv`), since a gathered latent
        serves all heads (DeepSeek-AI 2025, arXiv 2512.02556, FlashMLA). An average query picks what
        a window of as many keys holds.
        """
        sparse = self._there()[1]
        plain = 2.0 * self.head_dim + self.qk_extra
        latent = 2.0 * self.kv_rank + self.rope_dim
        sizes = plain + sparse * (latent - plain)
        core = scored(at, self.n_heads, sizes, seen(at, self.index_top))
        return core._replace(stretch=off_matrix_units(self.head_dim, at.software.flash))

    def work(self, at: Site) -> Work:
        """Products into latents, from them, the core, the output; an indexer's.

        Both products from latents are one row of their mean inner size. Every rank of tp has the
        indexer's (Megatron-Core's `experimental_attention_variant/dsa.py`).

        Kernels of an indexer: 3 products, a norm, rotary of queries and keys, weights, scores,
        their top, the probabilities that it learns, its loss. Ranks of cp gather latents and its
        keys, which ranks of tp do not split.

        Limits: the indexer's products have no gradient of what they read, which is counted;
        probabilities summed over ranks of tp are not.
        """
        whole, split, queries, pairs = self._widths()
        out, tp = self.n_heads * self.head_dim, at.layout.tp
        inner = (queries * self.q_rank + pairs * self.kv_rank) / (queries + pairs)
        index, (there, sparse) = self.index_heads * self.index_dim, self._there()
        wide = 2.0 * self.n_heads * (self.head_dim + self.qk_extra)
        heads = self.n_heads * (2.0 * self.head_dim + self.qk_extra) / tp
        gathered = self.kv_rank + self.rope_dim + there * self.index_dim
        turned = Passes(*(x + 2.0 * at.t * index for x in rotated(at, wide)))
        return Work(
            products=(
                Product("first", at.t, whole + split / tp, at.h),
                Product("latents", at.t, (queries + pairs) / tp, inner),
                Product("out", at.t, at.h, out / tp),
                Product("index", at.t, index, self.q_rank, there),
                Product("index", at.t, self.index_dim + self.index_heads, at.h, there),
            ),
            cores=(self._core(at), scoring(at, self.index_top, index, there)),
            streams=wrapped(at, turned),
            kernels=kernels(at) + 5.0 + 11.0 * there,
            dense=4.0,
            mixed=1.0,
            returned=at.t * out / tp,
            ring=WORD * at.t * at.layout.cp * (heads + sparse * (gathered - heads)),
        )

    def keeps(self, at: Site) -> Kept:
        """As attention; latents are kept as operands. Over picked keys, queries turned into latents
        and what the core sums stand for keys and values; of the indexer its queries, keys and
        weights, and indices of what it picks in 4 bytes."""
        wide, tp, (there, sparse) = self.head_dim + self.qk_extra, at.layout.tp, self._there()
        plain, absorbed = wide + self.head_dim, self.kv_rank + self.rope_dim
        queries = self.n_heads * (wide + plain + sparse * (absorbed - plain))
        summed = sparse * WORD * self.n_heads * self.kv_rank
        held = at.operand * self.n_heads * self.head_dim + summed + scores_kept(at, self.n_heads)
        index = WORD * ((self.index_heads + 1.0) * self.index_dim + self.index_heads)
        index = there * (index + 4.0 * smaller(self.index_top, at.s))
        return Kept(
            **entered(at),
            latents=at.t * (at.operand * (self.q_rank + self.kv_rank) + index),
            queries=at.t * WORD * queries / tp,
            core=at.t * held / tp,
        )
