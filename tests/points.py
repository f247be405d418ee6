"""Points to try the model at, and the tools that compare functions of records: batches, loops,
finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import jax
import numpy as np

from dmodel.blocks import Attention, Dense, Experts, Latent, Linear, Mamba2, Sparse
from dmodel.catalog.shapes import decoder
from dmodel.coefficients import SPECS, Coefficients
from dmodel.operations import Unknown
from dmodel.recorded import Ready
from dmodel.recording import recorded
from dmodel.records import NONE, Chip, Cluster, Model, Network, Plan, sized, stacked

Tree = Any

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""Compiles six times as fast; the numbers differ by rounding only."""

CHIP = Chip(
    flops_per_s=9.9e14,
    attention_flops_per_s=8.1e14,
    exponentials_per_s=3.7e12,
    hbm_bytes=8.5e10,
    hbm_bytes_per_s=3.3e12,
    kernel_latency_s=4e-6,
    idle_watts=100.0,
    peak_watts=700.0,
    price_per_s=1e-3,
    host_bytes_per_s=6.1e10,
    host_memory_bytes_per_s=7.3e10,
)
NETWORK = Network(
    size=np.array([7.3, np.inf]),
    bytes_per_s=np.array([4.5e11, 4.9e10]),
    latency_s=np.array([3e-6, 1.1e-5]),
    torus_axes=np.array([1.3, 1.1]),
    in_network_reduction=np.array([0.4, 0.2]),
)
MODEL = Model(
    n_layers=31.0,
    d_model=4100.0,
    vocab=33000.0,
    seq_len=4000.0,
    learned_positions=0.4,
    tied_embeddings=0.3,
    causal=0.7,
    n_mtp=0.4,
    trainable=0.8,
    first_adapters=1.3,
    first_adapted=5100.0,
    last_adapters=0.7,
    last_adapted=3900.0,
    adapter_dropout=0.4,
    small=7000.0,
    shares=(0.2, 0.3, 0.15, 0.1, 0.15, 0.1),
    further=(0.1, 0.3, 0.2, 0.1, 0.2, 0.1),
    mixers=(
        Attention(
            n_heads=33.0,
            n_kv_heads=9.0,
            head_dim=120.0,
            qk_extra=30.0,
            window=900.0,
            chunk=2900.0,
            own_keys=0.9,
            own_values=0.6,
            small=500.0,
        ),
        Attention(
            n_heads=31.0,
            n_kv_heads=7.0,
            head_dim=128.0,
            output_gate=0.4,
            own_keys=0.8,
            own_values=0.7,
        ),
        Sparse(
            n_heads=29.0,
            head_dim=112.0,
            kv_rank=300.0,
            qk_extra=40.0,
            q_rank=0.6,
            rope_dim=50.0,
            index_heads=0.4,
            index_dim=60.0,
            index_top=1300.0,
            small=300.0,
        ),
        Mamba2(
            mamba_inner=7000.0,
            mamba_heads=60.0,
            mamba_groups=7.0,
            mamba_state=120.0,
            taps=4.2,
            small=200.0,
        ),
        Linear(linears=1.3, small=100.0),
    ),
    feeds=(
        Dense(d_ff=9000.0, gated_mlp=0.6, small=600.0),
        Experts(
            n_experts=1.3,
            top_k=1.1,
            d_ff=11000.0,
            gated_mlp=0.7,
            shared_ff=0.8,
            imbalance=1.1,
            expert_biases=0.4,
            expert_rank=0.6,
            small=400.0,
        ),
    ),
    pairs=((0, 0), (1, 1), (2, 1), (3, NONE), (NONE, 0), (4, 1)),
)
MIXTURE = sized(
    MODEL,
    n_experts=8.6,
    top_k=2.1,
    shared_ff=2200.0,
    imbalance=1.2,
    kv_rank=500.0,
    q_rank=1400.0,
    index_heads=17.0,
    expert_rank=900.0,
    window=3700.0,
    chunk=3900.0,
).replace(shares=(0.1, 0.4, 0.15, 0.1, 0.05, 0.2))
PLAN = Plan.of(
    dp=6.3,
    tp=2.7,
    cp=1.6,
    pp=3.3,
    ep=2.2,
    etp=1.6,
    merge_copies=0.4,
    route_bytes=0.3,
    sp=0.4,
    zero=0.4,
    shard=3.1,
    cp_balanced=0.7,
    reshard=0.6,
    accumulate=0.3,
    interleave=1.5,
    stage_excess=0.6,
    head_displaces=0.8,
    micro_batch=1.2,
    global_batch=63.0,
    recompute_layers=0.3,
    recompute_attention=0.4,
    recompute_products=0.25,
    recompute_elementwise=0.7,
    recompute_bytes=0.2,
    recompute_last=0.7,
    exchange_kept=0.3,
    last_kept=0.4,
    offload=0.3,
    graphed=0.3,
    looped_experts=0.6,
    fused_experts=0.3,
    fused_sums=0.4,
    flash=0.7,
    split_rotary=0.3,
    split_softmax=0.6,
    unpadded_vocab=0.4,
    whole_logits=0.3,
    whole_ends=0.4,
    boundary_copies=1.5,
    boundary_buffers=0.4,
    freed_gradients=0.6,
    eager=0.4,
    stream_ratio=0.7,
    loss_ratio=0.6,
    composed=0.3,
    narrow_gathers=0.8,
    narrow_sums=0.6,
    overlap_tp=0.9,
    overlap_cp=0.8,
    overlap_ep=0.7,
    overlap_dp=0.6,
    overlap_pp=0.5,
    overlap_replica=0.7,
    operand_bytes=1.6,
    attention_bytes=1.4,
    attention_rate=0.7,
    attention_backward_rate=0.6,
    offload_optimizer=0.4,
    offload_weights=0.2,
    host_sums=0.3,
    overlap_offload=0.6,
    host_update=2.3,
    end_bytes=1.9,
    whole_bytes=0.2,
    dequantize=0.7,
    wide_layers=0.2,
    scale_passes=0.4,
    gather_bytes=1.7,
    weight_bytes=2.2,
    gradient_bytes=3.7,
    raw_gradient_bytes=1.2,
    optimizer_bytes=11.0,
    update_bytes=1.5,
    logit_bytes=6.5,
    reduce_bytes=2.5,
    bucket_per_rank=3e7,
    schedule="interleaved",
)
"""Every choice half-way and no degree on a corner, so that every formula takes part and has a
derivative."""

