"""The one function by which all searches judge plans: step time, memory and power of rows, in one
compiled program for all choices.

Schedule, placement and precision are names in a plan, and a compiled program knows one name only.
Here they are numbers beside the plan, so that one program holds them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dmodel import run, struct
from dmodel.breakdown import Breakdown
from dmodel.coefficients import NAMES, Coefficients
from dmodel.cost.memory import Memory, fullest, moments
from dmodel.cost.pipeline import in_flight, in_flight_last
from dmodel.design import rows as rows_
from dmodel.design.constraints import Limits, Use, uses, violation
from dmodel.design.few import by_numpy, takes_numpy
from dmodel.design.space import Space
from dmodel.footprint import LEAST, Footprint
from dmodel.once import together
from dmodel.placement import Ordered
from dmodel.recorded import Recorded
from dmodel.records import LEAVES, MIXED, Cluster, Mixed, Model, Plan
from dmodel.smooth import SHARPNESS
from dmodel.step import step_time
from dmodel.sweep import CHUNK, sweep
from dmodel.types import Array

Tree = Any


OBJECTIVES = ("time", "cost", "energy")

DRAWS = 96
"""Draws of the coefficients that one call of the compiled function knows [count]: more than the
points at which an interval is taken."""


class Problem(struct.PyTreeNode, kw_only=True):
    """What plans are judged by: the space, the system, the coefficients, the footprint of the stack
    (None = the least), the limits besides memory, the objective (one of `OBJECTIVES`, of one step)
    and the sharpness of the step's maxima."""

    space: Space
    system: Cluster
    coefficients: Coefficients
    footprint: Footprint | None = None
    limits: Limits = Limits()
    objective: str = struct.field(pytree_node=False, default="time")
    sharpness: float = struct.field(pytree_node=False, default=SHARPNESS)


class Draft(Ordered, Mixed, kw_only=True):
    """A layout whose placement and schedule are numbers."""


OF_DRAFT = frozenset((*LEAVES, *Draft.__dataclass_fields__, *MIXED))
"""Flat names of the numbers of a draft."""


def drawn(plan: Plan) -> Draft:
    """The layout of a plan that `as_draft` made."""
    return plan.layout  # type: ignore[return-value]


def as_draft(base: Plan, leaves: Mapping[str, Array]) -> Plan:
    """A plan with these leaves, of flat names, whose layout is a `Draft`."""
    laid = {n: x for n, x in leaves.items() if n in Draft.__dataclass_fields__}
    mix = {n: leaves[n] for n in MIXED}
    others = {n: x for n, x in leaves.items() if n not in laid and n not in mix}
    layout = Draft(**{**vars(base.layout), **laid, "mix": mix})
    return base.replace(layout=layout).having(**others)


def draft_memory(model: Model, draft: Plan, footprint: Footprint = LEAST) -> Memory:
    """The fullest of `draft_moments`."""
    return fullest(draft_moments(model, draft, footprint))


def draft_moments(model: Model, draft: Plan, footprint: Footprint = LEAST) -> dict[str, Memory]:
    """Memory of the plan at every moment, with the micro-batches in flight of its schedule."""
    return moments(model, draft, in_flight(draft), in_flight_last(draft), footprint)


class Evaluation(struct.PyTreeNode, kw_only=True):
    """What the model says of plans, `[n]`: seconds by cause, bytes by purpose, power of all devices
    with hosts and cooling [W]."""

    breakdown: Breakdown
    memory: Memory
    facility_watts: Array
    step_time_s: Array
    memory_bytes: Array

    @property
    def joules(self) -> Array:
        """Energy of one step, hosts and cooling with it [J]."""
        return self.facility_watts * self.step_time_s


class Judged(NamedTuple):
    """What ranks plans, `[n]`: step time [s], bytes of the fullest device, and power of all devices
    with hosts and cooling [W]."""

    step_time_s: np.ndarray
    memory_bytes: np.ndarray
    facility_watts: np.ndarray

    @property
    def joules(self) -> np.ndarray:
        """Energy of one step, hosts and cooling with it [J]."""
        return self.facility_watts * self.step_time_s


def drafted(batch: dict[str, Array], fixed: Tree) -> tuple[Cluster, Plan]:
    """The system at the row's precision, and the row as a draft."""
    chip = fixed["system"].chip.replace(flops_per_s=batch["flops_per_s"])
    own = {n: x for n, x in batch.items() if n in OF_DRAFT}
    plan = as_draft(fixed["base"], {"global_batch": fixed["global_batch"], **own})
    return fixed["system"].replace(chip=chip), plan


