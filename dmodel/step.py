"""The one pure function: the time of a training step, split into named terms that add up exactly.

`step_time(system, model, plan, coefficients) -> Breakdown`. It names no chip and no model; every
number is a leaf, scalar or `[*batch]`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dmodel import counts
from dmodel.breakdown import Breakdown, added_up
from dmodel.coefficients import Coefficients
from dmodel.cost import collectives, compute, pipeline
from dmodel.cost import memory as memory_cost
from dmodel.cost.power import slowed
from dmodel.footprint import LEAST, Footprint
from dmodel.hiding import beside_layer, beside_step, layer_seconds
from dmodel.hosted import waiting
from dmodel.layer import layer_work, passes, starts
from dmodel.messages import Messages, messages
from dmodel.once import together
from dmodel.physics import Costs, LayerWork, Physics
from dmodel.placement import place
from dmodel.records import Chip, Cluster, Model, Plan, check_counts, weight_copies
from dmodel.smooth import SHARPNESS, positive
from dmodel.tables import layer
from dmodel.types import Array, at_hand, trailing


def _even(plan: Plan, *others: object) -> Plan:
    """The plan with leaves of one shape: that of its leaves and of all of other records
    together."""
    leaves = jax.tree.leaves((plan, others))
    shape, broadcast = (
        np.broadcast_shapes(*map(np.shape, leaves)),
        np.broadcast_to if at_hand(*leaves) else jnp.broadcast_to,
    )
    return jax.tree.map(lambda x: broadcast(x, shape), plan)


def _aligned(system: Cluster, plan: Plan, *others: object) -> tuple[Cluster, Plan]:
    """Give the plan's leaves the batch axes that any record has, and per-level arrays those of the
    plan."""
    plan = _even(plan, system.chip, jax.tree.map(lambda x: x[0], system.network), *others)
    rank = 1 + jnp.ndim(plan.layout.dp)
    return system.replace(network=jax.tree.map(lambda x: trailing(x, rank), system.network)), plan


def _optimizer(
    model: Model, plan: Plan, parts: counts.Residents, chip: Chip, c: Coefficients
) -> Array:
    """The device's update, and the cast of the weights that products below 16 bits read [s]."""
    bits = plan.precision
    updated = memory_cost.held(parts, plan, 1.0)
    state = 2.0 * bits.optimizer_bytes + bits.gradient_bytes + bits.weight_bytes
    cast = (
        bits.low_precision
        * (1.0 - bits.wide_layers)
        * (counts.WORD + 2.0 * bits.operand_bytes)
        * weight_copies(plan.layout)
        * (parts.layers + parts.experts)
    )
    here = model.trainable * (1.0 - plan.software.offload_optimizer)
    optimizer = here * compute.optimizer_time(updated, state, chip, c)
    return optimizer + compute.streaming_time(c.cast_traffic * cast, chip, c)


def _at_clock(
    cool: LayerWork, sent: Messages, fill: Array, plan: Plan, c: Coefficients, sharpness: float
) -> LayerWork:
    """The work at the clock that power leaves; how long products have the device at the full one
    decides it. fill: what filling and draining the device adds to a layer [s]."""
    return cool.at_clock(
        slowed(
            cool.matmul.total + cool.redone,
            cool.attention.total,
            cool.elementwise,
            layer_seconds(sent, cool, plan, c, sharpness) + fill,
            c.power_demand,
            sharpness,
        )
    )


