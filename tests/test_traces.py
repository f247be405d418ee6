"""Traces: every row is used or set aside with a reason, formats round-trip, blanks are filled
openly."""

import csv

import numpy as np
import pytest
from calibration.traces.sharding import MEGATRON_FAMILY

from calibration.traces import (
    cheapest_that_fits,
    concatenate,
    fingerprint,
    never_recompute,
    read,
    to_cases,
    write,
)
from calibration.traces.schema import COLUMNS, REQUIRED, markdown
from dmodel.coefficients import default
from dmodel.counts import parameters
from dmodel.records import leaf
from dmodel.step import step_time
from dmodel.types import InputError
from tests.rows import GOOD, one_case, table_file

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
        (
            {"dp": "64", "tp": "1", "pp": "1", "zero_stage": "3", "shard": "128"},
            "shard = 128 is more than dp = 64: expected",
        ),
        (
            {"dp": "64", "tp": "1", "pp": "1", "zero_stage": "3", "shard": "3"},
            "shard = 3 does not divide dp = 64: expected",
        ),
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
    with pytest.raises(
        InputError, match=f"traces.csv: missing columns: {column};.*expected a header"
    ):
        read(table_file(tmp_path, {}, drop=column))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf  \n", "no header|empty"),
        (b"\x89PNG\r\n\x1a\n\x00\xff\xfe" * 40, "not a text file"),
        (b"a\x00b,c\n1,2\n", "NUL"),
        ("model\ncafé\n".encode("latin-1"), "save it as UTF-8"),
        (
            (",".join(GOOD) + ",,\n" + ",".join(GOOD.values()) + ",,\n").encode(),
            "column without a name stands",
        ),
        (b"hello world\n", "missing columns"),
        (b"PAR1 but not for long", "not a readable Parquet file"),
        ((",".join(GOOD) + "\n").encode(), "no rows"),
        (
            (",".join(GOOD) + ",tp\n" + ",".join(GOOD.values()) + ",4\n").encode(),
            "column tp stands in the header more than once",
        ),
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
    rows = [
        {"n_layers": "33"},
        {"micro_batch": "1.99999"},
        {"tokens_per_s_per_accel": "1000"},
        {"flag": "odd"},
    ]
    table = read(table_file(tmp_path, *rows))
    assert len(table.rows) == 4 and not table.problems
    texts = [note.reason for note in table.notes]
    assert [n.line for n in table.notes] == [2, 3, 4, 5]
    assert all(
        word in text
        for word, text in zip(
            ("uneven", "read as 2", "step_time_s counts", "odd"), texts, strict=True
        )
    )


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
    rows = [
        {"my_own": "a, b"},
        {"tp": "3", "my_own": ""},
        {"step_time_s": "0.1234567890123456", "my_own": "ü"},
    ]
    before = read(table_file(tmp_path, *rows))
    path = tmp_path / f"again{suffix}"
    write(before, path)
    after = read(path)
    assert after.columns == before.columns
    assert [p[1:] for p in after.problems] == [p[1:] for p in before.problems]
    for name in before.columns:
        pairs = [
            (a.text(name), b.text(name))
            for a, b in zip(before.rows + before.aside, after.rows + after.aside, strict=True)
        ]
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
        ({"precision": ""}, "operand_bytes", 2.0, "precision blank: bf16"),
        ({}, "reduce_bytes", 4.0, "gradients reduced in 4 bytes"),
        ({"precision": "fp16"}, "reduce_bytes", 2.0, "gradients reduced in 2 bytes"),
        ({"stack": "llm-foundry"}, "reduce_bytes", 2.0, "gradients reduced in 2 bytes"),
        (
            {"stack": "nanotron/main", "zero_stage": "1"},
            "reduce_bytes",
            8.0,
            "nanotron under ZeRO-1",
        ),
        ({"stack": "nanotron/main", "zero_stage": "1"}, "overlap_dp", 0.0, "nanotron under ZeRO-1"),
        (
            {"stack": "nanotron/main", "zero_stage": "0"},
            "reduce_bytes",
            4.0,
            "gradients reduced in 4 bytes",
        ),
        ({"stack": "nanotron/main", "zero_stage": "0"}, "overlap_dp", 1.0, ""),
        (
            {"stack": "torchtitan", "recompute": "selective"},
            "recompute_elementwise",
            1.0,
            "selective recompute by operator",
        ),
        ({"stack": "torchtitan", "recompute": "selective"}, "recompute_layers", 0.0, ""),
        (
            {"stack": "torchtitan", "recompute": "", "note": "1 of 4 layers recomputed"},
            "recompute_layers",
            0.25,
            "recompute blank: 0.25",
        ),
        (
            {"stack": "torchtitan", "zero_stage": "3"},
            "reduce_bytes",
            4.0,
            "gradients reduced in 4 bytes",
        ),
        (
            {"stack": "torchtitan", "zero_stage": "2"},
            "zero",
            1.0,
            "zero_stage 1: weights stay gathered",
        ),
        ({"stack": "kempnerforge", "zero_stage": "2"}, "zero", 2.0, ""),
        (
            {"stack": "torchtitan", "zero_stage": "3", "model": "llama-405b", "precision": "fp8"},
            "gather_bytes",
            1.0,
            "gradients held and",
        ),
        (
            {"stack": "torchtitan", "zero_stage": "3", "model": "llama-8b", "precision": "fp8"},
            "gather_bytes",
            2.0,
            "",
        ),
        (
            {"stack": "maxtext", "zero_stage": "3", "shard": "2"},
            "overlap_replica",
            0.0,
            "sums over replicas are waited for",
        ),
        ({"stack": "maxtext", "zero_stage": "3"}, "overlap_replica", 1.0, ""),
        ({"stack": "torchtitan", "zero_stage": "3", "shard": "2"}, "overlap_replica", 1.0, ""),
        (
            {"stack": "llm-foundry", "accelerator": "A100-80GB"},
            "attention_rate",
            1.0 / 1.4,
            "FlashAttention in Triton",
        ),
        (
            {"stack": "llm-foundry", "accelerator": "A100-80GB"},
            "attention_backward_rate",
            0.5,
            "FlashAttention in Triton",
        ),
        (
            {"stack": "llm-foundry", "accelerator": "H100-80GB"},
            "attention_rate",
            1.0 / 1.4 / 1.73,
            "FlashAttention in Triton",
        ),
        (
            {"stack": "llm-foundry", "accelerator": "H100-80GB"},
            "attention_backward_rate",
            0.5 / 1.62,
            "FlashAttention in Triton",
        ),
        ({"stack": "llm-foundry", "attention": "none"}, "attention_rate", 1.0, ""),
        (
            {"stack": "torchtitan", "accelerator": "H100-80GB"},
            "attention_rate",
            1.0 / 1.73,
            "FlashAttention-2",
        ),
        (
            {"stack": "torchtitan", "accelerator": "H100-80GB"},
            "attention_backward_rate",
            1.0 / 1.62,
            "FlashAttention-2",
        ),
        ({"stack": "torchtitan", "accelerator": "A100-80GB"}, "attention_rate", 1.0, ""),
        ({"stack": "nemo/24.12", "accelerator": "H100-80GB"}, "attention_rate", 1.0, ""),
        (
            {"stack": "torchtitan", "cp": "2", "dp": "4"},
            "cp_balanced",
            0.0,
            "cp: causal sequences held in order",
        ),
        ({"cp": "2", "dp": "4"}, "cp_balanced", 1.0, ""),
        (
            {"stack": "megatron-bridge/26.02"},
            "reduce_bytes",
            2.0,
            "gradients held and reduced in 2 bytes",
        ),
        (SC21 | {"micro_batch": ""}, "micro_batch", 2.0, "micro_batch blank: 2, as in the script"),
        (SC21 | {"interleave": ""}, "interleave", 2.0, "interleave blank: 2, as in the script"),
        (SC21, "overlap_dp", 0.0, "gradients reduced after the backward pass"),
        (SC21 | {"n_layers": "36"}, "overlap_dp", 1.0, ""),
        ({"stack": "vtrain"}, "overlap_dp", 0.0, "gradients reduced after the backward pass"),
        (
            {"stack": "megatron-deepspeed/bigscience-bf16"},
            "overlap_dp",
            0.0,
            "gradients reduced after the backward pass",
        ),
        (
            {"stack": "megatron-deepspeed/bigscience-bf16", "pp": "1", "dp": "16"},
            "overlap_dp",
            0.0,
            "gradients reduced after the backward",
        ),
        ({"stack": "megatron-lm"}, "overlap_dp", 1.0, ""),
        (
            {"stack": "mlperf-train-v4.0", "zero_stage": "1"},
            "reduce_bytes",
            2.0,
            "gradients held and reduced in 2 bytes",
        ),
        (
            {"stack": "mlperf-train-v4.0", "pp": "4", "dp": "4", "interleave": ""},
            "interleave",
            8.0,
            "interleave blank: 8, as the stack's",
        ),
        (
            {"stack": "nemo-launcher", "interleave": ""},
            "interleave",
            16.0,
            "interleave blank: 16, as the stack's",
        ),
        (
            {"stack": "nemo/24.07", "interleave": "", "flag": "lora"},
            "interleave",
            1.0,
            "interleave blank: 1, as the stack's",
        ),
        (
            {"stack": "nemo-launcher", "model": "llama3-70b", "n_layers": "80", "interleave": ""},
            "interleave",
            5.0,
            "interleave blank: 5, as the stack's",
        ),
        ({"stack": "megatron-bridge/26.02"}, "gradient_bytes", 2.0, ""),
        ({"stack": "megatron-bridge/26.02", "precision": "fp8"}, "gather_bytes", 1.0, ""),
        ({"stack": "megatron-bridge/26.02", "precision": "bf16"}, "gather_bytes", 2.0, ""),
        (
            {"stack": "megatron-bridge", "recompute": ""},
            "recompute_layers",
            0.0,
            "recompute blank: none, as the stack's recipes",
        ),
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
    assert np.asarray(leaf(cases.plan, field)).tolist() == [value]
    assert not said or any(text.startswith(said) for text in cases.labels.assumptions[0])
    blank = {
        text.partition(" blank")[0] for text in cases.labels.assumptions[0] if " blank" in text
    }
    assert said or blank <= {"head_dim", "n_experts", "shard"}, (
        "the columns that the row has not got"
    )


