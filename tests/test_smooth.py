"""Smooth maxima, minima, positive parts: limits, homogeneity, gradients against finite differences,
safety at zeros and ties."""

from functools import cache
from math import inf

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel import smooth
from tests.points import quick

SHARP = (2.0, 4.0, 8.0, 16.0, inf)
EPS = 1e-5


def both(function):
    """A function of two values as one of their stack."""
    return lambda x, p: function(x[0], x[1], p)


FUNCTIONS = {
    "maximum": smooth.maximum,
    "minimum": smooth.minimum,
    "positive_part": both(smooth.positive_part),
    "excess": both(smooth.excess),
}
HARD = {
    "maximum": lambda x: x.max(0),
    "minimum": lambda x: x.min(0),
    "positive_part": lambda x: np.maximum(x[0] - x[1], 0.0),
    "excess": lambda x: np.maximum(x[1] - x[0], 0.0),
}
EACH = pytest.mark.parametrize("name", FUNCTIONS)
ALL = pytest.mark.parametrize(("name", "p"), [(name, p) for name in FUNCTIONS for p in SHARP])

draw = np.random.default_rng(0)
PAIRS = 10.0 ** draw.uniform(-3.0, 3.0, (2, 60))
"""Pairs of positive values over six decades."""
CORNERS = np.array(
    [[0.0, 0.0, 1.0, 1.0, 1e-300, 1e150, 1e-9], [0.0, 1.0, 0.0, 1.0, 1e-300, 1e150, 1e9]]
)
"""Zeros, ties, and values whose eighth power leaves the range of a float."""
ROUNDING = 1e-14
"""A few units of the last digit of the larger value: a minimum of 1e-3 and 1e3 has no more digits
of its own."""


@cache
def programs(name, p):
    """A function, and its slopes."""
    return (
        quick(lambda x: FUNCTIONS[name](x, p)),
        quick(jax.grad(lambda x: FUNCTIONS[name](x, p).sum())),
    )


def values(name, x, p):
    return programs(name, p)[0](x)


def slopes(name, p, x):
    return programs(name, p)[1](x)


def differences(name, p, x):
    """Central differences in relative steps, `[2, n]`."""
    rows = []
    for i in range(2):
        step = np.zeros_like(x)
        step[i] = EPS * x[i]
        rows.append((values(name, x + step, p) - values(name, x - step, p)) / (2.0 * step[i]))
    return np.stack(rows)


@EACH
def test_infinite_sharpness_is_the_hard_function(name):
    x = np.concatenate([PAIRS, CORNERS], 1)
    assert (np.abs(values(name, jnp.asarray(x), inf) - HARD[name](x)) <= ROUNDING * x.max(0)).all()


@EACH
def test_the_hard_function_is_approached(name):
    """The distance shrinks with every doubling of p, and is at most the value at a tie there:
    2^(1/p) − 1 or 1/p of the larger value."""
    x, larger = jnp.asarray(PAIRS), PAIRS.max(0)
    gaps = [np.abs(values(name, x, p) - HARD[name](PAIRS)) / larger for p in SHARP[:-1]]
    for wide, narrow, p in zip(gaps[:-1], gaps[1:], SHARP[1:], strict=False):
        assert (narrow <= wide + ROUNDING).all() and narrow.max() <= 1.0 / p
    assert gaps[0].max() > 0.05


@ALL
def test_homogeneous_of_degree_one(name, p):
    x = jnp.asarray(PAIRS)
    for scale in (1e-9, 3.0, 1e12):
        gap = values(name, scale * x, p) - scale * values(name, x, p)
        assert (np.abs(gap) <= 10.0 * ROUNDING * scale * PAIRS.max(0)).all()


@ALL
def test_euler_the_value_is_the_sum_of_slopes_times_values(name, p):
    """Holds for every function homogeneous of degree 1; it is what makes elasticities add up."""
    x = np.concatenate([PAIRS, CORNERS[:, 1:4]], 1)
    value, products = values(name, jnp.asarray(x), p), slopes(name, p, x) * x
    assert (np.abs(products.sum(0) - value) <= 10.0 * ROUNDING * x.max(0)).all()


@ALL
def test_gradient_is_the_finite_difference(name, p):
    x = PAIRS[:, np.abs(np.log(PAIRS[0] / PAIRS[1])) > 10.0 * EPS]
    found, expected = np.asarray(slopes(name, p, x)), differences(name, p, x)
    # in relative steps of 1e-5 the rounding of a difference is 1e-11 of the larger value
    assert (np.abs(found - expected) * x <= 1e-6 * np.abs(expected) * x + 1e-10 * x.max(0)).all()
    assert np.abs(found).max() > 0.1


@ALL
def test_jit_and_vmap_are_the_plain_function(name, p):
    x = jnp.asarray(np.concatenate([PAIRS, CORNERS], 1))
    plain = FUNCTIONS[name](x, p)
    for other in (
        jax.jit(lambda x: FUNCTIONS[name](x, p))(x),
        jax.vmap(lambda a: FUNCTIONS[name](a, p), in_axes=1)(x),
    ):
        assert (np.abs(other - plain) <= ROUNDING * np.asarray(x).max(0)).all()


@ALL
def test_values_and_slopes_are_finite_and_bounded_at_corners(name, p):
    x = jnp.asarray(CORNERS)
    value, gradient = np.asarray(values(name, x, p)), np.asarray(slopes(name, p, x))
    assert np.isfinite(value).all() and (value >= 0.0).all()
    assert np.isfinite(gradient).all() and (np.abs(gradient) <= 1.0 + 1e-12).all()
    assert value[0] == 0.0


