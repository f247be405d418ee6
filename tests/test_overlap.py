"""What is not hidden, and what waiting costs."""

from math import inf

import numpy as np
import pytest

from dmodel.cost.overlap import exposed_time, straggler_share


@pytest.mark.parametrize("sharpness", [2.0, 8.0, 64.0, inf])
def test_limits(sharpness):
    assert float(exposed_time(3.0, 5.0, 0.0, sharpness)) == 3.0
    assert float(exposed_time(3.0, 0.0, 1.0, sharpness)) == 3.0
    assert float(exposed_time(0.0, 5.0, 1.0, sharpness)) == 0.0
    assert float(exposed_time(3.0, 3.0, 1.0, sharpness)) == pytest.approx(
        0.0 if sharpness == inf else 3.0 / sharpness
    )


@pytest.mark.parametrize("sharpness", [2.0, 8.0, inf])
def test_between_the_hard_part_and_all_of_it(sharpness):
    """Smoothing exposes more, never more than there is; a longer window hides more, and so does
    more overlap."""
    rng = np.random.default_rng(0)
    cost, window, overlap = rng.uniform(0, 3, 500), rng.uniform(0, 3, 500), rng.uniform(0, 1, 500)
    found = np.asarray(exposed_time(cost, window, overlap, sharpness))
    assert (found >= np.maximum(cost - overlap * window, 0.0) - 1e-15).all() and (
        found <= cost + 1e-15
    ).all()
    assert (np.asarray(exposed_time(cost, 1.1 * window, overlap, sharpness)) <= found + 1e-15).all()


def test_a_vast_window_hides_all_but_a_share_without_cancellation():
    """c ω⁻¹: for w ≫ c what is left tends to c · c/(p² c) = c / p² of the cost, correct to
    rounding."""
    left = float(exposed_time(1.0, 1e12, 1.0, 8.0))
    assert left == pytest.approx(1.0 / 64.0, rel=1e-9)


def test_the_slowest_of_many():
    """σ sqrt(2 ln n) for many devices, nothing for one, and always growing."""
    assert float(straggler_share(1.0, 0.02)) == 0.0
    assert float(straggler_share(1e300, 0.02)) == pytest.approx(
        0.02 * np.sqrt(2.0 * np.log(1e300)), rel=1e-3
    )
    shares = np.asarray(straggler_share(np.logspace(0, 6, 50), 0.02))
    assert (np.diff(shares) > 0.0).all()


def test_the_slowest_of_many_against_a_simulation():
    """The mean largest of n normal jitters: within a quarter from 64 devices on, where the model is
    meant to hold."""
    rng = np.random.default_rng(0)
    for n in (64, 1024):
        drawn = rng.standard_normal((1000, n)).max(1).mean()
        assert float(straggler_share(float(n), 1.0)) == pytest.approx(drawn, rel=0.25)
