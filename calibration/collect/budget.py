"""Which measurements to make first: those that tell most about the coefficients in the least time
(greedy D-optimal design).

To first order a measurement of ln t with relative noise σ shrinks the covariance Σ of the
coefficients by its Jacobian row j,

    Σ ← Σ − Σ j jᵀ Σ / (σ² + jᵀ Σ j),

and gains `½ ln(1 + jᵀ Σ j / σ²)` nats. The next task is always the one with the largest gain for
each second that it costs, so every start of the order is a good plan, and a time limit only cuts
it. Σ starts as what the nearest profile leaves open about a new stack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibration.collect.kinds import BENCHMARKS
from calibration.collect.machine import Machine
from calibration.collect.measure import parameters_of
from calibration.collect.program import settings_for
from calibration.collect.tasks import Task
from calibration.pooling import groups_of, prior_for
from dmodel import profiles
from dmodel.coefficients import NAMES, from_unconstrained
from dmodel.records import Cluster
from dmodel.sweep import quick_to_compile

NOISE = 0.05
"""Relative error of a measured time as the model sees it: mostly the model's own."""

OVERHEAD_S = 0.3
"""Making inputs, profiling and recording [s]."""

COMPILE_S = {"steps": 12.0, "attention": 1.5, "optimizer": 1.0, "launch": 1.0, "overlap": 1.0}
"""Seconds of compilation, by kind; 0.5 for the others. The runner corrects all estimates by what it
sees."""

SAMPLES = 30
"""Samples that a median usually needs."""


class Forecast(NamedTuple):
    """What the model says of tasks: time of one call and cost of measuring it [s], and d ln t / dz
    `[task, coefficient]`."""

    time_s: np.ndarray
    cost_s: np.ndarray
    jacobian: np.ndarray


class Step(NamedTuple):
    """One choice: the task's place in the list, what it gains [nat] and costs [s]."""

    at: int
    gain: float
    cost_s: float


def covariance(accelerator: str, stack: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean `[C]` and covariance `[C, C]` of the unconstrained coefficients of a stack on an
    accelerator, before any measurement."""
    base, _ = profiles.nearest(accelerator, stack)
    prior = prior_for(groups_of([accelerator], [stack]), base, fresh=False)
    scale = np.asarray(prior.center_width)
    center = np.diag(scale**2) if base.covariance is None else np.asarray(base.covariance)
    factor = np.asarray(prior.factor)
    total = center * np.any(scale) + np.einsum("mcd,med->ce", factor, factor)
    return np.asarray(prior.center) + np.asarray(prior.offset).sum(0), total


def forecast(
    tasks: Sequence[Task], system_at: Callable[[str], Cluster], mean: np.ndarray, machine: Machine
) -> Forecast:
    """Predict tasks and their cost.

    Args:
      system_at: the machine by the model, at a precision. mean: unconstrained coefficients `[C]`.
    """
    time, jacobian = np.zeros(len(tasks)), np.zeros((len(tasks), len(NAMES)))
    for places, records in _alike(tasks):
        kind = tasks[places[0]].kind
        system = system_at(precision_of(records[0]))
        spread = jnp.broadcast_to(jnp.asarray(mean)[:, None], (len(mean), len(places)))

        def logarithm(
            z: jax.Array, kind: str = kind, records: list[Any] = records, system: Cluster = system
        ) -> jax.Array:
            return jnp.log(
                jnp.asarray(BENCHMARKS[kind].predict(records, system, from_unconstrained(z)))
            )

        value, slope = jax.jit(
            partial(_value_and_slope, logarithm), compiler_options=quick_to_compile()
        )(spread)
        time[places], jacobian[places] = np.exp(np.asarray(value)), np.asarray(slope).T
    cost = np.array([cost_s(task.kind, t, machine) for task, t in zip(tasks, time, strict=True)])
    return Forecast(time, cost, jacobian)


def _value_and_slope(
    function: Callable[[jax.Array], jax.Array], z: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Value `[n]` of each case and its derivative by the case's own coefficients `[C, n]`: cases
    are independent, so one pass gives all."""
    value, pull = jax.vjp(function, z)
    return value, pull(jnp.ones_like(value))[0]


def precision_of(record: Any) -> str:
    """Precision of a task's arithmetic; kinds without one count in fp32."""
    return getattr(record, "dtype", getattr(record, "precision", "fp32"))


def _alike(tasks: Sequence[Task]) -> Iterable[tuple[list[int], list[Any]]]:
    """Places and parameter records of tasks that differ in numbers only."""
    groups: dict[Any, list[tuple[int, Any]]] = defaultdict(list)
    for at, task in enumerate(tasks):
        record = parameters_of(task)
        groups[task.kind, _words(task.kind, record)].append((at, record))
    for members in groups.values():
        yield [at for at, _ in members], [record for _, record in members]


def _words(kind: str, record: Any) -> Any:
    """What tasks must have in common to be foreseen together; of steps their precision."""
    if kind == "steps":
        return record.precision
    return tuple(v for v in record if isinstance(v, str | bool))


def cost_s(kind: str, time_s: float, machine: Machine) -> float:
    """Seconds that measuring takes: compilation, warming up, and repeats until the median is known
    or the limit is reached."""
    compile_s = COMPILE_S.get(kind, 0.5)
    s = settings_for(machine, compile_s)
    warmup = max(s.warmup_s, s.warmup_calls * time_s)
    repeats = min(SAMPLES * max(time_s, s.sample_s), max(s.longest_s, s.fewest * time_s))
    return OVERHEAD_S + compile_s + warmup + repeats


def order(found: Forecast, sigma: np.ndarray, known: Iterable[int] = ()) -> list[Step]:
    """All tasks, the most informative per second first, given those already measured.

    Args:
      sigma: covariance of the coefficients `[C, C]`. known: places of finished tasks, which are not
        in the answer.
    """
    sigma = np.array(sigma)
    left = np.ones(len(found.time_s), bool)
    for at in known:
        sigma = _learned(sigma, found.jacobian[at])
        left[at] = False
    steps = []
    while left.any():
        spread = np.einsum("tc,cd,td->t", found.jacobian, sigma, found.jacobian)
        gain = 0.5 * np.log1p(np.maximum(spread, 0.0) / NOISE**2)
        at = int(np.argmax(np.where(left, gain / found.cost_s, -1.0)))
        steps.append(Step(at, float(gain[at]), float(found.cost_s[at])))
        sigma = _learned(sigma, found.jacobian[at])
        left[at] = False
    return steps


def _learned(sigma: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The covariance after one more measurement."""
    column = sigma @ row
    return sigma - np.outer(column, column) / (NOISE**2 + row @ column)