@ALL
def test_second_derivatives_are_finite(name, p):
    points = np.concatenate([PAIRS[:, :5], CORNERS[:, [0, 1, 2, 3]]], 1).T
    hessians = np.asarray(
        quick(jax.vmap(jax.hessian(lambda x: FUNCTIONS[name](x, p))))(jnp.asarray(points))
    )
    assert hessians.shape == (9, 2, 2) and np.isfinite(hessians).all()
    for hessian in hessians:
        np.testing.assert_allclose(hessian, hessian.T, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["maximum", "positive_part", "excess"])
@pytest.mark.parametrize("p", [2.0, 8.0])
def test_hessian_is_the_difference_of_slopes(name, p):
    point = np.array([[1.3], [0.9]])
    hessian = np.asarray(
        quick(jax.hessian(lambda x: FUNCTIONS[name](x, p).sum()))(jnp.asarray(point))
    ).reshape(2, 2)
    for i in range(2):
        step = np.zeros((2, 1))
        step[i] = EPS
        column = (slopes(name, p, point + step) - slopes(name, p, point - step)) / (2.0 * EPS)
        np.testing.assert_allclose(hessian[:, i], column[:, 0], rtol=1e-6)


def test_maximum_of_one_and_of_many():
    np.testing.assert_array_equal(smooth.maximum(jnp.array([[3.0, 0.0]])), [3.0, 0.0])
    x = draw.uniform(0.1, 1.0, (9, 20))
    np.testing.assert_allclose(
        smooth.maximum(jnp.asarray(x), 8.0), (x**8).sum(0) ** 0.125, rtol=1e-14
    )


def test_slopes_of_a_maximum_at_a_tie_are_equal():
    for p in SHARP:
        gradient = np.asarray(slopes("maximum", p, np.ones((4, 1))))
        np.testing.assert_allclose(
            gradient, 0.25 if p == inf else 4.0 ** (1.0 / p - 1.0), rtol=1e-14
        )


def test_the_minimum_of_zero_and_anything_is_zero():
    np.testing.assert_array_equal(smooth.minimum(jnp.asarray(CORNERS[:, :3]), 8.0), 0.0)


@pytest.mark.parametrize("p", SHARP)
def test_positive_part_limits(p):
    cost = jnp.asarray(PAIRS[0])
    np.testing.assert_array_equal(smooth.positive_part(cost, jnp.zeros_like(cost), p), cost)
    np.testing.assert_array_equal(smooth.positive_part(jnp.zeros_like(cost), cost, p), 0.0)
    np.testing.assert_allclose(smooth.positive_part(cost, cost, p), cost / p, rtol=1e-14)


@pytest.mark.parametrize("p", SHARP[:-1])
def test_small_remainders_keep_their_digits(p):
    """Where one value is a million times the other, subtraction would leave rounding; these do not
    subtract."""
    small, large = jnp.array([1.0]), jnp.array([1e6])
    np.testing.assert_allclose(smooth.positive_part(small, large, p), 1.0 / p**2, rtol=3e-6)
    np.testing.assert_allclose(smooth.excess(large, small, p), 1e6 ** (1.0 - p) / p, rtol=1e-5)
    np.testing.assert_allclose(
        slopes("excess", p, np.array([[1e6], [1.0]]))[0], -(1.0 - 1.0 / p) * 1e6 ** (-p), rtol=1e-5
    )


@pytest.mark.parametrize("p", SHARP)
def test_excess_and_low_are_the_maximum(p):
    x = jnp.asarray(PAIRS)
    np.testing.assert_allclose(
        x[0] + smooth.excess(x[0], x[1], p), smooth.maximum(x, p), rtol=1e-14
    )


def test_ramp():
    x = jnp.array([-1.0, 0.0, 0.3, 1.0, 7.0])
    np.testing.assert_array_equal(smooth.ramp(x), [0.0, 0.0, 0.3, 1.0, 1.0])
    np.testing.assert_array_equal(
        jax.grad(lambda x: smooth.ramp(x).sum())(x), [0.0, 0.5, 1.0, 0.5, 0.0]
    )
    np.testing.assert_array_equal(
        jax.grad(lambda x: jnp.clip(x, 0.0, 1.0).sum())(x),
        jax.grad(lambda x: smooth.ramp(x).sum())(x),
    )


def test_clip_has_the_gradient_of_two_maxima():
    """Also at its ends, and where both ends and x are equal."""
    x, low, high = (
        jnp.array(v)
        for v in (
            [-1.0, 0.0, 0.3, 1.0, 7.0, 2.0, 5.0],
            [0.0] * 5 + [2.0] * 2,
            [1.0] * 5 + [2.0, jnp.inf],
        )
    )
    np.testing.assert_array_equal(smooth.clip(x, low, high), jnp.clip(x, low, high))
    found, expected = (
        jax.grad(lambda *v, f=f: f(*v).sum(), argnums=(0, 1, 2))(x, low, high)
        for f in (smooth.clip, jnp.clip)
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("p", [0.0, 1.0, 3.0, -2.0, 6.0])
def test_other_sharpness_is_refused(p):
    with pytest.raises(ValueError, match="power of two"):
        smooth.maximum(jnp.ones((2, 1)), p)


@pytest.mark.parametrize("sharpness", [8.0, 64.0, 256.0, 4096.0])
def test_a_difference_a_hair_below_nothing_adds_nothing(sharpness):
    low, high = jnp.asarray(0.0), jnp.asarray(-1e-17)
    assert abs(float(smooth.excess(low, high, sharpness))) <= 1e-17
