"""Collectives: the limits that their docstrings state, and orders that hold for any fabric."""

from math import inf

import numpy as np
import pytest

from dmodel.cost.collectives import (
    OWN_PART,
    SWITCH,
    TREE_BANDWIDTH,
    all_reduce_time,
    all_to_all_time,
    fabric,
    gather_line,
    gather_time,
    point_to_point_time,
)
from dmodel.records import Network
from tests.points import IDEAL

ALL = (gather_time, all_reduce_time, all_to_all_time, point_to_point_time)
RATE, LATENCY = np.array([4e11, 5e10]), np.array([3e-6, 1e-5])
ONES = IDEAL.replace(net_latency_inner=1.0, net_latency_outer=1.0)


def net(levels: int = 1, sharpness: float = inf, coefficients=ONES, **changes: np.ndarray):
    """A fabric of ideal efficiency."""
    ends = np.array([8.0, inf])[-levels:]
    network = Network(
        **{
            "size": ends,
            "bytes_per_s": RATE[:levels],
            "latency_s": LATENCY[:levels],
            "torus_axes": np.ones(levels),
            "in_network_reduction": np.zeros(levels),
            **changes,
        }
    )
    return fabric(network, coefficients, sharpness)


def group(*members: float) -> np.ndarray:
    """One kind, its factor at each level."""
    return np.array(members)[:, None]


def seconds(f, nbytes: float, members: np.ndarray, fabric) -> float:
    return float(f(np.array([nbytes]), members, fabric)[0])


@pytest.mark.parametrize("f", ALL)
@pytest.mark.parametrize("sharpness", [8.0, inf])
def test_a_group_of_one_costs_nothing(f, sharpness):
    assert seconds(f, 1e9, group(1.0, 1.0), net(2, sharpness)) == 0.0


@pytest.mark.parametrize("f", ALL)
@pytest.mark.parametrize("sharpness", [8.0, inf])
@pytest.mark.parametrize("nbytes", [0.0, 1e5, 1e10])
def test_a_collective_starts_once(f, sharpness, nbytes):
    """However many levels and members, and whatever it moves; nobody starts one alone."""
    start = 3e-5
    free, paid = (
        net(2, sharpness),
        net(2, sharpness, coefficients=ONES.replace(collective_start=start)),
    )
    for members in (group(2.0, 1.0), group(1.0, 2.0), group(8.0, 64.0)):
        assert seconds(f, nbytes, members, paid) - seconds(
            f, nbytes, members, free
        ) == pytest.approx(start, rel=1e-9)
    assert seconds(f, nbytes, group(1.0, 1.0), paid) == 0.0


@pytest.mark.parametrize("f", ALL)
@pytest.mark.parametrize("g", [2.0, 8.0, 64.0])
def test_without_bytes_latency_is_left(f, g):
    expected = {
        gather_time: g - 1.0,
        all_reduce_time: 2.0 * min(g - 1.0, np.log2(g)),
        all_to_all_time: 1.0,
        point_to_point_time: 1.0,
    }
    assert seconds(f, 0.0, group(g), net()) == pytest.approx(expected[f] * LATENCY[0], rel=1e-12)


@pytest.mark.parametrize(
    ("f", "times"),
    [
        (gather_time, 1.0),
        (all_reduce_time, 2.0),
        (all_to_all_time, 1.0),
        (point_to_point_time, 1.0),
    ],
)
def test_of_many_bytes_rate_is_left(f, times):
    """V/rate as the group grows, twice that for an all-reduce; no latency, so that nothing but
    bytes counts."""
    assert seconds(f, 1e12, group(1e6), net(latency_s=np.zeros(1))) == pytest.approx(
        times * 1e12 / RATE[0], rel=1e-5
    )


def test_levels_of_one_latency_have_the_hops_of_one():
    alike = net(2, latency_s=np.full(2, LATENCY[0]))
    assert seconds(gather_time, 0.0, group(8.0, 4.0), alike) == pytest.approx(
        31.0 * LATENCY[0], rel=1e-12
    )
    torus = net(2, torus_axes=np.array([2.0, 1.0]))
    assert seconds(gather_time, 0.0, group(16.0, 4.0), torus) == pytest.approx(
        6.0 * LATENCY[0] + 3.0 * LATENCY[1], rel=1e-12
    )


