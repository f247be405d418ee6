"""Work on one chip: rooflines, saturation and launches at their limits."""

from math import inf

import numpy as np
import pytest

from dmodel import catalog
from dmodel.cost import compute
from dmodel.records import Plan
from dmodel.tables import Matmuls
from tests.points import CHIP, COEFFICIENTS, IDEAL

PLAIN = IDEAL.replace(
    matmul_half_rows=1e-9,
    matmul_half_columns=1e-9,
    matmul_half_inner=1e-9,
    attention_exponentials=1e-9,
)
PEAK, HBM = CHIP.flops_per_s, CHIP.hbm_bytes_per_s


def product(rows: float, columns: float, inner: float, copies: float = 1.0) -> Matmuls:
    sizes = {
        "rows": rows,
        "columns": columns,
        "inner": inner,
        "copies": copies,
        "grouped": float(copies > 1.0),
    }
    return Matmuls(**{name: np.array([size]) for name, size in sizes.items()})


def matmul(p: Matmuls, c=PLAIN, operand: float = 2.0, sharpness: float = inf) -> float:
    """At one peak for all precisions."""
    chip = CHIP.replace(attention_flops_per_s=PEAK)
    return float(
        compute.matmul_time(p, np.array([PEAK]), np.array([operand]), chip, c, sharpness)[0]
    )


def test_a_large_product_takes_its_arithmetic():
    n = 16384.0
    assert matmul(product(n, n, n)) == pytest.approx(2.0 * n**3 / PEAK, rel=1e-9)
    assert matmul(product(n, n, n), PLAIN.replace(matmul_efficiency=0.7)) == pytest.approx(
        2.0 * n**3 / (0.7 * PEAK), rel=1e-9
    )


@pytest.mark.parametrize("operand", [1.0, 2.0])
def test_a_thin_product_takes_its_memory(operand):
    """One row: the weights are read, and nothing else counts; the result is written in 16 bits."""
    n = 8192.0
    assert matmul(product(1.0, n, n), operand=operand) == pytest.approx(
        (operand * (n + n * n) + 2.0 * n) / HBM, rel=1e-9
    )


def test_the_roofline_bends_where_arithmetic_meets_memory():
    """Rows at which 2 M n² / peak = 2 n² / HBM, the ridge of the roofline, for wide products."""
    n, ridge = 1e7, PEAK / HBM
    assert matmul(product(0.5 * ridge, n, n)) == pytest.approx(2.0 * n * n / HBM, rel=1e-3)
    assert matmul(product(2.0 * ridge, n, n)) == pytest.approx(4.0 * ridge * n * n / PEAK, rel=1e-3)


def test_rate_is_half_at_each_half_size():
    n = 1e6
    shapes = (100.0, n, n), (n, 100.0, n), (n, n, 100.0)
    for half, shape in zip(
        ("matmul_half_rows", "matmul_half_columns", "matmul_half_inner"), shapes, strict=True
    ):
        p, c = product(*shape), PLAIN.replace(**{half: 100.0}, memory_efficiency=1e6)
        assert matmul(p, c) == pytest.approx(2.0 * float(p.flops[0]) / PEAK, rel=3e-4)


@pytest.mark.parametrize("operand", [2.0, 1.0, 0.5])
def test_tiles_take_longer_for_operands_of_fewer_bits(operand):
    """However high their own peak is, which a product of no inner size does not notice, and any
    other has the less of."""
    p, c = product(1e6, 1e6, 400.0), PLAIN.replace(matmul_half_inner=100.0, memory_efficiency=1e6)

    def found(times: float) -> float:
        return float(
            compute.matmul_time(p, np.array([times * PEAK]), np.array([operand]), CHIP, c, inf)[0]
        )

    tile = float(p.flops[0]) / 4.0 / float(CHIP.attention_flops_per_s) * 2.0 / operand
    for times in (1.0, 2.0, 6.0):
        assert found(times) == pytest.approx(float(p.flops[0]) / (times * PEAK) + tile, rel=3e-4)
    assert found(6.0) < found(2.0) < found(1.0)


