"""Shapes: what a model's name, its columns and its published count of parameters make of it."""

import numpy as np
import pytest

from calibration.traces import read, to_cases, write
from dmodel import catalog
from dmodel.blocks import ALL
from dmodel.counts import parameters
from dmodel.errors import InputError
from dmodel.named_shape import FROM_MODEL, catalog_shape, completed, filled
from dmodel.question import Question
from dmodel.records import Model, having, value
from dmodel.resolve import resolve
from dmodel.settings import changed
from tests.rows import answered, job, table_file, told

BLANK = dict.fromkeys((*FROM_MODEL, "n_params"), "")


def size(model: Model, name: str, otherwise: float = 0.0) -> float:
    """A size of a model of one case by its name."""
    return float(value(model, name, otherwise))


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        (BLANK | {"model": "llama3-70b"}, (80.0, 8192.0, 8.0, 1.0)),
        (
            BLANK | {"model": "meta-llama/Llama 3 70B", "n_params": "70.6e9"},
            (80.0, 8192.0, 8.0, 1.0),
        ),
        ({"vocab": ""}, (32.0, 4096.0, 32.0, 1.0)),
        (BLANK | {"model": "llama3-70b", "n_experts": "0"}, (80.0, 8192.0, 8.0, 1.0)),
        (BLANK | {"model": "Mixtral 8x7B"}, (32.0, 4096.0, 8.0, 8.0)),
    ],
)
def test_a_blank_shape_is_the_catalogs_of_that_name(tmp_path, changes, sizes):
    """And stays so in the file that is written."""
    table = read(table_file(tmp_path, changes))
    cases = to_cases(table)
    names = ("n_layers", "d_model", "n_kv_heads", "n_experts")
    assert tuple(float(np.ravel(value(cases.model, n, 1.0))[0]) for n in names) == sizes
    write(table, tmp_path / "again.csv")
    (again,), (row,) = read(tmp_path / "again.csv").rows, table.rows
    assert (again.cells, again.filled) == (row.cells, row.filled)
    assert row.filled


@pytest.mark.parametrize(
    "changes",
    [
        BLANK | {"model": "mine"},
        BLANK | {"model": "llama3-70b", "d_model": "4096"},
        BLANK | {"model": "llama3-70b", "n_kv_heads": "64"},
        BLANK | {"model": "llama3-70b", "n_params": "8e9"},
        BLANK | {"model": "llama3-70b", "d_ff": "many"},
        BLANK | {"model": "x" * 300},
        BLANK | {"model": "~nobody"},
        BLANK | {"model": "."},
    ],
)
def test_a_blank_shape_of_no_known_model_is_set_aside(tmp_path, changes):
    table = read([table_file(tmp_path, {}), table_file(tmp_path, changes, name="other.csv")])
    assert (len(table.rows), len(table.aside)) == (1, 1) and not table.aside[0].filled


def test_what_a_name_fills_is_said_and_what_is_written_stays():
    question = Question({"model": "llama3-70b", "vocab": 1000.0})
    whole, said = completed(question)
    assert whole.known("n_layers") == 80.0 and whole.known("vocab") == 1000.0
    assert str(said[0]).startswith("shape blank: n_layers, d_model")
    assert completed(whole) == (whole, ()) and filled(whole) == {}
    assert catalog_shape("of-our-own") == catalog_shape("") == {}


def asked_of(**columns: float | str):
    """A question about a few sizes of a model, resolved."""
    rest = {"accelerator": "H100-80GB", "n_accel": 8, "global_batch": 8, "seq_len": 1024}
    return resolve(changed(Question({}), rest | columns))


def test_a_known_model_with_other_sizes_keeps_the_rest():
    """Its kinds of layers too; another width takes what grows with it along."""
    fewer = asked_of(model="deepseek-v3", n_layers=10)
    assert size(fewer.model, "n_layers") == 10.0 and size(fewer.model, "kv_rank") == 512.0
    assert size(fewer.model, "vocab") == 129280.0 and size(fewer.model, "n_experts") == 256.0
    text = "n_experts, top_k as of deepseek-v3 in the catalog, scaled to the sizes given"
    assert text in told(fewer)
    half = asked_of(model="llama-3-8b", d_model=2048).model
    names = ("d_ff", "n_heads", "n_kv_heads", "head_dim", "n_layers", "vocab")
    assert [size(half, n) for n in names] == [7168.0, 16.0, 4.0, 128.0, 32.0, 128256.0]
    own = asked_of(model="llama-3-8b", d_model=2048, d_ff=8192, n_heads=16, n_kv_heads=16).model
    assert [size(own, n) for n in names] == [8192.0, 16.0, 16.0, 128.0, 32.0, 128256.0]


