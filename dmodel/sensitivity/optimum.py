"""Local optima of a relaxed program, piece by piece, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dmodel.errors import InputError
from dmodel.sensitivity.gradient import along, evaluate
from dmodel.sensitivity.outputs import OUTPUTS
from dmodel.sensitivity.relaxed import MARGIN, WIDEST, Program, n_devices

OUTPUT_PAIR = np.array([list(OUTPUTS).index("step_time"), list(OUTPUTS).index("memory")])


class Look(NamedTuple):
    """ln of step time and memory at points, `[case]`, and their slopes by all inputs `[n, case]`
    and by the unknowns `[unknown, case]`."""

    x: np.ndarray
    time: np.ndarray
    memory: np.ndarray
    time_slopes: np.ndarray
    memory_slopes: np.ndarray
    time_by_u: np.ndarray
    memory_by_u: np.ndarray


def look(p: Program, u: np.ndarray, x: np.ndarray) -> Look:
    """Evaluate points `[unknown, case]` for inputs x `[n]`."""
    cases = p.cases(u, x)
    k = u.shape[1]
    values, slopes = evaluate(
        p.known, np.concatenate([cases, cases], 1), np.repeat(OUTPUT_PAIR, k), p.sharpness
    )
    time, memory = slopes[:, :k], slopes[:, k:]
    return Look(
        x=cases,
        time=np.log(values[:k]),
        memory=np.log(values[k:]),
        time_slopes=time,
        memory_slopes=memory,
        time_by_u=p.by_unknowns(cases, time),
        memory_by_u=p.by_unknowns(cases, memory),
    )


class Here(NamedTuple):
    """ln of step time and memory at a point, and their slopes by the unknowns `[unknown]`."""

    time: float
    memory: float
    time_by_u: np.ndarray
    memory_by_u: np.ndarray


def _looks(p: Program, x: np.ndarray) -> Callable[[np.ndarray], Here]:
    """What is at a point `[unknown]`, for inputs x `[n]`; `look` has slopes by those as well."""
    moving = [*p.places, *([] if p.follows is None else [p.shard])]
    of = along(p.known, x, moving, p.sharpness)

    def at(u: np.ndarray) -> Here:
        cases = p.cases(u[:, None], x)
        found = of(cases[moving, 0])

        def by_unknowns(slopes: np.ndarray) -> np.ndarray:
            every = np.zeros_like(cases)
            every[moving, 0] = slopes
            return p.by_unknowns(cases, every)[:, 0]

        return Here(
            time=float(np.log(found.time)),
            memory=float(np.log(found.memory)),
            time_by_u=by_unknowns(found.time_slopes),
            memory_by_u=by_unknowns(found.memory_slopes),
        )

    return at


class Solved(NamedTuple):
    """A local optimum: unknowns, ln T, the sides of the kinks (±1) on which its piece lies, and the
    largest violation of a limit."""

    u: np.ndarray
    value: float
    sides: np.ndarray
    violation: float


def solve(p: Program, x: np.ndarray, devices: float, u: np.ndarray, sides: np.ndarray) -> Solved:
    """Sequential quadratic programming on one smooth piece, from u."""
    from scipy.optimize import minimize

    logs, ask = p.logs(x, devices), _looks(p, x)
    capacity = logs[p.known.index("chip.hbm_bytes")] + np.log(p.room)
    a, b = _straight(p, logs, sides)
    seen: dict[bytes, Here] = {}

    def at(u: np.ndarray) -> Here:
        key = u.tobytes()
        if key not in seen:
            seen.clear()
            seen[key] = ask(u)
        return seen[key]

    def slack(u: np.ndarray) -> np.ndarray:
        return np.append(a @ u + b - MARGIN, capacity - at(u).memory)

    found = minimize(
        lambda u: (at(u).time, at(u).time_by_u),
        u,
        jac=True,
        method="SLSQP",
        constraints=[
            {
                "type": "eq",
                "fun": lambda u: np.array([p.total.at(u, logs)]),
                "jac": lambda u: p.total.slope[None],
            },
            {
                "type": "ineq",
                "fun": slack,
                "jac": lambda u: np.vstack([a, -at(u).memory_by_u]),
            },
        ],
        # a line search may otherwise try degrees below 1, of which the model says nothing, or that
        # no number holds
        bounds=[(0.0, WIDEST) if logarithmic else (-0.1, 1.1) for logarithmic in p.logarithmic],
        options={"maxiter": 60, "ftol": 1e-13},
    )
    if not np.all(np.isfinite(found.x)):
        return Solved(u, np.inf, sides, np.inf)
    violation = max(float(np.maximum(-slack(found.x), 0.0).max()), abs(p.total.at(found.x, logs)))
    return Solved(found.x, at(found.x).time, sides, violation)


def _straight(p: Program, logs: np.ndarray, sides: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes `[form, unknown]` and constants `[form]` of limits and kinks, as what is to be ≥ 0."""
    signed = [(-1.0, f) for f in p.limits] + [*zip(sides, p.kinks, strict=True)]
    slopes = np.stack([sign * f.slope for sign, f in signed])
    nowhere = np.zeros(slopes.shape[1])
    return slopes, np.array([sign * f.at(nowhere, logs) for sign, f in signed])


