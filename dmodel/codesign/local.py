"""Exact local optimum of all continuous sizes while the plan is held: sequential quadratic
programming, with its multipliers.

Held are the degrees (dp follows the devices), micro-batch, interleaving, recomputation and ZeRO;
free are the sizes that the problem frees. The subproblem is solved by its dual, a non-negative
least-squares problem (Lawson & Hanson 1974, ch. 23); Hessians by damped BFGS (Powell 1978); steps
by the l1 merit function (Han 1977).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.codesign.limits import Goal, excess, merit
from dmodel.codesign.outcome import NAMES, Outcome, World, outcome_of, unordered
from dmodel.codesign.relax import aggregated, named
from dmodel.codesign.unknowns import Unknowns
from dmodel.once import together
from dmodel.recorded import Recorded
from dmodel.records import Plan
from dmodel.smooth import SHARPNESS
from dmodel.stages import ENDS

ITERATIONS, LONGEST = 80, 0.5
"""Of the quadratic programming, and the longest step in the logarithm of a size."""

STRUCTURE = ("micro-batches", "stages", "full pipeline")
"""Limits beside those of the goal: at least one micro-batch, one layer (or embedding, or head) for
each chunk of a stage, and as many micro-batches as stages: fewer leave stages idle, and step time
has a kink there, which this keeps on one side."""

FULL = 1.0 + 1e-6
"""Where the pipeline counts as full: a hair off the kink, so that slopes are those of its own side.
"""

LIMITS = (*NAMES, *STRUCTURE)

RIDGE = 1e-11

ROUNDING, IDLE = 1e-13, 4
"""Gains of merit that are rounding, and steps in a row that gain no more, after which a kink is
taken for the end: slopes there are those of neither side."""


class Local(NamedTuple):
    """An optimum of the continuous sizes.

    x: logarithms of all sizes `[name]`. merit. over: scaled excess of the limits `[limit]`.
    multipliers `[limit]`, ≥ 0; low, high: those of the bounds `[name]`. residual: largest violation
    of the conditions of optimality. slopes: of merit and excess by the sizes, `[1 + limit, name]`.
    outcome. evaluations of the model, a derivative by d sizes counted d times.
    """

    x: np.ndarray
    merit: float
    over: np.ndarray
    multipliers: np.ndarray
    low: np.ndarray
    high: np.ndarray
    residual: float
    slopes: np.ndarray
    outcome: Outcome
    evaluations: int


def held(plan: Plan, x: dict[str, jax.Array]) -> Plan:
    """The plan at other sizes: dp is what tp, cp and pp leave of the devices, the sharding group
    the same share of it."""
    layout = plan.layout
    dp = x["devices"] / (layout.tp * layout.cp * layout.pp)
    return plan.having(dp=dp, shard=1.0 + (dp - 1.0) * _share(plan), global_batch=x["global_batch"])


def _share(plan: Plan) -> jax.Array:
    """(shard − 1) / (dp − 1): 1 for all of dp, 0 for no sharding."""
    layout = plan.layout
    return jnp.where(
        layout.dp > 1.0,
        (layout.shard - 1.0) / jnp.maximum(layout.dp - 1.0, 1e-9),
        1.0,
    )


def judged(
    x: jax.Array, plan: Plan, world: World, at: Goal, names: tuple[str, ...], sharpness: float
) -> tuple[jax.Array, Outcome]:
    """`[1 + limit]`: merit, then scaled excess over `LIMITS`; and the outcome."""
    sizes = named(x, names)
    used = held(plan, sizes)
    found = aggregated(sizes, used, world, at, sharpness)
    once = used.layout.dp * used.layout.micro_batch / used.global_batch
    items = sizes["n_layers"] + jnp.where(jnp.asarray(used.layout.stage_excess) > 0.0, ENDS, 0.0)
    own = [once, used.layout.pp * used.layout.interleave / items, used.layout.pp * once * FULL]
    rows = jnp.concatenate([excess(found.quantities, at), jnp.log(jnp.stack(own))])
    return jnp.concatenate([merit(found.quantities, at)[None], rows]), found


def _recorded(
    plan: Plan,
    world: World,
    at: Goal,
    x: jax.Array,
    *,
    names: tuple[str, ...],
    sharpness: float,
) -> dict[str, Any]:
    """Rows of `judged`, their slopes by all sizes `[1 + limit, name]`, and the outcome."""

    def twice(x: jax.Array) -> tuple:
        with together():
            rows, found = judged(x, plan, world, at, names, sharpness)
        return rows, (rows, found)

    slopes, (rows, found) = jax.jacfwd(twice, has_aux=True)(x)
    outcome = {**vars(found), "quality": found.quality._asdict()}
    return {"rows": rows, "slopes": slopes, "outcome": outcome}


SLOPES = Recorded(_recorded)


def least_squares(q: np.ndarray, r: np.ndarray) -> np.ndarray:
    """min ½ λᵀ Q λ − λᵀ r over λ ≥ 0 for Q positive definite: active sets of Lawson & Hanson."""
    n = len(r)
    multipliers, active = np.zeros(n), np.zeros(n, bool)
    for _ in range(6 * n):
        slope = r - q @ multipliers
        slope[active] = -np.inf
        best = int(slope.argmax())
        if slope[best] <= 1e-12 * (1.0 + np.abs(r).max()):
            break
        active[best] = True
        while True:
            trial = np.zeros(n)
            trial[active] = np.linalg.solve(q[np.ix_(active, active)], r[active])
            if (trial[active] > 0.0).all():
                multipliers = trial
                break
            falling = active & (trial <= 0.0)
            share = multipliers[falling] / np.maximum(multipliers[falling] - trial[falling], 1e-300)
            multipliers = multipliers + share.min() * (trial - multipliers)
            active &= multipliers > 1e-300
            active[falling & (multipliers <= 1e-15)] = False
            if not active.any():
                break
    return multipliers


class _Point(NamedTuple):
    """f, g (limits and bounds, finite ones), their slopes, all rows and slopes of the model, and
    the outcome."""

    f: float
    g: np.ndarray
    df: np.ndarray
    dg: np.ndarray
    slopes: np.ndarray
    over: np.ndarray
    outcome: Outcome


class _Problem:
    """The model at a held plan as a function of the free sizes, with bounds as limits; counts what
    it evaluates."""

    def __init__(
        self,
        start: np.ndarray,
        plan: Plan,
        unknowns: Unknowns,
        world: World,
        at: Goal,
        sharpness: float,
    ):
        # 1F1B is interleaving with one chunk: one record for both, and for layers in any order
        same = plan.having(
            schedule="interleaved" if plan.layout.schedule == "1f1b" else plan.layout.schedule
        )
        self.judge = SLOPES.varied(
            same, unordered(world), at, like=start, names=unknowns.names, sharpness=sharpness
        )
        self.free, self.start, self.evaluations = unknowns.free, start.copy(), 0
        self.low, self.high = unknowns.low[self.free], unknowns.high[self.free]
        self.samples = int(np.shape(jax.tree.leaves(world.coefficients)[0])[0])
        self.kept = np.concatenate([np.asarray(at.limit) < 1e299, np.ones(len(STRUCTURE), bool)])

    def whole(self, x: np.ndarray) -> np.ndarray:
        """All sizes of free ones."""
        full = self.start.copy()
        full[self.free] = x
        return full

    def __call__(self, x: np.ndarray) -> _Point:
        found = self.judge(self.whole(x))
        self.evaluations += (1 + int(self.free.sum())) * self.samples
        rows, slopes = found["rows"], found["slopes"]
        own = np.eye(len(x))
        over = rows[1:]
        return _Point(
            f=float(rows[0]),
            g=np.concatenate([over[self.kept], self.low - x, x - self.high]),
            df=slopes[0, self.free],
            dg=np.concatenate([slopes[1:][self.kept][:, self.free], -own, own]),
            slopes=slopes,
            over=over,
            outcome=outcome_of(found["outcome"]),
        )


def _direction(h: np.ndarray, at: _Point) -> tuple[np.ndarray, np.ndarray]:
    """Step and multipliers of the quadratic subproblem; a ridge lets it violate limits that
    contradict each other."""
    inverse = np.linalg.inv(h)
    q = at.dg @ inverse @ at.dg.T
    q[np.diag_indices_from(q)] += RIDGE * (1.0 + np.trace(q) / len(q))
    multipliers = least_squares(q, at.g - at.dg @ inverse @ at.df)
    return -inverse @ (at.df + at.dg.T @ multipliers), multipliers


def _line_search(
    problem: _Problem, x: np.ndarray, step: np.ndarray, at: _Point, weight: float
) -> tuple[np.ndarray, _Point, float] | None:
    """A share of the step that lowers the l1 merit function enough, what is there, and by how much
    it is lower; None when no share does."""
    before = at.f + weight * np.maximum(at.g, 0.0).sum()
    slope = at.df @ step - weight * np.maximum(at.g, 0.0).sum()
    share = min(1.0, LONGEST / max(np.abs(step).max(), 1e-300))
    for _ in range(20):
        there = problem(x + share * step)
        after = there.f + weight * np.maximum(there.g, 0.0).sum()
        if np.isfinite(after) and after <= before + 1e-4 * share * min(slope, 0.0) + 1e-13:
            return x + share * step, there, before - after
        share *= 0.5
    return None


def _updated(h: np.ndarray, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Damped BFGS."""
    hs = h @ s
    shs, sy = s @ hs, s @ y
    if shs <= 1e-300:
        return h
    theta = 1.0 if sy >= 0.2 * shs else 0.8 * shs / (shs - sy)
    r = theta * y + (1.0 - theta) * hs
    return h - np.outer(hs, hs) / shs + np.outer(r, r) / (s @ r)