def test_of_sizes_the_width_of_the_mlp_alone_may_be_open():
    found = asked_of(n_layers=6, d_model=384, n_heads=6, vocab=65)
    assert size(found.model, "d_ff") == 1536.0 and "shape blank: d_ff 4 d_model" in told(found)
    for columns, lacking in (
        ({"d_model": 384, "n_heads": 6, "vocab": 65}, "n_layers, d_ff"),
        ({"model": "llama-3-8b", "d_model": 1000}, "n_layers, d_ff, n_heads, vocab"),
        ({"model": "llama-3-8b", "n_layers": 8, "n_params": 70e9}, "d_model, d_ff, n_heads, vocab"),
    ):
        with pytest.raises(InputError, match=f"{lacking} open, and the catalog does not"):
            asked_of(**columns)


def test_a_shape_of_the_callers_own_is_the_model():
    own = catalog.transformer("llama-3-8b").replace(vocab=np.float64(1000.0))
    words = {"model": "own", "accelerator": "H100-80GB", "n_accel": 8, "global_batch": 8}
    found = resolve(changed(Question({}, model=own), words)).model
    names = ("n_layers", "d_model", "n_kv_heads", "head_dim", "vocab", "tied_embeddings")
    assert [size(found, n) for n in names] == [size(own, n) for n in names]


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"stack": "nemo-launcher", "model": "llama2-7b-sft"}, 500.0),
        ({"stack": "nemo-launcher", "model": "mine", "flag": "lora"}, 500.0),
        ({"stack": "megatron-bridge/26.06", "model": "llama3-70b-lora", "flag": "lora"}, 500.0),
        ({"stack": "another", "set": "packed_window=500"}, 500.0),
        ({"stack": "nemo-launcher", "model": "llama2-7b-sft", "set": "packed_window=0"}, None),
        ({"stack": "nemo-launcher", "model": "llama2-7b"}, None),
        ({"stack": "nemo-launcher", "model": "llama2-7b-sft", "attention": "none"}, None),
        ({"stack": "nemo-launcher", "model": "llama2-7b-sft", "seq_len": "500"}, None),
        ({"stack": "automodel", "model": "llama3-8b-lora", "flag": "lora"}, None),
    ],
)
def test_attention_stays_in_packed_documents(changes, window):
    found = answered(**changes)
    windows = [float(x.window) for x in found.model.mixers if x.window < ALL]
    assert windows == ([] if window is None else [window])
    assert ("packed of documents, attention costs" in told(found)) == (window is not None)


def test_shapes_experts_and_frozen_bases():
    moe = answered(n_experts="8", top_k="2", ep="8").model
    assert [size(moe, n) for n in ("n_experts", "top_k", "trainable")] == [8.0, 2.0, 1.0]
    blank = answered(n_kv_heads="", gated_mlp="", d_ff="16384", flag="lora").model
    names = ("n_kv_heads", "gated_mlp", "trainable", "head_dim")
    assert [size(blank, n) for n in names] == [32.0, 0.0, 0.0, 128.0]
    wide = answered(n_experts="64", top_k="2", ep="64").plan.layout
    assert float(wide.ep) == float(wide.dp * wide.tp * wide.cp) and float(wide.etp) == 1.0
    split = answered(n_experts="8", top_k="2", ep="4", etp="2").plan.layout
    assert (float(split.ep), float(split.etp)) == (4.0, 2.0)


DEEPSEEK = {
    "model": "deepseek-v3",
    "n_layers": "61",
    "d_model": "7168",
    "d_ff": "2048",
    "n_heads": "128",
    "n_kv_heads": "128",
    "head_dim": "",
    "vocab": "129280",
    "n_experts": "256",
    "top_k": "8",
    "n_params": "",
}