def _evaluated(
    batch: dict[str, Array], fixed: Tree, coefficients: Coefficients, sharpness: float
) -> Evaluation:
    """What the model says of rows, `[n]`; coefficients of all of them or of each, `[n]`."""
    system, draft = drafted(batch, fixed)
    with together():
        found = step_time(system, fixed["model"], draft, coefficients, sharpness=sharpness)
        used = draft_memory(fixed["model"], draft, fixed["footprint"])
        watts = run.facility_watts(system, draft, found, coefficients)
    return Evaluation(
        breakdown=found,
        memory=used,
        facility_watts=watts,
        step_time_s=found.total,
        memory_bytes=used.total,
    )


@lru_cache(maxsize=16)
def _judge(sharpness: float):
    """The case function, one object for each sharpness, so that it is compiled once."""

    def judge(batch: dict[str, Array], fixed: Tree) -> Evaluation:
        batch = dict(batch)
        drawn_at = jnp.asarray(batch.pop("draw"))[0].astype(int)
        column = lax.dynamic_index_in_dim(fixed["draws"], drawn_at, 1, keepdims=False)
        coefficients = Coefficients(**dict(zip(NAMES, column, strict=True)))
        return _evaluated(batch, fixed, coefficients, sharpness)

    return judge


def _listed(
    fixed: Tree, each: tuple[dict[str, Array], Coefficients], *, sharpness: float
) -> dict[str, Any]:
    """`_evaluated` of rows and their coefficients, as nested dictionaries."""
    found = _evaluated(each[0], fixed, each[1], sharpness)
    parts = {name: vars(getattr(found, name)) for name in ("breakdown", "memory")}
    return {**vars(found), **parts}


LISTED = Recorded(_listed, any_rows=True, of_last=True)


def _held(fixed: Tree, batch: dict[str, Array]) -> dict[str, Array]:
    """Memory of rows [byte]."""
    _, draft = drafted(batch, fixed)
    with together():
        return {"total": draft_memory(fixed["model"], draft, fixed["footprint"]).total}


HELD = Recorded(_held, any_rows=True, of_last=True)


def shared(problem: Problem) -> dict[str, Tree]:
    """What all rows of a problem share, as the compiled functions take it: only numbers, whatever
    the space."""
    return {
        "system": problem.system,
        "model": problem.space.model,
        "coefficients": problem.coefficients,
        "footprint": LEAST if problem.footprint is None else problem.footprint,
        "base": problem.space.base.having(schedule="1f1b", placement=()),
        "global_batch": float(problem.space.global_batch),
    }


def evaluate(
    problem: Problem,
    rows: np.ndarray,
    *,
    chunk: int = 1024,
    threads: int | None = None,
    quick: bool = False,
) -> Evaluation:
    """Evaluate rows of the space, `[n, columns]`: few of them by numpy, which needs no program.

    Args:
      chunk, threads, quick: of the program (`dmodel.sweep.sweep`).
    """
    batch = rows_.numbers(problem.space, problem.system, rows)
    if _takes_numpy(problem, batch, len(rows)):
        return _by_numpy(problem, batch, _column(problem.coefficients), len(rows))
    return by_program(problem, batch, len(rows), chunk=chunk, threads=threads, quick=quick)


def memory_bytes(problem: Problem, rows: np.ndarray) -> np.ndarray:
    """What a device holds of rows of the space [byte], `[n]`: a tenth of the work of `evaluate`."""
    batch = rows_.numbers(problem.space, problem.system, rows)
    return by_numpy(HELD, batch, _fixed(problem), len(rows))["total"]


def _fixed(problem: Problem) -> dict[str, Tree]:
    """What all rows share, but for coefficients."""
    return {k: v for k, v in shared(problem).items() if k != "coefficients"}


def by_program(
    problem: Problem,
    batch: dict[str, np.ndarray],
    count: int,
    *,
    chunk: int,
    threads: int | None,
    quick: bool = False,
) -> Evaluation:
    """Evaluate so many rows as `rows.numbers` has them by the compiled program."""
    draws = np.repeat(_column(problem.coefficients)[:, None], DRAWS, 1)
    fixed = _with_draws(problem, draws)
    judge = _judge(problem.sharpness)
    batch = {**batch, "draw": np.zeros(count)}
    return sweep(judge, batch, fixed, chunk=chunk, threads=threads, quick=quick, once=True)


def _takes_numpy(problem: Problem, batch: dict[str, np.ndarray], count: int) -> bool:
    return takes_numpy(("judge", problem.sharpness), (batch, shared(problem)), count)


def _by_numpy(
    problem: Problem, batch: dict[str, np.ndarray], coefficients: np.ndarray, count: int
) -> Evaluation:
    """Evaluate rows, each under its own coefficients `[coefficient, n]`, or all under the same,
    `[coefficient]`."""
    columns = Coefficients(**dict(zip(NAMES, coefficients, strict=True)))
    found = by_numpy(LISTED, (batch, columns), _fixed(problem), count, sharpness=problem.sharpness)
    return Evaluation(
        **found
        | {"breakdown": Breakdown(**found["breakdown"]), "memory": Memory(**found["memory"])}
    )


