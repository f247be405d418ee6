"""What follows from a step's time: throughput, utilization, power, money.

Every function takes leaves that are scalars or `[*batch]` and is differentiable in all of them.
"""

from __future__ import annotations

import jax.numpy as jnp

from dmodel import counts, struct
from dmodel.breakdown import IN_LAYERS, Breakdown
from dmodel.coefficients import Coefficients
from dmodel.cost.power import COOLING_FACTOR, WAITING_SHARE, Activities, Draw, draw, host_watts
from dmodel.footprint import Footprint
from dmodel.records import Cluster, Model, Plan
from dmodel.step import memory_use
from dmodel.types import Array

CONVENTION = "6N+12Lhs"
"""Convention of model FLOPs where none is named: that of Narayanan et al. 2021, most used in
published figures."""


def tokens_per_step(model: Model, plan: Plan) -> Array:
    """Tokens of one step, all devices: `B s` [token]."""
    return plan.global_batch * model.seq_len


def tokens_per_s(model: Model, plan: Plan, breakdown: Breakdown) -> Array:
    """Throughput of all devices: `B s / T` [token/s]."""
    return tokens_per_step(model, plan) / breakdown.total


def mfu(
    system: Cluster,
    model: Model,
    plan: Plan,
    breakdown: Breakdown,
    convention: str = CONVENTION,
) -> Array:
    """Model FLOP utilization: model FLOPs of a step over what the peak rate could do in its time
    [1].

    `B s · F / (T · devices · peak)` with F the model FLOPs per token of the named convention
    (`counts.CONVENTIONS`); recomputation does not count. The peak is that of the plan's matmul
    precision.

    Raises:
      ValueError: unknown convention.
    """
    peak = plan.devices * system.chip.flops_per_s
    return (
        tokens_per_s(model, plan, breakdown)
        * counts.model_flops_per_token(model, convention)
        / peak
    )


def least_utilization(system: Cluster, model: Model, plan: Plan, step_time_s: Array) -> Array:
    """Share of the chips' peak rate that the products of a step ask for at least, in a time [1]:
    more than 1 cannot be (`counts.product_flops_per_token`)."""
    work = tokens_per_step(model, plan) * counts.product_flops_per_token(model)
    return work / (plan.devices * system.chip.flops_per_s * step_time_s)


def exposed_share(breakdown: Breakdown) -> Array:
    """Share of the step that waits for communication which nothing hides [1]."""
    return breakdown.exposed_communication / breakdown.total


def activities(system: Cluster, breakdown: Breakdown) -> Activities:
    """What draws power over the step, from its terms.

    Kernels run all the time but for launches and the fixed overhead: a device that waits in a
    pipeline's bubble, for the slowest one, for the network or for its host polls memory. Logits and
    loss count as products; what is done again as the layers' own mixture. Exposed communication
    fills the links of the innermost level.

    Limits: links are counted as if full, at most 23 W of an H100; what hidden communication draws
    is left out. Products and attention have the times of the clock that the limit leaves, which
    near it ask for up to `demand^(1/2.6)` of what they would at the full one.
    """
    t = breakdown
    layers = t.matmul + t.attention + t.elementwise
    again = (1.0 + t.recompute / jnp.where(layers > 0.0, layers, 1.0)) / t.total
    exposed = sum((getattr(t, name) for name in IN_LAYERS[1:]), start=t.tensor_parallel)
    idling = t.bubble + t.straggler + t.data_parallel + t.pipeline_transfer + t.offload
    idling = idling / t.total
    window = 1.0 - (t.overhead + t.optimizer) / t.total - idling
    return Activities(
        window=window,
        working=window - t.launch / t.total,
        products=again * t.matmul + t.head / t.total,
        core=again * t.attention,
        streaming=again * t.elementwise,
        exposed=exposed / t.total,
        updating=t.optimizer / t.total,
        idling=idling,
        link_bytes_per_s=jnp.asarray(system.network.bytes_per_s)[0] * exposed_share(t),
    )


def device_draw(
    system: Cluster,
    breakdown: Breakdown,
    coefficients: Coefficients,
    waiting_share: Array = WAITING_SHARE,
) -> Draw:
    """Mean power of one accelerator over the step, by cause [W] (`cost.power.draw` of the step's
    activities)."""
    return draw(
        system.chip, activities(system, breakdown), coefficients.power_demand, waiting_share
    )


def device_watts(system: Cluster, breakdown: Breakdown, coefficients: Coefficients) -> Array:
    """Mean power of one accelerator over the step [W]: the sum of `device_draw`."""
    return device_draw(system, breakdown, coefficients).total


def facility_watts(
    system: Cluster, plan: Plan, breakdown: Breakdown, coefficients: Coefficients
) -> Array:
    """Mean power of all accelerators with their hosts and cooling [W]: `devices · (watts + host) ·
    PUE`."""
    return (
        plan.devices
        * (device_watts(system, breakdown, coefficients) + host_watts(system.chip))
        * COOLING_FACTOR
    )


def joules_per_token(
    system: Cluster, model: Model, plan: Plan, breakdown: Breakdown, coefficients: Coefficients
) -> Array:
    """Energy of one trained token, hosts and cooling with it [J/token]."""
    return facility_watts(system, plan, breakdown, coefficients) / tokens_per_s(
        model, plan, breakdown
    )


def dollars_per_token(system: Cluster, model: Model, plan: Plan, breakdown: Breakdown) -> Array:
    """Rent of all accelerators while one token is trained [dollar/token]."""
    return plan.devices * system.chip.price_per_s / tokens_per_s(model, plan, breakdown)


class Outputs(struct.PyTreeNode, kw_only=True):
    """What is asked of one plan.

    Attributes:
      step_time_s: [s]. tokens_per_s: all devices [token/s]. tokens_per_s_per_device: [token/s].
      mfu: by the convention asked for [1]. exposed_share: [1].
      memory_bytes: of the fullest device [byte]. headroom_bytes: device memory less that; negative
        = does not fit [byte].
      device_watts: one accelerator [W]. joules_per_token: with hosts and cooling [J/token].
        dollars_per_token: rent [dollar/token].
    """

    step_time_s: Array
    tokens_per_s: Array
    tokens_per_s_per_device: Array
    mfu: Array
    exposed_share: Array
    memory_bytes: Array
    headroom_bytes: Array
    device_watts: Array
    joules_per_token: Array
    dollars_per_token: Array


def outputs(
    system: Cluster,
    model: Model,
    plan: Plan,
    breakdown: Breakdown,
    coefficients: Coefficients,
    convention: str = CONVENTION,
    footprint: Footprint | None = None,
) -> Outputs:
    """All outputs of one plan (or a batch of them) from its breakdown; memory under a stack's
    footprint where there is one."""
    rate = tokens_per_s(model, plan, breakdown)
    used = memory_use(model, plan, footprint=footprint).total
    return Outputs(
        step_time_s=breakdown.total,
        tokens_per_s=rate,
        tokens_per_s_per_device=rate / plan.devices,
        mfu=mfu(system, model, plan, breakdown, convention),
        exposed_share=exposed_share(breakdown),
        memory_bytes=used,
        headroom_bytes=system.chip.hbm_bytes - used,
        device_watts=device_watts(system, breakdown, coefficients),
        joules_per_token=joules_per_token(system, model, plan, breakdown, coefficients),
        dollars_per_token=dollars_per_token(system, model, plan, breakdown),
    )
