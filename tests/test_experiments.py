"""The studies run, in their quick mode: they print one JSON document, and write a table and a
figure."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calibration.predict import predict
from calibration.traces import read, to_cases
from calibration.traces.published import PUBLISHED
from dmodel.errors import InputError
from dmodel.profiles import default_profile, family
from experiments import few_shot, kinds, slow_rows, sources
from experiments.bases import CODE, Bases
from experiments.study import rows, run
from experiments.targets import catalog
from tests.rows import table_file
from tests.studies import quick_study

ROOT = Path(__file__).parents[1]


def by_shell(name: str, out: Path) -> dict:
    """The document of a study that the shell runs."""
    command = [
        sys.executable,
        "-m",
        "dmodel",
        "experiment",
        name,
        "--quick",
        "--json",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_shell_runs_a_study(tmp_path):
    document = by_shell("data_movement_limits_walls", tmp_path)
    assert document["study"] == "data_movement_limits_walls" and document["rows"]
    assert (tmp_path / "data_movement_limits_walls.png").stat().st_size > 10_000


def test_few_shot(tmp_path):
    document = quick_study("few_shot", tmp_path, "--targets", "vtrain-multi")
    (line,) = document["rows"]
    assert line["rows_used"] == 12 and line["rows_judged"] == 24 and 0.0 < line["median"] < 15.0
    assert (tmp_path / "few_shot.png").stat().st_size > 10_000


def test_any_source_is_a_target_and_hides_what_shares_a_stack_with_it():
    cases = rows([])
    wanted = argparse.Namespace(targets=["dlperf", "fms-fsdp", "megatron-sc21"], traces=[])
    found = few_shot._targets(wanted, cases)
    usual = few_shot._targets(argparse.Namespace(targets=None, traces=[]), cases)
    assert {name: sorted(t.hidden) for name, t in usual.items()} == dict.fromkeys(
        ["vtrain-single", "vtrain-multi"], ["vtrain-multi", "vtrain-single"]
    )
    assert (
        found["fms-fsdp"].hidden == ("fms-fsdp",)
        and found["megatron-sc21"] == few_shot.TARGETS["megatron-sc21"]
    )
    hidden = np.isin(cases.labels.source, found["dlperf"].hidden)
    stacks = [
        {family(str(s)) for s in cases.labels.stack[np.isin(cases.labels.source, of)]}
        for of in (("dlperf",), ("zero-bubble",))
    ]
    assert stacks[0] & stacks[1] and hidden[cases.labels.source == "zero-bubble"].all()
    assert not stacks[0] & {family(str(s)) for s in cases.labels.stack[~hidden]}


def test_rows_of_the_table_are_not_read_twice():
    """Judged beside a copy of itself that was fitted, a row would count as predicted."""
    with pytest.raises(InputError, match="is in the published table, which is always read"):
        rows([str(PUBLISHED)])


def test_an_unknown_target_is_a_message(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["few_shot", "--targets", "nobody", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        run(few_shot.main)
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == "" and "nobody" in said.err


def test_ablation(tmp_path):
    document = quick_study("ablation", tmp_path)
    lines = {line["without"]: line for line in document["rows"]}
    whole, without = lines["the model as it is"], lines["elementwise kernels"]
    assert whole["change_of_mean"] == 0.0 and 0.0 < whole["median"] != without["median"] > 0.0
    assert without["change_of_mean"] == pytest.approx(
        100.0 * (without["mean"] / whole["mean"] - 1.0)
    )
    assert (tmp_path / "ablation.png").stat().st_size > 10_000


def test_accuracy(tmp_path):
    document = quick_study(
        "accuracy", tmp_path, "--only", "few-shot 12 vtrain-multi", "scale vtrain-multi"
    )
    few, scale = document["rows"]
    assert few["protocol"] == "few-shot 12 vtrain-multi" and (
        few["fitted"],
        few["judged"],
        few["seeds"],
    ) == (12, 24, 2)
    assert (
        few["goal_median"] == 3.5
        and 0.0 < few["median"] <= few["worst_median"] < 20.0
        and few["median"] < few["mean"] < 30.0
    )
    assert few["choices"] > 0 and few["regret"] >= 0.0 and 0.5 < few["order"] <= 1.0
    assert (
        scale["protocol"] == "scale vtrain-multi ≤256→512"
        and scale["fitted"] + scale["judged"] == 36
        and scale["seeds"] == 1
    )
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000
    assert (
        (tmp_path / "accuracy.csv")
        .read_text()
        .splitlines()[0]
        .startswith("protocol,fitted,judged,seeds,median,goal_median")
    )
    (base,) = (tmp_path / "bases").iterdir()
    assert base.name.startswith("base-") and base.suffix == ".json"


def test_a_study_of_the_shell_refuses_as_it_does(tmp_path):
    """The shell hands on the study's own options."""
    command = [
        sys.executable,
        "-m",
        "dmodel",
        "experiment",
        "accuracy",
        "--out",
        str(tmp_path),
        "--only",
        "nobody",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (
        done.returncode == 2
        and "nobody" in done.stderr
        and "few-shot 12 llm-foundry" in done.stderr
    )


@pytest.fixture(scope="module")
def cases():
    return rows(())


def test_protocols_never_judge_what_they_fitted(cases):
    """Of every protocol: fitted and judged rows are apart (but where the fit itself is asked for),
    and all are of the target."""
    for name, protocol in catalog(cases).items():
        target = protocol.target(cases)
        for division in protocol.divide(cases, target, 3):
            assert (
                division.judged.any()
                and not (division.judged & ~target).any()
                and not (division.fitted & ~target).any()
            ), name
            assert name.startswith("fitted") or not (division.fitted & division.judged).any(), name


def test_the_base_never_sees_the_target(cases):
    for name, protocol in catalog(cases).items():
        hidden, judged = (
            protocol.hidden(cases),
            protocol.divide(cases, protocol.target(cases), 0)[0].judged,
        )
        assert protocol.memory or not (judged & ~hidden).any(), name
        if name.startswith("few-shot") and "known" not in name:
            kin = np.unique(cases.labels.stack[judged])
            assert not np.isin(cases.labels.stack[~hidden], kin).any(), name


def test_cells_are_left_out_whole(cases):
    protocol = catalog(cases)["few-shot 12 vtrain-single"]
    for seed in range(3):
        (division,) = protocol.divide(cases, protocol.target(cases), seed)
        assert division.fitted.sum() == 12
        assert not set(cases.labels.group[division.fitted]) & set(
            cases.labels.group[division.judged]
        )


def test_folds_judge_every_row_once(cases):
    protocol = catalog(cases)["cross-validation maxtext"]
    parts = protocol.divide(cases, protocol.target(cases), 1)
    np.testing.assert_array_equal(
        sum(part.judged.astype(int) for part in parts), protocol.target(cases).astype(int)
    )


def test_a_base_is_made_once_and_kept_under_its_rows_and_its_code(cases, tmp_path):
    few = cases.take(cases.labels.source == "megatron-sc21-t1")
    bases, nothing = Bases(tmp_path, starts=1, rounds=1), np.zeros(len(few), bool)
    first = bases.without(few, nothing)
    assert bases.without(few, nothing) is first
    again = Bases(tmp_path, starts=1, rounds=1).without(few, nothing)
    np.testing.assert_allclose(again.center, first.center, atol=1e-9)
    keys = {
        Bases(starts=1).key(few),
        Bases(starts=2).key(few),
        Bases(starts=1).key(few.take(np.arange(9))),
    }
    assert len(keys) == 3 and all(CODE in key for key in keys)


def test_slow_rows(tmp_path):
    """Rows that stall a second for every micro-batch, among rows that the model explains."""
    plans = [(pp, b) for pp in (1, 2, 4) for b in (1, 2, 4)]
    asked = [
        {
            "source": "sweep",
            "stack": "sweep",
            "pp": str(pp),
            "dp": str(16 // pp),
            "micro_batch": str(b),
        }
        for pp, b in plans
    ]
    cases = to_cases(read(table_file(tmp_path, *asked)))
    times = predict(cases, default_profile()).step_time_s
    passes = (
        128.0 / (np.asarray(cases.plan.layout.dp) * np.asarray(cases.plan.layout.micro_batch))
        + np.asarray(cases.plan.layout.pp)
        - 1.0
    )
    stalled = [i % 3 == 1 and pp > 1 for i, (pp, _) in enumerate(plans)]
    for row, time, count, slow in zip(asked, times, passes, stalled, strict=True):
        row |= {
            "step_time_s": f"{time + slow * count:.6f}",
            "flag": "slow-unexplained" if slow else "",
        }
    document = quick_study(
        "slow_rows", tmp_path, "--traces", str(table_file(tmp_path, *asked, name="sweep.csv"))
    )
    fitted, flagged, two, more = document["rows"]
    assert fitted["explained"] == fitted["count"] == 7 and fitted["slower"] == 0
    assert flagged["count"] == flagged["slower"] == 2 and two["count"] == more["count"] == 1
    assert abs(flagged["late_median_ms"] - 1e3) < 50.0


def test_slow_rows_need_some(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["slow_rows", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        run(slow_rows.main)
    assert ended.value.code == 2 and "give a table with such rows" in capsys.readouterr().err


def test_kinds(tmp_path):
    """Every row of a kind counts once in its first line; a kind that is none is refused by name."""
    document = quick_study("kinds", tmp_path)
    whole, *stacks = document["rows"]
    assert (whole["kind"], whole["stack"]) == ("4 bits", "all") and whole["rows"] >= sum(
        x["rows"] for x in stacks
    ) > 0
    assert all(abs(x["bias"]) <= x["p90"] for x in document["rows"])
    cases = rows([])
    hidden = {name: of(cases) for name, of in kinds.KINDS.items()}
    assert all(
        mask.shape == (len(cases),) and mask.any() and not mask.all() for mask in hidden.values()
    )
    assert int(hidden["adapters"].sum()) == sum("lora" in str(flag) for flag in cases.labels.flag)


def test_kinds_refuse_what_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kinds", "--kinds", "purple", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        run(kinds.main)
    assert stopped.value.code == 2 and "no kind purple" in capsys.readouterr().err


NEW = (
    {},
    {"global_batch": "256", "step_time_s": "7.0"},
    {"precision": "fp8", "step_time_s": "3.0"},
    {"flag": "slow-unexplained", "step_time_s": "99.0"},
)
"""Rows of a source that no fit has: one, twice its batch, in 8 bits, and one that is not judged."""


def test_sources_are_judged_by_kind_and_side(tmp_path):
    new = str(table_file(tmp_path, *NEW, name="new.csv"))
    found = quick_study("sources", tmp_path, "--traces", new, "--worst", "2")["rows"]
    whole, source, *others = found
    assert (whole["rows of"], whole["kind"], whole["rows"]) == ("all sources", "dense", 3)
    assert source | {"rows of": "all sources"} == whole and source["rows of"] == "test"
    assert sum(x["rows"] for x in others if x["rows of"].startswith("host")) == 3
    worst = [x for x in others if "case" in x]
    assert len(worst) == 2 and abs(worst[0]["bias"]) >= 0.5 * abs(worst[1]["bias"])
    assert worst[0]["predicted"] / worst[0]["measured"] - 1.0 == pytest.approx(
        worst[0]["bias"] / 100.0
    )


def test_sources_of_the_fit_are_refused(tmp_path):
    known = str(table_file(tmp_path, {"source": "llm-foundry"}, name="known.csv"))
    with pytest.raises(InputError, match="the shipped fit has rows of llm-foundry"):
        sources.judged([known])


def test_pairs_differ_in_one_thing(tmp_path):
    new = str(table_file(tmp_path, *NEW, name="new.csv"))
    found = quick_study("pairs", tmp_path, "--traces", new)["rows"]
    assert {x["differ in"]: x["pairs"] for x in found} == {
        "batch": 1,
        "precision": 1,
        "any of them": 2,
    }
    assert all(x["clear"] == x["pairs"] and x["right side"] == 100.0 for x in found)


@pytest.mark.slow
def test_one_device(tmp_path):
    """Every measured step has a line, kinds of kernels have ratios, and the clock falls as it was
    seen to."""
    steps = quick_study("one_device", tmp_path)["rows"]
    measured = [line for line in steps if "measured_ms" in line]
    assert len(measured) == 10 and all(0.5 < line["products_ratio"] < 2.5 for line in measured)
    clocks = [line for line in steps if "of the time" in line["case"]]
    alone = [line for line in clocks if "100%" in line["case"]]
    assert len(clocks) == 52 and all(
        line["predicted_slower"] > 1.05 and line["measured_slower"] > 1.05 for line in alone
    )
    assert all(
        line["predicted_slower"] == pytest.approx(1.0, abs=5e-3)
        for line in clocks
        if "25% of" in line["case"]
    )
    single = {
        f"{line['chip']}: {line['case'].partition(' in ')[2]}": line
        for line in steps
        if "mean_%" in line
    }
    assert len(single) == 12 and all(
        line["mean_%"] < 15.0 for name, line in single.items() if "alone" in name
    )
    # of 16 channels, which collectives have; others hold a whole wave or next to nothing
    beside = [
        line for line in steps if "beside 16 channels" in line["case"] and "8192" in line["case"]
    ]
    assert len(beside) == 8 and all(
        abs(line["predicted_slower"] / line["measured_slower"] - 1.0) < 0.08 for line in beside
    )
    assert sum("slowest of" in line["case"] for line in steps) == 12
