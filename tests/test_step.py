"""The step: its terms against formulas written anew, its sum, its units, its limits."""

from math import inf

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel import catalog
from dmodel.breakdown import TERMS
from dmodel.coefficients import SPECS, Coefficients, default
from dmodel.cost.collectives import OWN_PART
from dmodel.errors import InputError
from dmodel.records import Model, Plan, ff_width, sized, value
from dmodel.step import memory_use, step_time
from dmodel.tables import layer
from tests import reference
from tests.points import (
    COEFFICIENTS,
    EDGE_MODELS,
    IDEAL,
    batch,
    case,
    float64,
    quick,
    random_questions,
)

HARD = quick(lambda s, m, p, c: step_time(s, m, p, c, sharpness=inf))
SMOOTH = quick(step_time)
MEMORY = quick(memory_use)
RATES = (
    *("flops_per_s", "attention_flops_per_s", "exponentials_per_s", "hbm_bytes_per_s"),
    *("host_bytes_per_s", "host_memory_bytes_per_s"),
)
TIMES = ("overhead", "collective_start", "collective_skew")


def plan(**changes: float) -> Plan:
    return Plan.of(
        **{
            "dp": 1.0,
            "global_batch": 256.0,
            "sp": 0.0,
            "shard": changes.get("dp", 1.0),
            "schedule": "interleaved",
            **changes,
        }
    )


def early(**changes: float) -> Plan:
    """All layers recomputed, up to their last product."""
    return plan(recompute_layers=1.0, recompute_last=0.0, **changes)


