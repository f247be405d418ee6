"""Beyond elasticities: the plan that follows, interactions, global indices, regimes, flips; each
against what it must equal."""

import json
from functools import cache

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from dmodel import catalog
from dmodel.cli import app
from dmodel.coefficients import default
from dmodel.design import design, evaluate
from dmodel.design import problem as state
from dmodel.errors import InputError
from dmodel.records import Plan
from dmodel.report.words import input_words, summary
from dmodel.sensitivity import (
    elasticities,
    gradient,
    interactions,
    landscape,
    make_case,
    of_case,
    regime_map,
    reoptimized,
    resolved,
    searched,
    sobol,
)
from dmodel.sensitivity.case import inputs, rebuild
from dmodel.sensitivity.gradient import elasticities_of
from dmodel.sensitivity.regimes import REGIMES, axis, shares_of
from dmodel.sensitivity.relaxed import program
from dmodel.sensitivity.searched import best_with, least
from dmodel.sensitivity.sobol import Range, default_range, stated_range
from dmodel.sensitivity.spread import deviations

SYSTEM = catalog.system("H100-DGX")
MODEL = catalog.transformer("llama-3-70b", 8192.0)
# the schedule of plans that are searched, so that all questions share one program
PLAN = Plan.of(
    dp=16.0,
    tp=8.0,
    sp=1.0,
    pp=4.0,
    zero=1.0,
    shard=16.0,
    global_batch=1024.0,
    schedule="interleaved",
)
CASE = make_case(SYSTEM, MODEL, PLAN, default())


def test_a_case_is_taken_apart_and_put_together():
    known = inputs(CASE)
    again = rebuild(known.values, known.tree, known.levels)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), again, CASE))
    with pytest.raises(InputError, match="did you mean chip.flops_per_s"):
        known.index("chip.flops_per_second")


def test_second_order_is_symmetric_and_keeps_the_units():
    """Rates less times make −1 whatever the inputs are, so that their changes cancel."""
    entries = of_case(CASE).entries
    seconds = [e for e in entries if e.kind != "other"]
    found = interactions(
        CASE, names=[e.name for e in seconds] + ["model.d_ff", "coefficients.overlap_tp"]
    )
    assert found.kinks == () and found.asymmetry < 1e-8
    sign = np.array([1.0 if e.kind == "rate" else -1.0 for e in seconds])
    assert np.abs(sign @ found.hessian[: len(seconds)]).max() < 1e-7


@pytest.mark.slow
def test_second_order_of_the_memory_is_that_of_forward_over_reverse(monkeypatch):
    """As for the step below."""
    monkeypatch.setattr(gradient, "STEP", ("memory",))
    names = [
        "model.d_model",
        "model.seq_len",
        "model.vocab",
        "plan.micro_batch",
        "plan.tp",
        "plan.pp",
    ]
    differences, exact = (
        interactions(CASE, "memory", names, exact=exact) for exact in (False, True)
    )
    assert np.abs(exact.hessian).min() > 1e-4
    assert differences.hessian == pytest.approx(exact.hessian, abs=1e-6)


@pytest.mark.slow
def test_second_order_is_that_of_forward_over_reverse():
    names = [
        "chip.flops_per_s",
        "network.bytes_per_s[0]",
        "model.seq_len",
        "plan.micro_batch",
        "plan.tp",
        "coefficients.overlap_tp",
    ]
    differences, exact = (interactions(CASE, names=names, exact=exact) for exact in (False, True))
    assert differences.hessian == pytest.approx(exact.hessian, abs=1e-6)


def test_experts_may_lie_across_tensor_ranks():
    """A valid plan with more expert than data-parallel ranks keeps all limits of the program that
    starts there."""
    plan = Plan.of(
        dp=4.0,
        tp=8.0,
        sp=1.0,
        pp=2.0,
        ep=8.0,
        zero=1.0,
        shard=4.0,
        global_batch=64.0,
        schedule="interleaved",
    )
    case = make_case(SYSTEM, catalog.transformer("mixtral-8x7b", 4096.0), plan, default())
    p = program(case)
    logs = p.logs(p.known.values, 64.0)
    assert max(form.at(p.start(), logs) for form in p.limits) <= 1e-12
    (experts,) = (form for form in p.limits if "ep" in form.name)
    assert experts.at(p.start(), logs) == pytest.approx(np.log(8.0 / 32.0))
    assert axis(p.known, "devices").values[0] == pytest.approx(1.0)


