"""What has to be done, whatever the hardware: parameters, FLOPs, bytes and messages.

Symbols, once for the file: L layers, h `d_model`, f `d_ff`, a heads, g KV heads, e head size, V vocabulary, s sequence,
b micro-batch. Counts are per device, per layer and per micro-batch unless a name says otherwise.
"""

from __future__ import annotations

import jax
from flax import struct

from dmodel.plan import Plan
from dmodel.smooth import ramp
from dmodel.types import Array, stack
from dmodel.workload import Transformer

WORD = 2.0
"""Bytes of one activation element (bf16 or fp16) in memory and on the wire."""

CONVENTIONS = ("6N", "6N+12Lhs", "6N+6Lhs")
"""Published conventions of "model FLOPs" per token: without attention, with full attention, with its causal half."""


class Parameters(struct.PyTreeNode, kw_only=True):
    """Parameters of the whole model [count]: of one layer's attention (norms and router with it), of one layer's experts, of
    one layer's experts as far as a token visits them, of the input embedding and of the output head."""

    attention: Array
    mlp: Array
    active_mlp: Array
    embedding: Array
    head: Array


def parameter_groups(model: Transformer) -> Parameters:
    """Count parameters by the place where they live.

    `attention = 2 h (a + g) e + 2 h` (norms) `+ h · experts` (router, if there are several), `mlp = (2 + gated) h f · experts` with the
    shared ones, `embedding = V h`, `head = V h` unless tied, `+ h` (last norm). Biases and learned positions are left out.
    """
    h, f, a, g, e = model.d_model, model.d_ff, model.n_heads, model.n_kv_heads, model.head_dim
    router = h * model.n_experts * ramp(model.n_experts - 1.0)
    expert = (2.0 + model.gated_mlp) * h * f
    return Parameters(
        attention=2.0 * h * (a + g) * e + 2.0 * h + router,
        mlp=expert * (model.n_experts + model.n_shared_experts),
        active_mlp=expert * (model.top_k + model.n_shared_experts),
        embedding=model.vocab * h,
        head=model.vocab * h * (1.0 - model.tied_embeddings) + h,
    )


def parameters(model: Transformer) -> Array:
    """Total parameters N [count], all experts counted.

    >>> from dmodel import catalog
    >>> f"{parameters(catalog.transformer('llama-3-70b')):.4g}"
    '7.055e+10'
    """
    n = parameter_groups(model)
    return model.n_layers * (n.attention + n.mlp) + n.embedding + n.head


def active_parameters(model: Transformer) -> Array:
    """Parameters that one token uses [count]: equal to `parameters` for a dense model."""
    n = parameter_groups(model)
    return model.n_layers * (n.attention + n.active_mlp) + n.embedding + n.head


def model_flops_per_token(model: Transformer, convention: str = "6N+12Lhs") -> Array:
    """Model FLOPs of one trained token, forward and backward, without recomputation [FLOP].

    `6 N + c L (a e) s` with N the active parameters (embedding included) and c = 0, 12 or 6 by convention. Narayanan et al. 2021 count
    full attention, c = 12; flash kernels on causal masks do half of it, c = 6.

    Raises:
      ValueError: the convention is none of `CONVENTIONS`.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"convention: expected one of {', '.join(CONVENTIONS)}; got {convention!r}")
    c = {"6N": 0.0, "6N+12Lhs": 12.0, "6N+6Lhs": 6.0}[convention]
    return 6.0 * active_parameters(model) + c * model.n_layers * model.n_heads * model.head_dim * model.seq_len


class Matmuls(struct.PyTreeNode, kw_only=True):
    """Forward matrix products of one layer, and last the head: QKV, projection, up (and gate), down, logits; `[5, *batch]`.

    Attributes:
      rows, columns, inner: M, N and K of one product [count]. copies: how many of that size run (local experts) [count].
    """

    rows: jax.Array
    columns: jax.Array
    inner: jax.Array
    copies: jax.Array

    @property
    def flops(self) -> jax.Array:
        """2 M N K · copies [FLOP]."""
        return 2.0 * self.rows * self.columns * self.inner * self.copies

    @property
    def elements(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Elements of the left operand (M K), the right one (K N) and the result (M N), all copies [count]."""
        inner = self.inner * self.copies
        return self.rows * inner, self.columns * inner, self.rows * self.columns * self.copies


def tokens(model: Transformer, plan: Plan) -> Array:
    """Tokens of one micro-batch on one device: b s / cp."""
    return plan.micro_batch * model.seq_len / plan.cp


def matmuls(model: Transformer, plan: Plan) -> Matmuls:
    """Forward matrix products of one layer and the head, per device and micro-batch, tensor parallel.

    An expert sees `t · top_k · ep / experts` of the tokens t, times the imbalance; `experts / ep` of them are local. Shared experts
    add to the rows of the local ones, so FLOPs are exact and the size of a product is a mean.
    """
    t, h = tokens(model, plan), model.d_model
    local = model.n_experts / plan.ep
    visits = t * (model.top_k * model.imbalance + model.n_shared_experts) / local
    f, width = model.d_ff / plan.tp, model.n_heads * model.head_dim / plan.tp
    kv = 2.0 * model.n_kv_heads * model.head_dim / plan.tp
    return Matmuls(
        rows=stack(t, t, visits, visits, t),
        columns=stack(width + kv, h, (1.0 + model.gated_mlp) * f, h, model.vocab / plan.tp),
        inner=stack(h, width, h, f, h),
        copies=stack(1.0, 1.0, local, local, 1.0),
    )