def test_ring_for_bytes_tree_for_members():
    one = net()
    ring = 1e10 * (14.0 + OWN_PART) / 8.0 / RATE[0] + 2.0 * LATENCY[0] * 7.0
    assert seconds(all_reduce_time, 1e10, group(8.0), one) == pytest.approx(ring, rel=1e-12)
    tree = 1e5 * (2046.0 + OWN_PART) / 1024.0 / RATE[0] / TREE_BANDWIDTH + 2.0 * LATENCY[0] * 10.0
    assert seconds(all_reduce_time, 1e5, group(1024.0), one) == pytest.approx(tree, rel=1e-12)


def test_two_domains_reduce_by_tree():
    """Between two nodes of 8 a tree moves V where a ring moves nearly 2 V; between four and more 2
    V, and the ring is better."""
    wide = net(2, latency_s=np.zeros(2), bytes_per_s=np.array([1e15, RATE[1]]))
    two, four = (seconds(all_reduce_time, 1e9, group(8.0, d), wide) for d in (2.0, 4.0))
    assert two == pytest.approx(1e9 / 8.0 / RATE[1] / TREE_BANDWIDTH, rel=1e-12)
    assert four == pytest.approx((62.0 + OWN_PART) / 32.0 * 1e9 / 8.0 / RATE[1], rel=1e-12)


@pytest.mark.parametrize("g", [2.0, 8.0, 64.0, 4096.0])
def test_a_switch_that_reduces_takes_each_byte_once_and_a_ranks_share_of_the_sum_again(g):
    plain, reducing = (
        net(latency_s=np.zeros(1), in_network_reduction=np.array([x])) for x in (0.0, 1.0)
    )
    switch, ring = (
        seconds(all_reduce_time, 1e9, group(g), fabric) * RATE[0] / 1e9
        for fabric in (reducing, plain)
    )
    assert ring == pytest.approx((2.0 * (g - 1.0) + OWN_PART) / g, rel=1e-12)
    assert switch == pytest.approx(min(SWITCH * (1.0 + 1.0 / g), ring), rel=1e-12)
    assert seconds(gather_time, 1e9, group(g), reducing) == seconds(
        gather_time, 1e9, group(g), plain
    )


def test_a_switch_between_domains_takes_each_byte_once():
    wide = net(
        2,
        latency_s=np.zeros(2),
        bytes_per_s=np.array([1e15, RATE[1]]),
        in_network_reduction=np.array([1.0, 1.0]),
    )
    assert seconds(all_reduce_time, 1e9, group(8.0, 16.0), wide) == pytest.approx(
        1e9 / 8.0 / RATE[1], rel=1e-12
    )


def test_a_rank_copies_its_own_part_beside_those_that_it_hands_on():
    """Of V each of n ranks passes n - 1 parts on, and its own at a share of what one costs: of two
    ranks that is 1.4 parts of two, of
    1,024 next to nothing. Measured on H100 with NCCL 2.27 (64 MB, 2 and 8 ranks): 160 and 209 us,
    where 4/7 of the latter is 119."""
    plain = net(latency_s=np.zeros(1))
    two, eight, many = (
        seconds(gather_time, 1e9, group(g), plain) * RATE[0] / 1e9 for g in (2.0, 8.0, 1024.0)
    )
    assert (two, eight) == pytest.approx(
        (1.4 / 2.0, 7.4 / 8.0), rel=1e-12
    ) and many == pytest.approx(1.0, rel=1e-3)
    assert two / eight == pytest.approx(160.0 / 209.0, rel=0.02)


def test_a_ring_copies_its_own_part_once_in_a_sum():
    """2 n - 1 operations for 2 n - 2 transfers. Measured on H200 with NCCL 2.29 (256 and 512 MB):
    315, 232 and 210 GB/s of the message on 2, 4 and 8 ranks, the last by ring; gathers 515, 423 and
    385."""
    plain = net(latency_s=np.zeros(1))
    measured = {2.0: (315.0, 515.0), 4.0: (232.0, 423.0), 8.0: (210.0, 385.0)}
    for g, (summed, gathered) in measured.items():
        ratio = seconds(all_reduce_time, 1e9, group(g), plain) / seconds(
            gather_time, 1e9, group(g), plain
        )
        assert ratio == pytest.approx(gathered / summed, rel=0.07)


