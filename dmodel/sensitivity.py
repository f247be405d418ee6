"""Elasticities: by how many per cent an output changes when an input grows by one per cent.

One reverse-mode gradient gives them all, `∂ ln y / ∂ ln x = (x / y) ∂y/∂x`, for every number of the system, the model, the plan and the
coefficients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import isinf

import jax
import numpy as np
from flax import struct

from dmodel import run
from dmodel.coefficients import Coefficients
from dmodel.hardware import System
from dmodel.plan import Plan
from dmodel.smooth import SHARPNESS
from dmodel.step import Breakdown, memory_use, step_time
from dmodel.sweep import quick_to_compile
from dmodel.types import Array, InputError, stack
from dmodel.workload import Transformer

Output = Callable[[System, Transformer, Plan, Breakdown], Array]

OUTPUTS: dict[str, Output] = {
    "step_time": lambda system, model, plan, breakdown: breakdown.total,
    "tokens_per_s": lambda system, model, plan, breakdown: run.tokens_per_s(model, plan, breakdown),
    "mfu": run.mfu,
    "memory": lambda system, model, plan, breakdown: memory_use(model, plan).total,
    "dollars_per_token": run.dollars_per_token,
    "joules_per_token": run.joules_per_token,
}
"""Outputs by name: [s], [token/s], [1] (convention `run.CONVENTION`), [byte], [dollar/token], [J/token]."""

GROUPS = {"chip": "hardware", "network": "hardware", "model": "workload", "plan": "plan", "coefficients": "coefficient"}

RATES = ("chip.flops_per_s", "chip.attention_flops_per_s", "chip.hbm_bytes_per_s", "network.bytes_per_s")
TIMES = ("chip.kernel_latency_s", "network.latency_s", "coefficients.collective_start", "coefficients.overhead")
"""All inputs with seconds in their unit that the step time depends on: its elasticities to the rates less those to the times are −1."""

SWITCHES = frozenset(
    ["network.torus_axes", "network.in_network_reduction"]
    + [f"model.{name}" for name in ("gated_mlp", "tied_embeddings", "causal", "trainable")]
    + [f"plan.{name}" for name in ("sp", "zero", "reshard", "flash", "low_precision")]
    + [f"plan.overlap_{name}" for name in ("tp", "cp", "ep", "dp", "pp")]
)
EXPERTS = frozenset(
    [f"model.{name}" for name in ("n_experts", "top_k", "n_shared_experts", "imbalance", "n_dense_layers", "d_ff_dense")]
    + ["plan.ep", "plan.etp", "plan.merge_copies"]
)


class Elasticity(struct.PyTreeNode, kw_only=True):
    """One elasticity.

    Attributes:
      name: of the input, such as `chip.flops_per_s` or `network.bytes_per_s[0]`.
      group: "hardware", "workload", "plan" or "coefficient". kind: "rate", "time" or "other".
      at: the input's value, its own unit. value: ∂ ln output / ∂ ln input [1], at a kink the mean of `below` and `above`, its sides.
    """

    name: str = struct.field(pytree_node=False)
    group: str = struct.field(pytree_node=False)
    kind: str = struct.field(pytree_node=False)
    at: float
    value: float
    below: float
    above: float


class LeftOut(struct.PyTreeNode, kw_only=True):
    """An input without an elasticity, and why."""

    name: str = struct.field(pytree_node=False)
    reason: str = struct.field(pytree_node=False)


class Elasticities(struct.PyTreeNode, kw_only=True):
    """All elasticities of one output.

    Attributes:
      output: its name. at: its value, its own unit. entries: in the order of the records, or sorted. left_out: inputs without one.
    """

    output: str = struct.field(pytree_node=False)
    at: float
    entries: tuple[Elasticity, ...]
    left_out: tuple[LeftOut, ...]

    def __getitem__(self, name: str) -> float:
        """The elasticity to the input of that name; KeyError when it has none."""
        return {e.name: e.value for e in self.entries}[name]

    def total(self, kind: str) -> float:
        """Sum over the inputs of one kind ("rate", "time", "other")."""
        return sum(e.value for e in self.entries if e.kind == kind)


NUDGE = 1e-7
"""Relative step to either side of an input, far above rounding and far below what changes a slope: it only steps off kinks."""


@cache
def _compiled() -> Callable:
    return jax.jit(_values_and_elasticities, static_argnames="sharpness", compiler_options=quick_to_compile())


def _values_and_elasticities(leaves: tuple, output: int, sharpness: float) -> tuple:
    """An output `[*batch]` of a batch of cases and the elasticities of each: one reverse pass through their sum, since cases do not meet.

    The output is a number, not a name, so that all share one compilation.
    """

    def total(leaves: tuple) -> tuple:
        system, model, plan, coefficients = leaves
        time = step_time(system, model, plan, coefficients, sharpness=sharpness)
        values = stack(*(function(system, model, plan, time) for function in OUTPUTS.values()))[output]
        return values.sum(), values

    gradient, values = jax.grad(total, has_aux=True)(leaves)
    return values, jax.tree.map(lambda x, slope: slope * (x / values.reshape((1,) * (x.ndim - 1) + values.shape)), leaves, gradient)


def _both_sides(leaves: tuple) -> tuple:
    """A batch `[2 n]` of cases: each of the n inputs a nudge below its value (first n), and above it (last n)."""
    flat, tree = jax.tree.flatten(leaves)
    n = sum(np.size(x) for x in flat)
    sides, start = np.array([1.0 - NUDGE, 1.0 + NUDGE]), 0
    cases = []
    for x in flat:
        factors = np.ones((np.size(x), 2, n))
        mine = np.arange(np.size(x))
        factors[mine, :, start + mine] = sides
        start += np.size(x)
        cases.append(np.asarray(x)[..., None] * factors.reshape(*np.shape(x), 2 * n))
    return jax.tree.unflatten(tree, cases)


def _own(found: tuple) -> tuple[tuple, tuple]:
    """Of every input, its elasticity in the cases where it was nudged itself: below and above."""
    flat, tree = jax.tree.flatten(found)
    sizes = [int(np.prod(x.shape[:-1])) for x in flat]
    n, starts = sum(sizes), np.cumsum([0, *sizes[:-1]])

    def side(offset: int) -> tuple:
        own = []
        for x, size, start in zip(flat, sizes, starts, strict=True):
            table = np.asarray(x).reshape(size, 2 * n)
            own.append(table[np.arange(size), offset + start + np.arange(size)].reshape(x.shape[:-1]))
        return jax.tree.unflatten(tree, own)

    return side(0), side(n)


def _named(leaves: tuple, level_names: Sequence[str] | None) -> dict[str, float]:
    """Name every number of (system, model, plan, coefficients); per-level ones once per level."""
    system, model, plan, coefficients = leaves
    found: dict[str, float] = {}
    records = {"chip": system.chip, "network": system.network, "model": model, "plan": plan, "coefficients": coefficients}
    for prefix, record in records.items():
        for field, value in vars(record).items():
            if isinstance(value, str | tuple):
                continue  # schedule and placement are names
            values = np.atleast_1d(np.asarray(value))
            levels = level_names if level_names is not None else range(len(values))
            names = [f"{prefix}.{field}[{level}]" for level in levels] if prefix == "network" else [f"{prefix}.{field}"]
            found |= dict(zip(names, values.tolist(), strict=True))
    return found


def _reason(name: str, at: float, dense: bool, sharded: bool) -> str | None:
    """Why an input has no elasticity, or None."""
    base = name.split("[")[0]
    if base in SWITCHES:
        return "a choice, not a size"
    if dense and base in EXPERTS:
        return "a dense model has no experts"
    if base == "plan.shard" and not sharded:
        return "ZeRO stage 0 shards nothing"
    if isinf(at):
        return "infinite"
    return "zero has no logarithm" if at == 0.0 else None


def _kind(name: str) -> str:
    base = name.split("[")[0]
    return "rate" if base in RATES else "time" if base in TIMES else "other"


def _check(leaves: tuple, output: str, n_levels: int, level_names: Sequence[str] | None) -> None:
    if output not in OUTPUTS:
        raise InputError(f"unknown output {output!r}: expected one of {', '.join(OUTPUTS)}")
    if level_names is not None and len(level_names) != n_levels:
        raise InputError(f"level names: expected one per network level, {n_levels}; got {len(level_names)}: {', '.join(level_names)}")
    system, *others = leaves
    if any(np.ndim(x) for x in jax.tree.leaves([system.chip, others])) or any(np.ndim(x) != 1 for x in jax.tree.leaves(system.network)):
        raise InputError("elasticities are of one plan: expected scalars, and network levels `[K]`; got a batch. Take one case of it.")


def elasticities(
    system: System,
    model: Transformer,
    plan: Plan,
    coefficients: Coefficients,
    output: str = "step_time",
    *,
    sharpness: float = SHARPNESS,
    level_names: Sequence[str] | None = None,
    sort: bool = False,
) -> Elasticities:
    """Elasticities of an output to every input, at one plan.

    `∂ ln y / ∂ ln x` with all other inputs fixed. The degrees count as independent: `plan.tp` asks what more tensor parallelism does on as
    many more devices, with the same `dp`, `cp`, `pp`, `shard` and global batch. At a kink (a degree of 1, a domain that is just full) it
    is the mean of both sides; each is found a nudge off the kink, because automatic differentiation on top of several kinks at once takes
    a product of halves that is neither.

    Limits: of the step time, Σ rates − Σ times = −1, because it is homogeneous of degree 1 in seconds; to a compute-bound step the peak
    rate's elasticity tends to −1 and all others to 0.

    Args:
      system, model, plan, coefficients: one case (scalars; network `[K]`).
      output: one of `OUTPUTS`.
      sharpness: of the step's maxima.
      level_names: names of the network levels, innermost first; their numbers by default.
      sort: the largest |elasticity| first.

    Returns:
      Elasticities; 0/1 switches, infinities and zeros stand in `left_out`.

    Raises:
      InputError: unknown output, an output of zero, a batch of cases, or the wrong number of level names.
    """
    leaves = (system, model, plan, coefficients)
    _check(leaves, output, system.network.n_levels, level_names)
    leaves = jax.tree.map(lambda x: np.asarray(x, dtype=np.float64), leaves)
    values, found = _compiled()(_both_sides(leaves), list(OUTPUTS).index(output), sharpness)
    if not np.all(np.asarray(values) > 0.0):
        at = float(np.median(values))
        raise InputError(f"{output} is {at:g} here, and only a positive output has elasticities; is a price or a size missing?")
    inputs, below, above = (_named(x, level_names) for x in (leaves, *_own(found)))
    dense, sharded = float(model.n_experts) <= 1.0, float(plan.zero) > 0.0
    entries, left_out = [], []
    for name, at in inputs.items():
        reason = _reason(name, at, dense, sharded)
        if reason is not None:
            left_out.append(LeftOut(name=name, reason=reason))
            continue
        sides = below[name], above[name]
        entries.append(
            Elasticity(
                name=name, group=GROUPS[name.split(".")[0]], kind=_kind(name), at=at, value=0.5 * sum(sides), below=sides[0], above=sides[1]
            )
        )
    if sort:
        entries.sort(key=lambda e: -abs(e.value))
    return Elasticities(output=output, at=float(np.median(values)), entries=tuple(entries), left_out=tuple(left_out))
