"""Routed experts, with what every token passes beside them."""

from __future__ import annotations

from dmodel import struct
from dmodel.blocks.dense import activation, width_kept
from dmodel.blocks.part import (
    ADDITION,
    WORD,
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
from dmodel.smooth import ramp
from dmodel.types import Array

COPIES = 2.0
"""Touches of what experts read and return, for each visit, and once for each token [count]: copies
are written and results read; a token is read before and written after."""

ROUTES = 6.0
"""Touches of a token's scores of experts [count]: logits in fp32 with top-k, three passes."""

BIASES = Passes(14.0, 20.0)
"""Touches of what experts return, to add biases one by one (Megatron-Core's `moe/experts.py`, in
fp32: weighted, added, joined, cast; back cast twice, parted, two sums)."""

WEIGHED = Passes(0.0, 1.0)
"""Touches of what experts' activation read and of the gradient behind it, to sum over the width
what weights of routes get: the activation, made once more of what it read, times the gradient
behind it (Megatron-Core's `weighted_swiglu_back` and `weighted_squared_relu_back`; where weights
join what experts return, as in PyTorch's own stacks, it reads that instead)."""


class Experts(struct.PyTreeNode, kw_only=True):
    """A mixture of experts (Shazeer et al. 2017; Lepikhin et al. 2020, arXiv 2006.16668).

    Attributes:
      n_experts: E, routed experts of a layer [count].
      top_k: k, experts that a token visits [count].
      d_ff: f, width of one expert [count].
      gated_mlp: 1 = an expert has three matrices; 0 = two.
      shared_ff: width of what every token passes besides: shared experts, or a dense branch
        [count]; 0 = none.
      imbalance: load of the busiest expert over the mean, from 1 on [1]; 1 = even.
      expert_biases: 1 = the products of experts have biases (gpt-oss); 0 = none.
      expert_rank: width of the latents that routed experts read and return [count]; 0 = h.
      small: parameters of biases, gates and norms beside the layer's first [count]; 0 = none.
    """

    KIND = "experts"
    COUNTED = ("n_experts", "top_k", "d_ff")
    SPLIT = ()
    COPIED = ()
    CHOICES = frozenset(("gated_mlp", "expert_biases"))

    n_experts: Array
    top_k: Array
    d_ff: Array
    gated_mlp: Array = 1.0
    shared_ff: Array = 0.0
    imbalance: Array = 1.0
    expert_biases: Array = 0.0
    expert_rank: Array = 0.0
    small: Array = 0.0

    def _reach(self, h: Array) -> tuple[Array, Array]:
        """1 where experts read latents; width of what they read and return."""
        latents = ramp(self.expert_rank)
        return latents, h + latents * (self.expert_rank - h)

    def visits(self, at: Site) -> Array:
        """Tokens that a device sends to experts, or computes for them [count]: `t k imbalance etp /
        tp`.

        The ranks of tp share the tokens out among themselves (Megatron-LM asks for sequence
        parallelism beside experts), and those of etp work on the same ones.
        """
        layout = at.layout
        return at.t * self.top_k * self.imbalance * layout.etp / layout.tp

    def parameters(self, h: Array) -> Weights:
        """`(2 + gated) r f E` with r = h or the width of latents (whose matrices are `2 h r`), the
        shared width's `(2 + gated) h f_s`, router `h E`, norm h, and biases of experts, `(1 +
        gated) f + r` each."""
        latents, r = self._reach(h)
        up = 1.0 + self.gated_mlp
        expert = (1.0 + up) * r * self.d_ff + self.expert_biases * (up * self.d_ff + r)
        between = 2.0 * h * latents * r
        return Weights(
            split=h + h * self.n_experts + self.small,
            whole=between,
            shared=(1.0 + up) * h * self.shared_ff,
            routed=expert * self.n_experts,
            active=expert * self.top_k,
        )

    def _products(self, at: Site, visits: Array) -> tuple[Product, ...]:
        """`E / ep` experts are local, of width `f / etp`; each sees `visits · ep / E` tokens. Every
        rank of tp has its share of the tokens for router and latents."""
        layout, up = at.layout, 1.0 + self.gated_mlp
        local = self.n_experts / layout.ep
        latents, r = self._reach(at.h)
        own, f, through = self.shared_ff / layout.tp, self.d_ff / layout.etp, ramp(self.shared_ff)
        grouped, part = ramp(local - 1.0), at.t / layout.tp
        each = visits / local
        return (
            Product("shared_up", at.t, up * own, at.h, through),
            Product("shared_down", at.t, at.h, own, through),
            Product("expert_up", each, up * f, r, local, grouped),
            Product("expert_down", each, r, f, local, grouped),
            Product("narrowing", part, r, at.h, 2.0 * latents),
            Product("router", part, self.n_experts, at.h),
        )

    def _streams(self, at: Site, visits: Array) -> Passes:
        """Elements touched by pass: activation of the shared width; of experts the same, unless
        they are fused, copies of tokens (`moves`), the router's scores, and biases where experts
        with biases are looped over."""
        layout, software = at.layout, at.software
        _, r = self._reach(at.h)
        f = self.d_ff / layout.etp
        unfused, looped = 1.0 - software.fused_experts, self.expert_biases * software.looped_experts
        routing = (COPIES * r + ROUTES * self.n_experts) * layout.etp
        touched = []
        for active, biases, weighed in zip(
            activation(self.gated_mlp), BIASES, WEIGHED, strict=True
        ):
            inside = unfused * (active + weighed * (2.0 + self.gated_mlp)) * f
            copied = (COPIES * moves(at) + biases * looped) * r
            between = active * self.shared_ff + routing
            touched.append(at.t * between / layout.tp + visits * (copied + inside))
        return Passes(*touched)

    def work(self, at: Site) -> Work:
        """Router, exchange, experts and what is shared.

        Kernels: those of an MLP, 6 to sort tokens, 3 of shared experts, 2 of latents. Transformer
        Engine's GroupedLinear goes through the experts of a rank: two products each, two for a
        bias, which run beside each other, and below 16 bits two casts.
        """
        layout, software = at.layout, at.software
        visits, (latents, r) = self.visits(at), self._reach(at.h)
        through = ramp(self.shared_ff)
        looped = 2.0 * software.looped_experts * self.n_experts / layout.ep
        return Work(
            products=self._products(at, visits),
            streams=wrapped(at, self._streams(at, visits)),
            added=ADDITION * WORD * opened(at),
            kernels=11.0 + 3.0 * through + 2.0 * latents + at.several,
            dense=2.0,
            looped=looped * (1.0 + self.expert_biases),
            casts=looped * at.low,
            passed=through,
            routed=1.0,
            sent=WORD * r * visits,
            visits=self.top_k,
            route=software.route_bytes * at.t * self.n_experts * layout.ep / layout.tp,
        )

    def keeps(self, at: Site) -> Kept:
        """Inputs of routed experts for each visit, what lies inside them and comes back; latents
        and their sum; the shared width as a dense one."""
        layout, visits = at.layout, self.visits(at)
        latents, r = self._reach(at.h)
        f, before = self.d_ff / layout.etp, 2.0 + 2.0 * self.gated_mlp
        shared = at.t * self.shared_ff / layout.tp
        return Kept(
            **entered(at),
            shared=shared * width_kept(at, self.gated_mlp),
            experts=visits * (at.operand * r + before * f)
            + at.t * at.operand * latents * r / layout.tp,
            activated=visits * at.operand * f,
        )


def moves(at: Site) -> Array:
    """How often kernels of their own move what experts read, or return, in a pass [count]: once,
    from or to the tokens; once more where copies for one node travel as one, and are parted or
    joined again there (DeepEP), and twice more where experts that are looped over are padded for
    products below 16 bits, and cut again (Transformer Engine's `Fp8Padding`, to a multiple of 16 or
    32 tokens each).

    Limits: HybridEP pads while it parts, beside its messages, and its parting and joining count
    once: rows say 0.2 to 0.4 times.
    """
    software = at.software
    padded = 2.0 * software.looped_experts * at.low
    parted = software.merge_copies * ramp(at.layout.ep - 1.0)
    return 1.0 + (1.0 - ramp(software.route_bytes)) * (parted + padded)
