"""Settings of rows: the column `set`, and what version 0.1 read from notes in its place."""

import csv
from importlib import resources

import pytest

from calibration.traces.notes import (
    POLICIES,
    advice,
    format_settings,
    parse_settings,
    settings_of,
)
from dmodel.types import InputError

KNOWN = (
    "graphed",
    "dispatcher",
    "adapters",
    "adapter_dropout",
    "recompute_keeps",
    "offload_inputs",
)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", {}),
        ("graphed=1", {"graphed": 1.0}),
        ("graphed=1; dispatcher=deepep", {"graphed": 1.0, "dispatcher": "deepep"}),
        ("adapters=q_proj+v_proj", {"adapters": ("q_proj", "v_proj")}),
        ("adapters=q_proj; adapter_dropout=0", {"adapters": ("q_proj",), "adapter_dropout": 0.0}),
        ("recompute_keeps=nothing", {"recompute_keeps": ()}),
        ("offload_inputs=0.6349206349206349", {"offload_inputs": 80 / 126}),
        ("offload_inputs=1e-05", {"offload_inputs": 1e-5}),
    ],
)
def test_a_cell_reads_as_it_was_written(text, settings):
    assert parse_settings(text, KNOWN) == settings
    assert format_settings(settings) == text


def test_blanks_and_ends_do_not_matter():
    found = parse_settings(" adapters = q_proj + v_proj ;graphed= 0.5; ", KNOWN)
    assert found == {"adapters": ("q_proj", "v_proj"), "graphed": 0.5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("graphd=1", ("'graphd'", "nearest is graphed")),
        ("zzz=1", ("'zzz'", "known are adapter_dropout, adapters")),
        ("graphed", ("name=value", "'graphed'")),
        ("graphed=", ("name=value", "'graphed='")),
        ("graphed=1, dispatcher=deepep", ("a number", "'1, dispatcher=deepep'")),
        ("graphed=yes", ("graphed", "a number", "'yes'")),
        ("graphed=nan", ("a number", "'nan'")),
        ("graphed=1e999", ("a number", "'1e999'")),
        ("dispatcher=deep ep", ("dispatcher", "a word", "'deep ep'")),
        ("adapters=q_proj, v_proj", ("adapters", "`+` between", "'q_proj, v_proj'")),
        ("adapters=q_proj+", ("`+` between", "'q_proj+'")),
        ("graphed=1; graphed=0", ("graphed once", "twice")),
    ],
)
def test_errors_say_what_was_expected(text, words):
    with pytest.raises(InputError) as error:
        parse_settings(text, KNOWN)
    assert all(each in str(error.value) for each in ("set: ", "expected", *words))


