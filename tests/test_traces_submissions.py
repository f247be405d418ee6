"""MLPerf's fine-tuning rows: degrees by logs and configurations, what they hold, in what bits
attention runs."""

import numpy as np
import pytest

from calibration.traces import published, read, to_cases
from tests.rows import one_case, table_file

LORA = {
    "stack": "mlperf-train-v5.0",
    "model": "llama2-70b-lora",
    "n_layers": "80",
    "d_model": "8192",
    "d_ff": "28672",
    "n_heads": "64",
    "n_kv_heads": "8",
    "seq_len": "8192",
    "precision": "fp8",
    "recompute": "",
    "dp": "",
    "tp": "",
    "pp": "",
    "cp": "",
    "sp": "",
    "micro_batch": "",
    "global_batch": "8",
    "n_accel": "16",
    "accelerator": "H200-141GB",
    "flag": "lora",
    "url": "github:mlcommons/training_results_v5.0/NVIDIA/results/x/llama2_70b_lora",
    "note": "gradient accumulation 2",
}


def degrees(cases) -> tuple[float, ...]:
    return tuple(
        float(np.asarray(getattr(cases.plan.layout, name))[0]) for name in ("dp", "tp", "cp", "pp")
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (4.0, 4.0, 1.0, 1.0)),
        ({"note": "logged_grad_accum=1;x"}, (8.0, 1.0, 2.0, 1.0)),
        ({"note": "gradient accumulation 1", "url": "a/HPE/results/b"}, (8.0, 2.0, 1.0, 1.0)),
        ({"note": "gradient accumulation 1", "stack": "mlperf-train-v4.0"}, (8.0, 2.0, 1.0, 1.0)),
        ({"accelerator": "H100-80GB", "note": "gradient accumulation 4"}, (2.0, 4.0, 2.0, 1.0)),
        (
            {"accelerator": "GB200", "n_accel": "64", "note": "gradient accumulation 1"},
            (8.0, 1.0, 8.0, 1.0),
        ),
        (
            {"accelerator": "B200", "n_accel": "8", "note": "gradient accumulation 1"},
            (8.0, 1.0, 1.0, 1.0),
        ),
        # the log decides where a row has the degrees of another run
        ({"dp": "2", "tp": "4", "pp": "1", "cp": "2"}, (4.0, 4.0, 1.0, 1.0)),
        ({"dp": "4", "tp": "2", "pp": "1", "cp": "2"}, (4.0, 2.0, 2.0, 1.0)),
        # what the row has stays; batches of two sequences; stages
        ({"cp": "4"}, (4.0, 1.0, 4.0, 1.0)),
        ({"tp": "2"}, (4.0, 2.0, 2.0, 1.0)),
        (
            {"dp": "4", "tp": "4", "pp": "1", "cp": "1", "micro_batch": "2", "global_batch": "16"},
            (4.0, 4.0, 1.0, 1.0),
        ),
        ({"pp": "2"}, (4.0, 1.0, 2.0, 2.0)),
        # not of MLPerf, or no adapters: as written
        ({"stack": "nemo", "dp": "2", "tp": "4", "pp": "1", "cp": "2"}, (2.0, 4.0, 2.0, 1.0)),
        ({"flag": "", "dp": "2", "tp": "4", "pp": "1", "cp": "2"}, (2.0, 4.0, 2.0, 1.0)),
    ],
)
def test_degrees_are_those_of_the_log_and_the_configurations(tmp_path, changes, expected):
    cases = one_case(tmp_path, **{**LORA, **changes})
    assert degrees(cases) == expected
    told = any(
        "micro-batches accumulated, by the log" in text for text in cases.labels.assumptions[0]
    )
    row = {**LORA, **changes}
    assert told == (expected[0] != float(row["dp"] or 0.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"note": "gradient accumulation 0"},
        {"note": ""},
        {"n_accel": "24", "accelerator": "H100-80GB", "seq_len": "8193"},
        # a written cp that leaves no whole number of ranks
        {"n_accel": "20", "cp": "4"},
    ],
)
def test_a_log_that_does_not_tell_leaves_the_layout_unknown(tmp_path, changes):
    table = read(table_file(tmp_path, {**LORA, **changes}), require_time=False)
    assert not table.rows and "layout unknown" in table.problems[0].reason


@pytest.mark.parametrize(
    ("changes", "recomputed", "bits"),
    [
        ({}, 0.0, 2.0),
        ({"url": "a/ASUSTeK/results/b"}, 0.0, 1.0),
        ({"stack": "mlperf-train-v4.0"}, 0.0, 1.0),
        (
            {"accelerator": "MI300X", "n_accel": "8", "note": "gradient accumulation 1"},
            21.0 / 80.0,
            2.0,
        ),
        ({"accelerator": "MI325X", "n_accel": "8", "note": "gradient accumulation 1"}, 0.0, 2.0),
        ({"accelerator": "B200", "n_accel": "8", "note": "gradient accumulation 1"}, 0.0, 1.0),
        (
            {
                "accelerator": "B200",
                "n_accel": "8",
                "note": "gradient accumulation 1",
                "attention": "none",
                "precision": "fp8-te",
            },
            0.0,
            2.0,
        ),
    ],
)
def test_frozen_weights_are_held_in_8_bits_and_layers_recomputed_by_chip(
    tmp_path, changes, recomputed, bits
):
    cases = one_case(tmp_path, **{**LORA, **changes})
    found = [
        float(np.asarray(x)[0])
        for x in (
            cases.plan.precision.weight_bytes,
            cases.plan.layout.recompute_layers,
            cases.plan.precision.attention_bytes,
        )
    ]
    assert found == pytest.approx([1.0, recomputed, bits])
    assert any("frozen weights held in 8 bits" in text for text in cases.labels.assumptions[0])
    assert any("recompute blank" in text for text in cases.labels.assumptions[0])
    full = one_case(tmp_path, **{**LORA, **changes, "recompute": "full"})
    assert float(np.asarray(full.plan.layout.recompute_layers)[0]) == 1.0
    assert not any("recompute blank" in text for text in full.labels.assumptions[0])


def test_all_published_rows_of_mlperf_fit_their_devices():
    """By count, and within a tenth of what is measured, for an eighth of a sequence on each device
    to a whole one."""
    from dmodel.step import memory_use

    cases = to_cases(published())
    cases = cases.take(np.char.startswith(cases.labels.stack.astype(str), "mlperf"))
    needed = np.asarray(memory_use(cases.model, cases.plan).total)
    over = needed > np.asarray(cases.system.chip.hbm_bytes)
    assert len(cases) == 69
    assert not over.any()
    peak = cases.labels.peak_memory_bytes
    known = np.isfinite(peak)
    assert np.abs(np.log(needed[known] / peak[known])).max() < 0.09
