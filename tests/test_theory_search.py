"""The exact search: the study's optima, pruned equals brute force, the same answers in any batch,
clusters without a layout."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import jax
import numpy as np
import pytest

from dmodel.errors import InputError
from dmodel.theory import gpu, laws, run, search, training
from dmodel.theory.layout import KINDS, LevelLayout
from dmodel.theory.price import Degrees
from dmodel.theory.search import Best, Problem, best_layouts
from dmodel.theory.space import candidates, divisors, level_sizes

MONTH_S = 3.154e7 / 12
ROWS = 2**16


def best_layout(asked: Problem, chip) -> Best:
    """The layout of one problem; why there is none is raised."""
    found = best_layouts([asked], chip)[0]
    if isinstance(found, Best):
        return found
    raise found or search.no_layout(asked.n_gpus)


TRAINING = jax.jit(training)
TABLE = Path(__file__).parents[1] / "experiments" / "reference" / "theory_optima.csv"


def optima() -> list[dict[str, str]]:
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def problem(row: dict[str, str]) -> Problem:
    return Problem(
        run(float(row["d_model"]), sparse=row["model_type"] == "sparse"), int(row["n_gpus"])
    )


def of(answer: Best | InputError | None) -> Best:
    assert isinstance(answer, Best), answer
    return answer


def test_the_whole_table_is_there():
    assert len(optima()) == 40


@pytest.mark.parametrize("name", sorted({row["gpu"] for row in optima()}))
def test_optima_are_those_of_the_study(name):
    rows = [row for row in optima() if row["gpu"] == name]
    for row, answer in zip(
        rows, best_layouts([problem(row) for row in rows], gpu(name)), strict=True
    ):
        best = of(answer)
        assert best.train_time_s / MONTH_S == pytest.approx(
            float(row["train_time_months"]), rel=1e-12
        )
        assert best.utilization == pytest.approx(float(row["utilization"]), rel=1e-12)
        assert np.prod([np.prod(d) for d in best.degrees]) == best.n_gpus


@pytest.mark.parametrize("row", optima()[:8], ids=lambda row: f"{row['gpu']} {row['d_model']}")
def test_the_layout_takes_the_time_that_the_search_says(row):
    """By the function that evaluates any layout; communication and hops as in the study."""
    chip = gpu(row["gpu"])
    best = best_layout(Problem(*problem(row)), chip)
    found = training(chip, best.run, best.layout)
    assert float(found.train_time_s) == pytest.approx(best.train_time_s, rel=1e-12)
    assert float(found.utilization) == pytest.approx(best.utilization, rel=1e-12)
    for kind, name in (
        ("tp", "tp_comm_months"),
        ("dp", "dp_comm_months"),
        ("pp_ep", "pp_ep_comm_months"),
        ("latency", "network_latency"),
    ):
        value = found.latency_s if kind == "latency" else getattr(found, f"{kind}_comm_s")
        assert float(value) / MONTH_S == pytest.approx(
            float(row.get(name, row["network_latency_months"])), rel=1e-9, abs=1e-12
        )


def placements(size: int, degrees: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Ways to put `size` GPUs' worth of degrees on a level, by plain loops."""
    choices = [[int(d) for d in divisors(size) if degree % d == 0] for degree in degrees]
    return [w for w in itertools.product(*choices) if np.prod(w) == size]


