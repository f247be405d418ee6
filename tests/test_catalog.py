"""The catalog: names, units, published sizes, fabrics of the traces, Hugging Face files, and what
wrong input answers."""

import json
import math

import jax
import numpy as np
import pytest

from dmodel import catalog
from dmodel.catalog import loader
from dmodel.catalog.chips import of_device, processor, trait
from dmodel.catalog.loader import table
from dmodel.catalog.models import counted, described
from dmodel.catalog.shapes import shape_of
from dmodel.catalog.stack import files
from dmodel.counts import parameters
from dmodel.errors import InputError
from dmodel.question import Question
from dmodel.resolve import resolve
from dmodel.units import HOUR

REQUIRED = {
    "chips": [
        "A100-40GB",
        "A100-80GB",
        "H100-80GB",
        "H100-PCIe",
        "H200-141GB",
        "H200-NVL",
        "H800",
        "B200",
        "B300",
        "GB200",
        "GB300",
        "MI300X",
        "MI325X",
        "L40S",
        "TPU-v3",
        "TPU-v4",
        "TPU-v5e",
        "TPU-v5p",
        "TPU-v6e",
        "TPU-v7x",
    ],
    "systems": [
        "A100-DGX",
        "H100-DGX",
        "H100-Superpod",
        "H200-HGX",
        "B200-DGX",
        "GB200-NVL72",
        "GB300-NVL72",
        "V100-DGX",
        "TPU-v4",
        "TPU-v5e",
        "TPU-v5p",
        "TPU-v6e",
        "TPU-v7x",
    ],
    "models": [
        "gpt-3-175b",
        "llama-2-7b",
        "llama-2-70b",
        "llama-3-8b",
        "llama-3-70b",
        "llama-3.1-405b",
        "mixtral-8x7b",
        "deepseek-v3",
        "megatron-1.7b",
        "megatron-1008b",
        "turing-530b",
        "palm-540b",
        "mpt-70b",
        "nemotron-4-340b",
        "gpt-oss-120b",
    ],
}

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
CONFIGS = {
    "llama-3-70b": LLAMA,
    "mistral-7b": {
        **LLAMA,
        "model_type": "mistral",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "head_dim": None,
    },
    "mixtral-8x7b": {
        **LLAMA,
        "model_type": "mixtral",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 32768,
    },
    "qwen-3-0.6b": {
        "model_type": "qwen3",
        "num_hidden_layers": 28,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "head_dim": 128,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    "gpt-2-xl": {
        "model_type": "gpt2",
        "n_layer": 48,
        "n_embd": 1600,
        "n_head": 25,
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_inner": None,
    },
    "gpt-neox-20b": {
        "model_type": "gpt_neox",
        "num_hidden_layers": 44,
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_attention_heads": 64,
        "vocab_size": 50432,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    },
    "gemma-2b": {
        "model_type": "gemma",
        "num_hidden_layers": 18,
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "vocab_size": 256000,
        "max_position_embeddings": 8192,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "vocab_size": 129280,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "kv_lora_rank": 512,
        "v_head_dim": 128,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 163840,
    },
    "gpt-oss-20b": {
        **LLAMA,
        "model_type": "gpt_oss",
        "num_hidden_layers": 24,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "head_dim": 64,
        "vocab_size": 201088,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
    },
    "nemotron-3-nano": {
        "model_type": "nemotron_h",
        "num_hidden_layers": 52,
        "hidden_size": 2688,
        "intermediate_size": 1856,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 131072,
        "max_position_embeddings": 262144,
        "mamba_num_heads": 64,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "n_routed_experts": 128,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
        "hybrid_override_pattern": "MEMEM*" + "EMEMEM*" * 4 + "EMEMEMEM*" + "EMEMEMEME",
    },
    "nemotron-3-super": {
        "model_type": "nemotron_h",
        "num_hidden_layers": 88,
        "hidden_size": 4096,
        "intermediate_size": 2688,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 131072,
        "max_position_embeddings": 262144,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "n_routed_experts": 512,
        "num_experts_per_tok": 22,
        "moe_intermediate_size": 2688,
        "moe_latent_size": 1024,
        "moe_shared_expert_intermediate_size": 5376,
        "hybrid_override_pattern": "ME" * 40 + "*" * 8,
    },
    "nemotron-h-8b": {
        "model_type": "nemotron_h",
        "num_hidden_layers": 52,
        "hidden_size": 4096,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 131072,
        "max_position_embeddings": 8192,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "hybrid_override_pattern": "M-" * 24 + "*" * 4,
    },
}


def write(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_required_names_exist(kind):
    assert set(REQUIRED[kind]) <= set(catalog.names(kind))


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_every_name_and_alias_finds_its_own_entry(kind):
    for entry in catalog.entries(kind):
        for spelling in [
            entry["name"],
            entry["name"].upper(),
            entry["name"].replace("-", " "),
            *entry["aliases"],
        ]:
            assert loader.resolve(kind, spelling) == entry["name"]


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_every_number_has_unit_source_and_date(kind):
    for entry in catalog.entries(kind):
        assert entry["fields"]
        for row in entry["fields"]:
            assert row["unit"] and len(row["source"]) > 10, (entry["name"], row)
            assert 2017 <= int(row["date"][:4]) <= 2026, (entry["name"], row)


@pytest.mark.parametrize("name", catalog.names("chips"))
def test_chip_is_within_physical_bounds_at_every_precision(name):
    for precision in catalog.precisions(name):
        chip = catalog.chip(name, precision)
        assert 5e13 <= chip.flops_per_s <= 4e16
        assert 0.1 <= chip.flops_per_s / chip.attention_flops_per_s <= 9 or precision == "int8"
        assert 1e9 * 15 <= chip.hbm_bytes <= 450e9
        assert (
            20 <= chip.attention_flops_per_s / chip.hbm_bytes_per_s <= 700
        )  # FLOP per byte of every generation so far
        assert 0.01 <= chip.hbm_bytes / chip.hbm_bytes_per_s < 0.5
        assert 1e-7 <= chip.kernel_latency_s <= 1e-5
        assert 0 < chip.idle_watts < 0.5 * chip.peak_watts
        assert 0.1 <= chip.price_per_s * HOUR <= 20


TORI = {
    **{"TPU-v3": 2, "TPU-v5e": 2, "TPU-v6e": 2, "TPU": 3},
    **{"Trn1": 2, "Trn2-48": 2, "Trn2-Ultra": 3},
}
"""Axes of systems whose names begin so, the first that does; others have switches."""


@pytest.mark.parametrize("name", catalog.names("systems"))
def test_system_levels_slow_down_outwards_and_only_the_last_may_be_unbounded(name):
    net = catalog.system(name, catalog.precisions(chip_of(name))[0]).network
    assert np.isinf(net.size[-1]) or name == "H100-Llama-3"
    assert np.all(np.isfinite(net.size[:-1])) and np.all(net.size >= 2)
    # tiers of a fat tree have the rate of its adapters unless they are oversubscribed
    assert (
        np.all(np.diff(net.bytes_per_s) <= 0)
        and net.bytes_per_s[1] < net.bytes_per_s[0]
        and np.all(np.diff(net.latency_s) >= 0)
    )
    assert np.all(net.latency_s > 0) and set(net.in_network_reduction) <= {0.0, 1.0}
    assert net.torus_axes[0] == next((n for head, n in TORI.items() if name.startswith(head)), 1)


def chip_of(system_name):
    return next(e["chip"] for e in catalog.entries("systems") if e["name"] == system_name)


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("H100-80GB", "bf16", 989.4e12),
        ("H100-80GB", "fp8", 1978.9e12),
        ("A100-80GB", "fp16", 312e12),
        ("B200", "nvfp4", 9e15),
        ("GB200", "mxfp8", 5e15),
        ("TPU-v5e", "int8", 394e12),
        ("TPU-v7x", "fp8", 4614e12),
    ],
)
def test_peaks_are_dense(name, precision, expected):
    assert catalog.chip(name, precision).flops_per_s == expected


