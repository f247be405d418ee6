"""Memory of a device: published formulas of activations, ZeRO's shares, schedules, and what
interpolation must meet."""

from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest

from dmodel import catalog
from dmodel.cost import memory
from dmodel.counts import parameters, residents
from dmodel.footprint import LEAST, NAMES, RESERVED_BYTES, Footprint, from_unconstrained, prior
from dmodel.records import Plan, sized
from dmodel.step import memory_moments, memory_use
from dmodel.tables import layer_keeps
from dmodel.units import GIB
from tests import reference_parts
from tests.points import EDGE_MODELS

GPT = catalog.transformer("gpt-3-175b")
LLAMA = catalog.transformer("llama-2-7b")


def plan(**changes: float) -> Plan:
    return Plan.of(**{"dp": 1.0, "global_batch": 64.0, "flash": 0.0, **changes})


@pytest.mark.parametrize("b", [1.0, 4.0])
@pytest.mark.parametrize("tp", [1.0, 2.0, 8.0])
def test_activations_are_those_of_korthikanti(b, tp):
    """Korthikanti et al. 2022, table 2, for a plain MLP of 4 h and MHA: without recomputation, with
    selective and full recomputation."""
    s, h, a = float(GPT.seq_len), float(GPT.d_model), 96.0
    sbh, scores = s * b * h, 5.0 * a * s * s * b
    table = {
        (): sbh * (10.0 + 24.0 / tp) + scores / tp,
        ("sp",): (34.0 * sbh + scores) / tp,
        ("recompute_attention",): sbh * (10.0 + 24.0 / tp),
        ("sp", "recompute_attention"): 34.0 * sbh / tp,
        ("recompute_layers",): 2.0 * sbh,
    }
    for switches, expected in table.items():
        found = memory.layer_activation_bytes(
            GPT, plan(tp=tp, micro_batch=b, **dict.fromkeys(switches, 1.0))
        )
        assert float(found) == pytest.approx(expected, rel=1e-12), switches


def test_flash_keeps_no_scores_and_context_parallelism_splits_the_rest():
    flash = float(memory.layer_activation_bytes(GPT, plan(flash=1.0)))
    assert flash == pytest.approx(34.0 * float(GPT.seq_len) * float(GPT.d_model), rel=1e-12)
    for cp in (2.0, 8.0):
        assert float(memory.layer_activation_bytes(GPT, plan(flash=1.0, cp=cp))) == pytest.approx(
            flash / cp, rel=1e-12
        )


def test_a_gated_mlp_with_few_kv_heads_keeps_what_its_backward_reads():
    """Llama 3 8B by hand, 16 bits, flash: 10 h (norm inputs, outputs, masks), Q, output (2 a e
    each), K, V (2 g e each), O's input counted with the output, and for the MLP gate, up and their
    product, 6 f."""
    m = catalog.transformer("llama-3-8b")
    h, heads, kv, f = m.d_model, 32 * 128, 8 * 128, 14336
    expected = m.seq_len * (10.0 * h + 2.0 * (2.0 * heads + 2.0 * kv) + 6.0 * f)
    assert float(memory.layer_activation_bytes(m, plan(flash=1.0))) == pytest.approx(
        float(expected), rel=1e-12
    )


@pytest.mark.parametrize(("trainable", "norm"), [(1.0, 4.0 + 2.0), (0.0, 4.0)])
def test_kernels_apart_keep_results_of_their_own(trainable, norm):
    """Two norms keep fp32 copies of their input, and what they normalized where their weights are
    trained; the gate keeps what it multiplies. At work, gradients inside the MLP are beside."""
    m = catalog.transformer("llama-3-8b").replace(trainable=trainable)
    t, h, f = float(m.seq_len), 4096.0, 14336.0
    fused, apart = (
        float(memory.layer_activation_bytes(m, plan(flash=1.0, eager=x))) for x in (0.0, 1.0)
    )
    more = t * (2.0 * norm * h + 2.0 * f)
    assert apart - fused == pytest.approx(more, rel=1e-12)
    at_work = [
        float(moments(m, recompute_layers=1.0, eager=x)["backward"].activations) for x in (0.0, 1.0)
    ]
    inside = t * f * (6.0 + 2.0 * trainable)
    assert at_work[1] - at_work[0] == pytest.approx(more + inside, rel=1e-12)


