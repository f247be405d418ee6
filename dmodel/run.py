"""What follows from a step's time: throughput, utilization, power, money; and the whole training run.

Every function takes leaves that are scalars or `[*batch]` and is differentiable in all of them.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct

from dmodel import counts
from dmodel.cost.power import COOLING_FACTOR, SUSTAINED, Draw, draw, host_watts
from dmodel.footprint import Footprint
from dmodel.hardware import System
from dmodel.plan import Plan
from dmodel.smooth import minimum
from dmodel.step import Breakdown, memory_use
from dmodel.types import Array, stack
from dmodel.workload import Transformer

CONVENTION = "6N+12Lhs"
"""Convention of model FLOPs where none is named: that of Narayanan et al. 2021, most used in published figures."""


def tokens_per_step(model: Transformer, plan: Plan) -> Array:
    """Tokens of one step, all devices: `B s` [token]."""
    return plan.global_batch * model.seq_len


def tokens_per_s(model: Transformer, plan: Plan, breakdown: Breakdown) -> Array:
    """Throughput of all devices: `B s / T` [token/s]."""
    return tokens_per_step(model, plan) / breakdown.total


def mfu(system: System, model: Transformer, plan: Plan, breakdown: Breakdown, convention: str = CONVENTION) -> Array:
    """Model FLOP utilization: model FLOPs of a step over what the peak rate could do in its time [1].

    `B s · F / (T · devices · peak)` with F the model FLOPs per token of the named convention (`counts.CONVENTIONS`); recomputation does not
    count. The peak is that of the plan's matmul precision.

    Raises:
      ValueError: unknown convention.
    """
    peak = plan.devices * system.chip.flops_per_s
    return tokens_per_s(model, plan, breakdown) * counts.model_flops_per_token(model, convention) / peak


def exposed_share(breakdown: Breakdown) -> Array:
    """Share of the step that waits for communication which nothing hides [1]."""
    return breakdown.exposed_communication / breakdown.total


class Activities(struct.PyTreeNode, kw_only=True):
    """What a device is busy with over a step: share of the time in which kernels run, in 0..1 [1]; products over those that it could do in
    the step at the sustained rate, at most the share of the time that they take [1]; bytes per second streamed from memory, and sent to
    other devices [byte/s]."""

    running: Array
    arithmetic: Array
    hbm_bytes_per_s: Array
    link_bytes_per_s: Array


def activities(system: System, model: Transformer, plan: Plan, breakdown: Breakdown) -> Activities:
    """What draws power over the step, from its terms.

    Kernels run all the time but for launches and the fixed overhead: a device that waits in a pipeline's bubble, for the slowest one or for
    the network polls memory. Products: those of the model, and the recomputed ones as if at the same rate, over
    `peak · sustained`; they cannot keep the device busier than all the time that they take. Streaming kernels and the optimizer fill
    the memory's bandwidth, exposed communication the links of the innermost level.

    Limits: links are counted as if full, at most 23 W of an H100; traffic that compute hides is part of its power.
    """
    t = breakdown
    busy = t.matmul + t.attention + t.head
    again = 1.0 + t.recompute / jnp.where(busy > 0.0, busy, 1.0)
    done = tokens_per_step(model, plan) * counts.model_flops_per_token(model, "6N+6Lhs") * (2.0 + model.trainable) / 3.0
    rate = SUSTAINED * system.chip.flops_per_s * plan.devices
    products = minimum(stack(busy, done / rate), 64.0) * again
    return Activities(
        running=1.0 - (t.launch + t.overhead) / t.total,
        arithmetic=products / t.total,
        hbm_bytes_per_s=system.chip.hbm_bytes_per_s * (t.elementwise + t.optimizer) / t.total,
        link_bytes_per_s=jnp.asarray(system.network.bytes_per_s)[0] * exposed_share(t),
    )


def device_draw(system: System, model: Transformer, plan: Plan, breakdown: Breakdown) -> Draw:
    """Mean power of one accelerator over the step, by cause [W]."""
    busy = activities(system, model, plan, breakdown)
    return draw(system.chip, busy.running, busy.arithmetic, busy.hbm_bytes_per_s, busy.link_bytes_per_s)


def device_watts(system: System, model: Transformer, plan: Plan, breakdown: Breakdown) -> Array:
    """Mean power of one accelerator over the step [W] (`cost.power.draw` of the step's activities)."""
    return device_draw(system, model, plan, breakdown).total


def facility_watts(system: System, model: Transformer, plan: Plan, breakdown: Breakdown) -> Array:
    """Mean power of all accelerators with their hosts and cooling [W]: `devices · (watts + host) · PUE`."""
    return plan.devices * (device_watts(system, model, plan, breakdown) + host_watts(system.chip)) * COOLING_FACTOR


def joules_per_token(system: System, model: Transformer, plan: Plan, breakdown: Breakdown) -> Array:
    """Energy of one trained token, hosts and cooling with it [J/token]."""
    return facility_watts(system, model, plan, breakdown) / tokens_per_s(model, plan, breakdown)


def dollars_per_token(system: System, model: Transformer, plan: Plan, breakdown: Breakdown) -> Array:
    """Rent of all accelerators while one token is trained [dollar/token]."""
    return plan.devices * system.chip.price_per_s / tokens_per_s(model, plan, breakdown)


class Outputs(struct.PyTreeNode, kw_only=True):
    """What is asked of one plan.

    Attributes:
      step_time_s: [s]. tokens_per_s: all devices [token/s]. tokens_per_s_per_device: [token/s].
      mfu: by the convention asked for [1]. exposed_share: [1].
      memory_bytes: of the fullest device [byte]. headroom_bytes: device memory less that; negative = does not fit [byte].
      device_watts: one accelerator [W]. joules_per_token: with hosts and cooling [J/token]. dollars_per_token: rent [dollar/token].
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
    system: System, model: Transformer, plan: Plan, breakdown: Breakdown, convention: str = CONVENTION, footprint: Footprint | None = None
) -> Outputs:
    """All outputs of one plan (or a batch of them) from its breakdown; memory under a stack's footprint where there is one."""
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
        device_watts=device_watts(system, model, plan, breakdown),
        joules_per_token=joules_per_token(system, model, plan, breakdown),
        dollars_per_token=dollars_per_token(system, model, plan, breakdown),
    )


class TrainingRun(struct.PyTreeNode, kw_only=True):
    """A whole run without failures.

    Attributes:
      steps: [count], not rounded, so that it can be differentiated. duration_s: [s]. device_seconds: [s].
      dollars: rent [dollar]. joules: hosts and cooling with them [J].
    """

    steps: Array
    duration_s: Array
    device_seconds: Array
    dollars: Array
    joules: Array


def run(system: System, model: Transformer, plan: Plan, breakdown: Breakdown, tokens: Array) -> TrainingRun:
    """Duration, rent and energy of training on a number of tokens.

    `steps = tokens / (B s)`, `duration = steps · T`. Failures, restarts and checkpoints are not counted.

    Args:
      tokens: to be trained on [token].
    """
    steps = tokens / tokens_per_step(model, plan)
    duration = steps * breakdown.total
    return TrainingRun(
        steps=steps,
        duration_s=duration,
        device_seconds=duration * plan.devices,
        dollars=duration * plan.devices * system.chip.price_per_s,
        joules=duration * facility_watts(system, model, plan, breakdown),
    )
