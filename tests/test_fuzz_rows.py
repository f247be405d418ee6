"""Damaged files and questions beyond any machine end with a message or a believable answer."""

import pytest

from tests import fuzz_rows
from tests.test_cli import document, run

JOB = "predict --system H100-DGX --devices 64 --model llama-3-8b --global-batch 64"


def test_damaged_files_end_well():
    """A hundred mutants; `python -m tests.fuzz_rows --count 10000` tries more."""
    tally, defects = fuzz_rows.fuzz(100, seed=3)
    assert not defects, "\n".join(defects)
    kinds = ("error", "aside", "flagged", "full")
    assert all(tally[f"predict {kind}"] for kind in kinds), tally


def test_the_fuzzer_sees_a_number_beyond_physics():
    row = {
        "predicted_step_time_s": 1.0,
        "memory_bytes_per_device": 1e9,
        "measured_step_time_s": 1.0,
        "mfu": 0.5,
        "flag": "",
        "flag_reason": None,
    }
    fuzz_rows._check_row(row)
    for wrong in (
        {"predicted_step_time_s": float("inf")},
        {"memory_bytes_per_device": -1.0},
        {"mfu": 1.5},
        {"measured_step_time_s": 1e-3},
        {"flag": "implausible"},
    ):
        with pytest.raises(ValueError, match=r"physics|without a"):
            fuzz_rows._check_row({**row, **wrong})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--global-batch 0", "--global-batch: expected an integer from 1"),
        ("--devices 1000000000000000000000000000000", "--devices: expected an integer from 1 to"),
        ("--devices 100000000", "from 1 to 10,000,000, got 100000000"),
        ("--seq-len 1000000000000", "--seq-len: expected an integer from 1 to 100,000,000"),
        ("--set seq_len=1e12", "seq_len: expected at most 1e+08"),
        ("--set n_accel=1e30", "n_accel: expected at most 1e+07"),
        ("--global-batch 500000000", "global_batch counts sequences"),
        ("--set weight_bytes=1e18", "weight_bytes: expected 0, or 0.1 to 1000 bytes"),
        ("--set operand_bytes=0", "no machine does what is asked"),
        ("--set attention_rate=1e300", "attention_rate: expected at most 1e+18"),
        ("--micro-batch -1", "--micro-batch: expected an integer from 1"),
    ],
)
def test_questions_beyond_any_machine_get_no_number(options, says):
    result = run(JOB, options, "--json", code=2)
    assert says in result.stderr and result.stdout == ""


def test_products_faster_than_the_peak_are_no_answer(monkeypatch):
    """Whatever the model says, an answer has no more FLOP/s than the chips."""
    monkeypatch.setattr("dmodel.prediction.run.least_utilization", lambda *_: 1.2)
    said = run(JOB, code=2).stderr
    assert "products of 1.2 times the chips' peak FLOP/s" in said


def test_an_answer_asks_for_less_than_the_peak():
    d = document(JOB)
    assert 0.0 < d["mfu"]["6N"] < 1.0 and d["memory_bytes_per_device"] > 0.0