def test_operands_in_eight_bits_are_kept_in_one_byte():
    """Of 34 bytes the norms' outputs (4), the attention output (2) and the MLP's product (8) halve;
    four bits keep scales, so also one."""
    t = float(GPT.seq_len * GPT.d_model)
    for operand in (1.0, 0.5):
        found = memory.layer_activation_bytes(GPT, plan(flash=1.0, operand_bytes=operand))
        assert float(found) == pytest.approx((34.0 - 2.0 - 1.0 - 4.0) * t, rel=1e-12)


def test_a_mixture_keeps_what_its_busiest_expert_sees():
    m = sized(EDGE_MODELS[2], imbalance=1.5, shared_ff=2048.0)
    dense, busy = (
        float(memory.layer_activation_bytes(x, plan(flash=1.0)))
        for x in (sized(m, top_k=0.0, shared_ff=0.0), m)
    )
    inside, inputs = 2048.0 * (2.0 * 1.5 + 1.0) * 6.0, float(m.d_model) * 2.0 * 1.5 * 2.0
    assert busy - dense == pytest.approx(float(m.seq_len) * (inside + inputs), rel=1e-12)


KEPT = {
    "one device": {"flash": 1.0},
    "unfused": {"tp": 4.0, "sp": 1.0},
    "unfused, the core again": {"recompute_attention": 1.0, "cp": 2.0},
    "8 bits": {"flash": 1.0, "tp": 2.0, "operand_bytes": 1.0, "micro_batch": 2.0},
    "experts that are split": {"flash": 1.0, "tp": 4.0, "etp": 2.0, "ep": 4.0, "dp": 4.0},
}


@pytest.mark.parametrize("model", EDGE_MODELS)
@pytest.mark.parametrize("name", KEPT)
def test_a_layer_keeps_what_its_parts_do(model, name):
    """Of every kind of part, as the reference writes them; adapters beside."""
    p = plan(**KEPT[name])
    by_hand = sum(
        share * reference_parts.kept(part, model, p)
        for share, part in reference_parts.parts_of(model)
    )
    found = layer_keeps(model, p)
    assert float(found.total - found.adapters) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("ranks", [1.0, 8.0, 64.0])
def test_zero_stages_hold_their_shares(ranks):
    """Rajbhandari et al. 2020 with 16-bit gradients: 2 + 2 + 12 = 16 bytes per parameter, each
    stage shards one more part."""
    n = float(parameters(LLAMA))
    expected = {0: 16.0, 1: 4.0 + 12.0 / ranks, 2: 2.0 + 14.0 / ranks, 3: 16.0 / ranks}
    for zero, per_parameter in expected.items():
        use = memory_use(LLAMA, plan(dp=ranks, shard=ranks, zero=float(zero), gradient_bytes=2.0))
        assert float(use.weights + use.gradients + use.optimizer) == pytest.approx(
            per_parameter * n, rel=1e-12
        )


def test_interpolation_meets_the_stages_and_is_linear_between():
    zero = np.linspace(0.0, 3.0, 301)
    use = memory_use(LLAMA, plan(dp=8.0, shard=8.0).having(zero=zero))
    states = np.asarray(use.weights + use.gradients + use.optimizer)
    whole = [
        float(memory_use(LLAMA, plan(dp=8.0, shard=8.0, zero=float(z))).total) for z in range(4)
    ]
    np.testing.assert_allclose(np.asarray(use.total)[::100], whole, rtol=1e-12)
    bends = np.abs(np.diff(states, 2)) > 1e-9 * states[0]
    assert set(np.flatnonzero(bends) + 1) == {100, 200}
    assert (np.diff(states) < 0.0).all()


