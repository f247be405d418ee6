"""Traces: every row is used or set aside with a reason, formats round-trip, blanks are filled openly."""

import csv
from pathlib import Path

import numpy as np
import pytest

from calibration.traces import cheapest_that_fits, concatenate, fingerprint, never_recompute, published, read, to_cases, write
from calibration.traces.checkpoints import modules
from calibration.traces.experts import dispatch, fused_experts, launches, narrow_attention
from calibration.traces.recipes import chunks, further_tokens, fuses_sums, widths
from calibration.traces.schema import COLUMNS, REQUIRED, markdown
from calibration.traces.sharding import MEGATRON_FAMILY, bucket_per_rank
from dmodel.cli.question import Degrees, Job, plan, plan_document, setting, settings
from dmodel.coefficients import default
from dmodel.counts import parameters
from dmodel.plan import Plan
from dmodel.step import step_time
from dmodel.types import InputError

GOOD = {
    "source": "test",
    "stack": "megatron-lm",
    "model": "llama-2-7b",
    "n_layers": "32",
    "d_model": "4096",
    "d_ff": "11008",
    "gated_mlp": "1",
    "n_heads": "32",
    "n_kv_heads": "32",
    "vocab": "32000",
    "seq_len": "4096",
    "accelerator": "H100-80GB",
    "n_accel": "64",
    "domain_size": "8",
    "precision": "bf16",
    "attention": "flash",
    "recompute": "none",
    "dp": "8",
    "zero_stage": "1",
    "tp": "4",
    "sp": "1",
    "pp": "2",
    "interleave": "1",
    "cp": "1",
    "ep": "1",
    "micro_batch": "2",
    "global_batch": "128",
    "step_time_s": "3.5",
    "tokens_per_s_per_accel": "",
    "flag": "",
    "note": "",
}


def table_file(folder: Path, *rows: dict[str, str], drop: str = "", name: str = "traces.csv") -> Path:
    """A CSV of the good row, changed by each dict."""
    columns = [c for c in dict.fromkeys([*GOOD, *(k for row in rows for k in row)]) if c != drop]
    path = folder / name
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, columns, extrasaction="ignore")
        out.writeheader()
        out.writerows({**GOOD, **row} for row in rows)
    return path


def one_case(folder: Path, **changes: str):
    return to_cases(read(table_file(folder, changes), require_time=False), never_recompute)


# --- reading


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"n_layers": "", "model": "mine"}, "missing shape: n_layers"),
        ({"d_model": "", "vocab": "", "model": ""}, "missing shape: d_model, vocab"),
        ({"n_accel": ""}, "n_accel is blank"),
        ({"dp": "4"}, "degrees do not multiply"),
        ({"step_time_s": "0"}, "step_time_s: expected a positive number, got 0"),
        ({"step_time_s": "-3.5"}, "expected a positive number, got -3.5"),
        ({"step_time_s": "nan"}, "step_time_s: expected a finite number, got 'nan'"),
        ({"step_time_s": "inf"}, "finite"),
        ({"step_time_s": "fast"}, "step_time_s: expected a plain number, got 'fast'"),
        ({"global_batch": "1,024"}, "plain number"),
        ({"tp": "0"}, "tp: expected 1 or more"),
        ({"tp": "2.5"}, "tp: expected an integer"),
        ({"zero_stage": "4"}, "zero_stage: expected 0 or 1 or 2 or 3"),
        ({"precision": "fp7"}, "precision: expected one of bf16"),
        ({"precision": "nvfp4"}, "nvfp4"),
        ({"recompute": "some"}, "recompute: expected one of none, selective, full"),
        ({"accelerator": "H100-80G"}, "H100-80GB"),
        ({"tp": "3", "n_accel": "48"}, "tp = 3 does not divide n_heads = 32"),
        ({"pp": "64", "n_accel": "2048"}, "a stage would have no layer"),
        ({"interleave": "32"}, "chunks would have no layer"),
        ({"d_model": "1e300"}, "d_model: expected at most 1e+09"),
        ({"vocab": "9" * 400}, "vocab: expected a finite number"),
        ({"n_params": "1e300"}, "n_params: expected a number from 1e-09 to 1e+18"),
        ({"step_time_s": "1e-300"}, "step_time_s: expected a number from 1e-09"),
        ({"global_batch": "100"}, "not divisible by dp·micro_batch = 8·2"),
        ({"n_kv_heads": "5"}, "n_kv_heads"),
        ({"n_experts": "4", "top_k": "8"}, "top_k = 8 is more than n_experts = 4"),
        ({"ep": "8"}, "without experts"),
        ({"step_time_s": ""}, "no measured time"),
        ({"dp": "", "tp": "", "pp": ""}, "layout unknown"),
        ({"dp": "64", "tp": "1", "pp": "1", "zero_stage": "3", "shard": "128"}, "shard = 128 is more than dp = 64: expected"),
        ({"dp": "64", "tp": "1", "pp": "1", "zero_stage": "3", "shard": "3"}, "shard = 3 does not divide dp = 64: expected"),
        ({"zero_stage": "0", "shard": "16"}, "shard = 16 is more than dp = 8"),
        ({"accelerator": "H100X"}, "nearest: H100-80GB"),
    ],
)
def test_unusable_rows_are_set_aside_with_file_line_and_reason(tmp_path, changes, reason):
    table = read(table_file(tmp_path, {}, changes, {}))
    assert [row.line for row in table.rows] == [2, 4]
    (problem,) = table.problems
    assert (problem.file, problem.line) == (str(tmp_path / "traces.csv"), 3)
    assert reason in problem.reason


