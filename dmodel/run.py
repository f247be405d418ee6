"""What follows from a step's time: throughput, utilization, power, money; and the whole training run.

Every function takes leaves that are scalars or `[*batch]` and is differentiable in all of them.
"""

from __future__ import annotations

from flax import struct

from dmodel import counts
from dmodel.cost.power import COOLING_FACTOR, HOST_SHARE, watts
from dmodel.footprint import Footprint
from dmodel.hardware import System
from dmodel.plan import Plan
from dmodel.step import Breakdown, memory_use
from dmodel.types import Array
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
    """Shares of the step's time in which arithmetic, memory and network of a device are busy, each in 0..1 [1]."""

    arithmetic: Array
    memory: Array
    network: Array


def activities(breakdown: Breakdown) -> Activities:
    """Busy shares of the step from its terms.

    Arithmetic: products, attention core, recomputation, head. Memory: those (their operands stream from it), streaming kernels and the
    optimizer. Network: communication that nothing hides, and the time by which hidden communication slows compute. Nothing is busy during
    launches, bubbles, waiting and the fixed overhead.

    Limits: hidden communication beyond its contention is left out, so the network's share is a lower bound.
    """
    t = breakdown
    arithmetic = t.matmul + t.attention + t.recompute + t.head
    return Activities(
        arithmetic=arithmetic / t.total,
        memory=(arithmetic + t.elementwise + t.optimizer + t.contention) / t.total,
        network=(t.exposed_communication + t.contention) / t.total,
    )


def device_watts(system: System, breakdown: Breakdown) -> Array:
    """Mean power of one accelerator over the step [W] (`cost.power.watts` of the step's activities)."""
    busy = activities(breakdown)
    return watts(system.chip, busy.arithmetic, busy.memory, busy.network)


def facility_watts(system: System, plan: Plan, breakdown: Breakdown) -> Array:
    """Mean power of all accelerators with their hosts and cooling [W]: `devices · watts · 1.82 · 1.1`."""
    return plan.devices * device_watts(system, breakdown) * (HOST_SHARE * COOLING_FACTOR)


def joules_per_token(system: System, model: Transformer, plan: Plan, breakdown: Breakdown) -> Array:
    """Energy of one trained token, hosts and cooling with it [J/token]."""
    return facility_watts(system, plan, breakdown) / tokens_per_s(model, plan, breakdown)


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
        device_watts=device_watts(system, breakdown),
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
        joules=duration * facility_watts(system, plan, breakdown),
    )
