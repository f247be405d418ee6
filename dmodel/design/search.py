"""Exact search: every valid integer plan is evaluated; the fastest that fit are kept."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import jax
import numpy as np
from flax import struct

from dmodel import run
from dmodel.coefficients import Coefficients
from dmodel.cost.memory import Memory
from dmodel.design import space as spaces
from dmodel.design.space import Space
from dmodel.footprint import Footprint
from dmodel.hardware import System
from dmodel.plan import Plan
from dmodel.smooth import SHARPNESS
from dmodel.step import Breakdown, memory_use, step_time
from dmodel.sweep import sweep
from dmodel.types import Array

DIGITS = 10
"""Step times that agree to this many digits count as equal; the plainer plan, first in the space's order, then wins."""


class Problem(struct.PyTreeNode, kw_only=True):
    """What plans are judged by: the space, the system, the coefficients, the footprint of the stack (None = the least), and the sharpness
    of the step's maxima."""

    space: Space
    system: System
    coefficients: Coefficients
    footprint: Footprint | None = None
    sharpness: float = struct.field(pytree_node=False, default=SHARPNESS)


class Evaluation(struct.PyTreeNode, kw_only=True):
    """Breakdown [s], memory [byte] and signed headroom [byte] of plans, `[n]`."""

    breakdown: Breakdown
    memory: Memory
    step_time_s: Array
    headroom_bytes: Array


class Candidate(struct.PyTreeNode, kw_only=True):
    """One plan and what the model says of it (scalars).

    Attributes:
      plan: the plan. breakdown: seconds by cause; `breakdown.total` is the step time [s]. memory: bytes of the fullest device by purpose.
      headroom_bytes: device memory less `memory.total`; negative = does not fit [byte]. mfu: by convention `run.CONVENTION` [1].
      tokens_per_s: all devices [token/s].
    """

    plan: Plan
    breakdown: Breakdown
    memory: Memory
    headroom_bytes: Array
    mfu: Array
    tokens_per_s: Array

    @property
    def step_time_s(self) -> Array:
        """Step time [s]."""
        return self.breakdown.total


class Ranking(struct.PyTreeNode, kw_only=True):
    """Result of looking at many plans.

    Attributes:
      rows: the fastest that fit, best first. considered, feasible: how many were looked at, and fitted [count].
      closest: the row with the most headroom, None when the space is empty.
      fastest_s: shortest step time whatever the memory [s].
    """

    rows: np.ndarray
    considered: int
    feasible: int
    closest: np.ndarray | None
    fastest_s: float


@lru_cache(maxsize=16)
def _judge(sharpness: float):
    """The case function, one object for each sharpness, so that it is compiled once."""

    def judge(plan: Plan, fixed: dict) -> Evaluation:
        breakdown = step_time(fixed["system"], fixed["model"], plan, fixed["coefficients"], sharpness=sharpness)
        memory = memory_use(fixed["model"], plan, footprint=fixed["footprint"])
        headroom = fixed["system"].chip.hbm_bytes - memory.total
        return Evaluation(breakdown=breakdown, memory=memory, step_time_s=breakdown.total, headroom_bytes=headroom)

    return judge


def evaluate(problem: Problem, rows: np.ndarray, *, chunk: int = 1024, threads: int | None = None) -> Evaluation:
    """Evaluate rows of the space, `[n, columns]`: the one function by which exact search, polish and certificate judge."""
    fixed = {
        "system": problem.system,
        "model": problem.space.model,
        "coefficients": problem.coefficients,
        "footprint": problem.footprint,
    }
    return sweep(_judge(problem.sharpness), spaces.plans(problem.space, rows), fixed, chunk=chunk, threads=threads)


def rank_key(seconds: Array) -> np.ndarray:
    """Step times rounded to `DIGITS` significant digits, so that rounding errors do not order equal plans."""
    seconds = np.asarray(seconds)
    scale = 10.0 ** (np.floor(np.log10(seconds)) - DIGITS + 1)
    return np.rint(seconds / scale) * scale


def exact(problem: Problem, top: int = 5, *, chunk: int = 1024, threads: int | None = None, batches: Iterable | None = None) -> Ranking:
    """Evaluate all plans of the space and keep the fastest that fit.

    The answer does not depend on chunk, threads or batches: equal step times (to 10 digits) are ordered as the space orders its plans.

    Args:
      top: how many plans to keep. chunk, threads: of the sweep. batches: arrays of rows in the space's order; the whole space by default.
    """
    kept, times = np.empty((0, len(spaces.COLUMNS))), np.empty(0)
    considered = feasible = 0
    closest, most, fastest = None, -np.inf, np.inf
    for rows in spaces.batches(problem.space) if batches is None else batches:
        found = evaluate(problem, rows, chunk=chunk, threads=threads)
        headroom = np.asarray(found.headroom_bytes)
        seconds = rank_key(found.step_time_s)
        fits = headroom >= 0.0
        considered, feasible = considered + len(rows), feasible + int(fits.sum())
        fastest = min(fastest, float(seconds.min()))
        if headroom.max() > most:
            closest, most = rows[headroom.argmax()], headroom.max()
        kept, times = np.concatenate([kept, rows[fits]]), np.concatenate([times, seconds[fits]])
        order = np.argsort(times, kind="stable")[:top]
        kept, times = kept[order], times[order]
    return Ranking(rows=kept, considered=considered, feasible=feasible, closest=closest, fastest_s=fastest)


def candidates(problem: Problem, rows: np.ndarray) -> list[Candidate]:
    """Rows as candidates, evaluated by the same function as in the search."""
    rows = np.atleast_2d(rows)
    if not len(rows):
        return []
    found, many = evaluate(problem, rows), spaces.plans(problem.space, rows)
    system, model = problem.system, problem.space.model
    measures = {
        "mfu": run.mfu(system, model, many, found.breakdown),
        "tokens_per_s": run.tokens_per_s(model, many, found.breakdown),
    }

    def pick(i: int) -> Candidate:
        one = jax.tree.map(lambda x: np.asarray(x)[i] if np.ndim(x) else np.asarray(x), (many, found, measures))
        plan, seen, measured = one
        schedule = "1f1b" if plan.schedule == "interleaved" and plan.interleave == 1.0 else plan.schedule
        return Candidate(
            plan=plan.replace(schedule=schedule),
            breakdown=seen.breakdown,
            memory=seen.memory,
            headroom_bytes=seen.headroom_bytes,
            mfu=measured["mfu"],
            tokens_per_s=measured["tokens_per_s"],
        )

    return [pick(i) for i in range(len(rows))]
