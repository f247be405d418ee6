"""Footprints: peaks that the model itself makes are predicted by a fit to others of them; odd rows
do not lead it; profiles keep it."""

import json
from dataclasses import replace
from importlib import resources

import jax
import numpy as np
import pytest

from calibration import fit
from calibration.footprints import fit_footprint, fit_footprints
from calibration.predict import predict
from calibration.ship import refit_footprints
from dmodel import profiles
from dmodel.errors import InputError
from dmodel.footprint import (
    LEAST,
    NAMES,
    RESERVED_BYTES,
    SPREAD,
    Footprint,
    from_unconstrained,
    prior,
    to_unconstrained,
    whole,
)
from dmodel.profiles import container, default_profile
from dmodel.profiles.record import Fitted
from dmodel.step import memory_use
from dmodel.units import GIB
from tests.fitting import synthetic

STACK = "megatron-test"
TRUTH = Footprint(
    gradient=1.5,
    optimizer=1.0,
    activation=1.4,
    copies=0.1,
    kept=0.02,
    gathered=0.6,
    logit=1.8,
    last_stage=0.95,
    reserved=0.8 * GIB,
)
FEW = np.arange(18) % 9 != 4


@pytest.fixture(scope="module", autouse=True)
def standard_promotion():
    """optax mixes float and integer, which `strict` forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def peaks(cases, footprint: Footprint) -> np.ndarray:
    return np.asarray(jax.jit(memory_use)(cases.model, cases.plan, footprint=footprint).total)


def measured(cases, bytes_: np.ndarray):
    return cases.replace(labels=cases.labels._replace(peak_memory_bytes=bytes_))


@pytest.fixture(scope="module")
def cases():
    rows = synthetic()
    rows = rows.take(rows.labels.stack == STACK)
    noise = np.exp(0.01 * np.random.default_rng(3).standard_normal(len(rows)))
    return measured(rows, peaks(rows, TRUTH) * noise)


def test_peaks_that_were_not_fitted_are_predicted(cases):
    """1 % of noise goes in; without a fit the model is a sixth off."""
    found = fit_footprint(cases.take(FEW))
    error = np.abs(peaks(cases, found.footprint) / cases.labels.peak_memory_bytes - 1.0)
    assert error[~FEW].max() < 0.08 and np.median(error) < 0.02
    assert np.median(np.abs(peaks(cases, LEAST) / cases.labels.peak_memory_bytes - 1.0)) > 0.1
    assert 0.005 < found.spread < 0.1


def test_one_bad_row_does_not_lead(cases):
    peak = cases.labels.peak_memory_bytes.copy()
    peak[0] *= 2.0
    found = fit_footprint(measured(cases, peak))
    assert (
        np.median(np.abs(peaks(cases, found.footprint) / cases.labels.peak_memory_bytes - 1.0))
        < 0.03
    )


def test_a_known_footprint_is_where_a_fit_starts(cases):
    """One row moves what is known by little, and nothing known by much."""
    one = cases.take(np.arange(18) == 2)
    known = fit_footprint(one, TRUTH).footprint
    fresh = fit_footprint(one).footprint
    moved = [np.abs(to_unconstrained(f) - to_unconstrained(TRUTH)).sum() for f in (known, fresh)]
    assert moved[0] < 0.5 < moved[1]


def test_rows_that_say_nothing_are_left_out(cases):
    nothing = measured(cases, np.full(len(cases), np.nan))
    assert fit_footprints(nothing, {}) == {}
    for flag in ("lora", "offload"):
        flagged = cases.replace(labels=cases.labels._replace(flag=np.full(len(cases), flag)))
        assert fit_footprints(flagged, {}) == {}
    assert set(fit_footprints(cases, {})) == {STACK}


def test_unconstrained_and_back():
    z = to_unconstrained(TRUTH)
    back = from_unconstrained(z)
    for name in NAMES:
        assert float(getattr(back, name)) == pytest.approx(float(getattr(TRUTH, name)), rel=1e-9), (
            name
        )
    assert np.isfinite(to_unconstrained(LEAST)).all()


def test_the_fullest_device_counts_for_whether_a_plan_fits():
    full = whole(TRUTH.replace(last_stage=0.0))
    assert float(full.last_stage) == 1.0 and float(full.reserved) == RESERVED_BYTES
    assert float(whole(TRUTH.replace(reserved=9e9)).reserved) == 9e9


def test_a_fit_keeps_the_footprint_and_a_profile_too(cases, tmp_path):
    fitted = fit.fit(cases, default_profile(), starts=1)
    assert fitted.footprint_for("another") == (LEAST, SPREAD) and set(fitted.footprints) == {STACK}
    profiles.save(fitted, tmp_path / "p.json")
    again = profiles.load(tmp_path / "p.json")
    assert again.footprint_for(STACK).spread == pytest.approx(fitted.footprint_for(STACK).spread)
    found, loaded = predict(cases, fitted), predict(cases, again)
    np.testing.assert_allclose(loaded.memory_bytes, found.memory_bytes, rtol=1e-9)
    assert np.median(np.abs(found.memory_bytes / cases.labels.peak_memory_bytes - 1.0)) < 0.03
    risk = found.oom_probability
    assert ((risk >= 0.0) & (risk <= 1.0)).all()
    order = np.argsort(found.memory_bytes / np.asarray(cases.system.chip.hbm_bytes))
    assert risk[order[-1]] > risk[order[0]]


@pytest.mark.parametrize(
    "change",
    [{"kept": 1.2}, {"gradient": -1.0}, {"spread": 0.0}, {"logit": "much"}, {"unknown": 1.0}],
)
def test_a_wrong_footprint_is_refused(change, tmp_path):
    path = tmp_path / "p.json"
    base = default_profile()
    profiles.save(base, path)
    text = {**{n: 0.5 for n in NAMES}, "spread": 0.1, **change}
    document = {**json.loads(path.read_text()), "footprints": {"a": text}}
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="footprints"):
        profiles.load(path)


def test_a_variant_that_nobody_has_measured_is_as_its_family(cases):
    """Two variants are fitted; of a third the family's footprint stands, with more doubt."""
    stacks = np.where(np.arange(len(cases)) % 2 == 0, "torchtitan/one", "torchtitan/two")
    variants = cases.replace(labels=cases.labels._replace(stack=stacks))
    found = fit_footprints(variants, {})
    assert set(found) == {"torchtitan/one", "torchtitan/two", "torchtitan/*"}
    profile = replace(default_profile(), footprints=found)
    third, common = profile.footprint_for("torchtitan/three"), found["torchtitan/*"]
    assert third.footprint == common.footprint and third.spread > common.spread
    assert profile.footprint_for("torchtitan/one") == found["torchtitan/one"]
    assert profile.footprint_for("maxtext") == (LEAST, SPREAD)
    error = np.abs(peaks(cases, third.footprint) / cases.labels.peak_memory_bytes - 1.0)
    assert np.median(error) < 0.03


