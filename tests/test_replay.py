"""A fit of a stack that the base knows replays the base's rows of it, and only those that it can
and should."""

import dataclasses

import jax
import numpy as np
import pytest

from calibration import fit, pooling, replay
from calibration.predict import predict
from calibration.traces import Cases, published, to_cases
from calibration.uncertainty.posterior import posterior
from calibration.weights import COMPOSED_ROWS, weights_beside, weights_of
from dmodel.errors import InputError
from dmodel.profiles import GROUPINGS, family, load
from tests.fitting import retimed

FOUNDRY, BRIDGE = "llm-foundry", "megatron-bridge"


@pytest.fixture(scope="module")
def base():
    return load("generic")


def of(stack: str, new: bool = False) -> Cases:
    """Published rows of a family of stacks; with `new`, under fingerprints of their own, as if
    measured again."""
    cases = to_cases(published().select(lambda row: family(row.stack) == stack))
    if new:
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
    assert set(found.rows.labels.fingerprint) == set(of(FOUNDRY).labels.fingerprint) & set(
        base.fitted_rows
    )


def test_a_row_counts_once(base):
    """Rows at hand, fitted or held out, are not replayed."""
    rows = of(FOUNDRY)
    fitted, aside = rows.take(np.arange(0, len(rows), 3)), rows.take(np.arange(1, len(rows), 3))
    found = replay.replay(fitted, base, aside.labels.fingerprint)
    assert found.rows is not None
    assert not set(found.rows.labels.fingerprint) & {
        *fitted.labels.fingerprint,
        *aside.labels.fingerprint,
    }
    assert len(found.rows) + len(fitted) + len(aside) == len(rows)
    every = replay.replay(rows, base)
    assert every.rows is None and every.families == {FOUNDRY}


def test_only_what_is_fitted_is_told_again(base, foundry):
    """A held-out row of another stack moves nothing of that stack."""
    other = of("maxtext-readme").labels.fingerprint[:1]
    assert replay.replay(foundry.take(np.arange(12)), base, other).families == {FOUNDRY}


@pytest.mark.parametrize(
    "why", ["new stack", "new chip", "a row of its own", "no covariance", "no rows"]
)
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
    assert ("a normal distribution" in found.said) == (
        why in ("new chip", "a row of its own", "no rows")
    )


def test_rows_of_a_new_chip_leave_other_stacks_told(base, foundry):
    """By family: one on a chip that is new to it does not keep the others from being told again."""
    mixed = foundry.take(np.arange(3))
    mixed = mixed.replace(
        labels=mixed.labels._replace(stack=np.array([FOUNDRY, "maxtext-readme", FOUNDRY]))
    )
    assert replay.replay(mixed, base).families == {FOUNDRY}


def test_together_puts_old_rows_behind_new_ones(foundry):
    """Texts of any length are kept: names of variants and fingerprints of published rows are longer
    than those of the new ones here."""
    published_rows = of(FOUNDRY)
    longest = np.argsort([len(s) for s in published_rows.labels.stack.tolist()])[-3:]
    new, old = foundry.take(np.arange(5)), published_rows.take(longest)
    both = replay.together(new, old)
    for found, first, last in zip(*map(jax.tree.leaves, (both, new, old)), strict=True):
        np.testing.assert_array_equal(found, np.concatenate([first, last], -1))
    for found, first, last in zip(both.labels, new.labels, old.labels, strict=True):
        assert [str(x) for x in found] == [str(x) for x in (*first, *last)]
    assert replay.together(new, None) is new


def test_rows_of_other_kinds_of_layers_are_fitted_beside_new_ones(base):
    """Dense rows of a stack whose other rows have experts and more: every row keeps its time and
    memory, and a fit of a few ends."""
    rows = of(BRIDGE)
    dense = published().select(
        lambda row: family(row.stack) == BRIDGE and row.text("model") == "llama3.1-405b"
    )
    new = to_cases(dense)
    assert jax.tree.structure(new.model) != jax.tree.structure(rows.model) and len(new) > 12
    apart = [predict(each, base.certain) for each in (new, rows)]
    found = predict(replay.together(new, rows), base.certain)
    for name in ("step_time_s", "memory_bytes"):
        expected = np.concatenate([getattr(each, name) for each in apart])
        np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-9)
    few = new.take(np.arange(12))
    assert replay.replay(few, base).rows is not None
    assert "beside" in fit.fit(few, base, starts=1, polish=2).description


