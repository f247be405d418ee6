"""The benchmark of predictors: splits that match the table, scores, questions, answers, page."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from dmodel.errors import InputError
from dmodel.profiles import load
from experiments.benchmark import __main__ as shell
from experiments.benchmark import answers, ours, questions, report, results, tools
from experiments.benchmark.answers import Answer
from experiments.benchmark.protocols import (
    DRAWS,
    FEW,
    FOLDS,
    GROWING,
    PROTOCOLS,
    TWELVE,
    row_of,
    tasks,
    usable,
)
from experiments.benchmark.rivals import common
from experiments.benchmark.scoring import keys, score, truth
from experiments.benchmark.table import inputs, measured, row_id, table

ROOT = Path(__file__).parents[1]
TIMED = ("no-rows", "twelve", "larger-scale")


@pytest.fixture(autouse=True)
def _promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def perfect(name: str, factor: float = 1.0) -> answers.Answers:
    """What was measured, times a factor."""
    known = truth(name)
    return {key: Answer(factor * known[row_of(key[0])]) for key in keys(tasks(name))}


# --- splits ---------------------------------------------------------------------------------------


def test_every_row_is_asked_about_once_without_rows():
    asked = [row for task in tasks("no-rows") for row in task.judge]
    assert sorted(asked) == sorted(table().ids)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_splits_match_the_table(name):
    for task in tasks(name):
        rows = {row_of(question) for question in task.judge}
        assert rows and rows <= set(table().ids) and set(task.train) <= set(table().ids)
        assert not rows & set(task.train)
        assert len(set(task.judge)) == len(task.judge)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_no_judged_row_is_usable_and_none_of_its_stack_unless_given(name):
    labels = table().cases.labels
    for task in tasks(name):
        judged = table().mask(row_of(question) for question in task.judge)
        may = usable(name, task)
        assert may.any() and not (may & judged).any()
        given = table().mask(task.train)
        for column in (labels.source, labels.stack):
            assert not np.isin(column[may & ~given], column[judged]).any()


def test_twelve_rows_in_five_draws():
    found = tasks("twelve")
    assert len(found) == DRAWS * len(FEW)
    assert {len(task.train) for task in found} == {TWELVE}
    assert len({task.train for task in found}) == len(found)


def test_larger_scale_is_larger():
    labels = table().cases.labels
    for task in tasks("larger-scale"):
        most, fewest = GROWING[task.name]
        assert labels.n_accel[table().mask(task.train)].max() <= most < fewest
        assert labels.n_accel[table().mask(task.judge)].min() >= fewest


def test_folds_hold_every_source_once():
    members = [source for fold in FOLDS.values() for source in fold]
    assert sorted(members) == np.unique(table().cases.labels.source).tolist()


def test_a_name_changes_with_a_measured_value_alone_and_a_layout():
    cells = {"model": "a", "tp": "2", "step_time_s": "1.5"}
    assert row_id(cells) == row_id({**cells, "note": "n", "source": "s", "pp": ""})
    assert (
        len({row_id(cells), row_id(cells | {"tp": "4"}), row_id(cells | {"step_time_s": "2"})}) == 3
    )


# --- scores ---------------------------------------------------------------------------------------


def test_errors_bias_and_coverage_by_hand():
    known = truth("larger-scale")
    asked = keys(tasks("larger-scale"))
    ratios = (1.1, 0.8, 1.3)
    found = {
        key: Answer(ratio * known[key[0]], 0.9 * ratio * known[key[0]], 1.2 * ratio * known[key[0]])
        for key, ratio in zip(asked, ratios, strict=False)
    }
    got = score("larger-scale", found)
    assert (got.asked, got.answered) == (len(asked), 3)
    assert got.covered == pytest.approx(300.0 / len(asked))
    assert got.median == pytest.approx(20.0) and got.mean == pytest.approx(20.0)
    assert got.bias == pytest.approx(10.0)
    assert got.inside == pytest.approx(100.0 / 3.0)  # 0.99 to 1.32, 0.72 to 0.96, 1.17 to 1.56
    assert got.area is None


def test_nothing_answered_is_counted():
    assert score("memory", {}) == score("memory", {})._replace(answered=0, median=None)
    assert score("memory", {}).asked == len(keys(tasks("memory")))


def test_risks_are_scored_by_area():
    known = truth("fits")
    asked = keys(tasks("fits"))
    at = {k: Answer(known[row_of(k[0])] / 1e12) for k in asked}
    sizes = {k: float(k[0].split("@")[1]) for k in asked}
    right = {k: Answer(float(known[row_of(k[0])] > sizes[k] * 2**30)) for k in asked}
    assert score("fits", right).area == 1.0 and score("fits", right).balanced == 100.0
    assert 0.5 < (score("fits", at).area or 0.0) < 1.0
    wrong = {k: Answer(1.0 - a.value) for k, a in right.items()}
    assert score("fits", wrong).area == 0.0


# --- questions and answers ------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROTOCOLS)
def test_questions_have_no_measured_value_and_training_rows_no_judged_one(name):
    asked, given = questions.asked(name), questions.training(name)
    assert not set(questions.MEASURED) & set(asked[0])
    assert {line["id"] for line in asked} == {q for task in tasks(name) for q in task.judge}
    may = {line["id"]: line["usable_for"].split() for line in given}
    for task in tasks(name)[:6]:
        mine = {task.name, f"{task.name}/{task.draw}"}
        found = {row for row, where in may.items() if mine & set(where)}
        assert found == set(np.array(table().ids)[usable(name, task)])


def test_answers_read_back_as_written(tmp_path):
    found = {
        key: Answer(a.value, 0.5 * a.value, 2.0 * a.value) for key, a in perfect("twelve").items()
    }
    path = tmp_path / "answers.csv"
    answers.write(path, found, "twelve")
    assert answers.read(path, "twelve") == found


def test_an_answer_without_a_draw_counts_for_all(tmp_path):
    row = tasks("twelve")[0].judge[0]
    judging = [task.draw for task in tasks("twelve") if row in task.judge]
    path = tmp_path / "answers.csv"
    path.write_text(f"id,seconds\n{row},2.5\n")
    assert sorted(draw for _, draw in answers.read(path, "twelve")) == judging


ROW = tasks("memory")[0].judge[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,seconds\n", "header lacks bytes"),
        ("", "header lacks id and bytes"),
        ("id,bytes\nnobody,1\n", "2: id 'nobody' is not asked"),
        (f"id,bytes\n{ROW},1\n{ROW},2\n", "3: id .* answered twice"),
        (f"id,bytes\n{ROW},many\n", "2: bytes: expected a finite number, got 'many'"),
        (f"id,bytes\n{ROW},-1\n", "2: expected bytes above 0"),
        (f"id,bytes,lo,hi\n{ROW},2,3,1\n", "lo below hi"),
        (f"id,bytes,draw\n{ROW},2,7\n", "draw '7' does not judge"),
    ],
)
def test_wrong_answers_are_refused(text, says, tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        answers.read(path, "memory")


def run(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    shell.main()


def test_the_shell_scores_a_file(tmp_path, monkeypatch, capsys):
    path = tmp_path / "answers.csv"
    answers.write(path, perfect("memory", 1.25), "memory")
    run(monkeypatch, "score", "--protocol", "memory", str(path), "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["score"]["median"] == pytest.approx(25.0)
    assert {line["task"] for line in document["tasks"]} == {t.name for t in tasks("memory")}
    with pytest.raises(InputError, match="--protocol: 'none' is none; choose from no-rows"):
        run(monkeypatch, "score", "--protocol", "none", str(path))
    with pytest.raises(InputError, match="cannot be read"):
        run(monkeypatch, "score", "--protocol", "memory", str(tmp_path / "absent.csv"))


def test_the_shell_writes_questions(tmp_path, monkeypatch, capsys):
    run(monkeypatch, "questions", "--protocol", "memory", "--out", str(tmp_path), "--json")
    document = json.loads(capsys.readouterr().out)
    with Path(document["questions"]).open() as file:
        assert len(list(csv.DictReader(file))) == len(keys(tasks("memory")))


# --- tools ----------------------------------------------------------------------------------------


def test_adapters_say_what_they_do_not_cover(tmp_path, monkeypatch):
    def answer(job, constant):
        common.require(job.count("tp") == 1, "tensor parallelism")
        if job.count("pp") > 1:
            raise ZeroDivisionError("of the tool")
        return common.Answer(2.0 * (constant or 1.0), math.inf)

    rows = questions.write(list(inputs().values())[:400], tmp_path / "rows.csv")
    out = tmp_path / "out.csv"
    monkeypatch.setattr(
        sys, "argv", ["x", "--rows", str(rows), "--out", str(out), "--constants", "3"]
    )
    common.serve(lambda checkout: (answer, "1.0"))
    with out.open() as file:
        lines = list(csv.DictReader(file))
    known = tools._known(lines, 1.0, "1.0")
    assert set(known.reasons) <= {"tensor parallelism", "ZeroDivisionError: of the tool"}
    assert known.seconds and not known.bytes
    assert all(each == {1.0: 2.0, 3.0: 6.0} for each in known.seconds.values())
    assert len(known.seconds) + sum(known.reasons.values()) == 400


@pytest.mark.parametrize("name", [n for n, tool in tools.TOOLS.items() if tool.checkout])
def test_a_tool_without_its_checkout_says_so(name, tmp_path):
    with pytest.raises(tools.Failed, match="--checkout"):
        tools.ask(name, sys.executable, None, tmp_path, False)


def test_a_tool_that_is_not_installed_says_so(tmp_path):
    with pytest.raises(tools.Failed, match="mlsysim"):
        tools.ask("mlsysim", sys.executable, None, tmp_path, False)


def test_a_constant_is_set_on_training_rows():
    """A tool whose times are half of the measured ones by its own constant is right when tuned."""
    known = measured(table())["seconds"]
    says = tools.Known("", {row: {1.0: t / 2, 0.25: 2 * t} for row, t in known.items()}, {}, {})
    as_it_comes = tools.answers("larger-scale", says, 1.0, tuned=False)
    tuned = tools.answers("larger-scale", says, 1.0, tuned=True)
    assert as_it_comes and tuned
    assert score("larger-scale", as_it_comes).median == pytest.approx(50.0)
    assert score("larger-scale", tuned).mean == pytest.approx(0.0, abs=0.5)


def test_bytes_become_a_probability_of_a_half_where_the_peak_is_the_device():
    question = tasks("fits")[0].judge[0]
    size = float(question.split("@")[1]) * 2**30
    says = tools.Known("", {}, {row_of(question): size}, {})
    found = tools.answers("fits", says, math.nan, tuned=False)
    assert found and found[question, 1].value == 0.5


def test_ours_is_asked_of_a_base_that_hides_the_task():
    asked = []

    def base(hidden, why):
        asked.append((hidden, why))
        return load("held-out")

    task = next(t for t in tasks("no-rows") if t.name == "vtrain")
    found = ours._times("no-rows", task._replace(judge=task.judge[-6:]), base)
    ((hidden, why),) = asked
    assert why == "vtrain" and set(np.array(table().ids)[hidden]) == set(task.judge)
    assert len(found) == 6
    assert all(a.lo < a.value < a.hi for a in found.values())


# --- results --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_quick_run_scores_memory(tmp_path, monkeypatch, capsys):
    run(monkeypatch, "run", "--quick", "--json", "--out", str(tmp_path))
    document = json.loads(capsys.readouterr().out)
    by = {line["protocol"]: line for line in document["scores"] if line["tool"] == "dmodel"}
    assert by["memory"]["covered"] == 100.0 and by["memory"]["median"] < 25.0
    assert by["fits"]["area"] > 0.9
    page = (tmp_path / "benchmark.md").read_text()
    assert page == report.markdown(results.read(tmp_path / "results.json"))
    assert (tmp_path / "benchmark.png").stat().st_size > 10_000


def test_the_page_is_made_from_the_committed_results():
    committed = results.read()
    assert (ROOT / "docs" / "benchmark.md").read_text() == report.markdown(committed)
    assert committed["splits"] == results.splits_hash()
    assert committed["rows"] == len(table().ids)


def test_the_committed_results_have_all_protocols_and_four_tools():
    committed = results.read()
    assert list(committed["protocols"]) == list(PROTOCOLS)
    for name in TIMED:
        scored = [x for x in committed["scores"] if x["protocol"] == name and x["answered"]]
        assert len({x["tool"] for x in scored} - {"dmodel", "rule"}) >= 4
