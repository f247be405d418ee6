"""Power between idle and peak, by mechanism."""

import pytest

from dmodel import catalog
from dmodel.cost.power import HBM_JOULES_PER_BYTE, WAITING_RANGE, WAITING_SHARE, host_watts, watts
from tests.points import CHIP


def test_idle_and_full_load():
    assert watts(CHIP, 0.0, 0.0, 0.0) == CHIP.idle_watts
    assert watts(CHIP, 1.0, 1.0, 0.0) == pytest.approx(CHIP.peak_watts)


def test_waiting_draws_more_than_rest_and_less_than_work():
    waiting = float(watts(CHIP, 1.0, 0.0, 0.0))
    assert waiting == pytest.approx(CHIP.idle_watts + WAITING_SHARE * (CHIP.peak_watts - CHIP.idle_watts))
    assert WAITING_RANGE[0] < WAITING_SHARE < WAITING_RANGE[1]


@pytest.mark.parametrize("name", catalog.names("chips"))
def test_streaming_at_full_bandwidth_stays_within_the_rated_power(name):
    """Energies of a byte are absolute, the rest is relative to the data sheet: they have to be of one size on every chip."""
    chip = catalog.chip(name, catalog.precisions(name)[0])
    streaming = float(watts(chip, 1.0, 0.0, chip.hbm_bytes_per_s))
    assert chip.idle_watts < streaming < 1.05 * chip.peak_watts
    assert float(HBM_JOULES_PER_BYTE * chip.hbm_bytes_per_s) > 0.05 * float(chip.peak_watts - chip.idle_watts)


def test_a_server_of_eight_draws_what_was_measured():
    """8.4 kW of a server of 8 H100s at full load (Latif et al. 2024)."""
    h100 = catalog.chip("H100-80GB")
    assert 8 * float(watts(h100, 1.0, 1.0, 0.0) + host_watts(h100)) == pytest.approx(8400.0, rel=0.01)
