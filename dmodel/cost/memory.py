"""Memory of one device: what the fullest pipeline stage must hold."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct

from dmodel import counts
from dmodel.plan import Plan
from dmodel.smooth import ramp
from dmodel.types import GIB, Array
from dmodel.workload import Transformer

RESERVED_BYTES = 2.5 * GIB
"""CUDA context, communication buffers, library workspace and what fragmentation wastes of one device: assumed, not fitted."""

LOGIT_BYTES = 8.0
"""Bytes alive per logit: the 16-bit product (2), the fp32 copy that the loss is taken of (4), its 16-bit gradient (2)."""


class Memory(struct.PyTreeNode, kw_only=True):
    """Bytes of one device by purpose."""

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array
    logits: Array
    buffers: Array

    @property
    def total(self) -> Array:
        """Sum of all."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.buffers


def zero_share(zero: Array, stage: float) -> Array:
    """0 below the ZeRO stage, 1 from it on, linear in between: `clip(zero − stage + 1, 0, 1)`."""
    return ramp(zero - (stage - 1.0))


def sharded(parts: counts.Residents, plan: Plan) -> Array:
    """Parameters of one device when ZeRO shards all of them [count]: dense ones over `shard · cp` ranks, experts over those beside ep."""
    ranks = plan.shard * plan.cp
    return parts.dense / ranks + parts.experts / jnp.maximum(ranks / plan.ep, 1.0)


def held(parts: counts.Residents, plan: Plan, stage: float) -> Array:
    """Parameters of one device whose state is sharded from a ZeRO stage on [count]: linear between all of them and `sharded`."""
    share = zero_share(plan.zero, stage)
    return (1.0 - share) * parts.total + share * sharded(parts, plan)


def layer_activation_bytes(model: Transformer, plan: Plan) -> Array:
    """Activations that one layer keeps for the backward pass, per device and micro-batch [byte].

    Korthikanti et al. 2022, generalized: without recomputation `t h (10 + 24/tp)` for a plain MLP of 4h with MHA in 16 bits; here
    `t [ (6 + 2w) h / split + ((4 (a + g) e − (2 − w) a e) + c f) / tp ]`. On h, which sequence parallelism splits: the inputs of norms and
    residuals, dropout masks, and the norms' outputs at the width w of matmul operands; Q, K, V and the attention output (an operand); on f,
    c = 2 + w (plain) or 4 + w (gated). Routed experts keep their inputs, `w h / split` for each one that a token visits, and f counts as
    often. Unfused attention adds `5 t s a / tp`, gone when the attention core is recomputed; full recomputation keeps the input, `2 t h`.
    """
    t, h = counts.tokens(model, plan), model.d_model
    split = 1.0 + plan.sp * (plan.tp - 1.0)
    # operands below 8 bits are kept with their scales, in both layouts; frozen weights need no operand kept for their gradient
    operand = jnp.maximum(plan.operand_bytes, 1.0) * model.trainable
    heads = (4.0 * (model.n_heads + model.n_kv_heads) - (2.0 - operand) * model.n_heads) * model.head_dim
    visits = model.top_k * model.imbalance
    width = (2.0 + operand + 2.0 * model.gated_mlp) * model.d_ff * (visits + model.n_shared_experts)
    scores = 5.0 * model.seq_len * model.n_heads * (1.0 - plan.flash) * (1.0 - plan.recompute_attention)
    inputs = 6.0 + operand * (2.0 + ramp(model.n_experts - 1.0) * visits)
    kept = t * (inputs * h / split + (heads + width + scores) / plan.tp)
    return kept + plan.recompute_layers * (2.0 * t * h / split - kept)


def memory(model: Transformer, plan: Plan, in_flight: Array) -> Memory:
    """Bytes that the fullest device needs, by purpose.

    Weights, gradients and optimizer state of its parameters, sharded from ZeRO stage 3, 2 and 1 on over `shard · cp` ranks (experts over
    the ranks beside ep); activations of the schedule's micro-batches in flight, and one layer in full while it is recomputed; the logits of
    one micro-batch; under ZeRO-3 the gathered weights of two layers, or of all when they are kept after the forward pass.

    Limits: with several stages an upper bound, by less than the logits, which the last stage holds and the first, fullest one does not.

    Args:
      in_flight: micro-batches of a whole stage whose activations are alive at once, from the schedule [count].
    """
    parts = counts.residents(model, plan)
    layers = model.n_layers / plan.pp
    working = layer_activation_bytes(model, plan.replace(recompute_layers=0.0, recompute_attention=0.0))
    alive = 1.0 - plan.reshard * (1.0 - jnp.minimum(2.0 / layers, 1.0))
    gathered = zero_share(plan.zero, 3.0) * plan.weight_bytes * parts.total * alive
    recomputed = jnp.maximum(plan.recompute_layers, plan.recompute_attention * (1.0 - plan.flash))
    trained = model.trainable
    return Memory(
        weights=plan.weight_bytes * held(parts, plan, 3.0),
        gradients=trained * plan.gradient_bytes * held(parts, plan, 2.0),
        optimizer=trained * plan.optimizer_bytes * held(parts, plan, 1.0),
        activations=layers * in_flight * layer_activation_bytes(model, plan) + recomputed * working,
        logits=LOGIT_BYTES * counts.tokens(model, plan) * model.vocab / plan.tp,
        buffers=RESERVED_BYTES + gathered,
    )
