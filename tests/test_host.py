"""What a device waits for its host: limits, overlap, what rates decide; published figures."""

import jax
import numpy as np
import pytest

from dmodel import catalog, counts, hosted
from dmodel.blocks.part import Passes
from dmodel.catalog.hosts import host as host_of
from dmodel.cost import host
from dmodel.cost.memory import held
from dmodel.records import Plan
from dmodel.step import memory_use, step_time
from tests.points import COEFFICIENTS, quick
from tests.rows import job

SYSTEM = catalog.system("A100-DGX")
MODEL = catalog.transformer("llama-2-7b")
STEP = quick(step_time)


def plan(**changes: float) -> Plan:
    return Plan.of(**{"dp": 8.0, "global_batch": 64.0, "zero": 2.0, "shard": 8.0} | changes)


def waiting(p: Plan, forward: float = 0.5, backward: float = 1.0, chip=SYSTEM.chip) -> float:
    parts = counts.residents(MODEL, p)
    return float(hosted.waiting(MODEL, p, parts, Passes(forward, backward), chip))


def test_nothing_waits_where_nothing_is_offloaded():
    assert waiting(plan()) == 0.0
    found = STEP(SYSTEM, MODEL, plan(), COEFFICIENTS)
    assert float(found.offload) == 0.0


def test_what_fits_into_its_window_costs_nothing_and_all_of_it_where_nothing_overlaps():
    p = plan(offload=1.0)
    kept = float(hosted.moved(MODEL, p, counts.residents(MODEL, p)).kept)
    copy = float(host.copy_time(kept, SYSTEM.chip))
    assert copy > 0.0
    assert waiting(p, 1.001 * copy, 1.001 * copy) == 0.0
    m = float(p.n_microbatches)
    assert waiting(p, 0.5 * copy, 2.0 * copy) == pytest.approx(0.5 * m * copy)
    assert waiting(p.having(overlap_offload=0.0)) == pytest.approx(2.0 * m * copy)


def test_gradients_and_parameters_cross_the_link_once_a_step_and_the_host_updates():
    p = plan(offload_optimizer=1.0, overlap_offload=0.0)
    n = float(held(counts.residents(MODEL, p), p, 1.0))
    link, memory = (
        host.LINK * float(SYSTEM.chip.host_bytes_per_s),
        float(SYSTEM.chip.host_memory_bytes_per_s),
    )
    update = 2.1 * n * (24.0 + 4.0 + 2.0) / memory
    assert waiting(p) == pytest.approx(n * (4.0 + 2.0) / link + update)
    # beside the backward pass and the update
    assert waiting(p.having(overlap_offload=1.0)) == pytest.approx(update)


def test_gradients_that_the_host_sums_leave_with_every_micro_batch():
    p = plan(offload_optimizer=1.0, host_sums=1.0, overlap_offload=0.0, offload_weights=0.0)
    n, m = float(held(counts.residents(MODEL, p), p, 1.0)), float(p.n_microbatches)
    assert m == 8.0
    more = waiting(p) - waiting(p.having(host_sums=0.0))
    link = host.LINK * float(SYSTEM.chip.host_bytes_per_s)
    assert more == pytest.approx(n * (2.0 * m - 4.0) / link)


def test_weights_come_for_both_passes_of_every_micro_batch():
    p = plan(zero=3.0, offload_weights=1.0, overlap_offload=0.0)
    moved = 2.0 * float(held(counts.residents(MODEL, p), p, 3.0))
    copies = 2.0 * float(p.n_microbatches)
    assert waiting(p) == pytest.approx(copies * float(host.copy_time(moved, SYSTEM.chip)))
    assert waiting(p.having(reshard=0.0)) == pytest.approx(0.5 * waiting(p))


def test_a_share_of_the_optimizer_takes_that_share_of_the_time_and_memory():
    whole, half, none = (plan(offload_optimizer=x, overlap_offload=0.0) for x in (1.0, 0.5, 0.0))
    assert waiting(half) == pytest.approx(0.5 * waiting(whole))
    uses = [memory_use(MODEL, p) for p in (none, half, whole)]
    states = [float(use.optimizer) for use in uses]
    assert states[0] > 0.0 and states[2] == 0.0
    assert states[1] == pytest.approx(0.5 * states[0])
    assert float(uses[2].gradients) == float(uses[0].gradients)
    there = memory_use(MODEL, plan(offload_optimizer=1.0, host_sums=1.0, offload_weights=1.0))
    assert float(there.gradients) == float(there.weights) == 0.0
    updates = [float(STEP(SYSTEM, MODEL, p, COEFFICIENTS).optimizer) for p in (none, half, whole)]
    assert updates[2] == 0.0 < updates[1] < updates[0]


