"""Frozen weights in 4 bits: what they hold, what bringing them to 16 bits takes; against published
figures."""

import numpy as np
import pytest

from dmodel import catalog, counts, launching
from dmodel.cost import compute, memory
from dmodel.records import Plan
from dmodel.step import memory_use, step_time
from dmodel.tables import layer
from tests.points import COEFFICIENTS, quick
from tests.rows import job, told

STEP = quick(step_time)
QUANTIZED = {"weight_bytes": 0.516, "end_bytes": 2.0}


def plan(**changes: float) -> Plan:
    return Plan.of(**{"dp": 1.0, "global_batch": 4.0} | changes)


def test_embedding_and_head_stay_in_16_bits():
    model = catalog.transformer("llama-2-7b")
    parts = counts.residents(model, plan())
    layers, ends = float(parts.layers), float(parts.ends)
    held = float(memory.stored_weights(parts, plan(**QUANTIZED)))
    assert held == pytest.approx(0.516 * layers + 2.0 * ends)
    alike = float(memory.stored_weights(parts, plan(weight_bytes=0.516)))
    assert alike == pytest.approx(0.516 * (layers + ends))
    assert float(memory_use(model, plan(**QUANTIZED)).weights) == pytest.approx(held)


def test_constants_of_quantized_weights_are_neither_sharded_nor_offloaded():
    """PyTorch shards and moves parameters; bitsandbytes' quant_state is none."""
    model = catalog.transformer("llama-2-7b")
    constants = QUANTIZED | {"whole_bytes": 0.0159}
    layers = float(counts.residents(model, plan()).layers)

    def held(bits, **changes):
        return float(memory_use(model, plan(**bits, **changes)).weights)

    alone = held(QUANTIZED)
    assert held(constants) == pytest.approx(alone, rel=1e-12)
    shared = {"dp": 4.0, "shard": 4.0, "zero": 3.0}
    more = held(constants, **shared) - held(QUANTIZED, **shared)
    assert more == pytest.approx(0.75 * 0.0159 * layers, rel=1e-9)
    assert held(constants, offload_weights=1.0) == pytest.approx(0.0159 * layers, rel=1e-12)
    assert held(QUANTIZED, offload_weights=1.0) == 0.0


def test_weights_are_brought_to_16_bits_in_both_passes_and_where_products_are_done_again():
    model, system = catalog.transformer("llama-2-7b"), catalog.system("A100-DGX")
    model = model.replace(trainable=0.0)
    c = COEFFICIENTS.replace(launch=0.0, kernel_fill=0.0, straggler=0.0, power_demand=0.0)

    def terms(**changes):
        with_, without = (
            STEP(system, model, plan(weight_bytes=0.516, dequantize=x, **changes), c)
            for x in (3.2, 0.0)
        )
        return [
            float(getattr(with_, n) - getattr(without, n)) for n in ("elementwise", "recompute")
        ]

    each = 3.2 * float(
        compute.streaming_time(2.516 * counts.residents(model, plan()).layers, system.chip, c)
    )
    assert terms() == [pytest.approx(4.0 * 2.0 * each), 0.0]
    assert terms(recompute_layers=1.0) == pytest.approx([4.0 * 2.0 * each, 4.0 * each])
    assert terms(recompute_products=0.5) == pytest.approx([4.0 * 2.0 * each, 4.0 * 0.5 * each])


def test_three_kernels_come_before_each_product():
    model = catalog.transformer("llama-2-7b")
    found = [
        float(launching.dequantizations(layer(model, p), p))
        for p in (plan(), plan(dequantize=3.2), plan(dequantize=3.2, recompute_layers=1.0))
    ]
    dense = float(np.asarray(layer(model, plan()).dense))
    assert found == [0.0, 6.0 * dense, 9.0 * dense]


def test_slower_kernels_make_no_step_shorter():
    model, system = catalog.transformer("llama-2-7b"), catalog.system("A100-DGX")
    times = [
        float(STEP(system, model, plan(dequantize=x), COEFFICIENTS).total)
        for x in np.linspace(0.0, 6.0, 25)
    ]
    assert all(a <= b for a, b in zip(times, times[1:], strict=False)) and times[0] < times[-1]


def pair(model: str, chip: str, stack: str = "", **said):
    """The same job with LoRA and with QLoRA."""
    of = {"n_accel": 1, "global_batch": said.pop("global_batch", 1)} | said
    return tuple(job(stack, model, chip, tuning=way, **of) for way in ("lora", "qlora"))


def test_what_qlora_takes_is_said():
    _, found = pair("llama-2-7b", "A100-80GB", seq_len=512)
    assert float(found.plan.precision.end_bytes) == 2.0
    assert float(found.plan.precision.dequantize) == 3.5
    assert "embedding and head in 16" in told(found)
    _, tune = pair("llama-2-7b", "A100-80GB", "torchtune", seq_len=512)
    assert float(tune.plan.precision.dequantize) > 3.5


@pytest.mark.parametrize(("model", "measured"), [("llama-2-7b", 0.088), ("llama-2-13b", 0.202)])
def test_what_nf4_adds_to_a_micro_batch_of_litgpt(model, measured):
    """LitGPT, tutorials/resource-tables.md: bnb.nf4-dq on one A100 of 40 GB, where samples have up
    to 1,304 tokens."""
    of = {"seq_len": 1304, "recompute": "none"}
    times = [
        float(STEP(x.cluster, x.model, x.plan, COEFFICIENTS).total)
        for x in pair(model, "A100-40GB", "litgpt", **of)
    ]
    assert times[1] - times[0] == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(
    ("model", "published", "card"),
    [("llama-1-13b", 10e9, 12e9), ("llama-1-33b", 21e9, 24e9), ("llama-1-65b", 41e9, 48e9)],
)
def test_what_qlora_s_models_hold(model, published, card):
    """Dettmers et al. 2023, arXiv 2305.14314: memory of Guanaco's models in 4 bits, which a card of
    24 or 48 GB fine-tunes."""
    _, found = pair(model, "A100-80GB", "huggingface", seq_len=512, recompute="full")
    held = float(memory_use(found.model, found.plan).total)
    assert held == pytest.approx(published, rel=0.2)
    assert held < card
