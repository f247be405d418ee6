"""What `fit` and `evaluate` say of the rows that they use: notes, doubts, repetitions, assumptions,
and what was held out."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from calibration.evaluate import fitted_rows
from calibration.far_off import FAR, far_off
from calibration.predict import predict
from calibration.same import maybe_fitted, repeated, written_otherwise
from calibration.traces import TraceTable, published, read, split, to_cases
from calibration.uncertainty.scatter import places
from dmodel import profiles
from dmodel.counts import parameters, product_flops_per_token
from tests.test_cli import document, run, table

SHAPES = [{"micro_batch": b, "global_batch": g} for b in ("1", "2") for g in ("64", "128")]


@pytest.fixture(scope="module")
def known() -> tuple[TraceTable, np.ndarray]:
    """The published table, and which of its usable rows the profile `held-out` was fitted on."""
    rows = published()
    return rows, fitted_rows(to_cases(rows), profiles.load("held-out").fitted_rows)


def foundry(folder: Path, known, **changes) -> Path:
    """Twelve rows of llm-foundry that the profile `held-out` was fitted on, each with cells changed
    by functions of the row."""
    rows = [
        row
        for row, is_known in zip(known[0].rows, known[1], strict=True)
        if is_known and row.stack == "llm-foundry"
    ]
    rows = [row for row in rows if row.text("tokens_per_s_per_accel")][:12]
    path = folder / "foundry.csv"
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, list(rows[0].cells))
        out.writeheader()
        out.writerows(
            {**row.cells, **{name: change(row) for name, change in changes.items()}} for row in rows
        )
    return path


def flagged(path: Path, flag: str) -> Path:
    """The same file with a flag on every row."""
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{header},flag", *(f"{row},{flag}" for row in rows)]) + "\n")
    return path


def fit(path: Path, folder: Path, *options: str, code: int = 0):
    """`dmodel fit` from the prior, quickly: what it printed and said."""
    return run("fit --profile prior", path, "--out", folder / "mine.json", *options, code=code)


@pytest.fixture
def quick(monkeypatch):
    """A fit that gives its base back: what is said around it is asked about here."""

    def same(cases, base, seed, held_out, name, **how):
        used = np.ones(len(cases), bool) if held_out is None else ~held_out
        return dataclasses.replace(
            base, name=name, fitted_rows=tuple(cases.labels.fingerprint[used].tolist())
        )

    monkeypatch.setattr("dmodel.cli.fit.fit_with_bar", same)


# --- notes and assumptions


@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_milliseconds_beside_a_right_throughput_are_said(tmp_path, known, quick, command):
    path = foundry(
        tmp_path, known, step_time_s=lambda row: f"{1000.0 * row.known('step_time_s'):.6g}"
    )
    words = (
        ("fit --with-implausible", path, "--out", tmp_path / "p.json")
        if command == "fit"
        else ("evaluate --profile held-out", path)
    )
    result = run(*words, "--json")
    d = json.loads(result.stdout)
    lines = result.stderr.splitlines()
    doubted = {(p["line"], p["reason"]) for p in d["implausible"]}
    contradicted = [reason for _, reason in doubted if "but the throughput says" in reason]
    assert len(contradicted) == 12 and all("step_time_s is in ms (1)" in r for r in contradicted)
    assert {line for line, _ in doubted} == set(range(2, 14))
    assert "12 of 12 rows can hardly be right: 12 flagged implausible" in result.stderr
    assert sum(line.startswith("WARNING: ") for line in lines) == 12
    assert f"and {len(d['implausible']) - 10} rows more" in result.stderr


def _but(beginning: str, texts: list[str]) -> list[str]:
    """Texts without those of a beginning, sorted."""
    return sorted(text for text in texts if not text.startswith(beginning))


@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_assumptions_are_counted_and_whole_in_the_document(tmp_path, quick, command):
    path = table(tmp_path, *SHAPES, {"global_batch": "256", "recompute": ""})
    words = (
        ("fit --profile prior", path, "--out", tmp_path / "p.json")
        if command == "fit"
        else ("evaluate --profile prior", path)
    )
    result = run(*words, "--json")
    found = json.loads(result.stdout)["assumptions"]
    by_row = {
        row["line"]: row["assumptions"] for row in document("predict --profile prior", path)["rows"]
    }
    assert [d["rows"] for d in found] == sorted((d["rows"] for d in found), reverse=True)
    again = {
        line: sorted(d["assumption"] for d in found if line in d["lines"][str(path)])
        for line in by_row
    }
    # what a run recomputes is predicted at a stack's own memory, and fitted at the least of any
    open_ = "recompute blank: none, the least"
    assert [sum(text.startswith(open_) for text in texts) for texts in again.values()] == [
        0
    ] * 4 + [1]
    for line, texts in by_row.items():
        assert _but(open_, again[line]) == _but(open_, texts)
    said = [line for line in result.stderr.splitlines() if line.startswith("assumed")]
    assert said[0] == f"assumed for 5 of 5 rows: {found[0]['assumption']}" and len(said) == 9
    assert said[-1] == f"assumed: and {len(found) - 8} more: see --json, assumptions"


# --- times that can hardly be


@pytest.mark.parametrize(
    ("seconds", "says"), [("1e-8", "times the peak; expected less than 1"), ("1e9", "")]
)
def test_impossible_times_are_no_measurements(tmp_path, seconds, says):
    path = table(tmp_path, {}, *({**shape, "step_time_s": seconds} for shape in SHAPES))
    d = document("evaluate --profile prior", path)
    if says:
        assert d["rows_used"] == 1 and [p["line"] for p in d["set_aside"]] == [3, 4, 5, 6]
        assert all(says in p["reason"] for p in d["set_aside"])
    else:
        assert d["rows_used"] == 5 and {p["line"] for p in d["implausible"]} == {3, 4, 5, 6}


def test_a_fit_leaves_out_what_can_hardly_be_right_unless_asked(tmp_path, quick):
    path = table(tmp_path, {}, *({**shape, "step_time_s": "3500"} for shape in SHAPES))
    d = document("fit --profile prior", path, "--out", tmp_path / "p.json")
    assert d["not_fitted_by_flag"] == {"implausible": 4} and d["rows_used"] == 5
    d = document("fit --profile prior --with-implausible", path, "--out", tmp_path / "p.json")
    assert d["not_fitted_by_flag"] == {} and d["rows_used"] == 5


def test_no_published_time_is_doubted(known):
    cases = to_cases(known[0])
    assert known[0].doubts == () and all("peak" not in p.reason for p in known[0].problems)
    # times alone: an interval takes hundreds of evaluations
    alone: dict = {"covariance": None, "stack_covariances": {}, "pair_covariances": {}}
    for profile in profiles.names():
        asked = dataclasses.replace(profiles.load(profile), **alone)
        found = predict(cases, asked).step_time_s
        assert far_off(cases, found, [profile] * len(cases)) == [], profile


def test_bounds_of_doubt(tmp_path):
    """Just inside and outside of the factor; rows that are flagged as slow may be slower, not
    faster."""
    cases = to_cases(read(table(tmp_path, *[{}] * 4)))
    t = cases.labels.step_time_s
    near = np.array([1.01 / FAR, FAR / 1.01, 0.99 / FAR, 1.01 * FAR])
    assert [p.line for p in far_off(cases, t / near, ["p"] * 4)] == [4, 5]
    slow = cases.replace(labels=cases.labels._replace(flag=np.full(4, "slow-unexplained")))
    assert [p.line for p in far_off(slow, t / near, ["p"] * 4)] == [4]
    assert [p.line for p in far_off(slow, t / (FAR * near), ["p"] * 4)] == [5]


def test_least_work_is_that_of_the_products(tmp_path):
    """Six FLOP for each parameter that is no look-up and each token; frozen weights need no
    gradients."""
    rows = [{}, {"n_params": "6.607e9"}]
    path = table(tmp_path, *rows)
    header, first, second = path.read_text().splitlines()
    path.write_text(f"{header},n_params,flag\n{first},,\n{second},6.607e9,lora\n")
    cases = to_cases(read(path))
    assert np.asarray(cases.model.tied_embeddings).tolist() == [0.0, 1.0]
    n = np.asarray(parameters(cases.model))
    np.testing.assert_allclose(
        product_flops_per_token(cases.model), [6.0 * (n[0] - 32000 * 4096), 4.0 * n[1]]
    )


# --- the same measurement twice, or another way


def test_rows_given_twice_are_counted(tmp_path, quick):
    path = table(tmp_path, *SHAPES, SHAPES[0], {**SHAPES[1], "step_time_s": "3.6"})
    for result in (run("evaluate --profile prior --json", path), fit(path, tmp_path, "--json")):
        (again,) = json.loads(result.stdout)["duplicates"]
        assert (
            again["line"] == 6 and f"the same configuration and time as {path}:2" in again["reason"]
        )
        assert "given again: 1 of 6 rows" in result.stderr


def test_a_throughput_repeats_a_time(tmp_path):
    path = table(tmp_path, {}, {"step_time_s": ""})
    header, first, second = path.read_text().splitlines()
    path.write_text(
        f"{header},tokens_per_s_per_accel\n{first},\n{second},{128 * 4096 / 64 / 3.5!r}\n"
    )
    assert [p.line for p in repeated(to_cases(read(path)))] == [3]


@pytest.mark.parametrize(
    "changes",
    [
        {"step_time_s": lambda row: ""},
        {"tokens_per_s_per_accel": lambda row: ""},
        {
            "step_time_s": lambda row: "",
            "tokens_per_s_per_accel": lambda row: f"{row.known('tokens_per_s_per_accel'):.5g}",
        },
        {"domain_size": lambda row: "", "n_layers": lambda row: "", "ep": lambda row: "1"},
    ],
    ids=["throughput alone", "time alone", "rounded throughput", "blank cells"],
)
def test_a_published_row_written_another_way_is_no_held_out_one(tmp_path, known, changes):
    path = foundry(tmp_path, known, **changes)
    cases, base = to_cases(read(path)), profiles.load("held-out")
    assert not fitted_rows(cases, base.fitted_rows).any()
    assert (
        written_otherwise(cases, base.fitted_rows).all() and not written_otherwise(cases, []).any()
    )
    d = document("evaluate --profile held-out", path)
    assert (
        d["overall"]["fitted"]["rows"] == 12
        and d["overall"]["held_out"] is None
        and d["maybe_fitted"] == 0
    )
    other = cases.replace(labels=cases.labels._replace(step_time_s=1.01 * cases.labels.step_time_s))
    assert not written_otherwise(other, base.fitted_rows).any()


def test_rows_of_the_table_are_known_by_their_fingerprints_alone(known):
    cases, base = to_cases(known[0]), profiles.load("held-out")
    assert (
        not written_otherwise(cases, base.fitted_rows).any() and not maybe_fitted(cases, base).any()
    )
    assert not repeated(cases)


def test_a_profile_of_other_rows_says_that_it_cannot_tell(tmp_path):
    path = table(tmp_path, *SHAPES)
    cases = to_cases(read(path))
    mine = dataclasses.replace(
        profiles.load("prior"),
        name="mine",
        fitted_rows=tuple(cases.labels.fingerprint.tolist()),
        seen=places(cases),
    )
    profiles.save(mine, tmp_path / "mine.json")
    assert document("evaluate --profile", tmp_path / "mine.json", path)["maybe_fitted"] == 0
    other = table(
        tmp_path, *({**shape, "step_time_s": "3.6"} for shape in (*SHAPES, {"seq_len": "2048"}))
    )
    result = run("evaluate --profile", tmp_path / "mine.json", other, "--json")
    d = json.loads(result.stdout)
    assert d["maybe_fitted"] == 4 and d["overall"]["held_out"]["rows"] == 5
    assert "4 of 5 rows count as held out although" in result.stderr


# --- what is held out, refused, and done next


def test_strict_with_unusable_rows_prints_one_document(tmp_path):
    path = table(tmp_path, {}, {"tp": "3"})
    d = json.loads(fit(path, tmp_path, "--strict", "--json", code=1).stdout)
    assert d["profile"] is None and (d["rows_read"], d["rows_used"], d["rows_fitted"]) == (2, 1, 0)
    assert d["set_aside"][0]["line"] == 3 and "degrees do not multiply" in d["reasons"][0]["reason"]
    assert not (tmp_path / "mine.json").exists()


def test_implausible_rows_alone_leave_nothing_to_fit(tmp_path):
    said = fit(table(tmp_path, {"step_time_s": "3500"}), tmp_path, code=2).stderr
    assert "1 are flagged implausible" in said and "ask for them (--with-implausible)" in said


@pytest.mark.parametrize(("share", "rows"), [("0.5", SHAPES[:1]), ("0.01", SHAPES)])
def test_nothing_held_out_is_said(tmp_path, quick, share, rows):
    result = fit(table(tmp_path, *rows), tmp_path, "--hold-out", share, "--json")
    found = json.loads(result.stdout)["held_out"]
    assert found["rows"] == found["groups"] == 0 and found["share"] == float(share)
    assert "nothing is held out" in found["message"] and "whole groups" in result.stderr


def test_what_is_held_out_is_said(tmp_path, quick):
    path = table(tmp_path, *SHAPES, *({**shape, "n_accel": "128", "dp": "16"} for shape in SHAPES))
    d = json.loads(fit(path, tmp_path, "--hold-out", "0.5", "--json").stdout)
    assert (d["held_out"]["rows"], d["held_out"]["groups"]) == (4, 1) and d["rows_fitted"] == 4
    assert "4 of 8 rows held out, 1 of 2 groups" in d["held_out"]["message"]
    assert json.loads(fit(path, tmp_path, "--json").stdout)["held_out"] is None


def test_rows_behind_the_base_judge_nothing(tmp_path, known, quick):
    path = foundry(tmp_path, known)
    held = split(to_cases(read(path)), 0.4).sum()
    result = run(
        "fit --profile held-out --hold-out 0.4", path, "--out", tmp_path / "p.json", "--json"
    )
    assert json.loads(result.stdout)["held_out"]["rows_behind_base"] == held > 0
    assert f"the base held-out was fitted on {held} of them" in result.stderr


def test_a_share_that_leaves_nothing_to_fit_is_said(tmp_path):
    said = fit(table(tmp_path, *SHAPES), tmp_path, "--hold-out", "0.99", code=2).stderr
    assert "of 4 usable rows 4 are held out" in said and "hold out a smaller share" in said


def test_a_flag_that_leaves_nothing_to_fit_is_named(tmp_path):
    said = fit(flagged(table(tmp_path, *SHAPES), "offload"), tmp_path, code=2).stderr
    assert "of 4 usable rows 4 are flagged offload" in said and "without the flag offload" in said


def test_the_last_lines_tell_how_to_use_the_profile(tmp_path, quick):
    path = table(tmp_path, *SHAPES, {"stack": "my stack"})
    shown = fit(path, tmp_path).stdout.replace("\n", " ")
    assert (
        f"--profile {tmp_path / 'mine.json'} --stack megatron-lm" in shown
        and "(or of my stack)" in shown
    )
    assert document("fit --profile prior", path, "--out", tmp_path / "p.json")["stacks"] == [
        "megatron-lm",
        "my stack",
    ]
