"""Co-design: laws and bill, sizes between rungs and on them, search against the grid, prices
against re-solving, doubt, and no design."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel import catalog
from dmodel.codesign import (
    BILL,
    KINDS,
    Limits,
    check_marginal_values,
    draw,
    influence,
    laws,
    marginal_values,
    nearest_change,
    proven_bound,
    question,
    robust,
    solve_question,
)
from dmodel.codesign.bill import scaled
from dmodel.codesign.lattice import neighbours, rungs
from dmodel.codesign.laws import effective_parameters, loss, quality
from dmodel.codesign.local import _Problem, least_squares
from dmodel.codesign.outcome import NAMES
from dmodel.codesign.unknowns import CHIP, SIZES, catalog_values, equipped, fixed, freed, shaped
from dmodel.coefficients import default, to_unconstrained
from dmodel.design import Choices
from dmodel.errors import InputError
from tests.codesign_grid import exhaustive

SYSTEM = catalog.system("H100-DGX")
MODEL = catalog.transformer("llama-3-8b", 4096.0)
FEW = Choices(zero=(1,), sp=(1,), shards="whole", recompute=(0.0, 1.0), schedules=("1f1b",))
QUICK = {"n_starts": 8, "anneal": (8.0,)}
BOUNDS = {"n_layers": (8.0, 48.0), "d_model": (1024.0, 8192.0), "global_batch": (64.0, 1024.0)}
BUDGET = Limits(dollars=3e4, seconds=20 * 86400.0)

NAMED = (*SIZES, *CHIP, *(f"{kind}[{k}]" for kind in ("bytes_per_s", "latency_s") for k in (0, 1)))
"""All that can be freed on a network of two levels."""


def ask(objective="loss", limits=BUDGET, free=("shape", "batch", "tokens"), **more):
    more = {"devices": 64, "global_batch": 256, "bounds": BOUNDS, "choices": FEW} | more
    more["bounds"] = {n: b for n, b in more["bounds"].items() if n in freed(free, NAMED)}
    return question(SYSTEM, MODEL, default(), objective=objective, limits=limits, free=free, **more)


@pytest.fixture(scope="module")
def stated():
    return ask()


@pytest.fixture(scope="module")
def answer(stated):
    return solve_question(stated, **QUICK)


# ---- laws and bill


def test_published_values_of_the_loss_laws():
    """Chinchilla, 70e9 parameters on 1.4e12 tokens: 1.69 + 0.083 + 0.163 (Hoffmann et al. 2022);
    GPT-3 without a limit of data: 1.73."""
    assert loss(70e9, 1.4e12, KINDS["loss"]["hoffmann"].law) == pytest.approx(1.937, abs=2e-3)
    assert loss(175e9, 1e30, KINDS["loss"]["kaplan"].law) == pytest.approx(
        (8.8e13 / 175e9) ** 0.076, rel=1e-6
    )
    assert loss(1e30, 300e9, KINDS["loss"]["kaplan"].law) == pytest.approx(
        (5.4e13 / 300e9) ** 0.095, rel=1e-6
    )


def test_a_batch_at_the_critical_one_wastes_half_of_the_tokens():
    law = laws(batch="constant")
    seen = quality(1e9, 1e12, 2.0**22, 6e21, law)
    assert float(seen.waste) == pytest.approx(2.0)
    assert float(seen.loss) == pytest.approx(float(loss(1e9, 5e11, law.loss)))


def test_kaplans_shapes_differ_by_three_percent_of_their_loss():
    """6 layers of 4288 are within 3 % of 48 of 1600 (Kaplan et al. 2020, section 3.1), at the
    exponent 0.076 of parameters."""
    shape = laws().shape
    odd, usual = (
        float(effective_parameters(1.5e9, n, h, 4.0, 128.0, shape))
        for n, h in ((6.0, 4288.0), (48.0, 1600.0))
    )
    assert (usual / odd) ** 0.076 == pytest.approx(1.03, abs=3e-3)


def test_the_catalogs_device_costs_what_the_catalog_says():
    at = fixed(SYSTEM, MODEL, BILL)
    values = {
        n: jnp.asarray(v) for n, v in catalog_values(SYSTEM, MODEL, 256.0, 1e12, 64.0).items()
    }
    same, model = equipped(values, at), shaped(values, at)
    for a, b in zip(
        jax.tree.leaves((same.system, model)), jax.tree.leaves((SYSTEM, MODEL)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    double = equipped(values | {"hbm_bytes": 2.0 * values["hbm_bytes"]}, at)
    assert double.system.chip.price_per_s == pytest.approx(
        float(SYSTEM.chip.price_per_s * (1.0 + BILL.price.hbm_bytes))
    )
    one = {n: 1.0 for n in ("flops_per_s", "hbm_bytes", "hbm_bytes_per_s", "inner", "outer")}
    assert scaled(BILL.price, one | {"latency": 0.5}) == pytest.approx(1.0 + BILL.price.latency)


def test_what_makes_no_sense_is_said():
    with pytest.raises(InputError, match="free: expected some of"):
        ask(free=("colour",), bounds={})
    with pytest.raises(InputError, match="objective"):
        ask(objective="speed")
    with pytest.raises(InputError, match="without end"):
        ask(limits=Limits())
    with pytest.raises(InputError, match="limit of dollars"):
        ask(limits=Limits(dollars=-1.0))
    with pytest.raises(InputError, match="positive bounds"):
        question(
            SYSTEM,
            MODEL,
            default(),
            objective="loss",
            limits=BUDGET,
            free=("batch",),
            devices=8,
            global_batch=8,
            tokens=1e9,
            bounds={"global_batch": (9.0, 2.0)},
        )


# ---- between rungs


def test_least_squares_agrees_with_trying_all_active_sets():
    random = np.random.default_rng(0)
    for _ in range(20):
        a = random.normal(size=(5, 5))
        q, r = a @ a.T + 0.1 * np.eye(5), random.normal(size=5)
        found = least_squares(q, r)
        slope = q @ found - r
        assert (found >= 0.0).all() and (slope >= -1e-9).all() and abs(found @ slope) < 1e-9


def test_slopes_agree_with_finite_differences(stated, answer):
    start = np.log([answer.found.sizes[n] for n in stated.unknowns.names])
    everything = stated.unknowns.replace(low=start - 1.0, high=start + 1.0)
    problem = _Problem(start, answer.found.plan, everything, stated.world, stated.at, 8.0)
    # off the rungs, where step time has kinks
    x = start + 0.01 * np.linspace(1.0, 2.0, len(start))
    here = problem(x)
    for j in range(len(x)):
        step = 1e-6 * np.eye(len(x))[j]
        up, down = problem(x + step), problem(x - step)
        np.testing.assert_allclose(here.df[j], (up.f - down.f) / 2e-6, rtol=1e-5, atol=1e-7)
        # limits that there are not are 1e300, whose logarithm takes digits from the difference
        np.testing.assert_allclose(
            here.slopes[1:, j], (up.over - down.over) / 2e-6, rtol=1e-5, atol=1e-5
        )


def test_prices_agree_with_solving_again(stated, answer):
    prices = marginal_values(stated, answer.found)
    named = {p.name: p for p in prices.prices}
    assert named["dollars"].dollars == pytest.approx(1.0)
    assert prices.local.residual < 1e-6
    for seen in check_marginal_values(stated, answer.found, prices):
        assert seen.error < 0.01 or abs(seen.elasticity) < 1e-4, seen


def test_another_loss_law_moves_the_answer(stated, answer):
    found = influence(stated, answer.found)
    assert {e.law for e in found.entries if e.kind == "loss"} == set(KINDS["loss"]) - {"besiroglu"}
    assert found.decides in ("loss", "batch", "shape") and found.decides in found.statement
    assert max(e.moved for e in found.entries) > 1.05


def test_no_law_decides_where_nothing_is_free(stated, answer):
    at = np.log([answer.found.sizes[name] for name in stated.unknowns.names])
    given = stated._replace(unknowns=stated.unknowns.replace(low=at, high=at, value=np.exp(at)))
    found = influence(given, answer.found)
    assert found.statement == "no law matters" and not found.decides


# ---- on rungs


def test_the_budget_is_spent_and_the_sizes_are_valid(stated, answer):
    assert answer.found is not None, answer.statement
    assert answer.quantities["dollars"] == pytest.approx(3e4, rel=1e-9) or answer.quantities[
        "seconds"
    ] == pytest.approx(20 * 86400.0)
    assert all(m.slack >= -1e-6 * m.limit for m in answer.margins)
    sizes, plan = answer.found.sizes, answer.found.plan
    assert (
        sizes["n_layers"] % plan.layout.pp == 0
        and sizes["global_batch"] % (plan.layout.dp * plan.layout.micro_batch) == 0
    )
    assert float(plan.layout.dp * plan.layout.tp * plan.layout.cp * plan.layout.pp) == 64.0


def test_no_neighbour_is_better(stated, answer):
    planner = stated.planner()
    around = neighbours(answer.found.sizes, stated.unknowns, stated.world.fixed)
    assert len(around) == answer.neighbours > 0
    assert min(planner(s).merit for s in around) >= answer.found.merit - 1e-9


def test_as_good_as_the_grid(stated, answer):
    """Every third rung of the sizes, with all plans: the search finds as good a design."""
    sizes = stated.unknowns.values(np.log(stated.unknowns.value))
    at, u = stated.world.fixed, stated.unknowns
    values = {n: rungs(n, sizes, u, at)[::3] for n in ("n_layers", "d_model", "global_batch")}
    grid = exhaustive(stated, values)
    assert grid.combinations == np.prod([len(v) for v in values.values()])
    assert answer.value <= grid.value * (1.0 + 2e-4)


def test_no_design_beats_the_proven_bound(stated, answer):
    """Of the search, and of random sizes with all their plans; and the bound is not far."""
    bound = proven_bound(stated)
    assert bound <= answer.value <= 1.05 * bound
    random, planner = np.random.default_rng(0), stated.planner()
    sizes, u = stated.unknowns.values(np.log(stated.unknowns.value)), stated.unknowns
    for _ in range(5):
        drawn = {
            n: random.choice(rungs(n, sizes, u, stated.world.fixed))
            for n in ("n_layers", "d_model", "global_batch")
        }
        found = planner(sizes | drawn)
        assert found.merit >= 1e6 or bound <= found.outcome.quantities[NAMES.index("loss")]
    cheap = ask("cost", Limits(loss=2.6), ("tokens",), bounds={})
    assert proven_bound(cheap) <= cheap.planner()(sizes).outcome.quantities[NAMES.index("dollars")]
    assert proven_bound(ask("time", Limits(loss=1.0))) == np.inf


def test_a_loss_to_reach_is_just_reached():
    asked = ask("time", Limits(loss=2.6), ("tokens",), bounds={})
    found = asked.planner()(asked.unknowns.values(np.log(asked.unknowns.value)))
    quantities = dict(zip(NAMES, found.outcome.quantities, strict=True))
    assert quantities["loss"] == pytest.approx(2.6, rel=1e-9)
    assert found.fitting > 0


def test_samples_of_the_coefficients_count_by_their_mean_or_quantile():
    z = np.asarray(to_unconstrained(default()))
    samples, seconds = draw(z, 0.04 * np.eye(len(z)), 5, seed=2), {}
    for quantile in (None, 0.9):
        asked = ask("time", Limits(loss=2.6), ("tokens",), bounds={}, quantile=quantile)
        asked = asked._replace(world=asked.world.replace(coefficients=samples))
        found = asked.planner()(asked.unknowns.values(np.log(asked.unknowns.value)))
        seconds[quantile] = found.outcome.quantities[NAMES.index("seconds")]
    assert seconds[0.9] > seconds[None] > 0.0


def test_energy_is_least_where_it_is_asked_for():
    plans = {}
    for objective in ("time", "energy"):
        asked = ask(objective, Limits(loss=2.6), ("tokens",), bounds={})
        plans[objective] = asked.planner()(
            asked.unknowns.values(np.log(asked.unknowns.value))
        ).outcome.quantities
    joules, seconds = NAMES.index("joules"), NAMES.index("seconds")
    assert plans["energy"][joules] <= plans["time"][joules]
    assert plans["time"][seconds] <= plans["energy"][seconds]


def test_a_free_batch_is_of_least_time_to_the_same_loss():
    """Of given tokens, the largest batch takes the least time, and its tokens bring nothing; it is
    the time by the tokens that the same loss needs more which is least."""
    free = {"free": ("batch",), "tokens": 2e11, "devices": 256}
    found = solve_question(ask("time", Limits(), **free), **QUICK).found
    most = solve_question(ask("time", Limits(loss=9.0), **free), **QUICK).found
    best, widest = (dict(zip(NAMES, x.outcome.quantities, strict=True)) for x in (found, most))
    assert best["seconds"] > widest["seconds"] and best["batch"] < widest["batch"]
    assert best["seconds"] * best["waste"] < widest["seconds"] * widest["waste"]
    assert best["waste"] == pytest.approx(1.0 + best["batch"]) and best["waste"] < 2.0


def test_the_largest_run_takes_all_of_the_budget():
    asked = ask("largest", Limits(seconds=86400.0), ("tokens",), bounds={})
    found = asked.planner()(asked.unknowns.values(np.log(asked.unknowns.value)))
    quantities = dict(zip(NAMES, found.outcome.quantities, strict=True))
    assert quantities["seconds"] == pytest.approx(86400.0, rel=1e-9)
    assert found.merit == pytest.approx(-np.log(quantities["flop"])) and quantities[
        "flop"
    ] <= proven_bound(asked)


# ---- doubt


def test_without_doubt_the_best_plan_is_always_the_best(stated, answer):
    z = np.asarray(to_unconstrained(default()))
    found = robust(stated, answer.found.sizes, draw(z, np.zeros((len(z), len(z))), 4))
    assert found.chosen.best_share == 1.0 and found.chosen.regret == pytest.approx(0.0, abs=1e-12)
    assert found.chosen.center == pytest.approx(answer.value, rel=1e-6)


def test_under_doubt_the_chosen_plan_is_best_on_average(stated, answer):
    z = np.asarray(to_unconstrained(default()))
    samples = draw(z, 0.09 * np.eye(len(z)), 24, seed=1)
    found = robust(stated, answer.found.sizes, samples)
    assert sum(c.best_share for c in found.candidates) == pytest.approx(1.0)
    assert all(found.chosen.mean <= c.mean + 1e-12 for c in found.candidates)
    assert found.chosen.low < found.chosen.mean < found.chosen.high
    with pytest.raises(InputError, match="at least 2 samples"):
        robust(stated, answer.found.sizes, draw(z, np.eye(len(z)), 1))


# ---- no design


def test_when_nothing_fits_the_limit_and_the_least_change_are_named():
    """A loss that 64 devices do not reach in a day, whatever the model."""
    asked = ask(
        "time", Limits(loss=2.2, seconds=86400.0, memory=None), ("shape", "batch", "tokens")
    )
    nothing = solve_question(asked, **QUICK)
    assert nothing.found is None and nothing.nearest is not None
    change = nearest_change(asked, nothing, **QUICK)
    assert change.binding in ("loss", "seconds") and change.amount > 0.0
    helps = {c.name: c for c in change.changes if c.needed is not None and c.needed > c.limit}
    assert "seconds" in helps and "seconds" in change.statement
    limit = np.where(np.array(NAMES) == "seconds", helps["seconds"].needed * 1.001, asked.at.limit)
    enough = asked._replace(at=asked.at.replace(limit=limit))
    assert enough.planner()(helps["seconds"].design.sizes).merit < 1e6
