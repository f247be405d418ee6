"""Scalars, stacking and axes."""

import jax.numpy as jnp
import numpy as np
import pytest

from dmodel.types import InputError, each, enable_float64, per_level, stack, trailing


def test_scalars_and_batches_stack():
    assert stack(1.0, 2.0).shape == (2,)
    mixed = stack(1.0, np.arange(3.0))
    np.testing.assert_array_equal(mixed, [[1.0, 1.0, 1.0], [0.0, 1.0, 2.0]])
    assert mixed.dtype == jnp.float64


def test_cases_meet_operations_and_levels():
    assert each(3.0).shape == () and each(np.ones(4)).shape == (1, 4)
    assert per_level(np.ones(2)).shape == (2, 1) and per_level(np.ones((2, 4))).shape == (2, 1, 4)
    assert trailing(np.ones(2), 3).shape == (2, 1, 1) and trailing(np.ones((2, 4)), 2).shape == (2, 4)


def test_float64_may_be_asked_for_twice():
    enable_float64()
    enable_float64()
    assert jnp.asarray(1.0).dtype == jnp.float64


def test_a_users_mistake_is_a_value_error():
    with pytest.raises(ValueError):
        raise InputError("what, expected, got, what to do")