def test_half_precision_rate_of_attention_does_not_depend_on_the_matmuls():
    assert (
        catalog.chip("B200", "nvfp4").attention_flops_per_s
        == catalog.chip("B200", "bf16").flops_per_s
    )
    assert catalog.chip("V100", "fp16").attention_flops_per_s == 125e12


def test_vendor_bandwidths_are_halved_to_one_direction():
    h100, v5p = catalog.system("H100-DGX").network, catalog.system("TPU-v5p").network
    assert h100.bytes_per_s.tolist() == [450e9, 50e9] and h100.in_network_reduction.tolist() == [
        1.0,
        0.0,
    ]
    assert v5p.bytes_per_s[0] * 8 == 4800e9 and v5p.torus_axes[0] == 3
    assert catalog.system("H100-Superpod").network.size.tolist() == [8.0, 32.0, math.inf]


@pytest.mark.parametrize("name", catalog.names("models"))
def test_our_parameter_count_agrees_with_the_published_one(name):
    entry = loader.table("models")[name]
    ours = float(parameters(catalog.transformer(name)))
    assert ours == pytest.approx(
        entry["published_parameters"], rel=entry.get("parameters_tolerance", 0.02)
    )
    assert "parameters_tolerance" not in entry or entry["about"], (
        "a wider tolerance needs its reason"
    )


