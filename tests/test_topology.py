"""Networks as they are built: what their levels say, what tiers change, and what is refused."""

from math import inf

import numpy as np
import pytest

from dmodel import catalog
from dmodel.catalog import loader
from dmodel.coefficients import default
from dmodel.cost.collectives import all_reduce_time, all_to_all_time, fabric, gather_time
from dmodel.design.optimum import problem
from dmodel.errors import InputError
from dmodel.placement import place
from dmodel.records import Network, Plan
from dmodel.topology import capacity, check, check_devices, slices

H100 = catalog.system("H100-DGX")


def seconds(f, nbytes: float, net, *members: float) -> float:
    group = np.ones((net.n_levels, 1))
    group[: len(members), 0] = members
    return float(f(np.array([nbytes]), group, fabric(net, default(), inf))[0])


def tiers(*nodes: float, latency: float = 0.0, over: float = 1.0) -> Network:
    """Nodes behind leaves and spines: each tier adds a latency to a hop; the last one, which joins
    them all, has a share of an adapter's rate."""
    flat = H100.network
    ends, k = np.array([1.0, *nodes, inf]), np.arange(len(nodes) + 1)
    rates = flat.bytes_per_s[1] / np.where(k == len(nodes), over, 1.0)
    return flat.replace(
        size=np.append(flat.size[0], ends[1:] / ends[:-1]),
        bytes_per_s=np.append(flat.bytes_per_s[0], rates),
        latency_s=np.append(flat.latency_s[0], flat.latency_s[1] + k * latency),
        torus_axes=np.append(flat.torus_axes[0], np.ones_like(rates)),
        in_network_reduction=np.append(
            flat.in_network_reduction[0], np.full_like(rates, flat.in_network_reduction[1])
        ),
    )


@pytest.mark.parametrize("f", [gather_time, all_reduce_time, all_to_all_time])
@pytest.mark.parametrize("nbytes", [0.0, 1e6, 1e10])
def test_tiers_of_one_rate_and_latency_are_one_level(f, nbytes):
    """512 nodes on one level, and on leaves of 32 and spines of 16 leaves."""
    flat = seconds(f, nbytes, H100.network, 8.0, 512.0)
    assert seconds(f, nbytes, tiers(32), 8.0, 32.0, 16.0) == pytest.approx(flat, rel=1e-12)
    assert seconds(f, nbytes, tiers(32, 128), 8.0, 32.0, 4.0, 4.0) == pytest.approx(flat, rel=1e-12)


def test_a_group_that_skips_the_leaves_still_passes_its_adapters():
    assert seconds(gather_time, 1e9, tiers(32), 1.0, 1.0, 16.0) == pytest.approx(
        seconds(gather_time, 1e9, H100.network, 1.0, 16.0)
    )


def test_a_ring_hides_oversubscription_and_an_all_to_all_pays_it():
    even, over = tiers(32), tiers(32, over=7.0)
    assert over.bytes_per_s[-1] == pytest.approx(50e9 / 7.0)
    ring, exchange = (
        seconds(f, 1e10, over, 8, 32, 16) / seconds(f, 1e10, even, 8, 32, 16)
        for f in (gather_time, all_to_all_time)
    )
    assert ring == pytest.approx(1.0)
    # 15/16 of what an all-to-all sends leaves its leaf, at a seventh of the rate, past fewer
    # neighbours
    quiet = (16.0 / 512.0) ** float(default().net_contention)
    assert exchange == pytest.approx(7.0 * (15.0 / 16.0) / (511.0 / 512.0) * quiet, rel=0.01)


def test_further_switches_take_longer():
    near, far = tiers(32, latency=0.0), tiers(32, latency=1e-6)
    longer = seconds(gather_time, 0.0, far, 8.0, 32.0, 16.0) - seconds(
        gather_time, 0.0, near, 8.0, 32.0, 16.0
    )
    assert longer == pytest.approx(15e-6 * float(default().net_latency_outer))


def test_domains_of_36_and_72_hold_what_8_send_outside():
    """Tensor parallelism of 36 ranks leaves a domain of 8, not one of 36."""
    gb200 = catalog.system("GB200-NVL72")
    times = [
        seconds(
            gather_time,
            1e9,
            gb200.network.replace(size=np.array([n, inf])),
            min(n, 36.0),
            36.0 / min(n, 36.0),
        )
        for n in (8.0, 36.0, 72.0)
    ]
    assert times[0] > 1.3 * times[1] and times[1] == times[2]
    assert catalog.system("GB200-NVL36").network.size[0] == 36.0


