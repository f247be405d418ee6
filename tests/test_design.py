"""The answer of a design: both searches, the certificate, what is said when nothing fits; and one
plan from what a user says."""

import pytest

from dmodel import catalog
from dmodel.coefficients import default
from dmodel.design import EVERYTHING, Choices, Limits, design, problem, space
from dmodel.design.constraints import violated
from dmodel.errors import InputError
from dmodel.records import Plan
from dmodel.step import memory_use

SYSTEM = catalog.system("H100-DGX")
SMALL = catalog.transformer("llama-3-8b", 8192.0)
LARGE = catalog.transformer("llama-3-70b", 8192.0)
STARTS = 8


def stated(model=SMALL, n=16, batch=64, **kwargs):
    return problem(SYSTEM, model, n, batch, default(), **kwargs)


@pytest.mark.slow
def test_both_searches_stand_side_by_side():
    found = design(SYSTEM, LARGE, 64, 256, default(), method="both", n_starts=STARTS, top=3)
    assert len(found.exact) == 3 and found.gradient is not None and found.best is found.exact[0]
    assert found.gap is not None and 0.0 <= found.gap <= 0.01
    assert (
        found.certificate.kind == "all" and f"{found.considered:,}" in found.certificate.statement
    )
    assert found.considered == found.checked > found.feasible > 0
    used = float(memory_use(LARGE, found.best.plan).total)
    assert float(found.best.headroom_bytes) == pytest.approx(
        float(SYSTEM.chip.hbm_bytes) - used, rel=1e-9
    )


def test_without_the_exact_search_the_bound_certifies():
    found = design(SYSTEM, SMALL, 16, 64, default(), method="gradient", n_starts=STARTS)
    best = design(SYSTEM, SMALL, 16, 64, default(), method="exact", top=1)
    assert (
        found.exact == ()
        and found.gap is None
        and found.considered == 0
        and found.gradient is not None
    )
    said = found.certificate
    assert said.kind == "bound" and "lower bound" in said.statement
    assert said.floor_s <= said.bound <= best.certificate.bound and 0.0 <= said.distance < 0.3


def test_by_default_the_exact_search_decides_alone_and_has_no_gap():
    found = design(SYSTEM, SMALL, 16, 64, default(), top=3)
    assert (
        len(found.exact) == 3
        and found.gradient is None
        and found.gap is None
        and found.certificate.distance == 0.0
    )


def test_the_front_comes_when_asked_for():
    found = design(SYSTEM, SMALL, 8, 16, default(), method="exact", pareto=True)
    assert len(found.front) > 3 and float(found.front[0].step_time_s) == float(
        found.best.step_time_s
    )
    seconds, used = (
        [float(x) for x in column]
        for column in zip(*((c.step_time_s, c.memory.total) for c in found.front), strict=True)
    )
    assert seconds == sorted(seconds) and min(used) < used[0]


@pytest.mark.parametrize("method", ["exact", "gradient", "both"])
def test_when_nothing_fits_the_limit_the_closest_plan_and_changes_are_named(method):
    found = design(SYSTEM, LARGE, 4, 16, default(), method=method, n_starts=STARTS)
    assert (
        found.exact == () and found.gradient is None and not found.feasible and found.best is None
    )
    assert (
        found.binding is not None
        and found.binding.name == "memory"
        and "too much" in found.binding.message
    )
    assert found.closest is not None
    assert (
        found.binding.amount == pytest.approx(-float(found.closest.headroom_bytes), rel=1e-12)
        and found.binding.amount > 0.0
    )
    changes = {r.name: r for r in found.remedies}
    enough = int(changes["devices"].becomes)
    assert design(SYSTEM, LARGE, enough, 16, default(), method="exact").best is not None
    bigger = SYSTEM.replace(
        chip=SYSTEM.chip.replace(hbm_bytes=changes["memory"].becomes * (1.0 + 1e-12))
    )
    assert design(bigger, LARGE, 4, 16, default(), method="exact").best is not None


def test_when_bounds_leave_out_everything_the_closest_plan_is_still_named():
    huge = catalog.transformer("llama-3.1-405b", 8192.0)
    found = design(SYSTEM, huge, 64, 64, default(), method="exact", choices=EVERYTHING)
    assert (
        found.feasible is None
        and found.best is None
        and found.closest is not None
        and found.binding is not None
    )
    narrow = design(SYSTEM, huge, 64, 64, default(), method="exact", choices=Choices())
    assert narrow.closest is not None
    assert float(found.closest.memory.total) <= float(narrow.closest.memory.total)