@cache
def followed():
    return reoptimized(CASE, ("step_time", "memory", "mfu"))


def test_elasticities_of_the_best_plan_are_those_of_solving_again():
    inner, model = ["chip.flops_per_s", "network.bytes_per_s[0]", "devices"], ["model.d_ff"]
    both = ["chip.hbm_bytes", "plan.global_batch", *model]
    found = followed()
    assert found["step_time"].residual < 1e-6 and found["step_time"].unique
    for output, names in (("step_time", [*inner, *both]), ("memory", both)):
        again = resolved(CASE, names, output)
        assert {n: found[output].elasticities[n] for n in names} == pytest.approx(again, abs=1e-4)


def test_the_best_plan_is_no_slower_and_lies_within_its_limits():
    best = followed()["step_time"]
    assert best.step_time_s <= elasticities(SYSTEM, MODEL, PLAN, default()).at
    plan = best.plan
    assert float(
        plan.layout.dp * plan.layout.tp * plan.layout.cp * plan.layout.pp
    ) == pytest.approx(512.0)
    assert followed()["memory"].value <= float(SYSTEM.chip.hbm_bytes) * (1.0 + 1e-6)
    assert all(a.price >= 0.0 for a in best.active if a.name != "devices")
    # memory that binds is worth something; MFU mirrors the step except for what it counts itself
    assert best.elasticities["chip.hbm_bytes"] < 0.0
    mfu, time = followed()["mfu"].elasticities, best.elasticities
    assert mfu["network.bytes_per_s[0]"] == pytest.approx(-time["network.bytes_per_s[0]"], abs=1e-6)


def test_shares_add_up_and_boundaries_lie_where_two_are_equal():
    found = regime_map(CASE, "devices", "bandwidth", points=5, factor=20.0)
    assert found.shares.sum(0) == pytest.approx(1.0, abs=1e-9)
    assert REGIMES[found.regime[0, 2]] == "bandwidth" and REGIMES[found.regime[-1, 0]] == "compute"
    points = found.boundaries["compute", "bandwidth"]
    known = inputs(CASE)
    x = np.repeat(known.values[:, None], points.shape[1], 1)
    for one, at in ((found.x, points[0]), (found.y, points[1])):
        x[list(one.places)] *= at / known.values[one.places[0]]
    shares = shares_of(known, elasticities_of(known, x, "step_time")[1])
    assert shares[REGIMES.index("compute")] == pytest.approx(
        shares[REGIMES.index("bandwidth")], abs=5e-3
    )
    ranks = axis(known, "devices").values
    assert ranks[0] == 1.6 and ranks[-1] == pytest.approx(160.0)
    assert axis(known, "devices", factor=1e3).values[[0, -1]] == pytest.approx([1.0, 1024.0])
    assert axis(known, "batch", factor=1e3).values[0] == pytest.approx(16.0)
    with pytest.raises(InputError, match="two different"):
        regime_map(CASE, "devices", "devices")


def test_global_indices_of_a_product_are_shares_of_its_variance():
    """Cost is price times time: logarithms add up, so that alone and in all are the same."""
    known = inputs(CASE)
    ranges = [
        stated_range(known, "chip.price_per_s", 1e-4, 2e-3),
        default_range(known, "chip.flops_per_s"),
    ]
    found = sobol(CASE, "cost", ranges, base=256, resamples=10)
    assert found.evaluations == 256 * 4 and found.low < found.median < found.high
    price, rate = np.log(20.0) ** 2 / 12.0, found.deviation**2
    assert found.total[0] == pytest.approx(price / rate, abs=0.02)
    assert found.first == pytest.approx(
        found.total, abs=0.05
    ) and found.total.sum() == pytest.approx(1.0, abs=0.02)
    with pytest.raises(InputError, match="power of two"):
        sobol(CASE, base=100)
    with pytest.raises(InputError, match="more than once"):
        sobol(CASE, "cost", [ranges[0], ranges[0]], base=2)
    with pytest.raises(InputError, match="stays the same"):
        sobol(
            CASE,
            "cost",
            [Range("chip.price_per_s", 1.0, 1.0 + 1e-15), Range("chip.flops_per_s", 1e15, 1e15)],
            base=256,
            resamples=10,
        )
    with pytest.raises(InputError, match="< 1"):
        stated_range(known, "coefficients.overlap_tp", 0.1, 1.5)


