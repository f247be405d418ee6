"""The space of plans: what is valid, how many there are, and rows against plans with names."""

from itertools import product

import jax
import numpy as np
import pytest

from dmodel import catalog
from dmodel.coefficients import default
from dmodel.design import (
    ALL_PLACEMENTS,
    EVERYTHING,
    Choices,
    PrecisionChoice,
    count,
    evaluate,
    problem,
    rows,
    space,
)
from dmodel.design.constraints import DIVISIBILITY
from dmodel.errors import InputError
from dmodel.placement import PAIRS, Ordered, place
from dmodel.records import LEAVES, MIXED, RULES, SCHEDULES, Plan, having, value
from dmodel.step import memory_use, step_time
from tests.points import quick

SYSTEM = catalog.system("H100-DGX")
SMALL = catalog.transformer("llama-3-8b", 8192.0)
LARGE = catalog.transformer("llama-3-70b", 8192.0)
GPT = catalog.transformer("gpt-3-175b", 2048.0)
MIXTRAL = catalog.transformer("mixtral-8x7b", 4096.0)
UNFUSED = Plan.of(dp=1.0, global_batch=1.0, flash=0.0)


def stated(model=SMALL, n=16, batch=64, **kwargs):
    return problem(SYSTEM, model, n, batch, default(), **kwargs)