def test_choices_that_would_help_are_named():
    tight = Choices(zero=(0,), recompute=(0.0,))
    found = design(SYSTEM, SMALL, 2, 8, default(), method="exact", choices=tight)
    assert found.best is None
    names = [r.name for r in found.remedies]
    assert names[0] in ("recompute", "zero") and "allow" in found.remedies[0].message


@pytest.mark.parametrize(
    ("limit", "name"), [("deadline_s", "deadline"), ("dollars", "budget"), ("joules", "energy")]
)
def test_a_limit_of_the_run_that_no_plan_keeps_is_named(limit, name):
    free = design(SYSTEM, SMALL, 16, 64, default(), method="exact", top=1).best
    steps = 1e12 / (64 * 8192)
    seconds = steps * float(free.step_time_s)
    most = {
        "deadline_s": seconds,
        "dollars": 1e12 * float(free.dollars_per_token),
        "joules": 1e12 * float(free.joules_per_token),
    }
    limits = Limits(**{"tokens": 1e12, limit: 0.7 * most[limit]})
    found = design(SYSTEM, SMALL, 16, 64, default(), method="exact", limits=limits)
    assert found.best is None and found.binding is not None and found.binding.name == name
    assert 0.0 < found.binding.amount <= 0.3 * most[limit] * (1.0 + 1e-9)


def test_when_no_degrees_divide_the_nearest_counts_are_named():
    found = design(SYSTEM, LARGE, 13, 64, default())
    assert (
        found.considered == 0 and found.binding is not None and found.binding.name == "divisibility"
    )
    assert "12, 14" in found.binding.message and found.remedies[0].becomes == 12.0
    assert space.degrees(stated(LARGE, 12, 64).space)


def test_memory_that_costs_speed_is_said_to_bind():
    found = design(SYSTEM, LARGE, 512, 1024, default(), method="exact")
    assert (
        found.binding is not None and found.binding.name == "memory" and found.binding.amount == 0.0
    )
    roomy = SYSTEM.replace(chip=SYSTEM.chip.replace(hbm_bytes=1e15))
    free = design(roomy, LARGE, 512, 1024, default(), method="exact")
    assert free.binding is None and float(free.exact[0].step_time_s) < float(
        found.exact[0].step_time_s
    )


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"n_devices": 0}, "devices"),
        ({"global_batch": 1.5}, "global batch"),
        ({"global_batch": float("nan")}, "global batch"),
        ({"method": "magic"}, "exact, gradient, both"),
        ({"top": 0}, "top"),
        ({"objective": "fame"}, "time, cost, energy"),
        ({"limits": Limits(deadline_s=10.0)}, "need its tokens"),
        ({"limits": Limits(dollars=-1.0)}, "dollars: expected a number above 0"),
        ({"model": SMALL.replace(n_layers=31.5)}, "n_layers"),
    ],
)
def test_a_problem_without_sense_is_refused(kwargs, said):
    arguments = {
        "system": SYSTEM,
        "model": SMALL,
        "n_devices": 8,
        "global_batch": 8,
        "coefficients": default(),
    } | kwargs
    with pytest.raises(InputError, match=said):
        design(**arguments)


# ---- rules


@pytest.mark.parametrize(
    ("degrees", "rule", "off"),
    [
        ({"tp": 128}, "heads", 64.0),
        ({"pp": 32}, "layers", 12.0),
        ({"micro_batch": 3}, "batch", None),
        ({"tp": 8, "pp": 4, "interleave": 2, "micro_batch": 32}, "interleaving", None),
        ({"tp": 8, "zero": 3, "shard": 3}, "sharding", None),
        ({"tp": 8, "etp": 3}, "experts", None),
    ],
)
def test_a_plan_that_breaks_a_rule_is_told_which(degrees, rule, off):
    at = {name: float(x) for name, x in degrees.items()}
    dp = 512.0 / (at.get("tp", 1.0) * at.get("pp", 1.0))
    found = violated(LARGE, Plan.of(dp=dp, global_batch=1024.0, **at))
    margins = {constraint.name: margin for constraint, margin in found}
    assert rule in margins and (off is None or margins[rule] == -off)


def test_a_layout_does_not_go_on_to_other_degrees():
    """A plan read from a row may hold the layers of its own stages; as a base it lends what it
    shares with others alone."""
    base = Plan.of(dp=1.0, global_batch=1.0, stage_excess=0.5, head_displaces=2.0)
    stated = problem(SYSTEM, catalog.transformer("gpt-3-13b"), 64, 64, default(), base=base)
    own = stated.space.base.layout
    assert (float(own.stage_excess), float(own.head_displaces)) == (0.0, 0.0)