@pytest.mark.parametrize(
    ("note", "settings"),
    [
        ("two nodes; CUDA graphs on", {"graphed": 1.0, "looped_experts": 0.0}),
        ("config_DGXGB200_1x4_cg_fp4.sh", {"graphed": 1.0, "looped_experts": 0.0}),
        ("config_DGXGB200_1x4.sh", {}),
        ("dispatcher DeepEP", {"dispatcher": "deepep"}),
        ("w/ MTP", {"n_mtp": 1.0}),
        ("w/o MTP", {"n_mtp": 0.0}),
        ("w/o MTP before, w/ MTP now", {"n_mtp": 1.0}),
        ("packed sequences", {"packed_window": 500.0}),
        ("unpacked sequences", {}),
        ("adapters on q_proj, v_proj", {"adapters": ("q_proj", "v_proj"), "adapter_dropout": 0.0}),
        (
            "adapters on linear_qkv; adapter dropout",
            {"adapters": ("linear_qkv",), "adapter_dropout": 1.0},
        ),
        ("FlashAttention-2", {"attention_kernel": "flash-2"}),
        ("fp8 parameters", {"gather_bytes": 1.0}),
        (
            "weights in 16 bits",
            {
                "reduce_bytes": 2.0,
                "gradient_bytes": 2.0,
                "gather_bytes": 2.0,
                "optimizer_bytes": 6.0,
            },
        ),
        ("every second layer recomputed", {"recompute_layers": 0.5}),
        ("1 of 4 layers recomputed", {"recompute_layers": 0.25}),
        ("recompute of modules moe, mlp", {"recompute_modules": ("moe", "mlp")}),
        ("remat_policy=save_qkv_proj", {"recompute_keeps": ("qkv",)}),
        ("remat_policy=custom", {}),
        ("rematerialization full", {}),
        (
            "rematerialization qkv_proj_offloaded",
            {"recompute_keeps": ("qkv",), "offload_results": 1.0},
        ),
        (
            "a; q, k, v and MLP outputs kept, the rest recomputed",
            {"recompute_keeps": ("qkv", "down")},
        ),
        ("no result kept, the rest recomputed", {"recompute_keeps": ()}),
        ("layer inputs kept in host memory", {"offload_inputs": 1.0}),
        ("attention outputs kept in host memory", {"offload_results": 1.0}),
        (
            "q, k, v and layer inputs kept in host memory, the rest recomputed",
            {"recompute_keeps": ("qkv",), "offload_inputs": 1.0, "offload_results": 1.0},
        ),
        (
            "activations of 40 of 80 layers kept in host memory",
            {"offload_inputs": 0.5, "offload_results": 0.5},
        ),
        # a share of the layers before a policy, a policy before modules
        ("remat minimal; 1 of 2 layers recomputed", {"recompute_layers": 0.5}),
        (
            "recompute of modules mlp; remat save_out_proj",
            {"recompute_keeps": ("out",)},
        ),
        ("time = batch / throughput", {}),
    ],
)
def test_words_of_a_note(note, settings):
    assert settings_of(note) == settings


@pytest.mark.parametrize("name", POLICIES)
def test_policies_by_name(name):
    found = settings_of(f"remat_policy={name}; other words")
    assert found["recompute_keeps"] == POLICIES[name]
    assert ("offload_results" in found) == name.endswith("_offloaded")


def told(note: str, stack: str = "another", **cells: str) -> list[str]:
    return advice({"note": note, **cells}, stack)


def test_advice_names_words_and_what_to_write():
    assert told("x; CUDA graphs on") == [
        "note 'CUDA graphs on' is not read: write `graphed=1` into set"
    ]
    assert told("dispatcher DeepEP; remat minimal_flash", set="") == [
        "note 'dispatcher DeepEP' is not read: write `dispatcher=deepep` into set",
        "note 'remat minimal_flash' is not read: "
        "write `recompute_keeps=qkv+out+up+down+core` into set",
    ]
    experts = told("CUDA graphs on", n_experts="8")
    assert experts[0].endswith("write `graphed=1; looped_experts=0` into set")


def test_no_advice_where_the_row_says_it():
    assert told("CUDA graphs on; nothing else", set="graphed=0.5") == []
    left = told("adapters on q_proj", flag="lora", set="adapters=q_proj")
    assert len(left) == 1 and "`adapter_dropout=0`" in left[0]


