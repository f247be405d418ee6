"""The best plan for a system, a model, a device count and a batch: exact with its proof; on request
by gradient, or both side by side with the gap between them."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np

from dmodel import struct
from dmodel.coefficients import Coefficients
from dmodel.design import remedy, search
from dmodel.design import space as spaces
from dmodel.design.candidate import Candidate, candidates
from dmodel.design.certify import Certificate, certify
from dmodel.design.choices import Choices
from dmodel.design.constraints import Limits
from dmodel.design.judge import OBJECTIVES, Problem, evaluate, merits, rank_key
from dmodel.design.remedy import Binding, Remedy
from dmodel.design.search import Progress, Ranking
from dmodel.design.space import Space
from dmodel.errors import InputError
from dmodel.footprint import Footprint
from dmodel.records import Cluster, Model, Plan
from dmodel.smooth import SHARPNESS
from dmodel.topology import check_devices
from dmodel.types import number

METHODS = ("exact", "gradient", "both")


class Design(struct.PyTreeNode, kw_only=True):
    """Answer of a design.

    Attributes:
      exact: the best plans that keep all limits, best first; empty when none does or the method is
        "gradient".
      gradient: the plan found by gradient, rounding and polish, if it keeps all limits; None when
      it does not or the method is "exact". front: the Pareto front of step time, memory and energy,
      fastest first, if asked for.
      gap: of the gradient's plan to the exact optimum [1]; None unless both are there. certificate:
      with the lower bound, and in words. considered: valid plans that the exact search decided
      [count]; checked: those evaluated one by one; feasible: those that keep all
        limits, None where groups of plans were left out by their bounds. All 0 when the method is
        "gradient".
      evaluated: plans that rounding and polish looked at [count]. relaxed: merit of the best
        relaxed plan, None without one.
      binding: the limit that decides, None when none does. closest: the plan that comes nearest to
      keeping the limits, when none does; remedies: then the nearest change of each kind that helps,
      tried out. eased, filled: as of `Ranking`. method: one of `METHODS`.
    """

    exact: tuple[Candidate, ...]
    gradient: Candidate | None
    front: tuple[Candidate, ...]
    gap: float | None
    certificate: Certificate
    considered: int
    checked: int
    feasible: int | None
    evaluated: int
    relaxed: float | None
    binding: Binding | None
    closest: Candidate | None
    remedies: tuple[Remedy, ...]
    eased: float | None = None
    filled: float | None = None
    objective: str = struct.field(pytree_node=False, default="time")
    method: str = struct.field(pytree_node=False, default="exact")

    @property
    def best(self) -> Candidate | None:
        """The best plan that was found to keep all limits."""
        if self.exact and (self.gradient is None or self.gap is None or self.gap >= 0.0):
            return self.exact[0]
        return self.gradient


def problem(
    system: Cluster,
    model: Model,
    n_devices: int,
    global_batch: int,
    coefficients: Coefficients,
    *,
    base: Plan | None = None,
    choices: Choices | None = None,
    limits: Limits | None = None,
    objective: str = "time",
    footprint: Footprint | None = None,
    sharpness: float = SHARPNESS,
) -> Problem:
    """State the problem; InputError where its numbers make no sense.

    Args:
      n_devices: product of the degrees. global_batch: sequences per step.
      base: what all plans share: kernels, overlap switches, bytes per parameter, placement; its
        degrees are ignored.
      choices: what the search may vary besides the degrees and the micro-batch. limits: besides the
        memory of a device.
      objective: one of `OBJECTIVES`. footprint: what the stack holds in memory.
    """
    _check_asked(n_devices, global_batch, objective)
    limits = limits if limits is not None else Limits()
    _check_limits(limits)
    check_devices(system.network, n_devices)
    sizes = np.cumprod(np.asarray(system.network.size, dtype=float))
    space = Space(
        model=model,
        base=base.alike() if base is not None else Plan.of(dp=1.0, global_batch=1.0),
        n_devices=int(n_devices),
        global_batch=int(global_batch),
        domains=tuple(int(s) for s in sizes if np.isfinite(s)),
        choices=choices if choices is not None else Choices(),
    )
    spaces.check(space)
    return Problem(
        space=space,
        system=system,
        coefficients=coefficients,
        footprint=footprint,
        limits=limits,
        objective=objective,
        sharpness=sharpness,
    )


def _check_asked(n_devices: int, global_batch: int, objective: str) -> None:
    """Refuse counts that are none, and unknown objectives."""
    for name, value in (("devices", n_devices), ("global batch", global_batch)):
        if not (number(value) >= 1.0 and number(value).is_integer()):
            raise InputError(
                f"{name}: expected a whole number from 1 on; got {value!r}. Correct the argument."
            )
    if objective not in OBJECTIVES:
        raise InputError(f"objective: expected one of {', '.join(OBJECTIVES)}; got {objective!r}")


def _is_limit(name: str, value: float) -> bool:
    """Whether a limit is above 0; of tokens, 0 says that none are known."""
    return value > 0.0 or (name == "tokens" and value == 0.0)


def _check_limits(limits: Limits) -> None:
    """Refuse limits that are no positive numbers, and limits of a run without its tokens."""
    for name, value in vars(limits).items():
        if not _is_limit(name, float(value)):
            raise InputError(
                f"limits: {name}: expected a number above 0, or infinity for no limit; got "
                f"{value!r}"
            )
    of_run = ("deadline_s", "dollars", "joules")
    given = [name for name in of_run if np.isfinite(float(getattr(limits, name)))]
    if given and not float(limits.tokens) > 0.0:
        raise InputError(
            f"limits: {', '.join(given)} of a run need its tokens; got {limits.tokens!r}. Give "
            "tokens."
        )


class Found(NamedTuple):
    """What a gradient search found: its row (None when the space is empty), whether it keeps all
    limits, its merit, plans looked at in rounding and polish, and the merit of the best relaxed
    plan."""

    row: np.ndarray | None
    fits: bool
    merit: float
    evaluated: int
    relaxed: float


def by_gradient(stated: Problem, *, n_starts: int = 32, seed: int = 0) -> Found:
    """Search by gradient from many starts, round to valid plans and polish.

    Args:
      n_starts: for each discrete arm. seed: of the starts; the answer is the same for the same
        seed.
    """
    from dmodel.design.relax import relax
    from dmodel.design.rounding import round_plans

    if not spaces.degrees(stated.space):
        return Found(row=None, fits=False, merit=float("inf"), evaluated=0, relaxed=float("inf"))
    relaxed = relax(stated, n_starts=n_starts, seed=seed)
    rounded = round_plans(stated, relaxed)
    assert rounded.row is not None
    merit = float(rank_key(merits(stated, evaluate(stated, rounded.row[None])))[0])
    return Found(
        rounded.row, rounded.fits, merit, rounded.evaluated, float(np.asarray(relaxed.merit)[0])
    )


def design(
    system: Cluster,
    model: Model,
    n_devices: int,
    global_batch: int,
    coefficients: Coefficients,
    *,
    method: str = "exact",
    top: int = 5,
    base: Plan | None = None,
    choices: Choices | None = None,
    limits: Limits | None = None,
    objective: str = "time",
    footprint: Footprint | None = None,
    sharpness: float = SHARPNESS,
    n_starts: int = 32,
    seed: int = 0,
    pareto: bool = False,
    progress: Progress | None = None,
    threads: int | None = None,
    executor: Executor | None = None,
) -> Design:
    """Find the best plan on a number of devices.

    "exact" decides every valid integer plan; "gradient" relaxes them, descends from many starts,
    rounds and polishes; "both" does the two and says how far the second is from the first. The same
    function judges all plans.

    Args:
      system, model, coefficients: scalars (network `[K]`). n_devices, global_batch: whole numbers
        [count], [sequence].
      method: one of `METHODS`. top: plans to keep of the exact search.
      base: settings that all plans share (kernels, overlap, placement). choices: what may vary.
        limits: besides memory.
      objective: "time", "cost" or "energy" of a step. footprint: what the stack holds in memory;
        None = the least.
      sharpness: of the step's maxima. n_starts, seed: of the gradient search, per discrete arm.
      pareto: also the front, by evaluating all. progress: called with the plans decided and all
      there are. threads: of the sweep.
      executor: whose workers decide the plans of the exact search; None for this process.

    Raises:
      InputError: unknown method, or numbers that are not whole and positive. That nothing fits is
        an answer, not an error.
    """
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}: expected one of {', '.join(METHODS)}")
    if top < 1:
        raise InputError(f"top: expected at least 1 plan to keep; got {top}")
    stated = problem(
        system,
        model,
        n_devices,
        global_batch,
        coefficients,
        base=base,
        choices=choices,
        limits=limits,
        objective=objective,
        footprint=footprint,
        sharpness=sharpness,
    )
    if executor is not None and method == "gradient":
        raise InputError("executor: decides plans of the exact search; ask for it, or leave it out")
    if not spaces.degrees(stated.space):
        return _empty(stated, method)
    how = {"pareto": pareto, "progress": progress, "threads": threads, "executor": executor}
    found = None if method == "gradient" else search.exact(stated, top, **how)
    other = None if method == "exact" else by_gradient(stated, n_starts=n_starts, seed=seed)
    return _answer(stated, found, other, threads).replace(method=method)


def _answer(
    stated: Problem, found: Ranking | None, other: Found | None, threads: int | None
) -> Design:
    """The searches that were asked for as one answer."""
    exact = [] if found is None else candidates(stated, found.rows)
    merit, row = _by_gradient(other)
    certificate = certify(stated, found, merit, threads)
    closest = None if exact or row is not None else _closest(stated, found, other, threads)
    return Design(
        exact=tuple(exact),
        gradient=_first(stated, row),
        certificate=certificate,
        gap=certificate.gap,
        evaluated=0 if other is None else other.evaluated,
        relaxed=None if other is None else other.relaxed,
        binding=_binding(stated, found, closest),
        closest=_first(stated, closest),
        remedies=() if closest is None else remedy.remedies(stated, closest),
        objective=stated.objective,
        **_counted(stated, found),
    )


def _by_gradient(other: Found | None) -> tuple[float | None, np.ndarray | None]:
    """Merit and row of the plan found by gradient; None where it does not fit."""
    return (None, None) if other is None or not other.fits else (other.merit, other.row)


def _first(stated: Problem, row: np.ndarray | None) -> Candidate | None:
    """A row as a candidate."""
    return None if row is None else candidates(stated, row)[0]


def _counted(stated: Problem, found: Ranking | None) -> dict[str, Any]:
    """The front of an exact search, and how many plans it looked at."""
    if found is None:
        return {"front": (), "considered": 0, "checked": 0, "feasible": 0}
    return {
        "front": () if found.front is None else tuple(candidates(stated, found.front)),
        "considered": found.considered,
        "checked": found.evaluated,
        "feasible": found.feasible,
        "eased": found.eased,
        "filled": found.filled,
    }


def _binding(stated: Problem, found: Ranking | None, closest: np.ndarray | None) -> Binding | None:
    """The limit that decides, by what the exact search saw."""
    if found is None:
        return remedy.binding(stated, closest, None, None, None, False)
    best = float(found.merits[0]) if len(found.merits) else None
    return remedy.binding(stated, closest, best, found.beyond, found.unlimited, True)


def _closest(
    stated: Problem, found: Ranking | None, other: Found | None, threads: int | None
) -> np.ndarray:
    """The row that comes nearest to keeping all limits, when none does."""
    known = [None if found is None else found.closest, None if other is None else other.row]
    rows = [row for row in known if row is not None]
    if found is None or found.feasible is not None:
        return remedy.nearest(stated, rows)
    # bounds left out all groups: what would be best without the limits is near to keeping them
    free = search.exact(stated.replace(limits=Limits()), 1, threads=threads)
    return remedy.nearest(stated, [*rows, *free.rows])


def _empty(stated: Problem, method: str) -> Design:
    """The answer when no valid plan exists."""
    return Design(
        exact=(),
        gradient=None,
        front=(),
        gap=None,
        certificate=certify(stated, None, None),
        considered=0,
        checked=0,
        feasible=0,
        evaluated=0,
        relaxed=None,
        binding=remedy.no_plan(stated.space),
        closest=None,
        remedies=remedy.counts_instead(stated.space),
        objective=stated.objective,
        method=method,
    )