def test_what_is_handed_on_alone_has_no_copy():
    handed = gather_line(group(4.0), net(latency_s=np.zeros(1)), copied=0.0)
    assert float(handed.seconds_per_byte[0]) * RATE[0] == pytest.approx(3.0 / 4.0, rel=1e-12)


@pytest.mark.parametrize("axes", [1.0, 2.0, 3.0])
def test_rings_of_a_torus_run_along_all_axes(axes):
    """64 members on d axes: d (64^(1/d) − 1) hops: 63, 14, 9."""
    hops = {1.0: 63.0, 2.0: 14.0, 3.0: 9.0}[axes]
    assert seconds(
        gather_time, 0.0, group(64.0), net(torus_axes=np.array([axes]))
    ) == pytest.approx(hops * LATENCY[0], rel=1e-12)


def test_each_level_carries_what_the_ones_below_leave():
    """8 members inside, 4 outside: the outer level moves an eighth of the bytes, it is slower by 8.
    The ring goes through all four groups, and hands on 31 parts of 32 everywhere beside its own; a
    torus of 8 keeps its own 7/8, and 3/4 of the rest is left for what joins
    four."""
    flow = 1e9 * (31.0 + OWN_PART) / 32.0 * max(1.0 / RATE[0], 1.0 / 8.0 / RATE[1])
    apart = max(1e9 * 7.0 / 8.0 / RATE[0], 1e9 / 8.0 * 3.0 / 4.0 / RATE[1])
    torus = net(2, torus_axes=np.array([2.0, 1.0]), latency_s=np.zeros(2))
    assert seconds(gather_time, 1e9, group(8.0, 4.0), torus) == pytest.approx(apart, rel=1e-12)
    latency = 4.0 * 7.0 * LATENCY[0] + 3.0 * LATENCY[1]
    assert seconds(gather_time, 1e9, group(8.0, 4.0), net(2)) == pytest.approx(
        flow + latency, rel=1e-12
    )
    outer = 1e9 * (32.0 - 8.0) / 32.0 / RATE[1]
    assert seconds(all_to_all_time, 1e9, group(8.0, 4.0), net(2)) == pytest.approx(
        outer + LATENCY.sum(), rel=1e-12
    )


def test_a_torus_and_its_slices_have_no_trees():
    """Of empty messages, a ring's hops on a torus, and between slices of one; the tree's where it
    is shorter elsewhere."""
    switched, torus = net(2), net(2, torus_axes=np.array([2.0, 1.0]))
    slices = group(1.0, 64.0)
    assert seconds(all_reduce_time, 0.0, slices, torus) == pytest.approx(
        2.0 * 63.0 * LATENCY[1], rel=1e-12
    )
    assert seconds(all_reduce_time, 0.0, slices, switched) < 0.5 * seconds(
        all_reduce_time, 0.0, slices, torus
    )


def test_a_transfer_takes_the_slowest_level_that_it_crosses():
    inside, across = (
        seconds(point_to_point_time, 1e9, group(*g), net(2)) for g in ((8.0, 1.0), (2.0, 4.0))
    )
    assert inside == pytest.approx(1e9 / RATE[0] + LATENCY[0]) and across == pytest.approx(
        1e9 / RATE[1] + LATENCY[1]
    )


def test_contention_slows_outer_levels_by_the_members_spanned():
    quiet, busy = (
        net(2, coefficients=ONES.replace(net_contention=x), latency_s=np.zeros(2))
        for x in (0.0, 0.1)
    )
    spread, inside = group(1.0, 64.0), group(8.0, 1.0)
    assert seconds(gather_time, 1e9, spread, busy) / seconds(
        gather_time, 1e9, spread, quiet
    ) == pytest.approx(64.0**0.1, rel=1e-12)
    assert seconds(gather_time, 1e9, inside, busy) == seconds(gather_time, 1e9, inside, quiet)


