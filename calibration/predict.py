"""Predict measured configurations: one compiled evaluation of all rows, each under the coefficients of its accelerator and stack."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import numpy as np

from calibration.traces import Cases
from dmodel.coefficients import Coefficients, from_unconstrained
from dmodel.cost.memory import out_of_memory_probability
from dmodel.footprint import Footprint, whole
from dmodel.hardware import System
from dmodel.plan import Plan
from dmodel.profiles import Profile, nearest
from dmodel.run import CONVENTION, mfu
from dmodel.smooth import SHARPNESS
from dmodel.step import Breakdown, memory_use, step_time
from dmodel.sweep import quick_to_compile
from dmodel.types import Array, enable_float64
from dmodel.workload import Transformer


class Predictions(NamedTuple):
    """What the model says of each row, numpy `[rows]`.

    Attributes:
      step_time_s: predicted step time [s]. breakdown: its terms [s]. memory_bytes, headroom_bytes: per device, of the one that the stack
        reports; headroom is negative when the plan does not fit. oom_probability: that the fullest device runs out of memory [1].
      mfu: model FLOP utilization by `convention`. profile: name of what predicted each row. reason: why.
    """

    step_time_s: np.ndarray
    breakdown: Breakdown
    memory_bytes: np.ndarray
    headroom_bytes: np.ndarray
    oom_probability: np.ndarray
    mfu: np.ndarray
    convention: str
    profile: list[str]
    reason: list[str]


@cache
def _compiled() -> Callable:
    return jax.jit(_evaluate, static_argnames="sharpness", compiler_options=quick_to_compile())


def _evaluate(
    system: System, model: Transformer, plan: Plan, coefficients: Coefficients, footprint: Footprint, spread: Array, sharpness: float
) -> tuple:
    """Breakdown, step time, bytes per device, probability of too few of them, and model FLOP utilization."""
    terms = step_time(system, model, plan, coefficients, sharpness=sharpness)
    used = memory_use(model, plan, footprint=footprint).total
    needed = memory_use(model, plan, footprint=whole(footprint)).total
    risk = out_of_memory_probability(needed, system.chip.hbm_bytes, spread)
    return terms, terms.total, used, risk, mfu(system, model, plan, terms, CONVENTION)


def assign(cases: Cases, profile: Profile | None) -> tuple[list[Profile], list[str]]:
    """The profile of every row, and why: the given one, or the shipped one nearest to the row's accelerator and stack."""
    pairs = list(zip(map(str, cases.labels.accelerator), map(str, cases.labels.stack), strict=True))
    if profile is not None:
        return [profile] * len(pairs), ["given"] * len(pairs)
    found = {pair: nearest(*pair) for pair in dict.fromkeys(pairs)}
    return [found[pair][0] for pair in pairs], [found[pair][1] for pair in pairs]


def predict(cases: Cases, profile: Profile | None = None) -> Predictions:
    """Predict every case.

    Args:
      cases: from `calibration.traces.to_cases`; step times may be unknown.
      profile: for all rows; None takes the shipped profile nearest to each row.
    """
    enable_float64()
    profiles, reasons = assign(cases, profile)
    labels = zip(profiles, map(str, cases.labels.accelerator), map(str, cases.labels.stack), strict=True)
    z = np.stack([p.unconstrained(accelerator, stack) for p, accelerator, stack in labels], 1)
    known = [p.footprint_for(stack) for p, stack in zip(profiles, map(str, cases.labels.stack), strict=True)]
    footprint = jax.tree.map(lambda *values: np.array(values), *(f.footprint for f in known))
    spread = np.array([f.spread for f in known])
    result = _compiled()(cases.system, cases.model, cases.plan, from_unconstrained(z), footprint, spread, SHARPNESS)
    terms, total, memory, risk, utilization = jax.tree.map(np.asarray, result)
    return Predictions(
        step_time_s=total,
        breakdown=terms,
        memory_bytes=memory,
        headroom_bytes=np.asarray(cases.system.chip.hbm_bytes) - memory,
        oom_probability=risk,
        mfu=utilization,
        convention=CONVENTION,
        profile=[p.name for p in profiles],
        reason=reasons,
    )
