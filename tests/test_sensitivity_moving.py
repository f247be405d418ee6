"""Shorter records answer as the whole ones do: memory alone, and slopes by what moves alone."""

import numpy as np
import pytest

from dmodel import catalog
from dmodel.coefficients import default
from dmodel.design import evaluate
from dmodel.design import problem as state
from dmodel.design.judge import memory_bytes
from dmodel.design.rows import all_rows
from dmodel.records import Plan
from dmodel.sensitivity import gradient, make_case
from dmodel.sensitivity.relaxed import program

SYSTEM = catalog.system("H100-DGX")
MODEL = catalog.transformer("llama-3-8b", 8192.0)


def test_memory_alone_is_that_of_whole_evaluations():
    stated = state(SYSTEM, MODEL, 8, 32, default())
    chosen = all_rows(stated.space)[::97]
    whole = np.asarray(evaluate(stated, chosen).memory_bytes)
    assert memory_bytes(stated, chosen) == pytest.approx(whole, rel=1e-12)


def test_slopes_by_what_moves_are_those_by_every_input():
    plan = Plan.of(dp=4.0, tp=2.0, zero=1.0, shard=4.0, global_batch=32.0, schedule="interleaved")
    p = program(make_case(SYSTEM, MODEL, plan, default()))
    moving = [*p.places, p.shard]
    of = gradient.along(p.known, p.known.values, moving)
    for away in (0.03, -0.02, 0.1):
        point = p.cases(p.start()[:, None] + away, p.known.values)
        found = of(point[moving, 0])
        for name, value, slopes in (
            ("step_time", found.time, found.time_slopes),
            ("memory", found.memory, found.memory_slopes),
        ):
            values, every = gradient.evaluate(p.known, point, name)
            assert value == pytest.approx(values[0], rel=1e-12)
            assert slopes == pytest.approx(every[moving, 0], rel=1e-9, abs=1e-15)