def test_what_no_column_holds_is_the_catalogs_where_name_and_shape_agree():
    """DeepSeek-V3: latents, leading dense layers and a shared expert; and the total of 671e9
    parameters that they make."""
    found = answered(**DEEPSEEK)
    assert float(parameters(found.model)) == pytest.approx(671e9, rel=0.001)
    assert "of deepseek-v3 in the catalog" in told(found)
    other = answered(**{**DEEPSEEK, "n_layers": "60"}).model
    assert not having(other, "kv_rank") and size(other, "shared_ff") == 0.0


@pytest.mark.parametrize(
    ("stack", "model", "said", "heads"),
    [
        ("megatron-bridge/26.02", "deepseek-v3", {}, 1.0),
        ("megatron-bridge/25.11", "deepseek-v3", {"n_mtp": 0}, 0.0),
        ("megatron-bridge/26.08", "nemotron_3_nano", {}, 0.0),
        ("megatron-bridge/26.08", "nemotron_3_super", {}, 1.0),
        ("own", "deepseek-v3", {}, 0.0),
        ("own", "deepseek-v3", {"n_mtp": 1}, 1.0),
    ],
)
def test_heads_of_further_tokens_are_as_said_or_as_the_stack_trains(stack, model, said, heads):
    assert float(job(stack, model, "H100-80GB", **said).model.n_mtp) == heads


def test_experts_that_are_padded_take_as_long_as_the_busiest():
    """KempnerForge's, by half of what one that all visit would have more than the mean; others are
    balanced, and so is a single one."""
    experts = {"n_experts": "16", "top_k": "2"}
    padded = answered(stack="kempnerforge/moe-packed", **experts)
    assert size(padded.model, "imbalance") == 4.5 and "4.5 times the mean" in told(padded)
    assert "balanced load" not in told(padded)
    other = answered(stack="torchtitan", **experts)
    assert size(other.model, "imbalance") == 1.0 and "balanced load" in told(other)
    assert not having(answered(stack="kempnerforge").model, "imbalance")


def test_third_matrix_of_the_mlp_follows_a_parameter_count_that_contradicts_the_column():
    """MaxText's 16b: 15.70e9 parameters are those of three matrices; tables that say two make it
    12.1e9."""
    shape = {"n_layers": "32", "d_model": "4096", "d_ff": "28672", "n_heads": "64"}
    shape |= {"n_kv_heads": "64", "head_dim": "128", "vocab": "32000"}
    for column in ("0", "1"):
        found = answered(model="maxtext-16b", gated_mlp=column, n_params="15700328448", **shape)
        assert size(found.model, "gated_mlp") == 1.0
        assert ("n_params says so, with 0" in told(found)) == (column == "0")
    # a count that fits neither, or none at all, leaves the column alone
    for n_params in ("9e9", ""):
        found = answered(model="mine", gated_mlp="0", n_params=n_params, **shape)
        assert size(found.model, "gated_mlp") == 0.0


def test_blank_head_size_of_a_known_model_is_the_catalogs():
    shape = {"n_layers": "48", "d_model": "2048", "d_ff": "768", "n_heads": "32"}
    shape |= {"n_kv_heads": "4", "vocab": "151936", "n_experts": "128", "top_k": "8"}
    shape |= {"head_dim": "", "model": "qwen3-30b-a3b"}
    known = answered(**shape)
    assert size(known.model, "head_dim") == 128.0
    assert "head_dim blank: 128, the catalog's" in told(known).splitlines()
    # another shape under that name is another model
    assert size(answered(**{**shape, "n_layers": "24"}).model, "head_dim") == 64.0
    assert size(answered(**{**shape, "head_dim": "96"}).model, "head_dim") == 96.0


def test_embeddings_are_tied_only_when_the_parameter_count_says_so():
    per_layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    untied, table = 32 * per_layer + 2 * 32000 * 4096, 32000 * 4096
    asked = ((untied, 0.0), (untied - table, 1.0), (untied - 0.5 * table, 0.0), (7e9, 0.0))
    for n_params, tied in asked:
        assert float(answered(n_params=f"{n_params:.0f}").model.tied_embeddings) == tied
    assert float(answered().model.tied_embeddings) == 0.0


