"""Elasticities: against finite differences, at kinks and edges, and the identity that units
impose."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel import catalog
from dmodel.coefficients import NAMES, default
from dmodel.errors import InputError
from dmodel.footprint import LEAST
from dmodel.records import Plan, leaf, sized, value
from dmodel.sensitivity import OUTPUTS, elasticities, make_case
from dmodel.step import step_time
from tests.points import batch, quick

SYSTEM = catalog.system("H100-DGX")
ONE_LEVEL = SYSTEM.replace(network=jax.tree.map(lambda x: x[1:], SYSTEM.network))
MODEL = catalog.transformer("llama-3-70b", 8192.0)
COEFFICIENTS = default()

PLANS = {
    "one device": Plan.of(dp=1.0, global_batch=4.0),
    "node just full": Plan.of(dp=64.0, tp=8.0, sp=1.0, zero=3.0, shard=64.0, global_batch=1024.0),
    "3d, interleaved": Plan.of(
        dp=16.0, tp=4.0, pp=8.0, sp=1.0, zero=1.0, shard=16.0, interleave=2.0, global_batch=1024.0
    ),
    "context and recompute": Plan.of(
        dp=16.0,
        tp=3.0,
        cp=2.0,
        pp=5.0,
        zero=3.0,
        shard=4.0,
        recompute_layers=0.5,
        global_batch=640.0,
    ),
    "unfused": Plan.of(
        dp=32.0,
        tp=2.0,
        zero=2.0,
        shard=32.0,
        flash=0.0,
        recompute_attention=0.5,
        micro_batch=2.0,
        global_batch=256.0,
    ),
}
CASES = [(SYSTEM, plan) for plan in PLANS.values()] + [
    (ONE_LEVEL, PLANS["one device"]),
    (ONE_LEVEL, PLANS["3d, interleaved"]),
]
IDS = [*PLANS, "one level, one device", "one level, 3d"]


@cache
def found(case: int, output: str = "step_time"):
    system, plan = CASES[case]
    return elasticities(system, MODEL, plan, COEFFICIENTS, output)


GOAL = make_case(SYSTEM, MODEL, PLANS["one device"], COEFFICIENTS).goal


@quick
def values(case):
    time = step_time(case.system, case.model, case.plan, case.coefficients)
    return jnp.stack([jnp.log(output(case, time)) for output in OUTPUTS.values()])


def bumped(system, plan, name: str, factor: float):
    """The case with one input, known by its name, times a factor."""
    path, _, level = name.rstrip("]").partition("[")
    record, field = path.split(".")
    records = {
        "chip": system.chip,
        "network": system.network,
        "model": MODEL,
        "plan": plan,
        "coefficients": COEFFICIENTS,
    }
    records |= {"footprint": LEAST, "run": GOAL}
    read, changed = {
        "plan": (leaf, Plan.having),
        "model": (value, sized),
    }.get(record, (getattr, lambda of, **one: of.replace(**one)))
    size = np.array(read(records[record], field), dtype=float)
    if level:
        size[int(level)] *= factor
    else:
        size = size * factor
    records[record] = changed(records[record], **{field: size})
    system = system.replace(chip=records["chip"], network=records["network"])
    return make_case(
        system, *(records[name] for name in ("model", "plan", "coefficients", "footprint", "run"))
    )


STEPS = np.array([-1e-5, -0.5e-5, 0.5e-5, 1e-5])
ROWS = 512
"""Cases of one call, the last one repeated, so that all questions on systems of as many levels
share a program."""


@cache
def differences(case: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Slope of ln of every output by each input: the mean of both one-sided slopes, extrapolated
    from two steps, as at a kink the error of a central difference falls only linearly."""
    system, plan = CASES[case]
    asked = [bumped(system, plan, name, np.exp(h)) for name in names for h in STEPS]
    assert len(asked) <= ROWS
    logs = np.asarray(values(batch(asked + asked[-1:] * (ROWS - len(asked)))))[:, : len(asked)]
    far_below, below, above, far_above = logs.reshape(len(logs), len(names), len(STEPS)).transpose(
        2, 1, 0
    )
    slopes = 2.0 * (above - below) / 1e-5 - (far_above - far_below) / 2e-5
    return dict(zip(names, slopes, strict=True))


def missed(case: int, output: str = "step_time") -> dict[str, tuple[float, float]]:
    """Elasticities that are not the finite difference, beside it."""
    entries, row = found(case, output).entries, list(OUTPUTS).index(output)
    expected = differences(case, tuple(e.name for e in entries))
    return {
        e.name: (e.value, expected[e.name][row])
        for e in entries
        if abs(e.value - expected[e.name][row]) > 1e-6
    }


EACH = [pytest.param(i, id=name) for i, name in enumerate(IDS)]


@pytest.mark.parametrize("case", EACH)
def test_elasticities_are_finite_differences(case):
    assert len(found(case).entries) > 50
    assert not missed(case)


@pytest.mark.parametrize("output", [o for o in OUTPUTS if o != "step_time"])
def test_elasticities_of_other_outputs_are_finite_differences(output):
    assert not missed(IDS.index("3d, interleaved"), output)


