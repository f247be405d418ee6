"""Contention of communication with compute: its limits, and the size that fits of traces find."""

from math import inf

import pytest

from dmodel.coefficients import SPECS
from dmodel.cost.interference import contention


def test_limits():
    assert float(contention(1.0, 132.0, 4e11, 3.35e12)) == pytest.approx(2.2 * 16.0 / 132.0)
    assert float(contention(0.0, 132.0, 4e11, 3.35e12, sharpness=inf)) == pytest.approx(
        2.5 * 4e11 / 3.35e12
    )
    assert float(contention(0.0, 132.0, 1e10, 3.35e12, sharpness=inf)) == pytest.approx(
        16.0 / 132.0
    )
    assert float(contention(0.5, 132.0, 0.0, 3.35e12, channels=0.0)) == 0.0


def test_it_is_of_the_size_of_the_coefficient():
    """The prior of the fitted coefficient is as wide as a factor of two: the mechanism lies
    within."""
    expected = float(contention(0.8, 132.0, 3.2e11, 3.35e12))
    assert SPECS["contention"].default / 2.0 < expected < SPECS["contention"].default * 2.0
