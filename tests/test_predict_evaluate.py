"""Predictions row by row, and how far they are from measurements, by hand."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from calibration.evaluate import dense_gpu_rows, errors, evaluate, fitted_rows
from calibration.predict import assign, batches, predict
from dmodel import catalog
from dmodel.breakdown import TERMS
from dmodel.catalog.models import transformer
from dmodel.coefficients import NAMES
from dmodel.counts import model_flops_per_token
from dmodel.profiles import GROUPINGS, Profile, default_profile, members, nearest
from dmodel.records import stacked
from dmodel.step import memory_use, step_time
from tests.fitting import CHIPS, TRUTH, retimed, synthetic
from tests.points import case, plain


@pytest.fixture(scope="module")
def cases():
    return synthetic()


@pytest.fixture(scope="module")
def profile() -> Profile:
    """Every group of the chips and stacks with an offset of its own."""
    rng = np.random.default_rng(0)
    known = [members(c, s) for c in CHIPS for s in TRUTH]
    offsets = {
        g: {
            m: 0.15 * rng.standard_normal(len(NAMES))
            for m in sorted({row[g] for row in known} - {""})
        }
        for g in GROUPINGS
    }
    return Profile(name="given", description="", offsets=offsets)


@pytest.fixture(scope="module")
def found(cases, profile):
    return predict(cases, profile)


def uncertain(profile: Profile) -> Profile:
    """The profile with a covariance of its coefficients."""
    root = np.random.default_rng(1).standard_normal((len(NAMES), len(NAMES)))
    return replace(profile, covariance=1e-4 * root @ root.T)


def test_rows_are_predicted_alike_in_any_company(cases, profile, monkeypatch):
    """Few rows under many coefficients at once, many in batches, rare kinds of layers apart."""
    unsure = uncertain(profile)
    whole = predict(cases, unsure)
    assert np.isfinite(whole.parameter_sd).all() and whole.parameter_sd.min() > 0.0
    monkeypatch.setattr("calibration.predict.MOST_ROWS", 16)
    sizes = [len(rows) for rows in batches(cases.model, len(cases))]
    assert sum(sizes) == len(cases) and max(sizes) <= 16
    parts = predict(cases, unsure)
    for name in ("step_time_s", "memory_bytes", "mfu", "parameter_sd", "scale"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12)


def test_rows_of_rare_layers_come_apart():
    def of(kind: float):
        return transformer("gpt-2") if kind else transformer("deepseek-v3")

    model = stacked([of(i % 3) for i in range(2000)])
    most, others = batches(model, 2000)
    assert (most % 3 > 0).all() and (others % 3 == 0).all() and len(most) + len(others) == 2000
    few = stacked([of(i) for i in range(2)])
    assert [list(rows) for rows in batches(few, 2)] == [[0, 1]]


@pytest.mark.parametrize("i", [0, 11, 20, 35])
def test_each_row_is_the_model_under_its_own_coefficients(cases, profile, found, i):
    labels = cases.labels
    row = tuple(case(part, i) for part in (cases.system, cases.model, cases.plan))
    with jax.disable_jit():
        terms = step_time(
            *row, profile.coefficients_for(str(labels.accelerator[i]), str(labels.stack[i]))
        )
    assert found.step_time_s[i] == pytest.approx(float(terms.total), rel=1e-12)
    for name in TERMS:
        assert getattr(found.breakdown, name)[i] == pytest.approx(
            float(getattr(terms, name)), rel=1e-9, abs=1e-15
        ), name
    use = float(memory_use(*row[1:]).total)
    assert found.memory_bytes[i] == pytest.approx(use, rel=1e-12)
    assert found.headroom_bytes[i] == pytest.approx(float(row[0].chip.hbm_bytes) - use, rel=1e-9)


def test_utilization_is_model_flops_over_what_the_devices_could(cases, found):
    for i in (0, 35):
        flops = float(model_flops_per_token(case(cases.model, i), found.convention))
        tokens = cases.plan.global_batch[i] * cases.model.seq_len[i]
        could = found.step_time_s[i] * cases.labels.n_accel[i] * cases.system.chip.flops_per_s[i]
        assert found.mfu[i] == pytest.approx(flops * tokens / could, rel=1e-12)
    assert (found.mfu > 0.0).all() and (found.mfu < 1.0).all()


def test_a_row_stands_alone(cases, profile, found):
    """Its prediction depends neither on the other rows nor on what was measured."""
    some = np.array([3, 17, 30])
    np.testing.assert_allclose(
        predict(cases.take(some), profile).step_time_s, found.step_time_s[some], rtol=1e-13
    )
    unknown = retimed(cases, np.full(len(cases), np.nan))
    np.testing.assert_array_equal(predict(unknown, profile).step_time_s, found.step_time_s)


def test_a_given_profile_is_used_for_all_rows_else_the_nearest(cases, profile, found):
    assert set(found.profile) == {"given"} and set(found.reason) == {"given"}
    profiles, reasons = assign(cases, None)
    for i in (0, 20):
        expected, why = nearest(str(cases.labels.accelerator[i]), str(cases.labels.stack[i]))
        assert profiles[i].name == expected.name and reasons[i] == why


def test_an_oversubscribed_device_has_negative_headroom(cases):
    """175e9 parameters on one device's memory: negative, not an error."""
    huge = cases.take(np.array([0]))
    m = catalog.transformer("gpt-3-175b", 2048.0)
    huge = huge.replace(model=jax.tree.map(lambda x: np.array([float(x)]), m))
    assert predict(huge, default_profile()).headroom_bytes[0] < -1e12


