"""What version 0.1 read in notes: tables without the column `set` are told where to write it."""

import csv
import json
import re

import pytest
from typer.testing import CliRunner

from calibration.traces import published, read
from calibration.traces.notes import POLICIES, READINGS, advice
from calibration.traces.published import PUBLISHED
from dmodel.cli import app
from dmodel.settings import parse, text_of
from tests.rows import GOOD, table_file

SET = {
    "CUDA graphs on": "graphed=1",
    "run by config_x_cg_fp4.sh": "graphed=1",
    "dispatcher DeepEP": "dispatcher=deepep",
    "w/ MTP": "n_mtp=1",
    "w/o MTP": "n_mtp=0",
    "packed sequences": "packed_window=500",
    "FlashAttention-2": "attention_kernel=flash-2",
    "fp8 parameters": "gather_bytes=1",
    "weights in 16 bits": "reduce_bytes=2; gradient_bytes=2; gather_bytes=2; optimizer_bytes=6",
    "every second layer recomputed": "recompute_layers=0.5",
    "1 of 4 layers recomputed": "recompute_layers=0.25",
    "remat_policy=save_qkv_proj": "recompute_keeps=qkv",
    "remat_policy minimal_offloaded": "recompute_keeps=qkv+out+up+down; offload_results=1",
    "q, k, v and attention outputs kept, the rest recomputed": "recompute_keeps=qkv+core",
    "inputs alone kept, the rest recomputed": "recompute_keeps=nothing",
    "recompute of modules mla_up_proj, mlp": "recompute_modules=mla_up_proj+mlp",
    "layer inputs kept in host memory": "offload_inputs=1",
    "q, k, v kept in host memory": "offload_results=1",
    "activations of 40 of 80 layers kept in host memory": "offload=0.5",
}
"""Phrases of notes, and what is to be written into `set`."""


def blank(**cells: str) -> dict[str, str]:
    """Cells of a row whose columns leave open what the notes say."""
    return {**GOOD, "recompute": "", **cells}


def told(cells: dict[str, str]) -> dict[str, str]:
    """What is to be written, by column."""
    found = [re.search(r"write `(.*)` into the column (\w+)", text) for text in advice(cells)]
    return {match[2]: match[1] for match in found if match}


@pytest.mark.parametrize("words", SET)
def test_each_phrase_is_told_with_what_to_write_in_its_place(words):
    (line,) = advice(blank(note=f"median of 5 steps; {words}; by hand"))
    assert line.endswith(f"is not read: write `{SET[words]}` into the column set")
    assert parse(SET[words])


def test_every_reading_has_a_phrase_here():
    phrases = [*SET, "adapters on q_proj"]
    for _, pattern, _ in READINGS:
        assert any(re.search(pattern, words) for words in phrases), pattern


def test_columns_that_answer_are_not_asked_for():
    assert advice(blank(note="an older driver")) == advice(GOOD) == []
    words = {
        "remat_policy=save_qkv_proj": {"recompute": "full"},
        "FlashAttention-2": {"attention": "none"},
        "adapters on q_proj": {"flag": ""},
        "release=26.06": {"stack": "megatron-bridge/26.06"},
        "fsdp_ici=4": {"zero_stage": "3", "shard": "4"},
    }
    for note, cells in words.items():
        assert advice(blank(note=note, **cells)) == [], note


@pytest.mark.parametrize("name", POLICIES)
def test_policies_by_name(name):
    found = parse(told(blank(note=f"remat_policy={name}; other words"))["set"])
    assert found["recompute_keeps"] == POLICIES[name]
    assert ("offload_results" in found) == name.endswith("_offloaded")


@pytest.mark.parametrize(
    ("note", "text"),
    [
        # a share of the layers before a policy, a policy before modules
        ("remat minimal; 1 of 2 layers recomputed", "recompute_layers=0.5"),
        ("recompute of modules mlp; remat save_out_proj", "recompute_keeps=out"),
        ("remat_policy=custom", ""),
        ("rematerialization full; time = batch / throughput", ""),
    ],
)
def test_the_first_words_of_a_subject_decide_it(note, text):
    assert told(blank(note=note)).get("set", "") == text


@pytest.mark.parametrize(
    "cells",
    [
        {"zero_stage": "1", "dp": "8", "note": "fsdp_ici=4"},
        {"zero_stage": "3", "dp": "8", "note": "fsdp_ici=3"},
        {"flag": "lora", "global_batch": "8", "dp": "4", "note": "gradient accumulation 2"},
        {"flag": "", "global_batch": "8", "dp": "", "note": "gradient accumulation 2"},
        {"flag": "lora", "global_batch": "8", "note": "gradient accumulation 3"},
    ],
)
def test_what_fills_no_column_needs_no_advice(cells):
    assert advice(blank(micro_batch="1", **cells)) == []


