"""What can hardly be right in a finished row: refused beyond physics, flagged where it is hard to
believe, with the arithmetic; and no number passes without a word."""

import csv
import json
from pathlib import Path

import pytest

from calibration.plausible import FLAGGED, IMPLAUSIBLE, NOTED, REFUSED, findings
from calibration.traces import fingerprint, read, to_cases, write
from calibration.weights import believed, weights_of
from tests.rows import GOOD, table_file
from tests.test_cli import document, run

POD = {
    "accelerator": "TPU-v6e",
    "n_accel": "256",
    "dp": "256",
    "tp": "1",
    "pp": "1",
    "zero_stage": "3",
    "micro_batch": "1",
    "global_batch": "256",
    "recompute": "full",
    "step_time_s": "4",
}
COLLECTIVE = {
    "collective": "all_reduce",
    "accelerator": "H100-80GB",
    "n_accel": "8",
    "nodes": "1",
    "message_bytes": "1048576",
    "time_us": "40",
    "algbw_GBs": "26.2",
    "busbw_GBs": "45.9",
}


def found(**changes: str) -> list[tuple[str, str]]:
    """Kind and severity of all that is wrong with the good row, changed."""
    return [(each.kind, each.severity) for each in findings({**GOOD, **changes})]


def test_a_good_row_is_believed():
    assert findings(GOOD) == [] == findings(COLLECTIVE)
    assert findings({**GOOD, "step_time_s": ""}, require_time=False) == []


@pytest.mark.parametrize(
    ("changes", "kind", "severity", "says"),
    [
        # 6 × 6.607e9 FLOP × 524,288 tokens over 64 × 989e12 FLOP/s take 0.33 s
        ({"step_time_s": "0.3"}, "beyond-peak", REFUSED, "1.09 times the peak"),
        ({"step_time_s": "0.3"}, "beyond-peak", REFUSED, "plausible if precision is fp8 (0.547)"),
        ({"step_time_s": "0.0035"}, "beyond-peak", REFUSED, "a rate in tokens was read as"),
        ({"step_time_s": "", "tokens_per_s_per_accel": "64e4"}, "beyond-peak", REFUSED, "whole"),
        ({"global_batch": "524288"}, "beyond-peak", REFUSED, "global_batch is in tokens (0.0938)"),
        ({"step_time_s": "3500"}, "idle", FLAGGED, "plausible if step_time_s is in ms (0.0938)"),
        ({"step_time_s": "", "tokens_per_s_per_accel": "2.3"}, "idle", FLAGGED, "in thousands"),
        ({"peak_memory_gib": "61440"}, "memory", REFUSED, "plausible if it is in MiB (60)"),
        ({"peak_memory_gib": "82"}, "memory", FLAGGED, "plausible if it is in GB (76.4)"),
        ({"tokens_per_s_per_accel": "1000"}, "contradiction", FLAGGED, "says 8.192 s"),
        ({"tokens_per_s_per_accel": "149797"}, "contradiction", FLAGGED, "of all devices (1)"),
        ({"mfu_reported": "31"}, "reported", FLAGGED, "plausible if it is in percent (0.31)"),
        ({"tflops_reported": "6000"}, "reported", FLAGGED, "of all devices together"),
        (
            {"mfu_reported": "0.0005"},
            "reported",
            FLAGGED,
            "the time says 0.094 to 0.15 of the peak",
        ),
        ({"domain_size": "512"}, "domain", FLAGGED, "largest fast domain of H100-80GB"),
        ({"step_time_s": ""}, "unusable", REFUSED, "no measured time"),
        ({"dp": "7"}, "unusable", REFUSED, "degrees do not multiply"),
        ({"global_batch": "100"}, "unusable", REFUSED, "not divisible"),
        ({"step_time_s": "nan"}, "unusable", REFUSED, "expected a finite number"),
        ({"n_accel": "-8"}, "unusable", REFUSED, "expected 1 or more"),
    ],
)
def test_what_cannot_be_is_named_with_its_arithmetic(changes, kind, severity, says):
    every = findings({**GOOD, **changes})
    assert (kind, severity) in [(each.kind, each.severity) for each in every]
    assert says in "\n".join(map(str, every)) and "\n" not in str(every[0])


def test_a_step_of_more_tokens_than_anybody_trains():
    row = {**GOOD, "step_time_s": "", "global_batch": "524288"}
    (each,) = findings(row, require_time=False)
    assert (each.kind, each.severity) == ("batch", FLAGGED)
    assert "2.15e+09 tokens a step" in str(each) and "global_batch is in tokens (128)" in str(each)


def test_rows_that_a_table_calls_slow_may_be_slow():
    assert found(step_time_s="3500", flag="slow-unexplained") == []
    assert found(step_time_s="0.3", flag="slow-unexplained") == [("beyond-peak", REFUSED)]


