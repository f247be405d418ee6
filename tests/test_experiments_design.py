"""The studies of design: searches that see values only get what they are given, and each study runs
in its quick mode."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dmodel import catalog, coefficients
from dmodel.codesign import Limits, question
from experiments import blackbox
from experiments.codesign_box import CHOICES, Box
from experiments.counted import peak_memory

ROOT = Path(__file__).parents[1]


def rows_and_values():
    rows = np.array(
        [(a, b, c) for a in range(8) for b in range(a + 1) for c in (1, 2, 4, 8)], float
    )
    return rows, (rows[:, 0] - 5.0) ** 2 + (rows[:, 1] - 3.0) ** 2 + np.log2(rows[:, 2])


def test_every_row_of_a_table_has_a_place_in_the_cube_and_only_those():
    table = blackbox.Table(*rows_and_values())
    points = np.random.default_rng(0).uniform(size=(4000, table.dimension))
    assert {table.row(point) for point in points} == set(range(len(table.rows)))
    assert np.array_equal(
        table.rows[:, 0][[table.row(np.array([u, 0.0, 0.0])) for u in (0.0, 0.5, 0.999)]],
        [0.0, 4.0, 7.0],
    )


@pytest.mark.parametrize("method", blackbox.METHODS)
def test_searches_spend_their_budget_and_never_forget_their_best(method):
    table = blackbox.Table(*rows_and_values())
    found = blackbox.run(method, table, table.dimension, 600, 3)
    assert len(found.best) == 600 and found.best == sorted(found.best, reverse=True)
    assert found.best[-1] == table(found.at[None])[0] <= 1.0


@pytest.fixture(scope="module")
def box():
    asked = question(
        catalog.system("H100-DGX"),
        catalog.transformer("llama-3-8b", 8192),
        coefficients.default(),
        objective="cost",
        limits=Limits(loss=2.3),
        free=("shape", "batch", "tokens", "devices"),
        bounds={"devices": (8.0, 64.0)},
        devices=64.0,
        global_batch=256.0,
    )
    return Box(asked)


def test_points_of_a_run_are_valid_sizes_and_plans(box):
    random, seen = np.random.default_rng(1), set()
    for point in random.uniform(size=(300, box.dimension)):
        sizes = box.sizes(point)
        plan = box.plan(point, sizes)
        assert 8.0 <= sizes["devices"] <= 64.0 and sizes["n_layers"] % 4.0 == 0.0
        if plan is None:
            continue
        seen.add((plan["tp"], plan["pp"]))
        assert plan["dp"] * plan["tp"] * plan["cp"] * plan["pp"] == sizes["devices"]
        assert (
            sizes["n_layers"] % (plan["pp"] * plan["interleave"]) == 0.0
            and sizes["global_batch"] % (plan["dp"] * plan["micro_batch"]) == 0.0
        )
    assert len(seen) > 8 and box.dimension == 5 + len(CHOICES)


def test_the_memory_of_a_program_is_not_that_of_who_started_it():
    """`getrusage` counts both on Linux, so that a benchmark had reported its own memory for that of
    the searches it starts."""
    filled = np.ones(2**26)
    code = [
        "import numpy",
        "from experiments.counted import peak_memory as most",
        "print(most(), numpy.ones(2**25)[0], most())",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "; ".join(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    before, _, after = map(float, done.stdout.split())
    assert peak_memory() > filled.nbytes > before
    assert after - before > 0.9 * 8 * 2**25