QUESTIONS = {
    "one device": ("H100-DGX", "gpt-3-125m", plan(micro_batch=4.0)),
    "data parallel, ZeRO 0": ("A100-DGX", "gpt-3-1.3b", plan(dp=64.0, micro_batch=2.0)),
    "data parallel, small batch": ("A100-DGX", "gpt-3-1.3b", plan(dp=256.0)),
    "ZeRO 1": ("H100-DGX", "llama-2-7b", plan(dp=32.0, zero=1.0)),
    "ZeRO 1, buckets that grow with the group": (
        "H100-DGX",
        "llama-2-7b",
        plan(dp=256.0, zero=1.0, bucket_per_rank=4e6),
    ),
    "ZeRO 0, all reduced at once in the end": (
        "H100-DGX",
        "llama-2-7b",
        plan(dp=64.0, overlap_dp=0.0, bucket_per_rank=4e6),
    ),
    "attention in kernels of a generation before": (
        "H100-DGX",
        "llama-2-7b",
        plan(dp=8.0, attention_rate=0.4, attention_backward_rate=0.3),
    ),
    "compiled layers and loss, done again": (
        "H100-DGX",
        "llama-2-7b",
        plan(dp=8.0, stream_ratio=0.6, loss_ratio=0.25, recompute_layers=1.0, recompute_last=0.0),
    ),
    "ZeRO 2 in copies": ("H100-DGX", "llama-2-7b", plan(dp=32.0, zero=2.0, shard=8.0)),
    "FSDP": ("H100-DGX", "llama-2-13b", plan(dp=128.0, zero=3.0)),
    "FSDP in copies, gathered once": (
        "H100-DGX",
        "llama-2-13b",
        plan(dp=128.0, zero=3.0, shard=8.0, reshard=0.0),
    ),
    "FSDP in slices whose sums are awaited": (
        "TPU-v5e",
        "llama-2-13b",
        plan(dp=1024.0, zero=3.0, shard=256.0, overlap_replica=0.0),
    ),
    "ZeRO 1 in copies whose sums are awaited": (
        "H100-DGX",
        "llama-2-7b",
        plan(dp=32.0, zero=1.0, shard=8.0, overlap_replica=0.0),
    ),
    "FSDP that waits for each gather": (
        "H100-DGX",
        "llama-2-7b",
        plan(dp=128.0, zero=3.0),
    ),
    "FSDP that accumulates": (
        "H100-DGX",
        "llama-2-7b",
        plan(dp=64.0, zero=3.0, accumulate=1.0, reduce_bytes=4.0),
    ),
    "FSDP that nothing hides": (
        "A100-RoCE-1600",
        "llama-2-7b",
        plan(dp=256.0, zero=3.0, overlap_dp=0.0),
    ),
    "optimizer on the host, gradients sent as they come": (
        "A100-DGX",
        "llama-2-7b",
        plan(dp=8.0, zero=2.0, offload_optimizer=0.8, host_sums=1.0, overlap_offload=1.0),
    ),
    "optimizer on the host, copies in turn": (
        "H100-DGX",
        "gpt-3-1.3b",
        plan(dp=4.0, offload_optimizer=1.0, overlap_offload=0.0, host_update=5.0),
    ),
    "weights brought to 16 bits": (
        "H100-DGX",
        "llama-2-7b",
        plan(dequantize=3.2, weight_bytes=0.516, end_bytes=2.0, recompute_layers=1.0),
    ),
    "weights brought to 16 bits, parts of layers again": (
        "A100-DGX",
        "llama-2-7b",
        plan(dequantize=0.7, weight_bytes=0.516, recompute_products=0.6),
    ),
    "tensor and sequence parallel": (
        "H100-DGX",
        "llama-3-70b",
        plan(dp=4.0, tp=8.0, sp=1.0, global_batch=64.0),
    ),
    "tensor parallel across nodes": ("A100-DGX", "gpt-3-175b", plan(dp=4.0, tp=16.0)),
    "pipeline, interleaved": (
        "A100-DGX",
        "gpt-3-175b",
        plan(dp=8.0, tp=8.0, pp=8.0, interleave=3.0, sp=1.0),
    ),
    "pipeline, few micro-batches": (
        "A100-DGX",
        "gpt-3-175b",
        plan(dp=64.0, tp=8.0, pp=8.0, interleave=2.0),
    ),
    "pipeline, transfers in the open": (
        "A100-DGX",
        "gpt-3-13b",
        plan(dp=2.0, pp=16.0, interleave=2.0, overlap_pp=0.0),
    ),
    "pipeline, embedding and head count as layers": (
        "A100-DGX",
        "gpt-3-13b",
        plan(dp=2.0, tp=2.0, pp=6.0, interleave=7.0, stage_excess=1.0 / 3.0, head_displaces=1.0),
    ),
    "pipeline, a head that takes less than the layers it displaces": (
        "H100-DGX",
        "llama-3-70b",
        plan(dp=2.0, tp=4.0, pp=8.0, stage_excess=2.0, head_displaces=5.0),
    ),
    "context parallel": (
        "H100-DGX",
        "llama-3-8b",
        plan(dp=8.0, cp=16.0, zero=3.0, global_batch=16.0),
    ),
    "full recomputation": (
        "A100-DGX",
        "gpt-3-175b",
        plan(dp=8.0, tp=8.0, pp=16.0, recompute_layers=1.0),
    ),
    "recomputation that ends early": (
        "A100-DGX",
        "llama-3-70b",
        early(dp=8.0, tp=8.0, sp=1.0, pp=4.0),
    ),
    "recomputation that ends early, sums": ("A100-DGX", "gpt-3-13b", early(dp=8.0, tp=4.0, pp=2.0)),
    "recomputation of experts that ends early": (
        "H100-DGX",
        "deepseek-v3",
        early(dp=16.0, ep=16.0, tp=2.0, etp=2.0, sp=1.0),
    ),
    "attention recomputed, unfused": (
        "V100-DGX",
        "gpt-3-6.7b",
        plan(dp=8.0, tp=4.0, flash=0.0, recompute_attention=1.0),
    ),
    "heads off the matrix units": (
        "A100-DGX",
        "gpt-3-13b",
        plan(dp=8.0, tp=4.0, flash=0.0, recompute_layers=1.0),
    ),
    "8-bit": (
        "H100-DGX",
        "llama-3-8b",
        plan(dp=16.0, zero=1.0, operand_bytes=1.0),
    ),
    "experts": ("H100-DGX", "mixtral-8x7b", plan(dp=64.0, ep=8.0, tp=2.0, zero=1.0)),
    "experts, sharded": (
        "GB200-NVL72",
        "mixtral-8x22b",
        plan(dp=72.0, ep=8.0, zero=3.0, global_batch=288.0),
    ),
    "experts, one of them shared": (
        "H100-DGX",
        "deepseek-v3",
        plan(dp=64.0, ep=16.0, cp=2.0, pp=2.0, shard=32.0, zero=2.0),
    ),
    "experts, one of them shared, ZeRO 0": (
        "H100-DGX",
        "deepseek-v3",
        plan(dp=64.0, ep=64.0, cp=2.0),
    ),
    "experts, several on a device": ("H100-DGX", "mixtral-8x7b", plan(dp=16.0, ep=2.0, zero=3.0)),
    "experts, unequally busy": ("H100-DGX", "mixtral-8x7b", plan(dp=16.0, ep=4.0, tp=4.0, sp=1.0)),
    "experts over tp and dp, once per node": (
        "H100-DGX",
        "deepseek-v3",
        plan(dp=64.0, ep=64.0, tp=2.0, sp=1.0, pp=8.0, interleave=2.0, zero=1.0, merge_copies=1.0),
    ),
    "experts that are split": (
        "H100-DGX",
        "mixtral-8x7b",
        plan(dp=8.0, ep=4.0, tp=4.0, etp=2.0, sp=1.0, zero=2.0),
    ),
    "experts on a torus": ("TPU-v5p", "mixtral-8x7b", plan(dp=64.0, ep=8.0, zero=3.0)),
    "windows": ("H100-DGX", "gpt-oss-20b", plan(dp=16.0, ep=16.0, gather_bytes=1.0, zero=3.0)),
    "further heads": ("H100-DGX", "deepseek-v2-lite", plan(dp=16.0, ep=8.0)),
    "hybrid": (
        "H100-DGX",
        "nemotron-3-nano-30b-a3b",
        plan(dp=16.0, ep=8.0, tp=2.0, sp=1.0, zero=1.0),
    ),
    "hybrid, dense": ("B200-DGX", "nemotron-h-8b", plan(dp=16.0, tp=2.0, zero=1.0)),
    "4-bit": (
        "B200-DGX",
        "llama-3-70b",
        plan(
            dp=8.0,
            tp=2.0,
            pp=4.0,
            interleave=5.0,
            zero=1.0,
            operand_bytes=0.5,
            scale_passes=2.0,
        ),
    ),
    "8-bit, in parts": (
        "H100-DGX",
        "llama-3-8b",
        plan(
            dp=16.0,
            zero=1.0,
            operand_bytes=1.0,
            wide_layers=0.2,
            scale_passes=1.0,
        ),
    ),
    "a sequence in order": (
        "H100-DGX",
        "llama-3-8b",
        plan(dp=4.0, cp=4.0, zero=3.0, cp_balanced=0.0),
    ),
    "windows in order": (
        "H100-DGX",
        "gpt-oss-20b",
        plan(dp=4.0, ep=4.0, cp=4.0, zero=3.0, cp_balanced=0.0),
    ),
    "tied over stages": ("H100-DGX", "gpt-3-13b", plan(dp=4.0, tp=4.0, pp=4.0)),
    "switch that reduces": ("H100-DGX", "gpt-3-1.3b", plan(dp=16.0, tp=8.0)),
    "torus": ("TPU-v5p", "llama-3-70b", plan(dp=64.0, tp=8.0, zero=3.0, sp=1.0)),
    "launch-bound": ("H100-DGX", "gpt-3-125m", plan(tp=8.0)),
    "launch-bound over nodes": ("H100-DGX", "gpt-3-125m", plan(tp=8.0, pp=2.0)),
    "launch-bound, the head on a stage of fewer layers": (
        "H100-DGX",
        "gpt-3-125m",
        plan(
            dp=2.0, tp=8.0, pp=4.0, zero=1.0, interleave=2.0, stage_excess=0.5, head_displaces=1.0
        ),
    ),
    "launch-bound, not only the stage of the head has fewer layers": (
        "H100-DGX",
        "gpt-3-125m",
        plan(dp=16.0, tp=8.0, pp=4.0, stage_excess=1.0, head_displaces=1.5),
    ),
    "added up from parts": (
        "A100-DGX",
        "gpt-3-125m",
        plan(tp=8.0, unpadded_vocab=1.0, composed=1.0),
    ),
    "sums in 8 bits": (
        "H100-DGX",
        "llama-3-70b",
        plan(
            dp=4.0,
            tp=8.0,
            sp=1.0,
            operand_bytes=1.0,
            narrow_sums=1.0,
            recompute_layers=1.0,
            wide_layers=0.25,
        ),
    ),
    "experts, padded and parted": (
        "H100-DGX",
        "deepseek-v3",
        plan(
            dp=64.0,
            ep=64.0,
            zero=1.0,
            merge_copies=1.0,
            looped_experts=1.0,
            operand_bytes=1.0,
            wide_layers=0.125,
        ),
    ),
    "frozen": ("H100-DGX", "llama-2-7b", plan(dp=8.0)),
    "adapters": (
        "H100-DGX",
        "llama-2-70b",
        plan(dp=2.0, tp=4.0, sp=1.0, cp=2.0, operand_bytes=1.0),
    ),
    "adapters, whole h": ("H100-DGX", "llama-2-70b", plan(dp=2.0, tp=4.0, recompute_layers=1.0)),
    "adapters without dropout": ("H100-DGX", "llama-2-7b", plan(dp=8.0, zero=1.0)),
    "experts on latents": (
        "H100-DGX",
        "nemotron-3-super-120b-a12b",
        plan(dp=16.0, ep=16.0, tp=2.0, sp=1.0, cp=2.0, operand_bytes=1.0),
    ),
    "leading dense layers, and a head that is like the last": (
        "H100-DGX",
        EDGE_MODELS[7],
        plan(dp=8.0, ep=4.0, tp=4.0, sp=1.0, zero=1.0, operand_bytes=1.0, recompute_last=0.0),
    ),
    "gates, chunks, and matrices alone": (
        "H100-DGX",
        EDGE_MODELS[11],
        early(dp=8.0, ep=2.0, tp=2.0, cp=2.0, sp=1.0, operand_bytes=1.0),
    ),
    "gates, chunks, and matrices alone, unfused": (
        "A100-DGX",
        EDGE_MODELS[11],
        plan(dp=8.0, ep=2.0, flash=0.0, recompute_attention=1.0, recompute_elementwise=1.0),
    ),
    "keys that an indexer picks": (
        "H100-DGX",
        EDGE_MODELS[12],
        plan(dp=8.0, ep=8.0, tp=2.0, cp=2.0, operand_bytes=1.0, looped_experts=1.0),
    ),
    "scans and windows": ("H100-DGX", EDGE_MODELS[8], plan(dp=4.0, tp=2.0, cp=4.0, flash=0.0)),
}


