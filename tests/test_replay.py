"""A fit of a stack that the base knows replays the base's rows of it, and only those that it can and should."""

import dataclasses

import jax
import numpy as np
import pytest

from calibration import fit, pooling, replay
from calibration.predict import predict
from calibration.traces import Cases, published, to_cases
from dmodel.profiles import GROUPINGS, family, load
from tests.fitting import retimed

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

FOUNDRY = "llm-foundry"


@pytest.fixture(scope="module", autouse=True)
def promotion():
    """optax mixes float and integer, which `strict` forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module")
def base():
    return load("generic")


def of(stack: str, **prints) -> Cases:
    """Published rows of a family of stacks; with `new`, under fingerprints of their own, as if measured again."""
    cases = to_cases(published().select(lambda row: family(row.stack) == stack))
    if prints.get("new"):
        names = np.array([f"new {i}" for i in range(len(cases))])
        cases = cases.replace(labels=cases.labels._replace(fingerprint=names))
    return cases


@pytest.fixture(scope="module")
def foundry() -> Cases:
    return of(FOUNDRY, new=True)


def test_a_known_stack_is_told_again_by_the_rows_that_the_base_has_seen(base, foundry):
    few = foundry.take(np.arange(12))
    found = replay.replay(few, base)
    assert found.families == {FOUNDRY} and found.rows is not None
    assert {family(s) for s in found.rows.labels.stack} == {FOUNDRY}
    assert set(found.rows.labels.fingerprint) == set(of(FOUNDRY).labels.fingerprint) & set(base.fitted_rows)


def test_a_row_counts_once(base):
    """Rows that are among the cases are not replayed beside themselves."""
    rows = of(FOUNDRY)
    some = rows.take(np.arange(0, len(rows), 3))
    found = replay.replay(some, base)
    assert found.rows is not None and not set(found.rows.labels.fingerprint) & set(some.labels.fingerprint)
    assert len(found.rows) + len(some) == len(rows)
    every = replay.replay(rows, base)
    assert every.rows is None and every.families == {FOUNDRY}


@pytest.mark.parametrize("why", ["new stack", "new chip", "a row of its own", "no covariance", "no rows"])
def test_nothing_is_told_again_that_cannot_or_should_not_be(base, foundry, why):
    few = foundry.take(np.arange(12))
    names = np.full(12, {"new stack": "fsdp-own", "new chip": FOUNDRY}.get(why, FOUNDRY))
    chips = np.full(12, "TPU-v5p") if why == "new chip" else few.labels.accelerator
    few = few.replace(labels=few.labels._replace(stack=names, accelerator=chips))
    if why == "a row of its own":
        base = dataclasses.replace(base, fitted_rows=(*base.fitted_rows, "0123456789ab"))
    if why == "no covariance":
        base = dataclasses.replace(base, stack_covariances={})
    if why == "no rows":
        base = dataclasses.replace(base, fitted_rows=())
    found = replay.replay(few, base)
    assert found.rows is None and not found.families


def test_rows_of_a_new_chip_leave_other_stacks_told(base, foundry):
    """By family: one on a chip that is new to it does not keep the others from being told again."""
    mixed = foundry.take(np.arange(3))
    mixed = mixed.replace(labels=mixed.labels._replace(stack=np.array([FOUNDRY, "maxtext-readme", FOUNDRY])))
    assert replay.replay(mixed, base).families == {FOUNDRY}


def test_together_puts_old_rows_behind_new_ones(foundry):
    new, old = foundry.take(np.arange(5)), foundry.take(np.arange(7, 10))
    both = replay.together(new, old)
    for found, wanted in zip(jax.tree.leaves(both), jax.tree.leaves(foundry.take(np.array([0, 1, 2, 3, 4, 7, 8, 9]))), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert list(both.labels.fingerprint) == [f"new {i}" for i in (0, 1, 2, 3, 4, 7, 8, 9)]
    assert replay.together(new, None) is new


def test_told_stacks_start_as_new_ones_and_the_center_stays(base):
    groups = pooling.groups_of(["H100-80GB"], [FOUNDRY])
    known = pooling.prior_for(groups, base, fresh=False)
    told = pooling.prior_for(groups, base, fresh=False, told=frozenset({FOUNDRY}))
    assert not np.any(told.center_width) and not np.any(known.center_width)
    for i, (grouping, name) in enumerate(groups.members):
        own = grouping in ("stack", "variant", "pair")
        assert bool(np.any(told.factor[i])) == own, (grouping, name)
        np.testing.assert_array_equal(told.offset[i], 0.0 if own else known.offset[i])
    assert told.noise[0] == pooling.NOISE


@pytest.fixture(scope="module")
def few(foundry) -> np.ndarray:
    return np.arange(0, len(foundry), 7)


@pytest.fixture(scope="module")
def fitted(base, foundry, few):
    return fit.fit(foundry.take(few), base, starts=1)


def test_the_fit_keeps_what_it_shares_and_says_what_it_replayed(base, foundry, few, fitted):
    np.testing.assert_array_equal(fitted.center, base.center)
    for grouping in GROUPINGS:
        for member, offset in base.offsets[grouping].items():
            if FOUNDRY not in member:
                np.testing.assert_array_equal(fitted.offsets[grouping][member], offset, err_msg=member)
    assert set(fitted.fitted_rows) == {*base.fitted_rows, *foundry.take(few).labels.fingerprint}
    assert len(fitted.data) == len(base.data) + len(np.unique(foundry.take(few).labels.source))
    assert fitted.data[-1]["rows"] <= len(few) and f"beside {len(foundry)} of its rows" in fitted.description


def test_what_the_new_rows_do_not_tell_stays_as_the_old_rows_have_it(base, foundry, few, fitted):
    """The rows of the stack are predicted as well as by the base, which was fitted to all of them at once."""
    before, after = (np.abs(np.log(predict(foundry, p).step_time_s / foundry.labels.step_time_s)) for p in (base, fitted))
    assert np.median(after) < 1.3 * np.median(before) + 0.003 and np.mean(after) < 1.3 * np.mean(before)


def test_new_rows_weigh_more_than_old_ones(base, foundry, few):
    """Eleven rows measured 10 % slower than published, beside 76 old ones at a fifth: 0.42 of the way by their weights, 0.13 by number."""
    slow = foundry.take(few)
    slow = retimed(slow, 1.1 * slow.labels.step_time_s)
    found = fit.fit(slow, base, starts=1)
    moved = np.median(np.log(predict(foundry, found).step_time_s / predict(foundry, base).step_time_s)) / np.log(1.1)
    assert 0.3 < moved < 0.6
