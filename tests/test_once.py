"""Shared quantities: computed once where it is asked for, for the same records only, and never
across transformations."""

import jax
import jax.numpy as jnp

from dmodel.once import once, together
from dmodel.records import Plan

CALLS: list[Plan] = []
PLAN = Plan.of(dp=4.0, tp=2.0, global_batch=8.0)


@once
def ranks(plan: Plan):
    CALLS.append(plan)
    return plan.layout.dp * plan.layout.tp


def counted(f) -> int:
    """Times that `ranks` is computed."""
    CALLS.clear()
    f()
    return len(CALLS)


def both(plan: Plan):
    with together():
        return ranks(plan) + ranks(plan)


def test_once_inside_and_each_time_outside():
    assert counted(lambda: both(PLAN)) == 1
    assert counted(lambda: [ranks(PLAN), ranks(PLAN)]) == 2
    assert counted(lambda: [both(PLAN), both(PLAN)]) == 2, "nothing is kept from one to the next"


def test_other_records_have_their_own_answer():
    with together():
        assert float(ranks(PLAN)) == 8.0 and float(ranks(PLAN.having(tp=3.0))) == 12.0


def test_the_outermost_one_keeps():
    def nested():
        with together():
            ranks(PLAN)
            both(PLAN)
            ranks(PLAN)

    assert counted(nested) == 1


def test_nothing_is_kept_after_an_error():
    try:
        with together():
            ranks(PLAN)
            raise KeyError
    except KeyError:
        assert counted(lambda: ranks(PLAN)) == 1


def test_transformations_inside_have_their_own_answer():
    """A traced answer for a record of plain numbers must not come out of its trace."""
    with together():
        traced = jax.jit(lambda x: x * ranks(PLAN))(2.0)
        slope = jax.grad(lambda x: x**2 * ranks(PLAN))(jnp.asarray(3.0))
        assert float(traced) == 16.0 and float(slope) == 48.0 and float(ranks(PLAN)) == 8.0


def test_slopes_add_up():
    slope = jax.grad(lambda tp: both(PLAN.having(tp=tp)))(jnp.asarray(5.0))
    assert float(slope) == 8.0
