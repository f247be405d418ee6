"""Kinds of parts: tensors, products, cores and ranks counted one by one, gradients, limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel import catalog, coefficients
from dmodel.blocks import ALL, KINDS
from dmodel.blocks.delta import CHUNK
from dmodel.blocks.lightning import BLOCK
from dmodel.blocks.mamba import CHUNK as SCAN
from dmodel.blocks.part import Site, Work, site
from dmodel.catalog.shapes import model_of, part_of
from dmodel.cost import memory
from dmodel.cost.compute import attention_passes
from dmodel.counts import activation_bytes, active_parameters, between_layers, parameters
from dmodel.once import together
from dmodel.records import Model, Plan
from dmodel.step import memory_use, step_time
from dmodel.tables import layer
from tests.points import quick

H, S, VOCAB = 96, 512, 1000
FEEDS = ("dense", "experts")
GQA = {"kind": "attention", "n_heads": 8, "n_kv_heads": 2, "head_dim": 16}
MLA = {"kind": "latent", "n_heads": 8, "head_dim": 16, "kv_rank": 32, "qk_extra": 8, "rope_dim": 8}
SPARSE = MLA | {"kind": "sparse"}
DSA = {"index_heads": 4, "index_dim": 24, "index_top": 100}
GDN = {"kind": "delta", "key_heads": 4, "value_heads": 8, "key_dim": 16, "value_dim": 24}
V4 = {
    **{"kind": "compressed", "n_heads": 8, "head_dim": 32, "q_rank": 40, "out_groups": 2},
    **{"out_rank": 20, "rope_dim": 8, "window": 50, "residual_streams": 4, "small": 8},
}
CSA = {"ratio": 4, "overlap": 1, "index_heads": 4, "index_dim": 24, "index_top": 30}
MIXTURE = {"kind": "experts", "n_experts": 8, "top_k": 2, "d_ff": 64}

Shapes = Sequence[tuple[int, ...]]

MIXING = [(24, 4 * H)] * 2, [(24,), (3,)] * 2
INDEX = [(4 * 24, 40), (H, 4), (2 * 48, H)], [(4, 48), (24,)]
V4_OWN = [(40, H), (8 * 32, 40), (32, H), (2 * 20, 8 * 32 // 2), (H, 2 * 20)]

CASES: dict[str, tuple[dict[str, Any], Shapes, Shapes]] = {
    "attention": (
        GQA | {"output_gate": 1, "small": 32},
        [(2 * 8 * 16, H), (2 * 16, H), (2 * 16, H), (H, 8 * 16)],
        [(H,), (16,), (16,)],
    ),
    "attention, wider keys": (
        GQA | {"qk_extra": 8},
        [(8 * 24, H), (2 * 24, H), (2 * 16, H), (H, 8 * 16)],
        [(H,)],
    ),
    "attention, values as keys": (
        GQA | {"own_values": 0},
        [(8 * 16, H), (2 * 16, H), (H, 8 * 16)],
        [(H,)],
    ),
    "attention, an earlier layer's keys": (
        GQA | {"own_values": 0, "own_keys": 0},
        [(8 * 16, H), (H, 8 * 16)],
        [(H,)],
    ),
    "latent": (
        MLA | {"q_rank": 40},
        [(40, H), (8 * 24, 40), (40, H), (8 * (16 + 16), 32), (H, 8 * 16)],
        [(H,), (40,), (32,)],
    ),
    "latent, direct": (
        MLA,
        [(8 * 24, H), (40, H), (8 * (16 + 16), 32), (H, 8 * 16)],
        [(H,), (32,)],
    ),
    "latent, sparse": (
        SPARSE | {"q_rank": 40} | DSA,
        [
            *[(40, H), (8 * 24, 40), (40, H), (8 * (16 + 16), 32), (H, 8 * 16)],
            *[(4 * 24, 40), (24, H), (4, H)],
        ],
        [(H,), (40,), (32,), (24,), (24,)],
    ),
    "latent, keys picked before": (
        SPARSE | {"q_rank": 40, "index_top": 100},
        [(40, H), (8 * 24, 40), (40, H), (8 * (16 + 16), 32), (H, 8 * 16)],
        [(H,), (40,), (32,)],
    ),
    "delta": (
        GDN,
        [(2 * 4 * 16 + 2 * 8 * 24, H), (2 * 8, H), (H, 8 * 24)],
        [(H,), (2 * 4 * 16 + 8 * 24, 4), (8,), (8,), (24,)],
    ),
    "delta, channels": (
        GDN | {"gate_rank": 24, "decay_rank": 16, "key_heads": 8, "small": 8 * 24},
        [
            *[(8 * 16, H), (8 * 16, H), (8 * 24, H), (16, H), (8 * 16, 16), (24, H)],
            *[(8 * 24, 24), (8, H), (H, 8 * 24)],
        ],
        [(H,), *[(8 * 16, 4)] * 2, (8 * 24, 4), (8,), (8 * 16,), (24,), (8 * 24,)],
    ),
    "delta, channels directly": (
        GDN | {"channel_decays": 1},
        [(2 * 4 * 16 + 2 * 8 * 24, H), (8, H), (8 * 16, H), (H, 8 * 24)],
        [(H,), (2 * 4 * 16 + 8 * 24, 4), (8,), (8 * 16,), (24,)],
    ),
    "lightning": (
        {"kind": "lightning", "n_heads": 8, "head_dim": 16},
        [(3 * 8 * 16, H), (8 * 16, H), (H, 8 * 16)],
        [(H,), (8 * 16,)],
    ),
    "compressed, window": (
        V4,
        [*V4_OWN, *MIXING[0]],
        [(H,), (40,), (32,), (8,), *MIXING[1]],
    ),
    "compressed, heavily": (
        V4 | {"ratio": 64},
        [*V4_OWN, *MIXING[0], (32, H), (32, H)],
        [(H,), (40,), (32,), (8,), (64, 32), (32,), *MIXING[1]],
    ),
    "compressed, sparse": (
        V4 | CSA,
        [*V4_OWN, *MIXING[0], (64, H), (64, H), *INDEX[0]],
        [(H,), (40,), (32,), (8,), (4, 64), (32,), *INDEX[1], *MIXING[1]],
    ),
    "compressed, one stream": (
        V4 | CSA | {"residual_streams": 1},
        [*V4_OWN, (64, H), (64, H), *INDEX[0]],
        [(H,), (40,), (32,), (8,), (4, 64), (32,), *INDEX[1]],
    ),
    "mamba2": (
        {
            **{"kind": "mamba2", "mamba_inner": 128, "mamba_heads": 8, "mamba_groups": 2},
            **{"mamba_state": 16, "small": 128 + 64},
        },
        [(2 * 128 + 2 * 2 * 16 + 8, H), (H, 128)],
        [(H,), (128 + 64, 4), (128 + 64,), (8,), (8,), (8,), (128,)],
    ),
    "short_conv": (
        {"kind": "short_conv", "taps": 3, "small": H},
        [(3 * H, H), (H, H)],
        [(H,), (H, 3), (H,)],
    ),
    "linear": ({"kind": "linear", "linears": 1}, [(H, H)], [(H,)]),
    "dense": ({"kind": "dense", "d_ff": 200}, [(200, H), (200, H), (H, 200)], [(H,)]),
    "dense, two matrices": (
        {"kind": "dense", "d_ff": 200, "gated_mlp": 0, "small": H},
        [(200, H), (H, 200)],
        [(H,), (H,)],
    ),
    "experts": (
        MIXTURE | {"shared_ff": 48},
        [(8, H), (48, H), (48, H), (H, 48), (8, 3 * 64, H)],
        [(H,)],
    ),
    "experts, biases and latents": (
        MIXTURE | {"expert_biases": 1, "gated_mlp": 0, "expert_rank": 32},
        [(8, H), (32, H), (H, 32), (8, 2 * 64, 32)],
        [(H,), (8, 64), (8, 32)],
    ),
}
"""Sizes of a part; its matrices, those of all routed experts together; all other tensors."""

MIXERS = [name for name, (sizes, _, _) in CASES.items() if sizes["kind"] not in FEEDS]


def size(shapes: Shapes) -> int:
    return sum(map(prod, shapes))


def of(sizes: dict[str, Any], seq_len: float = S, **leaves: float) -> tuple[Any, Site]:
    """A part, and where a plan of leaves runs it."""
    block = {"layers": 1, "feed" if sizes["kind"] in FEEDS else "mixer": sizes}
    model = model_of({"d_model": H, "vocab": VOCAB, "seq_len": seq_len, "blocks": [block]})
    plan = Plan.of(**{"dp": 1.0, "global_batch": 4.0, "micro_batch": 2.0, **leaves})
    return model.parts[0], site(model, plan)


def flops(work: Work, *kinds: str) -> float:
    """Of products of some kinds, of all where none is said."""
    rows = [row for row in work.products if not kinds or row.kind in kinds]
    return float(sum(2.0 * row.rows * row.columns * row.inner * row.copies for row in rows))


def core(work: Work) -> float:
    return float(sum(row.flops for row in work.cores))


def near(value: float, rel: float = 1e-12) -> Any:
    return pytest.approx(value, rel=rel)


def test_every_kind_has_a_case():
    assert {sizes["kind"] for sizes, _, _ in CASES.values()} == set(KINDS)


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_all_tensors(name):
    sizes, matrices, others = CASES[name]
    assert float(part_of(sizes).parameters(float(H)).total) == size(matrices) + size(others)


@pytest.mark.parametrize("name", CASES)
def test_a_token_passes_every_matrix_once(name):
    """Of routed experts those that it visits."""
    sizes, matrices, _ = CASES[name]
    part, at = of(sizes)
    routed = [shape for shape in matrices if len(shape) == 3]
    passed = size(matrices) - size(routed) * (1.0 - sizes.get("top_k", 8) / 8)
    assert flops(part.work(at)) == near(2.0 * float(at.t) * passed)


@pytest.mark.parametrize("name", CASES)
def test_ranks_of_tp_share_all_but_what_every_one_holds(name):
    """What a rank does and keeps is `a + b / tp`; of products a is of parameters on every rank."""
    sizes, _, _ = CASES[name]
    found: dict[str, list[float]] = {}
    for tp in (1.0, 2.0, 4.0):
        part, at = of(sizes, tp=tp)
        work = part.work(at)
        amounts = {"products": flops(work), "core": core(work), "kept": part.keeps(at).total}
        for what, amount in (amounts | work.streams._asdict()).items():
            found.setdefault(what, []).append(float(amount))
    for what, (one, two, four) in found.items():
        assert one - two == near(2.0 * (two - four), 1e-9), what
    if sizes["kind"] != "experts":
        part, at = of(sizes)
        whole = 2.0 * found["products"][1] - found["products"][0]
        held = float(part.parameters(float(H)).whole)
        mixing = size(MIXING[1]) if sizes.get("residual_streams", 1) > 1 else 0
        assert whole == pytest.approx(2.0 * float(at.t) * (held - mixing), abs=1e-3)


def pairs(seen: Callable[[int, int], bool]) -> int:
    """Queries with the keys that they see, of one sequence."""
    return sum(seen(query, key) for query in range(S) for key in range(query + 1))


@pytest.mark.parametrize(
    ("sizes", "width", "seen"),
    [
        (GQA, 2 * 16, lambda q, k: True),
        (GQA | {"qk_extra": 8}, 2 * 16 + 8, lambda q, k: True),
        (GQA | {"window": 100}, 2 * 16, lambda q, k: q - k < 100),
        (GQA | {"chunk": 128}, 2 * 16, lambda q, k: q // 128 == k // 128),
        (
            GQA | {"chunk": 128, "window": 50},
            2 * 16,
            lambda q, k: q // 128 == k // 128 and q - k < 50,
        ),
        (MLA | {"q_rank": 40}, 2 * 16 + 8, lambda q, k: True),
        (V4, 2 * 32, lambda q, k: q - k < 50),
    ],
)
def test_attention_scores_what_it_sees(sizes, width, seen):
    part, at = of(sizes)
    counted = 2.0 * 2.0 * pairs(seen) * 8 * width
    assert core(part.work(at)) == near(counted, 0.02)


def compressed_keys(ratio: int, top: float) -> float:
    """Compressed keys that the queries of a sequence attend to."""
    return sum(min((query + 1) // ratio, top) for query in range(S))


@pytest.mark.parametrize(("more", "top"), [({"ratio": 8}, ALL), (CSA, 30), (CSA, ALL)])
def test_compressed_attention_scores_a_window_and_what_is_picked(more, top):
    sizes = V4 | more | {"index_top": top}
    part, at = of(sizes)
    window = pairs(lambda q, k: q - k < 50)
    counted = 2.0 * 2.0 * (window + compressed_keys(more["ratio"], top)) * 8 * 2 * 32
    main, index = part.work(at).cores
    assert float(main.flops) == near(counted, 0.03)
    scored = compressed_keys(more["ratio"], ALL) * more.get("index_heads", 0) * 24
    assert float(index.flops) == near(2.0 * 2.0 * scored, 0.03)


def test_sparse_attention_scores_latents_of_picked_keys_and_all_index_keys():
    part, at = of(SPARSE | {"q_rank": 40} | DSA)
    main, index = part.work(at).cores
    picked = sum(min(query + 1, 100) for query in range(S))
    assert float(main.flops) == near(2.0 * 2.0 * picked * 8 * (2 * 32 + 8), 0.01)
    shared = of(CASES["latent, keys picked before"][0])[0].work(at)
    assert [float(row.flops) for row in shared.cores] == [float(main.flops), 0.0]
    every = pairs(lambda q, k: True)
    assert float(index.flops) == near(2.0 * 2.0 * every * 4 * 24, 0.01)
    # three products over picked keys, where fused attention has five for two
    learnt = 3.0 * 2.0 * 2.0 * picked * 4 * 24
    assert float(2.5 * index.behind * index.flops) == near(learnt, 0.01)


def test_without_fused_kernels_all_pairs_are_scored_in_fp32():
    sizes = SPARSE | {"q_rank": 40} | DSA
    part, at = of(sizes)
    fused, other = part.work(at).cores[0], of(sizes, sparse_kernels=0.0)
    main = other[0].work(other[1]).cores[0]
    tokens = 2.0 * S
    # every query with every key, masked ones too
    assert float(main.flops) == near(2.0 * tokens * S * 8 * (2 * 32 + 8))
    assert float(main.stretch) == near(16.0 * float(fused.stretch))
    # scores touched 13 times, as unfused ones in 16 bits are, in twice the bytes
    assert float(main.softmax_bytes) == near(2.0 * 13.0 * tokens * S * 8)
    assert float(fused.softmax_bytes) == float(main.exponentials) == 0.0


def dots(*products: tuple[float, float, float]) -> float:
    """FLOPs of products of matrices `m × k` and `k × n`."""
    return 2.0 * sum(map(prod, products))


def delta_chunk(k: int, v: int, channels: bool) -> tuple[float, float]:
    """Forward and backward FLOPs of one chunk and head, kernel by kernel (flash-linear-attention's
    `gated_delta_rule` and `kda`)."""
    c, block = int(CHUNK), 16
    below = [(i, j) for i in range(4) for j in range(i)]
    if channels:
        matrix = dots(*[(block, block, k)] * (2 * len(below)))
    else:
        matrix = dots(*[(block, block, k)] * (len(below) + 4))
    inverse = dots(*[(block, block, block)] * (3 * 2 + 2 * 3 + 4))
    both = dots((c, k, c), (c, v, c))
    state = dots((c, v, k), (k, v, c))
    scores = () if channels else ((c, c, k),)
    out = dots((c, v, k), (c, v, c), *scores)
    again = both + state
    local = dots((c, v, c), (c, c, v)) if channels else dots((c, c, k), (c, v, c))
    states = dots(*[(k, v, c)] * 3)
    gradients = dots(*[(c, k, v)] * 3)
    if channels:
        more = dots((c, c, v), (c, v, c), (c, c, k), (c, k, c), (c, c, c), (c, c, c))
        more += dots(*[(block, k, block)] * (4 * len(below)))
    else:
        more = dots((c, c, v), (c, k, c), (c, k, c))
        more += dots((c, c, k), (c, k, c), (c, c, v), (c, v, c), (c, c, c), (c, c, c))
        more += dots((c, c, k), (c, k, c), (c, k, c))
    forward = matrix + inverse + both + state + out
    return forward, again + local + states + gradients + more


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("delta")])
def test_a_delta_net_runs_the_products_of_its_chunks(name):
    part, at = of(CASES[name][0])
    forward, backward = delta_chunk(16, 24, "channels" in name)
    chunks = 2.0 * S / CHUNK * 8
    (found,) = part.work(at).cores
    assert float(found.flops) == near(chunks * forward)
    assert float(2.5 * found.behind * found.flops) == near(chunks * backward)


def test_lightning_attention_runs_the_products_of_its_blocks():
    part, at = of(CASES["lightning"][0])
    c, e = BLOCK, 16
    block = dots((c, c, e), (c, e, c), (c, e, e), (e, e, c))
    assert core(part.work(at)) == near(2.0 * S / BLOCK * 8 * block)


def test_a_scan_runs_the_products_of_its_chunks():
    part, at = of(CASES["mamba2"][0])
    c, n, head = SCAN, 16, 16
    chunk = 2 * dots((c, c, n)) + 8 * dots((c, head, c), (n, head, c), (c, head, n))
    assert core(part.work(at)) == near(2.0 * S / SCAN * chunk)


def same(one: Any, other: Any) -> bool:
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(isinstance(x, str) or np.allclose(x, y, rtol=1e-12) for x, y in leaves)


@pytest.mark.parametrize(
    ("sizes", "limit", "value"),
    [
        (GQA, "window", S),
        (GQA, "chunk", S),
        (SPARSE | {"q_rank": 40} | DSA | {"index_top": ALL}, "index_top", S),
        (V4 | CSA | {"index_top": ALL}, "index_top", S / 4),
        (V4 | CSA | {"window": ALL}, "window", S),
    ],
)
@pytest.mark.parametrize("cp", [1.0, 4.0])
def test_what_no_sequence_fills_is_no_bound(sizes, limit, value, cp):
    """Windows, chunks and picked keys from the sequence on; below they leave something out."""
    (free, at), (bound, _) = of(sizes, cp=cp), of(sizes | {limit: value}, cp=cp)
    less, _ = of(sizes | {limit: value / 2})
    assert same(free.work(at), bound.work(at)) and same(free.keeps(at), bound.keeps(at))
    assert core(less.work(at)) < core(free.work(at))


def test_ranks_that_hold_whole_chunks_all_work_alike():
    """However the sequence lies on them; where several hold a chunk, the last one takes longest."""
    chunked, window = GQA | {"chunk": 64}, GQA
    for sizes, cp, alike in ((chunked, 8.0, True), (chunked, 16.0, False), (window, 8.0, False)):
        evenly, at = of(sizes, cp=cp, cp_balanced=1.0)
        in_order, there = of(sizes, cp=cp, cp_balanced=0.0)
        even, last = core(evenly.work(at)), core(in_order.work(there))
        assert last == near(even) if alike else last > 1.1 * even


@pytest.mark.parametrize("name", MIXERS)
def test_ranks_of_cp_pass_on_what_the_others_see(name):
    """Linear mixers as much however long the sequence, attention as much as it is long."""
    sizes, _, _ = CASES[name]
    rings = []
    for seq_len in (S, 2 * S):
        part, at = of(sizes, seq_len, cp=2.0)
        rings.append(float(part.work(at).ring))
    if sizes["kind"] == "linear":
        assert rings == [0.0, 0.0]
        return
    grows = {"attention": 2.0, "latent": 2.0, "sparse": 2.0, "compressed": None}.get(
        sizes["kind"], 1.0
    )
    assert rings[0] > 0.0
    if grows is not None:
        assert rings[1] == near(grows * rings[0])
    assert float(part.work(at).ring) == rings[1]


def test_delta_nets_pass_on_states_and_what_changes_them():
    part, at = of(GDN, cp=2.0)
    assert float(part.work(at).ring) == 4.0 * 2.0 * 2.0 * 8 * 16 * (16 + 24)


def test_a_gate_and_values_beside_keys_are_kept():
    plain, at = of(GQA)
    kept = {name: of(GQA | more)[0].keeps(at) for name, more in SWITCHED.items()}
    t, wide, out = float(at.t), 2 * 16, 8 * 16
    base = float(plain.keeps(at).total)
    assert float(kept["gate"].total) == near(base + 2.0 * t * 2 * out)
    assert float(kept["values as keys"].total) == base
    assert float(kept["shared"].total) == near(base - 2.0 * t * 2 * wide)


SWITCHED = {
    "gate": {"output_gate": 1},
    "values as keys": {"own_values": 0},
    "shared": {"own_values": 0, "own_keys": 0},
}


def shape(blocks: Sequence[tuple[int, dict, dict | None]], **sizes: float) -> dict[str, Any]:
    return sizes | {
        "seq_len": 4096,
        "blocks": [{"layers": n, "mixer": mixer, "feed": feed} for n, mixer, feed in blocks],
    }


def kind(name: str, **sizes: float) -> dict[str, Any]:
    return {"kind": name, **sizes}


def published() -> dict[str, tuple[dict[str, Any], int, float]]:
    """Shapes, counts of their tensors, and active parameters [1e9].

    Of transformers' models of published configurations, without router biases; active ones with
    embeddings, which publications leave out.
    """
    gdn = kind("delta", key_heads=16, value_heads=32, key_dim=128, value_dim=128)
    wide = gdn | {"value_heads": 48}
    gated = kind("attention", n_heads=16, n_kv_heads=2, head_dim=256, output_gate=1, small=512)
    wider = gated | {"n_heads": 24, "n_kv_heads": 4}
    fine = kind("experts", n_experts=512, top_k=10, d_ff=512, shared_ff=512, small=2048)
    v3 = kind("experts", n_experts=256, top_k=8, d_ff=2048, shared_ff=2048)
    dsa = {"index_heads": 64, "index_dim": 128, "index_top": 2048, "kv_rank": 512, "rope_dim": 64}
    mla = kind("sparse", n_heads=128, head_dim=128, qk_extra=64, q_rank=1536, **dsa)
    glm = mla | {"n_heads": 64, "head_dim": 256, "qk_extra": 0, "q_rank": 2048, "index_heads": 32}
    v4 = kind("compressed", n_heads=64, head_dim=512, q_rank=1024, out_groups=8, out_rank=1024)
    v4 |= {"rope_dim": 64, "window": 128, "residual_streams": 4, "small": 64}
    csa = {"ratio": 4, "overlap": 1, "index_heads": 64, "index_dim": 128, "index_top": 512}
    conv, lfm = kind("short_conv", taps=3), kind("dense", d_ff=8192)
    small = kind("attention", n_heads=32, n_kv_heads=8, head_dim=64, small=128)
    kda = gdn | {"key_heads": 32, "gate_rank": 128, "decay_rank": 128}
    nope = kind("latent", n_heads=32, head_dim=128, qk_extra=64, kv_rank=512, rope_dim=64)
    kimi = v3 | {"d_ff": 1024, "shared_ff": 1024}
    light, grouped = kind("lightning", n_heads=64, head_dim=128), {"n_kv_heads": 8}
    minimax = kind("experts", n_experts=32, top_k=2, d_ff=9216)
    local = kind("attention", n_heads=16, n_kv_heads=8, head_dim=256, window=1024, small=3328)
    overall = local | {"n_kv_heads": 2, "head_dim": 512, "own_values": 0, "small": 3840}
    overall["window"] = ALL
    gemma = kind("experts", n_experts=128, top_k=8, d_ff=704, shared_ff=2112, small=14208)
    return {
        "Qwen3-Next-80B-A3B": (
            shape([(36, gdn, fine), (12, gated, fine)], d_model=2048, vocab=151936),
            79674391296,
            3.9,
        ),
        "Qwen3.5-27B": (
            shape(
                [(n, mixer, kind("dense", d_ff=17408)) for n, mixer in ((48, wide), (16, wider))],
                d_model=5120,
                vocab=248320,
            ),
            26895998464,
            26.9,
        ),
        "DeepSeek-V3.2": (
            shape([(3, mla, kind("dense", d_ff=18432)), (58, mla, v3)], d_model=7168, vocab=129280),
            671877929216,
            38.4,
        ),
        "GLM-5": (
            shape([(3, glm, kind("dense", d_ff=12288)), (75, glm, v3)], d_model=6144, vocab=154880),
            743911199232,
            41.8,
        ),
        "DeepSeek-V4-Flash": (
            shape(
                [
                    (n, v4 | more, v3 | {"top_k": 6})
                    for n, more in ((2, {}), (21, csa), (20, {"ratio": 128}))
                ],
                d_model=4096,
                vocab=129280,
                small=4 * 4 * 4096 + 4 + 1,
            ),
            284332230231,
            13.8,
        ),
        "Kimi-Linear-48B-A3B": (
            shape(
                [(1, kda, kind("dense", d_ff=9216)), (19, kda, kimi), (7, nope, kimi)],
                d_model=2304,
                vocab=163840,
            ),
            49122675072,
            3.5,
        ),
        "MiniMax-Text-01": (
            shape(
                [(70, light, minimax), (10, light | grouped | {"kind": "attention"}, minimax)],
                d_model=6144,
                vocab=200064,
            ),
            456089655296,
            45.9 + 2.5,
        ),
        "LFM2-1.2B": (
            shape([(10, conv, lfm), (6, small, lfm)], d_model=2048, vocab=65536, tied_embeddings=1),
            1170340608,
            1.2,
        ),
        "Gemma-4-26B-A4B": (
            shape(
                [(25, local, gemma), (5, overall, gemma)],
                d_model=2816,
                vocab=262144,
                tied_embeddings=1,
            ),
            25233141760,
            3.8,
        ),
    }


@pytest.mark.parametrize("name", published())
def test_published_models_have_as_many_parameters(name):
    sizes, total, active = published()[name]
    model = model_of(sizes)
    assert float(parameters(model)) == total
    assert float(active_parameters(model)) / 1e9 == pytest.approx(active, abs=0.06)


EVERY = {
    "attention": GQA | {"window": 301.7, "chunk": 407.3, "output_gate": 0.6, "qk_extra": 3.1},
    "latent": MLA | {"q_rank": 40.2},
    "sparse": SPARSE | {"q_rank": 40.2} | DSA | {"index_top": 101.3},
    "delta": GDN | {"gate_rank": 24.1, "decay_rank": 16.3},
    "lightning": CASES["lightning"][0],
    "compressed": V4 | CSA | {"index_top": 31.2, "window": 51.3, "overlap": 0.7},
    "mamba2": CASES["mamba2"][0],
    "short_conv": CASES["short_conv"][0],
    "linear": CASES["linear"][0],
}
FEED = {
    "experts": MIXTURE | {"shared_ff": 48.2, "expert_rank": 33.1, "expert_biases": 0.4},
    "dense": {"kind": "dense", "d_ff": 201.3, "gated_mlp": 0.7},
}
PLAN = Plan.of(
    **{"dp": 4.1, "tp": 2.1, "cp": 2.2, "pp": 2.3, "ep": 3.1, "sp": 0.7, "zero": 1.0},
    **{"global_batch": 64.0, "micro_batch": 2.0, "recompute_attention": 0.3, "shard": 4.1},
    **{"recompute_layers": 0.2},
)


def everything() -> Model:
    """A layer of every mixer, half of them with experts."""
    blocks = [
        {"layers": 1.5 + i, "mixer": mixer, "feed": FEED["dense" if i % 2 else "experts"]}
        for i, mixer in enumerate(EVERY.values())
    ]
    model = model_of({"d_model": 97.3, "vocab": VOCAB, "seq_len": S, "blocks": blocks})
    return jax.tree.map(np.float64, model)


SYSTEM = catalog.system("H100-DGX")


def answered(model: Model, plan: Plan) -> jax.Array:
    """Logarithms of a step's time and of memory, in a sum that lets neither hide the other."""
    with together():
        found = step_time(SYSTEM, model, plan, coefficients.default())
        return jnp.log(found.total) + 0.7 * jnp.log(memory_use(model, plan).total)