def evaluate_draws(problem: Problem, rows: np.ndarray, drawn: Coefficients) -> Evaluation:
    """Evaluate rows under each of some draws of the coefficients, `[draw]`: leaves `[draw, n]`."""
    numbers = rows_.numbers(problem.space, problem.system, rows)
    return evaluate_draws_of(problem, numbers, len(rows), drawn)


def evaluate_draws_of(
    problem: Problem, numbers: dict[str, np.ndarray], n: int, drawn: Coefficients
) -> Evaluation:
    """`evaluate_draws` of n rows as `rows.numbers` has them."""
    count = len(np.asarray(getattr(drawn, NAMES[0])))
    if _takes_numpy(problem, numbers, n * count):
        each = np.stack([np.repeat(np.asarray(getattr(drawn, name)), n) for name in NAMES])
        batch = {name: np.tile(np.broadcast_to(x, n), count) for name, x in numbers.items()}
        found = _by_numpy(problem, batch, each, n * count)
        return jax.tree.map(lambda x: x.reshape(count, n), found)
    return _draws_compiled(problem, numbers, n, drawn)


def _draws_compiled(
    problem: Problem, numbers: dict[str, np.ndarray], n: int, drawn: Coefficients
) -> Evaluation:
    """`evaluate_draws` by the program of `evaluate`: a chunk of it holds rows of one draw."""
    count = len(np.asarray(getattr(drawn, NAMES[0])))
    whole = -(-n // CHUNK) * CHUNK
    last = np.minimum(np.arange(whole), n - 1)
    numbers = {name: np.broadcast_to(x, n)[last] for name, x in numbers.items()}
    found = []
    for start in range(0, count, DRAWS):
        at = np.minimum(np.arange(start, start + DRAWS), count - 1)
        draws = np.stack([np.asarray(getattr(drawn, name), float)[at] for name in NAMES])
        here = min(DRAWS, count - start)
        batch = {name: np.tile(x, here) for name, x in numbers.items()}
        batch["draw"] = np.repeat(np.arange(here, dtype=float), whole)
        fixed = _with_draws(problem, draws)
        found.append(sweep(_judge(problem.sharpness), batch, fixed, once=True))
    parts = [jax.tree.map(lambda x: x.reshape(-1, whole)[:, :n], each) for each in found]
    return jax.tree.map(lambda *xs: np.concatenate(xs), *parts)


def _with_draws(problem: Problem, draws: np.ndarray) -> dict[str, Tree]:
    """What all rows share, with draws of the coefficients `[coefficient, DRAWS]`."""
    return {**shared(problem), "coefficients": (), "draws": draws}


def _column(coefficients: Coefficients) -> np.ndarray:
    return np.asarray([float(getattr(coefficients, name)) for name in NAMES])


DIGITS = 10
"""Merits that agree to this many digits count as equal; the plainer plan then wins."""


def rank_key(merit: Array) -> np.ndarray:
    """Merits rounded to `DIGITS` significant digits, so that rounding errors do not order equal
    plans."""
    merit = np.asarray(merit)
    scale = 10.0 ** (np.floor(np.log10(merit)) - DIGITS + 1)
    return np.rint(merit / scale) * scale


def merits(problem: Problem, found: Evaluation | Judged) -> np.ndarray:
    """What the objective counts of each plan, the smaller the better: seconds, dollars or joules of
    a step."""
    if problem.objective == "energy":
        return np.asarray(found.joules)
    seconds = np.asarray(found.step_time_s)
    return (
        seconds * problem.space.n_devices * float(problem.system.chip.price_per_s)
        if problem.objective == "cost"
        else seconds
    )


def used(
    problem: Problem,
    rows: np.ndarray,
    step_time_s: Array,
    memory_bytes: Array,
    facility_watts: Array,
) -> tuple[Use, ...]:
    """What plans use of everything limited, `[n]`."""
    space = problem.space
    # only what a limit asks for: the degrees, whose product is known, and the batch
    plan = space.base.having(
        dp=space.n_devices / rows[:, rows_.INDEX["tp"]],
        tp=rows[:, rows_.INDEX["tp"]],
        global_batch=float(space.global_batch),
    )
    return uses(
        problem.limits, problem.system, space.model, plan, step_time_s, memory_bytes, facility_watts
    )


def excess(problem: Problem, rows: np.ndarray, found: Evaluation | Judged) -> np.ndarray:
    """Largest relative excess over a limit, `[n]`: ≤ 0 where a plan is feasible."""
    return violation(
        used(problem, rows, found.step_time_s, found.memory_bytes, found.facility_watts)
    )
