"""Compressed attention: a window of tokens, and beside it keys that stand for several tokens."""

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
    opened,
    wrapped,
)
from dmodel.blocks.sparse import scoring
from dmodel.smooth import ramp
from dmodel.types import Array, larger, smaller

SITES = 2.0
"""Places of a layer around which residual streams are mixed [count]: its mixer, its feed-forward
part."""

NORM = Passes(2.0, 3.0)
"""Touches of queries, latents and keys by a norm, which turns their rotary part as well [count]."""


class Compressed(struct.PyTreeNode, kw_only=True):
    """One head of keys, values as well, for all heads of queries, compressed beyond a window.

    As DeepSeek-V4 has it (transformers' `deepseek_v4`), with its residual streams.

    Attributes:
      n_heads: a, heads of queries [count].
      head_dim: e, width of a head, rotary part included [count].
      q_rank: width of the latents of queries [count].
      out_groups: G, groups of heads that are projected into latents of the output [count].
      out_rank: width of those latents, of one group [count].
      rope_dim: width of a head that is turned [count]; 0 = none.
      window: tokens that a query sees uncompressed [token]; `ALL` = those of the whole sequence.
      ratio: m, tokens that a compressed key stands for [token]; 0 = no compressed keys.
      overlap: 1 = compressed keys overlap, each of 2 ratio tokens; 0 = of ratio.
      index_heads: heads of the indexer of compressed keys [count]; 0 = none.
      index_dim: width of one of them [count]; 0 = none.
      index_top: compressed keys that a query attends to [count]; `ALL` = every one.
      residual_streams: R, streams between layers, mixed around the mixer and around the layer's
        feed-forward part (hyper-connections) [count]; 1 = one.
      small: parameters of sinks and biases beside norms and compressed keys' positions [count]; 0 =
        none.
    """

    KIND = "compressed"
    COUNTED = ("n_heads", "head_dim", "q_rank", "out_groups", "out_rank")
    SPLIT = ("n_heads",)
    COPIED = ("out_groups",)
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

    def _there(self) -> tuple[Array, Array]:
        """1 where there are compressed keys, and where an indexer picks some of them."""
        return ramp(self.ratio), ramp(self.index_heads) * ramp(self.ratio)

    def _series(self) -> tuple[Array, Array]:
        """Width of what compressed keys are made of, as much again gates it; of the indexer's."""
        (compressed, index), series = self._there(), 1.0 + self.overlap
        return compressed * series * self.head_dim, index * series * self.index_dim

    def _mixing(self, h: Array) -> tuple[Array, Array]:
        """1 where there are several residual streams; parameters of mixing them at one place.

        From all streams `(R + 2) R` weights, as many biases, 3 scales (Xie et al. 2025, arXiv
        2512.24880).
        """
        streams = self.residual_streams
        there = ramp(streams - 1.0)
        return there, there * ((streams + 2.0) * streams * (streams * h + 1.0) + 3.0)

    def parameters(self, h: Array) -> Weights:
        """Matrices, norms h, `r_q` and e, and what compresses, picks and mixes.

        `h (r_q + e) + r_q a e + a e r_o + G r_o h`; of compressed keys `2 σ e h`, σ 2 where they
        overlap, else 1, a bias for each position in one, `m σ e`, a norm e; of the indexer the same
        of its width, `r_q n d_i` of queries and `h n` of weights; and of residual streams.
        """
        (compressed, index), (keys, index_keys) = self._there(), self._series()
        heads, mixed = self.n_heads * self.head_dim, self._mixing(h)[1]
        queries = self.index_heads * self.index_dim
        both = keys + index_keys
        norms = h + self.q_rank + self.head_dim * (1.0 + compressed) + index * self.index_dim
        return Weights(
            split=heads * (self.q_rank + self.out_rank)
            + self.out_groups * self.out_rank * h
            + norms
            + self.ratio * both
            + self.small,
            whole=h * (self.q_rank + self.head_dim + 2.0 * both)
            + index * (self.q_rank * queries + h * self.index_heads)
            + SITES * mixed,
            core=2.0 * heads,
        )

    def _cores(self, at: Site) -> tuple[Core, Core]:
        """Over the window and compressed keys in one kernel; and the indexer.

        A token has `s (seen(ω) + seen(k m) / m)` keys on average, each scored and summed in the
        same width e. The indexer scores all compressed keys, a share 1/m of what it would over all
        (`sparse.scoring`; assumed to learn as in DeepSeek-V3.2).
        """
        compressed, index = self._there()
        each = larger(self.ratio, 1.0)
        share = seen(at, self.window) + compressed * seen(at, self.index_top * each) / each
        core = scored(at, self.n_heads, 2.0 * self.head_dim, share)
        width, top = self.index_heads * self.index_dim, self.index_top * each
        stretch = off_matrix_units(self.head_dim, at.software.flash)
        return core._replace(stretch=stretch), scoring(at, top, width, index / each)

    def _inside(self, at: Site) -> Passes:
        """Elements that kernels touch: norms with rotary parts, the output turned back, pooling.

        Keys are pooled in one kernel (assumed): what is pooled and its gates read, both gradients
        written. The indexer's queries are turned, too.
        """
        (keys, index_keys), each = self._series(), larger(self.ratio, 1.0)
        heads = self.n_heads * self.head_dim / at.layout.tp
        normed = heads + self.q_rank + self.head_dim
        made = (keys + index_keys) / ((1.0 + self.overlap) * each)
        turned = 2.0 * self._there()[1] * self.index_heads * self.index_dim
        back, found = rotated(at, self.n_heads * self.rope_dim), []
        for norm, turn, pooled in zip(NORM, back, (2.0, 4.0), strict=True):
            own = norm * (normed + made) + pooled * (keys + index_keys) + made + turned
            found.append(at.t * own + turn)
        return Passes(*found)

    def _streamed(self, at: Site) -> Passes:
        """Elements that mixing residual streams touches, beyond an addition and its product.

        At each place forward all streams are read to collapse them, read and written with the
        result, `3 R + 2`; backward `4 R + 3` (fused kernels of arXiv 2512.24880, backward by the
        same count).
        """
        there, streams = self._mixing(at.h)[0], self.residual_streams
        wide = SITES * there * opened(at)
        return Passes(wide * (3.0 * streams - 1.0), wide * 4.0 * streams)

    def _products(self, at: Site) -> tuple[Product, ...]:
        (keys, index_keys), index = self._series(), self._there()[1]
        heads, tp, h = self.n_heads * self.head_dim, at.layout.tp, at.h
        streams = self.residual_streams
        mixing = SITES * self._mixing(h)[0]
        width = self.q_rank + self.head_dim + 2.0 * keys
        return (
            Product("first", at.t, width, h),
            Product("latents", at.t, heads / tp, self.q_rank),
            Product(
                "latents",
                at.t,
                self.out_rank,
                heads / self.out_groups,
                self.out_groups / tp,
                ramp(self.out_groups - 1.0),
            ),
            Product("out", at.t, h, self.out_groups * self.out_rank / tp),
            Product("index", at.t, self.index_heads * self.index_dim, self.q_rank, index),
            Product("index", at.t, 2.0 * index_keys + self.index_heads, h, index),
            Product("streams", at.t / at.split, (streams + 2.0) * streams, streams * h, mixing),
        )

    def work(self, at: Site) -> Work:
        """Products into latents, keys and what is compressed, from latents, and twice out.

        Kernels beside attention's: 2 products, norms of latents and keys, the output turned back; 3
        of compressed keys; of the indexer 2 products, pooling, a norm, rotary, weights, scores,
        their top and 2 of its loss (as in DeepSeek-V3.2); 3 for each place of residual streams.
        Ranks of cp gather compressed keys, and the window of the rank before (assumed).
        """
        compressed, index = self._there()
        layout, streamed = at.layout, self._mixing(at.h)[0]
        inside = (a + b for a, b in zip(self._inside(at), self._streamed(at), strict=True))
        gathered = compressed * self.head_dim + index * self.index_dim
        ring = layout.micro_batch * smaller(self.window, at.s) * self.head_dim
        more = 5.0 + 3.0 * compressed + 10.0 * index + 3.0 * SITES * streamed
        return Work(
            products=self._products(at),
            cores=self._cores(at),
            streams=wrapped(at, Passes(*inside)),
            kernels=kernels(at) + more,
            dense=4.0,
            mixed=1.0,
            returned=at.t * self.n_heads * self.head_dim / layout.tp,
            ring=WORD * (ring + at.t * layout.cp * gathered / larger(self.ratio, 1.0)),
        )

    def keeps(self, at: Site) -> Kept:
        """Queries and keys before and behind their norm, what is pooled with its gates, latents.

        Latents as operands; the output before and behind its turn; indices of picked keys in 4
        bytes; all residual streams and what a part returns, at both places.
        """
        (compressed, index), (keys, index_keys) = self._there(), self._series()
        each, tp, heads = larger(self.ratio, 1.0), at.layout.tp, self.n_heads * self.head_dim
        made = (compressed * self.head_dim + index * self.index_dim) / each
        queries = index * self.index_heads * (self.index_dim + 1.0)
        pooled = 2.0 * (keys + index_keys + self.head_dim) + made + queries
        picked = 4.0 * index * smaller(self.index_top, at.s / each)
        latents = at.operand * (self.q_rank + self.out_groups * self.out_rank / tp)
        core = (WORD + at.operand) * heads + scores_kept(at, self.n_heads)
        start, there = entered(at), self._mixing(at.h)[0]
        streams = SITES * there * WORD * (self.residual_streams + 1.0) * opened(at)
        return Kept(
            inputs=start["inputs"] + streams,
            norms=start["norms"],
            latents=at.t * (WORD * pooled + picked + latents),
            queries=at.t * 2.0 * WORD * heads / tp,
            core=at.t * core / tp,
        )