COEFFICIENTS = Coefficients(**{name: spec.default for name, spec in SPECS.items()})

PLANS = (
    PLAN,
    PLAN.having(zero=1.5, dp=9.1, shard=4.3, tp=1.4, ep=1.2, etp=1.1),
    PLAN.having(zero=2.6, cp=2.4, micro_batch=2.7, interleave=2.6, pp=1.3, sp=0.9),
    PLAN.having(dp=41.0, tp=7.9, shard=30.0, operand_bytes=0.7, ep=5.0, pp=7.7, global_batch=310.0),
)

SINGLE = Plan.of(dp=1.0, global_batch=8.0, schedule="interleaved")
EDGE_PLANS = (
    SINGLE,
    SINGLE.having(global_batch=1.0, flash=0.0, unpadded_vocab=1.0, composed=1.0),
    *[SINGLE.having(dp=8.0, shard=8.0, zero=float(zero)) for zero in range(4)],
    SINGLE.having(dp=4.0, tp=8.0, sp=1.0, recompute_layers=1.0),
    SINGLE.having(dp=4.0, tp=8.0, recompute_layers=1.0, recompute_last=0.0),
    SINGLE.having(
        dp=4.0, tp=8.0, recompute_attention=1.0, flash=0.0, fused_sums=1.0, split_rotary=1.0
    ),
    SINGLE.having(flash=0.0, split_softmax=1.0),
    SINGLE.having(
        dp=4.0,
        tp=8.0,
        sp=1.0,
        recompute_products=0.4,
        recompute_elementwise=1.0,
        recompute_last=0.0,
    ),
    SINGLE.having(dp=4.0, ep=4.0, looped_experts=1.0, graphed=1.0),
    SINGLE.having(dp=4.0, ep=4.0, fused_experts=1.0, operand_bytes=1.0, attention_bytes=1.0),
    SINGLE.having(offload_optimizer=1.0, host_sums=1.0, end_bytes=2.0, dequantize=3.0),
    SINGLE.having(dp=4.0, offload_optimizer=1.0, overlap_offload=0.0, offload=1.0),
    SINGLE.having(dp=8.0, zero=3.0, shard=8.0, offload_weights=1.0, offload_optimizer=1.0),
    SINGLE.having(dp=4.0, pp=8.0, global_batch=32.0),
    SINGLE.having(dp=4.0, pp=8.0, global_batch=32.0, stage_excess=0.25, head_displaces=1.0),
    SINGLE.having(dp=2.0, pp=2.0, interleave=2.0, global_batch=4.0, operand_bytes=1.0),
    SINGLE.having(dp=2.0, cp=8.0, zero=3.0, shard=2.0, reshard=0.0),
    SINGLE.having(dp=8.0, zero=3.0, shard=8.0, accumulate=1.0),
    SINGLE.having(
        dp=16.0, ep=8.0, zero=3.0, shard=8.0, global_batch=16.0, merge_copies=1.0, route_bytes=1.0
    ),
    SINGLE.having(
        dp=4.0,
        tp=4.0,
        ep=8.0,
        etp=2.0,
        sp=1.0,
        operand_bytes=1.0,
        scale_passes=1.0,
    ),
    SINGLE.having(
        dp=4.0,
        tp=4.0,
        sp=1.0,
        operand_bytes=1.0,
        narrow_sums=1.0,
        recompute_layers=1.0,
    ),
    SINGLE.having(
        dp=8.0,
        ep=8.0,
        tp=8.0,
        pp=8.0,
        overlap_tp=0.0,
        overlap_dp=0.0,
        overlap_pp=0.0,
        overlap_ep=0.0,
        overlap_cp=0.0,
    ),
)
"""Corners: one device, degrees of one, every ZeRO stage, recomputation none and full, groups that
fill a level exactly."""