BLANK = dict.fromkeys(
    (
        "n_layers",
        "d_model",
        "d_ff",
        "gated_mlp",
        "n_heads",
        "n_kv_heads",
        "vocab",
        "n_experts",
        "top_k",
        "n_params",
    ),
    "",
)


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
    found = (
        cases.model.n_layers[0],
        cases.model.d_model[0],
        cases.model.n_kv_heads[0],
        cases.model.n_experts[0],
    )
    assert found == sizes
    assert any(text.startswith("shape blank: ") for text in cases.labels.assumptions[0])
    write(table, tmp_path / "again.csv")
    again = read(tmp_path / "again.csv")
    assert (again.rows[0].cells, again.rows[0].filled) == (
        table.rows[0].cells,
        table.rows[0].filled,
    )
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
        ({"stack": "nemo-launcher", "model": "llama2-7b-sft"}, 500.0),
        ({"stack": "nemo-launcher", "model": "mine", "flag": "lora"}, 500.0),
        ({"stack": "megatron-bridge/26.06", "model": "llama3-70b-lora", "flag": "lora"}, 500.0),
        ({"stack": "another", "note": "packed sequences"}, 500.0),
        ({"stack": "another", "note": "unpacked sequences"}, None),
        ({"stack": "nemo-launcher", "model": "llama2-7b"}, None),
        ({"stack": "nemo-launcher", "model": "llama2-7b-sft", "attention": "none"}, None),
        ({"stack": "nemo-launcher", "model": "llama2-7b-sft", "seq_len": "500"}, None),
        ({"stack": "automodel", "model": "llama3-8b-lora", "flag": "lora"}, None),
    ],
)
def test_attention_stays_in_packed_documents(tmp_path, changes, window):
    cases = one_case(tmp_path, **changes)
    assert np.asarray(cases.model.windowed).tolist() == [float(window is not None)]
    assert window is None or np.asarray(cases.model.window).tolist() == [window]
    assert any("packed of documents" in text for text in cases.labels.assumptions[0]) == (
        window is not None
    )


