"""`dmodel theory` on tables of layouts and products: what is answered, what is not and why, order,
columns, exit codes."""

import csv
from pathlib import Path

import pytest

from dmodel.theory.rows import LAYOUT_COLUMNS, LAYOUT_RESULTS, MATMUL_COLUMNS, layouts, matmuls
from tests import theory_reference
from tests.test_cli import document, run

DATA = Path(__file__).parent / "data"
LAYOUT = {
    "gpu": "H100 SXM",
    "d_model": "12288",
    "d_ff": "49152",
    "layers": "192",
    "sparsity_factor": "1",
    "batch_size_seqs": "3584",
    "seq_len": "2048",
    "n_microbatches": "64",
    "DP_per_level": "1x1",
    "TP_model_per_level": "4x1",
    "TP_ff_per_level": "2x4",
    "PP_per_level": "1x16",
    "EP_per_level": "1x1",
    "pp_interleaving": "1",
    "zero_bubble": "1",
    "overlap_TP": "1",
    "overlap_DP": "0",
    "overlap_PP": "1",
    "recompute_activations": "",
}
MATMUL = {"gpu": "A100 SXM", "d1": "4096", "d2": "4096", "b": "512", "for_weight_grads": "0"}


def sheet(path: Path, good: dict[str, str], *changes: dict[str, str]) -> Path:
    """A CSV file: the good row, changed by each dict."""
    columns = list(dict.fromkeys([*good, *(name for change in changes for name in change)]))
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, columns, restval="")
        out.writeheader()
        out.writerows({**good, **change} for change in changes)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_layouts_file_keeps_its_rows_and_gains_the_results(tmp_path):
    """OUT repeats the input columns in their order, then the results in full precision."""
    study = rows_of(DATA / "theory_layouts.csv")[:60]
    asked = sheet(
        tmp_path / "in.csv", {}, *({name: row[name] for name in LAYOUT_COLUMNS} for row in study)
    )
    answered = document("theory --layouts", asked, "--out", tmp_path / "out.csv")
    found = rows_of(tmp_path / "out.csv")
    assert list(found[0]) == [*LAYOUT_COLUMNS, *LAYOUT_RESULTS]
    assert [{name: row[name] for name in LAYOUT_COLUMNS} for row in found] == rows_of(asked)
    for row, expected, said in zip(found, study, answered["rows"], strict=True):
        for name in LAYOUT_RESULTS:
            assert (
                float(row[name]) == said[name] == pytest.approx(float(expected[name]), rel=1e-9)
            ), name
    assert answered["rows_answered"] == answered["rows_read"] == 60 and answered["no_answer"] == []


def test_results_that_stand_in_the_input_already_are_replaced(tmp_path):
    asked = sheet(tmp_path / "in.csv", MATMUL | {"time_s": "7", "note": "a, b"}, {}, {"d1": "64"})
    run("theory --matmuls", asked, "--out", tmp_path / "out.csv")
    found = rows_of(tmp_path / "out.csv")
    assert list(found[0]) == [*MATMUL_COLUMNS, "note", "time_s"] and {
        row["note"] for row in found
    } == {"a, b"}
    assert all(4e-6 < float(row["time_s"]) < 1e-3 for row in found)


BAD_LAYOUTS = {
    "unknown GPU": ({"gpu": "H101 SXM"}, "unknown GPU 'H101 SXM'; nearest: H100 SXM"),
    "no GPU": ({"gpu": ""}, "unknown GPU"),
    "text": ({"d_model": "wide"}, "d_model: expected a whole number from 1 to 2^53, got 'wide'"),
    "fraction": ({"layers": "192.5"}, "layers: expected a whole number"),
    "zero": ({"n_microbatches": "0"}, "n_microbatches: expected a whole number"),
    "negative": ({"d_ff": "-4"}, "d_ff: expected a whole number"),
    "NaN": ({"batch_size_seqs": "nan"}, "batch_size_seqs: expected a whole number"),
    "infinite": ({"seq_len": "inf"}, "seq_len: expected a whole number"),
    "huge": ({"d_model": "1e300"}, "d_model: expected a whole number from 1 to 2^53"),
    "blank": ({"d_model": ""}, "d_model: expected a whole number"),
    "levels": ({"DP_per_level": "1x1x1"}, "DP_per_level: expected 2 degrees, one per level"),
    "degree": ({"PP_per_level": "1xq"}, "PP_per_level: expected a whole number"),
    "too many on a level": (
        {"TP_ff_per_level": "4x2"},
        "level 0 of this network joins 8, the degrees there make 16",
    ),
    "TP_model": ({"TP_model_per_level": "4x5"}, "TP_model 20 does not divide d_model 12288"),
    "TP_ff": ({"TP_ff_per_level": "2x5"}, "TP_ff 10 does not divide d_ff 49152"),
    "PP": ({"PP_per_level": "1x17", "zero_bubble": "0"}, "PP 17 does not divide layers 192"),
    "EP": ({"EP_per_level": "1x2"}, "EP 2 does not divide sparsity_factor 1"),
    "batch": ({"DP_per_level": "1x11"}, "does not divide the batch's tokens"),
    "interleaving": (
        {"pp_interleaving": "5", "zero_bubble": "0"},
        "PP · pp_interleaving 80 does not divide layers",
    ),
    "zero bubble": ({"n_microbatches": "16"}, "zero_bubble: expected n_microbatches ≥ 2 · PP = 32"),
    "switch": ({"overlap_TP": "maybe"}, "overlap_TP: expected 0 or 1"),
    "recompute": (
        {"recompute_activations": "some"},
        "recompute_activations: expected a blank, True or False",
    ),
    "one layer": ({"layers": "1", "PP_per_level": "1x1"}, "layers: expected 2 or more"),
    "revision": ({"version": "v9"}, "version: expected one of head_2024-10-23, 3a871be"),
}


