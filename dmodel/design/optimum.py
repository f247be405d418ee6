"""The best plan for a system, a model, a device count and a batch: exact, by gradient, or both side by side with the gap between them."""

from __future__ import annotations

import numpy as np
from flax import struct

from dmodel.coefficients import Coefficients
from dmodel.design import relax as relaxation
from dmodel.design import search
from dmodel.design import space as spaces
from dmodel.design.certify import Certificate, certify
from dmodel.design.rounding import round_plans
from dmodel.design.search import Candidate, Problem, Ranking
from dmodel.design.space import Choices, Space
from dmodel.footprint import Footprint
from dmodel.hardware import System
from dmodel.plan import Plan
from dmodel.smooth import SHARPNESS
from dmodel.topology import check_devices
from dmodel.types import InputError
from dmodel.workload import Transformer

METHODS = ("exact", "gradient", "both")


class Binding(struct.PyTreeNode, kw_only=True):
    """The limit that decides: "memory" or "divisibility"; `amount` is what is missing, 0 when the limit only costs speed.

    Attributes:
      name, unit: of the limit. amount: missing, in the unit. message: the same in words, with what to do.
    """

    name: str = struct.field(pytree_node=False)
    unit: str = struct.field(pytree_node=False)
    amount: float
    message: str = struct.field(pytree_node=False)


class Design(struct.PyTreeNode, kw_only=True):
    """Answer of a design.

    Attributes:
      exact: the fastest plans that fit, best first; empty when none does or the method is "gradient".
      gradient: the plan found by gradient, rounding and polish, if it fits; None when it does not or the method is "exact".
      gap: of the gradient's plan to the exact optimum [1]; None unless both are there. certificate: with the lower bound, and in words.
      considered, feasible: valid plans evaluated by the exact search, and those that fit [count]; 0 when the method is "gradient".
      evaluated: plans that rounding and polish looked at [count]. relaxed_s: step time of the best relaxed plan, None without one [s].
      binding: the limit that decides, None when none does. closest: the plan that comes nearest to fitting, when none fits.
    """

    exact: tuple[Candidate, ...]
    gradient: Candidate | None
    gap: float | None
    certificate: Certificate
    considered: int
    feasible: int
    evaluated: int
    relaxed_s: float | None
    binding: Binding | None
    closest: Candidate | None

    @property
    def best(self) -> Candidate | None:
        """The fastest plan that was found to fit."""
        found = [*self.exact[:1], *([self.gradient] if self.gradient is not None else [])]
        return min(found, key=lambda x: float(x.step_time_s), default=None)


def problem(
    system: System,
    model: Transformer,
    n_devices: int,
    global_batch: int,
    coefficients: Coefficients,
    *,
    base: Plan | None = None,
    choices: Choices | None = None,
    footprint: Footprint | None = None,
    sharpness: float = SHARPNESS,
) -> Problem:
    """State the problem; InputError where its numbers make no sense.

    Args:
      n_devices: product of the degrees. global_batch: sequences per step.
      base: what all plans share: precision, flash, overlap switches, schedule, placement; its degrees are ignored.
      choices: what the search may vary besides the degrees and the micro-batch. footprint: what the stack holds in memory.
    """
    for name, value in (("devices", n_devices), ("global batch", global_batch)):
        if not (value >= 1 and value == int(value)):
            raise InputError(f"{name}: expected a whole number from 1 on; got {value!r}. Correct the argument.")
    check_devices(system.network, n_devices)
    sizes = np.cumprod(np.asarray(system.network.size, dtype=float))
    base = base if base is not None else Plan(dp=1.0, global_batch=1.0)
    space = Space(
        model=model,
        base=base,
        n_devices=int(n_devices),
        global_batch=int(global_batch),
        domains=tuple(int(s) for s in sizes if np.isfinite(s)),
        choices=choices if choices is not None else Choices(),
    )
    spaces.check(space)
    return Problem(space=space, system=system, coefficients=coefficients, footprint=footprint, sharpness=sharpness)


def _no_plan(space: Space) -> Binding:
    """Why there is no valid plan at all."""
    m, near = space.model, spaces.neighbouring_counts(space)
    rest = f"device counts that do, nearest first: {', '.join(map(str, near))}" if near else "change the device count or the global batch"
    text = (
        f"no valid plan: {space.n_devices} devices do not split into dp · tp · cp · pp with tp dividing {m.n_heads:g} heads, "
        f"pp {m.n_layers:g} layers, cp {m.seq_len:g} tokens and dp a global batch of {space.global_batch}; {rest}"
    )
    return Binding(name="divisibility", unit="device", amount=float(min((abs(n - space.n_devices) for n in near), default=0)), message=text)


