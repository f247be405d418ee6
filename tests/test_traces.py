"""Traces: every row is used or set aside with a reason, formats round-trip, blanks are filled
openly."""

import csv

import numpy as np
import pytest

from calibration.traces import concatenate, fingerprint, read, to_cases, write
from calibration.traces.schema import COLUMNS, REQUIRED, SHAPE, markdown
from dmodel.errors import InputError
from dmodel.left_blank import never_recompute
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
        ({"accelerator": "H100-80BG"}, "H100-80GB"),
        ({"tp": "3", "n_accel": "48"}, "tp = 3 does not divide n_heads = 32"),
        ({"pp": "64", "n_accel": "2048"}, "a stage would have no layer"),
        ({"interleave": "32"}, "chunks would have no layer"),
        ({"d_model": "1e300"}, "d_model: expected at most 1e+07"),
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


def test_a_shape_without_a_name_will_do_and_neither_will_not(tmp_path):
    assert len(read(table_file(tmp_path, {}, drop="model")).rows) == 1
    path = table_file(tmp_path, {}, drop="vocab")
    path.write_text(path.read_text().replace("model", "name", 1))
    with pytest.raises(InputError, match="missing columns: vocab; got .*model .or the shape: "):
        read(path)


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


def test_parquet_with_text_in_another_encoding_is_one_error(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    before, path = read(table_file(tmp_path, {"note": "here"})), tmp_path / "bad.parquet"
    write(before, path)
    table = pyarrow.parquet.read_table(path)
    wrong = pyarrow.array([b"caf\xe9"], pyarrow.binary()).view(pyarrow.string())
    table = table.set_column(table.column_names.index("note"), "note", wrong)
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(InputError, match="not a readable Parquet file"):
        read(path)


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
        {"flag": "odd"},
    ]
    table = read(table_file(tmp_path, *rows))
    assert len(table.rows) == 3 and not table.problems
    texts = [note.reason for note in table.notes]
    assert [n.line for n in table.notes] == [2, 3, 4]
    assert all(
        word in text for word, text in zip(("uneven", "read as 2", "odd"), texts, strict=True)
    )


def test_time_follows_from_throughput_and_may_be_left_out_for_prediction(tmp_path):
    derived = one_case(tmp_path, step_time_s="", tokens_per_s_per_accel="2048")
    assert derived.labels.step_time_s[0] == pytest.approx(128 * 4096 / (2048 * 64), rel=1e-12)
    assert np.isnan(one_case(tmp_path, step_time_s="").labels.step_time_s[0])
    minimal = {name: GOOD[name] for name in (*REQUIRED, *SHAPE)}
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


# --- to cases


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