# --- evaluation


def test_errors_by_hand():
    found = errors(np.array([1.1, 0.8, 1.0, 1.5]), np.ones(4))
    assert found.rows == 4
    assert (
        found.median == pytest.approx(0.15)
        and found.mean == pytest.approx(0.2)
        and found.max == pytest.approx(0.5)
    )
    assert found.p90 == pytest.approx(0.2 + 0.7 * 0.3)
    assert found.bias == pytest.approx(0.5 * np.log(1.1))
    assert errors(np.array([]), np.array([])) is None


def test_bias_has_the_sign_of_too_slow():
    assert errors(np.full(5, 1.2), np.ones(5)).bias > 0.0 > errors(np.full(5, 0.8), np.ones(5)).bias


def test_fitted_and_kept_out_rows_are_judged_apart(cases):
    measured = cases.labels.step_time_s
    used = np.arange(len(cases)) % 3 != 0
    predicted = measured * np.where(used, 1.02, 1.3)
    found = evaluate(cases, predicted, used)
    assert {line.name for line in found.by_source} == set(TRUTH)
    for line in [*found.by_source, found.overall]:
        assert line.fitted.median == pytest.approx(0.02) and line.held_out.median == pytest.approx(
            0.3
        )
        assert line.fitted.rows + line.held_out.rows == line.all.rows
    assert found.overall.all.rows == len(cases) == sum(line.all.rows for line in found.by_source)
    np.testing.assert_allclose(found.error, np.abs(predicted / measured - 1.0))


def test_rows_without_a_time_or_not_asked_for_are_not_judged(cases):
    times = cases.labels.step_time_s.copy()
    times[:5] = np.nan
    found = evaluate(retimed(cases, times), cases.labels.step_time_s * 1.1)
    assert found.overall.all.rows == len(cases) - 5 and found.overall.fitted is None
    asked = cases.labels.source == "fsdp-test"
    only = evaluate(cases, cases.labels.step_time_s * 1.1, rows=asked)
    assert [line.name for line in only.by_source] == [
        "fsdp-test"
    ] and only.overall.all.rows == asked.sum()
    nothing = evaluate(cases, cases.labels.step_time_s, rows=np.zeros(len(cases), bool))
    assert nothing.by_source == [] and nothing.overall.all.rows == 0


def test_fitted_rows_are_known_by_their_fingerprint(cases):
    some = list(cases.labels.fingerprint[[2, 5]])
    np.testing.assert_array_equal(np.flatnonzero(fitted_rows(cases, [*some, "another"])), [2, 5])


def test_headline_rows_are_dense_16_bit_unflagged_gpus(cases):
    assert dense_gpu_rows(cases).all()
    n = len(cases)
    changes = {
        "flag": np.array(["composed"] + [""] * (n - 1)),
        "precision": np.array(["fp8"] + ["fp16"] * (n - 1)),
        "accelerator": np.array(["TPU-v5p"] + ["H100-80GB"] * (n - 1)),
    }
    for name, values in changes.items():
        kept = dense_gpu_rows(cases.replace(labels=cases.labels._replace(**{name: values})))
        assert kept.tolist() == [False] + [True] * (n - 1), name
    experts = cases.replace(model=stacked([plain(n_experts=8.0), *[plain()] * (n - 1)]))
    assert dense_gpu_rows(experts).tolist() == [False] + [True] * (n - 1)