@pytest.mark.parametrize(
    ("note", "stack", "cells", "read"),
    [
        ("CUDA graphs on", "maxtext", {}, False),
        ("dispatcher DeepEP", "megatron-bridge/26.04", {}, False),
        ("dispatcher DeepEP", "nemo/25.07", {}, True),
        ("adapters on q_proj", "nemo", {"flag": "lora"}, True),
        ("adapters on q_proj", "nemo", {}, False),
        ("FlashAttention-2", "nemo", {"attention": "none"}, False),
        ("FlashAttention-2", "llm-foundry/pure", {}, False),
        ("fp8 parameters", "nemo/24.09", {"precision": "fp8"}, True),
        ("fp8 parameters", "mlperf-train-v4.0", {"precision": "FP8", "zero_stage": "1"}, True),
        ("fp8 parameters", "nemo/24.09", {"precision": "fp8-blockwise128"}, False),
        ("fp8 parameters", "nemo/24.09", {"precision": "fp8", "zero_stage": "0"}, False),
        ("fp8 parameters", "nemo-longseq", {"precision": "fp8"}, False),
        ("weights in 16 bits", "tpu-recipes/trillium", {"zero_stage": "3"}, True),
        ("weights in 16 bits", "tpu-recipes/trillium", {"zero_stage": "1"}, False),
        ("weights in 16 bits", "maxtext", {"zero_stage": "3", "precision": "fp32"}, False),
        ("weights in 16 bits", "megatron-lm", {"zero_stage": "3"}, False),
        ("1 of 2 layers recomputed", "maxtext", {"recompute": "full"}, False),
        ("1 of 2 layers recomputed", "maxtext", {"recompute": "selective"}, True),
        ("layer inputs kept in host memory", "maxtext", {"recompute": "full"}, True),
    ],
)
def test_what_version_0_1_did_not_read_needs_no_advice(note, stack, cells, read):
    assert len(told(note, stack, **cells)) == read


@pytest.mark.parametrize(
    ("note", "stack", "cells", "ends"),
    [
        ("release=26.06.01", "megatron-bridge", {}, "`megatron-bridge/26.06` into stack"),
        ("release 26.06", "megatron-bridge/26.06", {}, ""),
        ("release 26.06", "another", {}, ""),
        (
            "precision_label=TE BF16; revision 62799732",
            "jax-toolbox-pax",
            {},
            "`jax-toolbox-pax/62799732-te` into stack",
        ),
        ("fsdp_ici=4", "maxtext", {"zero_stage": "3", "dp": "8"}, "`4` into shard"),
        ("FSDP in node(8)", "a", {"zero_stage": "3", "n_accel": "64", "tp": "2"}, "`8` into shard"),
        ("fsdp_ici=4", "maxtext", {"zero_stage": "3", "dp": "8", "shard": "8"}, ""),
        ("fsdp_ici=4", "maxtext", {"zero_stage": "1", "dp": "8"}, ""),
        ("fsdp_ici=3", "maxtext", {"zero_stage": "3", "dp": "8"}, ""),
        (
            "2 pods of 256 chips, data parallel between pods",
            "maxtext-readme",
            {"zero_stage": "3", "n_accel": "512", "tp": "4"},
            "`64` into shard",
        ),
        (
            "gradient accumulation 2",
            "mlperf-train-v5.0",
            {"flag": "lora", "global_batch": "8", "n_accel": "16"},
            "`4` into dp, and fill tp and cp",
        ),
        (
            "gradient accumulation 2",
            "mlperf-train-v5.0",
            {"flag": "lora", "global_batch": "8", "dp": "4"},
            "",
        ),
        ("gradient accumulation 2", "mlperf-train-v5.0", {"global_batch": "8"}, ""),
        ("gradient accumulation 3", "mlperf", {"flag": "lora", "global_batch": "8"}, ""),
        ("gradient accumulation 2", "mlperf", {"flag": "lora", "micro_batch": "x"}, ""),
    ],
)
def test_advice_about_columns(note, stack, cells, ends):
    found = told(note, stack, **cells)
    assert len(found) == bool(ends) and all(line.endswith(ends) for line in found)


def test_the_shipped_table_needs_no_advice():
    path = resources.files("calibration.traces").joinpath("data/published.csv")
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    if "set" not in rows[0]:
        pytest.skip("the table has no column `set` yet")
    for row in rows:
        assert advice(row, row["stack"] or row["source"]) == [], row["note"]
        names = [part.partition("=")[0].strip() for part in row["set"].split(";")]
        assert format_settings(parse_settings(row["set"], names)) == row["set"]
