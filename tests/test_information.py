"""Which runs to measure: the value by hand, choices against all choices, the bound above them, and
the list of candidates."""

import json
from itertools import combinations

import numpy as np
import pytest

from calibration.candidates import Asked, cost_s, other_plans, tasks, untimed
from calibration.information import CRITERIA, Problem, Spread, choose, greedy, known, problem, value
from calibration.traces import published, read, to_cases
from calibration.traces.table import Row
from experiments.next_rows import divided, lines_of

RUNS = 9


@pytest.fixture(scope="module")
def found() -> Spread:
    rng = np.random.default_rng(0)
    design, place = 0.1 * rng.standard_normal((RUNS + 3, 4)), rng.standard_normal(RUNS + 3)
    return Spread(
        design @ design.T,
        0.05**2 * np.exp(-0.5 * (place[:, None] - place[None]) ** 2),
        rng.uniform(0.03, 0.05, RUNS + 3),
    )


@pytest.fixture(scope="module")
def asked(found) -> Problem:
    return problem(
        found,
        np.random.default_rng(1).uniform(1.0, 3.0, RUNS + 3),
        np.arange(RUNS),
        np.arange(RUNS, RUNS + 3),
    )


def test_value_is_what_a_fit_of_the_runs_learns(found, asked):
    """By the best linear estimate of the targets' part by the coefficients, what the model lacks of
    measured runs being noise."""
    runs = [0, 4, 7]
    k, lacking, noise = found
    noises = lacking[np.ix_(runs, runs)] + np.diag(noise[runs] ** 2)
    gain = k[np.ix_(asked.targets, runs)] @ np.linalg.inv(k[np.ix_(runs, runs)] + noises)
    error = k[np.ix_(asked.targets, asked.targets)] - gain @ k[np.ix_(runs, asked.targets)]
    left = np.diag(error) + np.diag(lacking)[asked.targets] + noise[asked.targets] ** 2
    assert value(asked, runs) == pytest.approx(0.5 * np.log(asked.open / left).mean(), rel=1e-9)
    nats = (
        0.5 * np.linalg.slogdet(np.eye(3) + (k + lacking)[np.ix_(runs, runs)] / noise[runs] ** 2)[1]
    )
    assert value(asked, runs, "everything") == pytest.approx(nats, rel=1e-9)
    assert value(known(asked, np.array([0, 4])), [7]) == pytest.approx(
        value(asked, runs) - value(asked, [0, 4]), rel=1e-9
    )


def test_a_second_run_of_the_same_place_tells_less_than_one_elsewhere():
    """Two runs alike in what the model lacks, and a third with the same slope elsewhere: the far
    one is chosen second."""
    lacking = 0.1**2 * np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    one = problem(
        Spread(0.1**2 * np.ones((3, 3)), lacking, np.full(3, 0.02)),
        np.ones(3),
        np.arange(3),
        np.arange(3),
    )
    assert set(greedy(one, np.inf, "prediction", 2)) in ({0, 2}, {1, 2})


@pytest.mark.parametrize("criterion", CRITERIA)
def test_choices_are_near_the_best_and_below_the_bound(asked, criterion):
    budget = 7.0
    sets = [list(s) for k in range(1, 6) for s in combinations(range(RUNS), k)]
    best = max(value(asked, s, criterion) for s in sets if asked.cost_s[s].sum() <= budget)
    found = choose(asked, budget, criterion)
    assert found.cost_s <= budget and len(set(found.runs)) == len(found.runs)
    assert 0.9 * best <= found.value[-1] <= best * (1.0 + 1e-9) <= found.bound * (1.0 + 1e-9)
    of_three = choose(asked, np.inf, criterion, 3)
    assert len(of_three.runs) == 3 and of_three.bound >= max(
        value(asked, s, criterion) for s in sets if len(s) == 3
    ) * (1.0 - 1e-9)
    assert choose(asked, 0.5, criterion).runs == []