def question(name: str) -> tuple:
    system, model, p = QUESTIONS[name]
    transformer = catalog.transformer(model) if isinstance(model, str) else model
    if name == "frozen":
        transformer = transformer.replace(trainable=0.0)
    if name.startswith("adapters"):
        transformer = transformer.replace(
            trainable=0.0,
            first_adapters=3.0,
            first_adapted=18000.0,
            last_adapters=2.0,
            last_adapted=12000.0,
            adapter_dropout=1.0,
        )
    if name == "adapters without dropout":
        transformer = transformer.replace(adapter_dropout=0.0)
    if name == "heads off the matrix units":
        transformer = sized(transformer, head_dim=108.0)
    if name == "further heads":
        transformer = transformer.replace(n_mtp=2.0)
    if name == "experts, unequally busy":
        transformer = sized(transformer, imbalance=1.4, shared_ff=14336.0)
    found = catalog.system(system, "fp16" if system.startswith("V100") else "bf16")
    if name == "switch that reduces":
        found = found.replace(network=found.network.replace(in_network_reduction=np.ones(2)))
    return found, transformer, p, COEFFICIENTS


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple]:
    """(hard model, reference) of every question; one batch through the model."""
    asked = [question(name) for name in QUESTIONS]
    found = HARD(*(batch(part) for part in zip(*asked, strict=True)))
    return {
        name: (case(found, i), reference.step(*q))
        for i, (name, q) in enumerate(zip(QUESTIONS, asked, strict=True))
    }


@pytest.mark.parametrize("name", QUESTIONS)
def test_hard_model_is_the_documented_formulas(answers, name):
    found, expected = answers[name]
    assert set(expected) == set(TERMS)
    total = sum(expected.values())
    for term in TERMS:
        assert float(getattr(found, term)) == pytest.approx(
            expected[term], rel=1e-10, abs=1e-14 * total
        ), term
    assert float(found.total) == pytest.approx(total, rel=1e-12)


def test_questions_reach_every_term(answers):
    assert [
        term for term in TERMS if not any(expected[term] > 0.0 for _, expected in answers.values())
    ] == []


