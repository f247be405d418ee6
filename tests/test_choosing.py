"""Choosing: regret and the order of pairs, by hand; alternatives are what a user could have chosen
between."""

import numpy as np
import pytest

from calibration.choosing import alternatives, choosing, order, regret
from tests.fitting import synthetic

MEASURED = np.array([10.0, 12.0, 11.0, 20.0])


def test_regret_is_what_the_chosen_plan_costs_more():
    assert regret(np.array([9.0, 10.0, 10.0, 10.0]), MEASURED) == 0.0
    assert regret(np.array([9.0, 8.0, 10.0, 10.0]), MEASURED) == pytest.approx(0.2)
    # predicted alike: nothing tells them apart, so the mean
    assert regret(np.array([8.0, 8.0, 10.0, 10.0]), MEASURED) == pytest.approx(0.1)


def test_order_asks_only_for_pairs_that_clearly_differ():
    measured = np.array([10.0, 10.1, 15.0])
    assert order(np.array([2.0, 1.0, 3.0]), measured).tolist() == [1.0, 1.0], (
        "1 % apart is no question"
    )
    assert order(np.array([4.0, 1.0, 3.0]), measured).tolist() == [0.0, 1.0]
    assert order(np.array([3.0, 1.0, 3.0]), measured).tolist() == [0.5, 1.0]


def test_only_sets_of_several_rows_are_choices():
    names = np.array(["a", "b", "a", "c", "b", "a"])
    measured = np.array([1.0, 5.0, 2.0, 9.0, 4.0, 3.0])
    found = choosing(names, np.array([3.0, 5.0, 2.0, 9.0, 6.0, 1.0]), measured)
    assert found.choices == 2 and found.pairs == 4
    assert found.regret == pytest.approx((2.0 + 0.25) / 2) and found.worst_regret == pytest.approx(
        2.0
    )
    assert found.order == 0.0
    alone = choosing(names[:2], measured[:2], measured[:2])
    assert alone.choices == 0 and alone.regret is None and alone.order is None


def test_perfect_predictions_have_no_regret():
    cases = synthetic(noise=0.0)
    names = alternatives(cases)
    found = choosing(np.full(len(names), "all"), cases.labels.step_time_s, cases.labels.step_time_s)
    assert found.regret == 0.0 and found.order == 1.0


def test_alternatives_share_the_job_and_differ_in_the_plan():
    cases = synthetic()
    names = alternatives(cases)
    plan = cases.plan.having(tp=np.asarray(cases.plan.layout.tp) * 2.0)
    np.testing.assert_array_equal(alternatives(cases.replace(plan=plan)), names)
    more = cases.plan.having(global_batch=np.asarray(cases.plan.global_batch) * 2.0)
    assert not np.any(alternatives(cases.replace(plan=more)) == names)
    for field in ("accelerator", "stack", "precision"):
        other = cases.labels._replace(**{field: np.full(len(cases), "another")})
        assert not np.any(alternatives(cases.replace(labels=other)) == names), field