def test_grouped_products_keep_their_share_from_two_copies_on():
    c = PLAIN.replace(grouped_efficiency=0.5)
    one, two, eight = (
        matmul(product(4096.0, 4096.0, 4096.0, copies), c) for copies in (1.0, 2.0, 8.0)
    )
    assert two == pytest.approx(4.0 * one) and eight == pytest.approx(16.0 * one)


def test_a_softer_maximum_is_larger_and_bounded():
    """At a tie of arithmetic and memory, 2^(1/p) above."""
    n = 1e7
    p = product(PEAK / HBM, n, n)
    hard = matmul(p)
    for sharpness in (2.0, 8.0, 64.0):
        assert matmul(p, sharpness=sharpness) / hard == pytest.approx(
            2.0 ** (1.0 / sharpness), rel=1e-3
        )


def test_attention_is_the_larger_of_products_and_exponentials_and_the_traffic_of_scores():
    c, share = COEFFICIENTS, COEFFICIENTS.attention_efficiency

    def core(flops: float, powers: float, nbytes: float = 0.0, sharpness: float = inf) -> float:
        return float(compute.attention_time(flops, powers, nbytes, CHIP, c, sharpness))

    products, powers = (
        1e15 / CHIP.attention_flops_per_s,
        c.attention_exponentials * 1e13 / CHIP.exponentials_per_s,
    )
    assert core(1e15, 0.0) == pytest.approx(products / share)
    assert powers > products and core(1e15, 1e13) == pytest.approx(powers / share)
    assert core(0.0, 0.0, 1e12) == pytest.approx(
        c.softmax_traffic * 1e12 / (c.memory_efficiency * HBM)
    )
    # half the sharpness of other maxima
    assert core(1e15, 1e13, sharpness=8.0) == pytest.approx(
        (products**4 + powers**4) ** 0.25 / share
    )


def test_wide_heads_hide_exponentials_and_narrow_ones_do_not():
    """Forward, a head of 64 takes as long as one of 128 on Blackwell: 4 times Ampere's matrix units
    beside as many exponentials."""

    def shorter(name: str) -> float:
        chip, c = catalog.chip(name), COEFFICIENTS.replace(attention_exponentials=1.0)
        wide, narrow = (
            float(compute.attention_time(e * 1e13, 0.25e13, 0.0, chip, c, inf))
            for e in (128.0, 64.0)
        )
        return narrow / wide

    assert shorter("A100-80GB") == pytest.approx(0.5) and shorter("B200") == pytest.approx(
        1.0, rel=1e-3
    )


def test_attention_in_8_bits_on_h100_is_what_its_authors_measured():
    """FlashAttention-3 forward: 1.2 PFLOP/s in 8 bits for 0.74 in 16 (Shah et al. 2024, arXiv
    2407.08608), here with heads of 128."""
    chip, c = catalog.chip("H100-80GB"), COEFFICIENTS.replace(attention_exponentials=1.1)
    sixteen, eight = (
        float(compute.attention_time(x * 512e12, 1e12, 0.0, chip, c))
        for x in (1.0, 1.0 / compute.NARROW_ATTENTION)
    )
    assert sixteen / eight == pytest.approx(1.2 / 0.74, rel=0.1)


def test_attention_in_8_bits_is_faster_where_it_is_fused():
    eight = Plan.of(dp=1.0, global_batch=1.0, attention_bytes=1.0)
    assert [
        float(compute.narrowed(p))
        for p in (Plan.of(dp=1.0, global_batch=1.0), eight, eight.having(flash=0.0))
    ] == [1.0, 0.5, 1.0]
    assert 0.5 < float(compute.narrowed(eight.having(attention_bytes=1.5))) < 1.0


def test_older_kernels_cost_where_attention_is_fused():
    older = Plan.of(dp=1.0, global_batch=1.0, attention_rate=0.5, attention_backward_rate=0.25)
    plans = (
        older,
        older.having(flash=0.0),
        older.having(attention_rate=1.0, attention_backward_rate=1.0),
    )
    found = [compute.older_kernels(p) for p in plans]
    assert [(float(f.forward), float(f.backward)) for f in found] == [
        (2.0, 4.0),
        (1.0, 1.0),
        (1.0, 1.0),
    ]


