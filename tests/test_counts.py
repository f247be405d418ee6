"""Counts: parameters against published ones, FLOPs against a list of matrices, work conserved by
every split."""

from itertools import product

import numpy as np
import pytest

from dmodel import catalog, counts, launching, traffic
from dmodel.coefficients import default
from dmodel.cost import compute, pipeline
from dmodel.counts import tokens
from dmodel.layer import starts
from dmodel.records import Plan, having, sized, value
from dmodel.tables import layer, parameter_groups
from tests import reference, reference_parts
from tests.points import DENSE, EDGE_MODELS, LATENT, MODEL, plain

ONE = Plan.of(dp=1.0, global_batch=8.0)


def matrices(name: str) -> list[tuple[float, float]]:
    """Every weight matrix of a dense model, head included, as (inputs, outputs)."""
    m = catalog.transformer(name)
    ((mixer, feed, _),) = m.blocks
    h, f, a = m.d_model, feed.d_ff, mixer.n_heads * mixer.head_dim
    kv = mixer.n_kv_heads * mixer.head_dim
    one = [(h, a), (h, kv), (h, kv), (a, h), (h, f), (f, h)] + [(h, f)] * int(feed.gated_mlp)
    return one * int(m.n_layers) + [(h, m.vocab)]


# published counts, each from the model's own paper or card; biases and positions, which are left
# out, make the difference
PUBLISHED = {
    "gpt-3-175b": (174.6e9, "Brown et al. 2020, table D.1"),
    "llama-2-7b": (6.738e9, "Touvron et al. 2023, checkpoint"),
    "llama-2-70b": (68.98e9, "Touvron et al. 2023, checkpoint"),
    "llama-3-8b": (8.030e9, "Grattafiori et al. 2024, checkpoint"),
    "llama-3.1-405b": (405.9e9, "Grattafiori et al. 2024, checkpoint"),
    "mixtral-8x7b": (46.70e9, "Jiang et al. 2024, checkpoint"),
    "megatron-1008b": (1008e9, "Narayanan et al. 2021, table 1"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name):
    assert float(counts.parameters(catalog.transformer(name))) == pytest.approx(
        PUBLISHED[name][0], rel=0.003
    )


# total and active parameters, each with what its source counts: rounded figures to their last
# digit, others within 1 %
MIXTURES = {
    "mixtral-8x7b": (46.70e9, 12.9e9, 1.0, "Jiang et al. 2024"),
    "mixtral-8x22b": (140.6e9, 39.2e9, 1.0, "Mistral AI 2024, 141B and 39B"),
    "deepseek-v2-lite": (15.7e9, 2.4e9, 0.5, "DeepSeek-AI 2024a"),
    "deepseek-v2": (236e9, 21e9, 1.0, "DeepSeek-AI 2024a"),
    "deepseek-v3": (671e9, 37e9, 0.5, "DeepSeek-AI 2024b"),
    "kimi-k2": (1.026e12, 32e9, 0.5, "Moonshot AI 2025"),
    "gpt-oss-20b": (20.91e9, 3.61e9, 0.5, "OpenAI 2025, active without the input embedding"),
    "gpt-oss-120b": (116.83e9, 5.13e9, 0.5, "OpenAI 2025, active without the input embedding"),
    "qwen-3-30b-a3b": (30.5e9, 3.3e9, 1.0, "Qwen Team 2025"),
    "qwen-3-235b-a22b": (235e9, 22e9, 1.0, "Qwen Team 2025"),
    "llama-4-scout": (107.77e9, 17e9, 1.0, "Meta 2025, text part"),
    "llama-4-maverick": (400.7e9, 17e9, 1.0, "Meta 2025, text part"),
    "nemotron-h-8b": (8.10e9, 8.10e9, 1.0, "NVIDIA 2025a"),
    "nemotron-h-56b": (56.3e9, 56.3e9, 1.0, "NVIDIA 2025a"),
    "nemotron-3-nano-30b-a3b": (31.6e9, 3.6e9, 1.0, "NVIDIA 2025b"),
}
"""Total, active, and the share of the embedding matrices that the active count holds (of one pair).
"""


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_and_hybrids_have_their_published_parameters(name):
    total, active, embeddings, _ = MIXTURES[name]
    m = catalog.transformer(name)
    assert float(counts.parameters(m)) == pytest.approx(total, rel=0.003)
    ours = float(counts.active_parameters(m) - (1.0 - embeddings) * 2.0 * m.vocab * m.d_model)
    digit = 10.0 ** (
        np.floor(np.log10(active)) - (0 if active == round(active, -9) and active < 1e10 else 1)
    )
    assert abs(ours - active) <= max(0.01 * active, 0.55 * digit)


def test_active_parameters_of_a_dense_model_are_all():
    assert float(counts.active_parameters(DENSE)) == float(counts.parameters(DENSE))


def test_latents_by_hand():
    """DeepSeek-V3's attention: 187e6 a layer (its table of weights), and the core's FLOPs of heads
    of 192 and 128."""
    m = catalog.transformer("deepseek-v3")
    matrices = 7168 * (1536 + 512 + 64) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    norms = 7168 + 1536 + 512
    assert float(m.mixers[0].parameters(m.d_model).total) == pytest.approx(
        matrices + norms, rel=1e-12
    )
    core = 2.0 * m.seq_len * m.seq_len * 128 * (192 + 128)
    assert float(counts.attention_flops(m, ONE.having(flash=0.0))) == pytest.approx(
        float(core), rel=1e-12
    )


def test_a_window_as_wide_as_the_sequence_hides_nothing():
    wide, narrow = sized(DENSE, window=DENSE.seq_len), sized(DENSE, window=40.0)
    full = float(counts.attention_flops(DENSE, ONE))
    assert float(counts.attention_flops(wide, ONE)) == pytest.approx(full, rel=1e-12)
    s = DENSE.seq_len
    assert float(counts.attention_flops(narrow, ONE)) == pytest.approx(
        full * 2.0 * (40.0 * s - 800.0) / s**2, rel=1e-12
    )


@pytest.mark.parametrize("name", ["gpt-3-6.7b", "llama-2-7b", "llama-3-70b", "llama-3.1-405b"])
def test_flops_are_three_forward_passes_of_every_matrix(name):
    """2 per weight and token forward, twice that backward; the scores 2·2·s·a·e. What `6N` adds is
    the embedding, the norms and what else is small."""
    m = catalog.transformer(name)
    by_hand = 6.0 * sum(i * o for i, o in matrices(name))
    scores = 12.0 * m.n_layers * value(m, "n_heads") * value(m, "head_dim") * m.seq_len
    small = m.small + m.n_layers * sum(part.small for part in m.parts)
    small += m.learned_positions * m.seq_len * m.d_model
    norms = 2.0 * m.n_layers * m.d_model + m.d_model
    lookup = 6.0 * (m.vocab * m.d_model * (1.0 - m.tied_embeddings) + norms + small)
    assert float(counts.model_flops_per_token(m, "6N")) == pytest.approx(
        by_hand + lookup, rel=1e-12
    )
    assert float(counts.model_flops_per_token(m, "6N+12Lhs")) == pytest.approx(
        by_hand + lookup + scores, rel=1e-12
    )
    assert float(counts.model_flops_per_token(m, "6N+6Lhs")) == pytest.approx(
        by_hand + lookup + 0.5 * scores, rel=1e-12
    )
    products = np.asarray(layer(m, ONE).products.flops) / m.seq_len
    assert 3.0 * (products[:-1].sum() * m.n_layers + products[-1]) == pytest.approx(
        by_hand, rel=1e-12
    )
    assert 3.0 * float(
        counts.attention_flops(m, ONE.having(flash=0.0))
    ) * m.n_layers == pytest.approx(scores * m.seq_len, rel=1e-12)


def test_narayanan_formula():
    """`96 B s L h² (1 + s/6h + V/16Lh)` with full recomputation (Narayanan et al. 2021, eq. 3):
    four passes instead of three."""
    m = catalog.transformer("gpt-3-175b")
    h, layers, s, v = float(m.d_model), float(m.n_layers), float(m.seq_len), float(m.vocab)
    expected = 96.0 * s * layers * h**2 * (1.0 + s / (6.0 * h) + v / (16.0 * layers * h))
    plan = ONE.having(flash=0.0)
    products = np.asarray(layer(m, plan).products.flops)
    ours = (
        4.0 * layers * (products[:-1].sum() + float(counts.attention_flops(m, plan)))
        + 3.0 * products[-1]
    )
    assert ours == pytest.approx(expected, rel=1e-9)


def test_unknown_convention_names_the_known_ones():
    with pytest.raises(ValueError, match="6N, 6N\\+12Lhs, 6N\\+6Lhs; got '8N'"):
        counts.model_flops_per_token(MODEL, "8N")


SPLITS = [dict(zip(("tp", "cp"), x, strict=True)) for x in product((1.0, 2.0, 8.0), (1.0, 4.0))]


@pytest.mark.parametrize("model", EDGE_MODELS)
@pytest.mark.parametrize("split", SPLITS)
def test_tensor_and_context_parallelism_conserve_work(model, split):
    """But for latents and an indexer, which every rank of tp computes in full."""
    plan, parts = ONE.having(**split), split["tp"] * split["cp"]
    whole = having(model, "kv_rank")

    def products(m, p):
        found = layer(m, p).products
        left_out = ["first", "index"] if whole else []
        return [f for f, kind in zip(found.flops, found.kinds, strict=True) if kind not in left_out]

    def cores(m, p, name="flops"):
        """But for rows of an indexer."""
        found = layer(m, p).cores
        return getattr(found, name)[np.asarray(found.behind) == 1.0]

    for count in (products, cores, traffic.loss_bytes):
        np.testing.assert_allclose(
            parts * np.asarray(count(model, plan)), count(model, ONE), rtol=1e-12
        )
    unfused, with_sp = {"flash": 0.0}, plan.having(sp=1.0)
    index = sum(n * reference_parts.index_width(x) for n, x in reference_parts.parts_of(model))
    np.testing.assert_allclose(
        parts * cores(model, plan.having(**unfused), "softmax_bytes"),
        cores(model, ONE.having(**unfused), "softmax_bytes"),
        rtol=1e-12,
    )
    for some, every, not_split in zip(
        *(layer(model, p).streams for p in (with_sp, ONE, plan)), strict=True
    ):
        # every rank of tp turns all queries of an indexer
        apart = [4.0 * float(tokens(model, p)) * index for p in (with_sp, ONE)]
        np.testing.assert_allclose(parts * (some - apart[0]), every - apart[1], rtol=1e-12)
        assert not_split >= some


@pytest.mark.parametrize("ep", [1.0, 2.0, 8.0])
def test_expert_parallelism_conserves_flops_and_gathers_rows(ep):
    """Each device computes for fewer experts, of more tokens each."""
    model = EDGE_MODELS[2]
    one, many = (layer(model, p).products for p in (ONE, ONE.having(dp=8.0, ep=ep)))
    np.testing.assert_allclose(many.flops, one.flops, rtol=1e-12)
    routed = [kind in ("expert_up", "expert_down") for kind in one.kinds]
    assert sum(routed) == 2
    np.testing.assert_allclose(many.copies[routed], 8.0 / ep)
    np.testing.assert_allclose(many.rows[routed], ep * one.rows[routed])


@pytest.mark.parametrize("model", EDGE_MODELS)
def test_parameters_and_products_are_those_of_matrices_by_hand(model):
    """Of every kind of part, as the reference lists them."""
    by_hand = reference.parameters(model, ONE)
    whole = by_hand["dense"] + by_hand["experts"]
    assert float(counts.parameters(model)) == pytest.approx(whole, rel=1e-12)
    found, h = layer(model, ONE).products, model.d_model
    routed = found.of(found.flops, "expert_up", "expert_down")
    matrices = sum(
        share * x.inputs * x.outputs
        for share, part in reference.parts_of(model)
        for x in reference.matrices(part, h)
    )
    t = float(tokens(model, ONE))
    assert float(found.flops[:-1].sum() - routed) == pytest.approx(2.0 * t * matrices, rel=1e-12)
    visited = sum(
        share
        * part.top_k
        * part.imbalance
        * reference.one_expert(part.replace(expert_biases=0.0), h)
        for share, part in reference.experts_of(model)
    )
    assert float(routed) == pytest.approx(2.0 * t * visited, rel=1e-12)


@pytest.mark.parametrize("model", EDGE_MODELS)
def test_residents_of_all_devices_are_the_model(model):
    n = parameter_groups(model)
    ends = float(n.embedding + n.head)
    assert float(counts.residents(model, ONE).total) == pytest.approx(
        float(counts.parameters(model)), rel=1e-12
    )
    for tp, pp, ep, etp in product((1.0, 4.0), (2.0, 8.0), (1.0, 2.0), (1.0, 4.0)):
        parts = counts.residents(model, ONE.having(tp=tp, pp=pp, dp=2.0, ep=ep, etp=etp))
        whole = pp * (tp * parts.layers + parts.experts * ep * etp)
        # what latents come from, on every rank of tp
        copied = (tp - 1.0) * float(n.layers * n.layer.whole)
        assert float(whole) == pytest.approx(
            float(counts.parameters(model)) - ends + copied, rel=1e-12
        )
        assert float(parts.ends) == pytest.approx(float(n.embedding) / tp)


def test_flash_halves_causal_scores_and_keeps_them_off_memory():
    full, half = ONE.having(flash=0.0), ONE
    assert float(counts.attention_flops(DENSE, half)) == 0.5 * float(
        counts.attention_flops(DENSE, full)
    )
    # the last of four ranks: three blocks of keys whole and half of its own
    in_order = ONE.having(cp=4.0, cp_balanced=0.0)
    assert float(counts.attention_flops(DENSE, in_order)) == pytest.approx(
        float(counts.attention_flops(DENSE, full)) * 3.5 / 16, rel=1e-12
    )
    both_ways = DENSE.replace(causal=0.0)
    assert float(counts.attention_flops(both_ways, half)) == float(
        counts.attention_flops(both_ways, full)
    )
    through = [float(np.sum(layer(DENSE, p).cores.softmax_bytes)) for p in (half, full)]
    assert through[0] == 0.0 < through[1]


def launches(model, plan):
    """Of a pass, as nothing beside casts differs between passes."""
    return float(launching.launches(layer(model, plan), plan)) / 3.0


def test_kernels_by_hand():
    """Of attention and of an MLP, two more on several ranks; of experts; of a hybrid's layers by
    their numbers."""
    assert float(layer(DENSE, ONE).kernels) == 11.0
    assert float(layer(DENSE, ONE.having(flash=0.0, tp=2.0)).kernels) == 18.0
    assert float(layer(EDGE_MODELS[2], ONE).kernels) == 17.0
    assert float(layer(EDGE_MODELS[8], ONE).kernels) == 0.25 * 6.0 + 0.5 * 10.0 + 0.25 * 5.0


@pytest.mark.parametrize(
    ("tp", "apart", "again", "expected"),
    [(1, 8, 0, 0), (8, 1, 1, 0), (2, 2, 0, 8), (8, 4, 0, 32), (8, 4, 1, 48)],
)
def test_meetings_are_the_collectives_of_a_stage_times_its_ranks(tp, apart, again, expected):
    """Two forward, two backward, two more when the layer runs again; none without tensor ranks,
    none where stages share a node."""
    assert (
        float(
            pipeline.meetings(
                ONE.having(tp=float(tp), pp=8.0, recompute_layers=float(again)), float(apart)
            )
        )
        == expected
    )


def test_what_the_host_launches():
    """Nothing but experts that are looped over beside graphs; two products for each that the rank
    holds, and two casts below 16 bits."""
    mixture = EDGE_MODELS[2]
    plain, held = float(layer(mixture, ONE).kernels), float(value(mixture, "n_experts"))
    assert launches(mixture, ONE) == plain
    assert launches(mixture, ONE.having(graphed=1.0)) == 0.0
    looped = ONE.having(looped_experts=1.0, graphed=1.0)
    held *= launching.LOOP
    assert launches(mixture, looped) == 2.0 * held
    assert launches(mixture, looped.having(ep=2.0, operand_bytes=1.0)) == 2.0 * held
    assert launches(sized(mixture, expert_biases=1.0), looped) == 4.0 * held
    assert launches(DENSE, looped) == 0.0


def test_casts_of_experts_that_are_looped_over_fill_the_device_in_turn():
    """Two for each that the rank holds, in 8 bits; none in 16, of grouped ones, or in layers that
    stay in 16 bits."""
    mixture = EDGE_MODELS[2]
    eight = ONE.having(looped_experts=1.0, operand_bytes=1.0)
    held = float(value(mixture, "n_experts"))
    assert float(layer(mixture, eight).casts) == 2.0 * held
    assert float(layer(mixture, eight.having(ep=2.0, wide_layers=0.5)).casts) == 0.5 * held
    assert float(layer(mixture, eight.having(operand_bytes=2.0)).casts) == 0.0
    assert float(layer(mixture, eight.having(looped_experts=0.0)).casts) == 0.0
    assert float(layer(DENSE, eight).casts) == 0.0
    chip, c = catalog.chip("H100-80GB"), default()
    more = [
        float(starts(mixture, plan, 1.0, chip, c).fill)
        for plan in (eight, eight.having(looped_experts=0.0))
    ]
    assert more[0] - more[1] == pytest.approx(
        3.0 * 2.0 * held * float(c.kernel_fill * chip.kernel_latency_s)
    )


def test_casts_below_16_bits_are_launched():
    """Two casts and their scales for each product of a forward pass, run again or not, and one for
    both behind it: 4 products of a dense layer, 6 with latents; none of layers kept in 16 bits."""
    low, latent = ONE.having(operand_bytes=1.0), DENSE.replace(mixers=(LATENT,))
    for model, products in ((DENSE, 4.0), (latent, 6.0), (EDGE_MODELS[2], 4.0)):
        plain = float(layer(model, ONE).kernels)
        assert launches(model, ONE) == plain
        assert launches(model, low) == pytest.approx(plain + (3.0 + 1.0) / 3.0 * products)
        again = low.having(recompute_layers=1.0)
        assert launches(model, again) == pytest.approx((4.0 * plain + 7.0 * products) / 3.0)
        assert launches(model, low.having(wide_layers=1.0)) == plain
        assert launches(model, low.having(graphed=1.0)) == 0.0


def test_experts_on_latents():
    """Of width r for h: their matrices, copies of tokens and products; two products, h to r and
    back, for every token; nothing else."""
    alike = plain(n_experts=8.0, top_k=4.0, d_ff=2048.0)
    latent = sized(alike, expert_rank=1024.0)
    h, r, matrices = float(alike.d_model), 1024.0, 2.0 + value(alike, "gated_mlp")
    n, m = parameter_groups(alike).layer, parameter_groups(latent).layer
    assert float(n.routed - m.routed) == pytest.approx(matrices * (h - r) * 2048.0 * 8.0)
    assert float(m.whole - n.whole) == pytest.approx(2.0 * h * r) and m.split == n.split
    t, products = float(tokens(latent, ONE)), layer(latent, ONE.having(tp=2.0)).products
    between = products.of(products.flops, "narrowing")
    assert float(between) == pytest.approx(2.0 * 2.0 * t / 2.0 * h * r)
    for a, b in zip(*(layer(model, ONE).streams for model in (alike, latent)), strict=True):
        assert a - b == pytest.approx(2.0 * 2.0 * (h - r) * (4.0 + 1.0) * t)
    assert float(layer(latent, ONE).kernels - layer(alike, ONE).kernels) == pytest.approx(2.0)


def test_biases_of_experts_are_parameters():
    """gpt-oss: `(1 + gated) f + h` of each expert."""
    alike = plain(n_experts=8.0, top_k=4.0, d_ff=2048.0)
    n, m = (parameter_groups(sized(alike, expert_biases=x)).layer for x in (0.0, 1.0))
    each = 2.0 * 2048.0 + float(alike.d_model)
    assert float(m.routed - n.routed) == pytest.approx(8.0 * each)
    assert float(m.active - n.active) == pytest.approx(4.0 * each)


def test_the_router_reads_a_rank_s_share_of_the_tokens_in_layers_with_experts():
    """`2 t h E / tp` in the share of layers that have experts; none in dense models."""
    mixture, sparse = EDGE_MODELS[7], 29.0 / 32.0
    for tp in (1.0, 4.0):
        products = layer(mixture, ONE.having(tp=tp)).products
        assert float(products.of(products.flops, "router")) == pytest.approx(
            2.0 * float(tokens(mixture, ONE)) * float(mixture.d_model) * 8.0 * sparse / tp
        )
    assert "router" not in layer(DENSE, ONE).products.kinds


def test_rows_of_a_kind():
    products = layer(EDGE_MODELS[7], ONE).products
    marks = products.marked(("router", "head"))
    assert [kind for kind, mark in zip(products.kinds, marks, strict=True) if mark] == [
        "router",
        "head",
    ]
    assert float(products.of(products.flops, "router", "head")) == pytest.approx(
        float((products.flops * marks).sum())
    )
    assert products.of(products.flops, "narrowing") == 0.0


@pytest.mark.parametrize("heads", [1.0, 2.0])
def test_heads_of_further_tokens_project_two_inputs_before_their_logits(heads):
    """Each adds `2 t h V` of logits and `2 t 2 h h` of the projection, as its parameters say."""
    one, more = (
        np.asarray(layer(DENSE.replace(n_mtp=n), ONE).products.flops)[-1] for n in (0.0, heads)
    )
    t, h = float(tokens(DENSE, ONE)), float(DENSE.d_model)
    assert more - one == pytest.approx(heads * 2.0 * t * (h * float(DENSE.vocab) + 2.0 * h * h))


def test_logits_of_columns_that_nobody_pads_take_twice_as_long():
    assert float(compute.off_vectors(ONE)) == 1.0
    assert float(compute.off_vectors(ONE.having(unpadded_vocab=1.0))) == compute.UNALIGNED == 2.0


def test_heads_that_miss_the_matrix_units():
    """BigScience, 384 A100, 13,824 wide, 78 layers: 128 heads of 108 take 38 s a step more than 96
    of 144, unfused."""
    unfused = ONE.having(flash=0.0)
    for head_dim, slower in (
        (108.0, 16.0),
        (150.0, 16.0),
        (145.0, 16.0),
        (144.0, 1.0),
        (56.0, 1.0),
        (128.0, 1.0),
    ):
        model = sized(DENSE, head_dim=head_dim)
        assert float(layer(model, unfused).cores.stretch[0]) == slower
        assert float(layer(model, ONE).cores.stretch[0]) == 1.0
