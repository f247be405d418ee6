"""Marginal returns: exact slopes, the half return, and what happens where the best plan changes."""

import jax
import numpy as np
import pytest

from dmodel import catalog
from dmodel.coefficients import default
from dmodel.design import Choices
from dmodel.errors import InputError
from dmodel.goodput import Reliability
from dmodel.records import Plan
from dmodel.returns import Growth, best_returns, half_return, marginal_returns, scaled

SYSTEM = catalog.system("H100-DGX")
MODEL = catalog.transformer("llama-2-7b", 4096)
FSDP = Plan.of(
    dp=np.float64(16.0),
    shard=np.float64(16.0),
    zero=3.0,
    micro_batch=2.0,
    global_batch=np.float64(32.0),
)
SCALES = [24.0, 100.0, 700.0, 5000.0, 40000.0]
FEW = Choices(zero=(3,), shards="whole", recompute=(0.0,), schedules=("1f1b",))


@pytest.fixture(scope="module")
def weak():
    return marginal_returns(SYSTEM, MODEL, FSDP, default(), SCALES)


def test_slopes_are_the_differences(weak):
    h = 1e-4
    up, down = (
        marginal_returns(SYSTEM, MODEL, FSDP, default(), np.array(SCALES) * (1.0 + d))
        for d in (h, -h)
    )
    for slope, a, b, value in zip(
        *map(jax.tree.leaves, (weak.slope, up.at, down.at, weak.at)), strict=True
    ):
        np.testing.assert_allclose(
            slope * weak.devices / value, (a - b) / (2.0 * h * value), rtol=1e-6, atol=1e-7
        )


def test_returns_diminish(weak):
    throughput, slope = weak.at.tokens_per_s, weak.slope.tokens_per_s
    assert (
        (np.diff(throughput) > 0.0).all() and (np.diff(slope) < 0.0).all() and (slope > 0.0).all()
    )
    # a device adds less than the mean one gives, and energy and money per token grow
    # (at few devices their shards of the optimizer shrink faster than waiting grows)
    assert (slope < throughput / weak.devices)[1:].all() and (weak.elasticity.tokens_per_s < 1.0)[
        1:
    ].all()
    assert (weak.slope.tokens_per_joule < 0.0)[1:].all() and (weak.slope.dollars_per_token > 0.0)[
        1:
    ].all()
    # at the limit of power it stays, until products leave room under it
    watts = weak.at.device_watts
    assert (np.diff(watts) < 0.001 * watts[0]).all() and watts[-1] < 0.7 * watts[0]


def test_a_plan_grows_along_one_degree():
    grown = scaled(FSDP, np.array([64.0, 100.0]), Growth("dp", "weak"))
    np.testing.assert_allclose(grown.layout.dp, [64.0, 100.0])
    np.testing.assert_allclose(grown.layout.shard, grown.layout.dp)
    np.testing.assert_allclose(grown.global_batch, [128.0, 200.0])
    np.testing.assert_allclose(grown.n_microbatches, 1.0)
    hybrid = scaled(FSDP.having(shard=np.float64(8.0)), np.float64(64.0), Growth("dp", "strong"))
    assert float(hybrid.layout.shard) == 8.0 and float(hybrid.global_batch) == 32.0
    stages = scaled(FSDP, np.float64(64.0), Growth("pp", "strong"))
    assert (
        float(stages.layout.pp) == 4.0
        and float(stages.layout.dp) == 16.0
        and float(stages.devices) == 64.0
    )


def test_the_half_return_is_where_it_says(weak):
    half = half_return(SYSTEM, MODEL, FSDP, default(), first=24.0)
    assert half.first_slope == pytest.approx(float(weak.slope.tokens_per_s[0]), rel=1e-12)
    assert (
        half.slope == pytest.approx(0.5 * half.first_slope, rel=1e-3)
        and 24.0 < half.devices < 40000.0
    )
    there = marginal_returns(SYSTEM, MODEL, FSDP, default(), [half.devices])
    assert float(there.slope.tokens_per_s[0]) == pytest.approx(half.slope, rel=1e-12)
    never = half_return(SYSTEM, MODEL, FSDP, default(), first=24.0, largest=30.0)
    assert never.devices == float("inf")