def test_efficiencies_derate_their_level():
    c = ONES.replace(
        net_efficiency_inner=0.5,
        net_efficiency_outer=0.25,
        net_latency_inner=2.0,
        net_latency_outer=3.0,
    )
    found = net(2, coefficients=c)
    np.testing.assert_allclose(found.bytes_per_s[:, 0], RATE * [0.5, 0.25])
    np.testing.assert_allclose(found.latency_s[:, 0], LATENCY * [2.0, 3.0])


@pytest.mark.parametrize("f", ALL)
@pytest.mark.parametrize("sharpness", [8.0, inf])
def test_more_bytes_or_more_members_never_take_less(f, sharpness):
    fabric = net(2, sharpness)
    volumes = np.logspace(2, 11, 40)
    times = np.array([seconds(f, v, group(8.0, 4.0), fabric) for v in volumes])
    assert (np.diff(times) > 0.0).all()
    if f is not point_to_point_time:
        wider = np.array([seconds(f, 1e8, group(8.0, g), fabric) for g in 2.0 ** np.arange(12)])
        assert (np.diff(wider) > -1e-12).all()


@pytest.mark.parametrize("f", ALL)
@pytest.mark.parametrize("nbytes", [0.0, 1e5, 1e7])
def test_a_sharper_maximum_meets_the_hard_one(f, nbytes):
    """Also where the two levels tie, which is where powers of shares come closest to nothing."""
    for rate in (RATE, np.array([5e10, 5e10])):
        hard = seconds(f, nbytes, group(8.0, 4.0), net(2, bytes_per_s=rate))
        gaps = [
            abs(seconds(f, nbytes, group(8.0, 4.0), net(2, p, bytes_per_s=rate)) / hard - 1.0)
            for p in (8.0, 64.0, 512.0, 8192.0)
        ]
        assert gaps[0] < 0.13 and all(
            later <= sooner / 6.0 + 1e-12 for sooner, later in zip(gaps, gaps[1:], strict=False)
        ), gaps


def test_a_line_is_its_time():
    line = gather_line(group(8.0, 4.0), net(2))
    assert float(line.time(1e9)[0]) == pytest.approx(
        seconds(gather_time, 1e9, group(8.0, 4.0), net(2)), rel=1e-14
    )
    (one,) = line.kinds()
    assert float(one.latency_s) == pytest.approx(4.0 * 7.0 * LATENCY[0] + 3.0 * LATENCY[1])
    started = gather_line(group(8.0, 4.0), net(2, coefficients=ONES.replace(collective_start=1e-4)))
    assert (
        float(started.latency_s[0] - line.latency_s[0]) == pytest.approx(1e-4)
        and float(started.time(0.0)[0]) > 1e-4
    )


def test_copies_that_travel_together_are_the_nodes_they_visit():
    """8 copies to 8 nodes of 8: on average 8 (1 − (7/8)^8) = 5.25 different nodes, one in eight of
    which is the own one."""
    members, free = group(8.0, 8.0), net(2, latency_s=np.zeros(2))
    apart, once = (
        float(all_to_all_time(np.array([1e9]), members, free, 8.0, merged)[0])
        for merged in (0.0, 1.0)
    )
    assert once / apart == pytest.approx((1.0 - (7.0 / 8.0) ** 8), rel=1e-9)


def test_a_torus_passes_bytes_on():
    """All-to-all of a ring of axes: m/4 links each on average; 16 of 256 devices on two axes have
    the links of one of them."""
    ring = net(2, torus_axes=np.array([2.0, 1.0]), latency_s=np.zeros(2))
    switch = net(2, latency_s=np.zeros(2))
    whole = group(256.0, 1.0)
    ratio = float(
        all_to_all_time(np.array([1e9]), whole, ring)[0]
        / all_to_all_time(np.array([1e9]), whole, switch)[0]
    )
    assert ratio == pytest.approx(2.0 * (16.0 - 1.0 / 16.0) / 4.0 / (255.0 / 256.0), rel=1e-9)
    some, alone = group(16.0, 1.0), ring.replace(members=np.array([256.0, 1.0])[:, None])
    assert float(
        gather_time(np.array([1e9]), some, alone)[0] / gather_time(np.array([1e9]), some, ring)[0]
    ) == pytest.approx(2.0)
