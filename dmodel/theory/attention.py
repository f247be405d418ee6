"""Attention in the layers of the theory, which the study leaves out: its products beside those of
the blocks, its core, its all-reduces.

A layer gets the projections Q, K, V and O, each d_model × d_model, and the core between them over
sequences of s tokens, causal: `softmax(Q Kᵀ) V`. Two-dimensional tensor parallelism cuts inputs
N_model ways and heads N_ff ways, as it cuts the blocks; the core is spread over all N_model · N_ff
parts. Groups of experts share the tokens of attention, whose weights each of them holds.

Kernels that keep scores on the chip: Dao et al. 2022 (arXiv 2205.14135), Dao 2023 (arXiv
2307.08691).
"""

from __future__ import annotations

import jax

from dmodel import struct
from dmodel.smooth import maximum
from dmodel.theory.gpus import Gpu
from dmodel.theory.tiling import EXACT, WORD, Rules, matmul_time
from dmodel.types import Array, stack

BACKWARD = 2.5
"""Products of the core's backward pass over those of the forward one: four, and the scores once
more (Dao 2023)."""


class AttentionShard(struct.PyTreeNode, frozen=True, kw_only=True):
    """What one GPU works on: inputs and outputs of the projections [element], share of the core's
    width [element], tokens of a
    micro-batch, length of a sequence [token]."""

    inputs: Array
    outputs: Array
    core: Array
    tokens: Array
    seq_len: Array


def projections_time(
    part: AttentionShard, chip: Gpu, rules: Rules = EXACT, sharpness: float = float("inf")
) -> jax.Array:
    """Products of a layer's Q, K and V, one wide matrix, and of O: forward, activations' gradient,
    weights' gradient [s].

    `t(3o, i) + t(i, 3o) + t_w(3o, i) + t(i, o) + t(o, i) + t_w(o, i)`.
    """

    def products(outputs: Array, inputs: Array) -> jax.Array:
        given = {"rules": rules, "sharpness": sharpness}
        there = matmul_time(outputs, inputs, part.tokens, chip, **given)
        back = matmul_time(inputs, outputs, part.tokens, chip, **given)
        return (
            there
            + back
            + matmul_time(outputs, inputs, part.tokens, chip, weight_gradient=1.0, **given)
        )

    return products(3.0 * part.outputs, part.inputs) + products(part.inputs, part.outputs)


def core_time(part: AttentionShard, chip: Gpu, sharpness: float = float("inf")) -> jax.Array:
    """The core of a layer, forward and backward, one kernel each [s].

    Forward `latency + max(2 s d b / rate, 4 w d b / HBM)`: two products over half of the scores; Q,
    K, V read and O written. Backward: 2.5 times the arithmetic, twice the bytes.

    Limits: as much arithmetic as the projections at s = 4 d, forward; bound by memory when
    sequences are short.
    """
    flop = 2.0 * part.seq_len * part.core * part.tokens / (chip.sustained * chip.flops_per_s)
    moved = 4.0 * WORD * part.core * part.tokens / chip.hbm_bytes_per_s
    forward = maximum(stack(flop, moved), sharpness)
    backward = maximum(stack(BACKWARD * flop, 2.0 * moved), sharpness)
    return 2.0 * chip.kernel_latency_s + forward + backward


def attention_time(
    part: AttentionShard, chip: Gpu, rules: Rules = EXACT, sharpness: float = float("inf")
) -> jax.Array:
    """Attention of one layer and micro-batch, forward and backward [s]."""
    return projections_time(part, chip, rules, sharpness) + core_time(part, chip, sharpness)
