"""The physics of the study for `dmodel.step`, and what a whole run takes under it.

Differs from the calibrated physics in these terms, and in no other: products by tiles, collectives
over pooled bandwidth with hops once a step, tensor parallelism in two dimensions, experts beside
dp, one window of overlap for the whole step, a state of 16 bits per parameter and replica and four
words sharded. Streaming, launches, the head, the optimizer's update, contention, stragglers and
overhead
cost nothing; attention neither, unless a run has it (`theory.attention`).
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import Any

import jax
import jax.numpy as jnp

from dmodel import struct
from dmodel.coefficients import SPECS, Coefficients
from dmodel.cost.memory import Memory
from dmodel.cost.pipeline import interleaved_bubble, zero_bubble
from dmodel.physics import Communication, Costs, LayerWork, Physics
from dmodel.records import Cluster
from dmodel.smooth import excess
from dmodel.step import memory_use, step_time
from dmodel.theory.attention import AttentionShard, attention_time
from dmodel.theory.gpus import Gpu
from dmodel.theory.laws import Run, flop_of
from dmodel.theory.layout import KINDS, LevelLayout
from dmodel.theory.messages import Messages, messages
from dmodel.theory.tiling import EXACT, ROUNDING, WORD, Rules, matmul_time
from dmodel.traffic import Passes
from dmodel.types import Array, trailing

STATE_WORDS = 4.0
"""Words of optimizer state per parameter, sharded over all GPUs."""

IDEAL = Coefficients(
    **{
        name: 1.0 if spec.bound == "share" or name == "bubble" else 0.0
        for name, spec in SPECS.items()
    }
)
"""Coefficients of a step in which nothing is fitted: full rates, no jitter, no overhead."""


def align(system: Cluster, layout: LevelLayout, *_others: object) -> tuple[Cluster, LevelLayout]:
    """Per-level leaves `[K]` get the batch axes that the layout has."""
    rank = max(1, *(jnp.ndim(x) for x in jax.tree.leaves((layout, system))))
    levels = {f"{kind}_levels": trailing(getattr(layout, f"{kind}_levels"), rank) for kind in KINDS}
    return system.replace(
        network=jax.tree.map(lambda x: trailing(x, rank), system.network)
    ), layout.replace(**levels)


def _divided(x: Array, parts: Array, rules: Rules) -> jax.Array:
    """x // parts, as the study cuts; real division when relaxed."""
    quotient = jnp.asarray(x / parts)
    # a whole quotient may come out a hair too small where the compiler multiplies with a reciprocal
    return jnp.floor(quotient / ROUNDING) if rules.steps else quotient


class Shard(struct.PyTreeNode, kw_only=True):
    """What one GPU works on: its part of d_model and d_ff [element], tokens of an expert and
    micro-batch, layers and experts it holds,
    and its part of attention, None without."""

    d_model: Array
    d_ff: Array
    tokens: Array
    layers: Array
    experts: Array
    attention: AttentionShard | None = None


def shard(run: Run, layout: LevelLayout, rules: Rules = EXACT) -> Shard:
    """Cut a run's model and batch by the layout's degrees."""
    return Shard(
        d_model=_divided(run.d_model, layout.tp_model, rules),
        d_ff=_divided(run.d_ff, layout.tp_ff, rules),
        tokens=_divided(run.batch_tokens, layout.dp * layout.n_microbatches * run.experts, rules),
        layers=_divided(run.layers, layout.pp, rules),
        experts=_divided(run.experts, layout.ep, rules),
        attention=None if run.attention is None else attention_shard(run, layout, rules),
    )


def attention_shard(run: Run, layout: LevelLayout, rules: Rules = EXACT) -> AttentionShard:
    """Cut a run's attention by the layout's degrees: heads as d_ff, tokens also among the groups of
    experts."""
    return AttentionShard(
        inputs=_divided(run.d_model, layout.tp_model, rules),
        outputs=_divided(run.d_model, layout.tp_ff, rules),
        core=run.d_model / (layout.tp_model * layout.tp_ff),
        tokens=_divided(run.batch_tokens, layout.dp * layout.n_microbatches * layout.ep, rules),
        seq_len=run.attention.seq_len,  # type: ignore[union-attr]
    )