def _memory_binding(found: Ranking, closest: Candidate | None, capacity: float, best: Candidate | None) -> Binding | None:
    """The memory limit where no plan fits, or where it costs speed."""
    if best is None and closest is not None:
        lacking = -float(closest.headroom_bytes)
        need = float(closest.memory.total)
        text = (
            f"no plan fits: memory binds; the plan that comes closest needs {need / 2**30:.1f} GiB of {capacity / 2**30:.1f} GiB "
            f"on a device, {lacking / 2**30:.1f} GiB too much; use more devices, devices with more memory or a smaller model"
        )
        return Binding(name="memory", unit="byte", amount=lacking, message=text)
    if best is not None and float(best.step_time_s) > found.fastest_s * (1.0 + 1e-9):
        text = f"memory binds: plans that do not fit would take from {found.fastest_s:.3g} s on, against {float(best.step_time_s):.3g} s"
        return Binding(name="memory", unit="byte", amount=0.0, message=text)
    return None


def _search_gradient(stated: Problem, n_starts: int, seed: int) -> tuple[Candidate | None, Candidate | None, int, float]:
    """The plan found by gradient if it fits, else the nearest to fitting; plans evaluated; step time of the best relaxed plan."""
    relaxed = relaxation.relax(stated, n_starts=n_starts, seed=seed)
    rounded = round_plans(stated, relaxed)
    found = None if rounded.row is None else search.candidates(stated, rounded.row)[0]
    fits, misses = (found, None) if rounded.fits else (None, found)
    return fits, misses, rounded.evaluated, float(np.asarray(relaxed.step_time_s)[0])


def design(
    system: System,
    model: Transformer,
    n_devices: int,
    global_batch: int,
    coefficients: Coefficients,
    *,
    method: str = "both",
    top: int = 5,
    base: Plan | None = None,
    choices: Choices | None = None,
    footprint: Footprint | None = None,
    sharpness: float = SHARPNESS,
    n_starts: int = 32,
    seed: int = 0,
    threads: int | None = None,
) -> Design:
    """Find the plan with the shortest step on a number of devices.

    "exact" evaluates every valid integer plan; "gradient" relaxes them, descends from many starts, rounds and polishes; "both" does the two
    and says how far the second is from the first. The same function judges all plans.

    Args:
      system, model, coefficients: scalars (network `[K]`). n_devices, global_batch: whole numbers [count], [sequence].
      method: one of `METHODS`. top: plans to keep of the exact search.
      base: settings that all plans share (precision, flash, overlap, placement, schedule). choices: what may vary.
      footprint: what the stack holds in memory; None = the least. sharpness: of the step's maxima.
      n_starts, seed: of the gradient search, per discrete arm. threads: of the sweep.

    Raises:
      InputError: unknown method, or numbers that are not whole and positive. That nothing fits is an answer, not an error.
    """
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}: expected one of {', '.join(METHODS)}")
    if top < 1:
        raise InputError(f"top: expected at least 1 plan to keep; got {top}")
    shared = {"base": base, "choices": choices, "footprint": footprint, "sharpness": sharpness}
    stated = problem(system, model, n_devices, global_batch, coefficients, **shared)  # type: ignore[arg-type]
    empty = not spaces.degrees(stated.space)
    nothing = Ranking(rows=np.empty((0, len(spaces.COLUMNS))), considered=0, feasible=0, closest=None, fastest_s=float("inf"))
    found = nothing if empty or method == "gradient" else search.exact(stated, top, threads=threads)
    exact = search.candidates(stated, found.rows)
    gradient, misses, evaluated, relaxed_s = None, None, 0, None
    if method != "exact" and not empty:
        gradient, misses, evaluated, relaxed_s = _search_gradient(stated, n_starts, seed)
    best = exact[0] if exact else gradient
    closest = misses
    if best is not None:
        closest = None
    elif found.closest is not None:
        closest = search.candidates(stated, found.closest)[0]
    certificate = certify(stated, exact[0] if exact else None, gradient, found.considered)
    return Design(
        exact=tuple(exact),
        gradient=gradient,
        gap=certificate.gap,
        certificate=certificate,
        considered=found.considered,
        feasible=found.feasible,
        evaluated=evaluated,
        relaxed_s=relaxed_s,
        binding=_no_plan(stated.space) if empty else _memory_binding(found, closest, float(system.chip.hbm_bytes), best),
        closest=closest,
    )
