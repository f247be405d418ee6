"""Failures and checkpoints: published rates, limits, the optimum interval, and gradients."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from dmodel.goodput import (
    Reliability,
    daly_interval,
    goodput,
    largest_cluster,
    mean_time_between_failures,
    young_interval,
)


def test_llama_3_trained_more_than_nine_tenths_of_the_time():
    """Llama 3 report, section 3.3.4: 419 unexpected interruptions in 54 days, and over 90 % effective training time."""
    assert float(54 * 86400.0 / mean_time_between_failures(16384.0, Reliability())) == pytest.approx(419.0)
    assert 0.90 < float(goodput(16384.0, Reliability())) < 0.95


@pytest.mark.parametrize("mtbf", [1e2, 1e4, 1e7])
def test_the_interval_is_the_optimum(mtbf):
    reliability = Reliability(failures_per_device_s=1.0 / mtbf, checkpoint_s=20.0)
    best = float(daly_interval(mtbf, 20.0))
    tried = np.array([float(goodput(1.0, reliability, best * f)) for f in np.linspace(0.5, 2.0, 61)])
    assert float(goodput(1.0, reliability)) >= tried.max() * (1.0 - 1e-3)


def test_a_simulated_run_agrees():
    """Failures drawn one by one over many checkpoint intervals."""
    mtbf, tau, checkpoint, restart = 3000.0, 600.0, 60.0, 300.0
    random, clock = np.random.default_rng(0), 0.0
    for _ in range(20_000):
        pause = 0.0
        while (failure := random.exponential(mtbf)) < pause + tau + checkpoint:
            clock, pause = clock + failure, restart
        clock += pause + tau + checkpoint
    reliability = Reliability(failures_per_device_s=1.0 / mtbf, checkpoint_s=checkpoint, restart_s=restart)
    assert float(goodput(1.0, reliability, tau)) == pytest.approx(20_000 * tau / clock, rel=0.01)


def test_limits():
    rare = Reliability(failures_per_device_s=1e-9)
    tau = float(young_interval(1e9, 5.0))
    assert float(daly_interval(1e9, 5.0)) == pytest.approx(tau, rel=1e-3)
    first_order = 1.0 - 5.0 / tau - (tau + 5.0) / 2e9 - 600.0 / 1e9
    assert float(goodput(1.0, rare)) == pytest.approx(first_order, rel=1e-8)
    never = Reliability(failures_per_device_s=0.0)
    assert float(goodput(1e9, never)) == 1.0 and largest_cluster(never) == float("inf")
    assert float(goodput(1e9, never, 95.0)) == pytest.approx(0.95)
    assert float(goodput(1e12, Reliability())) == 0.0
    assert float(goodput(largest_cluster(Reliability(), 0.3), Reliability())) == pytest.approx(0.3)


@pytest.mark.parametrize("devices", [1.0, 16384.0, 1e6, 1e12])
def test_gradients(devices):
    for reliability in (Reliability(), Reliability(failures_per_device_s=0.0)):
        slopes = jax.grad(lambda r: goodput(devices, r))(reliability)
        assert all(np.isfinite(x) for x in jax.tree.leaves(slopes)), slopes
    step = 1e-3
    at = [float(goodput(devices, Reliability(restart_s=600.0 + d))) for d in (step, -step)]
    found = jax.grad(lambda r: goodput(devices, r))(Reliability()).restart_s
    assert float(found) == pytest.approx((at[0] - at[1]) / (2 * step), rel=1e-5, abs=1e-12)


def test_vmap_and_jit_agree():
    devices = np.logspace(2, 7, 11)
    many = jax.jit(jax.vmap(lambda n: goodput(n, Reliability())))(devices)
    np.testing.assert_allclose(many, [goodput(n, Reliability()) for n in devices], rtol=1e-12)
