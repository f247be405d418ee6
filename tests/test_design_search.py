"""Exact search: the best of a loop, whatever is cut or left out; bounds that no plan undercuts;
limits; the Pareto front."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel import catalog, footprint, run
from dmodel.asked import ask
from dmodel.breakdown import TERMS, Breakdown
from dmodel.coefficients import SPECS, default, from_unconstrained, to_unconstrained
from dmodel.design import (
    EVERYTHING,
    Choices,
    Limits,
    PrecisionChoice,
    candidates,
    certify,
    count,
    evaluate,
    exact,
    few,
    group_bounds,
    problem,
    rows,
    search,
    space,
    space_bound,
)
from dmodel.design.bounds import arithmetic_floor, quiet
from dmodel.design.favourable import BETTER
from dmodel.design.front import undominated
from dmodel.design.judge import rank_key
from dmodel.errors import InputError
from dmodel.footprint import LEAST
from dmodel.question import Question
from dmodel.records import SCHEDULES, Plan, sized
from dmodel.searching import space_of
from dmodel.searching import stated as state
from dmodel.settings import changed
from dmodel.step import memory_use, step_time
from tests.stack_files import by_stage, job_of

SYSTEM = catalog.system("H100-DGX")
SMALL = catalog.transformer("llama-3-8b", 8192.0)
LARGE = catalog.transformer("llama-3-70b", 8192.0)
MIXTRAL = catalog.transformer("mixtral-8x7b", 4096.0)
UNFUSED = Plan.of(dp=1.0, global_batch=1.0, flash=0.0)


def stated(model=SMALL, n=16, batch=64, system=SYSTEM, coefficients=None, **kwargs):
    return problem(
        system, model, n, batch, default() if coefficients is None else coefficients, **kwargs
    )


@pytest.fixture(scope="module")
def loop():
    """Step time and headroom of some plans of a small space, one by one."""
    p = stated(n=8, batch=16)
    found = rows.all_rows(p.space)[::5]
    one = jax.jit(
        lambda plan: (
            step_time(SYSTEM, SMALL, plan, default()).total,
            memory_use(SMALL, plan).total,
        )
    )
    # 1F1B is interleaving with one chunk: one name compiles once
    plans = [plan.having(schedule="interleaved") for plan in rows.plans(p.space, SYSTEM, found)]
    seconds, used = np.array([[float(x) for x in one(plan)] for plan in plans]).T
    return p, found, seconds, float(SYSTEM.chip.hbm_bytes) - used


def test_the_exact_best_is_the_best_of_a_loop(loop):
    p, chosen, seconds, headroom = loop
    found = exact(p, top=7, batches=[chosen])
    fits = np.flatnonzero(headroom >= 0.0)
    assert (found.considered, found.evaluated, found.feasible) == (
        len(chosen),
        len(chosen),
        len(fits),
    )
    kept = candidates(p, found.rows)
    np.testing.assert_allclose(
        [float(c.step_time_s) for c in kept], np.sort(seconds[fits])[:7], rtol=1e-9
    )
    assert all(
        float(c.headroom_bytes) >= 0.0 and c.margins[0].value == float(c.headroom_bytes)
        for c in kept
    )
    assert found.unlimited == pytest.approx(seconds.min(), rel=1e-9)


@pytest.mark.slow
def test_the_answer_does_not_depend_on_how_the_work_is_cut():
    p = stated()
    all_rows, whole = rows.all_rows(p.space), exact(p, top=20)
    shuffled = np.random.default_rng(0).permutation(len(all_rows))
    for cut in (1, 37):
        size = max(len(all_rows) // cut, 1)
        batches = [all_rows[shuffled[i : i + size]] for i in range(0, len(all_rows), size)]
        other = exact(p, top=20, batches=batches, threads=1 + cut % 2)
        np.testing.assert_array_equal(other.rows, whole.rows)
        np.testing.assert_array_equal(other.closest, whole.closest)
        assert (other.considered, other.feasible) == (whole.considered, whole.feasible)
    np.testing.assert_array_equal(exact(p, top=20, chunk=128).rows, whole.rows)


def test_equal_merits_are_ordered_by_plainness():
    p = stated(n=8, batch=16)
    found = rows.all_rows(p.space)
    order = rows.plainest_first(found, np.zeros(len(found)))
    first = found[order[0]]
    assert (
        first[rows.INDEX["tp"]] == first[rows.INDEX["pp"]] == first[rows.INDEX["interleave"]] == 1.0
    )
    seconds = np.array([1.0, 1.0 + 1e-13, 1.0 + 1e-8])
    assert rank_key(seconds)[0] == rank_key(seconds)[1] < rank_key(seconds)[2]


# ---- bounds and pruning


UNEVEN = {
    "14 layers": SMALL.replace(n_layers=14.0),
    "61 layers, a head of further tokens": SMALL.replace(n_layers=61.0, n_mtp=1.0),
}
"""Models whose layers four stages or more do not divide."""


def random_problem(draw, choices=EVERYTHING, model=None):
    """A model, coefficients and a footprint drawn from wide priors, on a few devices."""
    drawn = [SMALL, LARGE, MIXTRAL, catalog.transformer("gpt-3-13b", 2048.0)][draw.integers(4)]
    spread = np.array([s.width for s in SPECS.values()])
    c = from_unconstrained(
        to_unconstrained(default()) + 1.5 * spread * draw.normal(size=len(spread))
    )
    mean, width = footprint.prior()
    peak = float(SYSTEM.chip.flops_per_s)
    offered = (
        PrecisionChoice("bf16", peak),
        PrecisionChoice("fp8", 2.0 * peak, 1.0, 0.1, 1.0),
    )
    return stated(
        model or drawn,
        int(draw.choice([24, 64, 96, 512])),
        int(draw.choice([192, 1536])),
        coefficients=c,
        base=UNFUSED if draw.random() < 0.3 else None,
        choices=choices.replace(precisions=offered),
        footprint=footprint.from_unconstrained(mean + width * draw.normal(size=len(mean))),
    )


def sampled(draw, p, splits, n_groups, most):
    """Groups of some splits, some of their plans, and bounds that none of these undercuts in time,
    energy or memory: `(members, found, which fit, bound)`."""
    for split in splits:
        offered = space.options(p.space, split)
        groups = rows.group_rows(split, offered)
        for group in groups[draw.choice(len(groups), n_groups)]:
            members = rows.expanded(group[None], offered)
            members = members[draw.permutation(len(members))[:most]]
            found, bound = evaluate(p, members), group_bounds(p, group[None], sharded=False)
            fits = np.asarray(found.memory_bytes) <= float(SYSTEM.chip.hbm_bytes)
            assert (np.asarray(found.memory_bytes) >= bound.memory_bytes[0]).all()
            assert (np.asarray(found.step_time_s)[fits] >= bound.step_time_s[0]).all()
            assert (np.asarray(found.joules)[fits] >= bound.joules[0]).all()
            yield members, found, fits, bound


@pytest.mark.parametrize(
    ("seed", "model"),
    [*((seed, None) for seed in range(6)), *((6 + i, name) for i, name in enumerate(UNEVEN))],
)
def test_no_plan_of_a_group_undercuts_its_bound(seed, model):
    draw = np.random.default_rng(seed)
    choices = EVERYTHING.replace(
        schedules=SCHEDULES,
        stack=by_stage(seed) if seed % 2 else None,
    )
    p = random_problem(draw, choices, UNEVEN.get(model))
    layers = int(p.space.model.n_layers)
    splits = [split for split in space.degrees(p.space) if model is None or layers % split.pp]
    for members, found, fits, bound in sampled(
        draw, p, [splits[i] for i in draw.choice(len(splits), 4)], 3, 1500
    ):
        assert (members[fits, rows.INDEX["recompute_layers"]] >= bound.share[0] - 1e-9).all()
        own = group_bounds(p, members[:1], sharded=True)
        same = (
            members[:, [rows.INDEX[n] for n in rows.SHARDING]]
            == members[0, [rows.INDEX[n] for n in rows.SHARDING]]
        ).all(1)
        assert (np.asarray(found.step_time_s)[fits & same] >= own.step_time_s[0]).all()


@pytest.mark.slow
def test_many_groups_and_plans_are_judged_by_a_program_as_few_are_by_numpy(monkeypatch):
    p = random_problem(np.random.default_rng(1), EVERYTHING.replace(stack=by_stage(1)))
    split = space.degrees(p.space)[3]
    members = rows.group_rows(split, space.options(p.space, split))[:300]

    def judged():
        free, own = (group_bounds(p, members, sharded=x) for x in (False, True))
        return jax.tree.leaves((free, own, evaluate(p, members)))

    by_numpy = judged()
    monkeypatch.setattr(few, "FEW", 0)
    for one, other in zip(by_numpy, judged(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


@pytest.mark.parametrize(("seed", "slow"), [(34, 3.0), (33, 10.0), (32, 30.0)])
def test_no_plan_undercuts_its_bound_where_hosts_decide(seed, slow):
    """Dense models, whose head passes while devices wait, evenly spread or on the last stage, on
    fast chips."""
    draw = np.random.default_rng(seed)
    model = catalog.transformer("gpt-3-1.3b", 2048.0).replace(n_layers=14.0)
    p = random_problem(draw, EVERYTHING.replace(schedules=("1f1b", "interleaved")), model)
    c = p.coefficients
    p = p.replace(
        coefficients=c.replace(
            launch=c.launch * slow, head_balance=jnp.asarray(draw.uniform(0.0, 1.0))
        )
    )
    splits = space.degrees(p.space)
    drawn = sampled(
        draw,
        p,
        [splits[i] for i in draw.choice(len(splits), min(8, len(splits)), replace=False)],
        2,
        500,
    )
    waits = [
        float((np.asarray(found.breakdown.launch) / np.asarray(found.step_time_s)).max())
        for _, found, _, _ in drawn
    ]
    assert max(waits) > 0.3


@pytest.mark.parametrize(
    "overlaps", [(0.97, 0.97, 0.01), pytest.param((0.8, 0.32, 0.13), marks=pytest.mark.slow)]
)
def test_no_plan_undercuts_its_bound_where_exchanges_and_transfers_stand_out(overlaps):
    """Small experts and a small vocabulary on slow networks, so that more is sent than work
    hides."""
    ep, pp, slows = map(jnp.asarray, overlaps)
    slow = SYSTEM.replace(
        network=SYSTEM.network.replace(bytes_per_s=0.015 * SYSTEM.network.bytes_per_s)
    )
    c = default().replace(
        overlap_ep=ep,
        overlap_pp=pp,
        contention=slows,
        overlap_dp=jnp.asarray(0.9),
        launch=jnp.asarray(0.01),
    )
    p = stated(
        sized(MIXTRAL, d_ff=2048.0, vocab=1000.0),
        64,
        256,
        slow,
        c,
        choices=Choices(zero=(0, 1, 3)),
    )
    splits = [split for split in space.degrees(p.space) if split.pp > 1 and split.ep > 1]
    exposed = 0
    for _, found, _, _ in sampled(np.random.default_rng(0), p, splits[::3], 4, 200):
        exposed += int(
            (
                (found.breakdown.expert_parallel > 0.0) & (found.breakdown.pipeline_transfer > 0.0)
            ).sum()
        )
    assert exposed > 100


@pytest.mark.parametrize("seed", [412, 587, 1219])
def test_no_plan_takes_less_energy_than_its_bound_where_messages_slow_what_hides_them(seed):
    """Work that hides messages lengthens itself by nearly all of them: as long a step, but messages
    draw more than the work which they
    slow (`power.draw`), so with messages at what they draw these bounds were up to 1.5 % too high.
    """
    draw = np.random.default_rng(seed)
    choices = EVERYTHING.replace(
        schedules=SCHEDULES,
        stack=by_stage(seed) if seed % 2 else None,
    )
    p = random_problem(draw, choices)
    slows = jnp.asarray(draw.uniform(0.5, 1.2))
    c = p.coefficients.replace(
        contention=slows, overlap_dp=jnp.asarray(0.95), overlap_fsdp=jnp.asarray(0.9)
    )
    trainable = 0.0 if draw.random() < 0.3 else 1.0
    p = p.replace(
        coefficients=c, space=p.space.replace(model=p.space.model.replace(trainable=trainable))
    )
    splits, sharding = space.degrees(p.space), [rows.INDEX[n] for n in rows.SHARDING]
    chosen = draw.choice(len(splits), min(4, len(splits)), replace=False)
    judged = 0
    for members, found, fits, _ in sampled(draw, p, [splits[i] for i in chosen], 3, 400):
        if fits.any():
            one = members[fits][:1]
            same = fits & (members[:, sharding] == one[:, sharding]).all(1)
            assert (
                np.asarray(found.joules)[same] >= group_bounds(p, one, sharded=True).joules[0]
            ).all()
            judged += int(same.sum())
    assert judged > 20


@pytest.mark.parametrize("demand", [0.8, 1.5, 3.0])
def test_a_quiet_step_takes_as_long_and_no_more_energy(demand):
    """Many mixtures, at the power limit and below: messages once per step must not widen what the
    limit is a mean over."""
    draw = np.random.default_rng(0)
    seconds = (
        draw.exponential(1.0, (len(TERMS), 500)) * (draw.random((len(TERMS), 500)) < 0.5) + 1e-6
    )
    step, c = (
        Breakdown(**dict(zip(TERMS, seconds, strict=True))),
        default().replace(power_demand=jnp.asarray(demand)),
    )
    less = quiet(step)
    np.testing.assert_allclose(less.total, step.total, rtol=1e-12)
    watts, fewer = (run.device_watts(SYSTEM, x, c) for x in (step, less))
    assert (np.asarray(fewer) <= np.asarray(watts) * (1.0 + 1e-12)).all() and (
        np.asarray(fewer) < 0.9 * np.asarray(watts)
    ).any()


def test_experts_with_ranks_that_tensor_parallelism_leaves_are_sharded_on_one_replica():
    """Without data parallelism there is nothing of the dense part to shard, but experts on fewer
    ranks have copies: their stages count."""
    p = stated(MIXTRAL, 24, 96, choices=EVERYTHING.replace(stack=by_stage(1)))
    splits = [s for s in space.degrees(p.space) if s.dp * s.cp == 1 and s.tp > s.ep * s.etp]
    assert splits
    stages = [
        members[:, rows.INDEX["zero"]].max()
        for members, *_ in sampled(np.random.default_rng(0), p, splits[:6], 2, 200)
    ]
    assert max(stages) > 0.0


@pytest.mark.parametrize(
    ("stack", "precision", "model"),
    [
        ("nemo-launcher", "fp8", "llama-3-8b"),
        ("automodel", "bf16", "mixtral-8x7b"),
        ("ultrascale-playbook", "bf16", "llama-3-8b"),
    ],
)
def test_no_plan_of_a_stack_undercuts_its_bound(stack, precision, model):
    """Leaves that facts decide by ZeRO stage and ep, in all that a plan can vary."""
    columns = {"n_accel": 64, "model": model, "global_batch": 512, "stack": stack}
    question = changed(Question({}, system="H100-DGX"), {**columns, "precision": precision})
    asked = ask(question)
    found = space_of(asked, everything=True)
    assert set(found.choices.stack.leaves) & set(BETTER)
    p, draw = state(asked, found), np.random.default_rng(0)
    splits = space.degrees(p.space)
    some = [splits[i] for i in draw.choice(len(splits), 4)]
    seen = [members[:, rows.INDEX["zero"]] for members, *_ in sampled(draw, p, some, 2, 300)]
    assert len(set(np.concatenate(seen))) == len(found.choices.zero)


def test_a_leaf_of_which_no_bound_is_known_must_not_differ_with_sharding():
    job = job_of([({"accumulate": 1}, {"zero": ">=2"}), ({"graphed": 1}, {"tp": ">1"})])
    with pytest.raises(InputError, match="facts let accumulate differ"):
        space_bound(stated(n=8, batch=16, choices=Choices(stack=job)))


@pytest.mark.parametrize("traffic", [0.03, 0.1, 0.8])
def test_gradients_summed_in_kernels_of_their_own_stay_above_a_free_bound(traffic):
    """Memory so slow that sums of gradients stand out of the products: if a free bound took all of
    them for summed inside products, plans at a tenth of the least traffic would undercut it by a
    hundredth."""
    c = default().replace(
        elementwise_traffic=jnp.asarray(traffic),
        launch=jnp.asarray(1e-9),
        kernel_fill=jnp.asarray(1e-9),
    )
    chip = SYSTEM.chip
    slow = SYSTEM.replace(
        chip=chip.replace(hbm_bytes_per_s=chip.hbm_bytes_per_s / 100.0, hbm_bytes=1e13)
    )
    base = Plan.of(dp=1.0, global_batch=1.0, fused_sums=1.0)
    p = stated(SMALL, 24, 192, system=slow, coefficients=c, base=base, choices=EVERYTHING)
    split = space.Degrees(24, 1, 1, 1, 1, 1)
    offered = space.options(p.space, split)
    groups = rows.group_rows(split, offered)
    bounds = group_bounds(p, groups, sharded=False).step_time_s
    for group, bound in zip(groups, bounds, strict=True):
        members = rows.expanded(group[None], offered)
        assert (members[:, rows.INDEX["zero"]] >= 2.0).any()
        assert (np.asarray(evaluate(p, members).step_time_s) >= bound).all()


@pytest.mark.parametrize("seed", range(4))
def test_what_bounds_leave_out_changes_nothing(seed):
    choices = Choices(
        shards="any",
        etp=True,
        recompute=(0.0, 0.3, 1.0),
        stack=by_stage(seed) if seed % 2 else None,
    )
    p = random_problem(np.random.default_rng(100 + seed), choices)
    p = p.replace(space=p.space.replace(n_devices=24 if seed % 2 else 32, global_batch=96))
    whole, pruned = exact(p, top=9, prune=False), exact(p, top=9, prune=True)
    np.testing.assert_array_equal(pruned.rows, whole.rows)
    np.testing.assert_array_equal(pruned.merits, whole.merits)
    assert pruned.considered == whole.considered == count(p.space)
    assert pruned.evaluated < whole.evaluated and pruned.feasible is None
    if len(whole.merits):
        assert pruned.bound == whole.merits[0] >= space_bound(p) >= arithmetic_floor(p) > 0.0


def test_a_hundred_million_plans_are_decided():
    """GPT-3 175B on 512 A100: of 1.1 · 10⁸ plans some thousands are evaluated, and the optimum
    holds that of a narrower space."""
    gpt, system = catalog.transformer("gpt-3-175b", 2048.0), catalog.system("A100-DGX")
    p, narrow = (
        stated(gpt, 512, 1536, system, choices=choices)
        for choices in (EVERYTHING, Choices(zero=(0, 1), sp=(1,)))
    )
    seen = []
    found = exact(p, top=3, progress=lambda done, total: seen.append((done, total)))
    assert found.considered == count(p.space) > 10**8 and found.evaluated < 10**6
    assert found.merits[0] <= exact(narrow, top=1).merits[0]
    assert seen[-1] == (found.considered, found.considered) and all(
        a <= b for a, b in zip(seen, seen[1:], strict=False)
    )
    said = certify(p, found, None)
    assert (
        said.kind == "pruned" and said.distance == 0.0 and f"{found.considered:,}" in said.statement
    )


@pytest.mark.slow
def test_when_time_runs_out_the_bound_certifies():
    gpt, system = catalog.transformer("gpt-3-175b", 2048.0), catalog.system("A100-DGX")
    p = stated(gpt, 512, 1536, system, choices=EVERYTHING)
    found, whole = exact(p, top=1, seconds=0.0), exact(p, top=1)
    said = certify(p, found, None)
    assert found.bound <= whole.merits[0] <= found.merits[0]
    assert said.distance == pytest.approx(found.merits[0] / found.bound - 1.0)
    assert said.kind == ("bound" if found.bound < found.merits[0] else "pruned")


@pytest.mark.parametrize(
    ("model", "n", "batch", "base"),
    [(SMALL, 16, 64, None), (SMALL, 8, 64, UNFUSED), (LARGE, 96, 96, None)],
)
def test_no_plan_is_faster_than_the_arithmetic(model, n, batch, base):
    p = stated(model, n, batch, base=base)
    fastest = exact(p).unlimited
    assert 0.3 * fastest < arithmetic_floor(p) <= fastest


def test_the_floor_of_a_step_that_is_added_up_has_no_fixed_time():
    slow = default().replace(overhead=1.0, straggler=0.3)
    added, whole = (stated(base=UNFUSED.having(composed=x), coefficients=slow) for x in (1.0, 0.0))
    assert arithmetic_floor(added) <= exact(added).unlimited
    assert arithmetic_floor(whole) > 1.0 + arithmetic_floor(added)


# ---- limits, objectives, the front


def test_limits_are_kept_and_named():
    p = stated(limits=Limits(tp_domain=2.0))
    best = exact(p, top=200)
    assert (best.rows[:, rows.INDEX["tp"]] <= 2.0).all()
    free = exact(stated(), top=1)
    power = float(evaluate(p, free.rows).facility_watts[0])
    hungry = exact(stated(limits=Limits(facility_watts=power * 0.98)), top=1)
    assert hungry.merits[0] > free.merits[0]
    margins = {
        m.name: m
        for m in candidates(stated(limits=Limits(facility_watts=power * 0.98)), hungry.rows)[
            0
        ].margins
    }
    assert (
        margins["power"].value >= 0.0
        and margins["power"].unit == "W"
        and margins["memory"].unit == "byte"
    )
    assert set(margins) == {
        "memory",
        "deadline",
        "budget",
        "energy",
        "power",
        "critical batch",
        "network domain",
    }


def test_a_run_has_a_deadline_a_budget_and_energy():
    free = stated(n=8, batch=64)
    row = exact(free, top=1).rows
    step = evaluate(free, row)
    tokens = 1e10
    duration = tokens / (64 * 8192) * float(step.step_time_s[0])
    limits = Limits(tokens=tokens, deadline_s=2 * duration, dollars=1e9, joules=1e15)
    margins = {m.name: m.value for m in candidates(free.replace(limits=limits), row)[0].margins}
    assert margins["deadline"] == pytest.approx(duration, rel=1e-9)
    assert margins["budget"] == pytest.approx(
        1e9 - duration * 8 * float(SYSTEM.chip.price_per_s), rel=1e-9
    )
    assert margins["energy"] == pytest.approx(
        1e15 - duration * float(step.facility_watts[0]), rel=1e-9
    )


def test_the_least_energy_needs_no_more_than_the_fastest_plan():
    fastest, frugal = (exact(stated(objective=o), top=1) for o in ("time", "energy"))
    cheapest = exact(stated(objective="cost"), top=1)
    np.testing.assert_array_equal(cheapest.rows, fastest.rows)
    joules = [float(evaluate(stated(), x.rows).joules[0]) for x in (fastest, frugal)]
    assert joules[1] <= joules[0] and frugal.merits[0] == pytest.approx(joules[1], rel=1e-9)
    np.testing.assert_array_equal(
        exact(stated(objective="energy"), top=1, prune=True).rows, frugal.rows
    )


def test_the_front_holds_what_no_plan_beats():
    p = stated(n=8, batch=16)
    found = rows.all_rows(p.space)
    seen = evaluate(p, found)
    fits = np.asarray(seen.memory_bytes) <= float(SYSTEM.chip.hbm_bytes)
    costs = rank_key(np.stack([seen.step_time_s, seen.memory_bytes, seen.joules], 1)[fits])
    beaten = [((costs <= c).all(1) & (costs < c).any(1)).any() for c in costs]
    expected = {tuple(c) for c, b in zip(costs, beaten, strict=True) if not b}
    front = exact(p, pareto=True).front
    again = evaluate(p, front)
    assert {
        tuple(c)
        for c in rank_key(np.stack([again.step_time_s, again.memory_bytes, again.joules], 1))
    } == expected
    cut = exact(p, pareto=True, batches=[found[i::7] for i in range(7)]).front
    np.testing.assert_array_equal(cut, front)
    np.testing.assert_array_equal(
        undominated(np.array([[2.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])), [1]
    )


def test_a_stack_that_holds_more_leaves_fewer_plans():
    """The least footprint is none at all; with more held, every plan has less headroom, and what is
    chosen fits under it."""
    p, same, more = (
        stated(n=8, batch=16, footprint=f)
        for f in (None, LEAST, LEAST.replace(activation=1.5, gradient=1.5))
    )
    found = rows.all_rows(p.space)[::7]
    least, again, held = (evaluate(x, found) for x in (p, same, more))
    np.testing.assert_allclose(again.memory_bytes, least.memory_bytes, rtol=1e-12)
    assert (np.asarray(held.memory_bytes) > np.asarray(least.memory_bytes)).all()
    np.testing.assert_array_equal(held.step_time_s, least.step_time_s)
    wide, narrow = (exact(x, 1) for x in (p, more))
    assert narrow.feasible < wide.feasible
    assert float(candidates(more, narrow.rows)[0].headroom_bytes) >= 0.0


def test_a_candidate_adds_up():
    p = stated()
    best = candidates(p, exact(p, top=1).rows)[0]
    assert float(best.step_time_s) == pytest.approx(
        float(step_time(SYSTEM, SMALL, best.plan, default()).total), rel=1e-9
    )
    assert best.plan.layout.schedule == (
        "interleaved" if best.plan.layout.interleave > 1 else "1f1b"
    )
    assert float(best.tokens_per_s) == pytest.approx(64 * 8192 / float(best.step_time_s), rel=1e-12)
    assert search.LARGE > count(p.space)