def test_failures_take_their_share(weak):
    failing = marginal_returns(SYSTEM, MODEL, FSDP, default(), SCALES, reliability=Reliability())
    share = failing.at.tokens_per_s / weak.at.tokens_per_s
    assert (np.diff(share) < 0.0).all() and 0.7 < share[-1] < 0.9
    assert (failing.slope.tokens_per_s < weak.slope.tokens_per_s).all()


def test_the_best_plan_of_every_scale():
    """Slopes at the best plan are differences of the best value; a change of plan is named, and its
    two slopes differ."""
    found = best_returns(SYSTEM, MODEL, default(), [64, 1024], 0.25, choices=FEW)
    assert found.infeasible == () and len(found.plans) == 2
    for n, plan, slope in zip(
        (64, 1024), found.plans, found.returns.slope.tokens_per_s, strict=True
    ):
        assert float(plan.devices) == n and float(plan.global_batch) == n / 4
        near = marginal_returns(
            SYSTEM, MODEL, plan, default(), [n * (1 - 1e-4), n * (1 + 1e-4)]
        ).at.tokens_per_s
        assert slope == pytest.approx((near[1] - near[0]) / (2e-4 * n), rel=1e-2)
    (jump,) = found.jumps
    assert (
        set(jump.changed) <= {"tp", "cp", "pp", "micro_batch", "reshard", "sp", "shard"}
        and jump.changed
    )
    assert jump.slope_before != jump.slope_after
    for name in jump.changed:
        assert name in str(jump)
    if jump.devices is not None:
        assert 64 <= jump.devices <= 1024
        rates = [
            float(marginal_returns(SYSTEM, MODEL, p, default(), [jump.devices]).at.tokens_per_s[0])
            for p in found.plans
        ]
        assert rates[0] == pytest.approx(rates[1], rel=1e-2)


def test_what_cannot_grow_is_said():
    with pytest.raises(InputError, match="expected one of dp, tp"):
        marginal_returns(SYSTEM, MODEL, FSDP, default(), SCALES, along="ep")
    with pytest.raises(InputError, match="expected one of weak, strong"):
        marginal_returns(SYSTEM, MODEL, FSDP, default(), SCALES, batch="fixed")
    with pytest.raises(InputError, match="ascending counts"):
        marginal_returns(SYSTEM, MODEL, FSDP, default(), [64.0, 32.0])
    with pytest.raises(InputError, match="the plan ends at 16 devices"):
        marginal_returns(SYSTEM, MODEL, FSDP, default(), [64.0], batch="strong")
    with pytest.raises(InputError, match="the fabric holds 24,576"):
        marginal_returns(catalog.system("H100-Llama-3"), MODEL, FSDP, default(), [1e5])
    with pytest.raises(InputError, match="whole number of sequences"):
        best_returns(SYSTEM, MODEL, default(), [8], 0.3)
    with pytest.raises(InputError, match="whole number of sequences"):
        best_returns(SYSTEM, MODEL, default(), [8], float("nan"))
    with pytest.raises(InputError, match=r"expected whole numbers.*got 8\.5"):
        best_returns(SYSTEM, MODEL, default(), [8.5], 2.0)  # type: ignore[list-item]
    for first in (0.0, float("nan")):
        with pytest.raises(InputError, match="ascending counts"):
            half_return(SYSTEM, MODEL, FSDP, default(), first=first)
    with pytest.raises(InputError, match="the fabric holds 24,576"):
        half_return(catalog.system("H100-Llama-3"), MODEL, FSDP, default(), first=1e5)
    with pytest.raises(InputError, match="between 0 and 1; got 1.5"):
        half_return(SYSTEM, MODEL, FSDP, default(), share=1.5)
    net = SYSTEM.network
    dead = SYSTEM.replace(network=net.replace(bytes_per_s=np.array([4.5e11, 0.0])))
    with pytest.raises(InputError, match="level 1: bytes_per_s: expected a bandwidth above 0"):
        marginal_returns(dead, MODEL, FSDP, default(), SCALES)
