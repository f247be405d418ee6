"""Work on one chip: rooflines, saturation and launches at their limits."""

from math import inf

import numpy as np
import pytest

from dmodel.cost import compute
from dmodel.counts import Matmuls
from tests.points import CHIP, COEFFICIENTS, IDEAL

PLAIN = IDEAL.replace(matmul_half_rows=1e-9, matmul_half_width=1e-9, attention_half_head=1e-9)
PEAK, HBM = CHIP.flops_per_s, CHIP.hbm_bytes_per_s


def product(rows: float, columns: float, inner: float, copies: float = 1.0) -> Matmuls:
    sizes = {"rows": rows, "columns": columns, "inner": inner, "copies": copies, "grouped": float(copies > 1.0)}
    return Matmuls(**{name: np.array([size]) for name, size in sizes.items()})


def matmul(p: Matmuls, c=PLAIN, operand: float = 2.0, sharpness: float = inf) -> float:
    return float(compute.matmul_time(p, np.array([PEAK]), np.array([operand]), CHIP, c, sharpness)[0])


def test_a_large_product_takes_its_arithmetic():
    n = 16384.0
    assert matmul(product(n, n, n)) == pytest.approx(2.0 * n**3 / PEAK, rel=1e-9)
    assert matmul(product(n, n, n), PLAIN.replace(matmul_efficiency=0.7)) == pytest.approx(2.0 * n**3 / (0.7 * PEAK), rel=1e-9)


@pytest.mark.parametrize("operand", [1.0, 2.0])
def test_a_thin_product_takes_its_memory(operand):
    """One row: the weights are read, and nothing else counts; the result is written in 16 bits."""
    n = 8192.0
    assert matmul(product(1.0, n, n), operand=operand) == pytest.approx((operand * (n + n * n) + 2.0 * n) / HBM, rel=1e-9)


def test_the_roofline_bends_where_arithmetic_meets_memory():
    """Rows at which 2 M n² / peak = 2 n² / HBM, the ridge of the roofline, for wide products."""
    n, ridge = 1e7, PEAK / HBM
    assert matmul(product(0.5 * ridge, n, n)) == pytest.approx(2.0 * n * n / HBM, rel=1e-3)
    assert matmul(product(2.0 * ridge, n, n)) == pytest.approx(4.0 * ridge * n * n / PEAK, rel=1e-3)


@pytest.mark.parametrize("x", [0.0, 1.0, 7.0, 1e3])
def test_saturation(x):
    assert float(compute.saturation(x, 7.0)) == pytest.approx(x / (x + 7.0))
    assert compute.saturation(7.0, 7.0) == 0.5 and compute.saturation(1e30, 7.0) == 1.0


def test_rate_is_half_at_each_half_size():
    n = 1e6
    shapes = (100.0, n, n), (n, 100.0, n), (n, n, 100.0)
    for half, shape in zip(("matmul_half_rows", "matmul_half_width", "matmul_half_width"), shapes, strict=True):
        p, c = product(*shape), PLAIN.replace(**{half: 100.0}, memory_efficiency=1e6)
        assert matmul(p, c) == pytest.approx(2.0 * float(p.flops[0]) / PEAK, rel=3e-4)


def test_grouped_products_keep_their_share_from_two_copies_on():
    c = PLAIN.replace(grouped_efficiency=0.5)
    one, two, eight = (matmul(product(4096.0, 4096.0, 4096.0, copies), c) for copies in (1.0, 2.0, 8.0))
    assert two == pytest.approx(4.0 * one) and eight == pytest.approx(16.0 * one)


def test_a_softer_maximum_is_larger_and_bounded():
    """At a tie of arithmetic and memory, 2^(1/p) above."""
    n = 1e7
    p = product(PEAK / HBM, n, n)
    hard = matmul(p)
    for sharpness in (2.0, 8.0, 64.0):
        assert matmul(p, sharpness=sharpness) / hard == pytest.approx(2.0 ** (1.0 / sharpness), rel=1e-3)


def test_attention_is_arithmetic_and_the_traffic_of_scores():
    c = COEFFICIENTS
    rate = CHIP.attention_flops_per_s * c.attention_efficiency * 128.0 / (128.0 + c.attention_half_head)
    assert float(compute.attention_time(1e15, 0.0, 128.0, CHIP, c)) == pytest.approx(1e15 / rate)
    assert float(compute.attention_time(0.0, 1e12, 128.0, CHIP, c)) == pytest.approx(c.softmax_traffic * 1e12 / (c.memory_efficiency * HBM))


def test_streaming_and_optimizer_move_their_bytes():
    c = COEFFICIENTS
    assert float(compute.streaming_time(1e12, CHIP, c)) == pytest.approx(1e12 / (c.memory_efficiency * HBM))
    assert float(compute.optimizer_time(1e9, 30.0, CHIP, c)) == pytest.approx(c.optimizer_traffic * 3e10 / (c.memory_efficiency * HBM))


def test_launches_cost_what_they_add():
    launches = 100.0 * COEFFICIENTS.launch * CHIP.kernel_latency_s

    def excess(device: float, sharpness: float) -> float:
        return float(compute.launch_bound_excess(np.array(device), np.array(100.0), CHIP, COEFFICIENTS, sharpness))

    assert excess(10.0 * launches, inf) == 0.0 and excess(0.25 * launches, inf) == pytest.approx(0.75 * launches)
    assert 0.0 < excess(10.0 * launches, 8.0) < 1e-3 * launches
    assert excess(0.0, 8.0) == pytest.approx(launches)
    gaps = [abs(excess(x * launches, 1024.0) - excess(x * launches, inf)) / launches for x in (0.5, 1.0, 2.0)]
    assert max(gaps) < 2e-3