def test_leaves_are_float64_and_records_stack():
    chips = [catalog.chip(n) for n in ("A100-80GB", "H100-80GB")]
    leaves = jax.tree.leaves([chips, catalog.system("H100-DGX"), catalog.transformer("llama-3-8b")])
    assert all(isinstance(x, (np.float64, np.ndarray)) and x.dtype == np.float64 for x in leaves)
    rows = [
        catalog.system_for(a) for a in catalog.names("chips") if "bf16" in catalog.precisions(a)
    ]
    stacked = jax.tree.map(lambda *x: np.stack(x, -1), *rows)
    assert stacked.network.size.shape == (2, len(rows)) and stacked.chip.flops_per_s.shape == (
        len(rows),
    )


@pytest.mark.parametrize(
    ("accelerator", "stack", "outer"),
    [
        ("A100-80GB", "", 25e9),
        ("A100-80GB", "vtrain", 12.5e9),
        ("A100-40GB", "llm-foundry/pure", 25e9),
        ("H100-80GB", "maxtext-a3", 12.5e9),
        ("H100-80GB", "a stack nobody knows", 50e9),
        ("TPU v5p", None, 6.25e9),
    ],
)
def test_fabric_follows_accelerator_and_stack(accelerator, stack, outer):
    columns = {"accelerator": accelerator, "stack": stack or "", "n_accel": 16.0}
    columns |= {"model": "gpt-2", "global_batch": 16.0, "precision": "bf16"}
    assert resolve(Question(columns)).cluster.network.bytes_per_s[1] == outer


def test_what_is_counted_of_models_is_what_the_table_holds():
    """`python -m dmodel.catalog.models` writes it anew."""
    assert table("counted") == counted()
    assert described("llama-3-8b-2layers")["parameters"] < described("llama-3-8b")["parameters"]


def test_every_chip_has_a_default_system_of_two_levels_with_that_chip():
    for chip in catalog.names("chips"):
        name = catalog.default_system(chip)
        levels = loader.table("systems")[name]["levels"]
        assert len(levels) == 2 and chip_of(name).split("-")[0] == chip.split("-")[0]


def test_systems_of_facts_are_of_their_chips():
    found = [
        (fact.when["chip"], fact.sets["system"])
        for file in files().values()
        for fact in file.facts
        if "system" in fact.sets
    ]
    assert len(found) >= 14
    assert [pair for pair in found if chip_of(pair[1]) != pair[0]] == []


PLATFORMS = ("gpu", "tpu", "hpu", "xpu", "neuron", "npu")
"""What frameworks call kinds of devices."""


def test_what_a_chip_is_named_for_is_in_the_catalog():
    for name, entry in loader.table("chips").items():
        assert entry["generation"] and entry["platform"] in PLATFORMS
        assert processor(processor(name)) == processor(name)
    assert trait("A100-40GB", "power_demand") == 1.1
    assert [of_device(f"TPU {kind}") for kind in ("v5", "v6 lite", "v5 lite", "v4", "v9")] == [
        "TPU-v5p",
        "TPU-v6e",
        "TPU-v5e",
        "TPU-v4",
        None,
    ]