def test_sharing_shards_over_its_own_ranks_only():
    parts = residents(EDGE_MODELS[2], plan(ep=2.0, dp=16.0))
    spread = plan(dp=16.0, ep=2.0, shard=8.0, cp=2.0)
    found = float(memory.sharded(parts, spread))
    assert found == pytest.approx(
        float((parts.layers + parts.ends) / 16.0 + parts.experts / 8.0), rel=1e-12
    )
    for zero, stage in product(range(4), (1.0, 2.0, 3.0)):
        expected = found if zero >= stage else float(parts.total)
        assert float(memory.held(parts, spread.having(zero=float(zero)), stage)) == pytest.approx(
            expected, rel=1e-12
        )


@pytest.mark.parametrize(
    ("schedule", "v", "held"),
    [
        ("1f1b", 1.0, 8.0),
        ("gpipe", 1.0, 32.0),
        ("interleaved", 2.0, 8.0 + 7.0 / 2.0),
        ("zero-bubble", 1.0, 15.0),
        ("zbv", 2.0, 8.0),
        ("dualpipe", 1.0, 9.0),
        ("dualpipev", 2.0, 8.5),
    ],
)
def test_a_stage_holds_the_micro_batches_of_its_schedule(schedule, v, held):
    p = plan(dp=2.0, pp=8.0, tp=8.0, interleave=v, schedule=schedule, micro_batch=1.0, flash=1.0)
    layers = float(GPT.n_layers) / 8.0
    expected = layers * held * float(memory.layer_activation_bytes(GPT, p))
    assert float(memory_use(GPT, p).activations) == pytest.approx(expected, rel=1e-12)


def test_recomputation_keeps_one_layer_at_work():
    p = plan(recompute_layers=1.0, flash=1.0)
    one = float(memory.layer_activation_bytes(GPT, plan(flash=1.0)))
    kept = 2.0 * float(GPT.seq_len) * float(GPT.d_model)
    assert float(memory_use(GPT, p).activations) == pytest.approx(
        float(GPT.n_layers) * kept + one, rel=1e-12
    )


def test_of_activations_in_the_host_s_memory_two_layers_stay_on_the_device():
    """All but what leaves and what comes back, in proportion; the layer at work stays, and nothing
    but activations changes."""
    p = plan(recompute_layers=1.0, flash=1.0)
    kept = 2.0 * float(GPT.seq_len) * float(GPT.d_model)
    on_device, half, moved = (memory_use(GPT, p.having(offload=share)) for share in (0.0, 0.5, 1.0))
    assert float(on_device.activations - moved.activations) == pytest.approx(
        (float(GPT.n_layers) - 2.0) * kept, rel=1e-12
    )
    assert float(on_device.activations + moved.activations) == pytest.approx(
        2.0 * float(half.activations), rel=1e-12
    )
    assert float(on_device.total - moved.total) == pytest.approx(
        float(on_device.activations - moved.activations), rel=1e-12
    )
    few = [memory.on_device(np.float64(layers), plan(offload=1.0)) for layers in (0.5, 2.0, 3.0)]
    assert [float(x) for x in few] == [0.5, 2.0, 2.0]


def test_policies_that_keep_results_keep_no_last_one_where_nothing_reads_it():
    """Llama 2 7B that keeps queries, keys and values, 3 h wide: all but their products and the last
    one run again, which is not kept."""
    h, f, t = float(LLAMA.d_model), 11008.0, float(LLAMA.seq_len)
    qkv, out, up, down = 3.0 * h * h, h * h, 2.0 * h * f, h * f
    keeps = {"recompute_attention": 1.0, "recompute_elementwise": 1.0, "flash": 1.0}
    early = plan(
        recompute_products=(out + up) / (qkv + out + up + down), recompute_last=0.0, **keeps
    )
    assert float(memory.kept_result_bytes(LLAMA, early)) == pytest.approx(
        2.0 * t * 3.0 * h, rel=1e-12
    )
    assert float(memory.layer_activation_bytes(LLAMA, early)) == pytest.approx(
        2.0 * t * 4.0 * h, rel=1e-12
    )
    held, share = early.having(last_kept=1.0), (qkv + down) / (qkv + out + up + down)
    assert float(memory.kept_result_bytes(LLAMA, held)) == pytest.approx(
        2.0 * t * share * (5.0 * h + 2.0 * f), rel=1e-12
    )
    every = plan(recompute_products=0.0, recompute_last=1.0, **keeps)
    assert float(memory.kept_result_bytes(LLAMA, every)) == pytest.approx(
        2.0 * t * (5.0 * h + 2.0 * f), rel=1e-12
    )