SIZES = {
    "n_layers": 31.0,
    "d_model": 4100.0,
    "d_ff": 11000.0,
    "n_heads": 33.0,
    "n_kv_heads": 9.0,
    "head_dim": 120.0,
    "vocab": 33000.0,
    "seq_len": 4000.0,
    "gated_mlp": 1.0,
}


def plain(**sizes: float) -> Model:
    """A decoder whose layers are alike."""
    return decoder(**(SIZES | sizes))


def of_blocks(*blocks: tuple[float, Any, Any], **sizes: float) -> Model:
    """A decoder of (layers, mixer, feed) as wide as the plain one; either part may be None."""
    alike = plain(**sizes)
    total = sum(n for n, _, _ in blocks)
    sides = [list(dict.fromkeys(b[side] for b in blocks if b[side])) for side in (1, 2)]
    return alike.replace(
        n_layers=np.float64(total),
        shares=tuple(np.float64(n / total) for n, _, _ in blocks),
        further=tuple(np.float64(i == len(blocks) - 1) for i in range(len(blocks))),
        mixers=tuple(sides[0]),
        feeds=tuple(sides[1]),
        pairs=tuple(
            tuple(
                NONE if part is None else side.index(part)
                for part, side in zip(b[1:], sides, strict=True)
            )
            for b in blocks
        ),
    )