@pytest.mark.parametrize(
    "written",
    ["H100", "h100-sxm5-80gb", "H100-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"],
)
def test_a_chip_is_known_by_any_of_its_names(tmp_path, written):
    """Offsets of a fit, recipes and the identity of a row go by the catalog's."""
    cases, same = one_case(tmp_path, accelerator=written), one_case(tmp_path)
    assert cases.labels.accelerator.tolist() == ["H100-80GB"]
    assert cases.labels.fingerprint.tolist() == same.labels.fingerprint.tolist()
    assert cases.labels.group.tolist() == same.labels.group.tolist()


@pytest.mark.parametrize(
    ("stack", "note", "expected"),
    [
        (
            "megatron-bridge",
            "release=26.06.01;kind=Pre-Training Performance",
            "megatron-bridge/26.06",
        ),
        ("megatron-bridge", "release 26.08; ZeRO-1 assumed", "megatron-bridge/26.08"),
        ("megatron-bridge/25.11", "release 26.08", "megatron-bridge/25.11"),
        ("megatron-bridge", "release=26.061", "megatron-bridge"),
        (
            "jax-toolbox-pax",
            "precision_label=TE FP8;README revision 62799732 (two generations)",
            "jax-toolbox-pax/62799732-te",
        ),
        (
            "jax-toolbox-pax",
            "precision_label=BF16;README revision 28603900",
            "jax-toolbox-pax/28603900",
        ),
        ("jax-toolbox-pax", "revision of the table; precision_label=TE FP8", "jax-toolbox-pax"),
        ("torchtitan", "release 26.08", "torchtitan"),
    ],
)
def test_a_note_names_the_variant_that_the_stack_leaves_out(tmp_path, stack, note, expected):
    """Recipes, pooling and the identity of the row go by it, and it is said."""
    cases = one_case(tmp_path, stack=stack, note=note)
    assert cases.labels.stack.tolist() == [expected]
    assert any("the variant is the note's" in text for text in cases.labels.assumptions[0]) == (
        stack != expected
    )
    written = one_case(tmp_path, stack=expected, note=note)
    assert written.labels.fingerprint.tolist() == cases.labels.fingerprint.tolist()
    assert one_case(tmp_path, stack="", source=stack, note=note).labels.stack.tolist() == [expected]


