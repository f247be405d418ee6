"""The messages of a training step and how long each takes when nothing hides it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel import counts, struct
from dmodel.blocks.part import Passes
from dmodel.coefficients import Coefficients
from dmodel.cost import collectives
from dmodel.cost.memory import zero_share
from dmodel.placement import GROUPS, Groups
from dmodel.records import Model, Plan, ends_together, weight_copies
from dmodel.smooth import ramp
from dmodel.tables import ends_of, layer, times
from dmodel.types import Array, each, stack, trailing

LINE_HOP = 1.0 / 3.0
"""A hop of a message of few bytes, which NCCL sends in lines of 128, over one in the blocks that
`net_latency_outer` stands for: 4.0 µs for 14 between nodes by its tuning table (`tuning.cc`);
inside them, where it is 1.9 for 3.4, it counts as a third too."""

COPIED = (0.0, 1.0, 1.0, 1.0, 1.0, 1.0)
"""1 for the kinds of gathers in which a rank's own part is copied too: cp, FSDP's, that of
experts, etp, ep, tp. Ring attention hands keys and values on as they came."""


class Messages(struct.PyTreeNode, kw_only=True):
    """Times of the messages when nothing hides them [s]: per layer (tp, cp and ep, pass by pass;
    weight gather, gradient scatter), per step (reduction of gradients, gather of updated
    parameters), transfer, the embedding and head of a micro-batch, what a step waits for
    (`awaited`: the tied embedding, and the sum over HSDP's replicas where nothing hides it)."""

    tp: Passes
    cp: Passes
    ep: Passes
    gather: Array
    scatter: Array
    dp: Array
    updated: Array
    pp: Array
    ends: Array
    awaited: Array


def messages(
    model: Model,
    plan: Plan,
    parts: counts.Residents,
    groups: Groups,
    net: collectives.Fabric,
    c: Coefficients,
) -> Messages:
    """Time of each message, hidden or not.

    Tensor parallelism: 2 all-reduces forward, 2 backward and 2 again under full recomputation, or
    all-gather + reduce-scatter with `sp` (where that ends before the last product,
    `Software.recompute_last`, its result is not summed again, nor are experts' tokens combined):
    half of them for the mixer, half for an MLP, which layers of routed experts alone do not have.
    What products below 16 bits read is gathered in their bytes (`Precision.narrow_gathers`,
    Transformer Engine's `gather_along_first_dim` with a quantizer), sums go in 16, but forward
    where they go so too (`Precision.narrow_sums`); where elementwise kernels alone run again
    (`Layout.recompute_elementwise`), all-gathers do so before them; as many as 1 forward and 1
    backward for the vocabulary-parallel embedding and head together, on one stage or two, in 16
    bits. Where products are summed, ranks wait for the last of them (`collective_skew`), if they
    run at all (`Software.composed`); at the gather behind they have just met. Experts split over
    etp gather and scatter the tokens of their ranks, and wait at both: what exchanges bring them
    differs. Adapters join what is as wide as their rank, a message of hops alone, and those that
    return h exchange a rank's part of it (NeMo's `a2a_experimental`), in either pass; ranks have
    just met. Context parallelism: the ring passes K and V forward, K, V and their gradients
    backward. Expert parallelism: dispatch and combine each way; forward, ranks first gather how
    many tokens go where (Megatron-Core's dispatcher, DeepEP's notification): a start and hops in
    lines (`LINE_HOP`), in blocks where a map of who visits whom goes with them
    (`Software.route_bytes`). ZeRO-3: gathers forward and backward and a scatter of each layer, per
    micro-batch; ZeRO 2 the scatter alone (DeepSpeed's stage 2 and FSDP reduce gradients behind
    every micro-batch, or once per step where they accumulate), and gathers once. ZeRO 0: an
    all-reduce of gradients per step; 1 (Megatron-LM's distributed optimizer): reduce-scatter and
    all-gather. HSDP adds an all-reduce of the shard over the replicas, which hides like other
    gradients or is waited for (`Software.overlap_replica`). Routed experts are messages of their
    own, among the ranks that hold the same ones. Tied embeddings of several stages are summed over
    the first and last, where these are on two ranks. Where a pipeline holds several copies of the
    weights, each rank reduces and gathers as many, among as many times the ranks. What ZeRO-3
    gathers, scatters and sums over replicas, and what ZeRO 2 scatters, goes in one message per
    layer (FSDP's units, loops of compilers); gradients and
    parameters of a step go in buckets, so that the first leave while the rest are computed
    (`_messages_per_byte`): each message pays its hops and its start.

    Limits: left out is the gather that `sp` repeats behind the weight gradients (Korthikanti et al.
    2022), which hides behind products. Adapters that return h without `a2a_experimental` gather all
    of it; gradients of adapters, which are few, are not sent.
    Megatron-Core has buckets on the first stage's first chunk alone, and one message for each other
    chunk; here all stages have buckets. The all-reduce of HSDP goes in buckets too below stage 3.
    """
    kinds = _grouped(groups, net, c)
    lines, per_byte = _gathers(kinds, plan), _messages_per_byte(plan, c)
    sums = _sums(model, plan, parts, kinds, per_byte)
    transfer, tied = _transfers(model, plan, kinds, net)
    tp, ends = _tensor_parallel(model, plan, lines, sums.activations, c)
    gather, scatter, updated, dp = _sharded(model, plan, parts, lines, per_byte, sums)
    layout, trained = plan.layout, model.trainable
    apart = zero_share(layout.zero, 1.0) * (1.0 - plan.software.overlap_replica) * sums.replicas
    return Messages(
        tp=tp,
        cp=_context_parallel(model, plan, lines.cp),
        ep=_expert_parallel(model, plan, kinds, net, lines.ep),
        gather=gather,
        scatter=scatter,
        dp=dp,
        updated=updated,
        pp=2.0 * layout.interleave * transfer,
        ends=ends,
        awaited=trained * (tied + apart),
    )


class _Lines(NamedTuple):
    """All-gathers as lines in bytes: among context ranks, shards, shards of experts, etp, ep and
    tensor ranks."""

    cp: collectives.Line
    shard: collectives.Line
    expert: collectives.Line
    etp: collectives.Line
    ep: collectives.Line
    tp: collectives.Line


class _Sums(NamedTuple):
    """All-reduces [s]: of an activation among tensor ranks; once per step, of dense gradients, of
    those of experts, and of shards over HSDP's replicas."""

    activations: Array
    dense: Array
    experts: Array
    replicas: Array


def _sums(
    model: Model,
    plan: Plan,
    parts: counts.Residents,
    kinds: collectives.Levels,
    per_byte: jax.Array,
) -> _Sums:
    """All-reduces, one call for all of them: kinds on axis 0 of the volumes, axis 1 of the groups;
    the first kind is tensor parallelism."""
    grown, rest = weight_copies(plan.layout) * plan.precision.reduce_bytes, kinds.rest
    replicated = grown * (
        parts.dense * rest[GROUPS.index("shard")]
        + parts.experts * rest[GROUPS.index("expert_shard")]
    )
    wire = counts.activation_bytes(model, plan)
    summed = stack(wire, grown * parts.dense, grown * parts.experts, replicated)
    zero3 = zero_share(plan.layout.zero, 3.0)
    # beyond the first of each: activations at once, gradients in buckets, the last one not full,
    # HSDP's by layer under ZeRO-3
    buckets = stack(0.0 * per_byte, *[per_byte] * 2, (1.0 - zero3) * per_byte)
    units = stack(*[0.0 * zero3] * 3, zero3 * (_layers(model, plan) - 1.0))
    calls = 1.0 + summed * buckets + units
    summing = kinds.part(*_span("tp", "replica"))
    return _Sums(*jnp.unstack(collectives.all_reduce_time(summed, summing, kinds.net, calls)))


def _tensor_parallel(
    model: Model, plan: Plan, lines: _Lines, reduced: Array, c: Coefficients
) -> tuple[Passes, Array]:
    """What a layer sends among tensor ranks, and what the embedding and the head do of a
    micro-batch; reduced: an all-reduce of an activation [s]."""
    bits, sp, tp = plan.precision, plan.layout.sp, lines.tp
    again, last, opened, _ = _again(plan)
    table, wire = layer(model, plan), counts.activation_bytes(model, plan)
    skew, split_experts = (
        (1.0 - plan.software.composed) * c.collective_skew * ramp(ranks - 1.0)
        for ranks in (plan.layout.tp, plan.layout.etp)
    )
    # what a message of activations is shorter by in the bytes of the products' operands
    spared = (
        wire
        * bits.low_precision
        * (1.0 - bits.wide_layers)
        * (1.0 - bits.operand_bytes / counts.WORD)
    )
    before = sp * tp.time(wire - bits.narrow_gathers * spared)
    apart = (1.0 - sp) * reduced + skew
    half, ahead = (
        before + sp * tp.time(wire - narrow * spared) + apart for narrow in (0.0, bits.narrow_sums)
    )
    mixer, mlp = (half + opened * before + share * (ahead - before) for share in (again, last))
    inside = times(table.routed, lines.etp.time(table.sent) + split_experts)
    adapters = (
        model.first_adapters + model.last_adapters
    ) * tp.latency_s + model.last_adapters * tp.time(wire / plan.layout.tp)
    passes = Passes(
        (table.mixed + table.passed) * ahead + 2.0 * inside + adapters,
        table.mixed * mixer
        + table.passed * mlp
        + (2.0 + again + last) * inside
        + (1.0 + again) * adapters,
    )
    both_ends = (1.0 + ends_of(plan)) / weight_copies(plan.layout)
    return passes, both_ends * (2.0 * sp * tp.time(wire) + apart)


def _context_parallel(model: Model, plan: Plan, cp: collectives.Line) -> Passes:
    """The ring's keys and values, or the states that linear mixers hand over, and their
    gradients."""
    table = layer(model, plan)
    core = _again(plan)[3]
    forward = times(table.rings, cp.latency_s) + table.ring * cp.seconds_per_byte
    return Passes(forward, (2.0 + core) * forward)


def _expert_parallel(
    model: Model,
    plan: Plan,
    kinds: collectives.Levels,
    net: collectives.Fabric,
    ep: collectives.Line,
) -> Passes:
    """Tokens on their way to experts and back, and how many go where."""
    table = layer(model, plan)
    if isinstance(table.mixture, float) and not table.mixture:
        nothing = jnp.zeros(jnp.shape(plan.layout.ep))
        return Passes(nothing, nothing)
    again, last, _, _ = _again(plan)
    # the ranks of etp send the tokens of all of them between them
    sent, merged = (
        jnp.asarray(table.sent / plan.layout.etp)[None],
        jnp.asarray(plan.software.merge_copies)[None],
    )
    exchange = collectives.all_to_all_time(
        sent, kinds.part(*_span("ep", "ep")), net, each(table.visits), merged
    )[0]
    route = ep.time(table.route)
    return Passes(
        table.routed * (2.0 * exchange + route),
        table.routed * ((2.0 + again + last) * exchange + again * route),
    )


def _transfers(
    model: Model, plan: Plan, kinds: collectives.Levels, net: collectives.Fabric
) -> tuple[Array, Array]:
    """Between stages of the pipeline: an activation, and the gradients of tied embeddings [s]."""
    wire, layout = counts.between_layers(model, plan), plan.layout
    table = (
        plan.precision.reduce_bytes
        * model.tied_embeddings
        * (1.0 - ends_together(layout))
        * model.vocab
        * model.d_model
        / layout.tp
    )
    sent = stack(wire / counts.split_ranks(plan), table)
    stages = kinds.part(*_span("pp", "pp"))
    transfer, tied = jnp.unstack(collectives.point_to_point_time(sent, stages, net))
    return transfer, tied


def _sharded(
    model: Model,
    plan: Plan,
    parts: counts.Residents,
    lines: _Lines,
    per_byte: jax.Array,
    sums: _Sums,
) -> tuple[Array, Array, Array, Array]:
    """What data parallelism sends [s]: of a layer weights gathered and gradients scattered; of a
    step updated parameters, and gradients."""
    bits, software, trained = plan.precision, plan.software, model.trainable
    zero1, zero2, zero3 = (zero_share(plan.layout.zero, stage) for stage in (1.0, 2.0, 3.0))
    layers, sparse = _layers(model, plan), layer(model, plan).mixture
    copies = weight_copies(plan.layout)
    every = parts.replace(**{name: copies * x for name, x in vars(parts).items()})
    # gathering, or scattering, what the device's parameters stand for: a line in the bytes of each
    unit = _whole(lines.shard, lines.expert, parts, sparse)
    step = _whole(lines.shard.split(per_byte), lines.expert.split(per_byte), every, sparse)
    scatter = zero2 * trained * unit.time(bits.reduce_bytes / layers)
    scattered = (1.0 - zero2) * step.time(
        bits.reduce_bytes
    ) + software.overlap_replica * sums.replicas
    summed = (1.0 - zero1) * (sums.dense + times(sparse, sums.experts)) + zero1 * scattered
    return (
        zero3 * unit.time(bits.gather_bytes / layers),
        (1.0 - software.accumulate) * scatter,
        trained * zero1 * (1.0 - zero3) * step.time(bits.gather_bytes),
        trained * summed + software.accumulate * copies * layers * scatter,
    )


def _layers(model: Model, plan: Plan) -> Array:
    """Layers of the mean stage [count]."""
    return model.layers / plan.layout.pp


def _again(plan: Plan) -> tuple[Array, Array, Array, Array]:
    """How often messages are sent again in the backward pass [1]: those in full layers, those
    behind their last product, those that come before what streams (gathers of activations), and
    those of the core of attention."""
    full = plan.layout.recompute_layers
    opened, core = (
        full + (1.0 - full) * part
        for part in (plan.layout.recompute_elementwise, plan.layout.recompute_attention)
    )
    return full, full * plan.software.recompute_last, opened, core


def _span(first: str, last: str) -> tuple[int, int]:
    """Where groups that lie side by side begin and end in `placement.GROUPS`."""
    return GROUPS.index(first), GROUPS.index(last) + 1


def _grouped(groups: Groups, net: collectives.Fabric, c: Coefficients) -> collectives.Levels:
    """All groups that send, each with the rates of its network: tp and etp with tensor
    parallelism's, those of other collectives inside a node, a share of them outside."""
    start, stop = _span("cp", "pp")
    n_levels, rank = net.bytes_per_s.shape[0], net.bytes_per_s.ndim
    less = c.net_efficiency_tp_outer - 1.0
    outside = collectives.inner_outer(jnp.zeros_like(less), less, n_levels)
    inner = np.array([[float(name in ("tp", "etp")) for name in GROUPS[start:stop]]])
    rates = net.bytes_per_s * (1.0 + trailing(inner, rank) * trailing(outside[:, None], rank))
    return collectives.Levels(
        groups.stacked[:, start:stop],
        net.replace(bytes_per_s=rates),
        log=groups.logs[:, start:stop],
    )


def _gathers(kinds: collectives.Levels, plan: Plan) -> _Lines:
    """All-gathers, one call for all of them.

    Among ep go counts of tokens, in lines (`LINE_HOP`), or in blocks where a map of who visits whom
    goes with them (`Software.route_bytes`).
    """
    gathering = kinds.part(*_span("cp", "tp"))
    lines = (1.0 - LINE_HOP) * (1.0 - jnp.asarray(ramp(plan.software.route_bytes)))
    counted = np.array([float(name == "ep") for name in _Lines._fields])
    hop = 1.0 - trailing(counted, kinds.size.ndim) * each(lines)
    copied = trailing(np.array([COPIED]), gathering.group.ndim)
    return _Lines(*collectives.gather_line(gathering, kinds.net, copied, hop).kinds())


def _messages_per_byte(plan: Plan, c: Coefficients) -> jax.Array:
    """Messages that a byte of gradients, or of parameters, of a step is sent in, beyond the last
    one `[*batch]`.

    `overlap / max(bucket, dp · cp · least)`, a maximum that is hard at any sharpness: only the
    slope in dp and cp jumps, where buckets begin to grow.

    PyTorch's DDP has buckets of 25 MB (Li et al. 2020), Megatron-Core's distributed data
    parallelism of 40 million gradients, or of one million per rank where these are more
    (`DistributedDataParallelConfig.bucket_size`), so that rings stay bound by bandwidth. Without
    overlap there is nothing to start early, and Megatron-Core, like others, sends all at once.
    """
    return jnp.asarray(
        plan.software.overlap_dp
        / jnp.maximum(c.bucket, plan.software.bucket_per_rank * plan.layout.dp * plan.layout.cp)
    )


def _whole(
    dense: collectives.Line, routed: collectives.Line, parts: counts.Residents, sparse: Array
) -> collectives.Line:
    """Line in the bytes of each parameter: what is dense among its ranks, then what is routed among
    those that hold the same experts."""
    of_experts = times(sparse, routed.seconds_per_byte * parts.experts)
    return collectives.Line(
        seconds_per_byte=dense.seconds_per_byte * parts.dense + of_experts,
        latency_s=dense.latency_s + times(sparse, routed.latency_s),
    )
