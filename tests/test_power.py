"""Power between idle and its limit, by mechanism."""

import numpy as np
import pytest

from calibration.torch_step import kinds
from dmodel import catalog
from dmodel.cost.power import RUNNING_SHARE, WAITING_RANGE, WAITING_SHARE, Activities, draw, host_watts, watts
from experiments.one_device import CHIPS, DATA, drawn
from tests.points import CHIP


def busy(**shares: float) -> Activities:
    return Activities(**(dict.fromkeys(Activities._fields, 0.0) | shares))


def test_idle_and_full_load():
    assert watts(CHIP, busy(), 1.5) == CHIP.idle_watts
    assert watts(CHIP, busy(working=1.0, products=1.0), 1.5) == pytest.approx(CHIP.peak_watts, rel=5e-3)


def test_waiting_draws_more_than_rest_and_less_than_work():
    limit = CHIP.peak_watts - CHIP.idle_watts
    for waiting in (busy(working=1.0, exposed=1.0), busy(idling=1.0)):
        assert float(watts(CHIP, waiting, 1.5)) == pytest.approx(CHIP.idle_watts + WAITING_SHARE * limit, rel=1e-3)
    assert RUNNING_SHARE < WAITING_RANGE[0] < WAITING_SHARE < WAITING_RANGE[1]


def test_the_limit_cuts_all_causes_alike():
    """Twice of everything within the same time draws the same mixture, at the limit."""
    once = draw(CHIP, busy(working=1.0, products=0.5, streaming=0.4, exposed=0.1), 1.5)
    twice = draw(CHIP, busy(working=1.0, products=1.0, streaming=0.8, exposed=0.2), 1.5)
    assert float(once.total) < float(twice.total) == pytest.approx(CHIP.peak_watts, rel=5e-3)
    assert float(twice.memory / twice.arithmetic) == pytest.approx(float(once.memory / once.arithmetic))


@pytest.mark.parametrize("name", catalog.names("chips"))
def test_streaming_draws_less_than_the_limit(name):
    chip = catalog.chip(name, catalog.precisions(name)[0])
    share = (watts(chip, busy(working=1.0, streaming=1.0), 1.5) - chip.idle_watts) / (chip.peak_watts - chip.idle_watts)
    assert RUNNING_SHARE < float(share) < 0.7


def test_a_server_of_eight_draws_what_was_measured():
    """8.4 kW of a server of 8 H100s at full load (Latif et al. 2024)."""
    h100 = catalog.chip("H100-80GB")
    assert 8 * float(watts(h100, busy(working=1.0, products=1.0), 1.5) + host_watts(h100)) == pytest.approx(8400.0, rel=0.01)


def test_steps_on_one_device_draw_what_was_measured():
    """By the times that their kernels took: within 6 % in the middle, on a sensor whose readings pass the limit by up to 13 %."""
    rows = kinds.read(DATA / "steps.csv")
    found = np.array([drawn(r, catalog.chip(CHIPS[r["device"]]), 1.47) for r in rows])
    errors = np.abs(found / np.array([float(r["watts"]) for r in rows]) - 1.0)
    assert len(errors) > 70 and np.median(errors) < 0.06 and errors.max() < 0.35
