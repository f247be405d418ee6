"""Memory traffic of kernels that stream: casts, unfused softmax, elementwise kernels, loss. Symbols
as in `dmodel.counts`; counts are per device, per layer and per micro-batch."""

from __future__ import annotations

from typing import NamedTuple

from dmodel.counts import (
    CHUNK,
    WORD,
    Matmuls,
    activation_bytes,
    mean_layer,
    split_ranks,
    tokens,
    visits,
)
from dmodel.records import Model, Plan
from dmodel.smooth import ramp
from dmodel.types import Array


class Passes(NamedTuple):
    """The forward and the backward pass of one thing: times [s], bytes [byte], or factors on them
    [1]."""

    forward: Array
    backward: Array

    @property
    def total(self) -> Array:
        """Of both passes."""
        return self.forward + self.backward


def cast_bytes(products: Matmuls, model: Model, plan: Plan) -> Array:
    """Memory traffic of casting below 16 bits, forward and backward of one layer [byte]; 0 in 16
    bits.

    The left operand of each product forward, the gradient of its result backward, each read in 16
    bits, once more for each pass that finds its scale, and written in the operand's bytes twice: by
    rows for its own product, by columns for that of the weight gradient, which frozen weights do
    not have. Weights are cast once per step, not per micro-batch. Fused experts only write what
    lies between their two products. Router and logits stay in 16 bits.
    """
    bits = plan.precision
    left, _, result = products.elements
    read = WORD * (1.0 + bits.scale_passes)
    every = (read + (1.0 + model.trainable) * bits.operand_bytes) * (left + result)[:-2].sum(0)
    return (
        bits.low_precision
        * (1.0 - bits.wide_layers)
        * (every - plan.software.fused_experts * read * (left[6] + result[5]))
    )


def softmax_bytes(model: Model, plan: Plan) -> Array:
    """Memory traffic of the unfused forward softmax [byte]: scores written and read, probabilities
    written and read, and dropout's read, write and mask: `13 b a s (s/cp) / tp` (Korthikanti et al.
    2022 count 5 b a s² stored); 0 with flash."""
    scores = (
        tokens(model, plan) * model.seq_len * model.n_heads * model.attention_share / plan.layout.tp
    )
    return 13.0 * scores * (1.0 - plan.software.flash)


ADDITION = 3.0
"""Touches of h by a residual addition, forward and backward [count]: two read, one written."""


class Touches(NamedTuple):
    """How often one pass reads or writes each element, at least [count].

    Attributes:
      half: of h, a norm and a residual addition, in each half of a layer. rotary: of queries and
        keys, in one kernel. split_rotary: in PyTorch's operations (Megatron-LM's `rope_utils.py`:
        two products, half negated, two joins, a sum). activation: of the width. gate: more of it
        where there is a gate. copies: of what experts read and return, for each visit, and once for
        each token. biases: of what experts return, to add biases one by one (its `moe/experts.py`,
        in fp32: weighted, added, joined, cast; back cast twice, parted, two sums). weighed: of what
        experts' activation read and of the gradient behind it, to sum over the width what weights
        of routes get. scan: of Mamba-2, in forward passes. read, returned: of what adapters read
        and return. dropped: of what they read, by a dropout before them, with its mask of a byte.
    """

    half: float
    rotary: float
    split_rotary: float
    activation: float
    gate: float
    copies: float
    biases: float
    weighed: float
    scan: float
    read: float
    returned: float
    dropped: float


FORWARD = Touches(
    half=2.0 + ADDITION,
    rotary=2.0,
    split_rotary=12.0,
    activation=2.0,
    gate=1.0,
    copies=2.0,
    biases=14.0,
    weighed=0.0,
    scan=1.0,
    read=1.0,
    returned=1.0 + 2.0 + ADDITION,
    dropped=2.5,
)
"""A norm reads and writes, a residual addition reads two and writes one; a gated activation reads
two. Copies to experts are written and what they return is read, once for each visit; a token is
read before and written after. An adapter's first product reads, its second writes, a scale reads
and writes that and an addition joins it with the frozen product's result (NeMo's
`ParallelLinearAdapter`)."""

BACKWARD = Touches(
    half=3.0 + ADDITION,
    rotary=2.0,
    split_rotary=10.0,
    activation=3.0,
    gate=2.0,
    copies=2.0,
    biases=20.0,
    weighed=1.0,
    scan=2.0,
    read=2.0 + ADDITION,
    returned=2.0 + 2.0,
    dropped=2.5,
)
"""Norms and activations read their input once more beside the gradient, gradients of both branches
of a residual are added; what only moves or turns elements in one kernel costs what it did forward.
The gradient of a route's weight is a sum over the width: the activation, made once more of what it
read, times the gradient behind it (Megatron-Core's `weighted_swiglu_back` and
`weighted_squared_relu_back`; where weights join what experts return, as in PyTorch's own stacks, it
reads that instead). Of an adapter, both gradients of the second product read what the scale's
gradient wrote; what it read is read once more, its gradient written and added to that of the frozen
product."""


