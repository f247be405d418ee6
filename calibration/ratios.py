"""Rows of a fit, and what the model says of each by its coefficients: its log ratio and slope.

A trace that is kept computes both by numpy (`dmodel.recorded`): a fit compiles nothing. Tables of
rows do not depend on coefficients, so they are made once in a fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibration.pooling import Groups
from calibration.traces import Cases
from dmodel.coefficients import NAMES, from_unconstrained
from dmodel.recorded import Recorded
from dmodel.records import Cluster, Model, Plan
from dmodel.step import step_time
from dmodel.types import Array


class Data(NamedTuple):
    """Rows of a fit: records stacked on the last axis, measured step times [s], weights, the
    members `[G, row]`, the stack, and the variance of ln t by the scatter of the repeats that a row
    stands for."""

    system: Cluster
    model: Model
    plan: Plan
    log_measured: np.ndarray
    weight: np.ndarray
    of: np.ndarray
    stack_of: np.ndarray
    variance: np.ndarray


def rows_of_fit(used: Cases, groups: Groups, weight: np.ndarray) -> Data:
    """The data of a fit of some rows."""
    return Data(
        system=used.system,
        model=used.model.replace(order=()),
        plan=used.plan,
        log_measured=np.log(used.labels.step_time_s),
        weight=np.asarray(weight),
        of=groups.of,
        stack_of=groups.stack_of,
        variance=np.asarray(used.labels.variance, float),
    )


def log_time(system: Cluster, model: Model, plan: Plan, z: Array) -> jax.Array:
    """ln t of every row under its unconstrained coefficients `[C, row]`."""
    return jnp.log(jnp.asarray(step_time(system, model, plan, from_unconstrained(z)).total))


def _time_and_slope(system: Cluster, model: Model, plan: Plan, z: Array) -> dict[str, jax.Array]:
    """ln t of every row `[row]`, and its slope by the row's own coefficients `[C, row]`: rows are
    independent, so one pass of reverse mode does."""
    found, pull = jax.vjp(lambda z: log_time(system, model, plan, z), z)
    return {"log_time": found, "slope": pull(jnp.ones_like(found))[0]}


TIME_AND_SLOPE = Recorded(_time_and_slope, any_rows=True)

Ratios = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Log ratios `[row]` and slopes `[C, row]` of coefficients `[C, row]`."""


def ratios(data: Data, times: int = 1) -> Ratios:
    """ln(predicted / measured) of every row and its slope, as functions of unconstrained
    coefficients; what these do not change is computed once.

    Args:
      times: how often the rows follow each other, each time with coefficients of their own.
    """

    def repeated(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf, float)
        return np.tile(leaf, (*[1] * (leaf.ndim - 1), times))

    records = jax.tree.map(repeated, (data.system, data.model, data.plan))
    measured = np.tile(data.log_measured, times)
    some = np.zeros((len(NAMES), len(measured)))
    of = TIME_AND_SLOPE.varied(*records, like=some)

    def found(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        answer = of(z)
        return answer["log_time"] - measured, answer["slope"]

    return found


def slopes(z: np.ndarray, data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Log ratio `[row]` of every row, and its derivative by the row's own coefficients `[row, C]`,
    at coefficients `[C, row]`."""
    ratio, slope = ratios(data)(z)
    return ratio, slope.T