def test_a_loss_out_of_reach_is_said():
    longer, shorter = (
        of_case(CASE.replace(goal=CASE.goal.replace(loss=np.float64(x))), "time_to_loss").at
        for x in (1.95, 2.2)
    )
    assert longer > shorter
    with pytest.raises(InputError, match="any amount of data"):
        of_case(CASE.replace(goal=CASE.goal.replace(loss=np.float64(1.8))), "time_to_loss")


def test_spread_of_an_elasticity_is_its_slope_times_that_of_the_coefficient():
    """One coefficient a little uncertain: the deviation is the mixed second derivative times the
    deviation of its logarithm."""
    from dmodel.coefficients import NAMES, to_unconstrained

    mean, i, sd = np.asarray(to_unconstrained(default())), NAMES.index("launch"), 0.01
    step = np.zeros_like(mean)
    step[i] = np.sqrt(3.0) * sd
    found = deviations(CASE, np.stack([mean, mean + step, mean - step], 1))
    mixed = interactions(CASE, names=["chip.flops_per_s", "coefficients.launch"]).hessian[0, 1]
    assert found["chip.flops_per_s"] == pytest.approx(abs(mixed) * sd, rel=1e-3)


SMALL = catalog.transformer("llama-3-8b", 8192.0)


def test_a_flip_is_where_the_exact_search_changes_its_mind():
    case = make_case(
        SYSTEM,
        SMALL,
        Plan.of(dp=8.0, zero=1.0, shard=8.0, global_batch=32.0, schedule="interleaved"),
        default(),
    )
    found = landscape(case, ["chip.hbm_bytes"])
    flips = [f for f in (found.effects[0].up, found.effects[0].down) if f is not None]
    assert flips
    for flip in flips:
        away = 1e-4 if flip.factor > 1.0 else -1e-4
        best = []
        for factor in (flip.factor * (1.0 - away), flip.factor * (1.0 + away)):
            system = SYSTEM.replace(
                chip=SYSTEM.chip.replace(hbm_bytes=SYSTEM.chip.hbm_bytes * factor)
            )
            best.append(design(system, SMALL, 8, 32, default(), method="exact", top=1).exact[0])
        assert float(best[0].step_time_s) == pytest.approx(found.step_time_s, rel=1e-9)
        assert float(best[1].step_time_s) != pytest.approx(found.step_time_s, rel=1e-9)
    with pytest.raises(InputError, match="decides which plans are valid"):
        landscape(case, ["model.n_layers"])


FEW = [
    ("chip.flops_per_s", 0.5),
    ("network.bytes_per_s[0]", 2.0),
    ("network.latency_s[0]", 2.0),
    ("chip.hbm_bytes", 0.7),
    ("coefficients.matmul_efficiency", 0.5),
    ("coefficients.launch", 2.0),
]


def test_a_look_at_few_plans_finds_what_a_search_of_all_finds():
    case = make_case(
        SYSTEM,
        SMALL,
        Plan.of(dp=8.0, zero=1.0, shard=8.0, global_batch=32.0, schedule="interleaved"),
        default(),
    )
    known = searched(case)
    assert known.near is not None and len(known.best.plans) > 1
    for name, factor in FEW:
        place = known.known.index(name)
        whole = best_with(known._replace(near=None), place, factor, np.inf)
        few = best_with(known, place, factor, float(whole.seconds[0]) * 1.001)
        assert (
            few.seconds[0] == pytest.approx(whole.seconds[0], rel=1e-9)
            and few.plans[0] == whole.plans[0]
        )
        x = known.known.values.copy()
        x[place] *= factor
        moved = rebuild(x, known.known.tree, known.known.levels)
        stated = state(moved.system, SMALL, 8, 32, moved.coefficients, footprint=moved.footprint)
        seconds = np.asarray(evaluate(stated, known.near.rows, quick=True).step_time_s)
        assert (seconds >= (least(name, factor) or 0.0) * known.near.seconds).all()