def test_three_levels_are_the_documented_formulas():
    asked = [
        (catalog.system("H100-Superpod"), catalog.transformer(model), p, COEFFICIENTS)
        for model, p in [
            ("llama-3-70b", plan(dp=512.0, tp=8.0, zero=3.0, sp=1.0, global_batch=1024.0)),
            (
                "gpt-3-175b",
                plan(
                    dp=64.0,
                    tp=8.0,
                    pp=8.0,
                    interleave=2.0,
                    placement=("tp", "pp", "cp", "ep", "dp"),
                ),
            ),
            ("mixtral-8x7b", plan(dp=512.0, ep=8.0, tp=4.0, global_batch=1024.0)),
            (
                "mixtral-8x7b",
                plan(
                    dp=1024.0,
                    zero=2.0,
                    shard=64.0,
                    ep=8.0,
                    tp=4.0,
                    placement=("tp", "cp", "dp", "ep", "pp"),
                ),
            ),
        ]
    ]
    for q in asked:
        assert float(HARD(*q).total) == pytest.approx(sum(reference.step(*q).values()), rel=1e-11)


@pytest.mark.parametrize("evaluate", [SMOOTH, HARD])
def test_terms_are_not_negative_and_add_up(evaluate):
    found = evaluate(*random_questions(0, 200, 2))
    terms = {name: np.asarray(getattr(found, name)) for name in TERMS}
    for name, values in terms.items():
        assert values.dtype == np.float64 and (values >= -1e-16 * np.asarray(found.total)).all(), (
            name
        )
    total = terms[TERMS[0]]
    for name in TERMS[1:]:
        total = total + terms[name]
    assert (total == np.asarray(found.total)).all()
    assert (np.asarray(found.exposed_communication) <= total).all()


def test_sharper_and_sharper_is_the_hard_model():
    """The gap falls as 1/p: a factor of at least 3 for each factor of 4."""
    q = random_questions(1, 60, 2)
    hard = np.asarray(HARD(*q).total)
    models = [
        quick(lambda *q, p=p: step_time(*q, sharpness=p)) for p in (16.0, 64.0, 256.0, 4096.0)
    ]
    gaps = [np.abs(np.asarray(model(*q).total) / hard - 1.0).max() for model in models]
    assert all(3.0 * later < sooner for sooner, later in zip(gaps, gaps[1:], strict=False)), gaps
    assert gaps[-1] < 5e-4


def scaled(q: tuple, rates: float, times: float) -> tuple:
    """All rates of the system and all times multiplied."""
    system, model, p, c = q
    chip, net = system.chip, system.network
    chip = chip.replace(
        **{name: getattr(chip, name) * rates for name in RATES},
        kernel_latency_s=chip.kernel_latency_s * times,
    )
    net = net.replace(bytes_per_s=net.bytes_per_s * rates, latency_s=net.latency_s * times)
    return (
        system.replace(chip=chip, network=net),
        model,
        p,
        c.replace(**{name: getattr(c, name) * times for name in TIMES}),
    )


@pytest.mark.parametrize("evaluate", [SMOOTH, HARD])
def test_twice_the_rates_and_half_the_times_halve_every_term(evaluate):
    q = random_questions(2, 60, 2)
    jax.tree.map(
        lambda fast, slow: np.testing.assert_allclose(2.0 * fast, slow, rtol=1e-13),
        evaluate(*scaled(q, 2.0, 0.5)),
        evaluate(*q),
    )


