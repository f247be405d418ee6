"""Diagnosis of a run: figures from words, causes as changes of a case, Bayes, tests that tell."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import stats

import dmodel
from dmodel import uncertainty
from dmodel.api import question
from dmodel.asked import ask, laid
from dmodel.called import TIME
from dmodel.diagnose import causes as held_causes
from dmodel.diagnose.causes import beliefs, cause_named, markdown
from dmodel.diagnose.diagnosis import TAIL, diagnose
from dmodel.diagnose.measured import Measured, measured, step_seconds
from dmodel.diagnose.posterior import Scaled, log_density, posterior, table
from dmodel.diagnose.responses import responses
from dmodel.diagnose.subject import Records, of_profile, stated, subject
from dmodel.diagnose.telling import is_cause
from dmodel.diagnose.variants import variants
from dmodel.errors import InputError
from dmodel.profiles import default_profile
from dmodel.smooth import SHARPNESS

JOB = dmodel.Job("llama-3-70b", 8192, 1024)
LAYOUT = dmodel.Layout(tp=8.0, pp=4.0)


@pytest.fixture(scope="module")
def asked():
    words = question(JOB, dmodel.cluster("H100-DGX", 512), LAYOUT, stack="nemo/25.02")
    return ask(words, None)


@pytest.fixture(scope="module")
def run(asked):
    return subject(stated(asked, laid(asked, {})))


@pytest.fixture(scope="module")
def cases(run):
    return variants(run, beliefs().causes)


@pytest.fixture(scope="module")
def found(run, cases):
    return responses(run, cases)


@pytest.fixture(scope="module")
def of(run, cases, found):
    return table(run, cases, found, beliefs())


def test_probabilities_before_anything_is_measured_add_up_to_one_and_have_reasons():
    held = beliefs()
    total = held.nothing[0] + held.otherwise[0] + sum(c.probability for c in held.causes)
    assert total == pytest.approx(1.0, abs=1e-12)
    assert len({c.name for c in held.causes}) == len(held.causes) > 20
    for cause in held.causes:
        assert cause.why and bool(cause.source) == bool(cause.date)
        assert cause.changes or cause.size.of in ("releases", "chips", "parts")
        assert cause.name in markdown()


def test_tests_read_or_change_numbers_that_a_case_has(cases):
    for test in held_causes.tests():
        told = [test.changes, test.reads, test.without, test.parts]
        assert sum(map(bool, told)) == 1 and test.minutes > 0.0 and test.noise > 0.0
        for read in test.reads:
            assert cases.number(read.leaf).shape == (cases.count,)


@pytest.mark.parametrize(
    ("texts", "kind", "value", "beside"),
    [
        (["5.2s"], "time", 5.2, {}),
        (["850 ms"], "time", 0.85, {}),
        (["6,785tok/s/gpu"], "tokens_per_s_per_device", 6785.0, {}),
        (["1.2e6 tokens/s"], "tokens_per_s", 1.2e6, {}),
        (["41%mfu"], "mfu", 0.41, {}),
        (["0.41 MFU"], "mfu", 0.41, {}),
        (["405TFLOP/s"], "flops_per_s_per_device", 405e12, {}),
        (
            ["step=5.2s", "compute=3.9s", "memory=61GB"],
            "time",
            5.2,
            {"compute": 3.9, "memory": 61e9},
        ),
    ],
)
def test_figures_are_read(texts, kind, value, beside):
    found = measured(texts)
    assert (found.kind, found.value) == (kind, pytest.approx(value))
    assert found.beside == pytest.approx(beside)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ([], "expected one figure of the step"),
        (["5.2s", "41%mfu"], "got 2"),
        (["5.2"], "with a unit"),
        (["fast"], "with a unit"),
        (["0s"], "positive"),
        (["41mfu"], "such as 41%mfu"),
        (["5.2s", "colour=3s"], "unknown kind 'colour'"),
        (["5.2s", "compute=3GB"], "with a unit"),
        (["5.2s", "compute=3s", "compute=4s"], "twice"),
        (["5.2s", "elsewhere=41%mfu"], "the unit of the step's own figure"),
        (["5.2s", "configuration=1"], "an option of the plan"),
        (["5.2s", "clocks=fast"], "expected a number"),
        (["5.2s", "clocks=0"], "clock × units"),
        (["5.2s", "synthetic-data=4"], "seconds of a step"),
        (["5.2s", "network-inside=-3GB/s"], "such as 18GB/s"),
    ],
)
def test_figures_that_are_none_are_refused(texts, says):
    with pytest.raises(InputError, match=says):
        measured(texts)


def test_every_kind_of_figure_means_the_same_step(run):
    cluster, model, plan = run.records
    tokens, devices = 1024 * 8192, 512
    each = {
        "time": 20.0,
        "tokens_per_s": tokens / 20.0,
        "tokens_per_s_per_device": tokens / 20.0 / devices,
        "sequences_per_s": 1024 / 20.0,
    }
    for kind, value in each.items():
        assert step_seconds(Measured(kind, value), cluster, model, plan) == pytest.approx(20.0)
    one = dmodel.predict(JOB, dmodel.cluster("H100-DGX", 512), LAYOUT, stack="nemo/25.02")
    own = Measured("mfu", one.document["mfu"]["6N+12Lhs"])
    assert step_seconds(own, cluster, model, plan) == pytest.approx(one.step_time_s)


def test_parts_longer_than_the_step_are_refused(run):
    with pytest.raises(InputError, match="longer than the step"):
        diagnose(run, measured(["5s", "compute=6s"]))
    with pytest.raises(InputError, match="together"):
        diagnose(run, measured(["5s", "compute=4s", "exposed=3s"]))


def test_the_stated_run_is_the_prediction(asked, run, cases, found):
    one = dmodel.predict(JOB, dmodel.cluster("H100-DGX", 512), LAYOUT, stack="nemo/25.02")
    assert found.time[0] == pytest.approx(one.step_time_s, rel=1e-12)
    assert found.shares.sum(1) == pytest.approx(1.0)
    scale = np.sqrt(found.cov[0, 0, 0] + run.misfit**2)
    low, high = uncertainty.band(found.time[0], scale)
    assert one.interval is not None
    assert (low, high) == pytest.approx(one.interval, rel=1e-9)
    assert cases.cause[0] == -1 and (cases.cause[1:] >= 0).all()


def column(cases, name: str, size: float) -> int:
    """The variant of a cause that is nearest to a size."""
    index = [c.name for c in beliefs().causes].index(name)
    own = np.flatnonzero(cases.cause == index)
    return int(own[np.argmin(np.abs(np.log(cases.size[own] / size)))])


def test_causes_are_what_the_model_says_of_the_changed_case(asked, run, cases, found):
    """A few of them by hand."""
    cluster, model, plan = run.records
    network = cluster.network

    def seconds(cluster=cluster, model=model, plan=plan, c=asked.coefficients):
        terms = TIME(cluster, model, plan, c, sharpness=SHARPNESS)
        return float(sum(terms.values()))

    i = column(cases, "slow-network-between", 0.1)
    rates = np.array(network.bytes_per_s) * [1.0, cases.size[i]]
    slower = cluster.replace(network=network.replace(bytes_per_s=rates))
    assert found.time[i] == pytest.approx(seconds(slower))
    i = column(cases, "full-recomputation", 1.0)
    assert found.time[i] == pytest.approx(seconds(plan=plan.having(recompute_layers=1.0)))
    i = column(cases, "slow-host", 10.0)
    host = asked.coefficients.replace(launch=asked.coefficients.launch * cases.size[i])
    assert found.time[i] == pytest.approx(seconds(c=host))
    i = column(cases, "ethernet-between", 1.25e9)
    rates = np.array([network.bytes_per_s[0], 1.25e9 / network.size[0]])
    plain = cluster.replace(network=network.replace(bytes_per_s=rates))
    assert found.time[i] == pytest.approx(seconds(plain))
    i = column(cases, "pcie-server", 32e9)
    rates = np.array([cases.size[i], 50e9 / network.size[0]])
    cards = cluster.replace(network=network.replace(bytes_per_s=rates))
    assert found.time[i] == pytest.approx(seconds(cards))


def test_waiting_and_data_change_what_a_profiler_sees_as_they_should(cases, found):
    time, compute, exposed = found.seconds[:, 0]
    i = column(cases, "straggler", 1.5)
    waits = (cases.size[i] - 1.0) * compute[0]
    assert compute[i] == compute[0] and exposed[i] == pytest.approx(exposed[0] + waits)
    assert time[i] == pytest.approx(time[0] + waits)
    i = column(cases, "data-loader", 1.5)
    assert (compute[i], exposed[i]) == (compute[0], exposed[0])
    assert time[i] == pytest.approx(cases.size[i] * time[0])


def test_densities_are_those_of_a_multivariate_student_t():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    scale, mean = root @ root.T + np.eye(3), rng.normal(size=3)
    full_mean, full, one = np.zeros(5), np.eye(5), np.ones(1)
    seen = [0, 1, 3]
    full_mean[seen], full[np.ix_(seen, seen)] = mean, scale
    one = Scaled(full_mean[None], full[None], one, one, one, np.zeros(1, int), np.ones((1, 1)))
    x = rng.normal(size=(5, 3))
    expected = stats.multivariate_t(mean, scale, df=uncertainty.FREEDOM).logpdf(x)
    assert log_density(x, one, seen)[:, 0] == pytest.approx(expected)


def test_posteriors_add_up_to_one_and_follow_bayes(of):
    logs = np.log(np.array([[15.0], [20.0], [40.0], [5.0]]))
    said = posterior(of, logs, [0])
    assert said.probability.sum(1) == pytest.approx(1.0)
    assert all(sizes.sum(1) == pytest.approx(1.0) for sizes in said.sizes)
    assert of.prior.sum() == pytest.approx(1.0)
    # by hand, of the first measurement
    joint = [
        p * (np.exp(log_density(logs[:1], one, [0]))[0] @ (one.weight * (logs[0, 0] >= one.least)))
        for p, one in zip(of.prior, of.scaled, strict=True)
    ]
    assert said.probability[0] == pytest.approx(np.array(joint) / sum(joint))
    assert said.evidence[0] == pytest.approx(log(sum(joint)))


def test_likelihoods_are_normalized_over_what_may_be_measured(of):
    """Each hypothesis is a probability density of ln t."""
    grid = np.linspace(-12.0, 16.0, 20001)[:, None]
    for one in of.scaled:
        density = np.exp(log_density(grid, one, [0])) @ one.weight
        assert np.trapezoid(density, grid[:, 0]) == pytest.approx(1.0, abs=2e-3)


def test_causes_that_cannot_show_are_named_and_not_weighed(of, found):
    assert "no-recomputation" in of.faint and "no-recomputation" not in of.names
    assert all(abs(change) < np.log1p(beliefs().effect.least) for change in of.faint.values())
    for one in of.scaled[1:-1]:
        change = np.abs(one.mean[:, 0] - of.scaled[0].mean[0, 0])
        assert (change[one.weight > 0.0] >= np.log1p(beliefs().effect.least)).all()


@pytest.mark.parametrize(
    ("name", "size", "family"),
    [
        ("slow-network-between", 0.1, "network"),
        ("full-recomputation", 1.0, "recomputation"),
        ("slow-host", 8.0, "host"),
        ("straggler", 1.5, "straggler"),
        ("unfused-attention", 1.0, "attention"),
        ("throttled", 0.6, "chip"),
        ("data-loader", 1.6, "loader"),
    ],
)
def test_a_planted_cause_is_among_the_first_three_kinds(run, cases, found, name, size, family):
    i = column(cases, name, size)
    time, compute, exposed = (float(x) for x in found.seconds[:, 0, i])
    told = Measured("time", time, compute, exposed, float(found.memory[i]))
    answer = diagnose(run, told)
    assert answer.verdict == "slower"
    kinds = {c.name: c.family for c in beliefs().causes}
    order = list(dict.fromkeys(kinds.get(e.name, e.name) for e in answer.causes))
    assert family in order[:3]
    own = next(e for e in answer.causes if e.name == name)
    assert own.seconds == pytest.approx(time - found.time[0], rel=0.35)
    if not cause_named(name).size.is_listed:
        assert abs(log(own.size / cases.size[i])) < 0.5


def test_a_run_as_predicted_is_ordinary(run, found):
    answer = diagnose(run, Measured("time", float(found.time[0])))
    assert answer.verdict == "inside" and answer.percentile == pytest.approx(0.5)
    assert answer.causes[0].name == "nothing" and answer.causes[0].probability > 0.7


def test_verdicts_stand_at_the_ends_of_the_interval(run, found):
    low, high = diagnose(run, Measured("time", float(found.time[0]))).interval
    beside = (0.99 * low, 1.01 * low, 0.99 * high, 1.01 * high)
    verdicts = [diagnose(run, Measured("time", x)).verdict for x in beside]
    assert verdicts == ["faster", "inside", "inside", "slower"]
    assert diagnose(run, Measured("time", high)).percentile == pytest.approx(1.0 - TAIL)


def test_rates_with_another_batch_say_less_than_times(run, found):
    """Twice the batch doubles the time of a step, and hardly changes the rate."""
    twice = 2.0 * float(found.time[0])
    by_time = diagnose(run, Measured("time", twice))
    by_rate = diagnose(run, Measured("tokens_per_s", 1024 * 8192 / twice))
    of_time, of_rate = (
        {e.name: e.probability for e in d.causes}.get("other-batch", 0.0)
        for d in (by_time, by_rate)
    )
    assert of_time > 0.05 and of_rate < 0.2 * of_time


def test_a_utilization_of_the_sparse_peak_is_a_cause_of_utilizations_alone(run):
    names = {
        kind: {e.name for e in diagnose(run, told).causes}
        for kind, told in (("mfu", Measured("mfu", 0.26)), ("time", Measured("time", 30.0)))
    }
    assert "other-peak" in names["mfu"] and "other-peak" not in names["time"]


def test_the_document_is_plain_and_whole(run):
    document = diagnose(run, measured(["20s", "exposed=6s"])).document
    json.dumps(document)
    assert {"causes", "verdict", "predicted", "interval", "percentile", "test"} <= document.keys()
    for cause in document["causes"]:
        assert {"name", "probability", "seconds", "test"} <= cause.keys()
    probabilities = [c["probability"] for c in document["causes"]]
    assert sum(probabilities) == pytest.approx(1.0)
    assert probabilities == sorted(probabilities, reverse=True)
    assert document["parts"]["exposed"]["percentile"] > 0.9


def test_tests_tell_what_the_model_computes_and_are_worth_what_they_tell(run, cases, found):
    document = diagnose(run, Measured("time", 20.0)).document
    tests = [c["test"] for c in document["causes"] if c["test"] and is_cause(c["name"])]
    assert len(tests) > 4
    for test in tests:
        assert 0.0 < test["bits"] <= 1.0 and test["minutes"] > 0.0
        assert abs(log((test["expected"] + 0.01) / (test["otherwise"]["expected"] + 0.01))) > 0.01
    loader = next(c for c in document["causes"] if c["name"] == "data-loader")
    assert loader["test"]["name"] == "synthetic-data"
    gone = 20.0 * exp(-log(loader["size"]))
    assert loader["test"]["expected"] == pytest.approx(gone, rel=0.05)
    assert document["test"]["bits"] > 0.5 and len(document["test"]["expected"]) == 4


def test_a_profile_is_not_asked_for_twice(run):
    whole = diagnose(run, measured(["20s", "compute=13s", "exposed=6s"])).document
    names = {c["test"]["name"] for c in whole["causes"] if c["test"]}
    assert "profile" not in names and whole["test"]["name"] != "profile"


MACHINE, SOFTWARE = ("straggler", "slow-network-between"), ("full-recomputation", "other-release")


def by_name(answer) -> dict[str, float]:
    return {e.name: e.probability for e in answer.causes}


def test_what_is_fast_elsewhere_is_slow_for_a_cause_of_the_machines(run, found):
    """The same run elsewhere shares plan, software and the doubt of the prediction."""
    stated = f"{float(found.time[0])}s"
    alone, beside = (diagnose(run, measured(x)) for x in (["24s"], ["24s", f"elsewhere={stated}"]))
    likely = by_name(beside)
    assert likely["nothing"] < 0.02 and likely["full-recomputation"] < 0.02
    assert all(likely[name] > by_name(alone)[name] for name in MACHINE)
    assert beside.parts["elsewhere"]["percentile"] == pytest.approx(0.5)
    both = by_name(diagnose(run, measured(["24s", "elsewhere=24s"])))
    assert all(both.get(name, 0.0) < 0.03 for name in MACHINE)
    assert both["full-recomputation"] > by_name(alone)["full-recomputation"]


def test_results_of_tests_count(run, found):
    rate = float(run.records.cluster.network.bytes_per_s[0])
    alone = diagnose(run, measured(["30s"]))
    slow = diagnose(run, measured(["30s", f"network-inside={0.3 * rate / 1e9}GB/s"]))
    assert slow.kinds["network"] > 0.7 > alone.kinds["network"]
    assert by_name(slow)["slow-network-between"] < 0.02
    assert "network-inside" not in {e.test["name"] for e in slow.causes if e.test}
    right = diagnose(run, measured(["30s", "network-inside=100%"]))
    inside = ("slow-network-inside", "pcie-inside", "pcie-server", "host-memory-inside")
    assert all(by_name(right)[name] < by_name(alone)[name] for name in inside)
    # a step that data made in memory shorten waited for data
    own = float(found.time[0])
    data = diagnose(run, measured([f"{1.7 * own}s", f"synthetic-data={own}s"]))
    assert data.kinds["loader"] > 0.9
    with pytest.raises(InputError, match="tells nothing of this plan"):
        diagnose(run, measured(["30s", "smaller-micro-batch=25s"]))


def test_kinds_are_sums_of_their_causes(run):
    answer = diagnose(run, Measured("time", 24.0))
    assert sum(answer.kinds.values()) == pytest.approx(1.0)
    assert list(answer.kinds.values()) == sorted(answer.kinds.values(), reverse=True)
    own = [e.probability for e in answer.causes if e.kind == "network"]
    assert len(own) > 3 and answer.kinds["network"] == pytest.approx(sum(own))


def test_other_chips_are_like_the_stated_one(run):
    assert {o.label for o in run.others["chips"]} <= {
        *("H100-PCIe", "H100-NVL", "H100-96GB", "H200-141GB", "H200-NVL", "GH200-96GB"),
    }


def test_other_chips_and_releases_are_readings_of_the_question(run):
    assert {o.label for o in run.others["chips"]} and run.others["releases"] == ()
    words = question(
        dmodel.Job("llama-3-8b", 8192, 128),
        dmodel.cluster("H100-DGX", 8),
        overrides={"precision": "fp8"},
        stack="megatron-bridge/26.02",
    )
    job = ask(words, None)
    other = subject(stated(job, laid(job, {})))
    assert all("megatron-bridge/" in o.label for o in other.others["releases"])


def test_what_a_figure_reads_is_explained_in_seconds_that_it_would_seem_to_take(run, found):
    told = Measured("mfu", 0.26)
    each = {e.name: e for e in diagnose(run, told).causes}
    peak = each["other-peak"]
    assert peak.seconds == pytest.approx(found.time[0] * (peak.size - 1.0), rel=1e-3)


def test_the_documents_have_the_table_of_causes():
    path = Path(__file__).parents[1] / "docs" / "diagnosing.md"
    assert markdown() in path.read_text(encoding="utf-8")


def test_a_profile_without_a_covariance_is_refused(run):
    with pytest.raises(InputError, match="does not say how sure"):
        of_profile(Records(*run.records), default_profile(), "H100-80GB", "")


def test_the_api_answers_as_the_parts_do(run):
    site = dmodel.cluster("H100-DGX", 512)
    one = dmodel.diagnose(JOB, site, LAYOUT, measured="20s", stack="nemo/25.02")
    assert one.document == diagnose(run, measured(["20s"])).document
    assert "slower" in str(one)
    with pytest.raises(InputError, match="measured 'quick'"):
        dmodel.diagnose(JOB, site, LAYOUT, measured="quick")


def test_variants_have_numbers_only(cases):
    assert all(np.shape(x)[-1] == cases.count for x in jax.tree.leaves(cases.records))
    with pytest.raises(InputError, match="no number of a case"):
        cases.number("nothing at all")