def solve(
    start: np.ndarray,
    plan: Plan,
    unknowns: Unknowns,
    world: World,
    at: Goal,
    *,
    sharpness: float = SHARPNESS,
    tolerance: float = 1e-9,
) -> Local:
    """Optimum of the free sizes near a start, the plan held.

    Args:
      start: logarithms of all sizes `[name]`. plan: scalars. unknowns: bounds; what is not free
        stays as in `start`.
      tolerance: of the conditions of optimality, in scaled merit per logarithm.
    """
    problem = _Problem(start, plan, unknowns, world, at, sharpness)
    x = np.clip(start[problem.free], problem.low, problem.high)
    h, here = np.eye(len(x)), problem(x)
    weight, multipliers, idle = 1.0, np.zeros(len(here.g)), 0
    for _ in range(ITERATIONS if len(x) else 0):
        step, multipliers = _direction(h, here)
        residual = max(
            np.abs(here.df + here.dg.T @ multipliers).max(), np.maximum(here.g, 0.0).max()
        )
        if residual < tolerance:
            break
        weight = max(weight, 2.0 * multipliers.max())
        found = _line_search(problem, x, step, here, weight)
        if found is None:
            if np.array_equal(h, np.eye(len(x))):
                break
            h = np.eye(len(x))
            continue
        moved, there, gain = found
        idle = idle + 1 if gain < ROUNDING else 0
        y = there.df - here.df + (there.dg - here.dg).T @ multipliers
        h, x, here = _updated(h, moved - x, y), moved, there
        if idle == IDLE:
            break
    return _result(problem, x, here, multipliers)


def _result(problem: _Problem, x: np.ndarray, here: _Point, multipliers: np.ndarray) -> Local:
    """The end of a search, with multipliers spread over all limits and bounds."""
    n_kept, d, names = int(problem.kept.sum()), len(x), len(problem.start)
    limits, low, high = np.zeros(len(LIMITS)), np.zeros(names), np.zeros(names)
    limits[problem.kept] = multipliers[:n_kept]
    low[problem.free], high[problem.free] = (
        multipliers[n_kept : n_kept + d],
        multipliers[n_kept + d :],
    )
    stationary = np.abs(here.df + here.dg.T @ multipliers).max(initial=0.0)
    return Local(
        x=problem.whole(x),
        merit=here.f,
        over=here.over,
        multipliers=limits,
        low=low,
        high=high,
        residual=float(max(stationary, np.maximum(here.g, 0.0).max(initial=0.0))),
        slopes=here.slopes,
        outcome=here.outcome,
        evaluations=problem.evaluations,
    )