@pytest.mark.parametrize("model", EDGE_MODELS)
def test_parts_add_up_and_saving_saves(model):
    base = plan(dp=8.0, shard=8.0, tp=2.0, global_batch=64.0)
    use = memory_use(model, base)
    parts = (use.weights, use.gradients, use.optimizer, use.activations, use.logits, use.buffers)
    assert float(use.total) == pytest.approx(float(sum(parts)), rel=1e-15) and all(
        float(x) >= 0.0 for x in parts
    )
    savers = {
        "sp": 1.0,
        "recompute_layers": 1.0,
        "recompute_attention": 1.0,
        "flash": 1.0,
        "zero": 1.0,
        "cp": 2.0,
        "tp": 4.0,
    }
    for name, value in savers.items():
        assert float(memory_use(model, base.having(**{name: value})).total) <= float(use.total), (
            name
        )


def test_frozen_weights_need_neither_gradients_nor_optimizer():
    use = memory_use(EDGE_MODELS[4], plan())
    assert float(use.gradients) == float(use.optimizer) == 0.0 < float(use.weights)


def test_fsdp_gathers_two_layers_on_top_of_what_is_reserved():
    base, sharded = (memory_use(LLAMA, plan(dp=8.0, shard=8.0, zero=zero)) for zero in (2.0, 3.0))
    assert float(base.buffers) == RESERVED_BYTES == 2.5 * GIB
    extra = float(sharded.buffers - base.buffers)
    assert extra == pytest.approx(
        2.0 * 2.0 * float(parameters(LLAMA)) / float(LLAMA.n_layers), rel=1e-12
    )


def test_embedding_and_head_of_the_outermost_unit_stay_gathered():
    """PyTorch's FSDP frees no parameters of the root unit after the forward pass: two layers of 32
    are gathered at a time, embedding and head all the time."""
    sharded = {"dp": 8.0, "shard": 8.0, "zero": 3.0, "global_batch": 8.0, "reshard": 1.0}
    layers, root = (moments(whole_ends=x, **sharded) for x in (0.0, 1.0))
    parts = residents(LLAMA, plan(**sharded))
    more = 2.0 * float(parts.ends) * (1.0 - 2.0 / 32.0)
    for moment, expected in (("loss", more), ("backward", more), ("update", 0.0)):
        found = float(root[moment].buffers - layers[moment].buffers)
        assert found == pytest.approx(expected, rel=1e-12), moment
    # in bytes of their own, and all of them where all weights stay
    own = moments(whole_ends=1.0, end_bytes=2.0, gather_bytes=0.5, **sharded)["loss"].buffers
    narrow = moments(gather_bytes=0.5, **sharded)["loss"].buffers
    more = float(parts.ends) * (2.0 - 0.5 * 2.0 / 32.0)
    assert float(own - narrow) == pytest.approx(more, rel=1e-12)
    kept = sharded | {"reshard": 0.0}
    assert moments(whole_ends=1.0, **kept) == moments(**kept)
    unsharded = sharded | {"zero": 2.0}
    assert moments(whole_ends=1.0, **unsharded) == moments(**unsharded)


def test_weights_kept_after_the_forward_pass_are_all_alive():
    p = plan(dp=8.0, shard=8.0, zero=3.0)
    again, kept = (
        float(memory_use(LLAMA, p.having(reshard=reshard)).buffers) for reshard in (1.0, 0.0)
    )
    assert (
        kept - RESERVED_BYTES == pytest.approx(2.0 * float(parameters(LLAMA)), rel=1e-12)
        and again < kept
    )