def cast_bytes(products: Matmuls, plan: Plan) -> Array:
    """Memory traffic of casting below 16 bits, forward and backward of one layer [byte]; 0 in 16 bits.

    The left operand of each product forward, the gradient of its result backward, each read in 16 bits and written in the operand's.
    Weights are cast once per step, not per micro-batch.
    """
    left, _, result = products.elements
    return plan.low_precision * (WORD + plan.operand_bytes) * (left + result)[:4].sum(0)


def attention_flops(model: Transformer, plan: Plan) -> Array:
    """FLOPs of the forward attention core (Q Kᵀ and P V): `4 b (s/cp) s a e / tp`, half of it when flash skips the causal half."""
    full = 4.0 * tokens(model, plan) * model.seq_len * model.n_heads * model.head_dim / plan.tp
    return full * (1.0 - 0.5 * model.causal * plan.flash)


def softmax_bytes(model: Transformer, plan: Plan) -> Array:
    """Memory traffic of the unfused forward softmax [byte]: scores written and read, probabilities written and read, and dropout's read,
    write and mask: `13 b a s (s/cp) / tp` (Korthikanti et al. 2022 count 5 b a s² stored); 0 with flash."""
    scores = tokens(model, plan) * model.seq_len * model.n_heads / plan.tp
    return 13.0 * scores * (1.0 - plan.flash)


def elementwise_bytes(model: Transformer, plan: Plan) -> Array:
    """Least memory traffic of the forward norms, residuals, rotary embedding and activation of one layer [byte].

    `2 t [ 10 h / split + (2 (a + g) e + (2 + gated) f · active) / tp ]`: two norms (read, write) and two residual additions (two reads,
    one write) on h, which sequence parallelism splits; rotary embedding (read, write) on (a + g) e; activation on f of each expert that a
    token visits: 2 passes plain, 3 gated.

    Limits: sorting tokens for experts and dropout are left out; `elementwise_traffic` scales for what a stack does besides.
    """
    t = tokens(model, plan)
    split = 1.0 + plan.sp * (plan.tp - 1.0)
    active = model.top_k + model.n_shared_experts
    heads = (model.n_heads + model.n_kv_heads) * model.head_dim
    return WORD * t * (10.0 * model.d_model / split + (2.0 * heads + (2.0 + model.gated_mlp) * model.d_ff * active) / plan.tp)


def loss_bytes(model: Transformer, plan: Plan) -> Array:
    """Memory traffic of the loss, forward and backward [byte]: fp32 logits read three times and written twice, `20 t V / tp`."""
    return 20.0 * tokens(model, plan) * model.vocab / plan.tp


def kernels(model: Transformer, plan: Plan) -> Array:
    """Kernels of one forward layer [count]: 4 products, 2 norms, 2 residuals, rotary, activation, attention (1 fused, 6 not), 1 more
    for each of the 2 tensor-parallel collectives, and the sorting of tokens (6) when there are experts. A nominal count, assumed: the
    fitted `launch` scales it."""
    collective = 2.0 * ramp(plan.tp - 1.0)
    experts = 6.0 * ramp(model.n_experts - 1.0)
    return 11.0 + 5.0 * (1.0 - plan.flash) + collective + experts


def meetings(plan: Plan) -> Array:
    """Tensor-parallel collectives of a layer, forward, backward and again under full recomputation, times their ranks, where the stage of a
    pipeline runs them [count]: `(4 + 2 again) tp`; 0 without a pipeline or on one rank."""
    return (4.0 + 2.0 * plan.recompute_layers) * plan.tp * ramp(plan.tp - 1.0) * ramp(plan.pp - 1.0)


class Residents(struct.PyTreeNode, kw_only=True):
    """Parameters of one device before ZeRO shards them [count]: `layers` of its pipeline stage without the routed experts, `experts`, the
    routed ones (ranks of ep hold different ones), and `ends`, the embedding and head of the fullest stage."""

    layers: Array
    experts: Array
    ends: Array

    @property
    def dense(self) -> Array:
        """layers + ends: what all ranks of dp hold alike."""
        return self.layers + self.ends

    @property
    def total(self) -> Array:
        """dense + experts."""
        return self.dense + self.experts


def residents(model: Transformer, plan: Plan) -> Residents:
    """Parameters that the fullest device holds: `L/pp` layers over tp, routed experts over ep too (shared ones are on every rank of it);
    the embedding on the first stage and the head on the last, both when there is one stage."""
    n = parameter_groups(model)
    layers = model.n_layers / plan.pp
    routed = n.mlp * ramp(model.n_experts - 1.0) * model.n_experts / (model.n_experts + model.n_shared_experts)
    both = ramp(2.0 - plan.pp)
    return Residents(
        layers=layers * (n.attention + n.mlp - routed) / plan.tp,
        experts=layers * routed / (plan.tp * plan.ep),
        ends=(n.embedding + n.head * both) / plan.tp,
    )


def activation_bytes(model: Transformer, plan: Plan) -> Array:
    """Bytes of one activation tensor `t × h` on the wire: the message of tensor parallelism and of the pipeline."""
    return WORD * tokens(model, plan) * model.d_model