@pytest.mark.parametrize("column", REQUIRED)
def test_a_missing_column_is_an_error_that_names_it(tmp_path, column):
    with pytest.raises(InputError, match=f"traces.csv: missing columns: {column};.*expected a header"):
        read(table_file(tmp_path, {}, drop=column))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf  \n", "no header|empty"),
        (b"\x89PNG\r\n\x1a\n\x00\xff\xfe" * 40, "not a text file"),
        (b"a\x00b,c\n1,2\n", "NUL"),
        ("model\ncafé\n".encode("latin-1"), "save it as UTF-8"),
        ((",".join(GOOD) + ",,\n" + ",".join(GOOD.values()) + ",,\n").encode(), "column without a name stands"),
        (b"hello world\n", "missing columns"),
        (b"PAR1 but not for long", "not a readable Parquet file"),
        ((",".join(GOOD) + "\n").encode(), "no rows"),
        ((",".join(GOOD) + ",tp\n" + ",".join(GOOD.values()) + ",4\n").encode(), "column tp stands in the header more than once"),
        (";".join(GOOD).encode() + b"\n" + ";".join(GOOD.values()).encode(), "separator"),
    ],
)
def test_a_file_that_is_no_table_is_one_error_that_names_it(tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read(path)
    assert str(path) in str(error.value)


def test_no_such_file_a_folder_and_no_file_at_all(tmp_path):
    for paths in (tmp_path / "none.csv", tmp_path, []):
        with pytest.raises(InputError):
            read(paths)


def test_a_file_cut_anywhere_before_its_last_field_reports_the_last_line(tmp_path):
    path = table_file(tmp_path, {}, {"note": 'a "quoted", note', "end": "0"})
    text = path.read_text()
    for end in range(text.rindex("test,") + 1, text.rindex(",")):
        path.write_text(text[:end])
        table = read(path)
        (problem,) = table.problems
        assert (table.total, problem.line) == (2, 3)
        assert "cut short" in problem.reason or "truncated" in problem.reason


def test_lines_count_as_in_the_file_with_blank_lines_and_quoted_line_breaks(tmp_path):
    path = table_file(tmp_path, {"note": "two\nlines"}, {"tp": "x"})
    path.write_text(path.read_text().replace("\ntest", "\n\ntest"))
    table = read(path)
    assert [row.line for row in table.rows] == [3]
    assert [p.line for p in table.problems] == [6]
    assert "tp" in path.read_text().splitlines()[0] and ",x," in path.read_text().splitlines()[5]


def test_mild_things_are_notes_and_the_row_is_used(tmp_path):
    rows = [{"n_layers": "33"}, {"micro_batch": "1.99999"}, {"tokens_per_s_per_accel": "1000"}, {"flag": "odd"}]
    table = read(table_file(tmp_path, *rows))
    assert len(table.rows) == 4 and not table.problems
    texts = [note.reason for note in table.notes]
    assert [n.line for n in table.notes] == [2, 3, 4, 5]
    assert all(word in text for word, text in zip(("uneven", "read as 2", "step_time_s counts", "odd"), texts, strict=True))


def test_time_follows_from_throughput_and_may_be_left_out_for_prediction(tmp_path):
    derived = one_case(tmp_path, step_time_s="", tokens_per_s_per_accel="2048")
    assert derived.labels.step_time_s[0] == pytest.approx(128 * 4096 / (2048 * 64), rel=1e-12)
    assert np.isnan(one_case(tmp_path, step_time_s="").labels.step_time_s[0])
    minimal = {name: GOOD[name] for name in REQUIRED}
    path = tmp_path / "minimal.csv"
    path.write_text(",".join(minimal) + ",dp,tp,pp\n" + ",".join(minimal.values()) + ",8,4,2\n")
    assert len(read(path, require_time=False).rows) == 1
    with pytest.raises(InputError, match="step_time_s"):
        read(path)


# --- writing


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_round_trip_keeps_rows_reasons_and_unknown_columns(tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    rows = [{"my_own": "a, b"}, {"tp": "3", "my_own": ""}, {"step_time_s": "0.1234567890123456", "my_own": "ü"}]
    before = read(table_file(tmp_path, *rows))
    path = tmp_path / f"again{suffix}"
    write(before, path)
    after = read(path)
    assert after.columns == before.columns
    assert [p[1:] for p in after.problems] == [p[1:] for p in before.problems]
    for name in before.columns:
        pairs = [(a.text(name), b.text(name)) for a, b in zip(before.rows + before.aside, after.rows + after.aside, strict=True)]
        assert all(a == b or float(a) == float(b) for a, b in pairs)
    assert [fingerprint(r) for r in after.rows] == [fingerprint(r) for r in before.rows]


def test_added_columns_are_written_beside_the_row(tmp_path):
    table = read(table_file(tmp_path, {}, {"tp": "x"}, {"dp": "4", "tp": "8"}))
    write(table.with_columns({"predicted_step_time_s": np.array([1.5, 2.5])}), tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        assert [row["predicted_step_time_s"] for row in csv.DictReader(file)] == ["1.5", "", "2.5"]
    with pytest.raises(ValueError, match="2 usable rows"):
        table.with_columns({"x": [1.0]})
    with pytest.raises(InputError, match="does not exist"):
        write(table, tmp_path / "nowhere" / "out.csv")


# --- to records


SC21 = {"stack": "megatron-sc21-t1", "n_layers": "80", "zero_stage": "0"}


@pytest.mark.parametrize(
    ("changes", "field", "value", "said"),
    [
        ({"dp": ""}, "dp", 8.0, "dp blank: 8"),
        ({"tp": ""}, "tp", 4.0, "tp blank: 4"),
        ({"pp": ""}, "pp", 2.0, "pp blank: 2"),
        ({"cp": ""}, "cp", 1.0, "cp blank: 1"),
        ({"sp": ""}, "sp", 1.0, "sp blank: 1"),
        ({"sp": "", "tp": "1", "dp": "32"}, "sp", 0.0, "sp blank: 0"),
        ({"zero_stage": ""}, "zero", 1.0, "zero_stage blank: 1"),
        ({"interleave": ""}, "interleave", 1.0, "interleave blank"),
        ({"micro_batch": ""}, "micro_batch", 1.0, "micro_batch blank: 1"),
        ({"attention": ""}, "flash", 1.0, "attention blank: flash"),
        ({"attention": "none"}, "flash", 0.0, ""),
        ({"recompute": ""}, "recompute_layers", 0.0, "recompute blank: none"),
        ({"recompute": "full"}, "recompute_layers", 1.0, ""),
        ({"recompute": "selective"}, "recompute_attention", 1.0, ""),
        ({"precision": "fp8-blockwise128"}, "operand_bytes", 1.0, ""),
        ({"precision": "fp8"}, "low_precision", 1.0, ""),
        ({"precision": ""}, "operand_bytes", 2.0, "precision blank: bf16"),
        ({}, "reduce_bytes", 4.0, "gradients reduced in 4 bytes"),
        ({"precision": "fp16"}, "reduce_bytes", 2.0, "gradients reduced in 2 bytes"),
        ({"stack": "llm-foundry"}, "reduce_bytes", 2.0, "gradients reduced in 2 bytes"),
        ({"stack": "nanotron/main", "zero_stage": "1"}, "reduce_bytes", 8.0, "nanotron under ZeRO-1"),
        ({"stack": "nanotron/main", "zero_stage": "1"}, "overlap_dp", 0.0, "nanotron under ZeRO-1"),
        ({"stack": "nanotron/main", "zero_stage": "0"}, "reduce_bytes", 4.0, "gradients reduced in 4 bytes"),
        ({"stack": "nanotron/main", "zero_stage": "0"}, "overlap_dp", 1.0, ""),
        ({"stack": "torchtitan", "recompute": "selective"}, "recompute_elementwise", 1.0, "selective recompute by operator"),
        ({"stack": "torchtitan", "recompute": "selective"}, "recompute_layers", 0.0, ""),
        ({"stack": "torchtitan", "recompute": "", "note": "1 of 4 layers recomputed"}, "recompute_layers", 0.25, "recompute blank: 0.25"),
        ({"stack": "torchtitan", "zero_stage": "3"}, "reduce_bytes", 4.0, "gradients reduced in 4 bytes"),
        ({"stack": "torchtitan", "zero_stage": "2"}, "zero", 1.0, "zero_stage 1: weights stay gathered"),
        ({"stack": "kempnerforge", "zero_stage": "2"}, "zero", 2.0, ""),
        ({"stack": "torchtitan", "zero_stage": "3", "model": "llama-405b", "precision": "fp8"}, "gather_bytes", 1.0, "gradients held and"),
        ({"stack": "torchtitan", "zero_stage": "3", "model": "llama-8b", "precision": "fp8"}, "gather_bytes", 2.0, ""),
        ({"stack": "maxtext", "zero_stage": "3", "shard": "2"}, "overlap_replica", 0.0, "sums over replicas are waited for"),
        ({"stack": "maxtext", "zero_stage": "3"}, "overlap_replica", 1.0, ""),
        ({"stack": "torchtitan", "zero_stage": "3", "shard": "2"}, "overlap_replica", 1.0, ""),
        ({"stack": "llm-foundry", "accelerator": "A100-80GB"}, "attention_rate", 1.0 / 1.4, "FlashAttention in Triton"),
        ({"stack": "llm-foundry", "accelerator": "A100-80GB"}, "attention_backward_rate", 0.5, "FlashAttention in Triton"),
        ({"stack": "llm-foundry", "accelerator": "H100-80GB"}, "attention_rate", 1.0 / 1.4 / 1.73, "FlashAttention in Triton"),
        ({"stack": "llm-foundry", "accelerator": "H100-80GB"}, "attention_backward_rate", 0.5 / 1.62, "FlashAttention in Triton"),
        ({"stack": "llm-foundry", "attention": "none"}, "attention_rate", 1.0, ""),
        ({"stack": "torchtitan", "accelerator": "H100-80GB"}, "attention_rate", 1.0 / 1.73, "FlashAttention-2"),
        ({"stack": "torchtitan", "accelerator": "H100-80GB"}, "attention_backward_rate", 1.0 / 1.62, "FlashAttention-2"),
        ({"stack": "torchtitan", "accelerator": "A100-80GB"}, "attention_rate", 1.0, ""),
        ({"stack": "nemo/24.12", "accelerator": "H100-80GB"}, "attention_rate", 1.0, ""),
        ({"stack": "torchtitan", "cp": "2", "dp": "4"}, "cp_balanced", 0.0, "cp: causal sequences held in order"),
        ({"cp": "2", "dp": "4"}, "cp_balanced", 1.0, ""),
        ({"stack": "megatron-bridge/26.02"}, "reduce_bytes", 2.0, "gradients held and reduced in 2 bytes"),
        (SC21 | {"micro_batch": ""}, "micro_batch", 2.0, "micro_batch blank: 2, as in the script"),
        (SC21 | {"interleave": ""}, "interleave", 2.0, "interleave blank: 2, as in the script"),
        (SC21, "overlap_dp", 0.0, "gradients reduced after the backward pass"),
        (SC21 | {"n_layers": "36"}, "overlap_dp", 1.0, ""),
        ({"stack": "vtrain"}, "overlap_dp", 0.0, "gradients reduced after the backward pass"),
        ({"stack": "megatron-deepspeed/bigscience-bf16"}, "overlap_dp", 0.0, "gradients reduced after the backward pass"),
        ({"stack": "megatron-deepspeed/bigscience-bf16", "pp": "1", "dp": "16"}, "overlap_dp", 0.0, "gradients reduced after the backward"),
        ({"stack": "megatron-lm"}, "overlap_dp", 1.0, ""),
        ({"stack": "mlperf-train-v4.0", "zero_stage": "1"}, "reduce_bytes", 2.0, "gradients held and reduced in 2 bytes"),
        ({"stack": "mlperf-train-v4.0", "pp": "4", "dp": "4", "interleave": ""}, "interleave", 8.0, "interleave blank: 8, as the stack's"),
        ({"stack": "nemo-launcher", "interleave": ""}, "interleave", 16.0, "interleave blank: 16, as the stack's"),
        ({"stack": "nemo/24.07", "interleave": "", "flag": "lora"}, "interleave", 1.0, "interleave blank: 1, as the stack's"),
        (
            {"stack": "nemo-launcher", "model": "llama3-70b", "n_layers": "80", "interleave": ""},
            "interleave",
            5.0,
            "interleave blank: 5, as the stack's",
        ),
        ({"stack": "megatron-bridge/26.02"}, "gradient_bytes", 2.0, ""),
        ({"stack": "megatron-bridge/26.02", "precision": "fp8"}, "gather_bytes", 1.0, ""),
        ({"stack": "megatron-bridge/26.02", "precision": "bf16"}, "gather_bytes", 2.0, ""),
        ({"stack": "megatron-bridge", "recompute": ""}, "recompute_layers", 0.0, "recompute blank: none, as the stack's recipes"),
        ({"zero_stage": "3"}, "shard", 8.0, "shard blank: 8, all ranks of dp"),
        ({}, "tp", 4.0, "head_dim blank: 128"),
        ({}, "tp", 4.0, "n_experts blank: no experts"),
        ({"zero_stage": "0"}, "shard", 1.0, ""),
        ({"zero_stage": "3", "shard": "4"}, "shard", 4.0, ""),
        ({"zero_stage": "3", "note": "fsdp_ici=2"}, "shard", 2.0, "shard blank: 2"),
    ],
)
def test_blanks_become_stated_assumptions(tmp_path, changes, field, value, said):
    cases = one_case(tmp_path, **changes)
    assert np.asarray(getattr(cases.plan, field)).tolist() == [value]
    assert not said or any(text.startswith(said) for text in cases.labels.assumptions[0])
    blank = {text.partition(" blank")[0] for text in cases.labels.assumptions[0] if " blank" in text}
    assert said or blank <= {"head_dim", "n_experts", "shard"}, "the columns that the row has not got"


BLANK = dict.fromkeys(("n_layers", "d_model", "d_ff", "gated_mlp", "n_heads", "n_kv_heads", "vocab", "n_experts", "top_k", "n_params"), "")


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        (BLANK | {"model": "llama3-70b"}, (80.0, 8192.0, 8.0, 1.0)),
        (BLANK | {"model": "meta-llama/Llama 3 70B", "n_params": "70.6e9"}, (80.0, 8192.0, 8.0, 1.0)),
        ({"vocab": ""}, (32.0, 4096.0, 32.0, 1.0)),
        (BLANK | {"model": "llama3-70b", "n_experts": "0"}, (80.0, 8192.0, 8.0, 1.0)),
        (BLANK | {"model": "Mixtral 8x7B"}, (32.0, 4096.0, 8.0, 8.0)),
    ],
)
def test_a_blank_shape_is_the_catalogs_of_that_name(tmp_path, changes, sizes):
    """And stays so in the file that is written."""
    table = read(table_file(tmp_path, changes))
    cases = to_cases(table)
    found = (cases.model.n_layers[0], cases.model.d_model[0], cases.model.n_kv_heads[0], cases.model.n_experts[0])
    assert found == sizes
    assert any(text.startswith("shape blank: ") for text in cases.labels.assumptions[0])
    write(table, tmp_path / "again.csv")
    again = read(tmp_path / "again.csv")
    assert (again.rows[0].cells, again.rows[0].filled) == (table.rows[0].cells, table.rows[0].filled)
    assert to_cases(again).labels.assumptions == cases.labels.assumptions


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


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"stack": "nemo-launcher", "model": "llama2-7b-sft"}, 1000.0),
        ({"stack": "nemo-launcher", "model": "mine", "flag": "lora"}, 1000.0),
        ({"stack": "megatron-bridge/26.06", "model": "llama3-70b-lora", "flag": "lora"}, 1000.0),
        ({"stack": "another", "note": "packed sequences"}, 1000.0),
        ({"stack": "another", "note": "unpacked sequences"}, None),
        ({"stack": "nemo-launcher", "model": "llama2-7b"}, None),
        ({"stack": "nemo-launcher", "model": "llama2-7b-sft", "attention": "none"}, None),
        ({"stack": "nemo-launcher", "model": "llama2-7b-sft", "seq_len": "1000"}, None),
        ({"stack": "automodel", "model": "llama3-8b-lora", "flag": "lora"}, None),
    ],
)
def test_attention_stays_in_packed_documents(tmp_path, changes, window):
    cases = one_case(tmp_path, **changes)
    assert np.asarray(cases.model.windowed).tolist() == [float(window is not None)]
    assert window is None or np.asarray(cases.model.window).tolist() == [window]
    assert any("packed of documents" in text for text in cases.labels.assumptions[0]) == (window is not None)