def test_shared_experts_are_on_every_rank_of_their_group():
    m = sized(EDGE_MODELS[2], shared_ff=4096.0)
    one = float(m.d_model * 2048.0 * 3.0 * m.n_layers)
    whole, spread = (residents(m, plan(dp=8.0, ep=ep)) for ep in (1.0, 8.0))
    assert float(whole.experts) == pytest.approx(8.0 * one, rel=1e-12) and float(
        spread.experts
    ) == pytest.approx(one, rel=1e-12)
    assert float(whole.dense) == float(spread.dense) and float(whole.total) == pytest.approx(
        float(parameters(m)), rel=1e-12
    )


def test_llama_70b_on_64_devices_needs_what_practice_needs():
    """Sharded over 64 H100s with full recomputation it fits 80 GB, unsharded it does not (Llama 2
    70B was trained with FSDP)."""
    m = catalog.transformer("llama-2-70b")
    big = plan(dp=64.0, shard=64.0, recompute_layers=1.0, flash=1.0)
    assert (
        float(memory_use(m, big.having(zero=3.0)).total)
        < 80e9
        < 1e12
        < float(memory_use(m, big).total)
    )


def use(model=LLAMA, changes=(), **degrees: float):
    """Memory of a plan with flash attention under a footprint that differs from the least."""
    return memory_use(
        model, plan(**{"flash": 1.0, **degrees}), footprint=LEAST.replace(**dict(changes))
    )


def test_the_least_footprint_says_nothing_new():
    p = plan(dp=8.0, shard=8.0, tp=4.0, sp=1.0, pp=4.0, zero=1.0)
    assert memory_use(LLAMA, p, footprint=LEAST) == memory_use(LLAMA, p)


SCALED = {
    "gradient": "gradients",
    "optimizer": "optimizer",
    "logit": "logits",
    "activation": "activations",
}


@pytest.mark.parametrize(("name", "purpose"), SCALED.items())
def test_a_footprint_scales_its_purpose_alone(name, purpose):
    base, more = use(dp=8.0), use(changes={name: 1.7}, dp=8.0)
    for other in ("weights", "gradients", "optimizer", "activations", "logits", "buffers"):
        factor = 1.7 if other == purpose else 1.0
        assert float(getattr(more, other)) == pytest.approx(
            factor * float(getattr(base, other)), rel=1e-12
        ), other


def test_copies_are_kept_only_under_tensor_parallelism():
    assert float(use(changes={"copies": 0.2}).total) == float(use().total)
    base, more = use(tp=4.0), use(changes={"copies": 0.2}, tp=4.0)
    assert float(more.activations / base.activations) == pytest.approx(1.0 + 0.2 * 0.75, rel=1e-12)


def test_recomputation_that_keeps_everything_is_none():
    none = use(recompute_layers=0.0)
    kept = use(changes={"kept": 1.0}, recompute_layers=1.0)
    assert float(kept.activations) == pytest.approx(float(none.activations), rel=1e-12)
    half = use(changes={"kept": 0.5}, recompute_layers=1.0)
    assert (
        float(use(recompute_layers=1.0).activations)
        < float(half.activations)
        < float(kept.activations)
    )


def moments(model=LLAMA, changes=(), **degrees: float):
    """Memory at every moment, as `use`."""
    return memory_moments(
        model, plan(**{"flash": 1.0, **degrees}), footprint=LEAST.replace(**dict(changes))
    )


def test_stages_that_are_not_alike():
    """32 layers in 5 stages, 7 on the first and 4 on the last: 5 micro-batches of 7 layers are in
    flight on the first stage, one of 4 layers on the last."""
    laid = {"stage_excess": 0.6, "head_displaces": 3.0}
    alike, uneven = (moments(pp=5.0, dp=1.0, **more) for more in ({}, laid))
    layer = float(memory.layer_activation_bytes(LLAMA, plan(flash=1.0)))
    kept = {
        (name, moment): float(found[moment].activations / layer)
        for name, found in (("alike", alike), ("uneven", uneven))
        for moment in ("loss", "backward")
    }
    assert kept == pytest.approx(
        {
            ("alike", "loss"): 6.4,
            ("alike", "backward"): 6.4 * 5.0,
            ("uneven", "loss"): 4.0,
            ("uneven", "backward"): 7.0 * 5.0,
        },
        rel=1e-12,
    )


