"""What a plan must satisfy: named signed margins with units, satisfied where they are ≥ 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from dmodel.hardware import System
from dmodel.plan import Plan
from dmodel.step import memory_use
from dmodel.types import Array
from dmodel.workload import Transformer

Margin = Callable[[Transformer, Plan], Array]


class Constraint(NamedTuple):
    """name and unit of a margin; margin(model, plan): signed, ≥ 0 where the plan is valid; rule: what is asked; remedy: what to do."""

    name: str
    unit: str
    margin: Margin
    rule: str
    remedy: str


def _remainder(whole: Array, part: Array) -> Array:
    """`−(whole mod part)`: 0 where it divides, else minus what is left over."""
    return -jnp.mod(jnp.asarray(whole), jnp.asarray(part))


def _kv_remainder(model: Transformer, plan: Plan) -> Array:
    """KV heads are split over tp, or copied a whole number of times when tp exceeds them."""
    kv, tp = jnp.asarray(model.n_kv_heads), jnp.asarray(plan.tp)
    return -jnp.minimum(jnp.mod(kv, tp), jnp.mod(tp, kv))


def _chunk_remainder(model: Transformer, plan: Plan) -> Array:
    """Interleaved schedules pass micro-batches in groups of pp."""
    return _remainder(plan.n_microbatches, plan.pp) * jnp.clip(jnp.asarray(plan.interleave) - 1.0, 0.0, 1.0)


def _expert_group(model: Transformer, plan: Plan) -> Array:
    """Experts are spread over a part of dp."""
    return _remainder(plan.dp, plan.ep) + _remainder(model.n_experts, plan.ep)


DIVISIBILITY: tuple[Constraint, ...] = (
    Constraint("heads", "head", lambda model, plan: _remainder(model.n_heads, plan.tp), "tp divides the attention heads", "lower tp"),
    Constraint("kv_heads", "head", _kv_remainder, "tp divides the KV heads, or is a multiple of them", "lower tp"),
    Constraint(
        "layers",
        "layer",
        lambda model, plan: _remainder(model.n_layers, plan.pp * plan.interleave),
        "pp times interleave divides the layers",
        "change pp or interleave",
    ),
    Constraint("sequence", "token", lambda model, plan: _remainder(model.seq_len, plan.cp), "cp divides the sequence length", "lower cp"),
    Constraint(
        "batch",
        "sequence",
        lambda model, plan: _remainder(plan.global_batch, plan.dp * plan.micro_batch),
        "dp times micro-batch divides the global batch",
        "change dp, the micro-batch or the global batch",
    ),
    Constraint(
        "interleaving",
        "micro-batch",
        _chunk_remainder,
        "the micro-batches are a multiple of pp when stages are interleaved",
        "set interleave to 1, or change the micro-batch",
    ),
    Constraint("experts", "expert", _expert_group, "ep divides dp and the experts", "lower ep"),
    Constraint(
        "sharding",
        "rank",
        lambda model, plan: _remainder(plan.dp, plan.shard),
        "the sharding group divides dp",
        "set shard to a divisor of dp",
    ),
)


def violated(model: Transformer, plan: Plan) -> list[tuple[Constraint, float]]:
    """The rules of divisibility that one plan breaks, with their margins."""
    found = [(rule, float(rule.margin(model, plan))) for rule in DIVISIBILITY]
    return [(rule, margin) for rule, margin in found if margin < 0.0]


def divisible(model: Transformer, plan: Plan) -> np.ndarray:
    """Where plans `[*batch]` obey every rule of divisibility."""
    return np.logical_and.reduce(np.broadcast_arrays(*(np.asarray(rule.margin(model, plan)) >= 0.0 for rule in DIVISIBILITY)))


def memory_headroom(system: System, model: Transformer, plan: Plan) -> Array:
    """Memory of a device less what the fullest one needs [byte]: negative = does not fit. Differentiable."""
    return system.chip.hbm_bytes - memory_use(model, plan).total
