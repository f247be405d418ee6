"""Power between idle and peak."""

import pytest

from dmodel.cost.power import ARITHMETIC_SHARE, MEMORY_SHARE, NETWORK_SHARE, watts
from tests.points import CHIP


def test_idle_and_full_load():
    assert watts(CHIP, 0.0, 0.0, 0.0) == CHIP.idle_watts
    assert watts(CHIP, 1.0, 1.0, 1.0) == pytest.approx(CHIP.peak_watts)


def test_shares_make_a_whole():
    assert ARITHMETIC_SHARE + MEMORY_SHARE + NETWORK_SHARE == pytest.approx(1.0)


@pytest.mark.parametrize(("busy", "share"), [(0, ARITHMETIC_SHARE), (1, MEMORY_SHARE), (2, NETWORK_SHARE)])
def test_each_activity_draws_its_share(busy, share):
    activity = [float(i == busy) for i in range(3)]
    dynamic = CHIP.peak_watts - CHIP.idle_watts
    assert watts(CHIP, *activity) == pytest.approx(CHIP.idle_watts + share * dynamic)