def sides_of(p: Program, u: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Side of every kink on which a point lies."""
    return np.array([1.0 if f.at(u, logs) > 0.0 else -1.0 for f in p.kinks])


TOLERANCE = 1e-6
"""Largest violation of a limit of what counts as solved, logarithmic."""


Attempt = Callable[[np.ndarray, np.ndarray], Solved]
"""From a start and the sides of all kinks to a local optimum."""


def optimum(p: Program, *, starts: int = 6, seed: int = 0) -> Solved:
    """The best of some local optima near the case's plan; the pieces beside its active kinks are
    tried too.

    Raises:
      InputError: no start ends at a plan that fits.
    """
    random, devices = np.random.default_rng(seed), n_devices(p.known)
    logs, here = p.logs(p.known.values, devices), p.start()
    points = [here + 0.15 * random.standard_normal(len(here)) for _ in range(starts)]
    attempt = _attempts(p, devices)
    found = [
        attempt(np.where(p.logarithmic, u, np.clip(u, 0.01, 0.99)), sides_of(p, u, logs))
        for u in points
    ]
    best = _best(found)
    if best is None:
        raise InputError(
            "re-optimised sensitivities: no plan with real-valued degrees near this one fits; "
            "is "
            "the memory too small?"
        )
    while True:
        better = _best([best, *_beside(p, best, logs, attempt)]) or best
        if better.value >= best.value - 1e-9:
            return best
        best = better


def _attempts(p: Program, devices: float) -> Attempt:
    """Solve from a start; once for each piece, by the sides of the kinks."""
    tried: dict[bytes, Solved] = {}

    def attempt(u: np.ndarray, sides: np.ndarray) -> Solved:
        if (key := sides.tobytes()) not in tried:
            tried[key] = solve(p, p.known.values, devices, u, sides)
        return tried[key]

    return attempt


def _best(found: Sequence[Solved]) -> Solved | None:
    """The first of the least value among those that keep all limits."""
    return min((s for s in found if s.violation <= TOLERANCE), key=lambda s: s.value, default=None)


def _beside(p: Program, best: Solved, logs: np.ndarray, attempt: Attempt) -> Iterator[Solved]:
    """Optima of the pieces beyond each kink that a point is at."""
    for i, kink in enumerate(p.kinks):
        if abs(kink.at(best.u, logs)) < 3.0 * MARGIN:
            sides = best.sides.copy()
            sides[i] = -sides[i]
            yield attempt(best.u - 2.0 * MARGIN * best.sides[i] * kink.slope, sides)