DENSE = plain()
ADAPTED = DENSE.replace(
    trainable=0.0,
    first_adapters=1.0,
    first_adapted=6144.0,
    last_adapters=1.0,
    last_adapted=4096.0,
    adapter_dropout=1.0,
)
"""Adapters beside queries, keys and values, and beside the projection."""
LATENT = Latent(
    n_heads=33.0, head_dim=120.0, kv_rank=512.0, q_rank=1536.0, rope_dim=64.0, qk_extra=64.0
)
SPARSE = Sparse(
    n_heads=33.0,
    head_dim=120.0,
    kv_rank=512.0,
    q_rank=1536.0,
    rope_dim=64.0,
    qk_extra=64.0,
    index_heads=32.0,
    index_dim=128.0,
    index_top=512.0,
)
ATTENTION = Attention(n_heads=33.0, n_kv_heads=9.0, head_dim=120.0)
EIGHT = Experts(n_experts=8.0, top_k=2.0, d_ff=2048.0, shared_ff=2048.0)
EDGE_MODELS = (
    DENSE,
    plain(gated_mlp=0.0, tied_embeddings=1.0, causal=0.0),
    plain(n_experts=8.0, top_k=2.0, d_ff=2048.0),
    plain(n_experts=2.0, shared_ff=11000.0),
    DENSE.replace(trainable=0.0),
    ADAPTED,
    ADAPTED.replace(last_adapters=0.0, last_adapted=0.0, adapter_dropout=0.0),
    of_blocks((3.0, LATENT, Dense(d_ff=8000.0)), (28.0, LATENT, EIGHT), n_mtp=1.0),
    of_blocks(
        (4.0, ATTENTION, None),
        (4.0, ATTENTION.replace(window=128.0), None),
        (
            16.0,
            Mamba2(mamba_inner=8192.0, mamba_heads=128.0, mamba_groups=8.0, mamba_state=128.0),
            None,
        ),
        (8.0, None, Dense(d_ff=11000.0)),
    ),
    plain(n_experts=8.0, top_k=4.0, d_ff=2048.0, expert_biases=1.0),
    plain(n_experts=8.0, top_k=4.0, d_ff=2048.0, shared_ff=4096.0, expert_rank=1024.0, n_mtp=1.0),
    of_blocks(
        (5.0, ATTENTION.replace(chunk=1000.0, own_values=0.0), Dense(d_ff=9000.0, gated_mlp=0.0)),
        (7.0, ATTENTION.replace(output_gate=1.0, head_dim=128.0), EIGHT),
        (2.0, ATTENTION.replace(output_gate=1.0, head_dim=128.0), Linear()),
        (1.0, Linear(linears=2.0), Dense(d_ff=9000.0, gated_mlp=0.0)),
    ),
    of_blocks((8.0, SPARSE, EIGHT), (24.0, SPARSE.replace(index_heads=0.0, index_dim=0.0), EIGHT)),
)
FABRIC = NETWORK.replace(
    size=np.array([8.0, np.inf]), torus_axes=np.ones(2), in_network_reduction=np.array([1.0, 0.0])
)
FREE = (
    "net_contention",
    "contention",
    "straggler",
    "overhead",
    "launch",
    "rendezvous",
    "kernel_fill",
    "collective_start",
    "collective_skew",
    "power_demand",
)
IDEAL = COEFFICIENTS.replace(
    **{name: 1.0 for name, spec in SPECS.items() if spec.bound == "share" and name not in FREE},
    **dict.fromkeys((*FREE, "net_latency_inner", "net_latency_outer"), 0.0),
    bucket=inf,
)
"""Every share at one, every cost that may vanish at zero."""