def test_slices_of_a_torus():
    pod = catalog.system("TPU-v5p")
    cube, thin = (slices(pod, shape, 4.0).network for shape in ((4, 4, 8), (2, 2, 4)))
    assert cube.size.tolist() == [128.0, 4.0] and cube.bytes_per_s[0] == pod.network.bytes_per_s[0]
    # two of three axes run back on their own links
    assert thin.bytes_per_s[0] == pytest.approx(pod.network.bytes_per_s[0] * 2.0 / 3.0)
    flat = slices(pod, (4, 4, 1)).network
    assert flat.torus_axes[0] == 2.0 and flat.bytes_per_s[0] == pytest.approx(
        pod.network.bytes_per_s[0] * 2.0 / 3.0
    )
    assert capacity(cube) == 512.0 and capacity(flat) == inf
    with pytest.raises(InputError, match="the fabric holds 256"):
        slices(catalog.system("TPU-v5e"), (32, 16))
    with pytest.raises(InputError, match="each of 3 axes"):
        slices(pod, ())
    with pytest.raises(InputError, match="each of 2 axes"):
        slices(catalog.system("TPU-v5e"), (4, 4, 4))
    with pytest.raises(InputError, match="expected chips along each of 1 axes"):
        slices(H100, (4, 4))


def test_known_clusters_have_their_tiers():
    llama = catalog.system("H100-Llama-3").network
    assert capacity(llama) == 24576.0 and llama.bytes_per_s[2] == pytest.approx(50e9 / 7.0)
    with pytest.raises(InputError, match="32,768 devices, but the fabric holds 24,576"):
        check_devices(llama, 32768)
    with pytest.raises(InputError, match="the fabric holds 24,576"):
        problem(
            catalog.system("H100-Llama-3"),
            catalog.transformer("llama-3-8b"),
            32768,
            32768,
            default(),
        )
    with pytest.raises(InputError, match="from 1 on; got nan"):
        check_devices(llama, float("nan"))
    with pytest.raises(InputError, match="bandwidth above 0"):
        problem(
            H100.replace(network=H100.network.replace(bytes_per_s=np.zeros(2))),
            catalog.transformer("llama-3-8b"),
            8,
            8,
            default(),
        )
    check_devices(llama, 24576)
    check_devices(H100.network, 1e9)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"size": (0.0, 64.0)}, "level 0: size: expected members of one domain, from 1 on"),
        ({"bytes_per_s": (4.5e11, 0.0)}, "level 1: bytes_per_s: expected a bandwidth above 0"),
        ({"bytes_per_s": (4.5e11, float("nan"))}, "bandwidth above 0"),
        ({"latency_s": (1e-6, -1e-6)}, "latency of 0 s or more"),
        ({"in_network_reduction": (0.0, 2.0)}, "0 or 1"),
        ({"torus_axes": (0.0, 1.0)}, "1 for a switch"),
    ],
)
def test_what_is_no_network_is_said(changed, message):
    with pytest.raises(InputError, match=message):
        check(H100.network.replace(**{name: np.array(x) for name, x in changed.items()}))


def test_levels_nest():
    with pytest.raises(InputError, match="level 0 has no end"):
        check(H100.network.replace(size=np.array([inf, 4.0])))
    with pytest.raises(InputError, match="one number per level"):
        check(H100.network.replace(size=np.array([8.0, 4.0, inf])))


def test_a_catalog_entry_without_bandwidth_is_refused(monkeypatch):
    entry = loader.table("systems")["H100-DGX"]
    level = {
        **entry["levels"][1],
        "bytes_per_s": {**entry["levels"][1]["bytes_per_s"], "value": 0.0},
    }
    monkeypatch.setitem(
        loader.table("systems"), "H100-DGX", {**entry, "levels": [entry["levels"][0], level]}
    )
    with pytest.raises(InputError, match=r"systems/H100-DGX, level 1: bytes_per_s"):
        catalog.system("H100-DGX")


def test_no_member_of_a_group_is_dropped_by_a_bounded_network():
    plan = Plan.of(dp=4096.0, tp=8.0, global_batch=4096.0)
    groups = place(plan, np.array([8.0, 32.0, 16.0]))
    np.testing.assert_allclose(groups.all.prod(0), 32768.0)
    np.testing.assert_allclose(groups.data.prod(0), 4096.0)
