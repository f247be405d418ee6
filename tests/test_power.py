"""Power between idle and its limit, by mechanism."""

import numpy as np
import pytest

from calibration.torch_step import kinds
from dmodel import catalog
from dmodel.cost.power import (
    RUNNING_SHARE,
    WAITING_RANGE,
    WAITING_SHARE,
    Activities,
    draw,
    host_watts,
    wandering,
    watts,
)
from experiments.one_device import CHIPS, DATA, drawn
from tests.points import CHIP


def busy(**shares: float) -> Activities:
    """Shares of the time; kernels run all of it unless something else is said."""
    return Activities(
        **(
            dict.fromkeys(Activities._fields, 0.0)
            | ({"window": 1.0, "working": 1.0} if shares else {})
            | shares
        )
    )


def test_idle_and_full_load():
    assert watts(CHIP, busy(), 1.5) == CHIP.idle_watts
    assert watts(CHIP, busy(products=1.0), 1.5) == pytest.approx(CHIP.peak_watts, rel=5e-3)


def test_waiting_draws_more_than_rest_and_less_than_work():
    limit = CHIP.peak_watts - CHIP.idle_watts
    for waiting in (busy(exposed=1.0), busy(window=0.0, working=0.0, idling=1.0)):
        assert float(watts(CHIP, waiting, 1.5)) == pytest.approx(
            CHIP.idle_watts + WAITING_SHARE * limit, rel=2e-3
        )
    assert RUNNING_SHARE < WAITING_RANGE[0] < WAITING_SHARE < WAITING_RANGE[1]


def test_the_limit_cuts_all_causes_alike():
    """Twice of everything within the same time draws the same mixture, at the limit."""
    once = draw(CHIP, busy(products=0.5, streaming=0.4, exposed=0.1), 1.5)
    twice = draw(CHIP, busy(products=1.0, streaming=0.8, exposed=0.2), 1.5)
    assert float(once.total) < float(twice.total) == pytest.approx(CHIP.peak_watts, rel=5e-3)
    assert float(twice.memory / twice.arithmetic) == pytest.approx(
        float(once.memory / once.arithmetic)
    )


def of_duty(device: str, product: str, beside: str, most: float) -> np.ndarray:
    """Measured share of the time and power of products beside something else, `[case, 2]`, up to a
    share."""
    rows = [
        r
        for r in kinds.read(DATA / "duty.csv")
        if (r["device"], r["product"], r["beside"]) == (device, product, beside)
    ]
    return np.array(
        [[float(r["share"]), float(r["watts"])] for r in rows if float(r["share"]) <= most]
    )


def test_products_beside_idle_kernels_draw_what_was_measured():
    """Below the limit: 8 % of H200's measured powers, and the slope that tells products from
    attention."""
    h200 = catalog.chip("H200-141GB")
    for product, kind in (("bf16-8192", "products"), ("attention-128", "core")):
        for share, measured in of_duty("NVIDIA H200", product, "wait", 0.55):
            assert float(watts(h200, busy(**{kind: share}), 1.49)) == pytest.approx(
                measured, rel=0.08
            ), (product, share)


def test_copies_draw_what_was_measured():
    """Products for a quarter of the time, copies for the rest, within 10 %; beside idle kernels
    they draw 357 and 372 W."""
    for device, chip in CHIPS.items():
        (share, measured), *_ = of_duty(device, "bf16-8192", "copy", 0.25)
        assert float(
            watts(catalog.chip(chip), busy(products=share, streaming=1.0 - share), 1.49)
        ) == pytest.approx(measured, rel=0.1)


def test_a_server_of_eight_draws_what_was_measured():
    """8.4 kW of a server of 8 H100s at full load (Latif et al. 2024)."""
    h100 = catalog.chip("H100-80GB")
    assert 8 * float(watts(h100, busy(products=1.0), 1.5) + host_watts(h100)) == pytest.approx(
        8400.0, rel=0.01
    )


def test_steps_on_one_device_draw_what_was_measured():
    """By the times of their kernels: each device and style within 10 % in the middle (compiled
    steps on H200 read 749 to 792 W, beyond the limit), no step off by more than 25 %."""
    rows = kinds.read(DATA / "steps.csv")
    ratios = np.array(
        [drawn(r, catalog.chip(CHIPS[r["device"]]), 1.47) / float(r["watts"]) for r in rows]
    )
    for device in CHIPS:
        for compiled in ("True", "False"):
            mine = np.array([(r["device"], r["compiled"]) == (device, compiled) for r in rows])
            assert np.median(ratios[mine]) == pytest.approx(1.0, abs=0.1), (device, compiled)
    assert len(ratios) > 70 and np.abs(ratios - 1.0).max() < 0.25


def test_a_device_wanders_less_than_several_do():
    """Measured on one device in time; between devices more, so up to four times as much, and none
    at the full clock."""
    full = 1980.0
    for r in kinds.read(DATA / "steady.csv"):
        clock = 0.5 * (float(r["least_mhz"]) + float(r["most_mhz"]))
        assert 0.2 < float(r["wander"]) / float(wandering(full / clock)) < 1.0, r
    assert wandering(1.0) == 0.0
