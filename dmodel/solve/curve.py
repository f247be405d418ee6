"""A plan along one input: the output and its slope at many values at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel.breakdown import TERMS
from dmodel.recorded import Recorded
from dmodel.sensitivity.case import Inputs, Point, rebuild
from dmodel.sensitivity.outputs import OUTPUTS
from dmodel.solve.answer import End, Root
from dmodel.step import step_time

POINTS = 64
"""Values at which the model is asked at once: those that a range is searched on [count]."""


def _all(case: Point, way: Point, *, output: str) -> dict[str, Any]:
    """An output with its derivative along a way, terms and memory of a batch of cases."""

    def value(case: Point) -> tuple[Any, dict[str, Any]]:
        time = step_time(case.system, case.model, case.plan, case.coefficients)
        beside = {name: getattr(time, name) for name in TERMS}
        beside["memory"] = OUTPUTS["memory"](case, time)
        return OUTPUTS[output](case, time), beside

    found, slope, beside = jax.jvp(value, (case,), (way,), has_aux=True)
    return {"value": found, "slope": slope, "beside": beside}


ALL = Recorded(_all)


class Curve(NamedTuple):
    """A plan along one input: the output at `POINTS` values at once."""

    names: Inputs
    index: int
    output: str

    def __call__(self, values: np.ndarray) -> dict[str, Any]:
        """Value and slope, terms and memory, `[value]` each, at up to `POINTS` values."""
        size = len(values)
        padded = np.concatenate([values, np.full(POINTS - size, values[-1])])
        x = np.repeat(self.names.values[:, None], POINTS, 1)
        x[self.index] = padded
        way = np.zeros_like(x)
        way[self.index] = 1.0
        at, along = (rebuild(a, self.names.tree, self.names.levels) for a in (x, way))
        found = ALL(at, along, output=self.output)
        return jax.tree.map(lambda y: np.broadcast_to(y, (POINTS,))[:size], found)


def root_at(line: Curve, x: float, unit: float, size: float) -> Root:
    found = line(np.array([x]))
    value, beside = float(found["value"][0]), found["beside"]
    memory = float(beside["memory"][0])
    return Root(
        value=float(x),
        output=value / unit,
        slope=float(found["slope"][0]) * float(x) / value,
        step_time_s=float(sum(beside[name][0] for name in TERMS)),
        memory_bytes=memory,
        fits=memory <= size,
        exact=True,
    )


LARGEST_TERMS = 3


def end_at(found: Mapping[str, Any], x: np.ndarray, i: int, unit: float) -> End:
    terms = {name: float(found["beside"][name][i]) for name in TERMS}
    whole = sum(terms.values())
    most = sorted(terms, key=lambda name: -terms[name])[:LARGEST_TERMS]
    shares = {name: terms[name] / whole for name in most}
    return End(float(x[i]), float(found["value"][i]) / unit, shares)
