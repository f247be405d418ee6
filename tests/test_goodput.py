"""Failures and checkpoints: published rates, limits, the optimum interval, and gradients."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from dmodel.errors import InputError
from dmodel.goodput import (
    Reliability,
    daly_interval,
    goodput,
    largest_cluster,
    mean_time_between_failures,
    shares,
    young_interval,
)


def test_llama_3_trained_more_than_nine_tenths_of_the_time():
    """Llama 3 report, section 3.3.4: 419 unexpected interruptions in 54 days, and over 90 %
    effective training time."""
    assert float(
        54 * 86400.0 / mean_time_between_failures(16384.0, Reliability())
    ) == pytest.approx(419.0)
    assert 0.90 < float(goodput(16384.0, Reliability())) < 0.95


@pytest.mark.parametrize("mtbf", [1e2, 1e4, 1e7])
def test_the_interval_is_the_optimum(mtbf):
    reliability = Reliability(failures_per_device_s=1.0 / mtbf, checkpoint_s=20.0)
    best = float(daly_interval(mtbf, 20.0))
    tried = np.array(
        [float(goodput(1.0, reliability, best * f)) for f in np.linspace(0.5, 2.0, 61)]
    )
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
    reliability = Reliability(
        failures_per_device_s=1.0 / mtbf, checkpoint_s=checkpoint, restart_s=restart
    )
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


def test_shares_of_a_simulated_run():
    """Where the time went, counted second by second."""
    mtbf, tau, checkpoint, restart = 3000.0, 600.0, 60.0, 300.0
    random, spent = np.random.default_rng(1), {"restarts": 0.0, "lost": 0.0}
    for _ in range(20_000):
        pause = 0.0
        while (failure := random.exponential(mtbf)) < pause + tau + checkpoint:
            spent["restarts"] += min(failure, pause)
            spent["lost"] += max(failure - pause, 0.0)
            pause = restart
        spent["restarts"] += pause
    wall = 20_000 * (tau + checkpoint) + sum(spent.values())
    found = shares(
        1.0,
        Reliability(failures_per_device_s=1.0 / mtbf, checkpoint_s=checkpoint, restart_s=restart),
        tau,
    )
    assert float(found.restarts) == pytest.approx(spent["restarts"] / wall, rel=0.03)
    assert float(found.lost) == pytest.approx(spent["lost"] / wall, rel=0.03)
    assert float(found.checkpoints) == pytest.approx(20_000 * checkpoint / wall, rel=0.01)


@pytest.mark.parametrize(
    "reliability",
    [
        Reliability(),
        Reliability(failures_per_device_s=0.0),
        Reliability(write_s=60.0, restart_per_device_s=0.01),
    ],
)
def test_shares_make_a_whole(reliability):
    found = shares(np.logspace(1, 6, 11), reliability)
    parts = [np.broadcast_to(x, 11) for x in jax.tree.leaves(found)]
    np.testing.assert_allclose(sum(parts), 1.0, rtol=1e-12)
    assert min(x.min() for x in parts) >= -1e-12
    useful = np.broadcast_to(found.useful, 11)
    assert (np.diff(useful) <= 0.0).all() and useful[0] > 0.99


def test_the_next_checkpoint_waits_for_the_last_one_to_arrive():
    slow = Reliability(checkpoint_s=0.01, write_s=7200.0)
    assert float(goodput(16384.0, slow)) == pytest.approx(float(goodput(16384.0, slow, 60.0)))
    assert float(goodput(16384.0, slow.replace(write_s=28.0))) > float(goodput(16384.0, slow))


def test_starting_one_after_the_other_ends_growth():
    serial, parallel = Reliability(restart_per_device_s=0.05), Reliability()
    loss = [1.0 - float(goodput(n, serial)) / float(goodput(n, parallel)) for n in (1e3, 1e4, 1e5)]
    assert loss[0] < 0.01 < loss[1] < loss[2] and loss[2] > 0.5


def test_free_or_endless_checkpoints_have_shares_too():
    """Free ones cost nothing but restarts; training that is checkpointed all the time does nothing
    else."""
    free, endless = (
        shares(1024.0, Reliability(checkpoint_s=0.0)),
        shares(1024.0, Reliability(), 0.0),
    )
    mtbf = float(mean_time_between_failures(1024.0, Reliability()))
    assert (
        float(free.useful) == pytest.approx(np.exp(-600.0 / mtbf))
        and float(free.checkpoints) == 0.0
    )
    assert (
        float(endless.useful) == pytest.approx(0.0, abs=1e-6) and float(endless.checkpoints) > 0.99
    )
    for found in (free, endless):
        assert sum(map(float, jax.tree.leaves(found))) == pytest.approx(1.0)


def test_a_share_that_is_none_is_refused():
    for share in (0.0, 1.0, float("nan")):
        with pytest.raises(InputError, match="between 0 and 1"):
            largest_cluster(Reliability(), share)


def test_free_checkpoints_have_a_slope():
    """It is that of checkpoints at the shortest interval: their share, and nothing that is no
    number."""
    free, near = (
        float(jax.grad(lambda d: goodput(1e4, Reliability(checkpoint_s=d)))(x)) for x in (0.0, 1e-9)
    )
    assert np.isfinite(free) and free < 0.0 and np.isfinite(near)
    slopes = jax.grad(lambda n, r: goodput(n, r), argnums=(0, 1))(
        1e4, Reliability(checkpoint_s=0.0)
    )
    assert all(np.isfinite(x) for x in jax.tree.leaves(slopes))


@pytest.mark.parametrize(
    "wrong", [{"checkpoint_s": -5.0}, {"failures_per_device_s": float("nan")}, {"restart_s": -1}]
)
def test_negative_numbers_are_refused(wrong):
    with pytest.raises(InputError, match=f"{next(iter(wrong))}: expected a number from 0 on"):
        goodput(1e4, Reliability(**wrong))
    with pytest.raises(InputError, match="expected a number from 0 on"):
        largest_cluster(Reliability(**wrong))
    with pytest.raises(InputError, match="devices: expected"):
        shares(-1.0, Reliability())
