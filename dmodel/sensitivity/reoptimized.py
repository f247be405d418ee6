"""Elasticities of what the best plan achieves: the plan follows the inputs.

At an optimum of `min ln T(u, x)` under `g(u, x) ≤ 0`, the envelope theorem gives the step time's,
`d ln T*/d ln x = ∂ ln T/∂ ln x + λ · ∂g/∂ ln x`: only what the active limits cost is added. Other
outputs also feel how the plan moves; `du/d ln x` follows from differentiating the conditions of
Karush, Kuhn and Tucker on the active set (implicit functions; Fiacco 1983).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dmodel.records import Plan
from dmodel.sensitivity import relaxed
from dmodel.sensitivity.case import Point, rebuild
from dmodel.sensitivity.gradient import evaluate
from dmodel.sensitivity.local import asked, check_positive
from dmodel.sensitivity.optimum import TOLERANCE, Look, Solved, look, optimum, solve
from dmodel.sensitivity.outputs import output_name
from dmodel.sensitivity.relaxed import MARGIN, Program
from dmodel.smooth import SHARPNESS

STEP = 1e-4
"""Logarithmic step of the differences of exact gradients that stand for second derivatives along
the free directions."""

DEVICES = "devices"
"""Name of the device count among the inputs; the batch stays."""


class Active(NamedTuple):
    """A limit that holds with equality: what it is, its price ∂ ln T*/∂ slack, its slope by the
    unknowns and by the inputs."""

    name: str
    price: float
    slope: np.ndarray
    by_inputs: dict[int, float]


class Reoptimized(NamedTuple):
    """Sensitivities at the re-optimised continuous design.

    Attributes:
      output: name. value: of the output there, own unit. plan: with real-valued degrees.
        step_time_s: its step [s].
      elasticities: by input name and "devices"; inputs that the optimum chooses are not among them,
        nor the devices where they just fill
        a domain of the network: one more would cross to the next level.
      active: limits and kinks that hold with equality, with their price. residual: what is left of
        the slope of the Lagrangian [1].
      moves: by unknown, its change d ln u / d ln x by input (of `recompute_layers` the share
        itself).
      unique: whether prices and movements are determined: no more limits meet than there are
        unknowns, and the rest is strictly convex.
    """

    output: str
    value: float
    plan: Plan
    step_time_s: float
    elasticities: dict[str, float]
    active: tuple[Active, ...]
    residual: float
    moves: dict[str, dict[str, float]]
    unique: bool


Met = tuple[str, np.ndarray, dict[int, float]]
"""Name of a limit that is met, its slope in the unknowns, and in the inputs."""


def _active(p: Program, s: Solved, at: Look) -> tuple[list[Active], float]:
    """Limits met and their prices: non-negative least squares of the slopes of ln T."""
    from scipy.optimize import nnls

    logs = p.logs(p.known.values, relaxed.n_devices(p.known))
    met = [*_limits_met(p, s, logs), *_memory_met(p, at, logs)]
    columns = np.stack([p.total.slope, -p.total.slope, *(slope for _, slope, _ in met)], 1)
    prices, residual = nnls(columns, -at.time_by_u[:, 0])
    found = [Active(p.total.name, float(prices[0] - prices[1]), p.total.slope, p.total.inputs)]
    found += [
        Active(name, float(price), slope, by)
        for (name, slope, by), price in zip(met, prices[2:], strict=True)
        if price > 1e-7
    ]
    return found, float(residual)


def _limits_met(p: Program, s: Solved, logs: np.ndarray) -> list[Met]:
    """Limits and kinks that a point is at."""
    met: list[Met] = []
    for f in p.limits:
        if abs(f.at(s.u, logs)) < 3.0 * MARGIN:
            met.append((f.name, f.slope, f.inputs))
    for side, f in zip(s.sides, p.kinks, strict=True):
        if abs(f.at(s.u, logs)) < 3.0 * MARGIN:
            met.append((f.name, -side * f.slope, {i: -side * w for i, w in f.inputs.items()}))
    return met


def _memory_met(p: Program, at: Look, logs: np.ndarray) -> list[Met]:
    """The device's memory, where as much is needed as may be."""
    capacity = p.known.index("chip.hbm_bytes")
    if not abs(at.memory[0] - logs[capacity] - np.log(p.room)) < 3.0 * MARGIN:
        return []
    slopes = at.memory_slopes[:, 0] * np.where(np.isfinite(p.known.values), p.known.values, 0.0)
    moved = (*p.places, p.shard)
    weights = {i: float(w) for i, w in enumerate(slopes) if w != 0.0 and i not in moved}
    weights[capacity] = weights.get(capacity, 0.0) - 1.0
    return [("memory", at.memory_by_u[:, 0], weights)]