def elementwise_bytes(model: Model, plan: Plan) -> Passes:
    """Least memory traffic of the norms, residuals, rotary embedding, activation and routing of the
    mean layer, by pass [byte].

    `2 t [ half h (mixer + MLP) / split + (rotary (a + g)(e + x) + (activation + gate gated) width)
    / tp ]` with the `Touches` of the pass; sequence parallelism splits h. Experts: the same
    activation, and `weighed (2 + gated)` of its width (fused ones have neither), copies of tokens
    (`_moves`), the router's logits in fp32 with top-k (3 passes), and `biases` where experts with
    biases are looped over.
    Mamba-2: convolution, scan and gated norm, `scan [(8 + 6 N/c) i + 7 G N]`: states of chunks are
    written and read in fp32, then in 16 bits (mamba_ssm's `ssd_combined.py`). Its products inside
    chunks, a tenth more, and dropout are left out; `elementwise_traffic` scales.
    """
    return Passes(_touched(model, plan, FORWARD), _touched(model, plan, BACKWARD))


def addition_bytes(model: Model, plan: Plan) -> Array:
    """Memory traffic of the residual addition behind the MLP of the mean layer, forward [byte]: `3
    · 2 t h mlp_share / split`; part of `elementwise_bytes`."""
    return ADDITION * model.mlp_share * activation_bytes(model, plan) / split_ranks(plan)


def _touched(model: Model, plan: Plan, n: Touches) -> Array:
    """Bytes that one pass of `elementwise_bytes` reads and writes."""
    layout, software = plan.layout, plan.software
    t, h, mean = tokens(model, plan), model.d_model, mean_layer(model)
    split = split_ranks(plan)
    rotary = n.rotary + (n.split_rotary - n.rotary) * software.split_rotary
    heads = (
        model.attention_share
        * rotary
        * (model.n_heads + model.n_kv_heads)
        * (model.head_dim + model.qk_extra)
    )
    scan = (
        8.0 + 6.0 * model.mamba_state / CHUNK
    ) * model.mamba_inner + 7.0 * model.mamba_groups * model.mamba_state
    activation = n.activation + n.gate * model.gated_mlp
    inside = (
        (1.0 - software.fused_experts)
        * (activation + n.weighed * (2.0 + model.gated_mlp))
        * model.d_ff
        / layout.etp
    )
    routing = mean.routed * (n.copies * mean.reach + 6.0 * model.n_experts) * layout.etp
    biases = n.biases * model.expert_biases * software.looped_experts
    copied = n.copies * _moves(plan)
    experts = mean.routed * visits(model, plan) * ((copied + biases) * mean.reach + inside)
    between = (
        heads + model.mamba_share * n.scan * scan + activation * mean.width + routing
    ) / layout.tp
    return WORD * (t * (n.half * h * (mean.mixer + model.mlp_share) / split + between) + experts)


def _moves(plan: Plan) -> Array:
    """How often kernels of their own move what experts read, or return, in a pass [count]: once,
    from or to the tokens; once more where copies for one node travel as one, and are parted or
    joined again there (DeepEP), and twice more where experts that are looped over are padded for
    products below 16 bits, and cut again (Transformer Engine's `Fp8Padding`, to a multiple of 16 or
    32 tokens each).

    Limits: HybridEP pads while it parts, beside its messages, and its parting and joining count
    once: rows say 0.2 to 0.4 times.
    """
    software = plan.software
    padded = (
        2.0
        * software.looped_experts
        * plan.precision.low_precision
        * (1.0 - plan.precision.wide_layers)
    )
    parted = software.merge_copies * ramp(plan.layout.ep - 1.0)
    return 1.0 + (1.0 - ramp(software.route_bytes)) * (parted + padded)


def adapter_bytes(model: Model, plan: Plan) -> Passes:
    """Memory traffic of the low-rank adapters of the mean layer, by pass [byte]: `2 t [(read +
    dropped) in + returned out]` with what they read, `in = n_first h + w_last / tp`, and return,
    `out = w_first / tp + n_last h / split`, and the `Touches` of the pass.

    Every kernel there is counts, so `elementwise_traffic`, which scales least traffic, does not.
    Products of a rank far below the intensity at which arithmetic takes longer are bound by this
    traffic.

    Limits: experts have none; kernels that join an adapter's products, scale and addition
    (Transformer Engine's op fuser) move less.
    """
    given = model.first_adapters * model.d_model + model.last_adapted / plan.layout.tp
    returned = (
        model.first_adapted / plan.layout.tp
        + model.last_adapters * model.d_model / split_ranks(plan)
    )
    moved = WORD * tokens(model, plan)
    return Passes(
        *(
            moved * ((n.read + n.dropped * model.adapter_dropout) * given + n.returned * returned)
            for n in (FORWARD, BACKWARD)
        )
    )


def loss_bytes(model: Model, plan: Plan) -> Array:
    """Memory traffic of the loss, forward and backward [byte]: fp32 logits read three times and
    written twice, `20 t V / tp`, and again for each head of further tokens."""
    return 20.0 * (1.0 + model.n_mtp) * tokens(model, plan) * model.vocab / plan.layout.tp