@pytest.mark.parametrize("name", ["nemotron_3_nano", "nemotron-3-nano-30b-a3b", "Nemotron 3 Nano"])
def test_nemotron_3_is_launched_by_graphs_and_its_experts_are_not_fused(name):
    """Its activation has no gate; by any spelling, on Blackwell, from 26.02 on, and not the dense models of that name."""
    job = ("megatron-bridge/26.06", name, "GB200", "mxfp8")
    assert not fused_experts(*job) and fused_experts("megatron-bridge/26.06", "qwen3-30b-a3b", "GB200", "mxfp8")
    assert (launches(*job, 128.0, 8.0).graphed, dispatch(*job, 8.0).overlap) == (1.0, 0.0)
    assert launches("megatron-bridge/25.11", *job[1:], 128.0, 8.0).graphed == 0.0
    assert launches(job[0], name, "H100-80GB", "fp8", 128.0, 8.0).graphed == 0.0
    assert launches(job[0], "nemotron-3-8b", *job[2:], 1.0, 1.0).graphed == 0.0


@pytest.mark.parametrize(("layers", "found"), [(20.0, 5.0), (10.0, 5.0), (8.0, 8.0), (4.0, 4.0), (3.5, None)])
def test_chunks_divide_the_layers_of_a_stage(layers, found):
    assert chunks("nemo-launcher", "llama3-70b", layers, False) == found
    assert chunks("nemo-launcher", "llama3-70b", layers, True) == (None if found is None else 1.0)
    assert chunks("megatron-lm", "llama3-70b", layers, False) is None


