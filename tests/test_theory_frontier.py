"""The frontier of training: optimality, slopes against solving again, and the closed forms in the
limits where they hold."""

from __future__ import annotations

from math import inf, log

import jax
import numpy as np
import pytest

from dmodel.errors import InputError
from dmodel.theory import frontier, gpu, laws, training
from dmodel.theory.closed_form import Wall, t_limit
from dmodel.theory.elasticity import EXPONENTS, elasticities
from dmodel.theory.frontier import Frontier, case, largest_run, slopes
from dmodel.theory.interior import Program, maximize
from dmodel.theory.pattern import (
    DP,
    EP,
    PP,
    TP_FF,
    TP_MODEL,
    Pattern,
    arrays,
    neighbours,
    possible,
)
from dmodel.theory.program import Case, limit_names
from dmodel.theory.tiling import UNROUNDED

H100 = gpu("H100 SXM")
TENSOR, ALL = frozenset({TP_MODEL, TP_FF}), frozenset({DP, TP_MODEL, TP_FF, PP})
ZERO_BUBBLE = Pattern((TENSOR, ALL), True, 0)
LATENCY = Pattern((frozenset({DP}), ALL - {PP}), False, 2)

GAMMA = float(laws.STUDY.depth_exponent)
GROWTH = 1.0 / 6.0 - GAMMA / (2.0 * (1.0 + GAMMA))
"""Batch exponent less that of depth in compute, when depth is a power γ of the width squared."""

POWER = 1.0 / (1.0 - 2.0 * GROWTH)