def test_every_bad_layout_says_why_and_the_others_are_answered(tmp_path):
    """One file with all of them between two good rows: order kept, reasons with file and line,
    blank results."""
    changes = [change for change, _ in BAD_LAYOUTS.values()]
    asked, out = sheet(tmp_path / "in.csv", LAYOUT, {}, *changes, {}), tmp_path / "out.csv"
    result = run("theory --layouts", asked, "--out", out)
    found = rows_of(out)
    assert len(found) == len(changes) + 2 and list(found[0])[-1] == "error"
    assert (
        found[0] == found[-1] and found[0]["error"] == "" and float(found[0]["train_time_s"]) > 0.0
    )
    for (name, (_, says)), row in zip(BAD_LAYOUTS.items(), found[1:-1], strict=True):
        assert says in row["error"], name
        assert {row[result] for result in LAYOUT_RESULTS} == {""}, name
    assert f"no answer: {asked}:3: unknown GPU" in result.stderr
    assert f"{len(changes)} of {len(changes) + 2} rows without an answer" in result.stderr
    told = document("theory --layouts", asked)
    assert [row["line"] for row in told["rows"]] == [2, len(changes) + 3]
    assert [problem["line"] for problem in told["no_answer"]] == list(range(3, len(changes) + 3))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"d1": "0"}, "d1: expected a whole number"),
        ({"b": "1_000"}, "b: expected a whole number"),
        ({"for_weight_grads": "2"}, "for_weight_grads: expected 0 or 1"),
        ({"gpu": "A100 PCIe"}, "unknown GPU"),
    ],
)
def test_bad_products_say_why(change, says):
    found = matmuls([MATMUL, MATMUL | change])
    assert found.reasons[0] == "" and says in found.reasons[1]


def test_a_line_with_too_few_fields_is_a_bad_row(tmp_path):
    asked = sheet(tmp_path / "in.csv", MATMUL, {}, {})
    asked.write_text(asked.read_text() + "A100 SXM,64\n")
    found = document("theory --matmuls", asked)
    assert (
        found["rows_answered"] == 2
        and "2 fields where the header has 5" in found["no_answer"][0]["reason"]
    )


BAD_FILES = {
    "empty": ("", "the file is empty"),
    "header only": (",".join(MATMUL_COLUMNS) + "\n", "no rows"),
    "missing columns": ("gpu,d1,d2\nA100 SXM,1,1\n", "missing columns: b, for_weight_grads"),
    "semicolons": (";".join(MATMUL_COLUMNS) + "\nA100 SXM;1;1;1;0\n", "separated by semicolons"),
    "tabs": ("\t".join(MATMUL_COLUMNS) + "\nA100 SXM\t1\t1\t1\t0\n", "separated by tabs"),
    "twice": ("gpu,d1,d2,b,b,for_weight_grads\n", "more than once"),
    "binary": ("a,b\0\n", "not a text file"),
    "nothing usable": (
        ",".join(MATMUL_COLUMNS) + "\nA100 SXM,x,1,1,0\n",
        "no usable row; the first: ",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_end_with_2(tmp_path, case):
    content, says = BAD_FILES[case]
    path = tmp_path / "in.csv"
    path.write_text(content)
    result = run("theory --matmuls", path, "--out", tmp_path / "out.csv", "--json", code=2)
    assert result.stdout == "" and says in result.stderr and str(path) in result.stderr
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "expected one of --layouts, --matmuls"),
        ("--layouts a.csv --matmuls b.csv", "expected one of --layouts, --matmuls"),
        ("--matmuls nowhere.csv", "no such file"),
    ],
)
def test_bad_usage_ends_with_2(options, says):
    result = run("theory --json", options, code=2)
    assert result.stdout == "" and says in result.stderr


def test_out_into_no_folder_ends_with_2(tmp_path):
    result = run(
        "theory --matmuls",
        sheet(tmp_path / "in.csv", MATMUL, {}),
        "--out",
        tmp_path / "no" / "out.csv",
        code=2,
    )
    assert "does not exist" in result.stderr


def test_out_that_is_a_folder_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("dmodel.theory.rows.matmuls", lambda _: pytest.fail("worked in vain"))
    result = run(
        "theory --matmuls", sheet(tmp_path / "in.csv", MATMUL, {}), "--out", tmp_path, code=2
    )
    assert "it is a folder" in result.stderr


def test_people_see_a_table(tmp_path):
    result = run("theory --matmuls", sheet(tmp_path / "in.csv", MATMUL, *[{}] * 30))
    assert "time_s" in result.stdout and "30 of 30 rows answered, 10 not shown" in result.stdout


def test_the_code_name_of_a_gpu_may_stand_in_its_place():
    named, coded = matmuls([MATMUL]), matmuls([{**MATMUL, "gpu": "", "gpu_variable": "A100"}])
    assert named.columns["time_s"] == coded.columns["time_s"]


def test_a_later_revision_pads_to_16_and_has_slower_hops():
    """Products by the formula written anew; hops of 5 µs on every level."""
    from dmodel.theory import gpu

    row = {**MATMUL, "gpu": "H100 SXM", "d1": "300", "d2": "1111", "b": "72", "version": "3a871be"}
    expected = theory_reference.matmul_time(gpu("H100 SXM"), 300, 1111, 72, False, revised=True)
    assert matmuls([row]).columns["time_s"][0] == pytest.approx(expected, rel=1e-12)
    first, later = layouts([LAYOUT, LAYOUT | {"version": "3a871be"}]).columns["latency_s"]
    assert later / first == pytest.approx(5e-6 / 1.125e-6, rel=1e-12)
