"""What no sane run does: bounds from published rows, what is said and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from calibration.seen import batches, entries, utilization
from calibration.traces import published, to_cases
from dmodel.cli import app
from dmodel.codesign.laws import laws, quality
from dmodel.sense import BEYOND, TRAINED, oddities, over_critical, seen

SIZE = 8e9


@pytest.fixture(scope="module")
def rows():
    return to_cases(published())


def test_the_table_is_that_of_the_shipped_rows(rows):
    found = {name: entry["value"] for name, entry in entries(rows).items()}
    assert found == pytest.approx(seen(), rel=1e-9)


def test_no_published_row_is_beyond_sense(rows):
    """Neither its batch nor its utilization, with the tokens of the data law or any published."""
    assert np.nanmax(utilization(rows)) <= seen()["mfu"] * 1.001
    assert batches(rows).max() <= seen()["batch_over_critical"] * 1.001
    for each in TRAINED:
        found = oddities(SIZE, 4e6, 0.4, each * SIZE)
        assert all(odd.times <= BEYOND for odd in found)


def test_the_critical_batch_is_that_of_the_laws():
    found = quality(SIZE, 1e12, 4e6, 6.0 * SIZE * 1e12, laws())
    assert over_critical(SIZE, 1e12, 4e6) == pytest.approx(4e6 / float(found.critical), rel=1e-12)


def test_a_usual_run_is_not_odd():
    assert oddities(SIZE, 4e6, 0.4, 1e12) == ()
    assert oddities(SIZE, 4e6, 0.4, None) == ()


@pytest.mark.parametrize(
    ("batch", "mfu", "tokens", "loss", "name", "refused"),
    [
        (1e9, 0.4, 1e12, None, "batch", False),
        (1e13, 0.4, 1e14, None, "batch", True),
        (4e6, 0.9, 1e12, None, "mfu", False),
        (4e6, 0.4, 1e9, None, "tokens", False),
        (4e6, 0.4, 1e7, None, "tokens", True),
        (4e6, 0.4, 1e16, None, "tokens", True),
        (4e6, 0.4, 1e6, None, "steps", True),
        (4e6, 0.4, 1e12, 2.0, "loss", False),
    ],
)
def test_what_is_said_and_what_is_refused(batch, mfu, tokens, loss, name, refused):
    found = {odd.name: odd for odd in oddities(SIZE, batch, mfu, tokens, loss)}
    assert (found[name].times > BEYOND) == refused and found[name].text


PLAN = "predict --system H100-DGX --devices 64 --model llama-3-8b"


def test_the_shell_says_it_first_and_ends_with_1_far_beyond():
    def shell(words: str):
        return CliRunner().invoke(app, f"{PLAN} {words}".split())

    usual = json.loads(shell("--global-batch 128 --tokens 1e12 --json").stdout)
    assert usual["sense"] == []
    far = shell("--global-batch 64000 --tokens 1e7 --json")
    assert far.exit_code == 1 and "no sane run" in far.stderr
    assert {odd["name"] for odd in json.loads(far.stdout)["sense"]} >= {"steps", "tokens"}
    assert shell("--global-batch 64000 --tokens 1e7 --anyway --json").exit_code == 0
    assert "Unusual: " in shell("--global-batch 64000 --tokens 1e7").stdout