@pytest.mark.slow
def test_the_whole_report_of_a_design(tmp_path):
    job = (
        "--system H100-DGX --devices 8 --model llama-3-8b --seq-len 8192 --global-batch 32 "
        "--profile prior"
    )
    words = (
        f"sensitivity {job} --reoptimize --follow chip.hbm_bytes --check --json --report {tmp_path}"
    ).split()
    done = CliRunner().invoke(app, words)
    d = json.loads(done.stdout)
    assert done.exit_code == 0, d["check"]
    assert (
        d["check"]["fixed"]["difference"] <= 1e-6
        and d["check"]["reoptimized"]["difference"] <= 1e-2
    )
    assert sum(d["shares"].values()) == pytest.approx(1.0)
    assert {p.name for p in tmp_path.iterdir()} == {
        "tornado.png", "interactions.png", "regimes.png", "summary.txt", "sensitivity.json",
    }  # fmt: skip
    assert summary(d) == d["summary"] and d["summary"][0].startswith(
        "Of the hardware, peak arithmetic rate: +10 % gives −"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--map devices", "two axes"),
        ("--map devices,speed", "unknown input 'speed'"),
        ("--range chip.flops_per_s=1", "INPUT=LOW:HIGH"),
        ("--global 100", "power of two"),
        ("--loss -1 --output time_to_loss", "positive number"),
        ("--range chip.speed=1:2", "unknown input 'chip.speed'"),
        ("--map flops,chip.flops_per_s", "both move chip.flops_per_s"),
        ("--follow chip.hbm_bytes", "--reoptimize"),
        ("--reoptimize", "--tp, --pp, --schedule"),
        ("--report /dev/null/folder", "cannot be used as a folder"),
    ],
)
def test_wrong_options_say_what_is_wrong(options, says):
    job = (
        "--system H100-DGX --devices 512 --model llama-3-70b --seq-len 8192 --global-batch 1024 "
        "--profile prior"
    )
    job += " --tp 8 --pp 4 --schedule interleaved"
    done = CliRunner().invoke(app, f"sensitivity {job} {options}".split())
    assert done.exit_code == 2 and says in done.stderr


def test_inputs_have_names_that_people_use():
    assert input_words("network.bytes_per_s[NDR InfiniBand]") == "bandwidth of NDR InfiniBand"
    assert input_words("chip.hbm_bytes") == "memory of a device"
    assert input_words("coefficients.overlap_pp").startswith("overlap pp (share of the window")


def test_the_plan_that_follows_is_the_one_that_design_recommends():
    """Both keep the same risk on memory, and both fill the device where it is allowed."""
    job = "--system H100-DGX --devices 64 --model llama-3-8b --seq-len 8192 --global-batch 128"
    labels = []
    for more in ([], ["--max-risk", "50%"]):
        words = [*job.split(), *more, "--json"]
        design = CliRunner().invoke(app, ["design", *words, "--brief", "--top", "1"])
        found = CliRunner().invoke(
            app, ["sensitivity", *words, "--reoptimize", "--follow", "chip.hbm_bytes"]
        )
        told, best = json.loads(found.stdout), json.loads(design.stdout)["exact"][0]
        assert told["value"] == pytest.approx(best["step_time_s"], rel=1e-9)
        assert told["design"]["best"] == best["label"]
        labels.append(best["label"])
    assert labels[0] != labels[1]
    beside = CliRunner().invoke(app, ["sensitivity", *job.split(), "--max-risk", "5%"])
    assert beside.exit_code == 2 and "expected --reoptimize" in beside.stderr