def _by_inputs(active: Sequence[Active], size: int) -> np.ndarray:
    """∂g/∂ ln x of the active limits, `[limit, size]`, the device count last."""
    rows = np.zeros((len(active), size))
    for row, limit in zip(rows, active, strict=True):
        for i, weight in limit.by_inputs.items():
            row[i] = weight
    return rows


def _elastic(x: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Elasticities `[n + 1, case]` of slopes `[n, case]`; the device count, last, enters through
    the limits alone."""
    finite = np.where(np.isfinite(x), x, 0.0)
    return np.vstack([slopes * finite, np.zeros((1, slopes.shape[1]))])


def _movements(
    p: Program, s: Solved, active: Sequence[Active], size: int
) -> tuple[np.ndarray, bool]:
    """du/d ln x `[unknown, size]` on the active set, and whether it is unique.

    The limits fix the part across them; along their null space N, `Nᵀ H N w + Nᵀ (H P + ∂²L/∂u∂ ln
    x) = 0`. Second derivatives are differences along N only, which stays on the piece.
    """
    a, c = np.stack([limit.slope for limit in active]), _by_inputs(active, size)
    across = -np.linalg.pinv(a) @ c
    _, singular, basis = np.linalg.svd(a)
    rank = int((singular > 1e-9).sum())
    free = basis[rank:].T
    unique = rank == len(active)
    if not free.shape[1]:
        return across, unique
    k = free.shape[1]
    u = np.concatenate([s.u[:, None] + STEP * free, s.u[:, None] - STEP * free], 1)
    at = look(p, u, p.known.values)
    price = sum(limit.price for limit in active if limit.name == "memory")
    by_u = at.time_by_u + price * at.memory_by_u
    by_x = _elastic(at.x, at.time_slopes + price * at.memory_slopes)
    curved = ((by_u[:, :k] - by_u[:, k:]) / (2.0 * STEP)).T
    mixed = ((by_x[:, :k] - by_x[:, k:]) / (2.0 * STEP)).T
    reduced = curved @ free
    reduced = 0.5 * (reduced + reduced.T)
    convex = bool(np.linalg.eigvalsh(reduced).min() > 1e-9)
    along = -np.linalg.pinv(reduced) @ (mixed + curved @ across)
    return across + free @ along, unique and convex


class _Near(NamedTuple):
    """The fastest plan near a case.

    Attributes:
      p, at: its program, and the model there. active: limits met. residual: of their prices. plan:
        in words. moves: of the unknowns with the inputs. unique: whether these are decided.
    """

    p: Program
    at: Look
    active: list[Active]
    residual: float
    plan: Plan
    moves: np.ndarray
    unique: bool

    @property
    def size(self) -> int:
        """Inputs, and the count of devices."""
        return len(self.p.known.values) + 1


def reoptimized(
    case: Point,
    outputs: Sequence[str] = ("step_time",),
    *,
    memory: float = 1.0,
    sharpness: float = SHARPNESS,
    level_names: Sequence[str] | None = None,
    seed: int = 0,
) -> dict[str, Reoptimized]:
    """Elasticities of outputs at the fastest plan with real-valued degrees near the case's, by
    output.

    Limits: those at the fixed plan where every unknown is held by limits that do not depend on the
    input.

    Args:
      outputs: names of outputs, read at the plan with the shortest step. memory: share of a
        device's memory that the plan may need [1]. seed: of the starts.

    Raises:
      InputError: unknown output, one device, or nothing that fits.
    """
    names = [output_name(o) for o in outputs]
    p = relaxed.program(case, sharpness=sharpness, level_names=level_names)
    p = p._replace(room=memory)
    s = optimum(p, seed=seed)
    at = look(p, s.u[:, None], p.known.values)
    active, residual = _active(p, s, at)
    moves, unique = _movements(p, s, active, len(p.known.values) + 1)
    plan = rebuild(at.x[:, 0], p.known.tree, p.known.levels).plan
    near = _Near(p, at, active, residual, plan, moves, unique)
    return {name: _of_output(near, case, name, sharpness) for name in names}


def _of_output(near: _Near, case: Point, name: str, sharpness: float) -> Reoptimized:
    """Elasticities of one output."""
    p, at, moves = near.p, near.at, near.moves
    values, total = _elasticities(near, name, sharpness)
    labels, kept = [*p.known.names, DEVICES], _kept(near, case, name)
    return Reoptimized(
        output=name,
        value=float(values[0]),
        plan=near.plan,
        step_time_s=float(np.exp(at.time[0])),
        elasticities={labels[i]: float(total[i]) for i in kept},
        active=tuple(near.active),
        residual=near.residual,
        moves={
            u: {labels[i]: float(row[i]) for i in kept}
            for u, row in zip(p.free, moves, strict=True)
        },
        unique=near.unique,
    )


def _elasticities(near: _Near, name: str, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """An output, and its elasticities by inputs, with what the plan adds by moving."""
    p, at = near.p, near.at
    values, slopes = evaluate(p.known, at.x, name, sharpness)
    check_positive(values, name)
    total = _elastic(at.x, slopes)[:, 0]
    if name == "step_time":
        prices = np.array([limit.price for limit in near.active])
        return values, total + prices @ _by_inputs(near.active, near.size)
    return values, total + p.by_unknowns(at.x, slopes)[:, 0] @ near.moves


def _kept(near: _Near, case: Point, name: str) -> list[int]:
    """Inputs that are asked about: none of the plan's own; devices where these do not fill a
    domain."""
    kept, _ = asked(near.p.known, case, name)
    kept = [i for i in kept if i not in (*near.p.places, near.p.shard)]
    return kept if relaxed.fills_domain(near.p) else [*kept, near.size - 1]


def resolved(
    case: Point,
    names: Sequence[str],
    output: str = "step_time",
    *,
    step: float = 1e-3,
    memory: float = 1.0,
    sharpness: float = SHARPNESS,
    level_names: Sequence[str] | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """The same elasticities by solving again on both sides of an input: what they are checked
    against.

    Args:
      names: of inputs, or "devices". step: logarithmic, to either side. memory: as of
        `reoptimized`.
    """
    p = relaxed.program(case, sharpness=sharpness, level_names=level_names)
    p = p._replace(room=memory)
    s, devices = optimum(p, seed=seed), relaxed.n_devices(p.known)
    found = {}
    for name in names:
        logs = []
        for h in (step, -step):
            x, n = p.known.values.copy(), devices
            if name == DEVICES:
                n *= np.exp(h)
            else:
                x[p.known.index(name)] *= np.exp(h)
            again = solve(p, x, n, s.u, s.sides)
            value, _ = evaluate(
                p.known, p.cases(again.u[:, None], x), output_name(output), sharpness
            )
            logs.append(float(np.log(value[0])) if again.violation <= TOLERANCE else np.nan)
        found[name] = (logs[0] - logs[1]) / (2.0 * step)
    return found
