"""Searches, indices and robust designs by the workers of an executor: the answers of one
process."""

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import jax
import numpy as np
import pytest

from dmodel.asked import ask, plan
from dmodel.coefficients import from_unconstrained
from dmodel.design import elsewhere, exact
from dmodel.design.judge import evaluate_draws
from dmodel.design.rows import all_rows
from dmodel.errors import InputError
from dmodel.montecarlo.draws import drawn
from dmodel.parts import opened
from dmodel.question import Question
from dmodel.searching import search, space_of, stated
from dmodel.sensitivity import make_case
from dmodel.sensitivity.sobol import sobol
from dmodel.settings import changed
from dmodel.types import enable_float64
from dmodel.uncertainty import covariance


@pytest.fixture(scope="module")
def asked():
    enable_float64()
    words = {"n_accel": 8, "model": "llama-3-8b", "seq_len": 4096, "global_batch": 8}
    return ask(changed(Question({}, system="H100-DGX"), {**words, "stack": "torchtitan"}))


@pytest.fixture(scope="module")
def problem(asked):
    return stated(asked, space_of(asked))


def alike(one, other, digits=1e-9):
    """Whether two rankings are the same but for the last bits of what numpy and XLA compute."""
    np.testing.assert_array_equal(one.rows, other.rows)
    np.testing.assert_allclose(one.merits, other.merits, rtol=digits)
    assert (one.considered, one.feasible) == (other.considered, other.feasible)


@pytest.mark.parametrize(
    "how", [{"pareto": True}, pytest.param({"prune": True}, marks=pytest.mark.slow)]
)
def test_a_search_by_workers_finds_the_same_plans(problem, how):
    usual = exact(problem, 5, **how)
    with ThreadPoolExecutor(2) as executor:
        found = exact(problem, 5, **how, executor=executor)
    alike(found, usual)
    if usual.front is not None:
        np.testing.assert_array_equal(found.front, usual.front)


def test_workers_of_a_search_by_gradient_are_refused(asked):
    with ThreadPoolExecutor(1) as executor, pytest.raises(InputError, match="executor"):
        search(asked, space_of(asked), method="gradient", executor=executor)


def test_indices_by_workers_have_the_same_bits(asked, monkeypatch):
    monkeypatch.setattr(import_module("dmodel.sensitivity.sobol"), "CASES_OF_BLOCK", 100)
    found, _ = plan(asked, {"tp": 4})
    case = make_case(asked.cluster, asked.model, found, asked.coefficients, asked.footprint)
    usual = sobol(case, base=32)
    with ThreadPoolExecutor(2) as executor:
        again = sobol(case, base=32, executor=executor)
    assert repr(again) == repr(usual)


def test_draws_by_processes_are_the_same(asked, problem, monkeypatch):
    monkeypatch.setattr(elsewhere, "DRAWN", 30)
    sigma = np.asarray(covariance(asked.profile, asked.accelerator, asked.stack))
    mean = asked.profile.unconstrained(asked.accelerator, asked.stack)
    draws = from_unconstrained(drawn(mean, sigma, 0, 0, 8))
    rows = all_rows(problem.space)[:100]
    usual = evaluate_draws(problem, rows, draws)
    with opened(2) as executor:
        found = elsewhere.evaluate_draws(problem, rows, draws, executor)
    assert jax.tree.structure(found) == jax.tree.structure(usual)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(usual), strict=True):
        np.testing.assert_allclose(one, np.broadcast_to(other, np.shape(one)), rtol=1e-12)
