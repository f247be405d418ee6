"""Slopes of a held-out error along prior widths: against refits with other widths, and the study of
them in its quick mode."""

import dataclasses

import numpy as np
import pytest

from calibration import fit, pooling
from calibration.shrinkage import width_slopes
from dmodel.errors import InputError
from experiments.shrinkage import STACKS
from tests.fitting import TRUTH, synthetic
from tests.studies import quick_study


@pytest.fixture(scope="module", autouse=True)
def made_up_chips():
    """The chips here are made up, and benchmarks of real ones would mislead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooling, "_measured", lambda accelerator: {})
        yield


@pytest.fixture(scope="module")
def some():
    """Rows, two to fit and sixteen to judge of a stack with slower matmuls than the base expects,
    and the base, fitted to another stack."""
    # far enough from the base, with little noise, for the error to answer to the widths
    truth = {
        "megatron-test": TRUTH["megatron-test"],
        "fsdp-test": TRUTH["fsdp-test"].replace(matmul_efficiency=0.35),
    }
    cases = synthetic(truth=truth, noise=0.01)
    mine = cases.labels.stack == "fsdp-test"
    first = np.arange(len(cases)) % 9 == 0
    return cases, mine & first, mine & ~first, fit.fit(cases.take(~mine), starts=1, rounds=1)


def test_slopes_agree_with_refits_under_other_widths(some):
    cases, fitted, judged, base = some

    def error(scale):
        widths = {g: w * (scale if g == "stack" else 1.0) for g, w in base.widths.items()}
        return width_slopes(cases, fitted, judged, dataclasses.replace(base, widths=widths)).error

    found = width_slopes(cases, fitted, judged, base)
    step = 0.15
    difference = np.log(error(np.exp(step)) / error(np.exp(-step))) / (2.0 * step)
    # wider would be better here: two rows do not move a new stack far enough
    assert difference < -0.01
    assert found.by_grouping["stack"].sum() == pytest.approx(difference, rel=0.2)
    # what the base knows stays: its chips
    assert not found.by_grouping["accelerator"].any() and found.by_grouping["stack"].any()


def test_rows_are_needed_on_both_sides(some):
    cases, fitted, judged, base = some
    with pytest.raises(InputError, match="rows to fit and rows to judge; got 0"):
        width_slopes(cases, np.zeros_like(fitted), judged, base)
    with pytest.raises(InputError, match="and 0"):
        width_slopes(cases, fitted, np.zeros_like(judged), base)


@pytest.mark.slow
def test_study(tmp_path):
    lines = quick_study("shrinkage", tmp_path)["rows"]
    assert {line["protocol"] for line in lines} <= set(STACKS) and {"stack", "pair"} <= {
        line["widths among"] for line in lines
    }
    assert all(np.isfinite(line["slope"]) and line["error"] > 0.0 for line in lines)
    assert (tmp_path / "shrinkage.png").stat().st_size > 10_000