@pytest.mark.parametrize("name", ["host_bytes_per_s", "host_memory_bytes_per_s"])
def test_a_faster_host_makes_no_step_longer(name):
    p = plan(offload_optimizer=1.0, host_sums=1.0, offload_weights=1.0, zero=3.0, offload=1.0)
    rates = np.exp(np.linspace(-3.0, 6.0, 40))
    times = [
        waiting(p, chip=SYSTEM.chip.replace(**{name: x * getattr(SYSTEM.chip, name)}))
        for x in rates
    ]
    assert all(a >= b for a, b in zip(times, times[1:], strict=False))
    assert times[0] > 2.0 * times[-1]


def test_slopes_are_finite_where_nothing_is_offloaded():
    of = jax.grad(lambda s: step_time(s, MODEL, plan(), COEFFICIENTS).total)
    slope = jax.jit(of)(SYSTEM)
    assert float(slope.chip.host_bytes_per_s) == float(slope.chip.host_memory_bytes_per_s) == 0.0


def test_hosts_are_those_of_system_chip_or_generation():
    assert host_of("H100-80GB").link == host_of("H200-141GB").link == 63e9
    assert host_of("GH200-96GB").link == 450e9
    assert host_of("V100-32GB").link == 15.75e9
    assert host_of("unheard-of") == host_of("")
    one, all_of = (host_of("A100-80GB").per_device(x) for x in (1.0, 64.0))
    assert one == 8.0 * all_of == pytest.approx(409.6e9)


def test_a_device_alone_has_all_of_its_host_s_memory():
    of = {"stack": "", "model": "llama-2-7b", "accelerator": "A100-80GB", "offload_optimizer": 1}
    alone, eight = (job(**of, n_accel=n) for n in (1, 8))
    rates = [float(x.cluster.chip.host_memory_bytes_per_s) for x in (alone, eight)]
    assert rates == [pytest.approx(409.6e9), pytest.approx(51.2e9)]
    own = job(**of, n_accel=8, **{"bandwidth.host-memory": "100GB/s", "bandwidth.host": "20GB/s"})
    chip = own.cluster.chip
    assert (float(chip.host_bytes_per_s), float(chip.host_memory_bytes_per_s)) == (2e10, 1e11)
    assert any(x.text.startswith("host: PCIe 4") for x in alone.assumptions)
    silent = job("", "llama-2-7b", "A100-80GB")
    assert not any(x.text.startswith("host:") for x in silent.assumptions)


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ("", (0.0, 0.0, 1.0, 2.1)),
        ("deepspeed", (0.0, 1.0, 1.0, 8.0)),
        ("fsdp", (1.0, 1.0, 1.0, 12.0)),
        ("torchtune", (1.0, 1.0, 1.0, 2.1)),
        ("megatron-core", (0.0, 0.0, 0.0, 4.3)),
    ],
)
def test_what_stacks_do_with_their_hosts(stack, expected):
    of = {"stack": stack, "model": "llama-2-7b", "accelerator": "A100-80GB"}
    names = ("offload_weights", "host_sums", "overlap_offload", "host_update")
    found = job(**of, n_accel=8, offload_optimizer=1).plan.software
    assert tuple(float(getattr(found, n)) for n in names) == expected
    without = job(**of, n_accel=8).plan.software
    assert tuple(float(getattr(without, n)) for n in names) == (0.0, 0.0, 1.0, 2.1)


@pytest.mark.parametrize(("billions", "measured"), [(1.0, 0.22), (4.0, 1.03), (10.0, 2.57)])
def test_cpu_adam_of_zero_offload(billions, measured):
    """Ren et al. 2021, table 4, on a DGX-2: two Xeon Platinum 8168 with 6 channels of DDR4-2666."""
    chip = SYSTEM.chip.replace(host_memory_bytes_per_s=256e9)
    p = plan(gradient_bytes=2.0)
    assert float(host.update_time(1e9 * billions, p, chip)) == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    ("share", "measured"), [(0.25, 0.875), (0.5, 1.488), (0.75, 2.191), (1.0, 3.193)]
)
def test_qwen_with_its_optimizer_on_the_host(share, measured):
    """What steps of 996 ms took longer on 16 H100 with TP 2, PP 2 and EP 4: Megatron-Bridge,
    skills/nemo-mbridge-perf-cpu-offloading/card.yaml."""
    layout = {"tp": 2, "pp": 2, "ep": 4, "zero": 1, "micro_batch": 1, "global_batch": 8}
    of = {"stack": "megatron-bridge", "model": "qwen-3-30b-a3b", "accelerator": "H100-80GB"}
    found = job(**of, n_accel=16, seq_len=4096, offload_optimizer=share, **layout)
    time = STEP(found.cluster, found.model, found.plan, COEFFICIENTS)
    assert float(time.offload) == pytest.approx(measured, rel=0.2)
