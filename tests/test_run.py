"""What follows from a step's time: throughput, utilization, power, money, a whole run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel import catalog, run
from dmodel.breakdown import TERMS, Breakdown
from dmodel.coefficients import default
from dmodel.counts import CONVENTIONS
from dmodel.records import Plan
from dmodel.step import memory_use, step_time

SYSTEM = catalog.system("H100-DGX")
MODEL = catalog.transformer("llama-3-70b", 8192.0)
PLAN = Plan.of(
    dp=16.0, tp=8.0, pp=4.0, sp=1.0, zero=1.0, shard=16.0, interleave=2.0, global_batch=1024.0
)


def breakdown(**seconds: float) -> Breakdown:
    return Breakdown(**{name: jnp.asarray(seconds.get(name, 0.0)) for name in TERMS})


@pytest.fixture(scope="module")
def step() -> Breakdown:
    return jax.jit(step_time)(SYSTEM, MODEL, PLAN, default())


def test_throughput_of_a_known_step():
    assert run.tokens_per_s(MODEL, PLAN, breakdown(matmul=16.0)) == 1024 * 8192 / 16.0


def test_mfu_is_one_when_the_step_takes_its_model_flops_at_peak():
    """6N of 70.55e9 parameters, counted by hand: 6 · 70.55e9 · tokens / (512 · peak)."""
    seconds = 6 * 70.55e9 * 1024 * 8192 / (512 * 989.4e12)
    assert run.mfu(SYSTEM, MODEL, PLAN, breakdown(matmul=seconds), "6N") == pytest.approx(
        1.0, rel=2e-3
    )


def test_conventions_differ_by_their_attention(step):
    none, half, full = (
        float(run.mfu(SYSTEM, MODEL, PLAN, step, c)) for c in ("6N", "6N+6Lhs", "6N+12Lhs")
    )
    assert none < half < full
    assert full - half == pytest.approx(half - none, rel=1e-12)
    assert set(CONVENTIONS) == {"6N", "6N+6Lhs", "6N+12Lhs"}
    with pytest.raises(ValueError, match="convention"):
        run.mfu(SYSTEM, MODEL, PLAN, step, "8N")


def test_power_lies_between_rest_and_load():
    idle, peak = float(SYSTEM.chip.idle_watts), float(SYSTEM.chip.peak_watts)

    def watts(**seconds: float) -> float:
        return float(run.device_watts(SYSTEM, breakdown(**seconds), default()))

    assert watts(launch=1.0, overhead=2.0) == pytest.approx(idle)
    for waiting in ("bubble", "straggler", "fsdp"):
        assert idle + 0.3 * (peak - idle) < watts(**{waiting: 1.0}) < idle + 0.7 * (peak - idle)
    # up to the limit that the power leaves, products draw by the time that they have; waiting for
    # peers draws less than they do
    demand = float(default().power_demand)
    some, more = ({"matmul": x / demand, "fsdp": 1.0 - x / demand} for x in (0.4, 0.7))
    assert watts(bubble=1.0) < watts(**some) < watts(**more) < peak
    assert watts(matmul=1.0) == pytest.approx(peak, rel=0.01)
    assert watts(matmul=1.0, bubble=1.0) < watts(matmul=1.0)


def test_a_step_that_waits_draws_the_limit_until_its_products_leave_room():
    """What the limit takes of the clock it gives back: power falls by less than throughput while
    products draw more than it leaves."""
    demand = float(default().power_demand)

    def watts(waiting: float) -> float:
        return float(run.device_watts(SYSTEM, breakdown(matmul=1.0, fsdp=waiting), default()))

    room = demand - 1.0
    assert watts(0.5 * room) == pytest.approx(watts(0.0), rel=0.01)
    assert watts(3.0 * room) < 0.95 * watts(0.0)


def test_activities_are_shares(step):
    busy = run.activities(SYSTEM, step)
    parts = [float(x) for x in (busy.products, busy.core, busy.streaming, busy.exposed)]
    assert (
        all(0.0 < x < 1.0 for x in parts)
        and sum(parts) < float(busy.working) < float(busy.window) < 1.0
    )
    assert 0.0 < float(busy.idling) and 0.0 < float(busy.updating) < 1.0 - float(
        busy.window
    ) - float(busy.idling)
    assert 0.0 < float(busy.link_bytes_per_s) < float(SYSTEM.network.bytes_per_s[0])


def test_energy_and_rent_agree_with_power_time_and_price(step):
    out = run.outputs(SYSTEM, MODEL, PLAN, step, default())
    tokens = 1024 * 8192
    watts = 512 * (float(out.device_watts) + 0.5 * 700.0) * run.COOLING_FACTOR
    assert out.joules_per_token == pytest.approx(watts * float(step.total) / tokens, rel=1e-12)
    assert out.dollars_per_token == pytest.approx(
        512 * float(SYSTEM.chip.price_per_s) * float(step.total) / tokens, rel=1e-12
    )
    assert out.tokens_per_s_per_device * 512 == pytest.approx(float(out.tokens_per_s), rel=1e-12)
    assert out.memory_bytes + out.headroom_bytes == pytest.approx(
        float(SYSTEM.chip.hbm_bytes), rel=1e-12
    )
    assert out.memory_bytes == memory_use(MODEL, PLAN).total
    assert out.exposed_share == step.exposed_communication / step.total


def test_batches_are_loops_and_gradients_are_finite():
    dp = jnp.array([1.0, 2.0, 16.0])

    @jax.jit
    def all_outputs(dp):
        plan = PLAN.having(dp=dp, shard=dp)
        return run.outputs(
            SYSTEM, MODEL, plan, step_time(SYSTEM, MODEL, plan, default()), default()
        )

    batch = all_outputs(dp)
    for i in range(3):
        one = all_outputs(dp[i])
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(np.broadcast_to(a, 3)[i], b, rtol=1e-12),
            batch,
            one,
        )

    slopes = jax.jit(jax.jacfwd(all_outputs))(jnp.asarray(1.0))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(slopes))