@pytest.mark.parametrize(
    ("system", "model", "precision", "parts"),
    [
        ("GB200-NVL72", "deepseek-v3", "fp8", "mla_up_proj"),
        ("H100-DGX", "llama-3-8b", "fp8", "5 layers"),
        ("H100-DGX", "llama-3-8b", "fp8-blockwise128", "5 layers"),
        ("H100-DGX", "llama-3-8b", "FP8", "5 layers"),
        ("H100-DGX", "llama-3-8b", "bf16", ""),
    ],
)
def test_the_shell_recomputes_what_the_recipe_of_the_stack_does(system, model, precision, parts):
    """Left out, as a blank cell of a file; said, to the letter."""
    job = setting(Job(system, 64, model, 4096, 64, precision=precision, profile="generic", stack="megatron-bridge/26.04"))
    left, said = plan(job, Degrees(tp=1, pp=2, ep=32 if model == "deepseek-v3" else 1))
    told, _ = plan(job, Degrees(tp=1, pp=2, ep=32 if model == "deepseek-v3" else 1, recompute="none"))
    again = [float(x) for x in (left.recompute_layers, left.recompute_products)]
    assert (sum(again) > 0.0) == bool(parts) == any(parts in text and "recompute blank" in text for text in said)
    assert [float(x) for x in (told.recompute_layers, told.recompute_products)] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("done", "words"),
    [
        ({}, "none"),
        ({"recompute_attention": 1.0}, "selective"),
        ({"recompute_elementwise": 1.0, "recompute_products": 0.5}, "selective"),
        ({"recompute_products": 0.2}, "parts of a layer"),
        ({"recompute_products": 0.6, "recompute_attention": 1.0}, "parts of a layer"),
        ({"recompute_layers": 1.0}, "full"),
        ({"recompute_layers": 0.25}, "0.25 of the layers"),
    ],
)
def test_a_document_says_what_is_done_again(done, words):
    assert plan_document(Plan(dp=1.0, global_batch=1.0, **done))["recompute"] == words


def test_a_search_does_not_count_on_what_one_stage_keeps():
    """NeMo's distributed Adam is ZeRO-1's: where the stage is open, plans of others must fit too."""

    def kept(stack: str, zero: int | None) -> tuple[float, float, str]:
        base, said = settings(setting(Job("H100-DGX", 64, "llama-2-7b", 4096, 64, profile="generic", stack=stack)), "flash", zero)
        return float(base.gradient_bytes), float(base.optimizer_bytes), "; ".join(said)

    assert kept("nemo-launcher", 1)[:2] == (2.0, 10.0)
    assert kept("nemo-launcher", 3)[:2] == kept("nemo-launcher", None)[:2] == (4.0, 12.0)
    assert kept("megatron-bridge", None)[:2] == (2.0, 12.0)
    assert "where layers are recomputed, recomputation ends before" in kept("llm-foundry", None)[2]
    assert "recomputation ends" not in kept("nemo-launcher", None)[2] + kept("llm-foundry", 3)[2]


@pytest.mark.parametrize(
    ("stack", "model", "accelerator", "precision", "ep", "merged", "beside"),
    [
        ("megatron-bridge/26.02", "qwen3-235b-a22b", "H100-80GB", "fp8", 32, 0.0, 1.0),
        ("megatron-bridge/26.02", "qwen3-235b-a22b", "GB200", "mxfp8", 32, 1.0, 0.0),
        ("megatron-bridge/26.06", "qwen3-235b-a22b", "GB200", "mxfp8", 32, 1.0, 1.0),
        ("megatron-bridge/26.02", "gpt-oss-120b", "B300", "bf16", 64, 0.0, 0.0),
        ("megatron-bridge/26.04", "deepseek-v3", "B200", "mxfp8", 32, 1.0, 1.0),
        ("megatron-bridge/25.09", "deepseek-v3", "H100-80GB", "fp8", 64, 1.0, 1.0),
        ("megatron-bridge/26.02", "deepseek-v3", "H100-80GB", "fp8", 64, 1.0, 0.0),
        ("megatron-bridge/26.04", "deepseek-v3", "B200", "mxfp8", 1, 0.0, 1.0),
        ("torchtitan", "deepseek-v3", "B200", "mxfp8", 32, 0.0, 0.0),
        ("automodel", "deepseek-v3", "H100-80GB", "bf16", 64, 1.0, 0.0),
        ("maxtext-readme", "deepseek-v3", "TPU-v5p", "bf16", 32, 0.0, 1.0),
    ],
)
def test_dispatchers_are_those_of_the_recipes(stack, model, accelerator, precision, ep, merged, beside):
    found = dispatch(stack, model, accelerator, precision, float(ep))
    assert (found.merge_copies, found.overlap) == (merged, beside)
    assert bool(found.said) == (ep > 1 and not stack.startswith("maxtext"))


@pytest.mark.parametrize(
    ("stack", "model", "optimizer"),
    [
        ("nemo-launcher", "llama-2-70b", 10.0),
        ("nemo-launcher", "llama2-70b-sft", 6.0),
        ("nemo/24.07", "mine", 10.0),
        ("nemo/24.12", "mine-sft", 12.0),
    ],
)
def test_nemo_keeps_activations_and_reduces_in_16_bits(tmp_path, stack, model, optimizer):
    """Where a rule would recompute for want of memory, its recipes do not."""
    shape = {"n_layers": "80", "d_model": "8192", "d_ff": "28672", "n_heads": "64", "n_accel": "16", "dp": "1", "tp": "4", "pp": "4"}
    row = {**shape, "stack": stack, "model": model, "recompute": "", "precision": "fp8"}
    found = to_cases(read(table_file(tmp_path, row), require_time=False))
    plan = found.plan
    assert (plan.recompute_layers[0], plan.recompute_attention[0]) == (0.0, 0.0)
    assert (plan.reduce_bytes[0], plan.gradient_bytes[0], plan.optimizer_bytes[0]) == (2.0, 2.0, optimizer)
    assert plan.gather_bytes[0] == (1.0 if optimizer == 6.0 else 2.0), "the launcher's fine-tuning holds 8-bit weights"
    assert widths(stack, "bf16", 1.0, model).gathered == 2.0 and widths(stack, "fp8", 3.0, model) is None
    assert "recompute blank: none, as the stack's recipes have it" in found.labels.assumptions[0]


@pytest.mark.parametrize(
    ("changes", "share", "last"),
    [
        ({"stack": "llm-foundry", "recompute": "full"}, 1.0, 0.0),
        ({"stack": "llm-foundry/pure", "recompute": "full"}, 1.0, 1.0),
        ({"stack": "maxtext", "recompute": "full"}, 1.0, 0.0),
        ({"stack": "megatron-lm", "recompute": "full"}, 1.0, 1.0),
        ({"stack": "automodel", "recompute": "full", "flag": "lora"}, 1.0, 1.0),
        ({"stack": "automodel", "recompute": "full", "n_experts": "8", "top_k": "2"}, 1.0, 1.0),
        ({"stack": "torchtitan", "recompute": "", "note": "every second layer recomputed"}, 0.5, 0.0),
        ({"stack": "torchtitan", "recompute": "none"}, 0.0, 0.0),
    ],
)
def test_where_recomputation_ends(tmp_path, changes, share, last):
    found = to_cases(read(table_file(tmp_path, changes), require_time=False))
    assert (found.plan.recompute_layers[0], found.plan.recompute_last[0]) == (share, last)
    assert any("before the last product" in said for said in found.labels.assumptions[0]) == (share > 0.0 and last == 0.0)


