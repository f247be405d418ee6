"""One case as a vector of named numbers: what is asked (system, model, plan, coefficients, memory
of the stack, goal), in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel import struct
from dmodel.blocks import KINDS
from dmodel.coefficients import Coefficients
from dmodel.errors import InputError
from dmodel.footprint import LEAST, Footprint
from dmodel.records import (
    Cluster,
    Layout,
    Model,
    Network,
    Plan,
    Precision,
    Software,
    flat,
    having,
    named_parts,
)
from dmodel.sensitivity.goal import Goal, usual

PREFIXES = {
    "system.chip": "chip",
    "system.network": "network",
    "model": "model",
    "plan": "plan",
    "coefficients": "coefficients",
    "footprint": "footprint",
    "goal": "run",
}
GROUPS = {
    "chip": "hardware",
    "network": "hardware",
    "model": "workload",
    "plan": "plan",
    "coefficients": "coefficient",
    "footprint": "coefficient",
    "run": "run",
}
RATES = (
    "chip.flops_per_s",
    "chip.attention_flops_per_s",
    "chip.exponentials_per_s",
    "chip.hbm_bytes_per_s",
    "chip.host_bytes_per_s",
    "chip.host_memory_bytes_per_s",
    "network.bytes_per_s",
)
TIMES = (
    "chip.kernel_latency_s",
    "network.latency_s",
    "coefficients.collective_start",
    "coefficients.collective_skew",
    "coefficients.overhead",
)
"""All inputs with seconds in their unit that the step time depends on: its elasticities to the
rates less those to the times are −1."""

FACTORS = {
    "rate": (
        *("matmul_efficiency", "low_precision_efficiency", "four_bit_efficiency"),
        *("grouped_efficiency", "attention_efficiency", "memory_efficiency"),
    ),
    "time": (
        *("matmul_half_rows", "matmul_half_columns", "matmul_half_inner", "cast_traffic"),
        *("attention_exponentials", "attention_backward", "elementwise_traffic"),
        *("softmax_traffic", "optimizer_traffic", "loss_traffic", "launch", "rendezvous"),
        *("kernel_fill", "net_latency_inner", "net_latency_outer", "bubble"),
    ),
}
"""Coefficients that multiply rates, or times, of parts of a step, or some share of them. Not the
efficiencies of levels of the network: where one level alone is faster a step may be longer, by 0.7
% in 8,000 random plans, as messages hide behind each other."""

RECORDS: dict[str, tuple[type, ...]] = {
    "network": (Network,),
    "model": (Model, *KINDS.values()),
    "plan": (Layout, Precision, Software),
}
"""Records of inputs by the beginning of their names."""


def _marked(mark: str) -> frozenset[str]:
    """Inputs that their records mark."""
    every = ((prefix, kind) for prefix, kinds in RECORDS.items() for kind in kinds)
    return frozenset(f"{prefix}.{n}" for prefix, kind in every for n in getattr(kind, mark, ()))


SWITCHES = _marked("CHOICES")
"""Inputs that are choices."""


class Point(struct.PyTreeNode, kw_only=True):
    """All that an output depends on; scalars, network `[K]`, or with a batch of cases as the last
    axis."""

    system: Cluster
    model: Model
    plan: Plan
    coefficients: Coefficients
    footprint: Footprint
    goal: Goal


def make_case(
    system: Cluster,
    model: Model,
    plan: Plan,
    coefficients: Coefficients,
    footprint: Footprint | None = None,
    goal: Goal | None = None,
) -> Point:
    """A case of records with numpy leaves in float64.

    Args:
      footprint: what the stack holds in memory; None = the least. goal: of the run; None =
        `goal.usual`.

    Raises:
      InputError: a batch of cases.
    """
    if any(np.ndim(x) for x in jax.tree.leaves([system.chip, model, plan, coefficients])) or any(
        np.ndim(x) != 1 for x in jax.tree.leaves(system.network)
    ):
        raise InputError(
            "elasticities are of one plan: expected scalars, and network levels `[K]`; got a "
            "batch. Take one case of it."
        )
    case = Point(
        # the number of devices is the plan's, no input beside its degrees
        system=system.replace(devices=None),
        model=model,
        plan=plan,
        coefficients=coefficients,
        footprint=footprint if footprint is not None else LEAST,
        goal=goal if goal is not None else usual(model),
    )
    return jax.tree.map(lambda x: np.asarray(x, dtype=np.float64), case)


class Inputs(NamedTuple):
    """A case as a vector.

    Attributes:
      names: of each number, such as `chip.flops_per_s` or `network.bytes_per_s[NVLink]`. values:
        `[n]`.
      tree: structure of the case. levels: K.
    """

    names: tuple[str, ...]
    values: np.ndarray
    tree: Any
    levels: int

    def index(self, name: str) -> int:
        """Place of a name; InputError with the nearest names when there is none."""
        if name not in self.names:
            from difflib import get_close_matches

            near = get_close_matches(name, self.names, 4, 0.5)
            raise InputError(
                f"unknown input {name!r}: "
                f"{'did you mean ' + ', '.join(near) if near else 'see --top 0 for all names'}?"
            )
        return self.names.index(name)

    def __getitem__(self, name: str) -> float:
        return float(self.values[self.index(name)])


def inputs(case: Point, level_names: Sequence[str] | None = None) -> Inputs:
    """Name every number of a case, per-level ones once per level.

    Raises:
      InputError: the wrong number of level names.
    """
    levels = _level_names(case.system.network.n_levels, level_names)
    names: list[str] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(case):
        name = flat(jax.tree_util.keystr(path, simple=True, separator="."))
        record, _, field = name.rpartition(".")
        base = f"{PREFIXES[record]}.{field}" if record in PREFIXES else _of_layers(case.model, name)
        names += [f"{base}[{level}]" for level in levels] if np.ndim(leaf) else [base]
    values = np.concatenate([np.ravel(x) for x in jax.tree.leaves(case)])
    tree = jax.tree.structure(case)
    return Inputs(names=tuple(names), values=values, tree=tree, levels=len(levels))


def _of_layers(model: Model, path: str) -> str:
    """Name of a size of layers by its path, such as `model.mixers.0.n_heads`: `model.n_heads`, and
    with the part's name where several parts have it; `model.shares[1]` of a kind of layer."""
    _, side, place, *field = path.split(".")
    if not field:
        return f"model.{side}[{place}]"
    titles = list(named_parts(model))
    index = int(place) + (len(model.mixers) if side == "feeds" else 0)
    alone = len(having(model, field[0])) == 1
    return ".".join(["model", *([] if alone else [titles[index]]), *field])


