"""The one pure function: the time of a training step, split into named terms that add up exactly.

`step_time(system, model, plan, coefficients) -> Breakdown`. It names no chip and no model; every
number is a leaf, scalar or `[*batch]`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from dmodel import counts, traffic
from dmodel.coefficients import Coefficients
from dmodel.cost import collectives, compute
from dmodel.cost import memory as memory_cost
from dmodel.cost.overlap import straggler_share
from dmodel.cost.pipeline import SCHEDULES, meetings
from dmodel.cost.power import slowed
from dmodel.footprint import LEAST, Footprint
from dmodel.hardware import Chip, System
from dmodel.hiding import beside_layer, beside_step
from dmodel.messages import messages
from dmodel.once import together
from dmodel.physics import Costs, LayerWork, Physics
from dmodel.placement import place
from dmodel.plan import Plan
from dmodel.smooth import SHARPNESS, excess, ramp
from dmodel.traffic import Passes
from dmodel.types import Array, at_hand, stack, trailing
from dmodel.workload import Transformer, check_counts

IN_LAYERS = ("tensor_parallel", "context_parallel", "expert_parallel", "fsdp")
"""Communication that the layers of a pass wait for."""

MESSAGES = (*IN_LAYERS, "data_parallel", "pipeline_transfer")
"""All communication of a step."""

TERMS = (
    "matmul",
    "attention",
    "elementwise",
    "recompute",
    "launch",
    "head",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "fsdp",
    "data_parallel",
    "pipeline_transfer",
    "bubble",
    "optimizer",
    "contention",
    "straggler",
    "overhead",
)


class Breakdown(struct.PyTreeNode, kw_only=True):
    """Seconds of one training step by cause; `total` is their sum, so they add up exactly.

    Attributes:
      matmul, attention, elementwise: forward and backward work of the layers. recompute: forward
        work done again. launch: what kernel launches add to the work and messages of the layers.
        head: logits and loss, as far as they lengthen the slowest stage, or pass while it would
        wait for its host: launch is the less for it.
      tensor_parallel, context_parallel, expert_parallel, fsdp, data_parallel, pipeline_transfer:
        communication that no work hides. Where the host decides, a layer's would pass while the
        device waits: it is counted here, and launch is the less for it.
      bubble: idle pipeline slots. optimizer: the update. contention: compute slowed by
        communication beside it.
      straggler: waiting for the slowest device. overhead: fixed time per step.

    What a profile's physics leaves out is 0.
    """

    matmul: Array
    attention: Array
    elementwise: Array
    recompute: Array
    launch: Array
    head: Array
    tensor_parallel: Array
    context_parallel: Array
    expert_parallel: Array
    fsdp: Array
    data_parallel: Array
    pipeline_transfer: Array
    bubble: Array
    optimizer: Array
    contention: Array
    straggler: Array
    overhead: Array

    @property
    def total(self) -> Array:
        """Step time [s]."""
        return sum((getattr(self, name) for name in TERMS[1:]), start=self.matmul)

    @property
    def exposed_communication(self) -> Array:
        """Communication that no work hides [s]."""
        return sum((getattr(self, name) for name in MESSAGES[1:]), start=self.tensor_parallel)


def _layer_work(
    system: System,
    model: Transformer,
    plan: Plan,
    parts: counts.Residents,
    c: Coefficients,
    sharpness: float,
) -> LayerWork:
    """Work of one layer, and of the head, per micro-batch on one device, at its full clock
    (`LayerWork.at_clock`).

    Backward products cost 2 × the forward ones (1 × when the weights are frozen), attention as
    `compute.attention_passes` has it,
    streaming as `traffic.elementwise_bytes`; weight gradients are accumulated in memory: read and
    written once per micro-batch, and as much more as the stack's other elementwise kernels, where
    the sum is a kernel of its own; where products add to what is held (`Plan.fused_sums`), by what
    that takes beyond their arithmetic, of experts by all but the 2 bytes that any product writes:
    single calls take 1.4, 1.8 and 1.36 times as long beside sums of 512, 1,024 and 2,048 tokens, in
    16, 32 and 32 bits, as long as both would one after the other, 1.05 times beside 8,192 in 32
    (`calibration/torch_step/data/products.csv`).
    Full recomputation repeats the forward work of the layer, all but the last product and the
    addition of its result where it ends early (`Plan.recompute_last`). Of layers that are not
    recomputed in full, shares of the products, of the core of attention and of what
    streams may be done again all the same.
    Below 8 bits products keep a further share of the peak: single ones in NVFP4 reach 0.59 to 0.78
    of what 16 bits do on Blackwell, those in 8 bits all of it (`calibration/micro/data/fits.json`).

    Limits: experts whose recomputation ends early still copy back what they return, add its biases
    and leave their latents once more.
    """
    chip = system.chip
    # 0 at 8 bits, 1 at 4
    four = ramp(2.0 * (1.0 - plan.operand_bytes))
    below = 1.0 - plan.low_precision * (
        1.0 - c.low_precision_efficiency * (1.0 - four * (1.0 - c.four_bit_efficiency))
    )
    low, wide = chip.flops_per_s * below, plan.low_precision * plan.wide_layers
    # times add up, so rates meet harmonically
    rate = low / (1.0 - wide + wide * low / chip.attention_flops_per_s)
    operand = plan.operand_bytes + wide * (counts.WORD - plan.operand_bytes)
    products = counts.matmuls(model, plan)
    # router, logits and loss stay in 16 bits whatever the precision of the layers
    rates, operands = (
        stack(*[low] * 8, *[kept] * 2)
        for low, kept in ((rate, chip.attention_flops_per_s), (operand, counts.WORD))
    )
    times = compute.matmul_time(products, rates, operands, chip, c, sharpness)
    matmul, logits = times[:-1].sum(0), times[-1] * compute.off_vectors(plan)
    casts = compute.streaming_time(
        c.cast_traffic * traffic.cast_bytes(products, model, plan), chip, c
    )
    core = (
        counts.attention_flops(model, plan)
        * compute.off_matrix_units(model, plan)
        * compute.narrowed(plan)
    )
    powers, through = counts.exponentials(model, plan), traffic.softmax_bytes(model, plan)
    newest = compute.attention_passes(core, powers, through, plan.flash, chip, c, sharpness)
    older = compute.older_kernels(plan)
    attention, backward_attention = older.forward * newest.forward, older.backward * newest.backward
    passes = zip(
        traffic.elementwise_bytes(model, plan), traffic.adapter_bytes(model, plan), strict=True
    )
    streaming, back = (
        compute.streaming_time(c.elementwise_traffic * least + all_of, chip, c)
        for least, all_of in passes
    )
    moved, share = (
        2.0 * plan.gradient_bytes,
        model.trainable * plan.pp / counts.mean_layer(model).layers,
    )
    others, experts = (
        compute.streaming_time(share * part, chip, c) for part in (parts.layers, parts.experts)
    )
    # inside the products their traffic hides behind the arithmetic, unless there is more of it;
    # that of experts, with few tokens each,
    # does not, but for what any product writes
    fused = plan.fused_sums * ramp(2.0 - plan.zero)
    hidden = excess(
        *jnp.broadcast_arrays(times[:5].sum(0) + times[7:-1].sum(0), moved * others), sharpness
    )
    more = excess(*jnp.broadcast_arrays(counts.WORD, moved), sharpness)
    accumulation = (1.0 - fused) * c.elementwise_traffic * moved * (others + experts) + fused * (
        hidden + more * experts
    )
    forward = matmul + attention + streaming + 0.5 * casts
    behind = 1.0 + model.trainable * (
        1.0 + plan.low_precision * plan.wide_gradient * (rate / chip.attention_flops_per_s - 1.0)
    )
    backward = behind * matmul + backward_attention + back + accumulation + 0.5 * casts
    added = (1.0 - plan.recompute_last) * compute.streaming_time(
        c.elementwise_traffic * traffic.addition_bytes(model, plan), chip, c
    )
    spared = (1.0 - plan.recompute_last) * (times[4] + times[6])
    hot = plan.recompute_products * matmul + plan.recompute_attention * attention
    some = hot + plan.recompute_elementwise * (streaming - added)
    again = (
        plan.recompute_layers * (forward - spared - added) + (1.0 - plan.recompute_layers) * some
    )
    logits = (2.0 + model.trainable) * logits
    head = logits + compute.streaming_time(
        c.loss_traffic * traffic.loss_bytes(model, plan), chip, c
    )
    return LayerWork(
        matmul=Passes(matmul, behind * matmul),
        attention=Passes(attention, backward_attention),
        elementwise=streaming + back + accumulation + casts,
        recompute=again,
        redone=plan.recompute_layers * (matmul + attention - spared)
        + (1.0 - plan.recompute_layers) * hot,
        head=head,
        logits=logits,
        forward=forward,
        backward=backward + again,
    )


def starts(
    model: Transformer, plan: Plan, apart: Array, chip: Chip, c: Coefficients
) -> compute.Starts:
    """What starting the kernels of a layer and micro-batch takes [s]: `compute.starts`.

    Kernels of the forward pass count `2 + trainable` times, and once more under full recomputation.
    Collectives are launched like any other kernel: where the host is slower than products and
    messages together, it hides both.

    Limits: a host that waits for the device (to count what experts get, to hold gathers back) does
    not run ahead like that; messages that come once per micro-batch or step are added as they are;
    launches and casts of parts of a layer that are done again are not counted.

    Args:
      apart: nodes that the stages of a pipeline lie in.
    """
    passes = _passes(model, plan)
    in_turn = (counts.kernels(model, plan) + counts.expert_casts(model, plan)) * passes
    return compute.starts(
        in_turn, counts.launches(model, plan) * passes, meetings(plan, apart), chip, c
    )


def _passes(model: Transformer, plan: Plan) -> Array:
    """How often the kernels of a layer's forward pass are started, counting those of the backward
    pass by them [1] (`starts`)."""
    return 2.0 + model.trainable + plan.recompute_layers


def _even(plan: Plan, *others: object) -> Plan:
    """The plan with leaves of one shape: that of its leaves and of all of other records
    together."""
    leaves = jax.tree.leaves((plan, others))
    shape, broadcast = (
        np.broadcast_shapes(*map(np.shape, leaves)),
        np.broadcast_to if at_hand(*leaves) else jnp.broadcast_to,
    )
    return jax.tree.map(lambda x: broadcast(x, shape), plan)


def _aligned(system: System, plan: Plan, *others: object) -> tuple[System, Plan]:
    """Give the plan's leaves the batch axes that any record has, and per-level arrays those of the
    plan."""
    plan = _even(plan, system.chip, jax.tree.map(lambda x: x[0], system.network), *others)
    rank = 1 + jnp.ndim(plan.dp)
    return system.replace(network=jax.tree.map(lambda x: trailing(x, rank), system.network)), plan


def _costs(
    system: System, model: Transformer, plan: Plan, c: Coefficients, sharpness: float
) -> Costs:
    """Calibrated: rates by size and kind, rings and trees on the levels of the network, overlap
    kind by kind."""
    check_counts(model)
    groups = place(plan, system.network.size)
    net = collectives.fabric(system.network, c, sharpness, groups.all)
    parts = counts.residents(model, plan)
    cool, sent = (
        _layer_work(system, model, plan, parts, c, sharpness),
        messages(model, plan, parts, groups, net, c),
    )
    started = starts(model, plan, groups.pp[1:].prod(0), system.chip, c)
    # at the full clock first: how long products have the device decides what power leaves of it
    forward, backward, _ = beside_layer(sent, cool, plan, c, sharpness)
    whole = forward + backward + started.fill
    core = cool.attention.total
    work = cool.at_clock(
        slowed(
            cool.matmul.total + cool.redone,
            core,
            cool.elementwise,
            whole,
            c.power_demand,
            sharpness,
        )
    )
    (forward, backward, comm), layers = (
        beside_layer(sent, work, plan, c, sharpness),
        counts.stage_layers(model, plan),
    )
    device = forward + backward
    launch = compute.launch_time(device, started, sharpness)
    # a host that has to know what experts get is never ahead of a layer
    ahead = (1.0 - plan.composed) * ramp(2.0 - model.n_experts)
    even = work.head * c.head_balance / plan.pp
    whole_head, fewer = work.head * (1.0 - c.head_balance) + even, layers - plan.head_displaces
    hidden_head = ahead * compute.hidden_head(whole_head, fewer, device, started, sharpness)
    hidden_even = ahead * compute.hidden_head(even, layers, device, started, sharpness)
    m = plan.n_microbatches
    slots = SCHEDULES[plan.schedule].bubble(plan.pp, m, plan.interleave)
    updated = memory_cost.held(parts, plan, 1.0)
    state = 2.0 * plan.optimizer_bytes + plan.gradient_bytes + plan.weight_bytes
    cast = (
        plan.low_precision
        * (1.0 - plan.wide_layers)
        * (counts.WORD + 2.0 * plan.operand_bytes)
        * (parts.layers + parts.experts)
    )
    optimizer = model.trainable * compute.optimizer_time(updated, state, system.chip, c)
    optimizer = optimizer + compute.streaming_time(c.cast_traffic * cast, system.chip, c)
    costs = Costs(
        work=work,
        forward=forward,
        backward=backward,
        launch=launch,
        launched_forward=1.0 / _passes(model, plan),
        hidden_head=hidden_head,
        hidden_even=hidden_even,
        composed=plan.composed,
        communication=comm,
        layers=layers,
        excess=plan.stage_excess,
        displaced=plan.head_displaces,
        micro_batches=m,
        idle_slots=slots,
        optimizer=optimizer,
    )
    beside = beside_step(sent, *costs.windows, plan, c, sharpness)
    return costs.replace(communication=comm.replace(**beside))


def _memory(model: Transformer, plan: Plan, footprint: Footprint = LEAST) -> memory_cost.Memory:
    """Calibrated: what the first stage keeps for the micro-batches that its schedule has in flight,
    or the last one for the logits."""
    check_counts(model)
    plan = _even(plan, model, footprint)
    schedule, at = SCHEDULES[plan.schedule], (plan.pp, plan.n_microbatches, plan.interleave)
    return memory_cost.memory(
        model, plan, schedule.in_flight(*at), schedule.in_flight_last(*at), footprint
    )


CALIBRATED = Physics(align=_aligned, costs=_costs, memory=_memory)
"""The physics whose coefficients are fitted to traces."""


def step_time(
    system: System,
    model: Transformer,
    plan: Plan,
    coefficients: Coefficients,
    *,
    sharpness: float = SHARPNESS,
    physics: Physics = CALIBRATED,
) -> Breakdown:
    """Seconds of one training step, by cause.

    `m ℓ (layer) + m (head + transfer) + bubble + once per step`, times `1 + straggler`: m
    micro-batches run one after the other on the slowest stage, of ℓ layers; the pipeline idles for
    `(pp − 1)/v` micro-batches of the other stages while it fills and drains.
    ℓ = L/pp where stages are alike. Where they are not (`Plan.stage_excess`,
    `Plan.head_displaces`), the head counts by what it takes beyond the layers that its stage has
    fewer, but for the share of it that all stages carry alike (`head_balance`), and for what passes
    while the device would wait for its host (`compute.hidden_head`).

    Limits: compute-bound work `FLOPs / (devices · peak · η)` on one device without communication;
    as the batch vanishes, what a step costs once: the optimizer, the reduction of gradients, the
    pipeline's bubble and the fixed overhead.

    Args:
      system, model, plan, coefficients: leaves are scalars or `[*batch]` (network: `[K, *batch]`),
        all of one rank or scalar.
      sharpness: of all maxima and positive parts; infinity is the hard model. Static.
      physics: where profiles differ; system, model and plan are the records that it takes. Static.

    Returns:
      Breakdown with leaves `[*batch]` [s].

    Raises:
      InputError: a plain number of the model is below 1 where every model has one
        (`workload.check_counts`).

    Llama 3 70B on 512 H100s, by the default coefficients:

    >>> from dmodel import catalog, coefficients
    >>> model = catalog.transformer("llama-3-70b", seq_len=8192)
    >>> plan = Plan(dp=16.0, tp=8.0, sp=1.0, pp=4.0, global_batch=1024.0)
    >>> time = step_time(catalog.system("H100-DGX"), model, plan, coefficients.default())
    >>> f"{time.total:.1f} s, of which {time.bubble:.2f} s are bubble"
    '17.6 s, of which 0.74 s are bubble'
    """
    c = coefficients
    system, plan = physics.align(system, plan, model, c)
    with together():
        costs = physics.costs(system, model, plan, c, sharpness)
    work, comm = costs.work, costs.communication

    m, layers = costs.micro_batches, costs.layers
    times = m * layers
    # the LM head lengthens the last stage alone, unless the stack spreads a share of it: of that
    # every stage carries 1/pp
    spread = work.head * c.head_balance / plan.pp - costs.hidden_even
    beyond = costs.hidden_head - costs.hidden_even
    products, core = work.matmul.total, work.attention.total
    layer = (
        products
        + core
        + work.elementwise
        + work.recompute
        + costs.launch
        + comm.tp
        + comm.cp
        + comm.ep
        + comm.fsdp
    )
    # where its stage holds fewer layers, the head lengthens the slowest stage only by what it takes
    # beyond them
    whole = layer + c.contention * comm.hidden_layer
    displaced, last = jnp.broadcast_arrays(
        costs.displaced * whole, work.head * (1.0 - c.head_balance) - beyond
    )
    head = excess(displaced, last, sharpness)
    # what of the head passes while its stage waits counts as head in place of launch, as far as
    # that stage is the slowest
    slowest = jnp.where(displaced > 0.0, head / jnp.where(last > 0.0, last, 1.0), 1.0)
    passed = beyond * slowest + costs.hidden_even
    # while the pipeline fills and drains, the slowest stage waits for the others: mean layers, and
    # what of the head is theirs
    others = jnp.where(plan.pp > 1.0, plan.pp - 1.0, 1.0)
    fewer = costs.excess * (1.0 + 1.0 / others)
    # where they hold fewer layers than the slowest one, less of the head's share passes beside
    # them, too
    less = costs.hidden_even * (fewer - costs.displaced / others) / layers
    idle = (layers - fewer) * whole + comm.pp + spread + less + (last - head) / others
    partial = Breakdown(
        matmul=times * products,
        attention=times * core,
        elementwise=times * work.elementwise,
        recompute=times * work.recompute,
        launch=times * costs.launch - m * passed,
        head=m * (head + spread + passed),
        tensor_parallel=times * comm.tp + m * comm.ends,
        context_parallel=times * comm.cp,
        expert_parallel=times * comm.ep,
        fsdp=times * comm.fsdp + m * comm.fsdp_first,
        data_parallel=comm.dp,
        pipeline_transfer=m * comm.pp,
        bubble=c.bubble * costs.idle_slots * idle,
        optimizer=costs.optimizer,
        contention=c.contention * (times * comm.hidden_layer + comm.hidden_step),
        straggler=jnp.zeros_like(idle),
        overhead=jnp.zeros_like(idle),
    )
    run = 1.0 - costs.composed
    late = run * straggler_share(plan.devices, c.straggler) * partial.total
    return partial.replace(
        straggler=late, overhead=jnp.zeros_like(idle) + run * c.overhead + comm.once
    )


def memory_use(
    model: Transformer,
    plan: Plan,
    *,
    physics: Physics = CALIBRATED,
    footprint: Footprint | None = None,
) -> memory_cost.Memory:
    """Bytes of the fullest device by purpose, with the micro-batches in flight of the plan's
    schedule; see `cost.memory.memory`.

    Args:
      model, plan: leaves are scalars or `[*batch]`. physics: as in `step_time`.
      footprint: what a stack holds beyond the least, for the calibrated physics.

    Returns:
      Memory with leaves `[*batch]` [byte]; `total` is their sum.

    >>> from dmodel import catalog
    >>> model = catalog.transformer("llama-3-70b", seq_len=8192)
    >>> plan = Plan(dp=16.0, tp=8.0, sp=1.0, pp=4.0, zero=1.0, shard=16.0, global_batch=1024.0)
    >>> f"{memory_use(model, plan).total / 2**30:.1f} GiB"
    '39.0 GiB'
    """
    with together():
        return (
            physics.memory(model, plan)
            if footprint is None
            else physics.memory(model, plan, footprint)
        )
