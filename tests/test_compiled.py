"""What compiled programs hold and move: facts by release and variant, and rows that say so."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.traces import published, to_cases
from dmodel.step import memory_use
from dmodel.units import GIB
from tests.rows import answered


@pytest.fixture(scope="module")
def titan():
    """Rows of torchtitan, and where each was read."""
    table = published()
    cases = to_cases(table)
    own = cases.take(cases.labels.source == "torchtitan")
    url = {row.line: row.text("url") for row in table.rows}
    return own, np.array([str(url[line]) for line in own.labels.line])


def test_rows_of_a_date_have_the_loss_of_that_date(titan):
    """Whole and in fp32 until April 2025, compiled from then on, whatever is the newest today."""
    own, urls = titan
    alive = np.broadcast_to(np.asarray(own.plan.precision.logit_bytes), len(own))
    mixture = np.array(["dist_moe" in url for url in urls])
    compiled = np.array(["2025-06" in url or "202506" in url for url in urls])
    assert set(alive[compiled]) == {4.0}
    assert set(alive[~compiled & ~mixture]) == {12.0}
    assert compiled.sum() == 14


def test_compiled_loss_is_what_h200_of_june_2025_hold(titan):
    """Two rows of a commit behind the compiled loss, by hand: no factor of a fit."""
    own = titan[0].take(np.array(["whitefiber" in url for url in titan[1]]))
    measured = own.labels.peak_memory_bytes / GIB

    def peaks(each):
        plan = own.plan.having(logit_bytes=np.full(len(own), each))
        return np.asarray(memory_use(own.model.replace(order=()), plan).total) / GIB

    assert peaks(4.0) == pytest.approx(measured, rel=0.05)
    assert np.all(peaks(12.0) > 1.3 * measured)


@pytest.mark.parametrize(
    ("stack", "recompute", "last"),
    [
        ("torchtitan", "full", 1.0),
        ("torchtitan/0.2.1", "full", 1.0),
        ("torchtitan/0.1.0", "full", 0.0),
        ("torchtitan/compile", "full", 0.0),
    ],
)
def test_checkpoints_of_new_releases_run_to_their_end(stack, recompute, last):
    row = {"zero_stage": "3", "dp": "64", "tp": "1", "pp": "1", "recompute": recompute}
    assert float(answered(**row, stack=stack).plan.software.recompute_last) == last
