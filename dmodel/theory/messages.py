"""Communication of a step of the study, when nothing hides it: bytes over the pooled bandwidth of
each level, hops once a step.

The bandwidth of a level is that of all N GPUs together: `N · bytes_per_s`. Traffic of a kind is
spread evenly over it, so a level's time
is its bytes over that; levels work at the same time in an all-reduce, one after the other in a
transfer.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dmodel.records import Network
from dmodel.smooth import maximum
from dmodel.theory.laws import Run
from dmodel.theory.layout import LevelLayout, above, joined, product, top
from dmodel.theory.tiling import WORD
from dmodel.types import Array, each


class Message(NamedTuple):
    """Time of the bytes and time of the hops of one kind of communication, per step [s]."""

    flow: Array
    latency: Array


class Messages(NamedTuple):
    """Tensor parallelism, data parallelism, and the transfers between pipeline stages and to
    experts, per step, unhidden."""

    tensor: Message
    data: Message
    transfers: Message


def _seconds_per_byte(network: Network, devices: Array) -> jax.Array:
    """`1 / (N rate_l)`, `[K, *batch]`: the pooled bandwidth; 0 where it is infinite, and so is its
    slope, for it is two quotients."""
    return 1.0 / each(devices) * (1.0 / network.bytes_per_s)


def all_reduce_flow(nbytes: Array, group: Array, sequence: Array) -> jax.Array:
    """Bytes that all-reduces of `nbytes` move at each level, in the whole cluster, `[K, *batch]`
    [byte].

    `2 (g_l − 1) V s Π_{j>l} g_j`: s in sequence, and as many side by side as there are groups of
    the level.

    Args:
      nbytes: V [byte]. group: members that each level joins, `[K, *batch]`. sequence: s, one after
        the other [count].
    """
    return each(2.0 * nbytes * sequence) * (group - 1.0) * above(group)


def all_reduce_latency(group: Array, network: Network, sequence: Array) -> jax.Array:
    """Hops of all-reduces [s]: there and back at each level that joins several, `2 s Σ_l
    latency_l`."""
    return (each(2.0 * sequence) * network.latency_s * joined(group)).sum(0)


def tensor_parallel(network: Network, run: Run, layout: LevelLayout, sharpness: float) -> Message:
    """Two all-reduces per layer, each forward and backward: d_ff over the parts of d_model, d_model
    over the parts of d_ff.

    Attention, where a run has it, adds two more: of 3 d_model over the parts of d_model, of d_model
    over the parts of d_ff.

    Limits: on one level `8 L T w ((N_model − 1) d_ff + (N_ff − 1) d_model) / (N · both-way
    bandwidth)`; 0 without tensor parallelism.
    """
    passes, word = 2.0 * run.layers, WORD * run.batch_tokens
    cut_model, cut_ff = layout.tp_model_levels, layout.tp_ff_levels
    attention = 0.0 if run.attention is None else 1.0
    wide, narrow = run.d_ff + attention * 3.0 * run.d_model, (1.0 + attention) * run.d_model
    moved = all_reduce_flow(word * wide, cut_model, passes) + all_reduce_flow(
        word * narrow, cut_ff, passes
    )
    hops = all_reduce_latency(cut_model, network, passes) + all_reduce_latency(
        cut_ff, network, passes
    )
    return Message(
        maximum(moved * _seconds_per_byte(network, layout.devices), sharpness),
        (1.0 + attention) * hops,
    )


def data_parallel(network: Network, run: Run, layout: LevelLayout, sharpness: float) -> Message:
    """One all-reduce of all gradients, those of every expert, per step."""
    moved = all_reduce_flow(WORD * run.parameters, layout.dp_levels, 1.0)
    return Message(
        maximum(moved * _seconds_per_byte(network, layout.devices), sharpness),
        all_reduce_latency(layout.dp_levels, network, 1.0),
    )


def stage_moves(run: Run, layout: LevelLayout) -> jax.Array:
    """Share of layer boundaries at which a token changes the pipeline stage at each level, not at
    all first, `[1 + K, *batch]`.

    Of L − 1 boundaries `L − v pp` stay within a stage; `v Π_{j>l} pp_j (pp_l − 1)` move at level l,
    and at the highest v − 1 more, from
    the last stage back to the first.
    """
    v, levels = layout.interleave, jnp.asarray(layout.pp_levels)
    moves = each(v) * above(levels) * (levels - 1.0) + each(v - 1.0) * top(levels)
    stay = jnp.asarray(run.layers - v * product(levels))
    return jnp.concatenate([jnp.broadcast_to(stay, moves.shape[1:])[None], moves]) / each(
        run.layers - 1.0
    )


def expert_moves(layout: LevelLayout) -> jax.Array:
    """Probability that a token's next expert is at each level, here first, `[1 + K, *batch]`:
    `1/Π_{j>l} ep_j − 1/Π_{j≥l} ep_j`."""
    beyond = 1.0 / above(layout.ep_levels)
    within = beyond / jnp.asarray(layout.ep_levels)
    return jnp.concatenate([within[:1], beyond - within])


def expert_hops(layout: LevelLayout) -> jax.Array:
    """1 at the highest level of experts, where the slowest of a batch's tokens go, `[1 + K,
    *batch]`; without experts, at none."""
    highest = top(layout.ep_levels)
    return jnp.concatenate([1.0 - highest.sum(0, keepdims=True), highest])


def _farther(stages: jax.Array, experts: jax.Array) -> jax.Array:
    """Share of moves whose farther one is at each level, `[K, *batch]`: `s_l Σ_{j≤l} e_j + e_l
    Σ_{j<l} s_j`."""
    s, e = jnp.cumsum(stages, 0), jnp.cumsum(experts, 0)
    return stages[1:] * e[1:] + experts[1:] * s[:-1]


def transfers(network: Network, run: Run, layout: LevelLayout) -> Message:
    """Activations that move between stages and to experts, forward and backward at L − 1
    boundaries, each at the farther of two levels."""
    stages, passes = stage_moves(run, layout), 2.0 * (run.layers - 1.0)
    moved = each(WORD * run.d_model * run.batch_tokens * passes) * _farther(
        stages, expert_moves(layout)
    )
    hops = each(passes) * network.latency_s * _farther(stages, expert_hops(layout))
    return Message((moved * _seconds_per_byte(network, layout.devices)).sum(0), hops.sum(0))


def messages(network: Network, run: Run, layout: LevelLayout, sharpness: float) -> Messages:
    """All communication of a step; recomputing forward passes sends what they send again, half as
    much as both passes."""
    again = 1.0 + 0.5 * layout.recompute
    tensor, moved = (
        tensor_parallel(network, run, layout, sharpness),
        transfers(network, run, layout),
    )
    return Messages(
        tensor=Message(again * tensor.flow, again * tensor.latency),
        data=data_parallel(network, run, layout, sharpness),
        transfers=Message(again * moved.flow, again * moved.latency),
    )