def layer_work(
    system: Cluster, part: Shard, layout: LevelLayout, rules: Rules, sharpness: float
) -> LayerWork:
    """Six products per layer, micro-batch and expert: up and down, each forward, for the
    activations' and for the weights' gradient.

    `2 t(f, d) + 2 t(d, f) + t_w(f, d) + t_w(d, f)` times the experts held; recomputing repeats the
    forward third of it. The two products for weight gradients cost the same: their tiles and
    traffic are symmetric in the two sizes. Attention adds its time where a run has it.

    Limits: latency alone costs 27 µs per layer, micro-batch and expert on today's GPUs.
    """
    f, d, b = part.d_ff, part.d_model, part.tokens
    chip: Gpu = system.chip  # type: ignore[assignment]
    up, down = (
        matmul_time(*sizes, b, chip, rules=rules, sharpness=sharpness) for sizes in ((f, d), (d, f))
    )
    gradient = matmul_time(f, d, b, chip, weight_gradient=1.0, rules=rules, sharpness=sharpness)
    products = part.experts * 2.0 * (up + down + gradient)
    if part.attention is not None:
        products = products + attention_time(part.attention, chip, rules, sharpness)
    return layer_work_of(products, layout)


def layer_work_of(matmul: Array, layout: LevelLayout) -> LayerWork:
    """Work of a layer whose products, of all experts held, take `matmul` [s]: there is no other."""
    return LayerWork(
        matmul=Passes(matmul / 3.0, matmul * 2.0 / 3.0),
        attention=Passes(0.0, 0.0),
        elementwise=0.0,
        recompute=layout.recompute * matmul / 3.0,
        head=0.0,
        forward=matmul / 3.0,
        backward=matmul * 2.0 / 3.0,
    )


def idle_slots(layout: LevelLayout) -> Array:
    """Idle micro-batches of the schedule: β / (1 − β) of the m that are work, for the study's share
    β of idle time."""
    pp, m, v = layout.pp, layout.n_microbatches, layout.interleave
    return (1.0 - layout.zero_bubble) * interleaved_bubble(pp, m, v) + zero_bubble(pp, m, v)


def exposed(
    work: Array, sent: Messages, layout: LevelLayout, slots: Array, sharpness: float
) -> tuple[Array, Array, Array, Array]:
    """Communication that a step of `work` seconds does not hide [s]: tensor, transfers, data, and
    hops that come once.

    Tensor parallelism and transfers share one window, the work of the step, as far as each may
    overlap; data parallelism hides behind all the pipeline does, or not at all. Hops of a
    zero-bubble pipeline vanish, as in the study's code; those of data parallelism stay.
    """
    tensor, moved = layout.overlap_tp * sent.tensor.flow, layout.overlap_pp * sent.transfers.flow
    hideable = tensor + moved
    left = excess(*jnp.broadcast_arrays(work, hideable), sharpness)
    share = jnp.where(hideable > 0.0, left / jnp.where(hideable > 0.0, hideable, 1.0), 0.0)
    tensor, moved = (
        (sent.tensor.flow - tensor) + share * tensor,
        (sent.transfers.flow - moved) + share * moved,
    )
    hops = (1.0 - layout.zero_bubble) * (sent.tensor.latency + sent.transfers.latency)
    pipeline = (work + tensor + moved) * (1.0 + slots / layout.n_microbatches) + hops
    hidden = layout.overlap_dp
    data = (
        hidden * excess(*jnp.broadcast_arrays(pipeline, sent.data.flow), sharpness)
        + (1.0 - hidden) * sent.data.flow
    )
    return tensor, moved, data + sent.data.latency, hops


def costs(
    system: Cluster,
    run: Run,
    layout: LevelLayout,
    sharpness: float,
    rules: Rules,
    work: LayerWork | None = None,
) -> Costs:
    """Work, communication and idle slots of a step of the study; `work` where it is known, as for
    layouts that differ in placement only."""
    part = shard(run, layout, rules)
    work = layer_work(system, part, layout, rules, sharpness) if work is None else work
    slots, m = idle_slots(layout), layout.n_microbatches
    times = m * part.layers
    sent = messages(system.network, run, layout, sharpness)
    tensor, moved, data, hops = exposed(
        times * (work.matmul.total + work.recompute), sent, layout, slots, sharpness
    )
    return Costs(
        work=work,
        communication=Communication(
            tp=tensor / times,
            cp=0.0,
            ep=0.0,
            fsdp=0.0,
            fsdp_first=0.0,
            dp=data,
            pp=moved / m,
            once=hops,
            hidden_layer=0.0,
            hidden_step=0.0,
        ),
        stages=layout.pp,
        layers=part.layers,
        micro_batches=m,
        idle_slots=slots,
        optimizer=0.0,
    )


