"""Latent attention over the keys that an indexer picks (DeepSeek sparse attention)."""

from __future__ import annotations

from dmodel.blocks.attention import ALL, MOVED, VECTOR, off_matrix_units, scored, seen
from dmodel.blocks.latent import Latent
from dmodel.blocks.part import WORD, Core, Kept, Passes, Product, Site, Weights, Work
from dmodel.smooth import ramp
from dmodel.types import Array, smaller

SCORED, LEARNT = 8.0, 1.2
"""Traffic of an indexer's score [byte], in fp32 written and read for the top; FLOPs of its backward
pass over those of attention for as many forward: three products (scores again, gradients of queries
and keys) for one, where attention has five for two."""


def scoring(at: Site, top: Array, width: Array, there: Array) -> Core:
    """An indexer's scores of every pair of tokens, `2 t s n d_i` FLOPs, half of them where causal,
    on every rank of tp; it learns from picked keys alone (DeepSeek-AI 2025, arXiv 2512.02556, the
    sparse stage; a dense warm-up learns from all).

    Args:
      top: keys that are picked [token]. width: of all its heads, n d_i [count].
    """
    every = seen(at, ALL)
    pairs = there * at.t * at.s * every
    behind = LEARNT * seen(at, top) / every
    return Core(2.0 * pairs * width, softmax_bytes=SCORED * pairs, behind=behind)


UNFUSED = 2.0
"""Traffic of an unfused score in fp32 over that in 16 bits [1]."""


class Sparse(Latent, kw_only=True):
    """Latent attention in which a query attends to the keys that an indexer scores highest
    (DeepSeek-AI 2025, arXiv 2512.02556).

    Attributes:
      index_heads: n, heads of the indexer [count]; 0 = the layer picks what an earlier one did.
      index_dim: d_i, width of one of them [count]; 0 = none.
      index_top: keys that a query attends to [token]; `ALL` = every one.
    """

    KIND = "sparse"

    index_heads: Array = 0.0
    index_dim: Array = 0.0
    index_top: Array = ALL

    def parameters(self, h: Array) -> Weights:
        """Those of latent attention, the indexer's `r_q n d_i + h (d_i + n)` and `2 d_i` of a layer
        norm (transformers' `deepseek_v32`, `glm_moe_dsa`)."""
        found, index = super().parameters(h), self.index_heads * self.index_dim
        columns = ramp(self.index_heads) * (self.index_dim + self.index_heads)
        return found._replace(
            split=found.split + 2.0 * self.index_dim,
            whole=found.whole + self.q_rank * index + h * columns,
        )

    def _core(self, at: Site) -> Core:
        """Kernels score latents (of `r_kv + d`) and sum them (`r_kv`), since a gathered latent
        serves all heads (FlashMLA); an average query picks what a window of as many keys holds.

        Without such kernels (`Software.sparse_kernels` 0) all pairs are scored in fp32, which
        matrix units do not take, and masked (Megatron-Core's `unfused_dsa_fn`).
        """
        fused = at.software.sparse_kernels
        share = 1.0 - fused * (1.0 - seen(at, self.index_top))
        core = scored(at, self.n_heads, 2.0 * self.kv_rank + self.rope_dim, share)
        through = UNFUSED * MOVED * at.t * at.s * self.n_heads / at.layout.tp
        stretch = off_matrix_units(self.head_dim, at.software.flash)
        return core._replace(
            exponentials=fused * core.exponentials,
            softmax_bytes=fused * core.softmax_bytes + (1.0 - fused) * through,
            stretch=stretch * (1.0 + (VECTOR - 1.0) * (1.0 - fused)),
        )

    def work(self, at: Site) -> Work:
        """Latent attention's products, the core over what is picked, and the indexer's products, on
        every rank of tp (Megatron-Core's `experimental_attention_variant/dsa.py`).

        Kernels of an indexer: 3 products, a norm, rotary of queries and keys, weights, scores,
        their top, the probabilities that it learns, its loss. Ranks of cp gather latents and its
        keys, which ranks of tp do not split.

        Limits: the indexer's products have no gradient of what they read, which is counted;
        probabilities summed over ranks of tp are not.
        """
        found, index, there = super().work(at), self.index_heads * self.index_dim, self._there()
        turned = 2.0 * WORD * at.t * index
        gathered = self.kv_rank + self.rope_dim + there * self.index_dim
        return found._replace(
            products=(
                *found.products,
                Product("index", at.t, index, self.q_rank, there),
                Product("index", at.t, self.index_dim + self.index_heads, at.h, there),
            ),
            cores=(self._core(at), scoring(at, self.index_top, index, there)),
            streams=Passes(*(each + turned for each in found.streams)),
            kernels=found.kernels + 11.0 * there,
            ring=WORD * at.t * at.layout.cp * gathered,
        )

    def _there(self) -> Array:
        """1 where the layer has an indexer."""
        return ramp(self.index_heads)

    def keeps(self, at: Site) -> Kept:
        """As latent attention; queries turned into latents and what the core sums stand for keys
        and values; of the indexer its queries, keys and weights, and indices of what it picks in 4
        bytes."""
        found, tp, there = super().keeps(at), at.layout.tp, self._there()
        wide = self.head_dim + self.qk_extra
        absorbed = self.n_heads * (wide + self.kv_rank + self.rope_dim)
        index = WORD * there * ((self.index_heads + 1.0) * self.index_dim + self.index_heads)
        index = index + 4.0 * there * smaller(self.index_top, at.s)
        return found._replace(
            latents=found.latents + at.t * index,
            queries=at.t * WORD * absorbed / tp,
            core=found.core + at.t * WORD * self.n_heads * self.kv_rank / tp,
        )