def test_the_last_stage_has_the_logits_and_the_first_the_most_activations():
    """With a vocabulary as large as it takes, a device is the fullest at the loss, and with several
    stages one of the last; the first stage alone has no logits."""
    wide = LLAMA.replace(vocab=4e6)
    one, several = use(wide), use(wide, pp=4.0)
    logits = 8.0 * 4096.0 * 4e6
    assert float(one.logits) == float(several.logits) == pytest.approx(logits, rel=1e-12)
    # a quarter of the layers on each of four stages, as many micro-batches on the first
    few, many = (float(moments(wide, pp=4.0)[m].activations) for m in ("loss", "backward"))
    assert float(several.activations) == few == pytest.approx(many / 4.0, rel=1e-12)
    assert float(use(pp=4.0).logits) == 0.0
    assert float(use(wide, {"last_stage": 0.0}, pp=4.0).logits) == 0.0
    assert float(use(wide, {"last_stage": 0.0}).logits) == float(one.logits)


def test_ranks_of_tp_that_gather_the_logits_hold_all_of_them():
    """At the loss a rank has its columns of the logits, or all of them where ranks gather them."""
    wide = LLAMA.replace(vocab=4e6)
    own, gathered = (use(wide, tp=4.0, whole_logits=x).logits for x in (0.0, 1.0))
    assert float(gathered) == 4.0 * float(own) == pytest.approx(8.0 * 4096.0 * 4e6, rel=1e-12)
    assert float(use(wide, whole_logits=1.0).logits) == float(use(wide).logits)


def test_copies_of_what_passes_between_stages_come_with_every_micro_batch_in_flight():
    """16 bits a token and width, of the four micro-batches that the first of four stages has in
    flight; nothing passes where there is one stage."""
    none, two = (moments(pp=4.0, boundary_copies=x)["backward"] for x in (0.0, 2.0))
    between = 2.0 * 4096.0 * 4096.0
    more = float(two.activations) - float(none.activations)
    assert more == pytest.approx(2.0 * 4.0 * between, rel=1e-9)
    assert use(boundary_copies=2.0) == use()


def test_buffers_to_receive_in_of_all_micro_batches_of_a_step():
    """DeepSeek-V3 in torchtitan, two stages of eight chunks, 32 micro-batches of 4,096 tokens,
    7,168 wide: as many activations and gradients in each chunk, 28 GiB."""
    wide = LLAMA.replace(d_model=7168.0)
    laid = {"pp": 2.0, "interleave": 8.0, "global_batch": 32.0, "schedule": "interleaved"}
    none, all_of_them = (
        moments(wide, boundary_buffers=x, **laid)["backward"].activations for x in (0.0, 1.0)
    )
    each = 2.0 * 4096.0 * 7168.0
    assert float(all_of_them) - float(none) == pytest.approx(2.0 * 8.0 * 32.0 * each, rel=1e-9)
    assert use(boundary_buffers=1.0) == use()


def test_gradients_of_the_backward_pass_beside_those_that_add_up():
    """BigScience's bf16 optimizer of DeepSpeed: weights and gradients in 16 bits, gradients in
    fp32, and moments with master weights over the ranks: 8 bytes a parameter and 12 over dp."""
    held = {"dp": 8.0, "shard": 8.0, "zero": 1.0, "global_batch": 64.0}
    found = use(raw_gradient_bytes=2.0, **held)
    states = found.weights + found.gradients + found.optimizer
    each = float(states) / float(parameters(LLAMA))
    assert each == pytest.approx(8.0 + 12.0 / 8.0, rel=1e-12)
    # shared among ranks from stage 2 on, as the gradients are
    apart = float(use(raw_gradient_bytes=2.0, **held | {"zero": 2.0}).gradients)
    assert apart == pytest.approx(6.0 * float(parameters(LLAMA)) / 8.0, rel=1e-12)


