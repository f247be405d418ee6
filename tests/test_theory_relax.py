"""Layouts by gradient: relaxed ones keep their sums, rounded ones lie in the study's space and
reach the exact optimum."""

from __future__ import annotations

import csv
from collections import defaultdict
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel.errors import InputError
from dmodel.sweep import quick_to_compile
from dmodel.theory import Problem, gpu, run, training
from dmodel.theory.layout import KINDS
from dmodel.theory.pattern import EP
from dmodel.theory.relax import questions, relax, relaxed_layout
from dmodel.theory.rounding import Space, layouts_by_gradient
from dmodel.theory.search import Best, best_layouts
from dmodel.theory.tiling import RELAXED

REFERENCE = Path(__file__).parents[1] / "experiments" / "reference"
MONTH_S = 3.154e7 / 12

SAMPLE = [
    ("H100 SXM", False, 65536.0, 2**24),
    ("H100 SXM", True, 16384.0, 10 * 2**12),
    ("H100 SXM", False, 196608.0, 2**36),
]


def reference() -> dict[str, list[tuple[Problem, float]]]:
    """Training times of the study's optima, by GPU."""
    found = defaultdict(list)
    for name in ("theory_optima.csv", "theory_runs_dense.csv"):
        with (REFERENCE / name).open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                problem = Problem(
                    run(float(row["d_model"]), sparse=row["model_type"] == "sparse"),
                    int(row["n_gpus"]),
                )
                found[row["gpu"]].append((problem, float(row["train_time_months"]) * MONTH_S))
    return found


def sample() -> list[Problem]:
    return [Problem(run(d, sparse=sparse), n) for _, sparse, d, n in SAMPLE]


def test_reaches_the_exact_optimum():
    problems, h100 = sample(), gpu("H100 SXM")
    for problem, found, exact in zip(
        problems, layouts_by_gradient(problems, h100), best_layouts(problems, h100), strict=True
    ):
        assert isinstance(exact, Best)
        assert found.best.train_time_s == pytest.approx(exact.train_time_s, rel=1e-9)
        assert found.best.utilization == pytest.approx(exact.utilization, rel=1e-9)
        again = training(h100, problem.run, found.best.layout)
        assert float(again.train_time_s) == pytest.approx(found.best.train_time_s, rel=1e-12)
        assert float(found.best.layout.devices) == problem.n_gpus
        assert found.evaluated < 2000


@pytest.mark.slow
def test_every_reference_row():
    gaps = []
    for name, rows in reference().items():
        found = layouts_by_gradient([p for p, _ in rows], gpu(name))
        gaps += [f.best.train_time_s / time - 1.0 for f, (_, time) in zip(found, rows, strict=True)]
    assert len(gaps) == 145
    assert np.mean(np.abs(gaps) <= 1e-9) >= 0.95
    assert max(gaps) <= 0.01 and min(gaps) >= -1e-9


def test_relaxed_degrees_fill_the_levels():
    problems = sample()
    found = relax(problems, gpu("H100 SXM"), seed=1)
    assert found.logs.shape == (3, 32, len(KINDS), 2)
    np.testing.assert_allclose(found.logs[:, :, :, 0].sum(2), np.log(8.0), rtol=1e-12)
    np.testing.assert_allclose(
        found.logs.sum((2, 3)).T,
        np.broadcast_to(np.log([p.n_gpus for p in problems]), (32, 3)),
        rtol=1e-12,
    )
    np.testing.assert_allclose(found.logs[1, :, EP].sum(1), np.log(10.0), rtol=1e-12)
    assert (np.diff(found.log_time, axis=1) >= 0.0).all()
    again = relax(problems, gpu("H100 SXM"), seed=1)
    np.testing.assert_array_equal(found.logs, again.logs)


def test_slopes_of_relaxed_layouts():
    """Gradients against finite differences, from a point inside the simplex."""
    asked, random = questions(sample(), gpu("H100 SXM")), np.random.default_rng(0)
    u, direction = (jnp.asarray(random.normal(0.0, 0.5, (len(KINDS) * 2 + 1, 3))) for _ in range(2))
    system = jax.tree.map(jnp.asarray, gpu("H100 SXM"))

    def loss(u: jax.Array) -> jax.Array:
        layout, _, excess = relaxed_layout(u, asked, jnp.zeros(3))
        return (
            jnp.log(training(system, asked.run, layout, rules=RELAXED, sharpness=8.0).train_time_s)
            + (excess**2).sum(0)
        ).sum()

    fast = partial(jax.jit, compiler_options=quick_to_compile())
    ahead, value, step = fast(jax.grad(loss))(u), fast(loss), 1e-6
    difference = (value(u + step * direction) - value(u - step * direction)) / (2.0 * step)
    assert float((ahead * direction).sum()) == pytest.approx(float(difference), rel=1e-6)


def test_moves_stay_in_the_space():
    problem = Problem(run(24576.0, sparse=True), 16 * 2**12)
    space = Space(problem, gpu("H100 SXM"))
    first = next(
        space.near(
            np.log(np.array([[1.0, 16.0], [4.0, 2.0], [2.0, 2.0], [1.0, 64.0], [1.0, 16.0]])),
            np.log(128.0),
            1.0,
        )
    )
    moves = space.moves(first)
    assert len(moves) > 20 and first not in moves
    for spot in moves:
        levels = np.array(spot.levels)
        assert levels[:, 0].prod() == 8 and levels.prod() == problem.n_gpus
        assert spot.choice in space.choices[tuple(levels.prod(1).tolist())]


def test_no_layout():
    with pytest.raises(InputError, match="no layout"):
        Space(Problem(run(16384.0), 8 * 10007), gpu("H100 SXM"))