answers, gradients = quick(answered), quick(jax.grad(answered))


def names(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


@pytest.fixture(scope="module")
def base() -> tuple[Model, Model]:
    """The model of every kind, and what both answers' derivatives by its leaves are."""
    model = everything()
    return model, gradients(model, PLAN)


def test_derivatives_are_those_of_finite_differences(base):
    """By every size of every part, and every share of the layers."""
    model, found = base
    leaves, tree = jax.tree.flatten(model)
    wrong = []
    for i, (name, slope) in enumerate(zip(names(model), jax.tree.leaves(found), strict=True)):
        if not name.startswith((".mixers", ".feeds", ".shares")):
            continue
        x = float(leaves[i])
        step = 1e-4 * max(abs(x), 0.1)
        high, low = (
            answers(tree.unflatten([*leaves[:i], np.float64(y), *leaves[i + 1 :]]), PLAN)
            for y in (x + step, x - step)
        )
        expected = np.asarray(high - low) / (2.0 * step)
        if not np.allclose(slope, expected, rtol=1e-3, atol=1e-8 / max(abs(x), 1.0)):
            wrong.append((name, slope, expected))
    assert wrong == []


OFF = (
    *("q_rank", "index_heads", "index_dim", "gate_rank", "decay_rank", "ratio", "rope_dim"),
    *("shared_ff", "expert_rank", "output_gate", "qk_extra", "expert_biases", "gated_mlp"),
)


def test_derivatives_are_finite_where_parts_are_off(base):
    """Everything that can be off is; then one kind of layer after the other has no copies."""
    model, _ = base
    off = model.replace(
        **{
            side: tuple(
                part.replace(**{n: np.float64(0.0) for n in OFF if n in part.__dataclass_fields__})
                for part in getattr(model, side)
            )
            for side in ("mixers", "feeds")
        }
    )
    none = [np.where(np.arange(len(EVERY)) == i, 0.0, 1.0) for i in range(len(EVERY))]
    without = [model.replace(shares=tuple(shares / shares.sum())) for shares in none]
    for case in (model, off, *without):
        assert np.isfinite(answers(case, PLAN)).all()
        bad = [
            name
            for name, slope in zip(names(case), jax.tree.leaves(gradients(case, PLAN)), strict=True)
            if not np.isfinite(slope).all()
        ]
        assert bad == []


def test_residual_streams_go_from_layer_to_layer():
    """Through the pipeline, and as what a layer that is recomputed starts from."""
    one, four = (
        model_of(shape([(4, V4 | CSA | {"residual_streams": n}, None)], d_model=H, vocab=VOCAB))
        for n in (1, 4)
    )
    plan = Plan.of(dp=1.0, global_batch=4.0)
    wire = float(activation_bytes(four, plan))
    assert float(between_layers(one, plan)) == wire == float(activation_bytes(one, plan))
    assert float(between_layers(four, plan)) == 4.0 * wire
    assert float(memory.layer_input_bytes(four, plan)) == 4.0 * wire
    # arXiv 2512.24880: all streams read to weigh and to collapse them, read again and written with
    # the result, at two places; each place has a norm's two touches anyway
    streams = [layer(m, plan).streams.forward for m in (one, four)]
    beside = float(streams[1] - streams[0]) / wire
    assert beside == near(2 * (4 + 1 + 4 + 4 + 1 - 3))


@pytest.mark.parametrize("behind", [0.25, 1.0, 1.5])
def test_a_core_with_another_backward_pass_takes_as_much_longer_there(behind):
    """Where nothing but its products takes time."""
    chip, c = SYSTEM.chip, coefficients.default()
    given = jnp.asarray([1e12]), jnp.asarray([0.0]), jnp.asarray([0.0]), 1.0, chip, c, float("inf")
    plain, other = attention_passes(*given), attention_passes(*given, jnp.asarray([behind]))
    assert float(other.forward[0]) == near(float(plain.forward[0]))
    assert float(other.backward[0]) == near(behind * float(plain.backward[0]))