def test_streaming_and_optimizer_move_their_bytes():
    c = COEFFICIENTS
    assert float(compute.streaming_time(1e12, CHIP, c)) == pytest.approx(
        1e12 / (c.memory_efficiency * HBM)
    )
    assert float(compute.optimizer_time(1e9, 30.0, CHIP, c)) == pytest.approx(
        c.optimizer_traffic * 3e10 / (c.memory_efficiency * HBM)
    )


HOST, FILL = (
    100.0 * x * CHIP.kernel_latency_s for x in (COEFFICIENTS.launch, COEFFICIENTS.kernel_fill)
)


def launch(
    device: float,
    sharpness: float = inf,
    kernels: float = 100.0,
    meetings: float = 0.0,
    c=COEFFICIENTS,
) -> float:
    started = compute.starts(*(np.array(x) for x in (kernels, kernels, meetings)), CHIP, c)
    return float(compute.launch_time(np.array(device), started, sharpness))


def test_long_kernels_pay_their_fill_and_short_ones_the_host():
    """The host's launches less what the device does meanwhile; the fill alone once the device is
    the slower of the two."""
    assert launch(10.0 * HOST) == pytest.approx(FILL, rel=1e-12) and launch(
        0.25 * HOST
    ) == pytest.approx(0.75 * HOST, rel=1e-12)
    assert launch(HOST - FILL) == pytest.approx(FILL, rel=1e-12) and launch(0.0) == pytest.approx(
        HOST, rel=1e-12
    )
    assert launch(0.0, kernels=0.0) == 0.0 == launch(1.0, kernels=0.0)


def test_a_host_of_no_launches_leaves_the_fill_and_no_fill_leaves_the_excess():
    assert launch(0.5 * HOST, 8.0, c=COEFFICIENTS.replace(launch=0.0)) == pytest.approx(
        FILL, rel=1e-12
    )
    assert launch(10.0 * HOST, c=COEFFICIENTS.replace(kernel_fill=0.0)) == 0.0


def test_the_passage_from_host_to_device_is_soft():
    c = COEFFICIENTS.replace(kernel_fill=0.0)
    assert 0.0 < launch(10.0 * HOST, 8.0, c=c) < 1e-3 * HOST
    assert launch(0.0, 8.0, c=c) == pytest.approx(HOST)
    gaps = [abs(launch(x * HOST, 1024.0) - launch(x * HOST)) / HOST for x in (0.5, 1.0, 2.0)]
    assert max(gaps) < 2e-3


def hidden(head: float, device: float, layers: float = 3.0, sharpness: float = inf) -> float:
    started = compute.Starts(np.array(FILL), np.array(HOST))
    return float(
        compute.hidden_head(np.array(head), np.array(layers), np.array(device), started, sharpness)
    )


def test_the_head_passes_while_the_device_would_wait_for_its_host():
    """All of it while there is room, what room there is else, nothing where the device decides or
    no layer stands beside it."""
    room = 3.0 * (HOST - FILL - 0.25 * HOST)
    assert hidden(0.5 * room, 0.25 * HOST) == pytest.approx(0.5 * room) and hidden(
        2.0 * room, 0.25 * HOST
    ) == pytest.approx(room)
    assert hidden(room, 2.0 * HOST) == 0.0 == hidden(room, 0.0, layers=0.0)
    assert hidden(0.0, 0.25 * HOST) == pytest.approx(0.0, abs=1e-15)
    soft = [hidden(x * room, 0.25 * HOST, sharpness=8.0) for x in (0.5, 1.0, 2.0)]
    assert 0.0 < soft[0] < 0.5 * room and soft[0] < soft[1] < soft[2] < 1.05 * room


def test_meetings_take_the_host_but_not_the_device():
    """Nothing beside a slow device; beside a fast one the host's time for each."""
    met = 300.0 * COEFFICIENTS.rendezvous * CHIP.kernel_latency_s
    assert launch(0.25 * HOST, meetings=300.0) - launch(0.25 * HOST) == pytest.approx(
        met, rel=1e-12
    )
    assert launch(10.0 * (HOST + met), meetings=300.0) == pytest.approx(FILL, rel=1e-12)
    assert launch(0.25 * HOST, meetings=300.0, c=COEFFICIENTS.replace(rendezvous=0.0)) == launch(
        0.25 * HOST
    )
