"""The value of an input at which an output is as wanted: roots hold, and none is missed."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import dmodel
from dmodel.api import question
from dmodel.asked import ask, laid
from dmodel.called import TIME
from dmodel.cli.app import app
from dmodel.counts import model_flops_per_token
from dmodel.errors import InputError
from dmodel.run import mfu
from dmodel.sensitivity import elasticities
from dmodel.sensitivity.case import inputs
from dmodel.smooth import SHARPNESS
from dmodel.solve import solve
from dmodel.solve.goals import goal
from dmodel.solve.named import HARDWARE, full_name
from dmodel.solve.whole import case_of
from dmodel.step import memory_use, step_time
from dmodel.training_run import of_run, wanted

JOB, SITE = dmodel.Job("llama-3-8b", 8192, 128), dmodel.cluster("H100-DGX", 64)
LAYOUT = dmodel.Layout(tp=4.0, pp=2.0, recompute_layers=0.0)


@pytest.fixture(scope="module")
def asked():
    return ask(question(JOB, SITE, LAYOUT, stack="nemo/25.02"), None)


@pytest.fixture(scope="module")
def plan(asked):
    return laid(asked, {}).plan


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mfu=45%", ("mfu", 0.45)),
        ("mfu = 0.45", ("mfu", 0.45)),
        ("step_time=850ms", ("step_time", 0.85)),
        ("memory=70GB", ("memory", 70e9)),
        ("throughput=1e6", ("tokens_per_s", 1e6)),
        ("days=30", ("days", 30.0)),
        ("days<=30", ("days", 30.0)),
        ("dollars=1e6", ("dollars", 1e6)),
    ],
)
def test_goals_are_read(text, expected):
    found = goal(text)
    assert (found.output, found.value) == (expected[0], pytest.approx(expected[1]))
    assert found.relation == (text.split(expected[0])[-1][:2] if "<" in text else "=")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mfu", "expected OUTPUT=VALUE"),
        ("speed=3", "unknown output 'speed'"),
        ("mfu=45GB", "unknown unit 'GB'"),
        ("mfu=145%", "100 % at most"),
        ("step_time=0s", "positive"),
        ("step_time=1.2.3s", "expected a number with a unit"),
    ],
)
def test_goals_that_are_none_are_refused(text, says):
    with pytest.raises(InputError, match=says):
        goal(text)


def test_a_bandwidth_is_where_the_step_has_the_utilization(asked, plan):
    here = mfu_at(asked, plan, float(np.asarray(asked.cluster.network.bytes_per_s)[1]))
    wanted = 0.9 * here
    found = solve(asked, "bandwidth.inter", f"mfu={wanted!r}")
    assert found.found and len(found.roots) == 1 and found.now == pytest.approx(here)
    root = found.roots[0]
    assert mfu_at(asked, plan, root.value) == pytest.approx(wanted, rel=1e-9)
    assert root.output == pytest.approx(wanted, rel=1e-9) and root.exact and root.fits


@pytest.mark.parametrize("name", HARDWARE)
def test_numbers_of_a_machine_have_the_names_of_set(asked, name):
    """What is varied is the number that `--set` changes."""
    full = full_name(name, names := inputs(case_of(asked, laid(asked, {})), asked.level_names))
    at = float(names.values[names.names.index(full)])
    other = ask(question(JOB, SITE, LAYOUT, stack="nemo/25.02", overrides={name: 1.5 * at}), None)
    assert full.endswith(f"[{asked.level_names[-1]}]") == name.endswith("inter")
    changed = inputs(case_of(other, laid(other, {}))).values
    assert float(changed[names.names.index(full)]) == pytest.approx(1.5 * at)


def test_a_second_name_of_a_bandwidth_is_unknown(asked):
    with pytest.raises(InputError, match=r"unknown name 'bandwidth.outer'; nearest: bandwidth"):
        solve(asked, "bandwidth.outer", "mfu=30%")


def cluster_with(asked, rate: float):
    network = asked.cluster.network
    rates = np.array(network.bytes_per_s, float)
    rates[1] = rate
    return asked.cluster.replace(network=network.replace(bytes_per_s=rates))


def mfu_at(asked, plan, rate: float) -> float:
    cluster = cluster_with(asked, rate)
    terms = TIME(cluster, asked.model, plan, asked.coefficients, sharpness=SHARPNESS)
    time = step_time(cluster, asked.model, plan, asked.coefficients)
    assert float(time.total) == pytest.approx(sum(map(float, terms.values())))
    return float(mfu(cluster, asked.model, plan, time))


def test_slopes_are_elasticities(asked, plan):
    found = solve(asked, "chip.flops_per_s", "step_time=4s")
    root = found.roots[0]
    chip = asked.cluster.chip.replace(flops_per_s=root.value)
    cluster = asked.cluster.replace(chip=chip)
    each = elasticities(cluster, asked.model, plan, asked.coefficients)
    assert root.slope == pytest.approx(each["chip.flops_per_s"], rel=1e-6)


@pytest.mark.parametrize("name", ["seq_len", "global_batch"])
def test_what_a_plan_would_be_asked_is_what_it_answers(asked, name):
    """Roots of numbers that `--set` takes, against a prediction with them set."""
    now = dmodel.predict(JOB, SITE, LAYOUT, stack="nemo/25.02").step_time_s
    found = solve(asked, name, f"step_time={1.5 * now!r}s")
    value = found.roots[0].value
    words = {"global_batch": value} if name == "global_batch" else {"seq_len": round(value)}
    job = dmodel.Job("llama-3-8b", 8192 if name == "global_batch" else round(value), 128)
    if name == "global_batch":
        plan = laid(asked, {}).plan.replace(global_batch=value)
        time = float(step_time(asked.cluster, asked.model, plan, asked.coefficients).total)
    else:
        one = dmodel.predict(job, SITE, LAYOUT, stack="nemo/25.02", overrides=words)
        time = one.step_time_s
    assert time == pytest.approx(1.5 * now, rel=1e-3)


def test_shares_go_from_none_to_all_and_memory_follows(asked, plan):
    whole = float(memory_use(asked.model, plan, footprint=asked.footprint).total)
    least = float(
        memory_use(asked.model, plan.having(recompute_layers=1.0), footprint=asked.footprint).total
    )
    wanted = 0.5 * (whole + least)
    found = solve(asked, "recompute_layers", f"memory={wanted!r}")
    assert found.between == (0.0, 1.0)
    share = found.roots[0].value
    held = memory_use(asked.model, plan.having(recompute_layers=share), footprint=asked.footprint)
    assert float(held.total) == pytest.approx(wanted, rel=1e-9)


def test_every_root_of_a_curve_that_turns_is_found(asked, plan):
    """Larger micro-batches fill the device, then idle slots of the pipeline win: utilization has a
    maximum, and what is below it is passed twice."""
    values = np.geomspace(0.25, 16.0, 200)
    rates = np.array([mfu_of_micro_batch(asked, plan, x) for x in values])
    top = int(rates.argmax())
    assert 0 < top < len(rates) - 1
    for share in (0.5, 0.97):
        wanted = float(share * rates[top] + (1.0 - share) * max(rates[0], rates[-1]))
        found = solve(asked, "plan.micro_batch", f"mfu={wanted!r}", between=(0.25, 16.0))
        assert len(found.roots) == 2
        for root in found.roots:
            assert mfu_of_micro_batch(asked, plan, root.value) == pytest.approx(wanted, rel=1e-9)
    assert found.most == pytest.approx(rates[top], rel=1e-3)


def mfu_of_micro_batch(asked, plan, size: float) -> float:
    moved = plan.having(micro_batch=float(size))
    terms = TIME(asked.cluster, asked.model, moved, asked.coefficients, sharpness=SHARPNESS)
    peak = 64.0 * float(asked.cluster.chip.flops_per_s)
    flops = 128.0 * 8192.0 * float(model_flops_per_token(asked.model))
    return flops / sum(map(float, terms.values())) / peak


def test_where_there_is_none_it_says_why(asked):
    found = solve(asked, "bandwidth.inter", "mfu=95%")
    assert not found.found and found.most < 0.95
    low, high = found.between
    assert f"{found.most:.4g}" in found.why_none and "never 0.95" in found.why_none
    assert [end.value for end in found.ends] == pytest.approx([low, high])
    assert sum(found.ends[1].terms.values()) < 1.0 and "matmul" in found.ends[1].terms
    assert found.limits[1] >= found.ends[1].output * (1.0 - 1e-9)


def test_whole_numbers_are_tried(asked):
    found = solve(asked, "devices", "days=20")
    assert found.input == "n_accel" and len(found.tried) > 4
    root = found.roots[0]
    assert not root.exact and root.value in found.tried
    ordered = [found.tried[v] for v in sorted(found.tried)]
    assert max(ordered) > 20.0 > min(ordered)
    near = min(abs(np.log(y / 20.0)) for y in ordered)
    assert abs(np.log(root.output / 20.0)) < 2.5 * near


def test_devices_for_a_deadline_are_the_first_that_keep_it_with_the_days_of_predict(asked):
    tokens = 1e12
    found = solve(asked, "devices", "days<=20", tokens=tokens)
    root = found.roots[0]
    assert len(found.roots) == 1 and root.output <= 20.0
    assert all(days > 20.0 for n, days in found.tried.items() if n < root.value)
    site = dmodel.cluster("H100-DGX", int(root.value))
    answer = dmodel.predict(JOB, site, LAYOUT, stack="nemo/25.02")
    run = of_run(wanted(tokens, "", None, None), answer.document, answer.asked)
    assert root.output == pytest.approx(run["days"], rel=1e-6)
    money = solve(asked, "devices", f"dollars>={run['dollars']!r}", tokens=tokens)
    assert money.tried[root.value] == pytest.approx(run["dollars"], rel=1e-6)


def test_a_bound_of_what_is_continuous_is_where_it_is_reached_and_may_hold_all_over(asked):
    exact = solve(asked, "bandwidth.inter", "mfu=30%")
    bound = solve(asked, "bandwidth.inter", "mfu>=30%")
    assert [r.value for r in bound.roots] == [r.value for r in exact.roots]
    assert not bound.holds_all_over and "mfu >= 0.3 at" in str(bound)
    held = solve(asked, "bandwidth.inter", "mfu<=99%")
    assert held.holds_all_over and not held.found and "all over the range" in held.why_none
    assert not solve(asked, "bandwidth.inter", "mfu>=99%").holds_all_over


def test_tokens_are_of_outputs_of_the_run(asked):
    with pytest.raises(InputError, match="step_time does not depend on them"):
        solve(asked, "bandwidth.inter", "step_time=1s", tokens=1e12)
    with pytest.raises(InputError, match="step_time does not depend on them"):
        solve(asked, "devices", "step_time=1s", tokens=1e12)


def test_the_shell_needs_no_devices_where_they_are_solved_for():
    words = "--system H100-DGX --model llama-3-8b --seq-len 8192 --global-batch 128 --tp 4 --json"
    ask_for = f"solve --for devices --such-that days<=20 --tokens 1e12 {words}".split()
    done = CliRunner().invoke(app, ask_for)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["relation"] == "<=" and found["tokens"] == 1e12 and found["devices"] == 8
    assert found["roots"][0]["output"] <= 20.0 and found["between"] == [1.0, 65536.0]
    ask_for[2] = "tp"
    missing = CliRunner().invoke(app, ask_for)
    assert missing.exit_code == 2 and "missing: --devices" in missing.stderr


def test_a_whole_number_that_is_stated_is_exact(asked):
    now = dmodel.predict(JOB, SITE, LAYOUT, stack="nemo/25.02")
    found = solve(asked, "tp", f"step_time={now.step_time_s!r}s")
    assert any(root.exact and root.value == 4.0 for root in found.roots)


@pytest.mark.parametrize(
    ("name", "between", "says"),
    [
        ("seq_len", (10.0, 5.0), "the smaller first"),
        ("nothing", None, "unknown name 'nothing'"),
        ("stack", None, "no number that a plan depends on"),
        ("straggler", (0.0, float("inf")), "the smaller first"),
        ("dp", (3.0, 3.5), "no value makes a plan"),
    ],
)
def test_mistakes_are_told(asked, name, between, says):
    with pytest.raises(InputError, match=says):
        solve(asked, name, "step_time=1s", between)


def test_the_api_and_the_document(asked):
    how = {"input": "bandwidth.inter", "such_that": "mfu=30%", "stack": "nemo/25.02"}
    found = dmodel.solve(JOB, SITE, LAYOUT, **how)
    assert found.document == solve(asked, "bandwidth.inter", "mfu=30%").document
    json.dumps(found.document)
    assert "mfu = 0.3 at" in str(found)
    assert jax.config.jax_enable_x64  # type: ignore[attr-defined]