def test_a_layer_at_work_and_the_logits_are_not_alive_together():
    """With full recomputation a layer comes back in full when the logits are gone: a device needs
    the inputs of all layers, and the larger of both."""
    inputs = 32.0 * 2.0 * 4096.0 * 4096.0
    for vocab, moment in ((4e6, "loss"), (1e3, "backward")):
        model = LLAMA.replace(vocab=vocab)
        found = moments(model, recompute_layers=1.0)
        working = float(layer_keeps(model, plan(flash=1.0)).total)
        more = {"loss": 8.0 * 4096.0 * vocab, "backward": working}
        at = {m: found[m].activations + found[m].logits for m in more}
        assert at == pytest.approx({m: inputs + x for m, x in more.items()}, rel=1e-12)
        assert use(model, recompute_layers=1.0) == found[moment]


def test_the_update_of_bf16_states_needs_ten_bytes_a_parameter():
    """fms-acceleration's 7B on one A100, all in 16 bits: weights, gradients, two moments and the
    root of the second ones. It peaks at 67.46 GiB with micro-batches of 4 and of 8 sequences of
    4,096, fully recomputed, and at half of that on two A100s that shard everything."""
    model = catalog.transformer("mistral-7b", seq_len=4096)
    states = {"gradient_bytes": 2.0, "optimizer_bytes": 4.0, "update_bytes": 2.0}
    for dp, batch, zero, measured in ((1.0, 4.0, 0.0, 67.46), (2.0, 2.0, 3.0, 33.74)):
        degrees = {"dp": dp, "shard": dp, "zero": zero, "micro_batch": batch}
        found = moments(
            model,
            {"reserved": 0.0},
            **{**states, **degrees, "global_batch": batch * dp, "recompute_layers": 1.0},
        )
        nbytes = {name: float(at.total) for name, at in found.items()}
        assert max(nbytes, key=lambda name: nbytes[name]) == "update"
        assert nbytes["update"] == pytest.approx(10.0 * float(parameters(model)) / dp, rel=1e-12)
        assert nbytes["update"] / GIB == pytest.approx(measured, rel=2e-3)


@pytest.mark.parametrize("inputs", ["fewer", "more"])
def test_gradients_that_are_freed_are_none_at_the_loss_of_the_only_micro_batch(inputs):
    """They come while inputs of layers go: a device never needs more than the larger of both."""
    batch = {"fewer": 1.0, "more": 32.0}[inputs]
    one = {"recompute_layers": 1.0, "micro_batch": batch, "global_batch": batch}
    kept, freed = (moments(freed_gradients=x, **one) for x in (0.0, 1.0))
    grads = float(kept["loss"].gradients)
    layers = 32.0 * 2.0 * batch * 4096.0 * 4096.0
    assert float(freed["loss"].gradients) == 0.0
    assert float(freed["backward"].gradients) == pytest.approx(max(grads - layers, 0.0), abs=1.0)
    assert (grads > layers) == (inputs == "fewer")
    assert freed["update"] == kept["update"]
    several = one | {"global_batch": 2.0 * batch}
    assert moments(freed_gradients=1.0, **several) == moments(**several)


def test_buckets_of_gradients_stay_when_gradients_are_freed():
    """PyTorch's DistributedDataParallel sends gradients from buckets of its own, which are there
    all the time; `zero_grad` frees the gradients alone."""
    one = {"recompute_layers": 1.0, "gradient_bytes": 2.0, "freed_gradients": 1.0, "dp": 2.0}
    one |= {"global_batch": 2.0}
    without, buckets = (moments(raw_gradient_bytes=x, **one) for x in (0.0, 2.0))
    each = 2.0 * float(parameters(LLAMA))
    for moment, found in without.items():
        more = float(buckets[moment].gradients - found.gradients)
        assert more == pytest.approx(each, rel=1e-12), moment
    assert float(buckets["loss"].gradients) == pytest.approx(each, rel=1e-12)


@pytest.mark.parametrize("model", EDGE_MODELS)
def test_the_fullest_moment_is_what_a_device_needs(model):
    for degrees in ({}, {"pp": 2.0}, {"update_bytes": 40.0}, {"recompute_layers": 1.0}):
        found = moments(model, dp=2.0, **degrees)
        most = max(float(at.total) for at in found.values())
        assert float(use(model, dp=2.0, **degrees).total) == most


