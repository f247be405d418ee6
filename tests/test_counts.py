"""Counts: parameters against published ones, FLOPs against a list of matrices, work conserved by every split."""

from itertools import product

import numpy as np
import pytest

from dmodel import catalog, counts
from dmodel.plan import Plan
from tests.points import DENSE, EDGE_MODELS, MODEL

ONE = Plan(dp=1.0, global_batch=8.0)


def matrices(name: str) -> list[tuple[float, float]]:
    """Every weight matrix of a dense model, head included, as (inputs, outputs)."""
    m = catalog.transformer(name)
    h, f, kv, a = m.d_model, m.d_ff, m.n_kv_heads * m.head_dim, m.n_heads * m.head_dim
    layer = [(h, a), (h, kv), (h, kv), (a, h), (h, f), (f, h)] + [(h, f)] * int(m.gated_mlp)
    return layer * int(m.n_layers) + [(h, m.vocab)]


# published counts, each from the model's own paper or card; biases and positions, which are left out, make the difference
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
    assert float(counts.parameters(catalog.transformer(name))) == pytest.approx(PUBLISHED[name][0], rel=0.003)


def test_active_parameters_of_a_mixture_are_the_published_ones():
    """Mixtral 8x7B uses 12.9e9 parameters per token (Jiang et al. 2024)."""
    mixture = catalog.transformer("mixtral-8x7b")
    assert float(counts.active_parameters(mixture)) == pytest.approx(12.9e9, rel=0.005)
    assert float(counts.active_parameters(DENSE)) == float(counts.parameters(DENSE))


@pytest.mark.parametrize("name", ["gpt-3-6.7b", "llama-2-7b", "llama-3-70b", "llama-3.1-405b"])
def test_flops_are_three_forward_passes_of_every_matrix(name):
    """2 per weight and token forward, twice that backward; the scores 2·2·s·a·e. What `6N` adds is the embedding and the norms."""
    m = catalog.transformer(name)
    by_hand = 6.0 * sum(i * o for i, o in matrices(name))
    scores = 12.0 * m.n_layers * m.n_heads * m.head_dim * m.seq_len
    lookup = 6.0 * (m.vocab * m.d_model * (1.0 - m.tied_embeddings) + 2.0 * m.n_layers * m.d_model + m.d_model)
    assert float(counts.model_flops_per_token(m, "6N")) == pytest.approx(by_hand + lookup, rel=1e-12)
    assert float(counts.model_flops_per_token(m, "6N+12Lhs")) == pytest.approx(by_hand + lookup + scores, rel=1e-12)
    assert float(counts.model_flops_per_token(m, "6N+6Lhs")) == pytest.approx(by_hand + lookup + 0.5 * scores, rel=1e-12)
    products = np.asarray(counts.matmuls(m, ONE).flops) / m.seq_len
    assert 3.0 * (products[:-1].sum() * m.n_layers + products[-1]) == pytest.approx(by_hand, rel=1e-12)
    assert 3.0 * float(counts.attention_flops(m, ONE.replace(flash=0.0))) * m.n_layers == pytest.approx(scores * m.seq_len, rel=1e-12)


def test_narayanan_formula():
    """`96 B s L h² (1 + s/6h + V/16Lh)` with full recomputation (Narayanan et al. 2021, eq. 3): four passes instead of three."""
    m = catalog.transformer("gpt-3-175b")
    h, layers, s, v = float(m.d_model), float(m.n_layers), float(m.seq_len), float(m.vocab)
    expected = 96.0 * s * layers * h**2 * (1.0 + s / (6.0 * h) + v / (16.0 * layers * h))
    plan = ONE.replace(flash=0.0)
    products = np.asarray(counts.matmuls(m, plan).flops)
    ours = 4.0 * layers * (products[:-1].sum() + float(counts.attention_flops(m, plan))) + 3.0 * products[-1]
    assert ours == pytest.approx(expected, rel=1e-9)


def test_unknown_convention_names_the_known_ones():
    with pytest.raises(ValueError, match="6N, 6N\\+12Lhs, 6N\\+6Lhs; got '8N'"):
        counts.model_flops_per_token(MODEL, "8N")


