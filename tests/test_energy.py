"""Energy, money and carbon: what they add up from, and that all of it is smooth."""

import jax
import numpy as np
import pytest

from dmodel import catalog, run
from dmodel.breakdown import TERMS, Breakdown
from dmodel.coefficients import default
from dmodel.energy import GRID_KG, YEAR, Site, energy
from dmodel.records import Plan

SYSTEM = catalog.system("H100-DGX")
MODEL = catalog.transformer("llama-2-7b", 4096.0)
PLAN = Plan.of(dp=128.0, zero=3.0, shard=128.0, micro_batch=2.0, global_batch=256.0)
TOKENS = 256 * 4096.0
STEP = {
    "matmul": 0.6,
    "attention": 0.1,
    "elementwise": 0.1,
    "fsdp": 0.2,
    "launch": 0.05,
    "optimizer": 0.01,
    "overhead": 0.02,
}


def breakdown(**seconds: float) -> Breakdown:
    return Breakdown(**{name: np.float64(seconds.get(name, 0.0)) for name in TERMS})


def test_power_is_the_sum_of_its_causes():
    step = breakdown(**STEP)
    found, draw = (
        energy(SYSTEM, MODEL, PLAN, step, default()),
        run.device_draw(SYSTEM, step, default()),
    )
    parts = [float(x) for x in jax.tree.leaves(draw)]
    assert float(found.device_watts) == pytest.approx(sum(parts)) and min(parts) > 0.0
    assert float(found.facility_watts) == pytest.approx(128 * (sum(parts) + 350.0) * 1.1)


def test_units_agree():
    step = breakdown(**STEP)
    found = energy(SYSTEM, MODEL, PLAN, step, default())
    assert float(found.joules_per_step) == pytest.approx(
        float(found.facility_watts) * float(step.total)
    )
    assert float(found.joules_per_token) == pytest.approx(
        float(run.joules_per_token(SYSTEM, MODEL, PLAN, step, default()))
    )
    assert float(found.tokens_per_joule) * float(found.joules_per_token) == pytest.approx(1.0)
    assert float(found.dollars_per_token) == pytest.approx(
        128 * float(SYSTEM.chip.price_per_s) * float(step.total) / TOKENS
    )
    assert float(found.kg_per_token) == pytest.approx(float(found.joules_per_token) * GRID_KG)


def test_a_site_counts_what_it_is_told_to():
    step = breakdown(**STEP)
    bare = energy(SYSTEM, MODEL, PLAN, step, default(), Site(host_share=0.0, cooling_factor=1.0))
    assert float(bare.facility_watts) == pytest.approx(128 * float(bare.device_watts))
    paid = energy(SYSTEM, MODEL, PLAN, step, default(), Site(dollars_per_joule=0.1 / 3.6e6))
    rent = energy(SYSTEM, MODEL, PLAN, step, default())
    assert float(paid.dollars_per_step - rent.dollars_per_step) == pytest.approx(
        float(rent.joules_per_step) / 3.6e6 * 0.1
    )
    made = energy(SYSTEM, MODEL, PLAN, step, default(), Site(kg_per_device=164.0, kg_per_joule=0.0))
    assert float(made.kg_per_step) == pytest.approx(128 * 164.0 * float(step.total) / (5 * YEAR))


def test_waiting_costs_energy_but_less_than_work():
    """The same work with more waiting draws less power and takes more energy: what makes tokens per
    joule fall with scale."""
    short, long = (
        energy(SYSTEM, MODEL, PLAN, breakdown(**{**STEP, "fsdp": x}), default()) for x in (0.1, 0.8)
    )
    assert float(long.device_watts) < float(short.device_watts) and float(
        long.joules_per_token
    ) > float(short.joules_per_token)


def test_gradients_are_the_differences():
    step = breakdown(**STEP)

    def joules(scale: jax.Array) -> jax.Array:
        return energy(
            SYSTEM, MODEL, PLAN, jax.tree.map(lambda x, s: x * s, step, scale), default()
        ).joules_per_token

    ones = jax.tree.map(lambda x: np.ones(()), step)
    slopes = jax.grad(joules)(ones)
    for name in TERMS:
        up, down = (
            float(joules(ones.replace(**{name: np.float64(1.0 + d)}))) for d in (1e-5, -1e-5)
        )
        assert float(getattr(slopes, name)) == pytest.approx(
            (up - down) / 2e-5, rel=1e-5, abs=1e-13
        ), name
    nothing = jax.grad(lambda t: energy(SYSTEM, MODEL, PLAN, t, default()).device_watts)(
        breakdown(overhead=1.0)
    )
    assert all(np.isfinite(x) for x in jax.tree.leaves(nothing))