def brute_force(model, n, batch, domain=8):
    """Every valid plan, by trying all numbers: slow, and written without the space's own
    helpers."""
    powers = [2**i for i in range(20)]
    numbers, layers = range(1, n + 1), int(model.n_layers)
    heads, kv_heads = value(model, "n_heads"), value(model, "n_kv_heads")
    for tp, cp, pp in product(numbers, numbers, numbers):
        shares_heads = heads % tp == 0 and (kv_heads % tp == 0 or tp % kv_heads == 0)
        # embedding and head take a layer's place each where the stages do not divide the layers
        items = layers if layers % pp == 0 else layers + 2
        if (
            n % (tp * cp * pp)
            or not shares_heads
            or model.seq_len % cp
            or items % pp
            or pp > layers
        ):
            continue
        dp, stage = n // (tp * cp * pp), items // pp
        kinds = {(0, 1, 1)}
        if dp * cp > 1:
            inside = {s for s in range(2, dp) if s * tp * cp == domain and dp % s == 0}
            kinds |= {(1, dp, 1), (2, dp, 1)} | {(3, s, r) for s in {dp} | inside for r in (0, 1)}
        shares = {round(stage * q) / stage for q in (0.0, 0.25, 0.5, 0.75, 1.0)}
        split = (0, 1) if tp > 1 and model.seq_len % (tp * cp) == 0 else (0,)
        for b, v, share, kind, sp in product(powers, range(1, stage + 1), shares, kinds, split):
            valid = (
                batch % (dp * b) == 0
                and stage % v == 0
                and (v == 1 or (pp > 1 and batch // (dp * b) % pp == 0))
            )
            if valid:
                yield {
                    "dp": dp,
                    "tp": tp,
                    "cp": cp,
                    "pp": pp,
                    "ep": 1,
                    "etp": 1,
                    "sp": sp,
                    "schedule": 2 if v > 1 else 1,
                    "interleave": v,
                    "micro_batch": b,
                    "placement": 0,
                    "precision": 0,
                    "recompute_attention": 0,
                    "recompute_layers": share,
                    "zero": kind[0],
                    "shard": kind[1],
                    "reshard": kind[2],
                }


@pytest.mark.parametrize(
    ("n", "batch", "layers"),
    [(1, 4, 12), (8, 16, 12), (16, 64, 12), (12, 24, 12), (8, 16, 14), (16, 32, 14)],
)
def test_the_space_is_what_trying_everything_finds(n, batch, layers):
    model = SMALL.replace(n_layers=float(layers))
    p = stated(model, n, batch)
    found = [tuple(row) for row in rows.all_rows(p.space)]
    expected = {
        tuple(float(plan[name]) for name in rows.COLUMNS) for plan in brute_force(model, n, batch)
    }
    assert len(found) == len(set(found)) == count(p.space)
    assert set(found) == expected and expected


@pytest.mark.parametrize(
    ("model", "n", "batch", "choices"),
    [
        (SMALL, 16, 64, None),
        (GPT, 48, 96, None),
        (MIXTRAL, 8, 4, EVERYTHING),
        (LARGE, 12, 24, EVERYTHING.replace(placements=(), schedules=("gpipe", "zero-bubble"))),
    ],
)
def test_all_plans_of_the_space_are_valid_and_counted(model, n, batch, choices):
    p = stated(model, n, batch, choices=choices)
    found = rows.all_rows(p.space)
    assert len(found) == count(p.space) == len(np.unique(found, axis=0))
    assert sum(len(g) for g in rows.groups(p.space)) == space.count_groups(p.space)
    numbers = rows.numbers(p.space, SYSTEM, found)
    plans = Plan.of(
        **{k: x for k, x in numbers.items() if k in LEAVES},
        global_batch=float(batch),
    )
    assert all((np.asarray(rule.margin(model, plans)) >= 0.0).all() for rule in DIVISIBILITY)
    np.testing.assert_array_equal(plans.devices, n)
    assert (plans.n_microbatches >= 1).all() and (plans.layout.shard <= plans.layout.dp).all()
    for leaf, schedule in MIXED.items():
        own, rules = numbers[leaf] == 1.0, RULES[schedule]
        pipes = zip(plans.layout.pp[own], plans.n_microbatches[own], strict=True)
        assert all(rules.allows(*pair) for pair in pipes)
        assert (plans.layout.interleave[own] == rules.chunks).all()
    assert (plans.layout.sp == 0)[plans.layout.tp == 1].all() and (
        not having(model, "n_experts") or (plans.layout.sp == 1)[plans.layout.tp > 1].all()
    )


UNEVEN = catalog.transformer("qwen3-235b-a22b", 4096.0)
"""94 layers."""


def test_stages_that_are_not_alike_are_in_the_space_where_the_stack_has_them():
    """94 layers, embedding and head fill 32 stages in 3 chunks."""
    even = stated(UNEVEN, 256, 1024, choices=Choices(uneven=False)).space
    uneven = stated(UNEVEN, 256, 1024).space
    plan = next(d for d in space.degrees(uneven) if (d.pp, d.ep, d.tp, d.cp) == (32, 8, 1, 1))
    assert 3 in {v for _, v, _ in space.options(uneven, plan).runs}
    assert {d.pp for d in space.degrees(uneven)} > {1, 2} == {d.pp for d in space.degrees(even)}
    for split in space.degrees(even):
        assert all(94 % (split.pp * v) == 0 for _, v, _ in space.options(even, split).runs)


@pytest.mark.parametrize("name", ["tp", "cp", "pp", "ep"])
def test_a_degree_that_the_stack_lacks_is_one(name):
    kept = tuple(d for d in ("tp", "cp", "pp", "ep") if d != name)
    found = space.degrees(stated(UNEVEN, 16, 64, choices=Choices(degrees=kept)).space)
    assert {getattr(split, name) for split in found} == {1}
    assert all(max(getattr(split, other) for split in found) > 1 for other in kept)


def test_a_count_needs_no_plans():
    """Integers are exact at any size."""
    million = stated(
        MIXTRAL,
        1 << 20,
        1 << 20,
        choices=EVERYTHING.replace(etp=False, precisions=(PrecisionChoice("a", 1e15),) * 8),
    )
    assert count(million.space) > 4 * 10**9 and isinstance(count(million.space), int)


def test_choices_narrow_the_space_and_unfused_attention_adds_selective_recomputation():
    narrow = Choices(zero=(1,), recompute=(0.0,), schedules=("1f1b",), shards="whole", sp=(1,))
    found = rows.all_rows(stated(choices=narrow).space)
    column = {name: set(found[:, i]) for name, i in rows.INDEX.items()}
    assert (
        column["interleave"] == {1.0}
        and column["recompute_layers"] == {0.0}
        and column["zero"] <= {0.0, 1.0}
    )
    selective = rows.all_rows(stated(base=UNFUSED).space)[:, rows.INDEX["recompute_attention"]]
    assert set(selective) == {0.0, 1.0}


def test_hsdp_fills_a_domain_or_takes_any_divisor():
    split = space.Degrees(dp=32, tp=2, cp=1, pp=1, ep=1, etp=1)

    def groups(shards):
        return {
            s
            for z, s, _ in space.options(
                stated(LARGE, 64, 64, choices=Choices(shards=shards)).space, split
            ).sharding
            if z == 3
        }

    assert (
        groups("whole") == {32}
        and groups("domains") == {32, 4}
        and groups("any") == {32, 16, 8, 4, 2}
    )


def test_experts_are_spread_over_ranks_of_a_stage():
    found = space.degrees(stated(MIXTRAL, 16, 16, choices=EVERYTHING).space)
    assert {s.ep for s in found} == {1, 2, 4, 8} and any(s.ep > s.dp for s in found)
    assert all(s.dp * s.tp * s.cp % (s.ep * s.etp) == 0 and s.tp % s.etp == 0 for s in found)


def test_orders_that_place_the_same_ranks_count_once():
    s = stated(LARGE, 64, 64, choices=Choices(placements=ALL_PLACEMENTS)).space
    assert (
        len(ALL_PLACEMENTS) == 120
        and ALL_PLACEMENTS[0] == Plan.of(dp=1.0, global_batch=1.0).layout.placement
    )
    orders = [
        len(space.options(s, space.Degrees(*d, 1, 1)).placement)
        for d in ((64, 1, 1, 1), (32, 2, 1, 1), (8, 2, 2, 2))
    ]
    assert orders == [1, 2, 24]


def test_rows_are_judged_as_the_plans_with_names_that_they_stand_for():
    """One program for all placements, schedules and precisions says what the model says of each
    plan."""
    peak = float(SYSTEM.chip.flops_per_s)
    offered = (
        PrecisionChoice("bf16", peak),
        PrecisionChoice("fp8", 2.0 * peak, 1.0, 0.1, 1.0),
    )
    choices = EVERYTHING.replace(precisions=offered, schedules=SCHEDULES)
    p = stated(MIXTRAL, 64, 128, choices=choices)
    draw = np.random.default_rng(0)
    groups = np.concatenate(list(rows.groups(p.space)))
    groups = groups[(groups[:, rows.INDEX["placement"]] > 0) & (groups[:, rows.INDEX["ep"]] > 1)]
    few = [
        groups[draw.choice(np.flatnonzero(groups[:, rows.INDEX["schedule"]] == code))]
        for code in range(len(SCHEDULES))
        if SCHEDULES[code] != "1f1b"
    ]
    parts = [
        rows.expanded(row[None], space.options(p.space, split))
        for row in few
        for split, _ in rows.by_degrees(row[None])
    ]
    chosen = np.stack([part[draw.integers(len(part))] for part in parts])
    found, plans = evaluate(p, chosen), rows.plans(p.space, SYSTEM, chosen)
    assert {plan.layout.schedule for plan in plans} >= set(MIXED.values()) and len(
        {plan.layout.placement for plan in plans}
    ) > 1
    for i, plan in enumerate(plans):
        chip = SYSTEM.chip.replace(
            flops_per_s=offered[int(chosen[i, rows.INDEX["precision"]])].flops_per_s
        )
        seconds, used = quick(_judged)(SYSTEM.replace(chip=chip), MIXTRAL, plan, default())
        assert float(found.step_time_s[i]) == pytest.approx(float(seconds), rel=1e-9)
        assert float(found.memory_bytes[i]) == pytest.approx(float(used), rel=1e-9)


def _judged(system, model, plan, coefficients):
    return step_time(system, model, plan, coefficients).total, memory_use(model, plan).total


@pytest.mark.parametrize(("n", "batch"), [(1, 8), (2, 50), (7, 64), (11, 30), (97, 12), (130, 210)])
def test_nearest_counts_are_what_trying_them_in_turn_finds(n, batch):
    asked = stated(LARGE, n, batch).space
    nearest_first = sorted(
        (m for m in range(1, 2 * n + 1024) if m != n), key=lambda m: (abs(m - n), m)
    )
    valid = (m for m in nearest_first if space.degrees(asked.replace(n_devices=m)))
    assert space.neighbouring_counts(asked) == [next(valid), next(valid)]


def test_nearest_counts_of_a_large_prime_take_no_search():
    asked = stated(LARGE, 8, 32).space.replace(n_devices=999_999_937)
    assert all(space.degrees(asked.replace(n_devices=m)) for m in space.neighbouring_counts(asked))


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        (Choices(zero=(4,)), "zero"),
        (Choices(shards="some"), "shards"),
        (Choices(schedules=("dual",)), "schedules"),
        (Choices(recompute=(1.5,)), "recompute"),
        (Choices(sp=()), "sp"),
        (Choices(degrees=("np",)), "degrees"),
        (Choices(placements=(("tp", "dp"),)), "placements"),
    ],
)
def test_choices_without_sense_are_refused(choices, said):
    with pytest.raises(InputError, match=said):
        stated(choices=choices)


@pytest.mark.parametrize("order", ALL_PLACEMENTS[::23])
def test_a_placement_as_numbers_is_the_placement_by_name(order):
    """The first group of the order runs fastest, whichever way it is said."""
    size = np.array([[4.0], [16.0], [np.inf]])
    plan = Plan.of(
        dp=np.array([16.0]),
        tp=4.0,
        cp=2.0,
        pp=8.0,
        ep=8.0,
        etp=2.0,
        shard=4.0,
        global_batch=16.0,
        placement=order,
    )
    plan = jax.tree.map(lambda x: np.full(1, float(np.ravel(x)[0])), plan)
    numbers = dict(
        zip(
            (f"{a}_{b}" for a, b in PAIRS),
            (np.full(1, x) for x in rows.order_numbers(order)),
            strict=True,
        )
    )
    named, numbered = (
        place(plan, size),
        place(plan.replace(layout=Ordered(**vars(plan.layout), **numbers)), size),
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), named, numbered
    )