def test_peaks_of_tensors_alone_have_nothing_beside_them(cases):
    """Peaks that PyTorch's allocator counts are fitted and predicted without what is reserved
    beside tensors, of which they say nothing."""
    alone = measured(cases, peaks(cases, TRUTH.replace(reserved=0.0)))
    kinds = np.full(len(cases), "allocated")
    allocated = alone.replace(labels=alone.labels._replace(peak_kind=kinds))
    found, unsaid = fit_footprint(allocated).footprint, from_unconstrained(prior()[0]).reserved
    assert found.reserved == pytest.approx(float(unsaid))
    profile = replace(default_profile(), footprints={STACK: Fitted(found, 0.1)})
    told = [predict(x, profile) for x in (allocated, alone)]
    np.testing.assert_allclose(
        told[1].memory_bytes - told[0].memory_bytes, float(unsaid), rtol=1e-6
    )
    np.testing.assert_allclose(told[0].memory_bytes, alone.labels.peak_memory_bytes, rtol=0.05)
    np.testing.assert_array_equal(told[0].oom_probability, told[1].oom_probability)


def test_footprints_of_shipped_profiles_are_fitted_apart(cases, tmp_path):
    """They follow from peaks alone: all else in the files stays, byte for byte. The evidence has no
    footprint of rows that it was not fitted to."""
    shipped = resources.files("dmodel.profiles") / "data"
    for name in ("generic", "held-out"):
        (tmp_path / f"{name}.npz").write_bytes((shipped / f"{name}.npz").read_bytes())
    paths = refit_footprints(cases, tmp_path)
    for path in paths:
        before, now = (x.read_bytes() for x in (shipped / path.name, path))
        words = [container.words_of(path.name, x) for x in (before, now)]
        held = set(words[1]["document"].pop("footprints"))
        assert held == ({STACK} if path.stem == "generic" else set())
        assert words[0]["document"].pop("footprints") and words[0] == words[1]
        arrays = [container.arrays_of(path.name, x) for x in (before, now)]
        assert all(np.array_equal(arrays[1][k], x) for k, x in arrays[0].items())