def float64(tree: Tree) -> Tree:
    """Leaves as numpy float64."""
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def batch(trees: Sequence[Tree]) -> Tree:
    """Cases on a new last axis; models of other kinds of layers as one that has them all."""

    def joined(*leaves: Any) -> Any:
        if isinstance(leaves[0], Model):
            return stacked(leaves)
        return np.stack([np.asarray(x, np.float64) for x in leaves], -1)

    return jax.tree.map(joined, *trees, is_leaf=lambda x: isinstance(x, Model))


def case(tree: Tree, i: int) -> Tree:
    """Case i of a batch."""
    return jax.tree.map(lambda x: x[..., i], tree)


def quick(f: Callable) -> Callable:
    """What f computes, traced once for each structure that it is given and then done by numpy, as
    that takes no time beside compiling it. What has no counterpart in numpy is compiled."""
    known: dict[Any, Callable] = {}

    def found(*given: Tree) -> Tree:
        given = jax.tree.map(np.asarray, given)
        leaves, tree = jax.tree.flatten(given)
        key = tree, tuple((x.shape, x.dtype) for x in leaves)
        if key not in known:
            known[key] = _by_numpy(f, given)
        return known[key](*given)

    return found


def _by_numpy(f: Callable, given: tuple) -> Callable:
    """f for what has the structure of that given."""
    compiled = jax.jit(f, compiler_options=QUICK)
    if any(x.ndim and x.dtype != np.float64 for x in jax.tree.leaves(given)):
        return compiled
    answers: list[Any] = []

    def named(*given: Tree) -> dict[str, Any]:
        leaves, tree = jax.tree.flatten(f(*given))
        answers[:] = [tree]
        return {f"{i:06}": leaf for i, leaf in enumerate(leaves)}

    try:
        ready = Ready(recorded(named, *given))
    except Unknown:
        return compiled

    def run(*given: Tree) -> Tree:
        found = ready([x.astype(np.float64) for x in jax.tree.leaves(given)])
        return jax.tree.unflatten(answers[0], found)

    return run


def jittered(tree: Tree, rng: np.random.Generator, spread: float) -> Tree:
    """Each number times `exp(spread · normal)`."""
    return jax.tree.map(
        lambda x: np.asarray(x) * np.exp(spread * rng.standard_normal(np.shape(x))), tree
    )


def positions(tree: Tree) -> list[tuple[int, tuple[int, ...]]]:
    """(leaf, index within it) of every finite number of a case."""
    return [
        (i, at)
        for i, x in enumerate(jax.tree.leaves(tree))
        for at in np.ndindex(np.shape(x))
        if np.isfinite(np.asarray(x)[at])
    ]


def log_slopes(tree: Tree, gradient: Tree) -> np.ndarray:
    """`x ∂f/∂x` of every finite number of a batch of cases, `[number, case]`."""
    values, slopes, first = jax.tree.leaves(tree), jax.tree.leaves(gradient), case(tree, 0)
    return np.stack(
        [np.asarray(slopes[i])[at] * np.asarray(values[i])[at] for i, at in positions(first)]
    )


STEP = 4e-4
STENCIL = ((-2, 1.0), (-1, -8.0), (1, 8.0), (2, -1.0))


def log_differences(f: Callable[[Tree], np.ndarray], tree: Tree) -> np.ndarray:
    """Five-point central differences of f (batch of cases → `[case]`) by the logarithm of every
    finite number, `[number, case]`.

    All perturbed cases go through f as one batch.
    """
    leaves, structure = jax.tree.flatten(tree)
    cases, where = leaves[0].shape[-1], positions(case(tree, 0))
    moved = [np.tile(x, len(where) * len(STENCIL)) for x in leaves]
    for j, (i, at) in enumerate(where):
        for k, (steps, _) in enumerate(STENCIL):
            start = (j * len(STENCIL) + k) * cases
            moved[i][at][start : start + cases] *= np.exp(steps * STEP)
    values = np.asarray(f(jax.tree.unflatten(structure, moved))).reshape(
        len(where), len(STENCIL), cases
    )
    return np.einsum("jkc,k->jc", values, [w for _, w in STENCIL]) / (12.0 * STEP)