def _level_names(k: int, names: Sequence[str] | None) -> list[str]:
    """Names of the network's levels, numbers where there are none."""
    if names is None:
        return [str(i) for i in range(k)]
    if len(names) != k:
        raise InputError(
            f"level names: expected one per network level, {k}; got {len(names)}: "
            f"{', '.join(names)}"
        )
    return list(names)


def rebuild(x: jax.Array | np.ndarray, tree: Any, levels: int) -> Point:
    """The case of a vector `[n, *batch]`, leaves `[*batch]` and `[K, *batch]`: what `inputs` took
    apart."""
    marks = jax.tree.unflatten(tree, range(tree.num_leaves))
    wide = set(jax.tree.leaves(marks.system.network))
    sizes = [levels if i in wide else 1 for i in range(tree.num_leaves)]
    if isinstance(x, np.ndarray):
        parts = np.split(x, np.cumsum(sizes)[:-1])
    else:
        # not by slices: those of a gradient are added up one by one, each in an array of the whole
        # size
        parts = jax.lax.split(x, sizes)
    return jax.tree.unflatten(
        tree, [part if i in wide else part.reshape(part.shape[1:]) for i, part in enumerate(parts)]
    )


def base_name(name: str) -> str:
    """`network.bytes_per_s` of `network.bytes_per_s[NVLink]`."""
    return name.split("[")[0]


def group(name: str) -> str:
    """ "hardware", "workload", "plan", "coefficient" or "run"."""
    return GROUPS[name.split(".")[0]]


def kind(name: str) -> str:
    """ "rate", "time" or "other"."""
    return "rate" if base_name(name) in RATES else "time" if base_name(name) in TIMES else "other"


def scale(name: str) -> str:
    """What an input multiplies, or a part of it: "rate", "time" or "other"."""
    found = kind(name)
    record, _, field = name.partition(".")
    if found != "other" or record != "coefficients":
        return found
    return next((each for each, names in FACTORS.items() if field in names), "other")


def reason_without(name: str, at: float, sharded: bool) -> str | None:
    """Why an input has no elasticity, or None."""
    base = base_name(name)
    record, _, field = base.rpartition(".")
    if base in SWITCHES or f"{record.split('.')[0]}.{field}" in SWITCHES:
        return "a choice, not a size"
    if base == "plan.shard" and not sharded:
        return "ZeRO stage 0 shards nothing"
    if isinf(at):
        return "infinite"
    return "zero has no logarithm" if at == 0.0 else None