def memory(run: Run, layout: LevelLayout) -> Memory:
    """Bytes of one GPU: `w P dp / N` of weights, `4 w P / N` of optimizer state, and activations
    when the layout counts them.

    Activations: inputs of layers, `w d_model b q dp S pp / N`, when recomputing; inputs of both
    products of every layer,
    `w (d_model + d_ff) b q L dp S / N`, otherwise; q = pp micro-batches in flight, 2 pp − 1 with
    zero bubble, b tokens of an expert each.
    """
    each = WORD / layout.devices
    tokens = run.batch_tokens / layout.n_microbatches
    in_flight = layout.pp + layout.zero_bubble * (layout.pp - 1.0)
    kept = (1.0 - layout.recompute) * (
        run.d_model + run.d_ff
    ) * run.layers + layout.recompute * run.d_model * layout.pp
    return Memory(
        weights=each * run.parameters * layout.dp,
        gradients=0.0,
        optimizer=each * STATE_WORDS * run.parameters,
        activations=layout.activations * each * tokens * in_flight * kept,
        logits=0.0,
        buffers=0.0,
    )


@lru_cache(maxsize=8)
def theory(rules: Rules = EXACT) -> Physics:
    """The physics of the study, for `step_time` on a `Run` and a `LevelLayout`; `RELAXED` rules
    have slopes everywhere."""

    def by_rules(
        system: Any, run: Any, layout: Any, coefficients: Coefficients, sharpness: float
    ) -> Costs:
        return costs(system, run, layout, sharpness, rules)

    return Physics(align=align, costs=by_rules, memory=memory)


class Training(struct.PyTreeNode, kw_only=True):
    """What a whole run takes: `D / T` steps.

    Attributes:
      step_time_s: of one step [s]. train_time_s: of all [s].
      utilization: `6 (P/S) T / (N · peak)` over the step, the share of the peak FLOP/s [1].
      tp_comm_s, dp_comm_s, pp_ep_comm_s: bytes of each kind, hidden or not [s]. latency_s: hops of
      all, whether they count or not [s]. mem_required_bytes, mem_available_bytes: of all GPUs
      [byte]; the layout is feasible when the first is no more than the second.
    """

    step_time_s: Array
    train_time_s: Array
    utilization: Array
    tp_comm_s: Array
    dp_comm_s: Array
    pp_ep_comm_s: Array
    latency_s: Array
    mem_required_bytes: Array
    mem_available_bytes: Array


def training(
    system: Cluster, run: Run, layout: LevelLayout, *, rules: Rules = EXACT, sharpness: float = inf
) -> Training:
    """Time, utilization, communication and memory of a whole run.

    Args:
      system: `theory.gpu(name)`. run: `theory.run(d_model)`. layout: all leaves scalars, or
        `[*batch]` (per level `[K, *batch]`).
      rules: of cutting products; `RELAXED` has slopes. sharpness: of all maxima; infinity is the
        study. Both static.

    Returns:
      Training with leaves `[*batch]`.
    """
    how = {"sharpness": sharpness, "physics": theory(rules)}
    step = step_time(system, run, layout, IDEAL, **how).total  # type: ignore
    used = memory_use(run, layout, physics=theory(rules)).total  # type: ignore[arg-type]
    system, layout = align(system, layout)
    sent, steps, n = (
        messages(system.network, run, layout, sharpness),
        run.dataset_tokens / run.batch_tokens,
        layout.devices,
    )
    flop = flop_of(run, run.batch_tokens)
    return Training(
        step_time_s=step,
        train_time_s=steps * step,
        utilization=flop / (system.chip.flops_per_s * n * step),
        tp_comm_s=steps * sent.tensor.flow,
        dp_comm_s=steps * sent.data.flow,
        pp_ep_comm_s=steps * sent.transfers.flow,
        latency_s=steps * (sent.tensor.latency + sent.transfers.latency + sent.data.latency),
        mem_required_bytes=n * used,
        mem_available_bytes=n * system.chip.hbm_bytes,
    )
