"""Fits, bootstraps and accuracy protocols by the workers of an executor: the bits of one
process."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from calibration import fit
from calibration.traces import published, to_cases
from calibration.uncertainty import bootstrap as module
from calibration.uncertainty.bootstrap import bootstrap
from calibration.uncertainty.posterior import posterior
from dmodel.parts import opened
from dmodel.profiles import default_profile
from dmodel.profiles.writing import to_json
from dmodel.types import enable_float64
from experiments.protocols import _answers
from tests.fitting import synthetic


@pytest.fixture(scope="module")
def rows():
    enable_float64()
    cases = synthetic()
    return cases.take(np.arange(10))


@pytest.fixture(scope="module")
def few():
    """Published rows of one stack."""
    enable_float64()
    cases = to_cases(published())
    return cases.take(np.flatnonzero(cases.labels.source == "megatron-sc21-t1")[:10])


HOW = {"seed": 1, "starts": 6, "polish": 12}


def test_a_fit_by_processes_is_the_same(rows):
    usual = fit.fit(rows, default_profile(), **HOW)
    with opened(2) as executor:
        found = fit.fit(rows, default_profile(), **HOW, executor=executor)
    assert to_json(found) == to_json(usual)


@pytest.mark.slow
def test_a_fit_from_nothing_by_threads_is_the_same(rows):
    how = {"seed": 0, "starts": 5, "polish": 3, "rounds": 1}
    seen = []
    usual = fit.fit(rows, **how)
    with ThreadPoolExecutor(2) as executor:
        found = fit.fit(rows, **how, executor=executor, progress=lambda *x: seen.append(x))
    assert to_json(found) == to_json(usual)
    assert seen[-1][0] == 1.0 and len(seen) >= 2


def test_bootstrap_draws_by_workers_are_the_same(few, monkeypatch):
    monkeypatch.setattr(module, "DRAWS_OF_BLOCK", 2)
    found = posterior(few, default_profile())
    start, noise = np.zeros(found.size), np.full(len(few), 0.1)
    groups = few.labels.group.astype(str)
    usual = bootstrap(found, start, noise, groups, draws=5, seed=3)
    with ThreadPoolExecutor(2) as executor:
        again = bootstrap(found, start, noise, groups, draws=5, seed=3, executor=executor)
    np.testing.assert_allclose(again, usual, rtol=1e-9, atol=1e-12)


def test_answers_of_a_protocol_by_workers_are_the_same():
    enable_float64()
    cases = to_cases(published())
    known = cases, "few-shot 8 vtrain-multi", default_profile(), [0, 1], 1
    usual = _answers(*known, None)
    with ThreadPoolExecutor(2) as executor:
        found = _answers(*known, executor)
    for one, other in zip(found, usual, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])
        assert one[2] == other[2]