@pytest.mark.parametrize("sharpness", [8.0, inf])
@pytest.mark.parametrize(
    "levels", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_elasticities_of_rates_less_those_of_times_are_minus_one(levels, sharpness):
    system, model, p, c = random_questions(3 + levels, 40, levels)

    by_input = quick(
        jax.grad(
            lambda s, c: jnp.log(step_time(s, model, p, c, sharpness=sharpness).total).sum(),
            argnums=(0, 1),
        )
    )(system, c)
    chip, net, seconds = (
        by_input[0].chip,
        by_input[0].network,
        sum(getattr(by_input[1], n) * getattr(c, n) for n in TIMES),
    )
    rates = sum(getattr(chip, n) * getattr(system.chip, n) for n in RATES) + (
        net.bytes_per_s * system.network.bytes_per_s
    ).sum(0)
    times = (
        chip.kernel_latency_s * system.chip.kernel_latency_s
        + (net.latency_s * system.network.latency_s).sum(0)
        + seconds
    )
    np.testing.assert_allclose(rates - times, -1.0, atol=1e-9)
    assert (np.asarray(rates) < 0.0).all() and (np.asarray(times) > 0.0).all()


def test_smooth_model_is_close_to_the_hard_one(answers):
    """Not only in the limit: at the default sharpness, within 10 % on ordinary plans."""
    asked = [question(name) for name in QUESTIONS]
    smooth = SMOOTH(*(batch(part) for part in zip(*asked, strict=True)))
    hard = np.array([float(found.total) for found, _ in answers.values()])
    assert np.abs(np.asarray(smooth.total) / hard - 1.0).max() < 0.1


def test_one_ideal_device_takes_its_flops():
    """Limit of the docstring: FLOPs / (peak · η), with rates of saturation and memory out of the
    way."""
    system, model = catalog.system("H100-DGX"), catalog.transformer("gpt-3-13b")
    chip = system.chip.replace(hbm_bytes_per_s=1e30)
    halves = "matmul_half_rows", "matmul_half_columns", "matmul_half_inner"
    unsaturated = dict.fromkeys((*halves, "attention_exponentials"), 1e-9)
    ideal = IDEAL.replace(
        **unsaturated, matmul_efficiency=0.5, attention_efficiency=0.5, attention_backward=1.0
    )
    p = plan(global_batch=16.0)
    found = HARD(system.replace(chip=chip), model, p, ideal)
    tokens = 16.0 * model.seq_len
    products = np.asarray(layer(model, p).products.flops) * 16.0 * 3.0
    linear = products[:-1].sum() * model.n_layers + products[-1]
    heads = value(model, "n_heads") * value(model, "head_dim")
    scores = 3.5 * 2.0 * model.n_layers * heads * model.seq_len * tokens
    assert float(found.total) == pytest.approx(
        (linear + scores) / (0.5 * float(chip.flops_per_s)), rel=1e-6
    )


def test_the_overhead_is_left_when_the_batch_vanishes():
    """On frozen weights, which have no optimizer step either."""
    system, model, p, c = question("frozen")
    found = HARD(system, model, p.having(global_batch=1e-9), c)
    assert float(found.total) == pytest.approx(c.overhead, rel=1e-6)


def test_a_scalar_case_is_a_batch_of_one():
    q = tuple(map(float64, question("FSDP")))
    one, many = SMOOTH(*q), SMOOTH(*(batch([part] * 2) for part in q))
    assert one.total.shape == () and many.total.shape == (2,)
    np.testing.assert_allclose(many.total, one.total, rtol=1e-13)


def test_fully_overlapped_and_not_overlapped_bound_the_step():
    """Forbidding all overlap never makes a step shorter than its work, and hides nothing. Buckets,
    which only what overlaps has, pay hops that one message does not."""
    system, model, p, c = random_questions(9, 60, 2)
    c = c.replace(bucket=np.full_like(c.bucket, np.inf))
    forbidden = p.having(
        **{
            f"overlap_{kind}": np.zeros_like(p.layout.dp)
            for kind in ("tp", "cp", "ep", "dp", "pp", "replica")
        }
    )
    allowed, none = HARD(system, model, p, c), HARD(system, model, forbidden, c)
    assert (np.asarray(none.contention) <= 1e-12 * np.asarray(none.total)).all()
    assert (
        np.asarray(none.exposed_communication)
        >= np.asarray(allowed.exposed_communication) - 1e-12 * np.asarray(none.total)
    ).all()


def test_sums_of_experts_add_to_their_products_and_those_of_others_hide_behind_them():
    """By micro-batch, but for the 2 bytes that any product writes: sums of a byte cost nothing.
    Kernels of their own move all."""
    system, model, c = (
        catalog.system("H100-DGX"),
        catalog.transformer("mixtral-8x7b"),
        COEFFICIENTS.replace(power_demand=1e-9),
    )
    p = plan(dp=8.0, ep=8.0, global_batch=64.0, fused_sums=1.0)

    def streams(model: Model, **changes: float) -> float:
        return float(HARD(system, model, p.having(**changes), c).elementwise)

    rate = float(system.chip.hbm_bytes_per_s * c.memory_efficiency)
    experts = 8.0 * float(model.n_layers * 3.0 * model.d_model * ff_width(model)) / rate
    one, two, four = (streams(model, gradient_bytes=x) for x in (1.0, 2.0, 4.0))
    assert two - one == pytest.approx(2.0 * experts, rel=1e-9) and four - one == pytest.approx(
        6.0 * experts, rel=1e-9
    )
    apart = [streams(model, gradient_bytes=x, fused_sums=0.0) for x in (2.0, 4.0)]
    assert apart[1] - apart[0] > 4.0 * float(c.elementwise_traffic) * experts
    dense = catalog.transformer("llama-3-8b")
    hidden = [streams(dense, ep=1.0, gradient_bytes=x) for x in (1.0, 4.0)]
    assert hidden[0] == hidden[1] < streams(dense, ep=1.0, gradient_bytes=1.0, fused_sums=0.0)


def test_a_map_of_routes_adds_its_bytes_to_the_gather_of_counts():
    """Linear in bytes, forward alone, and in blocks; counts are a start and hops of a third, which
    one rank of ep does not have."""
    system, model, c = catalog.system("H100-DGX"), catalog.transformer("mixtral-8x7b"), COEFFICIENTS
    p = plan(dp=8.0, ep=8.0, overlap_ep=0.0, merge_copies=1.0, global_batch=64.0)
    none, one, two = (
        float(HARD(system, model, p.having(route_bytes=x), c).expert_parallel)
        for x in (0.0, 1.0, 2.0)
    )
    gathered = float(model.seq_len) * 8.0 * 8.0 * (7.0 + OWN_PART) / 8.0
    rate = float(system.network.bytes_per_s[0] * c.net_efficiency_inner)
    forwards = 8.0 * float(model.n_layers)
    assert two - one == pytest.approx(forwards * gathered / rate, rel=1e-6)
    hops = 7.0 * float(system.network.latency_s[0] * c.net_latency_inner)
    assert (
        one - none == pytest.approx(two - one + forwards * hops * 2.0 / 3.0, rel=1e-6)
        and none > 0.0
    )
    alone = p.having(ep=1.0, route_bytes=1.0)
    assert float(HARD(system, model, alone, c).expert_parallel) == 0.0


def test_what_narrow_products_read_is_gathered_in_their_bytes():
    """With sequence parallelism half of the bytes go in 8 bits, not those that are summed (but
    forward where they go so too), nor the embedding's and the head's."""
    system, model = catalog.system("H100-DGX"), catalog.transformer("llama-3-8b")
    c = COEFFICIENTS.replace(
        collective_skew=1e-15, net_latency_inner=1e-12, collective_start=1e-15, power_demand=1e-9
    )
    eight = {"operand_bytes": 1.0}

    def waited(**changes: float) -> float:
        return float(
            HARD(
                system, model, plan(tp=8.0, overlap_tp=0.0, global_batch=64.0, **changes), c
            ).tensor_parallel
        )

    # of 32 layers, with 4 gathers and 4 sums of 32, and 2 gathers and 2 sums of the ends
    assert waited(sp=1.0, **eight) / waited(sp=1.0) == pytest.approx(
        (32.0 * 6.0 + 4.0) / (32.0 * 8.0 + 4.0), rel=1e-6
    )
    assert waited(sp=1.0, narrow_sums=1.0, **eight) / waited(sp=1.0) == pytest.approx(
        (32.0 * 5.0 + 4.0) / (32.0 * 8.0 + 4.0), rel=1e-6
    )
    assert waited(sp=1.0, narrow_sums=1.0) == pytest.approx(waited(sp=1.0), rel=1e-9)
    assert waited(sp=1.0, narrow_gathers=0.0, **eight) == pytest.approx(waited(sp=1.0), rel=1e-9)
    assert waited(sp=1.0, wide_layers=1.0, **eight) == pytest.approx(waited(sp=1.0), rel=1e-9)
    assert waited(**eight) == pytest.approx(waited(), rel=1e-9)


def test_of_tensor_parallelism_a_share_hides_however_long_the_products():
    """Products of a vast hidden size last far longer than messages: of these the share that may
    hide does, the rest is waited for."""
    system, p = catalog.system("H100-DGX"), plan(tp=8.0, global_batch=64.0)
    wide, c = (
        sized(catalog.transformer("llama-3-70b"), d_ff=1e6),
        COEFFICIENTS.replace(contention=1e-12, power_demand=1e-9),
    )

    def waited(**changes: float) -> float:
        found = HARD(
            system, wide, p.having(overlap_tp=changes.pop("able", 1.0)), c.replace(**changes)
        )
        return float(found.tensor_parallel)

    none, half, most = (waited(overlap_tp=share) for share in (1e-12, 0.5, 1.0 - 1e-12))
    assert waited(able=0.0) == pytest.approx(none, rel=1e-9)
    # what an embedding and a head send has nothing beside it
    assert half == pytest.approx(0.5 * (none + most), rel=1e-6) and most < 0.02 * none


def test_where_power_decides_the_clock_ranks_wait_for_the_slowest():
    """Of vast products, behind which all messages hide, a share by the ranks; none at the full
    clock, or for rows of sums."""
    system, p = catalog.system("H100-DGX"), plan(tp=8.0, global_batch=64.0)
    wide = sized(catalog.transformer("llama-3-70b"), d_ff=1e6)
    c = COEFFICIENTS.replace(contention=1e-12, overlap_tp=1.0 - 1e-12)

    def found(demand: float, **changes: float):
        return HARD(system, wide, p.having(**changes), c.replace(power_demand=demand))

    for ranks in (2.0, 8.0):
        cool, hot = (found(demand, tp=ranks, dp=8.0 / ranks) for demand in (1e-9, 1.5))
        work, slow = float(hot.matmul + hot.attention), float(hot.matmul / cool.matmul)
        x = 2.0 * np.log(ranks)
        expected = 0.25 * (1.0 - 1.0 / slow) * x / np.sqrt(1.0 + x) * work
        assert slow > 1.1 and float(hot.tensor_parallel - cool.tensor_parallel) == pytest.approx(
            expected, rel=1e-6
        )
    assert float(found(1.5, composed=1.0).tensor_parallel) == pytest.approx(
        float(found(1e-9, composed=1.0).tensor_parallel), rel=1e-9
    )


def test_ranks_of_tensor_parallelism_wait_for_each_other_at_each_sum():
    """Once for a half of a layer, as they have just met at the gather behind a sum, forward and
    backward, and for both ends together as often as forward and backward through half a layer;
    nothing on one rank."""
    system, model = catalog.system("H100-DGX"), catalog.transformer("llama-3-70b")
    c = COEFFICIENTS.replace(overlap_tp=1e-12)
    for sp in (0.0, 1.0):
        p = plan(tp=8.0, sp=sp, global_batch=16.0)
        none, some = (
            float(HARD(system, model, p, c.replace(collective_skew=s)).tensor_parallel)
            for s in (0.0, 1e-3)
        )
        assert some - none == pytest.approx(
            16.0 * (4.0 * float(model.n_layers) + 2.0) * 1e-3, rel=1e-6
        )
    alone = plan(tp=1.0, global_batch=16.0)
    assert float(HARD(system, model, alone, c.replace(collective_skew=1e-3)).tensor_parallel) == 0.0


def test_a_head_that_hides_counts_as_head_where_its_stage_is_the_slowest():
    """A host that is slow launches the head's layers anyway: with its stage as full as the others
    the head is all there; behind one that holds more layers it adds nothing, and that stage waits
    for all its own."""
    system, model = catalog.system("H100-DGX"), catalog.transformer("llama-2-7b", seq_len=64.0)
    c = COEFFICIENTS.replace(launch=30.0, head_balance=1e-12)
    even, uneven = (
        plan(tp=8.0, pp=4.0, sp=1.0),
        plan(tp=8.0, pp=4.0, sp=1.0, stage_excess=0.5, head_displaces=6.0),
    )
    free = HARD(system, model, even, c.replace(launch=1e-12))
    alike, behind = (HARD(system, model, p, c) for p in (even, uneven))
    assert 0.0 < float(alike.head) == pytest.approx(float(free.head), rel=1e-9)
    assert float(behind.head) == pytest.approx(0.0, abs=1e-9 * float(behind.total))
    share = 1.0 + 0.5 / 8.0
    assert float(behind.launch) == pytest.approx(
        share * (float(alike.launch) + float(alike.head)), rel=1e-6
    )


@pytest.mark.parametrize(("pp", "displaced"), [(1.0, 0.0), (4.0, 0.0), (4.0, 3.0), (4.0, 6.0)])
@pytest.mark.parametrize("share", [1e-12, 0.4, 1.0 - 1e-12])
def test_a_stage_takes_its_device_or_its_host_whichever_is_longer(pp, displaced, share):
    """With one device's work alone and no fill, a micro-batch takes the longest stage's `max(ℓ d +
    a H, ℓ h)`: a is 1/pp of what all carry alike, and on the last stage, of fewer layers, what it
    alone has besides."""
    system, model = catalog.system("H100-DGX"), catalog.transformer("llama-2-7b", seq_len=64.0)
    still = dict.fromkeys(
        ("straggler", "overhead", "kernel_fill", "bubble", "collective_start", "net_latency_inner"),
        1e-12,
    )
    p = plan(pp=pp, head_displaces=displaced, stage_excess=displaced / pp)
    full, fewer = 32.0 / pp + displaced / pp, 32.0 / pp + displaced / pp - displaced

    def parts(launch: float):
        return HARD(
            system, model, p, COEFFICIENTS.replace(**still, head_balance=share, launch=launch)
        )

    # a device with little to wait for: what it works on in a layer and in the head
    free = HARD(
        system, model, plan(), COEFFICIENTS.replace(**still, head_balance=share, launch=1e-12)
    )
    d, head = (
        sum(float(getattr(free, n)) for n in ("matmul", "attention", "elementwise")) / 32.0 / 256.0,
        float(free.head) / 256.0,
    )
    waiting = HARD(
        system, model, plan(), COEFFICIENTS.replace(**still, head_balance=share, launch=1e3)
    )
    h = (float(waiting.total) - float(waiting.optimizer)) / 256.0 / 32.0 / 1e3
    for launch in (0.3 * d / h, 1.05 * d / h, 1.5 * d / h, 5.0 * d / h):
        found = parts(launch)
        even, alone = share * head / pp, (1.0 - share) * head
        stages = [full * d + even, full * h * launch] if pp > 1.0 else []
        last = [fewer * d + even + alone, fewer * h * launch]
        expected = 256.0 * max(max(stages, default=0.0), max(last))
        seconds = (
            float(found.total)
            - float(found.optimizer)
            - float(found.bubble)
            - float(found.pipeline_transfer)
        )
        assert seconds == pytest.approx(expected, rel=1e-6), launch


@pytest.mark.parametrize("evaluate", [SMOOTH, HARD])
def test_a_slower_host_makes_no_step_faster(evaluate):
    """At random; and where the logits of a small model pass while messages of the step would, that
    the host's time leaves room for."""
    system, model, p, c = random_questions(17, 300, 2)
    for launch in (0.3, 3.0, 30.0):
        slow, slower = (
            np.asarray(evaluate(system, model, p, c.replace(launch=c.launch * launch * x)).total)
            for x in (1.0, 1.05)
        )
        assert (slower >= slow * (1.0 - 1e-12)).all()
    far, times = catalog.system("A100-RoCE-1600"), np.exp(np.linspace(-1.0, 3.0, 200))
    for model in ("gpt-3-125m", "gpt-3-1.3b"):
        for p in (
            plan(dp=64.0, global_batch=64.0),
            plan(dp=64.0, tp=4.0, zero=1.0, global_batch=64.0),
        ):
            q = (batch([part] * len(times)) for part in (far, catalog.transformer(model), p))
            found = np.asarray(
                evaluate(*q, COEFFICIENTS.replace(launch=COEFFICIENTS.launch * times)).total
            )
            assert (np.diff(found) >= -1e-12 * found[1:]).all() and found[-1] > 1.1 * found[0]


def test_the_head_of_a_mixture_hides_in_no_wait():
    """Its host has to know what experts get: twice the head lengthens a step that waits for its
    host by as much as one that does not."""
    system, model = catalog.system("H100-DGX"), catalog.transformer("mixtral-8x7b", seq_len=64.0)

    def beyond(model, launch: float) -> float:
        wide, narrow = (
            HARD(system, model.replace(vocab=v), plan(), COEFFICIENTS.replace(launch=launch))
            for v in (64000.0, 32000.0)
        )
        return sum(float(getattr(wide, n)) - float(getattr(narrow, n)) for n in ("head", "launch"))

    assert (
        beyond(model, 30.0) == pytest.approx(beyond(model, 1e-12), rel=1e-9)
        and beyond(model, 30.0) > 0.0
    )
    dense = catalog.transformer("llama-2-7b", seq_len=64.0)
    assert beyond(dense, 30.0) == pytest.approx(0.0, abs=1e-9 * beyond(dense, 1e-12))


def test_sums_between_slices_go_by_layer_around_a_ring_and_are_awaited():
    """Each layer's message makes 2 (n - 1) hops, whatever its bytes; where they hide there is less
    to wait for."""
    system, p = catalog.system("TPU-v5e"), plan(zero=3.0, shard=256.0, overlap_replica=0.0)
    c = COEFFICIENTS.replace(
        net_efficiency_outer=1.0 - 1e-12, net_contention=1e-12, collective_start=0.0
    )
    shallow, deep = (catalog.transformer("llama-2-7b").replace(n_layers=n) for n in (32.0, 64.0))
    wide = system.replace(network=system.network.replace(bytes_per_s=np.array([1e18, 1e18])))
    hop = float(system.network.latency_s[1] * c.net_latency_outer)

    def waits(model, slices: float, hides: float = 0.0) -> float:
        asked = p.having(dp=256.0 * slices, global_batch=256.0 * slices, overlap_replica=hides)
        return float(HARD(wide, model, asked, c).data_parallel)

    for n in (2.0, 8.0, 32.0):
        assert waits(shallow, n) == pytest.approx(32.0 * 2.0 * (n - 1.0) * hop, rel=1e-4)
        assert waits(deep, n) == pytest.approx(2.0 * waits(shallow, n), rel=1e-4)
    assert waits(shallow, 1.0) == 0.0 and waits(shallow, 4.0, hides=1.0) < waits(shallow, 4.0)


def test_every_coefficient_moves_some_step():
    """No dead coefficient: each has an elasticity of at least 1e-4 in one of the questions."""
    asked = [question(name) for name in QUESTIONS]
    system, model, p, c = (batch(part) for part in zip(*asked, strict=True))
    gradient = quick(jax.grad(lambda c: jnp.log(step_time(system, model, p, c).total).sum()))(c)
    assert isinstance(gradient, Coefficients)
    dead = [
        name
        for name in SPECS
        if np.abs(np.asarray(getattr(gradient, name) * getattr(c, name))).max() < 1e-4
    ]
    assert dead == []


def test_accumulation_reduces_once_and_waiting_hides_nothing():
    """FSDP with 8 micro-batches: gradients cross the network once in place of 8 times."""
    system, model = catalog.system("H100-DGX"), catalog.transformer("llama-2-7b")
    usual = plan(dp=64.0, zero=3.0, global_batch=512.0)
    asked = [
        usual,
        usual.having(accumulate=1.0),
    ]
    found = SMOOTH(
        *(
            batch(part)
            for part in zip(*[(system, model, p, COEFFICIENTS) for p in asked], strict=True)
        )
    )
    each, once = (case(found, i) for i in range(2))
    assert float(once.fsdp) < float(each.fsdp)
    assert float(once.contention) < float(each.contention)


def test_buckets_hold_what_goes_once_per_step():
    """FSDP's messages are those of layers, those that overlap nothing are whole, and buckets grow
    by what each rank adds to them."""
    system, model = catalog.system("H100-DGX"), catalog.transformer("llama-2-7b", seq_len=2048)

    def seconds(bucket: float, **changes: float) -> float:
        asked = plan(**{"dp": 64.0, "global_batch": 128.0, **changes})
        return float(
            SMOOTH(
                system,
                model,
                asked,
                COEFFICIENTS.replace(bucket=bucket, overlap_dp=1e-3, overlap_gather=1e-3),
            ).total
        )

    assert all(
        seconds(1e6, zero=3.0, accumulate=after) == seconds(1e9, zero=3.0, accumulate=after)
        for after in (0.0, 1.0)
    )
    assert seconds(1e6, zero=2.0) > seconds(1e9, zero=2.0), "ZeRO 2 gathers its parameters once"
    assert all(
        seconds(1e6, zero=zero, overlap_dp=0.0) == seconds(1e9, zero=zero, overlap_dp=0.0)
        for zero in (0.0, 1.0)
    )
    assert seconds(1e7, zero=1.0) > seconds(1e8, zero=1.0)
    for ranks in (64.0, 256.0):
        grown = seconds(1e7, dp=ranks, global_batch=2.0 * ranks, zero=1.0, bucket_per_rank=1e6)
        assert grown == pytest.approx(
            seconds(1e6 * ranks, dp=ranks, global_batch=2.0 * ranks, zero=1.0), rel=1e-12
        )
    assert seconds(1e8, zero=1.0, bucket_per_rank=1e6) == seconds(1e8, zero=1.0), (
        "a full bucket is larger than 64 ranks need"
    )


def test_every_term_of_a_batch_has_its_shape():
    """Also with coefficients that are scalars."""
    found = SMOOTH(
        catalog.system("H100-DGX"),
        catalog.transformer("llama-3-8b"),
        plan(dp=np.array([1.0, 2.0, 4.0])),
        COEFFICIENTS,
    )
    assert {np.shape(x) for x in jax.tree.leaves(found)} == {(3,)}


@pytest.mark.parametrize("name", ["n_experts", "top_k", "n_layers", "head_dim", "seq_len"])
def test_models_without_what_every_model_has_are_refused(name):
    """Instead of an answer that is no number."""
    model, plan = (
        sized(catalog.transformer("mixtral-8x7b", 2048.0), **{name: 0.0}),
        Plan.of(dp=8.0, global_batch=8.0),
    )
    for ask in (
        lambda: step_time(catalog.system("H100-DGX"), model, plan, default()),
        lambda: memory_use(model, plan),
    ):
        with pytest.raises(InputError, match=f"{name}: expected a number from 1 on"):
            ask()


THREE = np.array([1.0, 2.0, 4.0])


def with_batch(kind):
    """Records of which one has three cases, and a function that gives case i of them."""
    system, model, c = (
        catalog.system("H100-DGX"),
        catalog.transformer("llama-3-8b", 2048.0),
        default(),
    )
    plan, net = Plan.of(dp=8.0, tp=2.0, zero=1.0, shard=8.0, global_batch=32.0), system.network
    records = {
        "plan": lambda x: (system, model, plan.having(dp=32.0 / x, shard=32.0 / x, tp=2.0 * x), c),
        "model": lambda x: (system, model.replace(seq_len=2048.0 * x), plan, c),
        "chip": lambda x: (
            system.replace(chip=system.chip.replace(flops_per_s=system.chip.flops_per_s * x)),
            model,
            plan,
            c,
        ),
        "network": lambda x: (
            system.replace(network=net.replace(bytes_per_s=np.multiply.outer(net.bytes_per_s, x))),
            model,
            plan,
            c,
        ),
        "coefficients": lambda x: (
            system,
            model,
            plan,
            jax.tree.map(lambda value: value * x**0.1, c),
        ),
    }
    return records[kind]


@pytest.mark.parametrize("kind", ["plan", "model", "chip", "network", "coefficients"])
def test_any_record_may_have_a_batch(kind):
    """Time and memory of three cases at once are those of one after the other."""
    of = with_batch(kind)
    together = of(THREE)
    each = [of(x) for x in THREE]
    np.testing.assert_allclose(
        SMOOTH(*together).total, [float(SMOOTH(*one).total) for one in each], rtol=1e-12
    )
    used = np.broadcast_to(MEMORY(together[1], together[2]).total, 3)
    np.testing.assert_allclose(
        used, [float(MEMORY(one[1], one[2]).total) for one in each], rtol=1e-12
    )