@pytest.mark.parametrize("case", EACH)
def test_rates_less_times_make_minus_one(case):
    """Seconds appear in the rates as 1/s and in the times as s; a function of degree 1 in seconds
    has to obey (without smoothing too, `test_step`)."""
    e = found(case)
    assert e.total("rate") - e.total("time") == pytest.approx(-1.0, abs=1e-9)
    kinds = (
        {x.name for x in e.entries if x.kind == "rate"},
        {x.name for x in e.entries if x.kind == "time"},
    )
    levels = range(len(CASES[case][0].network.size))
    rates = {
        f"chip.{name}"
        for name in (
            "flops_per_s",
            "attention_flops_per_s",
            "exponentials_per_s",
            "hbm_bytes_per_s",
            "host_bytes_per_s",
            "host_memory_bytes_per_s",
        )
    }
    assert kinds[0] == rates | {f"network.bytes_per_s[{k}]" for k in levels}
    times = {
        "chip.kernel_latency_s",
        *(f"coefficients.{name}" for name in ("collective_start", "collective_skew", "overhead")),
    }
    assert kinds[1] == times | {f"network.latency_s[{k}]" for k in levels}


def test_a_kink_has_two_sides_and_their_mean():
    """A tensor-parallel group that just fills a node: one more member would cross to the slow
    network."""
    tp = next(e for e in found(IDS.index("node just full")).entries if e.name == "plan.tp")
    assert tp.below != pytest.approx(tp.above, abs=0.1)
    assert tp.value == pytest.approx(0.5 * (tp.below + tp.above))


def test_sharing_a_product_means_sharing_the_elasticity():
    """Only `latency · coefficient` and `rate · coefficient` enter, so both factors weigh the
    same."""
    e = found(IDS.index("3d, interleaved"))
    assert e["network.bytes_per_s[0]"] == pytest.approx(
        e["coefficients.net_efficiency_inner"], rel=1e-9
    )
    of_the_latency = sum(
        e[f"coefficients.{name}"] for name in ("launch", "kernel_fill", "rendezvous")
    )
    assert e["chip.kernel_latency_s"] == pytest.approx(of_the_latency, rel=1e-9)


def test_throughput_mirrors_the_step():
    case = IDS.index("3d, interleaved")
    time, rate = found(case), found(case, "tokens_per_s")
    assert rate["coefficients.overhead"] == pytest.approx(-time["coefficients.overhead"], rel=1e-9)
    assert rate["plan.global_batch"] == pytest.approx(1.0 - time["plan.global_batch"], rel=1e-9)


def test_every_number_is_named_once():
    """What has an elasticity and what is left out is all there is, with reasons."""
    e = found(IDS.index("node just full"))
    names = [x.name for x in e.entries] + [x.name for x in e.left_out]
    # of the model its own, a kind of layer, attention and an MLP
    model = 15 + 2 + 10 + 3
    assert len(names) == len(set(names)) == 13 + 5 * 2 + model + 75 + len(NAMES)
    reasons = {x.name: x.reason for x in e.left_out}
    assert reasons["network.size[1]"] == "infinite"
    choices = (
        "zero",
        "attention_bytes",
        "attention_rate",
        "attention_backward_rate",
        "route_bytes",
        "narrow_gathers",
        "narrow_sums",
    )
    assert all(reasons[f"plan.{name}"].startswith("a choice") for name in choices)
    assert reasons["plan.recompute_layers"].startswith("zero")
    assert "model.top_k" not in {*reasons, *(x.name for x in e.entries)}, "of a dense model"
    assert {x.group for x in e.entries} == {"hardware", "workload", "plan", "coefficient"}


def test_sorting_and_level_names():
    system, plan = CASES[0]
    e = elasticities(
        system, MODEL, plan, COEFFICIENTS, sort=True, level_names=["NVLink", "InfiniBand"]
    )
    sizes = [abs(x.value) for x in e.entries]
    assert sizes == sorted(sizes, reverse=True)
    assert e["network.bytes_per_s[NVLink]"] == found(0)["network.bytes_per_s[0]"]
    assert {x.name for x in e.entries}.isdisjoint({"network.bytes_per_s[0]"})


def test_wrong_questions_say_what_is_wrong():
    plan = PLANS["one device"]
    with pytest.raises(InputError, match="step_time"):
        elasticities(SYSTEM, MODEL, plan, COEFFICIENTS, "speed")
    with pytest.raises(InputError, match="expected one per network level, 2; got 1"):
        elasticities(SYSTEM, MODEL, plan, COEFFICIENTS, level_names=["NVLink"])
    free = SYSTEM.replace(chip=SYSTEM.chip.replace(price_per_s=0.0))
    with pytest.raises(InputError, match="dollars_per_token is 0 here"):
        elasticities(free, MODEL, plan, COEFFICIENTS, "dollars_per_token")
    with pytest.raises(InputError, match="batch"):
        elasticities(SYSTEM, MODEL, plan.having(dp=np.ones(3)), COEFFICIENTS)
