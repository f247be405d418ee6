"""Which products of a fine-tuning row have adapters, by its note or the recipe of its stack."""

import numpy as np
import pytest
from calibration.traces.adapters import adapters

from tests.rows import one_case

LLAMA_2_7B = {"queries": 4096.0, "keys": 4096.0, "mlp": 11008.0, "gated": 1.0}
H, F = 4096.0, 11008.0


@pytest.mark.parametrize(
    ("stack", "model", "note", "expected"),
    [
        ("nemo-launcher", "llama2-7b-lora", "", (1.0, 3.0 * H, 0.0, 0.0, 0.0)),
        ("megatron-bridge/26.06", "llama2-7b-lora", "", (1.0, 3.0 * H, 0.0, 0.0, 0.0)),
        ("megatron-bridge/25.11", "llama2-7b-lora", "", (2.0, 3.0 * H + 2.0 * F, 2.0, H + F, 0.0)),
        ("mlperf-train-v5.0", "llama2-70b-lora", "", (1.0, 3.0 * H, 1.0, H, 1.0)),
        ("automodel", "llama2-7b", "", (5.0, 3.0 * H + 2.0 * F, 2.0, H + F, 0.0)),
        ("automodel", "llama3-8b-lora", "", (5.0, 3.0 * H + 2.0 * F, 2.0, H + F, 1.0)),
        ("pytorch/llama-recipes", "llama2-7b", "", (2.0, 2.0 * H, 0.0, 0.0, 1.0)),
        ("jax-toolbox-pax", "llama2-7b", "", (0.0, 0.0, 0.0, 0.0, 0.0)),
        ("another", "mine", "", (2.0, 2.0 * H, 0.0, 0.0, 0.0)),
        (
            "another",
            "mine",
            "adapters on linear_qkv, linear_fc1, linear_fc2; adapter dropout",
            (2.0, 3.0 * H + 2.0 * F, 1.0, F, 1.0),
        ),
        ("nemo-launcher", "mine", "adapters on o_proj", (0.0, 0.0, 1.0, H, 0.0)),
    ],
)
def test_adapters_by_recipe_and_note(stack, model, note, expected):
    *found, said = adapters(stack, model, note, LLAMA_2_7B)
    assert tuple(found) == expected and "adapters on" in said


def test_names_that_no_framework_has_are_not_dropped_without_a_word():
    found = adapters("another", "mine", "adapters on q_proj, wqkv", LLAMA_2_7B)
    assert found.first_adapters == 1.0 and "not counted: wqkv" in found.said


def test_plain_mlps_have_no_gate_to_adapt():
    found = adapters("automodel", "mine", "", LLAMA_2_7B | {"gated": 0.0})
    assert (found.first_adapters, found.first_adapted) == (4.0, 3.0 * H + F)


def test_rows_with_adapters_say_so_and_others_have_none(tmp_path):
    tuned, whole = one_case(tmp_path, flag="lora"), one_case(tmp_path)
    assert (
        float(np.asarray(tuned.model.first_adapters)[0])
        > 0.0
        == float(np.asarray(whole.model.first_adapters)[0])
    )
    assert any(text.startswith("adapters on") for text in tuned.labels.assumptions[0])
    assert not any(text.startswith("adapters on") for text in whole.labels.assumptions[0])


@pytest.mark.parametrize(
    ("stack", "chip", "devices", "graphed"),
    [
        ("mlperf-train-v5.0", "GB200", 72, 1.0),
        ("mlperf-train-v5.0", "GB200", 8, 0.0),
        ("mlperf-train-v5.0", "MI300X", 32, 0.0),
        ("mlperf-train-v4.0", "H100-80GB", 1024, 0.0),
    ],
)
def test_large_submissions_to_mlperf_5_launch_layers_by_graphs(
    tmp_path, stack, chip, devices, graphed
):
    sizes = dict.fromkeys(("n_accel", "dp", "global_batch"), str(devices)) | dict.fromkeys(
        ("tp", "pp", "micro_batch"), "1"
    )
    cases = one_case(tmp_path, stack=stack, accelerator=chip, precision="fp8", flag="lora", **sizes)
    assert np.asarray(cases.plan.software.graphed).tolist() == [graphed]
    assert any("CUDA graphs" in text for text in cases.labels.assumptions[0]) == bool(graphed)
