"""Proven lower bounds: what no plan of a group, or of a whole space, undercuts.

**A group** shares everything but its sharding and the share r of recomputed layers. Its bound is
the model itself, evaluated once at the most favourable settings, which may contradict each other.
Every term of a step is ≥ 0 and their sum is the step, so it is enough that no term, or no sum of
the terms of a layer, is below its bound:

* Products, attention, streaming, head, embedding, transfers and the schedule's slots do not depend
  on sharding or r. Sums of gradients do: kernels of their own in ZeRO-2 and 3, inside products
  without them. Of B bytes, the first take `w B` (`w = elementwise_traffic`), the others
  `excess(products, B) ≤ B`: where sharding is free, `min(w, 1) B` inside products is below both. A
  layer that takes longer than
  that by a kernel of its own gains no more in what it hides of a transfer than it costs.
* Work done again is `r · redone`, or `attention + r (redone − attention)`: it grows with r, as
  redone, the forward pass but for its end, holds attention. r is at least what memory asks for at
  the loss, and in the backward pass: at both, activations are affine in r.
* Messages of tp, cp and ep grow with r, those of weights and gradients do not depend on it. A pass
  with them grows with its work and with each message, kind after kind (`hiding.beside_layer`): so a
  layer at the least r, without what is left free, takes no longer than others. Of what forward and
  backward passes send r lengthens the backward part alone. A smaller κ only lowers the step, and it
  is 1 at most here. The first gather of a micro-batch, which counts by what of it would hide, is
  left out.
* The head counts by what it takes beyond the layers that its stage holds fewer
  (`Layout.head_displaces`): that falls as a layer grows, by no more than those layers grow, and the
  fullest stage holds at least as many. So the sum of both is bounded, which is enough for time; for
  energy, where parts weigh unlike, the head of such stages is left out.
* A layer takes `max_p(d + f, h)`, which grows with each: device time d (work, exposed
  communication, contention), kernel fill f and host time h. Work, f and h are affine in r and grow
  with it. The head passes in part while the device waits for its host: with ℓ layers, what
  a stage has of it (H, or its share of what all stages carry alike) takes `max_p(ℓ (d + f) + H, ℓ
  h)`, which grows with each too.
* Windows of a step are the passes of the layers, longest at the largest r, and as much longer as
  the device waits for its host, but for what of the head passes meanwhile: by at most W − b, where
  W = max_p(b + f, h) of the work b alone, for messages and the head only
  shorten the wait. W is a norm of affine terms, so convex in r, and b is affine: their difference
  is convex, and largest at one of the ends of the range of r. The share of it that the forward pass
  has falls with r, that of the backward pass grows. How many micro-batches windows last
  (`pipeline.step_window`) is the same for a group. So each window is at most that of the smallest r
  times the ratio `_windows` of what it is made of; what hides in it lengthens it by no more than
  with all of κ. What of a transfer is exposed lengthens the windows of gradients, by less than the
  step.
* The optimizer's time falls with sharding, as does the memory of weights, gradients and state; the
  buffers of gathered weights are least without ZeRO-3. Where sharding is free, gradients and
  weights travel in no time, and what the stack makes of them has the best of the values that go
  with a way to shard (`dmodel.design.favourable`): time and memory grow with each.

Bubble, waiting and overhead are sums and positive multiples of these. Energy is a smooth minimum,
which grows with both, of two such sums with other weights ≥ 0: one with the layers at the power
limit, one with what their kernels ask for. In both what runs weighs at least as much as what waits
for launches, and d and the layer grow with r. More work may hide messages that draw more than the κ
of them which it is slowed by, so messages count as less (`quiet`). Memory: each purpose at its own
least, at the fuller of these two moments; what the update needs is left out.

Limits: messages that stand out at the full clock but hide at the one that power leaves cool a layer
and cost it nothing (`cost.power.slowed`), so where a sharding is free that has none, its bound of
time may be up to 0.3 % too high for a `power_demand` of 1.7 to 4; profiles have 1.0 to 1.7, where
none of 7,600 random groups is.

**A space**: `arithmetic_floor`, which needs no compilation, or the least bound of its groups.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dmodel import run, struct
from dmodel.breakdown import IN_LAYERS, MESSAGES, Breakdown
from dmodel.coefficients import Coefficients
from dmodel.cost import compute
from dmodel.cost.overlap import lengthened, straggler_share
from dmodel.design import rows as rows_
from dmodel.design.constraints import violation
from dmodel.design.favourable import best_over_sharding, fastest
from dmodel.design.few import by_numpy, takes_numpy
from dmodel.design.judge import Problem, draft_moments, drafted, shared, used
from dmodel.design.space import Space
from dmodel.layer import attention_passes, starts
from dmodel.once import together
from dmodel.physics import Costs, Physics
from dmodel.placement import place
from dmodel.recorded import Recorded
from dmodel.records import Cluster, Model, Plan, value
from dmodel.records.precision import NARROW
from dmodel.step import CALIBRATED, step_time
from dmodel.sweep import sweep
from dmodel.tables import layer
from dmodel.types import Array, larger

SLACK = 1e-9
"""Relative; rounding of floats must not turn a bound into a falsehood."""


class Bound(struct.PyTreeNode, kw_only=True):
    """Of groups `[n]`: no plan that fits is faster than `step_time_s` [s], takes less energy than
    `joules` [J], needs less than `memory_bytes` [byte], or recomputes less than `share` of its
    layers [1]."""

    step_time_s: Array
    joules: Array
    memory_bytes: Array
    share: Array


def _windows(
    least: Costs, most: Costs, alone: tuple[Array, Array], c: Coefficients
) -> Coefficients:
    """Coefficients under which the windows per step of the least costs are as long as any between
    them and the most; contention as the proof asks.

    Args:
      alone: what launches add to the work of a layer without messages [s], of the least and the
        most.
    """
    waits, windows = jnp.maximum(*alone), least.windows
    forward = most.forward + least.launched_forward * waits
    backward = most.backward + (1.0 - most.launched_forward) * waits
    whole = most.forward + most.backward + waits
    return c.replace(
        overlap_dp=lengthened(c.overlap_dp, c.contention)
        * least.layers
        * backward
        / windows.backward,
        overlap_gather=lengthened(c.overlap_gather, c.contention)
        * least.layers
        * forward
        / windows.forward,
        overlap_pp=c.overlap_pp * least.layers * whole / windows.total,
        contention=jnp.minimum(c.contention, 1.0),
    )


def _share(least: Array, most: Array, room: Array, saved: Array) -> Array:
    """Share of recomputed layers from which a plan may fit: `room` is left at the least share,
    `saved` comes free up to the most."""
    helps = saved > 0.0
    needed = jnp.where(helps, jnp.clip(-room / jnp.where(helps, saved, 1.0), 0.0, 1.0), 0.0)
    return least + (most - least) * needed * (1.0 - SLACK)


def _least_sums(draft: Plan, c: Coefficients) -> Array:
    """Bytes of accumulated gradients that take no longer inside products than all of them do in
    kernels of their own, as a share."""
    own = jnp.minimum(c.elementwise_traffic, 1.0)
    return own / (own + (1.0 - own) * draft.software.fused_sums)


def quiet(times: Breakdown) -> Breakdown:
    """The step with messages that draw no more than any work, nor than what they slow: those of
    layers like kernels that do nothing, the others like a device at rest. It takes as long, and no
    more energy at any demand of power."""
    of_layers = sum(getattr(times, name) for name in IN_LAYERS)
    others = times.exposed_communication - of_layers
    silent = {name: 0.0 * getattr(times, name) for name in MESSAGES}
    return times.replace(
        **silent, contention=times.contention + of_layers, overhead=times.overhead + others
    )


class Held(NamedTuple):
    """Memory of groups at best: their draft with the least summed gradients, the least bytes of a
    device, and the least share that fits."""

    draft: Plan
    nbytes: Array
    share: Array


PASSING = ("loss", "backward")
"""Moments whose activations are affine in the share of layers that are done again."""


def _held(system: Cluster, draft: Plan, batch: dict[str, Array], fixed: Any) -> Held:
    """What a device holds at the least."""
    model, footprint = fixed["model"], fixed["footprint"]
    least, most = batch["share_least"], batch["share_most"]
    held, buffer = draft.having(zero=batch["zero_held"]), draft.having(zero=batch["zero_buffer"])
    ends = [draft_moments(model, held.having(recompute_layers=r), footprint) for r in (least, most)]
    size = system.chip.hbm_bytes * fixed["memory"]
    share, nbytes = least, 0.0 * least
    for moment, gathers in draft_moments(model, buffer, footprint).items():
        if moment in PASSING:
            first, last = (end[moment] for end in ends)
            rest = first.total - first.activations - first.buffers + gathers.buffers
            room = size - rest - first.activations
            saved = first.activations - last.activations
            share = jnp.maximum(share, _share(least, most, room, saved))
            kept = jnp.minimum(first.activations, last.activations)
            nbytes = jnp.maximum(nbytes, rest + kept)
    sums = jnp.where(batch["reduces"] > 0.0, 1.0, _least_sums(draft, fixed["coefficients"]))
    summed = draft.having(gradient_bytes=draft.precision.gradient_bytes * sums)
    return Held(summed, nbytes, share)


def _physics(reduces: Array) -> Physics:
    """The physics of drafts without first gathers, and without the communication of gradients and
    weights per step where sharding is free."""

    def least_costs(system: Cluster, model: Model, draft: Plan, c: Coefficients, p: float) -> Costs:
        found = CALIBRATED.costs(system, model, draft, c, p)
        comm = found.communication
        comm = comm.replace(
            fsdp_first=0.0 * comm.fsdp_first,
            dp=comm.dp * reduces,
            hidden_step=comm.hidden_step * reduces,
        )
        return found.replace(communication=comm)

    return CALIBRATED._replace(costs=least_costs)


def _loose(
    system: Cluster, model: Model, ends: tuple[Plan, Plan], c: Coefficients, sharpness: float
) -> Coefficients:
    """Coefficients under which windows are as long as any between two drafts (`_windows`)."""
    apart = place(ends[0], system.network.size).pp[1:].prod(0)
    costs = [CALIBRATED.costs(system, model, draft, c, sharpness) for draft in ends]
    alone = [
        compute.launch_time(each.work.busy, starts(model, draft, apart, system.chip, c), sharpness)
        for each, draft in zip(costs, ends, strict=True)
    ]
    return _windows(costs[0], costs[1], (alone[0], alone[1]), c)


@lru_cache(maxsize=16)
def _bound(sharpness: float):
    """The case function, one object for each sharpness, so that it is compiled once."""

    def bound(batch: dict[str, Array], fixed: Any) -> Bound:
        with together():
            return bounded(batch, fixed)

    def bounded(batch: dict[str, Array], fixed: Any) -> Bound:
        model, c = fixed["model"], fixed["coefficients"]
        system, draft = CALIBRATED.align(*drafted(batch, fixed))
        held = _held(system, draft, batch, fixed)
        low = held.draft.having(recompute_layers=held.share)
        high = held.draft.having(recompute_layers=batch["share_most"])
        loose = _loose(system, model, (low, high), c, sharpness)
        physics = _physics(batch["reduces"])
        found = step_time(system, model, low, loose, sharpness=sharpness, physics=physics)
        displaced = jnp.asarray(low.layout.head_displaces) > 0.0
        without = found.replace(head=jnp.where(displaced, 0.0, found.head))
        joules = run.facility_watts(system, low, quiet(without), c) * without.total
        below = 1.0 - SLACK
        return Bound(
            step_time_s=found.total * below,
            joules=joules * below,
            memory_bytes=held.nbytes * below,
            share=held.share,
        )

    return bound


def _listed(fixed: Any, batch: dict[str, Array], *, sharpness: float) -> dict[str, Any]:
    """The bounds of groups by name."""
    return vars(_bound(sharpness)(batch, fixed))


LISTED = Recorded(_listed, any_rows=True, of_last=True)


def group_bounds(
    problem: Problem, rows: np.ndarray, *, sharded: bool, threads: int | None = None
) -> Bound:
    """Bounds of groups `[n]`.

    Args:
      rows: one for each group. sharded: the rows' own sharding is meant; else the best of all that
        the space allows.
    """
    return bounds_of(problem, numbers(problem, rows, sharded=sharded), threads)


def bounds_of(problem: Problem, batch: dict[str, np.ndarray], threads: int | None = None) -> Bound:
    """Bounds of groups as `numbers` has them."""
    fixed = shared(problem) | {"memory": float(problem.limits.memory)}
    sharpness, count = problem.sharpness, max(np.size(x) for x in batch.values())
    if takes_numpy(("bound", sharpness), (batch, fixed), count):
        return Bound(**by_numpy(LISTED, batch, fixed, count, sharpness=sharpness))
    return sweep(_bound(sharpness), batch, fixed, threads=threads, once=True)


def numbers(problem: Problem, rows: np.ndarray, *, sharded: bool) -> dict[str, np.ndarray]:
    """Groups as named arrays `[n]`, as `group_bounds` takes them."""
    batch = rows_.numbers(problem.space, problem.system, rows)
    if sharded:
        own = {"zero_held": batch["zero"], "zero_buffer": batch["zero"]}
        batch |= {**own, "reduces": np.ones(len(rows))}
    else:
        batch |= _freely_sharded(problem.space, rows, batch)
    return batch | _shares(problem.space, batch)


def _freely_sharded(
    space: Space, rows: np.ndarray, batch: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Sharding of groups at its best for each thing that depends on it."""
    zero, full = np.asarray(space.choices.zero, dtype=float), np.ones(len(rows))
    # one rank has nothing to shard, whatever the stage, unless experts have ranks that tensor
    # parallelism leaves them
    alone = batch["dp"] * batch["cp"] == 1.0
    if float(value(space.model, "n_experts", 1.0)) > 1.0:
        alone &= batch["tp"] == batch["ep"] * batch["etp"]
    stages = {"zero": min(zero.max(), 1.0), "zero_held": zero.max(), "zero_buffer": zero.min()}
    found = {name: np.where(alone, 0.0, stage) for name, stage in stages.items()}
    found |= {"shard": batch["dp"], "reshard": full, "reduces": 0.0 * full}
    return found | best_over_sharding(space, rows)