MIXTURE = {
    "n_experts": "8",
    "top_k": "",
    "model": "mixtral-8x7b",
    "d_ff": "14336",
    "n_kv_heads": "8",
}


@pytest.mark.parametrize(
    ("changes", "visited", "said"),
    [
        ({}, 2.0, "top_k blank: 2, of mixtral-8x7b in the catalog"),
        ({"top_k": "0"}, 2.0, "top_k 0: 2, of mixtral-8x7b"),
        ({"n_layers": "8"}, 2.0, "top_k blank: 2, of mixtral-8x7b"),
        ({"n_experts": "16"}, 1.0, "top_k blank: 1, each token visits one expert"),
        ({"model": "mine"}, 1.0, "top_k blank: 1, each token visits one expert"),
        ({"model": ""}, 1.0, "top_k blank: 1, each token visits one expert"),
        ({"top_k": "1"}, 1.0, ""),
        ({"n_experts": ""}, 1.0, ""),
    ],
)
def test_a_blank_count_of_visited_experts_is_stated(changes, visited, said):
    found = answered(**{**MIXTURE, **changes})
    assert size(found.model, "top_k", 1.0) == visited
    texts = [text for text in told(found).splitlines() if text.startswith("top_k")]
    assert (len(texts) == 1 and texts[0].startswith(said)) if said else not texts


H, F = 4096.0, 11008.0
ADAPTERS = ("first_adapters", "first_adapted", "last_adapters", "last_adapted", "adapter_dropout")


@pytest.mark.parametrize(
    ("stack", "changes", "expected"),
    [
        ("nemo-launcher", {}, (1.0, 3.0 * H, 0.0, 0.0, 0.0)),
        ("megatron-bridge/26.06", {}, (1.0, 3.0 * H, 0.0, 0.0, 0.0)),
        ("megatron-bridge/25.11", {}, (2.0, 3.0 * H + 2.0 * F, 2.0, H + F, 0.0)),
        ("mlperf-train-v5.0", {}, (1.0, 3.0 * H, 1.0, H, 1.0)),
        ("automodel", {"model": "llama2-7b"}, (5.0, 3.0 * H + 2.0 * F, 2.0, H + F, 0.0)),
        ("automodel", {"model": "llama3-8b-lora"}, (5.0, 3.0 * H + 2.0 * F, 2.0, H + F, 1.0)),
        ("automodel", {"gated_mlp": "0"}, (4.0, 3.0 * H + F, 2.0, H + F, 0.0)),
        ("pytorch/llama-recipes", {}, (2.0, 2.0 * H, 0.0, 0.0, 1.0)),
        ("jax-toolbox-pax", {}, (0.0, 0.0, 0.0, 0.0, 0.0)),
        ("another", {}, (2.0, 2.0 * H, 0.0, 0.0, 0.0)),
        (
            "another",
            {"set": "adapters=linear_qkv+linear_fc1+linear_fc2; adapter_dropout=1"},
            (2.0, 3.0 * H + 2.0 * F, 1.0, F, 1.0),
        ),
        ("nemo-launcher", {"set": "adapters=o_proj"}, (0.0, 0.0, 1.0, H, 0.0)),
        ("nemo-launcher", {"set": "adapters=nothing"}, (0.0, 0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_adapters_are_as_said_or_as_the_stack_tunes(stack, changes, expected):
    found = answered(**{"model": "mine", **changes}, stack=stack, flag="lora")
    assert tuple(float(getattr(found.model, n)) for n in ADAPTERS) == expected
    assert "adapters on" in told(found)


def test_adapters_that_no_framework_has_are_not_dropped_without_a_word():
    found = answered(stack="another", flag="lora", set="adapters=q_proj+wqkv")
    assert float(found.model.first_adapters) == 1.0
    assert "not counted: wqkv" in told(found)


def test_only_frozen_models_have_adapters():
    tuned, whole = answered(flag="lora"), answered()
    assert float(tuned.model.first_adapters) > 0.0 == float(whole.model.first_adapters)
    assert "adapters on" not in told(whole)