def _costs(system: Cluster, model: Model, plan: Plan, c: Coefficients, sharpness: float) -> Costs:
    """Calibrated: rates by size and kind, rings and trees on the levels of the network, overlap
    kind by kind."""
    check_counts(model)
    layout, chip = plan.layout, system.chip
    groups = place(plan, system.network.size)
    net = collectives.fabric(system.network, c, sharpness, groups.all)
    parts = counts.residents(model, plan)
    cool = layer_work(model, plan, parts, chip, c, sharpness)
    sent = messages(model, plan, parts, groups, net, c)
    started = starts(model, plan, groups.pp[1:].prod(0), chip, c)
    work = _at_clock(cool, sent, started.fill, plan, c, sharpness)
    forward, backward, comm = beside_layer(sent, work, plan, c, sharpness)
    layers, device = counts.stage_layers(model, plan), forward + backward
    # a host that has to know what experts get is never ahead of a layer
    ahead = (1.0 - plan.software.composed) * (1.0 - layer(model, plan).mixture)
    even, heads = work.head * c.head_balance / layout.pp, weight_copies(layout)
    alone = work.head * (1.0 - c.head_balance) / heads
    hidden_head, hidden_even = (
        ahead * compute.hidden_head(head, held, device, started, sharpness)
        for head, held in (
            (alone + even, positive(layers - layout.head_displaces)),
            (even, layers),
        )
    )
    m = plan.n_microbatches
    costs = Costs(
        work=work,
        forward=forward,
        backward=backward,
        launch=compute.launch_time(device, started, sharpness),
        launched_forward=1.0 / passes(model, plan),
        hidden_head=hidden_head,
        hidden_even=hidden_even,
        composed=plan.software.composed,
        communication=comm,
        stages=layout.pp,
        layers=layers,
        excess=layout.stage_excess,
        displaced=layout.head_displaces,
        heads=heads,
        micro_batches=m,
        idle_slots=pipeline.idle_slots(plan),
        optimizer=_optimizer(model, plan, parts, chip, c),
    )
    beside = beside_step(sent, *costs.windows, plan, c, sharpness)
    return costs.replace(
        communication=comm.replace(**beside),
        offload=waiting(model, plan, parts, costs.windows, chip),
    )


def _memory(model: Model, plan: Plan, footprint: Footprint = LEAST) -> memory_cost.Memory:
    """Calibrated: the fullest of `memory_moments`."""
    return memory_cost.fullest(memory_moments(model, plan, footprint))


def memory_moments(
    model: Model, plan: Plan, footprint: Footprint = LEAST
) -> dict[str, memory_cost.Memory]:
    """Bytes of a device by purpose at each of `cost.memory.MOMENTS`, with the micro-batches in
    flight of the plan's schedule; see `cost.memory.moments`."""
    check_counts(model)
    plan = _even(plan, model, footprint)
    alive = pipeline.in_flight(plan), pipeline.in_flight_last(plan)
    return memory_cost.moments(model, plan, *alive, footprint)


CALIBRATED = Physics(align=_aligned, costs=_costs, memory=_memory)
"""The physics whose coefficients are fitted to traces."""


def step_time(
    system: Cluster,
    model: Model,
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
    ℓ = L/pp where stages are alike. Where they are not (`Layout.stage_excess`,
    `Layout.head_displaces`), the head counts by what it takes beyond the layers that its stage has
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
        (`records.check_counts`).

    Llama 3 70B on 512 H100s, by the default coefficients:

    >>> from dmodel import catalog, coefficients
    >>> model = catalog.transformer("llama-3-70b", seq_len=8192)
    >>> plan = Plan.of(dp=16.0, tp=8.0, sp=1.0, pp=4.0, global_batch=1024.0)
    >>> time = step_time(catalog.system("H100-DGX"), model, plan, coefficients.default())
    >>> f"{time.total:.1f} s, of which {time.bubble:.2f} s are bubble"
    '17.6 s, of which 0.74 s are bubble'
    """
    c = coefficients
    system, plan = physics.align(system, plan, model, c)
    with together():
        costs = physics.costs(system, model, plan, c, sharpness)
    return added_up(costs, plan.devices, c, sharpness)


def memory_use(
    model: Model,
    plan: Plan,
    *,
    physics: Physics = CALIBRATED,
    footprint: Footprint | None = None,
) -> memory_cost.Memory:
    """Bytes of the fullest device by purpose at its fullest moment, with the micro-batches in
    flight of the plan's schedule; see `cost.memory.moments`.

    Args:
      model, plan: leaves are scalars or `[*batch]`. physics: as in `step_time`.
      footprint: what a stack holds beyond the least, for the calibrated physics.

    Returns:
      Memory with leaves `[*batch]` [byte]; `total` is their sum.

    >>> from dmodel import catalog
    >>> model = catalog.transformer("llama-3-70b", seq_len=8192)
    >>> plan = Plan.of(dp=16.0, tp=8.0, sp=1.0, pp=4.0, zero=1.0, shard=16.0, global_batch=1024.0)
    >>> f"{memory_use(model, plan).total / 2**30:.1f} GiB"
    '39.0 GiB'
    """
    with together():
        return (
            physics.memory(model, plan)
            if footprint is None
            else physics.memory(model, plan, footprint)
        )
