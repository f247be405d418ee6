"""Helpers for scalars: what is a number, and what is none."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel.coefficients import NAMES, default, from_unconstrained, to_unconstrained
from dmodel.smooth import ramp
from dmodel.types import larger, modulo, number, smaller, stack


@pytest.mark.parametrize(
    "value",
    [
        64,
        64.0,
        np.float32(64),
        np.int64(64),
        np.array(64),
        jnp.asarray(64),
        jnp.asarray(64, jnp.bfloat16),
    ],
)
def test_numbers_of_any_kind_are_numbers(value):
    assert number(value) == 64.0


@pytest.mark.parametrize(
    "value",
    [
        "64",
        b"64",
        bytearray(b"64"),
        memoryview(b"64"),
        np.array("64"),
        None,
        True,
        np.bool_(True),
        np.array(True),
        jnp.asarray(True),
    ]
    + [10**400, [64], np.array([64.0, 64.0]), 64j, np.complex64(64), float("nan")],
    ids=lambda x: type(x).__name__,
)
def test_what_is_no_number_is_nan(value):
    assert math.isnan(number(value))


PAIRS = [
    (7, 2.5),
    (True, 0),
    (np.int32(-7), 3.0),
    (np.float32(0.5), 0.25),
    (np.array([1.0, -2.0, 0.5]), 0.75),
    (np.array([[1.0], [2.0]]), np.arange(3.0)[None]),
]


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_numpy_says_of_numbers_at_hand_what_jax_does(a, b):
    given, arrays = (a, b), [jnp.asarray(np.asarray(x, float)) for x in (a, b)]
    for function in (larger, smaller, stack, lambda x, y: modulo(x, y + 1.0), lambda x, y: ramp(x)):
        found, expected = function(*given), function(*arrays)
        assert not isinstance(found, jax.Array) and isinstance(expected, jax.Array)
        np.testing.assert_array_equal(found, expected)


def test_a_traced_number_is_not_at_hand():
    """Beside numpy's too, and in a list."""
    slope = jax.grad(
        lambda x: (
            larger(x, np.array([0.0, 2.0])).sum()
            + stack(x, 1.0).sum()
            + smaller(np.float64(3.0), x)
        )
    )
    assert float(slope(1.0)) == 1.0 + 1.0 + 1.0
    z = to_unconstrained(default())
    found = jax.grad(lambda z: from_unconstrained(list(z)).launch)(z)  # type: ignore[arg-type]
    assert np.count_nonzero(found) == 1 and float(found.sum()) == pytest.approx(
        float(default().launch)
    )


def test_coefficients_of_numbers_at_hand_are_those_of_jax():
    z = np.random.default_rng(0).normal(scale=30.0, size=(len(NAMES), 5))
    for found, expected in zip(
        jax.tree.leaves(from_unconstrained(z)),
        jax.tree.leaves(from_unconstrained(jnp.asarray(z))),
        strict=True,
    ):
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, expected, rtol=1e-13)
    z[:, 0], z[:, 1] = 800.0, np.nan
    np.testing.assert_array_equal(from_unconstrained(z).launch[:2], [np.inf, np.nan])