def every_layout(p: Problem, sizes: tuple[int, ...]) -> LevelLayout:
    """All candidates on all placements, `[n]`."""
    rows = []
    for c in zip(*candidates(p.shape, p.n_gpus), strict=True):
        left = [([], tuple(int(x) for x in c[:5]))]
        for size in sizes[:-1]:
            left = [
                ([*done, way], tuple(d // w for d, w in zip(rest, way, strict=True)))
                for done, rest in left
                for way in placements(size, rest)
            ]
        rows += [(np.array([*done, rest], float), *c[5:]) for done, rest in left]
    levels = np.stack([r[0] for r in rows], -1)
    m, v, zero_bubble = (np.array([r[i] for r in rows]) for i in (1, 2, 3))
    degrees = {f"{kind}_levels": levels[:, i] for i, kind in enumerate(KINDS)}
    return LevelLayout(**degrees, n_microbatches=m, interleave=v, zero_bubble=zero_bubble)


@pytest.mark.parametrize(
    ("name", "width", "sparse", "n_gpus"),
    [
        ("H100 SXM", 12288, False, 4),
        ("V100 SXM", 12288, False, 4096),
        ("A100 SXM", 16384, True, 10 * 256),
        ("H100 SXM Superpod", 12288, True, 8 * 128),
        ("H100 SXM Global NVLink", 12288, True, 48),
        ("H100 SXM Infinite Network and LL", 14336, False, 7 * 64),
    ],
)
def test_pruned_is_brute_force(name, width, sparse, n_gpus):
    chip = gpu(name)
    p = Problem(run(float(width), sparse=sparse), n_gpus)
    sizes = level_sizes(tuple(int(s) for s in chip.network.size[:-1]), n_gpus)
    layouts = every_layout(p, sizes)
    n = layouts.n_microbatches.shape[0]
    assert 40 < n < ROWS
    # one shape for all: compiled once for each number of levels
    filled = jax.tree.map(
        lambda x: (
            np.concatenate([x, np.repeat(x[..., -1:], ROWS - n, axis=-1)], -1) if np.ndim(x) else x
        ),
        layouts,
    )
    times = np.asarray(TRAINING(chip, p.run, filled).train_time_s)
    assert best_layout(p, chip).train_time_s == pytest.approx(times.min(), rel=1e-12)


def test_answers_do_not_depend_on_what_is_searched_beside_them(monkeypatch):
    chip = gpu("H100 SXM")
    runs = [
        run(float(width), sparse=sparse) for width in (12288, 65536) for sparse in (False, True)
    ]
    problems = [Problem(r, int(r.experts) * 2**14) for r in runs]
    alone = [of(best_layouts([p], chip)[0]) for p in problems]
    together = [of(a) for a in best_layouts(problems, chip)]
    monkeypatch.setattr(search, "FIRST", 1)
    monkeypatch.setattr(search, "CHUNK", 32)
    monkeypatch.setattr(search, "TOGETHER", 3)
    otherwise = [of(a) for a in best_layouts(problems[::-1], chip)][::-1]
    for one, other, third in zip(alone, together, otherwise, strict=True):
        assert one.train_time_s == pytest.approx(other.train_time_s, rel=1e-14)
        assert one.train_time_s == pytest.approx(third.train_time_s, rel=1e-14)
        for a, b in zip(one.degrees, other.degrees, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_limit_leaves_the_optimum_or_nothing():
    p, chip = Problem(run(16384.0), 8192), gpu("H100 SXM")
    best = of(best_layouts([p], chip)[0])
    assert (
        of(best_layouts([p], chip, within_s=best.train_time_s * 1.0001)[0]).degrees.pp.prod()
        == best.degrees.pp.prod()
    )
    assert best_layouts([p], chip, within_s=best.train_time_s) == [None]


def test_what_the_study_does_not_cover_is_said_and_the_rest_answered():
    chip, dense, sparse = gpu("H100 SXM"), run(12288.0), run(4096.0, sparse=True)
    assert sparse.experts == 3
    answers = best_layouts(
        [
            Problem(dense, 2**10),
            Problem(sparse, 12),
            Problem(dense, 13),
            Problem(dense, 0),
            Problem(sparse, 24),
        ],
        chip,
    )
    assert isinstance(answers[0], Best) and isinstance(answers[4], Best)
    assert "filled evenly" in str(answers[1])
    assert answers[2] is None
    assert "whole number" in str(answers[3])


@pytest.mark.parametrize(
    ("given", "n_gpus", "says"),
    [
        (run(12288.0), 13, "no layout"),
        (run(12288.0), 2**70, "no layout"),
        (run(4096.0, sparse=True), 12, "multiple of 8"),
        (run(12288.0, rounding=False), 16, "layers: expected a whole number"),
        (laws.run(12288.0), -4, "n_gpus"),
    ],
)
def test_mistakes_are_explained(given, n_gpus, says):
    with pytest.raises(InputError, match=says):
        best_layout(Problem(given, n_gpus), gpu("H100 SXM"))


def test_degrees_are_by_level():
    best = best_layout(Problem(run(131072.0, sparse=True), 80 * 2**30), gpu("H100 SXM Superpod"))
    assert isinstance(best.degrees, Degrees)
    by_level = np.prod(np.stack(best.degrees), axis=0)
    np.testing.assert_array_equal(by_level, [8, 32, 80 * 2**30 / 256])