def test_told_stacks_move_as_new_ones_from_where_they_are_and_the_center_stays(base):
    groups = pooling.groups_of(["A100-40GB"], [f"{FOUNDRY}/pure"])
    known = pooling.prior_for(groups, base, fresh=False)
    told = pooling.prior_for(groups, base, fresh=False, told=frozenset({FOUNDRY}))
    assert not np.any(told.center_width) and {g for g, _ in groups.members[1:]} == set(GROUPINGS)
    np.testing.assert_array_equal(told.offset, known.offset)
    for i, (grouping, name) in enumerate(groups.members):
        own = grouping in ("stack", "variant", "port", "pair")
        assert bool(np.any(told.factor[i])) == own, (grouping, name)
        assert bool(np.any(known.factor[i])) == (grouping == "stack"), (grouping, name)
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
                np.testing.assert_array_equal(
                    fitted.offsets[grouping][member], offset, err_msg=member
                )
    assert set(fitted.fitted_rows) == {*base.fitted_rows, *foundry.take(few).labels.fingerprint}
    assert len(fitted.data) == len(base.data) + len(np.unique(foundry.take(few).labels.source))
    assert (
        fitted.data[-1]["rows"] <= len(few)
        and f"beside {len(foundry)} of its rows" in fitted.description
    )
    assert fitted.accelerators == base.accelerators and fitted.stacks == base.stacks


def test_composed_rows_share_what_they_count_for():
    """A composed row that is replayed counts a fifth of a new one too."""
    flags, old = np.array(["composed"] * 20 + [""]), of("vtrain")
    kept = np.arange(21) != 0
    weights = weights_beside(flags, kept, old)
    composed = np.char.find(old.labels.flag.astype(str), "composed") >= 0
    assert len(weights) == 20 + len(old) and weights[19] == 1.0 and composed.any()
    np.testing.assert_allclose(weights[20:][composed], replay.WEIGHT * weights[0])
    assert 20 * weights[0] + weights[20:][composed].sum() / replay.WEIGHT == pytest.approx(
        COMPOSED_ROWS
    )
    np.testing.assert_array_equal(weights_beside(flags, kept, None), weights_of(flags)[kept])


def test_rows_measured_again_do_not_look_like_noise(base, fitted):
    """Their groups are known by the rows replayed, so a fit without the new ones misses them by no
    more than before."""
    assert fitted.scatter[FOUNDRY].noise < 1.15 * base.scatter[FOUNDRY].noise


def test_from_a_view_it_ends_near_where_it_ends_from_all(foundry, few, fitted):
    found = fit.fit(foundry.take(few), load("h100-fsdp"), starts=1)
    apart = np.abs(
        np.log(predict(foundry, found).step_time_s / predict(foundry, fitted).step_time_s)
    )
    assert np.median(apart) < 0.01 and np.quantile(apart, 0.9) < 0.03


def test_variants_without_a_new_row_stay_by_their_own(base):
    """New rows of one variant of torchtitan: the others are predicted about as well as by the
    base."""
    cases = of("torchtitan", new=True)
    mine = cases.labels.stack == "torchtitan/float8"
    found = fit.fit(cases.take(np.flatnonzero(mine)[::2]), base, starts=1)
    rest = cases.take(np.flatnonzero(~mine))
    before, after = (
        np.abs(np.log(predict(rest, p).step_time_s / rest.labels.step_time_s)).mean()
        for p in (base, found)
    )
    assert after < 1.1 * before


def test_a_second_fit_says_that_it_replays_nothing(foundry, few, fitted):
    """The rows of the first one are not in the package."""
    again = replay.replay(foundry.take(few), fitted)
    assert again.rows is None and not again.families and "not all of its rows" in again.said


def test_the_exact_posterior_of_a_few_rows_is_not_that_of_a_fit_that_replays(base, foundry, few):
    with pytest.raises(InputError, match="the base has seen llm-foundry"):
        posterior(foundry.take(few), base)


def test_what_the_new_rows_do_not_tell_stays_as_the_old_rows_have_it(base, foundry, few, fitted):
    """The rows of the stack are predicted as well as by the base, which was fitted to all of them
    at once."""
    before, after = (
        np.abs(np.log(predict(foundry, p).step_time_s / foundry.labels.step_time_s))
        for p in (base, fitted)
    )
    assert np.median(after) < 1.3 * np.median(before) + 0.003 and np.mean(after) < 1.3 * np.mean(
        before
    )


def test_new_rows_weigh_more_than_old_ones(base, foundry, few):
    """A seventh of the rows, 3 % slower than published, beside all at a fifth: 0.42 of the way by
    their weights, 0.13 by number."""
    slow = foundry.take(few)
    slow = retimed(slow, 1.03 * slow.labels.step_time_s)
    found = fit.fit(slow, base, starts=1)
    moved = np.median(
        np.log(predict(foundry, found).step_time_s / predict(foundry, base).step_time_s)
    ) / np.log(1.03)
    assert 0.3 < moved < 0.5