def _shares(space: Space, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Least and largest share of recomputed layers of groups; none is free of attention alone."""
    free = (batch["recompute_attention"] == 0.0) * 1.0
    if space.choices.recompute is None:
        return {"share_least": 0.0 * free, "share_most": np.ones_like(free)}
    # whole layers are rounded from shares, by half a layer at most
    rounding = 0.5 * batch["pp"] / float(space.model.n_layers)
    shares = space.choices.recompute
    return {
        "share_least": np.clip(min(shares) - rounding, 0.0, 1.0) * free,
        "share_most": np.clip(max(shares) + rounding, 0.0, 1.0),
    }


def merit_bounds(problem: Problem, found: Bound) -> np.ndarray:
    """What no plan of the groups undercuts by the objective: seconds, dollars or joules of a
    step."""
    seconds = np.asarray(found.step_time_s)
    dollars = seconds * problem.space.n_devices * float(problem.system.chip.price_per_s)
    return {"time": seconds, "cost": dollars, "energy": np.asarray(found.joules)}[problem.objective]


def keeps_limits(problem: Problem, rows: np.ndarray, found: Bound) -> np.ndarray:
    """Which groups may hold a plan that keeps all limits; devices draw no less than at rest."""
    rest = problem.space.n_devices * float(problem.system.chip.idle_watts)
    return violation(used(problem, rows, found.step_time_s, found.memory_bytes, rest)) <= SLACK


def arithmetic_floor(problem: Problem) -> float:
    """A step time that no plan of the space undercuts [s].

    `overhead + (1 + straggler) · (Σ matmul FLOPs / (devices · peak · η_max) + attention)`: the
    arithmetic of all devices at its best rate, no recomputation, launches, streaming, communication
    or bubble (of a step that is added up, `Software.composed`, without overhead and straggler).
    Proof: every term of the step is ≥ 0, a smooth maximum is never below its arguments, a matmul's
    rate never above
    peak · η_max, and the FLOPs of the devices add up to the whole for every plan: the slowest stage
    takes no less than the mean of all, whether the head is spread or displaces layers.

    Limits: tight when compute-bound and wide; far below the truth when communication or memory
    decides.
    """
    space, c = problem.space, problem.coefficients
    model, n = space.model, float(space.n_devices)
    best = max(rows_.precisions(space, problem.system), key=lambda p: p.flops_per_s)
    chip = problem.system.chip.replace(flops_per_s=best.flops_per_s)
    # work is linear in the tokens of a device, so one plan of nothing but data parallelism stands
    # for all
    batch = float(space.global_batch)
    plan = fastest(space).having(
        dp=n, tp=1.0, cp=1.0, pp=1.0, ep=1.0, micro_batch=batch / n, global_batch=batch
    )
    table = layer(model, plan)
    flops = table.products.flops
    low = float(best.operand_bytes < NARROW)
    below = 1.0 - low * (1.0 - float(c.low_precision_efficiency))
    rate = larger(chip.flops_per_s * below, chip.attention_flops_per_s) * c.matmul_efficiency
    products = (2.0 + model.trainable) * (model.n_layers * flops[:-1].sum() + flops[-1]) / rate
    attention = attention_passes(table.cores, plan, chip, c, float("inf"))
    busy = products + model.n_layers * attention.total
    runs = 1.0 - space.base.software.composed
    return float(runs * c.overhead + (1.0 + runs * straggler_share(n, c.straggler)) * busy)