@pytest.mark.parametrize(("tp", "columns", "unpadded"), [(1, 50257, 1.0), (2, 25128, 0.0), (4, 12564, 1.0), (8, 6282, 1.0)])
def test_composed_rows_of_vtrain_recompute_nothing_and_hold_words_that_nobody_pads(tmp_path, tp, columns, unpadded):
    degrees = {"tp": str(tp), "dp": str(8 // tp), "pp": "1", "cp": "1", "n_accel": "8"}
    changes = {"stack": "vtrain", "recompute": "full", "vocab": "51200", **degrees}
    found = one_case(tmp_path, **changes, flag="composed")
    assert (found.plan.recompute_layers[0], found.model.vocab[0], found.plan.unpadded_vocab[0]) == (0.0, columns * tp, unpadded)
    assert (found.plan.composed[0], found.plan.overlap_tp[0], found.plan.overlap_dp[0], found.plan.overlap_pp[0]) == (1.0, 0.0, 0.0, 0.0)
    assert any("composed rows hide no messages" in said for said in found.labels.assumptions[0])
    assert sum("composed rows recompute nothing" in said or "words a rank" in said for said in found.labels.assumptions[0]) == 2
    for real in (one_case(tmp_path, **changes), one_case(tmp_path, **changes | {"stack": "megatron-lm"}, flag="composed")):
        assert (real.plan.recompute_layers[0], real.model.vocab[0], real.plan.unpadded_vocab[0]) == (1.0, 51200.0, 0.0)
        assert (real.plan.composed[0], real.plan.overlap_pp[0]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("stack", "model", "chip", "precision", "experts", "expected"),
    [
        ("megatron-bridge/26.04", "qwen3-30b-a3b", "GB200", "mxfp8", 128.0, (0.0, 1.0)),
        ("megatron-bridge/26.04", "qwen3-235b-a22b", "GB200", "mxfp8", 128.0, (1.0, 1.0)),
        ("megatron-bridge/26.04", "qwen3-235b-a22b", "B300", "mxfp8", 128.0, (0.0, 1.0)),
        ("megatron-bridge/25.11", "qwen3-235b-a22b", "GB200", "mxfp8", 128.0, (0.0, 1.0)),
        ("megatron-bridge/25.09", "qwen3-30b-a3b", "B200", "fp8", 128.0, (1.0, 0.0)),
        ("megatron-bridge/25.09", "qwen3-30b-a3b", "H100-80GB", "fp8", 128.0, (0.0, 1.0)),
        ("megatron-bridge/26.06", "deepseek-v3", "B300", "mxfp8", 256.0, (1.0, 1.0)),
        ("megatron-bridge/26.08", "deepseek-v3", "B300", "mxfp8", 256.0, (1.0, 0.0)),
        ("megatron-bridge/26.06", "kimi-k2", "GB300", "mxfp8", 384.0, (0.0, 1.0)),
        ("megatron-bridge/26.08", "kimi-k2", "GB300", "mxfp8", 384.0, (1.0, 0.0)),
        ("megatron-bridge/26.08", "qwen3-30b-a3b", "B200", "mxfp8", 128.0, (1.0, 0.0)),
        ("megatron-bridge/26.08", "deepseek-v3", "B200", "mxfp8", 256.0, (0.0, 1.0)),
        ("megatron-bridge/26.06", "gpt-oss-120b", "B300", "mxfp8", 128.0, (1.0, 0.0)),
        ("megatron-bridge/26.06", "gpt-oss-120b", "B200", "bf16", 128.0, (0.0, 1.0)),
        ("megatron-bridge/26.04", "nemotron_3_super", "B200", "mxfp8", 512.0, (0.0, 1.0)),
        ("megatron-bridge/26.04", "nemotron_3_super", "B200", "nvfp4", 512.0, (1.0, 1.0)),
        ("megatron-bridge/26.02", "llama3-8b", "GB200", "fp8", 1.0, (1.0, 0.0)),
        ("megatron-bridge/26.02", "llama3-8b", "H100-80GB", "fp8", 1.0, (0.0, 0.0)),
        ("megatron-bridge/26.02", "llama-3-8b", "GB200", "fp8", 1.0, (1.0, 0.0)),
        ("nemo-launcher", "mixtral-8x7b", "H100-80GB", "bf16", 8.0, (0.0, 1.0)),
        ("torchtitan", "deepseek-v3", "B200", "bf16", 256.0, (0.0, 0.0)),
        ("maxtext-readme", "gpt-oss-120b", "TPU-v5p", "bf16", 128.0, (1.0, 0.0)),
        ("jax-toolbox-pax", "llama-2-7b", "H100-80GB", "bf16", 1.0, (0.75, 0.0)),
        ("dmodel-collect/jax-0.10", "llama-2-7b", "H100-80GB", "bf16", 1.0, (0.75, 0.0)),
    ],
)
def test_what_recipes_say_of_launches(stack, model, chip, precision, experts, expected):
    found = launches(stack, model, chip, precision, experts, 8.0)
    assert (found.graphed, found.looped) == expected
    assert found.rotary == float(model.startswith("gpt-oss") and not stack.startswith("maxtext"))
    assert found.fused == float(fused_experts(stack, model, chip, precision) and experts > 1.0)
    assert len(found.said) == (found.graphed > 0.0) + (found.looped > 0.0) + (found.fused > 0.0) + (found.rotary > 0.0)


@pytest.mark.parametrize(
    ("release", "model", "chip", "precision", "expected"),
    [
        ("26.06", "qwen3-30b-a3b", "GB200", "mxfp8", True),
        ("26.04", "qwen3-30b-a3b", "GB200", "mxfp8", False),
        ("26.06", "qwen3-30b-a3b", "GB200", "bf16", False),
        ("26.06", "deepseek-v3", "GB300", "mxfp8", True),
        ("26.06", "deepseek-v3", "GB200", "mxfp8", False),
        ("26.06", "gpt-oss-120b", "GB300", "mxfp8", True),
        ("26.06", "gpt-oss-120b", "B300", "mxfp8", False),
        ("26.06", "gpt-oss-20b", "GB300", "mxfp8", False),
        ("26.08", "nemotron_3_super", "GB300", "mxfp8", False),
        ("26.08", "kimi-k2", "GB300", "mxfp8", False),
        ("26.08", "deepseek-v2", "GB300", "mxfp8", False),
    ],
)
def test_recipes_whose_attention_runs_in_8_bits(release, model, chip, precision, expected):
    assert narrow_attention(f"megatron-bridge/{release}", model, chip, precision, 128.0) is expected
    assert not narrow_attention("megatron-lm", model, chip, precision, 128.0)
    assert not narrow_attention(f"megatron-bridge/{release}", model, chip, precision, 1.0)


def test_nemotron_3_super_and_ultra_are_read_by_their_recipes():
    """Shapes, latents and heads of further tokens; 16-bit layers under NVFP4; messages that wait; FSDP that the table has no mark for."""
    cases = to_cases(published())
    named = np.char.replace(cases.labels.model.astype(str), "_", "-")
    sup, ultra = (cases.take(np.flatnonzero(named == f"nemotron-3-{name}")) for name in ("super", "ultra"))
    assert (len(sup), len(ultra)) == (30, 2)
    assert set(np.asarray(sup.model.expert_rank)) == {1024.0} and set(np.asarray(ultra.model.expert_rank)) == {2048.0}
    assert set(np.asarray(sup.model.n_mtp)) == set(np.asarray(ultra.model.n_mtp)) == {1.0}
    four = np.asarray(sup.plan.operand_bytes) == 0.5
    np.testing.assert_allclose(sup.plan.wide_layers, np.where(four, 15.0 / 88.0, 0.0))
    np.testing.assert_allclose(sup.plan.overlap_tp, np.where(np.asarray(sup.plan.tp) > 1.0, 0.0, 1.0))
    assert set(np.asarray(ultra.plan.zero)) == {3.0} and set(np.asarray(ultra.plan.shard)) == {64.0}
    assert set(np.asarray(sup.plan.route_bytes)) == {1.0} and not np.asarray(sup.plan.fused_experts).any()


def test_whose_products_add_to_the_gradients_held():
    assert all(map(fuses_sums, ("megatron-bridge/26.04", "nemo-launcher", "megatron-lm/zero-bubble", "megatron-lm", "flagscale")))
    older = ("llm-foundry", "vtrain", "megatron-sc21-t1", "megatron-lm/dlperf", "megatron-deepspeed/bigscience-bf16")
    assert not any(map(fuses_sums, older))
    assert [bucket_per_rank(stack, 4.0) for stack in ("megatron-bridge/26.04", older[0], "torchtitan")] == [4e6, 0.0, 0.0]


def test_further_tokens_are_the_notes_or_the_recipes():
    assert further_tokens("megatron-bridge/26.02", "deepseek-v3", "")[0] == 1.0
    assert further_tokens("megatron-bridge/25.11", "deepseek-v3", "variant DeepSeekV3 (w/o MTP)")[0] == 0.0
    assert [further_tokens("megatron-bridge/26.08", f"nemotron_3_{name}", "")[0] for name in ("nano", "super", "ultra", "5_lightning")] == [
        0.0,
        1.0,
        1.0,
        2.0,
    ]
    assert further_tokens("own", "deepseek-v3", "")[0] == 0.0 and further_tokens("own", "deepseek-v3", "w/ MTP")[0] == 1.0


@pytest.mark.parametrize("written", ["H100", "h100-sxm5-80gb", "H100-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"])
def test_a_chip_is_known_by_any_of_its_names(tmp_path, written):
    """Offsets of a fit, recipes and the identity of a row go by the catalog's."""
    cases, same = one_case(tmp_path, accelerator=written), one_case(tmp_path)
    assert cases.labels.accelerator.tolist() == ["H100-80GB"]
    assert cases.labels.fingerprint.tolist() == same.labels.fingerprint.tolist()
    assert cases.labels.group.tolist() == same.labels.group.tolist()


@pytest.mark.parametrize(
    ("stack", "note", "expected"),
    [
        ("megatron-bridge", "release=26.06.01;kind=Pre-Training Performance", "megatron-bridge/26.06"),
        ("megatron-bridge", "release 26.08; ZeRO-1 assumed", "megatron-bridge/26.08"),
        ("megatron-bridge/25.11", "release 26.08", "megatron-bridge/25.11"),
        ("megatron-bridge", "release=26.061", "megatron-bridge"),
        ("jax-toolbox-pax", "precision_label=TE FP8;README revision 62799732 (two generations)", "jax-toolbox-pax/62799732-te"),
        ("jax-toolbox-pax", "precision_label=BF16;README revision 28603900", "jax-toolbox-pax/28603900"),
        ("jax-toolbox-pax", "revision of the table; precision_label=TE FP8", "jax-toolbox-pax"),
        ("torchtitan", "release 26.08", "torchtitan"),
    ],
)
def test_a_note_names_the_variant_that_the_stack_leaves_out(tmp_path, stack, note, expected):
    """Recipes, pooling and the identity of the row go by it, and it is said."""
    cases = one_case(tmp_path, stack=stack, note=note)
    assert cases.labels.stack.tolist() == [expected]
    assert any("the variant is the note's" in text for text in cases.labels.assumptions[0]) == (stack != expected)
    written = one_case(tmp_path, stack=expected, note=note)
    assert written.labels.fingerprint.tolist() == cases.labels.fingerprint.tolist()
    assert one_case(tmp_path, stack="", source=stack, note=note).labels.stack.tolist() == [expected]


def test_shapes_experts_and_frozen_bases(tmp_path):
    moe = one_case(tmp_path, n_experts="8", top_k="2", ep="8").model
    assert (moe.n_experts[0], moe.top_k[0], moe.trainable[0]) == (8.0, 2.0, 1.0)
    blank = one_case(tmp_path, n_kv_heads="", gated_mlp="", d_ff="16384", flag="lora")
    assert (blank.model.n_kv_heads[0], blank.model.gated_mlp[0], blank.model.trainable[0]) == (32.0, 0.0, 0.0)
    assert blank.model.head_dim[0] == 128.0
    wide = one_case(tmp_path, n_experts="64", top_k="2", ep="32").plan
    assert wide.ep[0] == wide.dp[0] * wide.tp[0] * wide.cp[0] and wide.etp[0] == 1.0
    split = one_case(tmp_path, n_experts="8", top_k="2", ep="4", etp="2").plan
    assert (split.ep[0], split.etp[0]) == (4.0, 2.0)


def test_what_no_column_holds_is_the_catalogs_where_name_and_shape_agree(tmp_path):
    """DeepSeek-V3: latents, leading dense layers and a shared expert; and the total of 671e9 parameters that they make."""
    columns = {"model": "deepseek-v3", "n_layers": "61", "d_model": "7168", "d_ff": "2048", "n_heads": "128", "n_kv_heads": "128",
               "head_dim": "", "vocab": "129280", "n_experts": "256", "top_k": "8", "n_params": ""}  # fmt: skip
    found = one_case(tmp_path, **columns)
    assert float(parameters(found.model)[0]) == pytest.approx(671e9, rel=0.001)
    assert any("of deepseek-v3 in the catalog" in text for text in found.labels.assumptions[0])
    other = one_case(tmp_path, **{**columns, "n_layers": "60"})
    assert other.model.kv_rank[0] == other.model.n_shared_experts[0] == 0.0


def test_pods_shard_alone_and_heads_of_further_tokens_are_in_the_note(tmp_path):
    pods = one_case(tmp_path, zero_stage="3", note="2 pod(s) of 32 chips, data parallel between pods", n_experts="8", top_k="2").plan
    assert 2.0 * pods.shard[0] == pods.dp[0]
    assert one_case(tmp_path, note="variant DeepSeekV3 (w/ MTP)").model.n_mtp[0] == 1.0


def test_third_matrix_of_the_mlp_follows_a_parameter_count_that_contradicts_the_column(tmp_path):
    """MaxText's 16b: 15.70e9 parameters are those of three matrices; tables that say two make it 12.1e9."""
    shape = {"n_layers": "32", "d_model": "4096", "d_ff": "28672", "n_heads": "64", "n_kv_heads": "64", "head_dim": "128", "vocab": "32000"}
    for column in ("0", "1"):
        case = one_case(tmp_path, model="maxtext-16b", gated_mlp=column, n_params="15700328448", **shape)
        assert case.model.gated_mlp[0] == 1.0
        assert ("n_params says so, with 0" in " ".join(case.labels.assumptions[0])) == (column == "0")
    # a count that fits neither, or none at all, leaves the column alone
    for n_params in ("9e9", ""):
        assert one_case(tmp_path, model="mine", gated_mlp="0", n_params=n_params, **shape).model.gated_mlp[0] == 0.0


def parts(case) -> tuple[float, ...]:
    """What is done again: of layers, the core of attention, products, and what streams."""
    return tuple(float(getattr(case.plan, f"recompute_{part}")[0]) for part in ("layers", "attention", "products", "elementwise"))


def test_what_maxtext_keeps_and_splits(tmp_path):
    """A layer has products of 1 (queries), 1, 1, 1 (output of attention) and 3 · 3.5 parts, of which 7 go into the MLP."""
    shape = {"n_layers": "64", "d_model": "8192", "d_ff": "57344", "n_heads": "128", "n_kv_heads": "128", "head_dim": "128"}
    ff = 57344 / 16384
    every = 4.0 + 3.0 * ff
    out, up = 1.0 / every, 2.0 * ff / every

    def redone(note: str, stack: str = "tpu-recipes", recompute: str = "selective") -> tuple[float, ...]:
        return parts(one_case(tmp_path, stack=stack, recompute=recompute, note=note, **shape))

    rest = "kept in host memory, the rest recomputed"
    assert redone(f"q, k, v and layer inputs {rest}") == pytest.approx((0.0, 1.0, out + up, 1.0))
    assert redone(f"q, k, v, results of the output projection and layer inputs {rest}") == pytest.approx((0.0, 1.0, up, 1.0))
    assert redone("devices are cores; q, k, v and attention outputs kept, the rest recomputed") == pytest.approx((0.0, 0.0, out + up, 1.0))
    assert redone("remat=qkv_proj_offloaded", "maxtext") == pytest.approx((0.0, 1.0, out + up, 1.0))
    assert redone("rematerialization minimal", "maxtext") == redone("", "maxtext") == (0.0, 1.0, 0.0, 1.0)
    assert redone("remat_policy minimal_with_context", "maxtext", "") == (0.0, 0.0, 0.0, 1.0)
    assert redone("rematerialization full", "maxtext", "full") == (1.0, 0.0, 0.0, 0.0)
    assert redone("rematerialization of our own", "nemo") == (0.0, 1.0, 0.0, 0.0)
    experts = one_case(tmp_path, stack="tpu-recipes", recompute="selective", note=f"q, k, v {rest}", n_experts="8", top_k="2", **shape)
    visited = 4.0 + 6.0 * ff
    again = (0.0, 1.0, 1.0 - 3.0 / visited, 1.0)
    assert parts(experts) == pytest.approx(again, rel=1e-4), "results of experts are weighted: needed again; the router's are few"
    assert one_case(tmp_path, stack="maxtext", recompute="selective", sp="0", **shape).plan.sp[0] == 1.0
    assert one_case(tmp_path, stack="nemo", recompute="selective", sp="0", **shape).plan.sp[0] == 0.0


def test_what_waits_in_the_host_s_memory(tmp_path):
    """By notes and names of policies, as shares of the bytes kept: queries, keys and values are 3 of 4 widths beside the layer's input."""
    shape = {"n_layers": "64", "d_model": "8192", "d_ff": "57344", "n_heads": "64", "n_kv_heads": "64", "head_dim": "128"}

    def share(note: str, recompute: str = "selective", **cells: str) -> float:
        return float(one_case(tmp_path, **{"stack": "tpu-recipes", "recompute": recompute, "note": note} | shape | cells).plan.offload[0])

    assert share("q, k, v and layer inputs kept in host memory, the rest recomputed") == pytest.approx(1.0)
    assert share("q, k, v kept in host memory, the rest recomputed") == pytest.approx(0.75)
    assert share("remat=qkv_proj_offloaded", stack="maxtext") == pytest.approx(0.75)
    assert share("devices are cores, two to a chip; layer inputs kept in host memory", "full") == pytest.approx(1.0)
    assert share("Activations of 16 of 64 layers kept in host memory", "none") == pytest.approx(0.25)
    for nothing in ("q, k, v kept, the rest recomputed", "optimizer state kept in host memory", "no activations kept in host memory", ""):
        assert share(nothing, "full") == 0.0, nothing
    fsdp = {"stack": "megatron-bridge/26.04", "recompute": "", "model": "llama3-70b", "zero_stage": "3", "pp": "1", "dp": "16"}
    found = {chip: one_case(tmp_path, accelerator=chip, **fsdp) for chip in ("GB200", "GB300", "B200")}
    assert {chip: float(case.plan.offload[0]) for chip, case in found.items()} == {"GB200": 0.5, "GB300": 0.25, "B200": 0.0}
    assert any("wait in host memory, as the stack's recipe" in text for text in found["GB200"].labels.assumptions[0])
    for change in ({"zero_stage": "1"}, {"pp": "2", "dp": "8"}, {"recompute": "full"}, {"model": "llama3-70b-sft"}, {"flag": "lora"}):
        assert one_case(tmp_path, accelerator="GB200", **{**fsdp, **change}).plan.offload[0] == 0.0, change


def test_a_rule_that_recomputes_leaves_the_same_parts_in_the_host_s_memory(tmp_path):
    """Layer inputs are a small share of what layers keep, and all of it once they are recomputed."""
    row = {"stack": "tpu-recipes", "recompute": "", "note": "layer inputs kept in host memory"}
    table = read(table_file(tmp_path, row))
    nothing, everything = (to_cases(table, rule).plan for rule in (never_recompute, lambda cases: (np.ones(1), np.zeros(1))))
    assert 0.0 < nothing.offload[0] < 0.1 and (everything.recompute_layers[0], everything.offload[0]) == (1.0, 1.0)


def test_torchtitan_keeps_every_second_product(tmp_path):
    """Llama 3 8B has products of 4, 1, 1, 4, 14, 14 and 14 parts: q, v, w1 and w2 are kept, k, the output's and w3 done again."""
    shape = {"n_layers": "32", "d_model": "4096", "d_ff": "14336", "n_heads": "32", "n_kv_heads": "8", "head_dim": "128", "gated_mlp": "1"}
    case = one_case(tmp_path, stack="torchtitan", recompute="selective", **shape)
    assert parts(case) == pytest.approx((0.0, 0.0, (1.0 + 4.0 + 14.0) / 52.0, 1.0))
    assert case.plan.last_kept[0] == 1.0 and one_case(tmp_path, stack="maxtext", recompute="selective", **shape).plan.last_kept[0] == 0.0
    plain = one_case(tmp_path, stack="torchtitan", recompute="selective", **shape | {"gated_mlp": "0"})
    assert parts(plain) == pytest.approx((0.0, 0.0, (1.0 + 4.0) / 38.0, 1.0)), "without a gate the sixth product is the last"


def test_a_note_says_what_a_run_of_nemo_switched_on(tmp_path):
    """Settings that differ by job of one release: modules done again, dispatcher, graphs, what is gathered, kernels of attention."""
    shape = {"n_layers": "61", "d_model": "7168", "d_ff": "2048", "n_heads": "128", "n_kv_heads": "128", "n_experts": "256", "top_k": "8"}
    row = {"stack": "nemo/25.07", "model": "deepseek-v3", "recompute": "", "precision": "fp8", "tp": "1", "dp": "32", "ep": "8", **shape}
    plain = one_case(tmp_path, **row)
    said = "FlashAttention-2; CUDA graphs on; fp8 parameters; dispatcher DeepEP; recompute of modules mla_up_proj, mlp, moe; steps 35-44"
    noted = one_case(tmp_path, **row, note=said)

    def read_as(cases, name):
        return float(getattr(cases.plan, name)[0])

    assert [read_as(plain, name) for name in ("graphed", "merge_copies", "gather_bytes", "attention_rate")] == [0.0, 0.0, 2.0, 1.0]
    assert [read_as(noted, name) for name in ("graphed", "merge_copies", "gather_bytes")] == [1.0, 1.0, 1.0]
    assert read_as(noted, "attention_rate") == pytest.approx(1.0 / 1.73)
    assert read_as(noted, "looped_experts") == 0.0 < read_as(plain, "looped_experts")
    assert read_as(noted, "recompute_products") > 0.6 and not any(parts(plain))
    told = "\n".join(noted.labels.assumptions[0])
    for words in ("mla_up_proj, mlp, moe, the note", "whole layers: the note", "DeepEP, by the note", "FlashAttention-2"):
        assert words in told
    bridge = one_case(tmp_path, **row | {"stack": "megatron-bridge/26.02"}, note="recompute of modules core_attn")
    assert parts(bridge)[1] == 1.0 and read_as(bridge, "recompute_products") == 0.0, "a note goes before the recipe"


@pytest.mark.parametrize(
    ("stack", "model", "accelerator", "precision", "names", "layers"),
    [
        ("megatron-bridge/26.02", "deepseek-v3", "GB200", "mxfp8", ("mla_up_proj",), 0.0),
        ("megatron-bridge/25.09", "deepseek-v3", "H100-80GB", "fp8", ("mla_up_proj", "mlp"), 0.0),
        ("megatron-bridge/26.06", "deepseek-v3", "GB300", "mxfp8", (), 0.0),
        ("megatron-bridge/26.04", "kimi-k2", "GB300", "mxfp8", ("mla_up_proj",), 0.0),
        ("megatron-bridge/26.04", "qwen3-30b-a3b", "B200", "mxfp8", (), 0.0),
        ("megatron-bridge/26.02", "llama3-8b", "H100-80GB", "fp8", (), 5.0),
        ("megatron-bridge/25.11", "llama3-8b", "H100-80GB", "fp8", (), 0.0),
    ],
)
def test_modules_that_megatron_bridge_does_again(stack, model, accelerator, precision, names, layers):
    assert modules(stack, model, accelerator, precision) == (names, layers)


def test_layers_and_products_from_latents_of_megatron_bridge(tmp_path):
    """Five of 32 layers on one stage; of DeepSeek-V3, 9.3 % of the products of the mean layer come from latents (54.5 of 583 million)."""
    shape = {"n_layers": "32", "d_model": "4096", "d_ff": "14336", "n_heads": "32", "n_kv_heads": "8", "head_dim": "128", "gated_mlp": "1"}
    degrees = {"pp": "1", "tp": "1", "dp": "64"}
    row = {"stack": "megatron-bridge/26.02", "accelerator": "H100-80GB", "precision": "fp8", "recompute": "", **degrees}
    assert parts(one_case(tmp_path, model="llama3-8b", **row | shape)) == (5.0 / 32.0, 0.0, 0.0, 0.0)
    assert parts(one_case(tmp_path, model="llama3-8b", **row | shape | {"flag": "lora"})) == (0.0, 0.0, 0.0, 0.0)
    table = published()
    rows = tuple(r for r in table.rows if r.text("model") == "deepseek-v3" and r.stack == "megatron-bridge/26.02")
    found = to_cases(table._replace(rows=rows))
    np.testing.assert_allclose(found.plan.recompute_products, 0.093, atol=0.001)
    assert not np.any(found.plan.recompute_elementwise) and not np.any(found.plan.recompute_layers)
    for said in found.labels.assumptions:
        assert [text for text in said if "recompute" in text] == ["recompute blank: mla_up_proj, as the stack's recipe has it"]


def test_fused_programs_of_collect_do_no_core_again(tmp_path):
    for attention, core in (("flash", 0.0), ("none", 1.0)):
        assert parts(one_case(tmp_path, stack="dmodel-collect", recompute="selective", attention=attention)) == (0.0, core, 0.0, 0.0)


def test_blank_head_size_of_a_known_model_is_the_catalogs(tmp_path):
    shape = {"n_layers": "48", "d_model": "2048", "d_ff": "768", "n_heads": "32", "n_kv_heads": "4", "vocab": "151936"}
    experts = {"n_experts": "128", "top_k": "8", "head_dim": ""}
    known = one_case(tmp_path, model="qwen3-30b-a3b", **shape, **experts)
    assert known.model.head_dim[0] == 128.0 and "head_dim blank: 128, the catalog's" in known.labels.assumptions[0]
    # another shape under that name is another model
    other = one_case(tmp_path, model="qwen3-30b-a3b", **{**shape, "n_layers": "24"}, **experts)
    assert other.model.head_dim[0] == 64.0
    assert one_case(tmp_path, model="qwen3-30b-a3b", **shape, **{**experts, "head_dim": "96"}).model.head_dim[0] == 96.0


def test_embeddings_are_tied_only_when_the_parameter_count_says_so(tmp_path):
    per_layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    untied = 32 * per_layer + 2 * 32000 * 4096
    for n_params, tied in ((untied, 0.0), (untied - 32000 * 4096, 1.0), (untied - 0.5 * 32000 * 4096, 0.0), (7e9, 0.0)):
        assert one_case(tmp_path, n_params=f"{n_params:.0f}").model.tied_embeddings[0] == tied
    assert one_case(tmp_path).model.tied_embeddings[0] == 0.0


def test_a_rule_decides_blank_recomputation_and_only_that(tmp_path):
    table = read(table_file(tmp_path, {"recompute": ""}, {"recompute": "full"}, {"recompute": ""}))
    cases = to_cases(table, lambda some: (np.zeros(len(some)), np.ones(len(some))))
    assert np.asarray(cases.plan.recompute_attention).tolist() == [1.0, 0.0, 1.0]
    assert np.asarray(cases.plan.recompute_layers).tolist() == [0.0, 1.0, 0.0]
    small, large = (
        {"recompute": ""},
        {"recompute": "", "micro_batch": "16", "tp": "1", "dp": "32", "global_batch": "1024", "n_layers": "64"},
    )
    fitting = to_cases(read(table_file(tmp_path, small, large)))
    assert np.asarray(fitting.plan.recompute_layers).tolist() == [0.0, 1.0]
    assert [x.tolist() for x in cheapest_that_fits(fitting)] == [[0.0, 1.0], [0.0, 0.0]]


def test_no_usable_row_is_an_error_with_the_first_reason(tmp_path):
    with pytest.raises(InputError, match="traces.csv:2: .*do not multiply"):
        to_cases(read(table_file(tmp_path, {"dp": "1"})))


def test_fingerprints_follow_values_not_spelling_or_place(tmp_path):
    rows = read(
        table_file(tmp_path, {}, {"dp": "8.0", "note": "other", "n_params": "7e9"}, {"step_time_s": "3.6"}, {"dp": "4", "tp": "8"})
    ).rows
    prints = [fingerprint(row) for row in rows]
    assert prints[0] == prints[1] and len(set(prints)) == 3 and all(len(p) == 12 for p in prints)


def test_words_of_the_format_may_be_written_in_any_case(tmp_path):
    changes = {"attention": "Flash", "recompute": "FULL", "flag": "LoRA; Slow-Unexplained", "precision": "BF16"}
    small = {name: text.lower() for name, text in changes.items()}
    table = read(table_file(tmp_path, changes, small, {**small, "precision": "FP8-Blockwise128"}))
    assert len(table.rows) == 3 and not table.notes
    assert fingerprint(table.rows[0]) == fingerprint(table.rows[1])
    cases = to_cases(table, never_recompute)
    assert cases.labels.flag.tolist() == ["lora; slow-unexplained"] * 3
    assert cases.labels.precision.tolist() == ["bf16", "bf16", "fp8-blockwise128"]
    assert cases.model.trainable.tolist() == [0.0] * 3 and cases.plan.recompute_layers.tolist() == [1.0] * 3
    odd = read(table_file(tmp_path, {"flag": "LoRA, Mine"}))
    assert odd.rows[0].flags == ("lora", "Mine") and "flag Mine is none of" in odd.notes[0].reason


@pytest.mark.parametrize(
    ("changes", "size", "said"),
    [
        ({"accel_per_node": "4"}, 4.0, "domain_size blank: 4, the devices of a host (accel_per_node)"),
        ({"accel_per_node": "1"}, 1.0, "domain_size blank: 1, the devices of a host"),
        ({"accel_per_node": "4", "domain_size": "8"}, 8.0, ""),
        ({"accel_per_node": "8"}, 8.0, "domain_size blank: the catalog's"),
        ({"accel_per_node": "16"}, 8.0, "domain_size blank: the catalog's"),
        ({"accel_per_node": "4", "accelerator": "GB200"}, 72.0, "domain_size blank: the catalog's"),
        ({"accel_per_node": "4", "accelerator": "TPU-v5e"}, 256.0, "domain_size blank: the catalog's"),
        ({"accel_per_node": "1", "stack": "dmodel-collect/jax"}, 8.0, "domain_size blank: the catalog's"),
    ],
)
def test_hosts_smaller_than_the_catalogs_are_the_fast_domain(tmp_path, changes, size, said):
    cases = one_case(tmp_path, **{"domain_size": "", **changes})
    assert cases.system.network.size[0, 0] == size
    assert any(text.startswith(said) for text in cases.labels.assumptions[0] if "domain_size" in text) or not said


def test_smaller_hosts_cost_what_smaller_domains_do(tmp_path):
    whole = {"n_accel": "64", "dp": "8", "tp": "8", "pp": "1", "domain_size": ""}
    four, written, eight = ({**whole, "accel_per_node": "4"}, {**whole, "domain_size": "4"}, {**whole, "accel_per_node": "8"})
    cases = to_cases(read(table_file(tmp_path, four, written, eight)), never_recompute)
    seconds = np.asarray(step_time(cases.system, cases.model, cases.plan, default()).total)
    assert seconds[0] == seconds[1] > 1.05 * seconds[2]


MIXTURE = {"n_experts": "8", "top_k": "", "model": "mixtral-8x7b", "d_ff": "14336", "n_kv_heads": "8"}


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
def test_a_blank_count_of_visited_experts_is_stated(tmp_path, changes, visited, said):
    cases = one_case(tmp_path, **{**MIXTURE, **changes})
    assert cases.model.top_k[0] == visited
    told = [text for text in cases.labels.assumptions[0] if text.startswith("top_k")]
    assert (len(told) == 1 and told[0].startswith(said)) if said else not told


def test_a_shard_without_anything_to_shard_is_said(tmp_path):
    cases = one_case(tmp_path, zero_stage="0", shard="8")
    assert cases.plan.shard[0] == 1.0 and "shard 8 not used: ZeRO stage 0 shards nothing" in cases.labels.assumptions[0]


def test_concatenation_keeps_every_row(tmp_path):
    first, second = table_file(tmp_path, {}, {"tp": "x"}), table_file(tmp_path, {"extra": "1"}, name="b.csv")
    table = read([first, second])
    assert (len(table.rows), len(table.aside)) == (2, 1) and table.columns[-1] == "extra"
    assert table == concatenate([read(first), read(second)])


def test_the_format_is_documented_from_its_definition():
    assert all(f"| {column.name} |" in markdown() for column in COLUMNS)
    assert all(name == name.lower() for name in MEGATRON_FAMILY)