def test_the_peak_is_that_of_the_precision():
    assert found(step_time_s="0.3", precision="fp8") == []
    assert found(step_time_s="0.3", flag="lora") == []
    assert found(step_time_s="0.2", flag="lora") == [("beyond-peak", REFUSED)]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"n_accel": "1"}, "one-rank"),
        ({"busbw_GBs": "0"}, "no-rate"),
        ({"time_us": "nan"}, "no-rate"),
        ({"time_us": "-1"}, "no-rate"),
    ],
)
def test_collectives_without_a_network_are_refused(changes, kind):
    assert [(x.kind, x.severity) for x in findings({**COLLECTIVE, **changes})] == [(kind, REFUSED)]


# --- slices of a torus


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"domain_size": "256"}, 256),
        ({"domain_size": "", "accel_per_node": "4"}, 256),
        ({"domain_size": "4", "accel_per_node": "4"}, 256),
        ({"domain_size": "8", "accel_per_node": "8"}, 256),
        ({"domain_size": "", "accel_per_node": "64"}, 64),
        ({"domain_size": "64", "accel_per_node": "4"}, 64),
        ({"domain_size": "", "n_accel": "512", "dp": "512", "global_batch": "512"}, 256),
        ({"domain_size": "", "accelerator": "TPU-v5p"}, 256),
        ({"domain_size": "4", "accel_per_node": ""}, 4),
    ],
)
def test_hosts_of_a_slice_share_its_torus(tmp_path, changes, size):
    table = read(table_file(tmp_path, {**POD, **changes}))
    assert to_cases(table).system.network.size[0] == size
    said = " ".join(to_cases(table).labels.assumptions[0])
    blank = changes.get("domain_size") == "" or changes.get("accel_per_node") == changes.get(
        "domain_size"
    )
    assert (f"{size}, the slice as one torus" in said) == blank


def test_a_host_as_a_domain_is_said():
    (each,) = findings({**GOOD, **POD, "domain_size": "4", "accel_per_node": "4"})
    assert each.severity == NOTED and "read as 256, the slice as one torus" in str(each)
    (each,) = findings({**GOOD, **POD, "domain_size": "4"})
    assert each.severity == FLAGGED and "read as 64 slices" in str(each)


def test_slices_of_hosts_take_as_long_as_their_pod(tmp_path):
    domains = [("256", "256"), ("4", "4"), ("4", ""), ("", "")]
    rows = ({**POD, "accel_per_node": a, "domain_size": d} for a, d in domains)
    d = document("predict", table_file(tmp_path, *rows))
    assert len({row["predicted_step_time_s"] for row in d["rows"]}) == 1
    assert "one host" in json.dumps(d["notes"]) and d["implausible"] == []


# --- flags


def doubted(folder: Path) -> Path:
    """A file of three rows, of which the second is hard to believe and the third refused."""
    return table_file(
        folder, {}, {"step_time_s": "3500", "flag": "mine"}, {"step_time_s": "0.0035"}
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_flags_and_reasons_are_kept_in_files_and_answers(tmp_path, suffix):
    path, out = doubted(tmp_path), tmp_path / f"out.{suffix}"
    result = run("predict", path, "--out", out, "--json")
    d = json.loads(result.stdout)
    assert [row["flag"] for row in d["rows"]] == ["", "mine; implausible"]
    assert d["rows"][0]["flag_reason"] is None and "in ms" in d["rows"][1]["flag_reason"]
    assert [p["line"] for p in d["implausible"]] == [3] == [p["line"] - 1 for p in d["set_aside"]]
    assert f"WARNING: {path}:3: measured time 3500 s" in result.stderr
    assert f"set aside: {path}:4: measured time 0.0035 s" in result.stderr
    again = read(out)
    assert [row.flag for row in again.rows] == ["", "mine; implausible"]
    assert again.rows[1].text("flag_reason") == d["rows"][1]["flag_reason"]
    assert [fingerprint(r) for r in again.rows] == [fingerprint(r) for r in read(path).rows]


def test_people_see_flags_beside_the_numbers(tmp_path):
    shown = run("predict", doubted(tmp_path)).stdout
    assert "line 3 is implausible: measured time 3500 s" in " ".join(shown.split())
    shown = run("evaluate", doubted(tmp_path))
    assert "1 of 2 rows can hardly be right: 1 flagged implausible" in shown.stderr


def test_a_fit_gives_them_no_weight_unless_asked(tmp_path):
    cases = to_cases(read(doubted(tmp_path)))
    assert weights_of(cases.labels.flag).tolist() == [1.0, 0.0]
    assert weights_of(believed(cases).labels.flag).tolist() == [1.0, 1.0]
    assert believed(cases).labels.flag.tolist() == ["", "mine"]


def test_a_flag_that_a_file_has_stays(tmp_path):
    table = read(table_file(tmp_path, {"flag": IMPLAUSIBLE, "flag_reason": "by hand"}))
    assert [p.reason for p in table.doubts] == ["by hand"]
    write(table, tmp_path / "again.csv")
    with (tmp_path / "again.csv").open() as file:
        assert [row["flag_reason"] for row in csv.DictReader(file)] == ["by hand"]