@pytest.fixture(scope="module", autouse=True)
def two_at_once():
    """One pattern has two starts, the same ones in a batch of two as in a larger one, whose other
    programs would be solved for nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frontier, "BATCH", frontier.STARTS)
        yield


@pytest.fixture(scope="module")
def linear() -> tuple[Case, Frontier]:
    """The end of linear scaling of an H100."""
    asked = case(H100, threshold=0.8)
    return asked, largest_run(asked, pattern=ZERO_BUBBLE)


@pytest.fixture(scope="module")
def feasible() -> tuple[Case, Frontier]:
    """The largest run of an H100 that finishes."""
    asked = case(H100, threshold=0.0)
    return asked, largest_run(asked, pattern=LATENCY)


def changed(asked: Case, name: str, step: float) -> Case:
    """The case with one input raised by a factor 1 + step, or an exponent by step."""
    chip, network, law, more = asked.system.chip, asked.system.network, asked.laws, 1.0 + step
    on_chip = {
        "matmul latency": "kernel_latency_s",
        "L2 bandwidth": "l2_bytes_per_s",
        "FLOP/s": "flops_per_s",
    }
    if name in on_chip:
        value = getattr(chip, on_chip[name]) * more
        return asked.replace(
            system=asked.system.replace(chip=chip.replace(**{on_chip[name]: value}))
        )
    if name == "network bandwidth":
        return asked.replace(
            system=asked.system.replace(
                network=network.replace(bytes_per_s=network.bytes_per_s * more)
            )
        )
    if name == "network latency":
        return asked.replace(
            system=asked.system.replace(network=network.replace(latency_s=network.latency_s * more))
        )
    if name == "training time":
        return asked.replace(deadline_s=asked.deadline_s * more)
    batch = law.batch
    new = {
        "batch constant": law.replace(batch=batch.replace(tokens=batch.tokens * more)),
        "batch exponent": law.replace(batch=batch.replace(by_flop=batch.by_flop + step)),
        "depth constant": law.replace(depth=law.depth * more),
        "depth exponent": law.replace(depth_exponent=law.depth_exponent + step),
    }
    return asked.replace(laws=new[name])


def test_optimum(linear, feasible):
    for (asked, found), flop, binding in (
        (
            linear,
            2.435e29,
            {"deadline", "utilization", "micro-batches fill the pipeline", "stages have a layer"},
        ),
        (feasible, 4.766e31, {"deadline", "micro-batches fill the pipeline"}),
    ):
        assert found.smooth and found.residual < 1e-7
        assert found.flop == pytest.approx(flop, rel=1e-3)
        assert set(found.binding) == binding
        hard = training(asked.system, found.run, found.layout, rules=UNROUNDED, sharpness=inf)
        assert float(hard.train_time_s) == pytest.approx(float(asked.deadline_s), rel=3e-3)
        assert float(hard.train_time_s) <= float(asked.deadline_s)


def test_between_the_grid_points_of_the_study(linear, feasible):
    """Whole degrees cost utilization: the study leaves linear scaling for good at 1.3e29; it
    finishes 2.71e31 and not 5.08e31."""
    assert 1.3e29 < linear[1].flop < 2.6e29
    assert 2.71e31 < feasible[1].flop < 5.08e31


@pytest.mark.parametrize(
    "name",
    [
        "network bandwidth",
        "matmul latency",
        "L2 bandwidth",
        "FLOP/s",
        "training time",
        "batch exponent",
    ],
)
def test_slopes_are_those_of_solving_again(linear, name):
    asked, found = linear
    check_slope(asked, found, name)


@pytest.mark.parametrize(
    "name", ["network latency", "batch constant", "depth constant", "depth exponent"]
)
def test_slopes_of_the_latency_wall(feasible, name):
    check_slope(*feasible, name)


def check_slope(asked: Case, found: Frontier, name: str) -> None:
    step = 1e-4 if name in EXPONENTS else 1e-3
    low, high = (
        largest_run(changed(asked, name, s), pattern=found.pattern, seed=3).flop
        for s in (-step, step)
    )
    by = 2.0 * step if name in EXPONENTS else log((1.0 + step) / (1.0 - step))
    assert log(high / low) / by == pytest.approx(elasticities(asked, found)[name], rel=1e-4)


def test_time_and_rates_scale_together(linear, feasible):
    """With all rates doubled and all times halved nothing changes: elasticities to rates add up to
    those to times."""
    rates = (
        "network bandwidth",
        "HBM bandwidth",
        "L2 bandwidth",
        "shared memory bandwidth",
        "FLOP/s",
    )
    for asked, found in (linear, feasible):
        e = elasticities(asked, found)
        assert sum(e[x] for x in rates) == pytest.approx(
            e["training time"] + e["matmul latency"] + e["network latency"], abs=1e-5
        )
        assert e["training time"] == pytest.approx(found.binding["deadline"], rel=1e-9)


def wide(scale: float) -> Case:
    """Latency alone: everything that flows is instant. A larger batch makes steps longer, beside
    which one all-reduce is nothing."""
    chip = H100.chip.replace(hbm_bytes_per_s=inf, l2_bytes_per_s=inf, shared_bytes_per_s=inf)
    system = H100.replace(chip=chip, network=H100.network.replace(bytes_per_s=np.full(2, inf)))
    law = laws.STUDY.replace(batch=laws.STUDY.batch.replace(tokens=scale * laws.STUDY.batch.tokens))
    return case(system, law, threshold=0.0)


@pytest.mark.parametrize(("scale", "within"), [(1.0, 5e-5), (1e6, 2e-6)])
def test_latency_limit(scale, within):
    asked = wide(scale)
    found = largest_run(asked, pattern=LATENCY)
    e = elasticities(asked, found)
    assert e["training time"] == pytest.approx(2.0 * POWER, rel=within)
    assert e["batch constant"] == pytest.approx(2.0 * POWER, rel=within)
    assert e["matmul latency"] + e["network latency"] == pytest.approx(-2.0 * POWER, rel=within)
    assert e["depth constant"] == pytest.approx(-2.0 * POWER / (1.0 + GAMMA), rel=2.0 * within)
    assert e["batch exponent"] == pytest.approx(2.0 * POWER * log(found.flop / 3e23), rel=within)
    # six products and two all-reduces at one level, 27 + 9 µs, are the closed form's 4 of 9 µs; T0
    # in multiply-adds
    layers = depth_at(3e23)
    wall = Wall(
        flops_per_s=1.0,
        network_bytes_per_s=1.0,
        hbm_bytes_per_s=1.0,
        deadline_s=frontier.DEADLINE_S,
        n_layers=layers,
    )
    wall = wall.replace(
        batch_tokens=scale * 2048.0**2,
        batch_exponent=1 / 6,
        depth_exponent=1 / 6 - GROWTH,
        reference_compute=1.5e23,
    )
    assert found.flop == pytest.approx(float(t_limit(wall)), rel=10.0 * within)


def depth_at(flop: float) -> float:
    """Layers of a dense run without rounding: `L^(1 + γ) = c^1 (P / 2)^γ`, P = sqrt(C / 120)."""
    return float(
        (laws.STUDY.depth * (np.sqrt(flop / 120.0) / 2.0) ** GAMMA) ** (1.0 / (1.0 + GAMMA))
    )


def narrow(batch: float) -> Case:
    """Bandwidth alone, of HBM and between nodes: no latency, L2 and the node's network instant,
    data parallelism hidden. A slow network makes shards so large that activations are small beside
    weights; a large batch makes many of them."""
    chip = H100.chip.replace(
        l2_bytes_per_s=inf,
        shared_bytes_per_s=inf,
        kernel_latency_s=0.0,
        l2_bytes=1e4 * H100.chip.l2_bytes,
    )
    chip = chip.replace(hbm_bytes=1e40)
    rates = np.array([inf, 1e-2 * H100.network.bytes_per_s[1]])
    system = H100.replace(
        chip=chip, network=H100.network.replace(bytes_per_s=rates, latency_s=np.zeros(2))
    )
    law = laws.STUDY.replace(batch=laws.STUDY.batch.replace(tokens=batch * laws.STUDY.batch.tokens))
    return case(system, law, threshold=0.8, overlap_dp=True)


def test_bandwidth_limit():
    expected = {
        "network bandwidth": 4.0 * POWER,
        "HBM bandwidth": 2.0 * POWER,
        "FLOP/s": -4.0 * POWER,
        "training time": 2.0 * POWER,
        "batch constant": 2.0 * POWER,
        "depth constant": -2.0 * POWER / (1.0 + GAMMA),
    }
    misses = []
    for batch in (1e12, 1e16):
        asked = narrow(batch)
        e = elasticities(asked, largest_run(asked, pattern=ZERO_BUBBLE))
        misses.append(max(abs(e[name] / power - 1.0) for name, power in expected.items()))
    assert misses[1] < 2e-3 and misses[0] < 1e-1 and misses[1] < 0.1 * misses[0]


@pytest.mark.slow
def test_gradient_of_the_frontier(linear, monkeypatch):
    """Slopes of the search over patterns, here the typical ones, of which the best is known."""
    monkeypatch.setattr(frontier, "neighbours", lambda _: [])
    asked, _ = linear
    largest = largest_run(asked)
    slope = slopes(asked, largest)
    found = largest_run(asked, pattern=ZERO_BUBBLE, seed=5)
    assert largest.flop == pytest.approx(found.flop, rel=1e-6)
    assert float(slope.deadline_s * asked.deadline_s) == pytest.approx(
        found.binding["deadline"], rel=1e-5
    )
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(slope))


def test_impossible_and_senseless_cases():
    with pytest.raises(InputError, match="threshold"):
        case(H100, threshold=1.0)
    with pytest.raises(InputError, match="deadline"):
        case(H100, deadline_s=0.0)
    with pytest.raises(InputError, match="no run of any size"):
        largest_run(case(H100, threshold=0.9999), pattern=LATENCY)


def test_patterns():
    sizes = (8.0, inf)
    assert possible(ZERO_BUBBLE, sizes, False) and not possible(ZERO_BUBBLE, sizes, True)
    assert not possible(ZERO_BUBBLE._replace(present=(frozenset(), ALL)), sizes, False)
    # three degrees of 2 fill a level of 8 with no room to choose
    assert not possible(ZERO_BUBBLE._replace(present=(TENSOR | {DP}, ALL)), sizes, False)
    assert possible(ZERO_BUBBLE._replace(present=(TENSOR, ALL | {EP})), sizes, True)
    assert ZERO_BUBBLE._replace(zero_bubble=False) in neighbours(ZERO_BUBBLE)
    assert ZERO_BUBBLE not in neighbours(ZERO_BUBBLE)
    numbers = arrays(ZERO_BUBBLE, sizes)
    assert numbers.present.sum() == 6 and numbers.residual.sum() == 1 and numbers.expert.sum() == 0
    assert len(limit_names(2)) == 22


def quadratic(soft: float) -> Program:
    """max x + y with x² + y² ≤ 2, x ≤ ½ and y ≥ 0."""

    def values(z):
        x, y = z[..., 0], z[..., 1]
        return x + y, np.stack([2.0 - x**2 - y**2, 0.5 - x, y], -1)

    def slopes(z):
        x, y = z[..., 0], z[..., 1]
        one, zero = np.ones_like(x), np.zeros_like(x)
        rows = [
            np.stack([-2.0 * x, -2.0 * y], -1),
            np.stack([-one, zero], -1),
            np.stack([zero, one], -1),
        ]
        return np.ones_like(z), np.stack(rows, -2)

    return Program(values, slopes, np.full(3, soft))


@pytest.mark.parametrize(("soft", "start"), [(0.0, (0.1, 0.1)), (1.0, (5.0, -3.0))])
def test_interior_point(soft, start):
    found = maximize(quadratic(soft), np.array([start, (0.2, 0.3)]))
    y = np.sqrt(1.75)
    np.testing.assert_allclose(found.z, [[0.5, y]] * 2, atol=1e-7)
    # 1 = 2 y λ₀ and 1 = 2 x λ₀ + λ₁
    np.testing.assert_allclose(found.multipliers, [[0.5 / y, 1.0 - 0.5 / y, 0.0]] * 2, atol=1e-6)
    assert (found.residual < 1e-7).all()