def test_shapes_experts_and_frozen_bases(tmp_path):
    moe = one_case(tmp_path, n_experts="8", top_k="2", ep="8").model
    assert (moe.n_experts[0], moe.top_k[0], moe.trainable[0]) == (8.0, 2.0, 1.0)
    blank = one_case(tmp_path, n_kv_heads="", gated_mlp="", d_ff="16384", flag="lora")
    assert (blank.model.n_kv_heads[0], blank.model.gated_mlp[0], blank.model.trainable[0]) == (
        32.0,
        0.0,
        0.0,
    )
    assert blank.model.head_dim[0] == 128.0
    wide = one_case(tmp_path, n_experts="64", top_k="2", ep="32").plan
    assert (
        wide.layout.ep[0] == wide.layout.dp[0] * wide.layout.tp[0] * wide.layout.cp[0]
        and wide.layout.etp[0] == 1.0
    )
    split = one_case(tmp_path, n_experts="8", top_k="2", ep="4", etp="2").plan
    assert (split.layout.ep[0], split.layout.etp[0]) == (4.0, 2.0)


def test_what_no_column_holds_is_the_catalogs_where_name_and_shape_agree(tmp_path):
    """DeepSeek-V3: latents, leading dense layers and a shared expert; and the total of 671e9
    parameters that they make."""
    columns = {
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
    found = one_case(tmp_path, **columns)
    assert float(parameters(found.model)[0]) == pytest.approx(671e9, rel=0.001)
    assert any("of deepseek-v3 in the catalog" in text for text in found.labels.assumptions[0])
    other = one_case(tmp_path, **{**columns, "n_layers": "60"})
    assert other.model.kv_rank[0] == other.model.n_shared_experts[0] == 0.0


def test_pods_shard_alone_and_heads_of_further_tokens_are_in_the_note(tmp_path):
    pods = one_case(
        tmp_path,
        zero_stage="3",
        note="2 pod(s) of 32 chips, data parallel between pods",
        n_experts="8",
        top_k="2",
    ).plan
    assert 2.0 * pods.layout.shard[0] == pods.layout.dp[0]
    assert one_case(tmp_path, note="variant DeepSeekV3 (w/ MTP)").model.n_mtp[0] == 1.0


def test_experts_that_are_padded_take_as_long_as_the_busiest(tmp_path):
    """KempnerForge's, by half of what one that all visit would have more than the mean; others are
    balanced, and so is a single one."""
    experts = {"n_experts": "16", "top_k": "2"}
    padded = one_case(tmp_path, stack="kempnerforge/moe-packed", **experts)
    assert padded.model.imbalance[0] == 4.5 and "4.5 times the mean" in " ".join(
        padded.labels.assumptions[0]
    )
    assert "balanced load" not in " ".join(padded.labels.assumptions[0])
    other = one_case(tmp_path, stack="torchtitan", **experts)
    assert other.model.imbalance[0] == 1.0 and "balanced load" in " ".join(
        other.labels.assumptions[0]
    )
    assert one_case(tmp_path, stack="kempnerforge").model.imbalance[0] == 1.0


def test_third_matrix_of_the_mlp_follows_a_parameter_count_that_contradicts_the_column(tmp_path):
    """MaxText's 16b: 15.70e9 parameters are those of three matrices; tables that say two make it
    12.1e9."""
    shape = {
        "n_layers": "32",
        "d_model": "4096",
        "d_ff": "28672",
        "n_heads": "64",
        "n_kv_heads": "64",
        "head_dim": "128",
        "vocab": "32000",
    }
    for column in ("0", "1"):
        case = one_case(
            tmp_path, model="maxtext-16b", gated_mlp=column, n_params="15700328448", **shape
        )
        assert case.model.gated_mlp[0] == 1.0
        assert ("n_params says so, with 0" in " ".join(case.labels.assumptions[0])) == (
            column == "0"
        )
    # a count that fits neither, or none at all, leaves the column alone
    for n_params in ("9e9", ""):
        assert (
            one_case(
                tmp_path, model="mine", gated_mlp="0", n_params=n_params, **shape
            ).model.gated_mlp[0]
            == 0.0
        )


def test_blank_head_size_of_a_known_model_is_the_catalogs(tmp_path):
    shape = {
        "n_layers": "48",
        "d_model": "2048",
        "d_ff": "768",
        "n_heads": "32",
        "n_kv_heads": "4",
        "vocab": "151936",
    }
    experts = {"n_experts": "128", "top_k": "8", "head_dim": ""}
    known = one_case(tmp_path, model="qwen3-30b-a3b", **shape, **experts)
    assert (
        known.model.head_dim[0] == 128.0
        and "head_dim blank: 128, the catalog's" in known.labels.assumptions[0]
    )
    # another shape under that name is another model
    other = one_case(tmp_path, model="qwen3-30b-a3b", **{**shape, "n_layers": "24"}, **experts)
    assert other.model.head_dim[0] == 64.0
    assert (
        one_case(
            tmp_path, model="qwen3-30b-a3b", **shape, **{**experts, "head_dim": "96"}
        ).model.head_dim[0]
        == 96.0
    )


def test_embeddings_are_tied_only_when_the_parameter_count_says_so(tmp_path):
    per_layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    untied = 32 * per_layer + 2 * 32000 * 4096
    for n_params, tied in (
        (untied, 0.0),
        (untied - 32000 * 4096, 1.0),
        (untied - 0.5 * 32000 * 4096, 0.0),
        (7e9, 0.0),
    ):
        assert one_case(tmp_path, n_params=f"{n_params:.0f}").model.tied_embeddings[0] == tied
    assert one_case(tmp_path).model.tied_embeddings[0] == 0.0


def test_a_rule_decides_blank_recomputation_and_only_that(tmp_path):
    table = read(table_file(tmp_path, {"recompute": ""}, {"recompute": "full"}, {"recompute": ""}))
    cases = to_cases(table, lambda some: (np.zeros(len(some)), np.ones(len(some))))
    assert np.asarray(cases.plan.layout.recompute_attention).tolist() == [1.0, 0.0, 1.0]
    assert np.asarray(cases.plan.layout.recompute_layers).tolist() == [0.0, 1.0, 0.0]
    small, large = (
        {"recompute": ""},
        {
            "recompute": "",
            "micro_batch": "16",
            "tp": "1",
            "dp": "32",
            "global_batch": "1024",
            "n_layers": "64",
        },
    )
    fitting = to_cases(read(table_file(tmp_path, small, large)))
    assert np.asarray(fitting.plan.layout.recompute_layers).tolist() == [0.0, 1.0]
    assert [x.tolist() for x in cheapest_that_fits(fitting)] == [[0.0, 1.0], [0.0, 0.0]]


def test_no_usable_row_is_an_error_with_the_first_reason(tmp_path):
    with pytest.raises(InputError, match="traces.csv:2: .*do not multiply"):
        to_cases(read(table_file(tmp_path, {"dp": "1"})))


def test_fingerprints_follow_values_not_spelling_or_place(tmp_path):
    rows = read(
        table_file(
            tmp_path,
            {},
            {"dp": "8.0", "note": "other", "n_params": "7e9"},
            {"step_time_s": "3.6"},
            {"dp": "4", "tp": "8"},
        )
    ).rows
    prints = [fingerprint(row) for row in rows]
    assert prints[0] == prints[1] and len(set(prints)) == 3 and all(len(p) == 12 for p in prints)


def test_words_of_the_format_may_be_written_in_any_case(tmp_path):
    changes = {
        "attention": "Flash",
        "recompute": "FULL",
        "flag": "LoRA; Slow-Unexplained",
        "precision": "BF16",
    }
    small = {name: text.lower() for name, text in changes.items()}
    table = read(table_file(tmp_path, changes, small, {**small, "precision": "FP8-Blockwise128"}))
    assert len(table.rows) == 3 and not table.notes
    assert fingerprint(table.rows[0]) == fingerprint(table.rows[1])
    cases = to_cases(table, never_recompute)
    assert cases.labels.flag.tolist() == ["lora; slow-unexplained"] * 3
    assert cases.labels.precision.tolist() == ["bf16", "bf16", "fp8-blockwise128"]
    assert (
        cases.model.trainable.tolist() == [0.0] * 3
        and cases.plan.layout.recompute_layers.tolist() == [1.0] * 3
    )
    odd = read(table_file(tmp_path, {"flag": "LoRA, Mine"}))
    assert odd.rows[0].flags == ("lora", "Mine") and "flag Mine is none of" in odd.notes[0].reason


@pytest.mark.parametrize(
    ("changes", "size", "said"),
    [
        (
            {"accel_per_node": "4"},
            4.0,
            "domain_size blank: 4, the devices of a host (accel_per_node)",
        ),
        ({"accel_per_node": "1"}, 1.0, "domain_size blank: 1, the devices of a host"),
        ({"accel_per_node": "4", "domain_size": "8"}, 8.0, ""),
        ({"accel_per_node": "8"}, 8.0, "domain_size blank: the catalog's"),
        ({"accel_per_node": "16"}, 8.0, "domain_size blank: the catalog's"),
        ({"accel_per_node": "4", "accelerator": "GB200"}, 72.0, "domain_size blank: the catalog's"),
        (
            {"accel_per_node": "4", "accelerator": "TPU-v5e"},
            256.0,
            "domain_size blank: the catalog's",
        ),
        (
            {"accel_per_node": "1", "stack": "dmodel-collect/jax"},
            8.0,
            "domain_size blank: the catalog's",
        ),
    ],
)
def test_hosts_smaller_than_the_catalogs_are_the_fast_domain(tmp_path, changes, size, said):
    cases = one_case(tmp_path, **{"domain_size": "", **changes})
    assert cases.system.network.size[0, 0] == size
    assert (
        any(text.startswith(said) for text in cases.labels.assumptions[0] if "domain_size" in text)
        or not said
    )


def test_smaller_hosts_cost_what_smaller_domains_do(tmp_path):
    whole = {"n_accel": "64", "dp": "8", "tp": "8", "pp": "1", "domain_size": ""}
    four, written, eight = (
        {**whole, "accel_per_node": "4"},
        {**whole, "domain_size": "4"},
        {**whole, "accel_per_node": "8"},
    )
    cases = to_cases(read(table_file(tmp_path, four, written, eight)), never_recompute)
    seconds = np.asarray(step_time(cases.system, cases.model, cases.plan, default()).total)
    assert seconds[0] == seconds[1] > 1.05 * seconds[2]


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
def test_a_blank_count_of_visited_experts_is_stated(tmp_path, changes, visited, said):
    cases = one_case(tmp_path, **{**MIXTURE, **changes})
    assert cases.model.top_k[0] == visited
    told = [text for text in cases.labels.assumptions[0] if text.startswith("top_k")]
    assert (len(told) == 1 and told[0].startswith(said)) if said else not told


def test_a_shard_without_anything_to_shard_is_said(tmp_path):
    cases = one_case(tmp_path, zero_stage="0", shard="8")
    assert (
        cases.plan.layout.shard[0] == 1.0
        and "shard 8 not used: ZeRO stage 0 shards nothing" in cases.labels.assumptions[0]
    )


def test_concatenation_keeps_every_row(tmp_path):
    first, second = (
        table_file(tmp_path, {}, {"tp": "x"}),
        table_file(tmp_path, {"extra": "1"}, name="b.csv"),
    )
    table = read([first, second])
    assert (len(table.rows), len(table.aside)) == (2, 1) and table.columns[-1] == "extra"
    assert table == concatenate([read(first), read(second)])


def test_the_format_is_documented_from_its_definition():
    assert all(f"| {column.name} |" in markdown() for column in COLUMNS)
    assert all(name == name.lower() for name in MEGATRON_FAMILY)