def test_other_plans_are_new_and_divide_their_sizes():
    table = published()
    table = table.select([row.text("source") == "megatron-sc21-t1" for row in table.rows])
    made = other_plans(table, 40)
    assert len(made.rows) == 40 and untimed(made).all() and not untimed(table).any()
    for row in made.rows:
        degrees = [row.number(name) or 1.0 for name in ("dp", "tp", "pp", "cp")]
        assert (
            np.prod(degrees) == row.number("n_accel") and row.known("n_heads") % degrees[1] == 0.0
        )
    assert [row.cells for row in other_plans(table, 40).rows] == [row.cells for row in made.rows]
    np.testing.assert_allclose(
        cost_s(np.array([2.0]), np.array([8.0]), Asked(steps=10, startup_s=5.0)), 200.0
    )


def test_runs_become_tasks_or_say_why_not():
    cells = {
        "n_layers": "4",
        "d_model": "256",
        "d_ff": "1024",
        "n_heads": "4",
        "vocab": "512",
        "seq_len": "128",
        "precision": "bf16",
    }
    cells |= {
        "n_accel": "2",
        "dp": "2",
        "tp": "1",
        "pp": "1",
        "micro_batch": "2",
        "global_batch": "8",
        "zero_stage": "3",
    }
    able, unable = tasks([Row("f", 2, cells), Row("f", 3, {**cells, "zero_stage": "1"})])
    assert (
        len(able) == 1
        and able[0]["kind"] == "steps"
        and able[0]["fsdp"] == 2
        and able[0]["n_microbatches"] == 2
    )
    assert unable[0]["run"] == 1 and "zero" in unable[0]["reason"]


def test_chosen_rows_are_never_those_judged():
    cases = to_cases(published())
    for source, whole in (("vtrain-single", True), ("megatron-sc21-t1", False)):
        mine = cases.take(cases.labels.source == source)
        part = divided(mine, 1)
        assert sorted([*part.pool, *part.judged]) == list(range(len(mine)))
        shared = set(mine.labels.group[part.pool].tolist()) & set(
            mine.labels.group[part.judged].tolist()
        )
        assert not whole or not shared
        assert abs(len(part.pool) - len(part.judged)) <= 0.3 * len(mine)
    found = {
        (12, "random"): np.array([[4.0, 8.0], [6.0, 8.0]]),
        (12, "chosen"): np.array([[3.0, 8.0], [4.0, 4.0]]),
    }
    (line,) = lines_of("own", found)
    assert (
        line["change_median"] == pytest.approx(-30.0)
        and line["change_mean"] == pytest.approx(-25.0)
        and line["reached"]
    )


@pytest.mark.slow
def test_next_measurements_of_the_shell(tmp_path):
    from typer.testing import CliRunner

    from dmodel.cli.app import app

    header = (
        "source,stack,model,n_layers,d_model,d_ff,gated_mlp,n_heads,vocab,seq_len,accelerator,n_ac"
        "cel"
    )
    header += ",dp,tp,pp,micro_batch,global_batch"
    row = "own,vtrain,own,24,2304,9216,0,24,51200,1024,A100-80GB,64,{dp},{tp},1,{b},512"
    plans = [(64, 1, 1, 1.0), (16, 4, 1, ""), (8, 8, 4, ""), (32, 2, 2, "")]
    lines = [f"{row.format(dp=dp, tp=tp, b=b)},{t}" for dp, tp, b, t in plans]
    (tmp_path / "t.csv").write_text("\n".join([header + ",step_time_s", *lines]) + "\n")
    command = [
        "next-measurements",
        str(tmp_path / "t.csv"),
        "--budget-minutes",
        "350",
        "--out",
        str(tmp_path / "p.json"),
        "--json",
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    answer, plan = json.loads(done.stdout), json.loads((tmp_path / "p.json").read_text())
    assert (
        answer["candidates"] == 3 and answer["known_runs"] == 1 and 1 <= len(answer["chosen"]) <= 2
    )
    assert (
        answer["device_minutes"] <= 350.0
        and answer["sd_bound"] <= answer["sd_after"] <= answer["sd_before"]
    )
    assert (
        len(plan["rows"]) == len(answer["chosen"])
        and read(tmp_path / "t.csv", require_time=False).rows
    )
    few = CliRunner().invoke(app, [*command[:3], "1", *command[4:]])
    assert few.exit_code == 1 and json.loads(few.stdout)["chosen"] == []
