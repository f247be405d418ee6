"""Elasticities: by how many per cent an output changes when an input grows by one per cent.

One reverse-mode gradient gives them all, `∂ ln y / ∂ ln x = (x / y) ∂y/∂x`, for every number of the
system, the model, the plan and the coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmodel import struct
from dmodel.coefficients import Coefficients
from dmodel.errors import InputError
from dmodel.footprint import Footprint
from dmodel.records import Cluster, Model, Plan
from dmodel.sensitivity.case import Inputs, Point, group, inputs, kind, make_case, reason_without
from dmodel.sensitivity.goal import Goal
from dmodel.sensitivity.gradient import NUDGE, elasticities_of, evaluate
from dmodel.sensitivity.outputs import OF_THE_RUN, output_name
from dmodel.smooth import SHARPNESS


class Elasticity(struct.PyTreeNode, kw_only=True):
    """One elasticity.

    Attributes:
      name: of the input, such as `chip.flops_per_s` or `network.bytes_per_s[0]`.
      group: "hardware", "workload", "plan", "coefficient" or "run". kind: "rate", "time" or
        "other".
      at: the input's value, its own unit. value: ∂ ln output / ∂ ln input [1], at a kink the mean
        of `below` and `above`, its sides.
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
      output: its name. at: its value, its own unit. entries: in the order of the records, or
        sorted. left_out: inputs without one.
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

    @property
    def largest(self) -> list[Elasticity]:
        """The entries, the largest |elasticity| first."""
        return sorted(self.entries, key=lambda e: -abs(e.value))


KINK = 1e-5
"""Elasticities of the two sides of an input that differ by more mark a kink."""


def asked(known: Inputs, case: Point, output: str) -> tuple[list[int], list[LeftOut]]:
    """Places of the inputs that have an elasticity of an output, and those that have none, and
    why."""
    sharded = float(case.plan.layout.zero) > 0.0
    kept, left_out = [], []
    for i, (name, at) in enumerate(zip(known.names, known.values.tolist(), strict=True)):
        if (name.startswith("run.") and output not in OF_THE_RUN) or (
            name.startswith("footprint.") and output != "memory"
        ):
            continue
        reason = reason_without(name, at, sharded)
        if reason is None:
            kept.append(i)
        else:
            left_out.append(LeftOut(name=name, reason=reason))
    return kept, left_out


def scaled(known: Inputs, places: Sequence[int], factors: np.ndarray) -> np.ndarray:
    """Cases `[n, input · factor]`: every one of some inputs times every factor, all else as it
    is."""
    m, f = len(places), len(factors)
    x = np.repeat(known.values[:, None], m * f, 1)
    x[np.repeat(places, f), np.arange(m * f)] *= np.tile(factors, m)
    return x


def check_positive(values: np.ndarray, output: str) -> None:
    """Raise InputError where an output has no logarithm."""
    if np.all(values > 0.0):
        return
    if output in ("time_to_loss", "dollars"):
        raise InputError(
            "the loss asked for is below what this model reaches with any amount of data: "
            "expected more than E + A/N^α; ask for a higher "
            "loss or take a larger model"
        )
    raise InputError(
        f"{output} is {float(np.median(values)):g} here, and only a positive output has "
        "elasticities; is a price or a size missing?"
    )


def of_case(
    case: Point,
    output: str = "step_time",
    *,
    sharpness: float = SHARPNESS,
    level_names: Sequence[str] | None = None,
    sort: bool = False,
) -> Elasticities:
    """`elasticities` of a case that is made already."""
    output, known = output_name(output), inputs(case, level_names)
    places, left_out = asked(known, case, output)
    values, found = elasticities_of(
        known, scaled(known, places, np.array([1.0 - NUDGE, 1.0 + NUDGE])), output, sharpness
    )
    check_positive(values, output)
    own = found[np.repeat(places, 2), np.arange(2 * len(places))].reshape(-1, 2)
    entries = [
        Elasticity(
            name=known.names[i],
            group=group(known.names[i]),
            kind=kind(known.names[i]),
            at=float(known.values[i]),
            value=float(0.5 * (below + above)),
            below=float(below),
            above=float(above),
        )
        for i, (below, above) in zip(places, own, strict=True)
    ]
    if sort:
        entries.sort(key=lambda e: -abs(e.value))
    return Elasticities(
        output=output, at=float(np.median(values)), entries=tuple(entries), left_out=tuple(left_out)
    )


def elasticities(
    system: Cluster,
    model: Model,
    plan: Plan,
    coefficients: Coefficients,
    output: str = "step_time",
    *,
    footprint: Footprint | None = None,
    goal: Goal | None = None,
    sharpness: float = SHARPNESS,
    level_names: Sequence[str] | None = None,
    sort: bool = False,
) -> Elasticities:
    """Elasticities of an output to every input, at one plan.

    `∂ ln y / ∂ ln x` with all other inputs fixed. The degrees count as independent: `plan.tp` asks
    what more tensor parallelism does on as many more devices, with the same `dp`, `cp`, `pp`,
    `shard` and global batch. At a kink (a degree of 1, a domain that is just full) it
    is the mean of both sides; each is found a nudge off the kink, because automatic differentiation
    on top of several kinks at once takes
    a product of halves that is neither.

    Limits: of the step time, Σ rates − Σ times = −1, because it is homogeneous of degree 1 in
    seconds; to a compute-bound step the peak rate's elasticity tends to −1 and all others to 0.

    Args:
      system, model, plan, coefficients: one case (scalars; network `[K]`).
      output: one of `OUTPUTS` or `ALIASES`.
      footprint: what the stack holds in memory; None = the least. goal: of the run, for outputs
      beyond one step; None = `goal.usual`. sharpness: of the step's maxima.
      level_names: names of the network levels, innermost first; their numbers by default.
      sort: the largest |elasticity| first.

    Returns:
      Elasticities; 0/1 switches, infinities and zeros stand in `left_out`.

    Raises:
      InputError: unknown output, an output of zero, a batch of cases, or the wrong number of level
        names.
    """
    case = make_case(system, model, plan, coefficients, footprint, goal)
    return of_case(case, output, sharpness=sharpness, level_names=level_names, sort=sort)


def differences(
    case: Point,
    output: str,
    *,
    sharpness: float = SHARPNESS,
    level_names: Sequence[str] | None = None,
) -> dict[str, float]:
    """The same elasticities by central differences, extrapolated from two steps: what they are
    checked against.

    At a kink the error of a central difference falls only linearly, so the extrapolation is the
    linear one.
    """
    output, known = output_name(output), inputs(case, level_names)
    places, _ = asked(known, case, output)
    h = 1e-5
    values, _ = evaluate(
        known, scaled(known, places, np.exp([h, -h, 0.5 * h, -0.5 * h])), output, sharpness
    )
    far, near, minus_near = (lambda v: (v[:, 0] - v[:, 1], v[:, 2], v[:, 3]))(
        np.log(values).reshape(-1, 4)
    )
    slopes = 2.0 * (near - minus_near) / h - far / (2.0 * h)
    return dict(zip([known.names[i] for i in places], slopes.tolist(), strict=True))