def test_gathered_inputs_stay_while_the_pipeline_fills():
    """4 bytes per token and width, less the rank's own part, for all but two of the micro-batches
    in flight."""
    degrees = {"pp": 8.0, "tp": 4.0, "sp": 1.0, "global_batch": 64.0}
    base, ahead = use(**degrees), use(changes={"gathered": 1.0}, **degrees)
    expected = 4.0 * 4096.0 * 4096.0 * 0.75 * 6.0 * 4.0
    assert float(ahead.activations - base.activations) == pytest.approx(expected, rel=1e-12)
    for alone in ({**degrees, "sp": 0.0}, {**degrees, "pp": 2.0}, {**degrees, "pp": 1.0}):
        assert float(use(changes={"gathered": 1.0}, **alone).total) == float(use(**alone).total), (
            alone
        )


def test_the_probability_is_a_half_at_the_limit_and_grows_with_the_need():
    needed = np.array([0.1, 0.8, 1.0, 1.2, 10.0]) * 8e10
    p = np.asarray(memory.out_of_memory_probability(needed, 8e10, 0.2))
    assert (
        p[2] == pytest.approx(0.5)
        and (np.diff(p) > 0.0).all()
        and p[0] < 1e-9
        and p[-1] > 1.0 - 1e-9
    )
    assert p[3] == pytest.approx(0.819, abs=1e-3), "ln 1.2 is 0.91 spreads, and Phi(0.91) = 0.819"


def test_footprints_come_back_from_the_unconstrained_space():
    mean, width = prior()
    found = from_unconstrained(mean)
    assert len(mean) == len(width) == len(NAMES) == len(vars(found)) and (width > 0.0).all()
    assert (
        found.gradient == pytest.approx(1.25)
        and found.last_stage == pytest.approx(0.5)
        and found.kept == pytest.approx(0.1)
    )
    assert set(NAMES) == set(vars(Footprint()))


def test_gathered_layers_and_accumulated_gradients_take_memory():
    """FSDP on 64 devices: two gathered layers, all of them when kept; gradients whole once several
    micro-batches are accumulated."""
    fsdp = plan(dp=64.0, shard=64.0, zero=3.0, flash=1.0, global_batch=128.0)
    whole = 2.0 * float(parameters(LLAMA))
    for reshard, layers in ((1.0, 2.0), (0.0, float(LLAMA.n_layers))):
        found = float(memory_use(LLAMA, fsdp.having(reshard=reshard)).buffers)
        assert found == pytest.approx(
            float(LEAST.reserved) + whole * layers / float(LLAMA.n_layers), rel=1e-12
        )
    sharded, summed = (
        float(memory_use(LLAMA, fsdp.having(accumulate=x)).gradients) for x in (0.0, 1.0)
    )
    assert summed == pytest.approx(
        4.0 * float(parameters(LLAMA)), rel=1e-12
    ) and summed == pytest.approx(64.0 * sharded, rel=1e-12)
    assert float(
        memory_use(LLAMA, fsdp.having(accumulate=1.0, global_batch=64.0)).gradients
    ) == pytest.approx(sharded, rel=1e-12)
    # below stage 2 gradients are whole anyway
    assert float(
        memory_use(LLAMA, fsdp.having(zero=1.0, accumulate=1.0)).gradients
    ) == pytest.approx(summed, rel=1e-12)


@pytest.mark.parametrize(
    ("needed", "available"), [(0.0, 8e10), (8e10, 0.0), (8e10, 8e10), (9e10, 8e10)]
)
def test_a_probability_by_numpy_is_that_of_jax(needed, available):
    spread = 0.1
    by_numpy = memory.out_of_memory_probability(needed, available, spread)
    by_jax = memory.out_of_memory_probability(jnp.asarray(needed), jnp.asarray(available), spread)
    np.testing.assert_allclose(by_numpy, by_jax, rtol=1e-12)
