"""Faster chips, networks and hosts make no step longer: random plans of the search's largest space,
each rate and time changed twofold."""

import jax.numpy as jnp
import numpy as np
import pytest

from dmodel import catalog
from dmodel.coefficients import SPECS, default, from_unconstrained, to_unconstrained
from dmodel.design import EVERYTHING, evaluate, problem, rows
from dmodel.records import Plan
from dmodel.sensitivity.case import FACTORS
from dmodel.sensitivity.searched import MARGIN, least
from dmodel.step import step_time
from tests.points import quick

SYSTEMS = ("A100-DGX", "H100-DGX", "GB200-NVL72")
MODELS = ("llama-2-7b", "llama-3-70b", "mixtral-8x7b", "gpt-3-1.3b", "deepseek-v3")
SPACE = EVERYTHING.replace(schedules=("1f1b", "interleaved"))
STEP = quick(step_time)


def faster(system, c):
    """What may change → the system and coefficients with it."""
    chip, net = system.chip, system.network
    rates = {
        "flops_per_s": 2.0 * chip.flops_per_s,
        "attention_flops_per_s": 2.0 * chip.attention_flops_per_s,
    }
    return {
        "arithmetic": (system.replace(chip=chip.replace(**rates)), c),
        "memory": (
            system.replace(chip=chip.replace(hbm_bytes_per_s=2.0 * chip.hbm_bytes_per_s)),
            c,
        ),
        "bandwidth": (system.replace(network=net.replace(bytes_per_s=2.0 * net.bytes_per_s)), c),
        "hops": (system.replace(network=net.replace(latency_s=0.5 * net.latency_s)), c),
        "host": (system, c.replace(launch=0.5 * c.launch)),
        "waiting": (system, c.replace(collective_skew=0.5 * c.collective_skew)),
    }


def faster_software(c):
    """Coefficients that are said to scale rates, twice, and times, half → the coefficients."""
    return {
        name: c.replace(**{name: factor * getattr(c, name)})
        for kind, factor in (("rate", 2.0), ("time", 0.5))
        for name in FACTORS[kind]
    }


def drawn_plans(seed):
    """A job under random coefficients, on a network of which some is slow, and 400 of its plans."""
    draw = np.random.default_rng(seed)
    spread = np.array([s.width for s in SPECS.values()])
    c = from_unconstrained(to_unconstrained(default()) + spread * draw.normal(size=len(spread)))
    system, model = catalog.system(SYSTEMS[seed % 3]), catalog.transformer(MODELS[seed % 5])
    slow = float(draw.choice([1.0, 0.3, 0.03]))
    system = system.replace(
        network=system.network.replace(bytes_per_s=slow * system.network.bytes_per_s)
    )
    job = model, int(draw.choice([16, 64])), 64
    p = problem(system, *job, c, choices=SPACE)
    batch = next(rows.batches(p.space, 1 << 14))
    return system, job, c, batch[draw.permutation(len(batch))[:400]]


def seconds(system, job, c, chosen):
    """Their step times."""
    stated = problem(system, *job, c, choices=SPACE)
    return np.asarray(evaluate(stated, chosen).step_time_s)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_faster_makes_no_step_longer(seed):
    system, job, c, chosen = drawn_plans(seed)
    before = seconds(system, job, c, chosen)
    for name, (changed, coefficients) in faster(system, c).items():
        after = seconds(changed, job, coefficients, chosen)
        assert (after <= before * (1.0 + 1e-9)).all(), (name, float((after / before).max() - 1.0))


@pytest.mark.parametrize("seed", range(10))
def test_what_scales_a_rate_or_a_time_changes_a_step_by_no_more(seed):
    system, job, c, chosen = drawn_plans(seed)
    before = seconds(system, job, c, chosen)
    for name, coefficients in faster_software(c).items():
        after = seconds(system, job, coefficients, chosen)
        factor = getattr(coefficients, name) / getattr(c, name)
        share = least(f"coefficients.{name}", float(factor))
        assert (after <= before * (1.0 + 0.01 * MARGIN)).all(), (name, (after / before).max())
        assert (after >= share * before).all(), (name, (after / before).min())


@pytest.mark.parametrize("overlaps", [(0.9, 0.6), (0.8, 0.32), (0.97, 0.97)])
def test_faster_arithmetic_helps_where_exchanges_and_transfers_stand_out(overlaps):
    """Mixtral 8x7B on a slow network: what is exposed of its experts' tokens hides transfers of the
    pipeline, which do not hide in the same work."""
    model, system = catalog.transformer("mixtral-8x7b", 4096.0), catalog.system("H100-DGX")
    slow = system.replace(
        network=system.network.replace(bytes_per_s=0.03 * system.network.bytes_per_s)
    )
    plan = Plan.of(
        dp=16.0,
        pp=8.0,
        ep=8.0,
        global_batch=512.0,
        interleave=4.0,
        schedule="interleaved",
        zero=1.0,
        shard=16.0,
    )
    c = default().replace(overlap_ep=jnp.asarray(overlaps[0]), overlap_pp=jnp.asarray(overlaps[1]))
    rates = [slow.chip.flops_per_s * factor for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
    found = [
        STEP(slow.replace(chip=slow.chip.replace(flops_per_s=rate)), model, plan, c)
        for rate in rates
    ]
    assert min(float(b.expert_parallel) for b in found) > 0.0
    assert (np.diff([float(b.total) for b in found]) < 0.0).all()


def test_faster_arithmetic_helps_where_two_kinds_of_messages_stand_out():
    """Llama 2 7B on eight tensor ranks under ZeRO-3: what is exposed of tensor parallelism hides
    gathers, so that a second of work less exposes no two seconds of messages."""
    model, system = catalog.transformer("llama-2-7b", 4096.0), catalog.system("H100-DGX")
    plan = Plan.of(
        dp=64.0, tp=8.0, sp=1.0, zero=3.0, shard=64.0, micro_batch=2.0, global_batch=256.0
    )
    for skew in (3e-5, 3e-4):
        c = default().replace(collective_skew=jnp.asarray(skew), overlap_tp=jnp.asarray(0.6))
        rates = [system.chip.flops_per_s * factor for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
        found = [
            STEP(system.replace(chip=system.chip.replace(flops_per_s=rate)), model, plan, c)
            for rate in rates
        ]
        assert (
            min(float(b.tensor_parallel) for b in found) > 0.0 < min(float(b.fsdp) for b in found)
        )
        assert (np.diff([float(b.total) for b in found]) < 0.0).all()


@pytest.mark.parametrize(
    ("name", "precision", "operand"),
    [("H100-DGX", "fp8", 1.0), ("GB200-NVL72", "nvfp4", 0.5625), ("GB300-NVL72", "nvfp4", 0.5625)],
)
def test_a_faster_peak_below_16_bits_makes_no_step_longer(name, precision, operand):
    """DeepSeek-V3, whose experts are narrow: what a tile takes before its first product does not
    grow with the peak."""
    model, system = catalog.transformer("deepseek-v3", 4096.0), catalog.system(name, precision)
    c = default().replace(matmul_half_inner=jnp.asarray(300.0))
    plan = Plan.of(
        dp=64.0,
        ep=64.0,
        pp=4.0,
        global_batch=1024.0,
        operand_bytes=operand,
        zero=1.0,
        shard=64.0,
    )
    rates = [system.chip.flops_per_s * factor for factor in (0.5, 1.0, 2.0, 4.0)]
    found = [
        float(
            STEP(system.replace(chip=system.chip.replace(flops_per_s=rate)), model, plan, c).total
        )
        for rate in rates
    ]
    assert (np.diff(found) < 0.0).all()