SPLITS = [dict(zip(("tp", "cp"), x, strict=True)) for x in product((1.0, 2.0, 8.0), (1.0, 4.0))]


@pytest.mark.parametrize("model", EDGE_MODELS)
@pytest.mark.parametrize("split", SPLITS)
def test_tensor_and_context_parallelism_conserve_work(model, split):
    """But for latents, which every rank of tp computes in full."""
    plan, parts = ONE.replace(**split), split["tp"] * split["cp"]
    first = 1 if model.kv_rank else 0
    for count in (lambda m, p: counts.matmuls(m, p).flops[first:], counts.attention_flops, counts.loss_bytes):
        np.testing.assert_allclose(parts * count(model, plan), count(model, ONE), rtol=1e-12)
    unfused, with_sp = {"flash": 0.0}, plan.replace(sp=1.0)
    whole = counts.softmax_bytes(model, ONE.replace(**unfused))
    np.testing.assert_allclose(parts * counts.softmax_bytes(model, plan.replace(**unfused)), whole, rtol=1e-12)
    np.testing.assert_allclose(parts * counts.elementwise_bytes(model, with_sp), counts.elementwise_bytes(model, ONE), rtol=1e-12)
    assert counts.elementwise_bytes(model, plan) >= counts.elementwise_bytes(model, with_sp)


@pytest.mark.parametrize("ep", [1.0, 2.0, 8.0])
def test_expert_parallelism_conserves_flops_and_gathers_rows(ep):
    """Each device computes for fewer experts, of more tokens each."""
    model = EDGE_MODELS[2]
    one, many = counts.matmuls(model, ONE), counts.matmuls(model, ONE.replace(dp=8.0, ep=ep))
    np.testing.assert_allclose(many.flops, one.flops, rtol=1e-12)
    np.testing.assert_allclose(many.copies[5:7], 8.0 / ep)
    np.testing.assert_allclose(many.rows[5:7], ep * one.rows[5:7])


@pytest.mark.parametrize("model", EDGE_MODELS)
def test_residents_of_all_devices_are_the_model(model):
    n = counts.parameter_groups(model)
    ends = float(n.embedding + n.head)
    assert float(counts.residents(model, ONE).total) == pytest.approx(float(counts.parameters(model)), rel=1e-12)
    for tp, pp, ep, etp in product((1.0, 4.0), (2.0, 8.0), (1.0, 2.0), (1.0, 4.0)):
        parts = counts.residents(model, ONE.replace(tp=tp, pp=pp, dp=2.0, ep=ep, etp=etp))
        whole = pp * (tp * parts.layers + parts.experts * ep * etp)
        assert float(whole) == pytest.approx(float(counts.parameters(model)) - ends, rel=1e-12)
        assert float(parts.ends) == pytest.approx(float(n.embedding) / tp)


def test_flash_halves_causal_scores_and_keeps_them_off_memory():
    full, half = ONE.replace(flash=0.0), ONE
    assert float(counts.attention_flops(DENSE, half)) == 0.5 * float(counts.attention_flops(DENSE, full))
    both_ways = DENSE.replace(causal=0.0)
    assert float(counts.attention_flops(both_ways, half)) == float(counts.attention_flops(both_ways, full))
    assert counts.softmax_bytes(DENSE, half) == 0.0 < counts.softmax_bytes(DENSE, full)


def test_kernels_by_hand():
    assert float(counts.kernels(DENSE, ONE)) == 11.0
    assert float(counts.kernels(DENSE, ONE.replace(flash=0.0, tp=2.0))) == 18.0
    assert float(counts.kernels(EDGE_MODELS[2], ONE)) == 17.0


def test_casts_only_below_16_bits():
    products = counts.matmuls(DENSE, ONE)
    assert float(counts.cast_bytes(products, ONE)) == 0.0
    left, _, result = (np.asarray(x) for x in products.elements)
    eight = ONE.replace(low_precision=1.0, operand_bytes=1.0)
    assert float(counts.cast_bytes(products, eight)) == pytest.approx(4.0 * (left + result)[:-1].sum())