def test_adapters_of_a_row_that_trains_them():
    note = "adapters on q_proj, v_proj; adapter dropout"
    assert told(blank(flag="lora", note=note)) == {
        "set": "adapters=q_proj+v_proj; adapter_dropout=1"
    }


def test_graphs_of_a_mixture_launch_its_experts():
    assert told(blank(n_experts="8", note="CUDA graphs on"))["set"] == "graphed=1; looped_experts=0"


@pytest.mark.parametrize(
    ("cells", "column", "text"),
    [
        ({"stack": "ours", "note": "release=26.06.01"}, "stack", "ours/26.06"),
        (
            {"stack": "ours", "note": "precision_label=TE BF16; revision 62799732"},
            "stack",
            "ours/62799732-te",
        ),
        ({"dp": "64", "tp": "1", "pp": "1", "zero_stage": "3", "note": "fsdp_ici=8"}, "shard", "8"),
        (
            {"dp": "64", "tp": "", "pp": "", "zero_stage": "3"}
            | {"note": "2 pods of 32 chips, data parallel between pods"},
            "shard",
            "32",
        ),
        (
            {"flag": "lora", "global_batch": "8", "micro_batch": "1", "dp": ""}
            | {"note": "gradient accumulation 2"},
            "dp",
            "4",
        ),
    ],
)
def test_what_a_column_holds_is_told_with_the_column(cells, column, text):
    assert told(blank(**cells)) == {column: text}


def test_advice_is_a_remark_on_tables_of_version_0_1_alone(tmp_path):
    note = {"recompute": "", "note": "CUDA graphs on"}
    old = read(table_file(tmp_path, note, {"note": "an older driver"}))
    (remark,) = old.notes
    assert remark.line == 2 and "write `graphed=1` into the column set" in remark.reason
    new = read(table_file(tmp_path, {**note, "set": ""}, name="new.csv"))
    assert new.notes == () and len(new.rows) == 1


def test_a_row_set_aside_says_what_its_note_would_have_filled(tmp_path):
    changes = {"stack": "mlperf-train-v5.0", "flag": "lora", "global_batch": "8"}
    open_ = {"dp": "", "tp": "", "pp": "", "cp": "", "micro_batch": "", "n_accel": "8"}
    path = table_file(tmp_path, {**changes, **open_, "note": "gradient accumulation 2"})
    (problem,) = read(path).problems
    assert problem.reason.startswith("layout unknown")
    assert "write `4` into the column dp (and fill tp and cp)" in problem.reason


def test_the_shell_tells_it(tmp_path):
    path = table_file(tmp_path, {"recompute": "", "note": "FlashAttention-2"})
    result = CliRunner().invoke(app, ["predict", str(path), "--json"])
    assert result.exit_code == 0, result.output
    (note,) = json.loads(result.stdout)["notes"]
    assert "write `attention_kernel=flash-2`" in note["reason"]
    assert "write `attention_kernel=flash-2`" in result.stderr


def test_the_shipped_table_needs_no_advice():
    assert not [note for note in published().notes if "is not read" in note.reason]


def test_a_stack_that_no_file_describes_is_remarked_once(tmp_path):
    rows = [{"stack": "torchtitn"}] * 3 + [{"stack": "torchtitan"}]
    table = read(table_file(tmp_path, *rows))
    (note,) = table.notes
    assert len(table.rows) == 4 and note.line == 2
    assert "'torchtitn'" in note.reason and "nearest: torchtitan" in note.reason
    assert not [note for note in published().notes if "no file describes" in note.reason]


def test_a_policy_that_the_stack_has_not_is_remarked(tmp_path):
    policy = {"recompute": "selective", "set": "recompute_policy=minimal_flash"}
    table = read(table_file(tmp_path, policy, {**policy, "stack": "maxtext"}))
    (note,) = table.notes
    assert note.line == 2 and "recompute_policy = minimal_flash: not read" in note.reason


def test_settings_that_contradict_each_other_set_a_row_aside(tmp_path):
    wrong = {"recompute": "full", "set": "recompute_keeps=qkv"}
    table = read(table_file(tmp_path, wrong, {"set": "graphed=1"}))
    (problem,) = table.problems
    assert len(table.rows) == 1 and "these say different things" in problem.reason


def test_cells_of_set_are_written_as_they_are_read():
    with PUBLISHED.open(encoding="utf-8") as file:
        cells = {row["set"] for row in csv.DictReader(file)}
    assert all(text_of(parse(cell)) == cell for cell in cells)
