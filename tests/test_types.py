"""Helpers for scalars: what is a number, and what is none."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from dmodel.types import number


@pytest.mark.parametrize("value", [64, 64.0, np.float32(64), np.int64(64), np.array(64), jnp.asarray(64), jnp.asarray(64, jnp.bfloat16)])
def test_numbers_of_any_kind_are_numbers(value):
    assert number(value) == 64.0


@pytest.mark.parametrize(
    "value",
    ["64", b"64", bytearray(b"64"), memoryview(b"64"), np.array("64"), None, True, np.bool_(True), np.array(True), jnp.asarray(True)]
    + [10**400, [64], np.array([64.0, 64.0]), 64j, np.complex64(64), float("nan")],
    ids=lambda x: type(x).__name__,
)
def test_what_is_no_number_is_nan(value):
    assert math.isnan(number(value))