def test_domain_size_replaces_the_inner_size_only():
    default, four = catalog.system_for("H100-80GB"), catalog.system_for("H100-80GB", domain_size=4)
    assert four.network.size.tolist() == [4.0, math.inf] and default.network.size.tolist() == [
        8.0,
        math.inf,
    ]
    assert np.array_equal(four.network.bytes_per_s, default.network.bytes_per_s)
    assert catalog.system_for("GB200", domain_size=math.nan).network.size[0] == 72
    for bad in (0, -8, math.inf):
        with pytest.raises(InputError, match="domain_size"):
            catalog.system_for("H100-80GB", domain_size=bad)


@pytest.mark.parametrize(
    ("chips", "sizes", "rates"),
    [
        (4, [4, 64, math.inf], [450e9, 225e9, 50e9]),
        (16, [16, 16, math.inf], [450e9, 225e9, 50e9]),
        (256, [256, math.inf], [450e9, 50e9]),
    ],
)
def test_a_domain_leaves_the_levels_beyond_it(chips, sizes, rates):
    """H100-Superpod: domains of 8 devices, 32 of them behind NVLink switches, any number of
    those."""
    network = catalog.system_for("H100-80GB", "H100-Superpod", chips).network
    assert network.size.tolist() == sizes and network.bytes_per_s.tolist() == rates
    assert network.n_levels == len(network.latency_s) == len(network.torus_axes) == len(sizes)


@pytest.mark.parametrize(
    ("accelerator", "chips", "share", "axes"),
    [
        ("TPU-v6e", 256, 1.0, 2.0),  # the pod, both axes of 16 closed
        ("TPU-v6e", 64, 0.5, 2.0),  # 8 x 8, both open
        ("TPU-v5e", 128, 0.75, 2.0),  # 8 x 16, one closed
        ("TPU-v5p", 64, 1.0, 3.0),  # a cube of 4 x 4 x 4
        ("TPU-v5p", 4, 1.0 / 3.0, 2.0),  # 1 x 2 x 2
        ("TPU-v6e", 24, 1.0, 2.0),  # no slice on offer: as the pod
    ],
)
def test_slices_of_a_torus_are_open_where_their_axes_do_not_close(accelerator, chips, share, axes):
    whole, found = (
        catalog.system_for(accelerator).network,
        catalog.system_for(accelerator, domain_size=chips).network,
    )
    assert found.size.tolist() == [chips, math.inf]
    assert found.bytes_per_s[0] == pytest.approx(share * whole.bytes_per_s[0], rel=1e-12)
    assert found.torus_axes[0] == axes and found.bytes_per_s[1] == whole.bytes_per_s[1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: catalog.chip("H10O-80GB"), ["H10O-80GB", "H100-80GB"]),
        (lambda: catalog.chip("V100", "bf16"), ["V100-32GB", "bf16", "fp16"]),
        (lambda: catalog.chip("A100-80GB", "fp8"), ["A100-80GB", "int8"]),
        (lambda: catalog.system("H100DGXX"), ["H100-DGX"]),
        (lambda: catalog.system_for("H101-80GB"), ["H100-80GB"]),
        (lambda: catalog.transformer("llama-3-71b"), ["llama-3-70b", "config.json"]),
        (lambda: catalog.transformer(""), ["unknown model"]),
        (lambda: catalog.transformer("no/such/config.json"), ["no such file"]),
        (lambda: catalog.transformer("llama-3-8b", seq_len=0), ["seq_len"]),
        (lambda: catalog.transformer("llama-3-8b", seq_len=math.nan), ["seq_len"]),
        (lambda: catalog.names("fabrics"), ["chips, systems, models"]),
    ],
)
def test_wrong_names_answer_with_what_would_be_right(call, words):
    with pytest.raises(InputError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("printed", "main"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA H200", "H200-141GB"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA-H100-80GB-HBM3", "H100-80GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("RTX4090", "RTX-4090"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H20", "H20-96GB"),
        ("NVIDIA GB10", "GB10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L20", "L20"),
        ("a100_80g", "A100-80GB"),
        ("NVIDIA RTX A5000", "RTX-A5000"),
        ("AMD Instinct MI250X", "MI250X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("MI300X OAM", "MI300X"),
        ("Intel(R) Data Center GPU Max 1550", "PVC-1550"),
        ("Intel Gaudi 3", "Gaudi-3"),
        ("AWS Trainium2", "Trn2"),
        ("TPU v5 lite", "TPU-v5e"),
        ("h100-sxm", "H100-80GB"),
        ("NVIDIA", None),
    ],
)
def test_chips_by_the_names_that_tools_print(printed, main):
    assert (
        loader.known_name("chips", printed) == main
        and loader.known_name("models", f"NVIDIA {printed}") is None
    )


