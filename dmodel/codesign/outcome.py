"""What becomes of a run of given sizes under a plan: the quantities that objectives and limits
speak of, all positive and
differentiable."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dmodel import counts, run, struct
from dmodel.codesign.laws import Laws, Quality, effective_parameters, quality
from dmodel.codesign.unknowns import Fixed, equipped, shaped
from dmodel.coefficients import Coefficients
from dmodel.footprint import Footprint
from dmodel.goodput import Reliability, goodput
from dmodel.records import Cluster, Model, Plan, ff_width, value
from dmodel.step import memory_use, step_time
from dmodel.tables import parameter_groups
from dmodel.types import Array, stack

QUANTITIES = {
    "seconds": "s",
    "loss": "nat/token",
    "dollars": "dollar",
    "joules": "J",
    "flop": "FLOP",
    "watts": "W",
    "area_mm2": "mm2",
    "batch": "critical batch",
    "tokens": "token",
    "memory": "device memory",
    "waste": "1",
}
"""What limits speak of, and units: duration with what failures cost, loss, rent, energy with hosts
and cooling, model FLOP of the run (6 N D and attention), power of the facility, die area, batch
over the critical one, tokens, bytes of the fullest device over its memory, tokens over those that
small batches need for the same loss."""

NAMES = tuple(QUANTITIES)

OBJECTIVES = {
    "time": "seconds",
    "loss": "loss",
    "cost": "dollars",
    "energy": "joules",
    "largest": "flop",
}
"""Objectives and the quantity that each makes least ("largest": makes most)."""


class World(struct.PyTreeNode, kw_only=True):
    """All that is not chosen.

    Attributes:
      fixed: catalog's system and model, bill. coefficients: leaves `[sample]`. laws, footprint,
      reliability (None = no failures). law_tokens: 1 = tokens follow from the data law, 0 = they
      are the unknown.
    """

    fixed: Fixed
    coefficients: Coefficients
    laws: Laws
    footprint: Footprint
    reliability: Reliability | None
    law_tokens: Array


class Outcome(struct.PyTreeNode, kw_only=True):
    """quantities: in the order of `NAMES`, `[quantity, *batch]`. step_time_s [s]. mfu [1].
    memory_bytes [byte]. quality: loss, critical batch and waste. parameters [count]."""

    quantities: jax.Array
    step_time_s: Array
    mfu: Array
    memory_bytes: Array
    quality: Quality
    parameters: Array


def outcome_of(found: dict[str, Any]) -> Outcome:
    """The outcome that dictionaries hold."""
    return Outcome(**{**found, "quality": Quality(**found["quality"])})


def unordered(world: World) -> World:
    """The world without the order of layers, which decides nothing here: models of one structure
    share a record."""
    model = world.fixed.model.replace(order=())
    return world.replace(fixed=world.fixed.replace(model=model))


def parameters(model: Model, laws: Laws) -> jax.Array:
    """Effective parameters by the laws of loss and shape [count]: active ones, with or without
    embeddings as the loss law counts them.

    The MLP of three matrices counts as one of two that is half as wide again. Limits: a mixture's
    experts beyond those that a token visits are worth nothing here.
    """
    n = parameter_groups(model)
    counted = counts.active_parameters(model) - (1.0 - laws.loss.embeddings) * (
        n.embedding + n.head
    )
    ratio = ff_width(model) / model.d_model * (1.0 + 0.5 * value(model, "gated_mlp"))
    return effective_parameters(
        counted, model.n_layers, model.d_model, ratio, value(model, "head_dim"), laws.shape
    )


def tokens_of(x: dict[str, jax.Array], model: Model, world: World) -> jax.Array:
    """Tokens of the run: the unknown, or by the data law [token]."""
    law = world.laws.data
    followed = law.ratio * counts.active_parameters(model) ** law.exponent
    return x["tokens"] * (1.0 - world.law_tokens) + followed * world.law_tokens


class Step(struct.PyTreeNode, kw_only=True):
    """One step under a plan: step_time_s [s], memory_bytes [byte], watts of the facility [W];
    `[*batch]`."""

    step_time_s: Array
    memory_bytes: Array
    watts: Array


def step(
    system: Cluster,
    model: Model,
    plan: Plan,
    c: Coefficients,
    footprint: Footprint,
    sharpness: float,
) -> Step:
    """What a plan's step takes: all that needs the model of step time."""
    time = step_time(system, model, plan, c, sharpness=sharpness)
    return Step(
        step_time_s=time.total,
        memory_bytes=memory_use(model, plan, footprint=footprint).total,
        watts=run.facility_watts(system, plan, time, c),
    )


def whole_run(
    system: Cluster,
    area: Array,
    model: Model,
    plan: Plan,
    seen: Step,
    tokens: Array,
    world: World,
) -> Outcome:
    """The whole run from its step: cheap, and without the model of step time.

    `seconds = tokens / (B s) · T / goodput`; rent and energy are paid for all of that time.
    """
    share = jnp.ones(()) if world.reliability is None else goodput(plan.devices, world.reliability)
    batch = plan.global_batch * model.seq_len
    seconds = tokens / batch * seen.step_time_s / share
    flop = counts.model_flops_per_token(model, "6N+6Lhs") * tokens
    known = parameters(model, world.laws)
    found = quality(known, tokens, batch, flop, world.laws)
    rows = {
        "seconds": seconds,
        "loss": found.loss,
        "dollars": seconds * plan.devices * system.chip.price_per_s,
        "joules": seconds * seen.watts,
        "flop": flop,
        "watts": seen.watts,
        "area_mm2": area,
        "batch": batch / found.critical,
        "tokens": tokens,
        "memory": seen.memory_bytes / system.chip.hbm_bytes,
        "waste": found.waste,
    }
    return Outcome(
        quantities=stack(*(rows[name] for name in NAMES)),
        step_time_s=seen.step_time_s,
        mfu=batch
        * counts.model_flops_per_token(model, run.CONVENTION)
        / (seen.step_time_s * plan.devices * system.chip.flops_per_s),
        memory_bytes=seen.memory_bytes,
        quality=found,
        parameters=counts.parameters(model),
    )


def outcome(
    x: dict[str, Any], plan: Plan, world: World, coefficients: Coefficients, sharpness: float
) -> Outcome:
    """Sizes and a plan of matching devices and batch → quantities.

    Args:
      x: every unknown by name, `[*batch]`. plan: leaves `[*batch]`. coefficients: one sample,
        scalars.
    """
    model, device = shaped(x, world.fixed), equipped(x, world.fixed)
    seen = step(device.system, model, plan, coefficients, world.footprint, sharpness)
    return whole_run(
        device.system, device.area_mm2, model, plan, seen, tokens_of(x, model, world), world
    )