def random_systems(rng: np.random.Generator, n: int, levels: int) -> list[Cluster]:
    """Machines of any balance between arithmetic, memory and network."""
    found = []
    for _ in range(n):
        sizes = np.append(rng.choice([2.0, 4.0, 8.0, 16.0, 72.0], levels - 1), np.inf)
        network = Network(
            size=sizes,
            bytes_per_s=np.exp(rng.uniform(22.0, 27.5, levels)),
            latency_s=np.exp(rng.uniform(-15.0, -10.0, levels)),
            torus_axes=rng.choice([1.0, 1.0, 3.0], levels),
            in_network_reduction=rng.choice([0.0, 1.0], levels),
        )
        found.append(Cluster(chip=jittered(float64(CHIP), rng, 0.7), network=network))
    return found


def random_plans(rng: np.random.Generator, n: int) -> list[Plan]:
    """Plans with power-of-two degrees, every choice possible."""
    found = []
    for _ in range(n):
        dp, tp, cp, pp, v = (2.0 ** rng.integers(0, top) for top in (6, 4, 3, 4, 3))
        names = (
            "sp",
            "reshard",
            "recompute_layers",
            "recompute_last",
            "recompute_attention",
            "flash",
            "unpadded_vocab",
        )
        names += (
            "graphed",
            "looped_experts",
            "fused_sums",
            "split_rotary",
            "split_softmax",
            "recompute_products",
            "recompute_elementwise",
            "composed",
        )
        switch = {name: float(rng.integers(0, 2)) for name in names}
        zero, micro = float(rng.integers(0, 4)), 2.0 ** rng.integers(0, 3)
        uneven = {
            name: float(pp > 1.0) * 0.25 * rng.integers(0, 9)
            for name in ("stage_excess", "head_displaces")
        }
        ep, shard = (min(dp, 2.0 ** rng.integers(0, 6)) for _ in range(2))
        plan = Plan.of(
            dp=dp,
            tp=tp,
            cp=cp,
            pp=pp,
            ep=ep,
            zero=zero,
            shard=shard,
            interleave=v,
            micro_batch=micro,
            global_batch=dp * micro * 2.0 ** rng.integers(0, 6),
            bucket_per_rank=1e7 * rng.integers(0, 3),
            schedule="interleaved",
            **switch,
            **uneven,
        )
        found.append(plan)
    return found


def random_models(rng: np.random.Generator, n: int) -> list[Model]:
    """Dense models, mixtures, hybrids and frozen ones of any size."""
    return [
        jittered(float64(EDGE_MODELS[i]), rng, 0.0).replace(
            n_layers=8.0 * rng.integers(1, 12),
            d_model=512.0 * rng.integers(1, 20),
            seq_len=2.0 ** rng.integers(9, 15),
        )
        for i in rng.integers(0, len(EDGE_MODELS), n)
    ]


def random_questions(seed: int, n: int, levels: int) -> tuple:
    """A batch of n (system, model, plan, coefficients)."""
    rng = np.random.default_rng(seed)
    coefficients = [jittered(float64(COEFFICIENTS), rng, 0.2) for _ in range(n)]
    shares = [name for name, spec in SPECS.items() if spec.bound == "share"]
    coefficients = [
        c.replace(**{name: np.minimum(getattr(c, name), 1.0) for name in shares})
        for c in coefficients
    ]
    systems, models, plans = (
        random_systems(rng, n, levels),
        random_models(rng, n),
        random_plans(rng, n),
    )
    # a head cannot displace more layers than the fullest stage holds
    plans = [
        p.having(
            head_displaces=np.minimum(
                p.layout.head_displaces, m.n_layers / p.layout.pp + p.layout.stage_excess
            )
        )
        for m, p in zip(models, plans, strict=True)
    ]
    return tuple(map(batch, (systems, models, plans, coefficients)))