@pytest.mark.parametrize(
    ("kind", "name", "offered"),
    [
        ("chips", "H100X", ["H100-80GB", "H100-NVL", "H100-96GB"]),
        ("chips", "NVIDIA A100 60GB", ["A100-80GB", "A100-40GB"]),
        ("chips", "H10O-80GB", ["H100-80GB"]),
        ("chips", "GB20", ["GB200"]),
        ("models", "llama-3-71b", ["llama-3-70b"]),
        ("systems", "H100DGXX", ["H100-DGX"]),
    ],
)
def test_names_that_begin_alike_are_offered_first(kind, name, offered):
    assert f"nearest: {', '.join(offered)}" in loader.unknown(kind, name)


@pytest.mark.parametrize(
    ("spelling", "main"),
    [
        ("p5.48xlarge", "H100-EFA-3200"),
        ("p4d.24xlarge", "A100-40GB-EFA-400"),
        ("p5en.48xlarge", "H200-EFA-3200"),
        ("p6-b200.48xlarge", "B200-EFA-3200"),
        ("trn1.32xlarge", "Trn1-32xlarge"),
        ("trn2.48xlarge", "Trn2-48xlarge"),
        ("TPU v5e-256", "TPU-v5e"),
        ("GB200 NVL72", "GB200-NVL72"),
        ("Vera Rubin NVL144", "Rubin-NVL72"),
        ("h100_hgx", "H100-DGX"),
        ("MI350X-OAM", "MI350X-Platform"),
    ],
)
def test_systems_by_the_names_that_people_write(spelling, main):
    assert loader.known_name("systems", spelling) == main


def test_what_is_only_announced_says_so():
    for kind in ("chips", "systems"):
        announced = {n: e["announced"] for n, e in loader.table(kind).items() if "announced" in e}
        assert len(announced) == 3 and set(announced.values()) <= {"2026-01", "2026-04", "2026-08"}
        assert all("as announced" in loader.table(kind)[name]["about"] for name in announced)


