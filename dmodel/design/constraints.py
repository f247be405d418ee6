"""What a plan must satisfy: named signed margins with units, satisfied where they are ≥ 0.

Rules of divisibility ask about a plan alone; limits (memory, deadline, budget, …) about what the
model says of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dmodel import struct
from dmodel.records import Cluster, Model, Plan, counts_of, value
from dmodel.smooth import ramp
from dmodel.stages import ENDS, short_by
from dmodel.tables import summed
from dmodel.types import Array, modulo, smaller

Margin = Callable[[Model, Plan], Array]


class Constraint(NamedTuple):
    """name and unit of a margin; margin(model, plan): signed, ≥ 0 where the plan is valid; rule:
    what is asked; remedy: what to do."""

    name: str
    unit: str
    margin: Margin
    rule: str
    remedy: str


def _remainder(whole: Array, part: Array) -> Array:
    """`−(whole mod part)`: 0 where it divides, else minus what is left over."""
    return -modulo(whole, part)


def _kv_remainder(model: Model, plan: Plan) -> Array:
    """KV heads are split over tp, or copied a whole number of times when tp exceeds them."""
    tp = plan.layout.tp
    return summed(-smaller(modulo(n, tp), modulo(tp, n)) for n in counts_of(model, "COPIED"))


def _head_remainder(model: Model, plan: Plan) -> Array:
    """Heads of all mixers are split over tp."""
    return summed(_remainder(n, plan.layout.tp) for n in counts_of(model, "SPLIT"))


def _stage_remainder(model: Model, plan: Plan) -> Array:
    """Layers lie on chunks of stages as `dmodel.stages` has them."""
    return -short_by(model.n_layers, plan.layout.pp, plan.layout.interleave)


def _sequence_parts(plan: Plan) -> Array:
    """Parts of the sequence: cp, and tp of each where sequence parallelism splits it further."""
    layout = plan.layout
    return layout.cp * (1.0 + layout.sp * (layout.tp - 1.0))


def _chunk_remainder(model: Model, plan: Plan) -> Array:
    """Interleaved schedules pass micro-batches in groups of pp."""
    return _remainder(plan.n_microbatches, plan.layout.pp) * ramp(plan.layout.interleave - 1.0)


def _expert_group(model: Model, plan: Plan) -> Array:
    """Experts are spread over a part of the ranks of a stage, and split over a part of tp."""
    layout = plan.layout
    ranks = layout.dp * layout.tp * layout.cp
    return (
        _remainder(ranks, layout.ep * layout.etp)
        + _remainder(value(model, "n_experts", 1.0), layout.ep)
        + _remainder(layout.tp, layout.etp)
    )


DIVISIBILITY: tuple[Constraint, ...] = (
    Constraint(
        "heads",
        "head",
        _head_remainder,
        "tp divides the attention heads",
        "lower tp",
    ),
    Constraint(
        "kv_heads",
        "head",
        _kv_remainder,
        "tp divides the KV heads, or is a multiple of them",
        "lower tp",
    ),
    Constraint(
        "layers",
        "layer",
        _stage_remainder,
        "pp times interleave divides the layers or, where pp does not, nearly divides the layers "
        f"and {ENDS:g}, for embedding and head: "
        "fewer are missing than one chunk of a stage holds",
        "change pp or interleave",
    ),
    Constraint(
        "sequence",
        "token",
        lambda model, plan: _remainder(model.seq_len, _sequence_parts(plan)),
        "cp, times tp under sequence parallelism, divides the sequence length",
        "lower cp, or set sp to 0",
    ),
    Constraint(
        "batch",
        "sequence",
        lambda model, plan: _remainder(plan.global_batch, plan.layout.dp * plan.layout.micro_batch),
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
    Constraint(
        "experts",
        "expert",
        _expert_group,
        "ep divides the experts, etp divides tp, and ep times etp dp · tp · cp",
        "lower ep or etp",
    ),
    Constraint(
        "sharding",
        "rank",
        lambda model, plan: _remainder(plan.layout.dp, plan.layout.shard),
        "the sharding group divides dp",
        "set shard to a divisor of dp",
    ),
)


def violated(model: Model, plan: Plan) -> list[tuple[Constraint, float]]:
    """The rules of divisibility that one plan breaks, with their margins."""
    found = [(rule, float(rule.margin(model, plan))) for rule in DIVISIBILITY]
    return [(rule, margin) for rule, margin in found if margin < 0.0]


class Limits(struct.PyTreeNode, kw_only=True):
    """What a plan must keep; infinite = no limit.

    Attributes:
      memory: share of the device's memory that a plan may need [1]; less than 1 leaves room for
        what predictions of memory are off by (`dmodel.footprint.share_at_risk`).
      tokens: of the whole run, which deadline, dollars and joules are for [token]. deadline_s: its
        duration [s]. dollars: its rent [dollar]. joules: its energy, hosts and cooling with it [J].
        facility_watts: power of all devices, likewise [W].
      critical_batch: largest useful global batch [token]. tp_domain: largest tp, as the devices of
        one domain of a network level [device].
    """

    memory: Array = 1.0
    tokens: Array = 0.0
    deadline_s: Array = np.inf
    dollars: Array = np.inf
    joules: Array = np.inf
    facility_watts: Array = np.inf
    critical_batch: Array = np.inf
    tp_domain: Array = np.inf


class Use(NamedTuple):
    """What one plan uses of a limited thing: name, unit, and amount [unit]; limit: what there is of
    it [unit]. rule: in words."""

    name: str
    unit: str
    amount: Array
    limit: Array
    rule: str

    @property
    def margin(self) -> Array:
        """`limit − amount` [unit], ≥ 0 where it is kept."""
        return self.limit - self.amount


def uses(
    limits: Limits,
    system: Cluster,
    model: Model,
    plan: Plan,
    step_time_s: Array,
    memory_bytes: Array,
    facility_watts: Array,
) -> tuple[Use, ...]:
    """Everything limited, in one order, limited or not: `amount ≤ limit` each. Leaves are scalars
    or `[*batch]`; differentiable.

    A run takes `tokens / (B s)` steps; its rent is `devices · price · duration`, its energy `watts
    · duration`.
    """
    batch = plan.global_batch * model.seq_len
    duration = limits.tokens / batch * step_time_s
    rent = plan.devices * system.chip.price_per_s * duration
    return (
        Use(
            "memory",
            "byte",
            memory_bytes,
            system.chip.hbm_bytes * limits.memory,
            "the fullest device holds what it must",
        ),
        Use("deadline", "s", duration, limits.deadline_s, "the run ends in time"),
        Use("budget", "dollar", rent, limits.dollars, "the rent of the run is within the budget"),
        Use(
            "energy",
            "J",
            facility_watts * duration,
            limits.joules,
            "the energy of the run is within the budget",
        ),
        Use(
            "power",
            "W",
            facility_watts,
            limits.facility_watts,
            "the facility can feed and cool all devices",
        ),
        Use(
            "critical batch",
            "token",
            batch,
            limits.critical_batch,
            "a larger batch would train no faster",
        ),
        Use(
            "network domain",
            "device",
            plan.layout.tp,
            limits.tp_domain,
            "tensor parallelism stays inside a domain of the network",
        ),
    )


def violation(found: tuple[Use, ...]) -> np.ndarray:
    """Largest relative excess over a limit, `max(amount / limit − 1)` [1]: > 0 where a limit is
    broken."""
    return np.max(
        np.broadcast_arrays(*(np.asarray(u.amount) / np.asarray(u.limit) - 1.0 for u in found)), 0
    )