@pytest.mark.parametrize(
    ("spelling", "main"),
    [
        ("Llama 3 70B", "llama-3-70b"),
        ("llama3-70b", "llama-3-70b"),
        ("gpt3-175b", "gpt-3-175b"),
        ("mt-nlg-530b", "turing-530b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("Qwen/Qwen2.5-7B", "qwen-2.5-7b"),
        ("qwen3-235b-a22b", "qwen-3-235b-a22b"),
        ("megatron-gpt-529.6b", "megatron-529.6b"),
        ("nemotron3-8b", "nemotron-3-8b"),
        ("gemma4-31b", "gemma-4-31b"),
        ("glm-5.2", "glm-5.2-744b-a40b"),
        ("zai-org/GLM-4.6", "glm-4.5-355b-a32b"),
        ("llama4-scout-17b-16e", "llama-4-scout"),
        ("moonshotai/Kimi-K2.5", "kimi-k2"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen-3-next-80b-a3b"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "nemotron-super-49b"),
    ],
)
def test_spellings_of_traces_and_hubs(spelling, main):
    assert catalog.transformer(spelling) == catalog.transformer(main)


def kinds(model):
    """Kinds of layers of a model, whatever their order."""
    return sorted(json.dumps(block) for block in shape_of(model)["blocks"])


@pytest.mark.parametrize("name", CONFIGS)
def test_hugging_face_file_gives_the_catalog_shape(name, tmp_path):
    path = write(tmp_path, CONFIGS[name])
    known = catalog.transformer(name)
    read = catalog.transformer(str(path))
    assert read.seq_len == CONFIGS[name].get(
        "max_position_embeddings", CONFIGS[name].get("n_positions")
    )
    assert kinds(read) == kinds(known) and read.small == known.small
    assert not known.order or read.replace(seq_len=known.seq_len) == known
    assert catalog.transformer(str(tmp_path), seq_len=512).seq_len == 512


def test_a_file_without_a_longest_sequence_needs_one_from_the_caller(tmp_path):
    path = write(
        tmp_path,
        {k: v for k, v in CONFIGS["llama-3-70b"].items() if k != "max_position_embeddings"},
    )
    assert catalog.transformer(str(path), 8192.0) == catalog.transformer("llama-3-70b", 8192.0)
    with pytest.raises(
        InputError, match="max_position_embeddings is not needed with a sequence length of your own"
    ):
        catalog.transformer(str(path))


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = write(tmp_path, LLAMA)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert catalog.transformer(str(path)).d_model == LLAMA["hidden_size"]


def test_multimodal_file_is_read_by_its_text_part(tmp_path):
    whole = {"model_type": "paligemma", "text_config": CONFIGS["gemma-2b"], "vision_config": {}}
    path = write(tmp_path, whole)
    assert catalog.transformer(str(path)) == catalog.transformer("gemma-2b")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("not json", ["not JSON"]),
        ("", ["not JSON"]),
        ("[1, 2]", ["JSON object", "list"]),
        ("[" * 100_000, ["not JSON"]),
        ({**LLAMA, "model_type": ["llama"]}, ["model_type", "expected a name"]),
        ({**LLAMA, "hidden_size": 10**400}, ["hidden_size", "whole number"]),
        ({**LLAMA, "max_position_embeddings": 1e12}, ["max_position_embeddings", "1,000,000,000"]),
        (
            {k: v for k, v in LLAMA.items() if k not in ("vocab_size", "hidden_size")},
            ["vocab_size", "hidden_size", "missing"],
        ),
        ({**LLAMA, "hidden_size": "8192"}, ["hidden_size", "'8192'"]),
        ({**LLAMA, "num_hidden_layers": 0}, ["num_hidden_layers", "got 0"]),
        ({**LLAMA, "num_hidden_layers": math.nan}, ["num_hidden_layers"]),
        ({**LLAMA, "vocab_size": True}, ["vocab_size", "True"]),
        ({**LLAMA, "num_attention_heads": 63}, ["8192", "63", "head_dim"]),
        ({**LLAMA, "num_key_value_heads": 7}, ["KV heads"]),
        ({**CONFIGS["mixtral-8x7b"], "num_experts_per_tok": 9}, ["top-k", "8 experts"]),
        (
            {k: v for k, v in CONFIGS["deepseek-v3"].items() if k != "kv_lora_rank"},
            ["kv_lora_rank"],
        ),
    ],
)
def test_unusable_files_say_why(content, words, tmp_path):
    path = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        catalog.transformer(str(path))
    assert all(word in str(caught.value) for word in [*words, "config.json"]), str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"unit": "GB/s"}, "unit"),
        ({"value": -1.0}, "finite"),
        ({"value": None}, "finite"),
        ({"source": ""}, "source"),
        ({"date": "soon"}, "date"),
    ],
)
def test_damaged_numbers_are_refused(change, words):
    good = {"value": 1.0, "unit": "byte/s", "source": "a datasheet", "date": "2024-01"}
    assert loader.number(good, "byte/s", "here") == 1.0
    with pytest.raises(InputError, match=words):
        loader.number({**good, **change}, "byte/s", "here")


@pytest.mark.parametrize(
    ("name", "window", "whole"),
    [("gemma-2-9b", 4096, 21), ("gemma-3-1b", 512, 4), ("gemma-3-27b", 1024, 10)],
)
def test_the_catalog_has_gemmas_windows(name, window, whole):
    """Layers that see all tokens: every second one, every sixth one."""
    layers = {float(b.mixer.window): float(b.layers) for b in catalog.transformer(name).blocks}
    assert layers.pop(window) > 0.0
    assert list(layers.values()) == pytest.approx([whole])
