"""What has to be done, whatever the hardware: parameters, products, FLOPs, kernels, what a device
holds and sends.

Symbols: L layers, h `d_model`, f `d_ff`, a heads, g KV heads, e head size, V vocabulary, s
sequence, b micro-batch. Counts are per device, per layer and per micro-batch unless a name says
otherwise.
"""

from __future__ import annotations

import jax
from flax import struct

from dmodel.once import once
from dmodel.records import Model, Plan
from dmodel.smooth import ramp
from dmodel.types import Array, larger, smaller, stack

WORD = 2.0
"""Bytes of one activation element (bf16 or fp16) in memory and on the wire."""

CONVENTIONS = ("6N", "6N+12Lhs", "6N+6Lhs")
"""Published conventions of "model FLOPs" per token: without attention, with full attention, with
its causal half."""


class Mean(struct.PyTreeNode, kw_only=True):
    """The mean layer of a model whose layers differ: what one layer of L holds on average.

    Attributes:
      routed: share of the layers with routed experts. reach: width of what these read and return, h
        or their latents. latents: 1 when they are latents. width: of the MLP that every token
        passes [count]: of a dense layer, or of all shared experts together. through: share of the
        layers that have one. up: 1 when queries, or keys and values, come from a latent.
      down_columns: columns of the first projections that tensor parallelism does not split
      (latents). columns: of those that it does. up_columns, up_inner: columns of the projections
      from the latents, and their mean inner size. out: inner size of the output
        projection. core: sum of the head sizes of scores and values over the heads. mixer: 1 for
          every attention or Mamba mixer.
      layers: mean layers that there are: L, and for each head of further tokens as many as hold an
        MLP, as it does [count].
    """

    routed: Array
    reach: Array
    latents: Array
    width: Array
    through: Array
    up: Array
    down_columns: Array
    columns: Array
    up_columns: Array
    up_inner: Array
    out: Array
    core: Array
    mixer: Array
    layers: Array


@once
def mean_layer(model: Model) -> Mean:
    """Average the layers: dense ones and experts, attention and Mamba-2 mixers. FLOPs and
    parameters are exact, sizes of products means.

    Attention: `h → (a + g)(e + x) + g e` with x `qk_extra`; from latents (DeepSeek-AI 2024, MLA) `h
    → r_q + r_kv + d_rope`, then
    `r_q → a (e + x)` and `r_kv → a (2 e + x − d_rope)`. Mamba-2 (Dao & Gu 2024): `h → 2 i + 2 G N +
    n` and `i → h`.
    """
    h_qk, e, a, g = model.head_dim + model.qk_extra, model.head_dim, model.n_heads, model.n_kv_heads
    q_latent, latent = ramp(model.q_rank), ramp(model.kv_rank)
    shared_keys = latent * (model.kv_rank + model.rope_dim)
    queries, pairs = q_latent * a * h_qk, latent * a * (h_qk + e - model.rope_dim)
    up = ramp(model.q_rank + model.kv_rank)
    mamba = model.mamba_share * (
        2.0 * (model.mamba_inner + model.mamba_groups * model.mamba_state) + model.mamba_heads
    )
    sparse = ramp(model.n_experts - 1.0)
    dense = model.n_dense_layers / model.n_layers
    shared, latents = model.n_shared_experts, ramp(model.expert_rank)
    return Mean(
        routed=model.mlp_share * sparse * (1.0 - dense),
        reach=model.d_model + latents * (model.expert_rank - model.d_model),
        latents=latents,
        width=model.mlp_share
        * (
            model.d_ff
            + sparse * (dense * model.d_ff_dense + ((1.0 - dense) * shared - 1.0) * model.d_ff)
        ),
        through=model.mlp_share * (1.0 - sparse * (1.0 - dense) * (1.0 - ramp(shared))),
        up=up,
        down_columns=model.attention_share * (q_latent * model.q_rank + shared_keys),
        columns=model.attention_share
        * ((1.0 - q_latent) * a * h_qk + (1.0 - latent) * g * (h_qk + e))
        + mamba,
        up_columns=model.attention_share * (queries + pairs),
        up_inner=(queries * model.q_rank + pairs * model.kv_rank) / (queries + pairs + (1.0 - up)),
        out=model.attention_share * a * e + model.mamba_share * model.mamba_inner,
        core=model.attention_share * a * (h_qk + e),
        mixer=model.attention_share + model.mamba_share,
        layers=model.n_layers
        + model.n_mtp / larger(model.mlp_share, larger(model.attention_share, model.mamba_share)),
    )


class Parameters(struct.PyTreeNode, kw_only=True):
    """Parameters of the whole model [count]: of the mean layer's mixer (norms and router with it),
    of the MLP that every token passes, of the routed experts, of those that a token visits, of the
    input embedding, of the output head, and the mean layers there are. whole: of the mixer, what
    every rank of tp holds: what latents come from, and the way to experts' and back."""

    attention: Array
    whole: Array
    mlp: Array
    routed: Array
    active_routed: Array
    embedding: Array
    head: Array
    layers: Array


@once
def parameter_groups(model: Model) -> Parameters:
    """Count parameters by the place where they live.

    `attention = 2 h (a + g) e + 2 h` (norms) `+ h · experts` (router, if there are several), `mlp =
    (2 + gated) h f`, dense or of the shared experts, `routed = (2 + gated) r f · experts` with r =
    h or the width of their latents (whose matrices are `2 h r`), `embedding = V h`, `head = V h`
    unless tied, `+ h` (last norm); latents and Mamba-2 mixers by `mean_layer`, the latter with a
    convolution of 4 taps. Each head of further tokens is a layer more (`Mean.layers`) and a
    projection `2 h → h`. Biases and learned positions are left out.
    """
    h, mean = model.d_model, mean_layer(model)
    mixer = h * (mean.down_columns + mean.columns + mean.out) + mean.up_columns * mean.up_inner
    latents = model.attention_share * (model.q_rank + model.kv_rank)
    inner = model.mamba_inner
    filters = model.mamba_share * (
        4.0 * (inner + 2.0 * model.mamba_groups * model.mamba_state)
        + inner
        + 3.0 * model.mamba_heads
    )
    norms = h * (mean.mixer + model.mlp_share)
    matrices = 2.0 + model.gated_mlp
    expert = matrices * mean.reach * model.d_ff * mean.routed
    between = 2.0 * h * mean.latents * mean.reach * mean.routed
    return Parameters(
        attention=mixer + latents + filters + norms + h * model.n_experts * mean.routed + between,
        whole=h * mean.down_columns + between,
        mlp=matrices * h * mean.width,
        routed=expert * model.n_experts,
        active_routed=expert * model.top_k,
        embedding=model.vocab * h,
        head=model.vocab * h * (1.0 - model.tied_embeddings) + h + 2.0 * h * h * model.n_mtp,
        layers=mean.layers,
    )


def parameters(model: Model) -> Array:
    """Total parameters N [count], all experts counted.

    >>> from dmodel import catalog
    >>> f"{parameters(catalog.transformer('llama-3-70b')):.4g}"
    '7.055e+10'
    """
    n = parameter_groups(model)
    return n.layers * (n.attention + n.mlp + n.routed) + n.embedding + n.head


def active_parameters(model: Model) -> Array:
    """Parameters that one token uses [count]: equal to `parameters` for a dense model."""
    n = parameter_groups(model)
    return n.layers * (n.attention + n.mlp + n.active_routed) + n.embedding + n.head


def model_flops_per_token(model: Model, convention: str = "6N+12Lhs") -> Array:
    """Model FLOPs of one trained token, forward and backward, without recomputation [FLOP].

    `6 N + c L (a e) s` with N the active parameters (embedding included) and c = 0, 12 or 6 by
    convention. Narayanan et al. 2021 count
    full attention, c = 12; flash kernels on causal masks do half of it, c = 6. Windows are left out
    of the convention; heads whose queries are wider than values count with the mean of both.

    Raises:
      ValueError: the convention is none of `CONVENTIONS`.
    """
    if convention not in CONVENTIONS:
        raise ValueError(
            f"convention: expected one of {', '.join(CONVENTIONS)}; got {convention!r}"
        )
    c = {"6N": 0.0, "6N+12Lhs": 12.0, "6N+6Lhs": 6.0}[convention]
    mean, again = mean_layer(model), model.n_mtp * model.vocab * model.d_model
    return (
        6.0 * (active_parameters(model) + again) + 0.5 * c * mean.layers * mean.core * model.seq_len
    )


class Matmuls(struct.PyTreeNode, kw_only=True):
    """Forward matrix products of one layer, and last the head: QKV (or what latents and states come
    from), from latents, projection, MLP up (and gate), down, experts up (and gate), down, to
    experts' latents (and back), router, logits; `[10, *batch]`.

    Attributes:
      rows, columns, inner: M, N and K of one product [count]. copies: how many of that size run in
      the mean layer (local experts) [count]. grouped: 1 where several run as one grouped kernel.
    """

    rows: jax.Array
    columns: jax.Array
    inner: jax.Array
    copies: jax.Array
    grouped: Array = 0.0

    @property
    def flops(self) -> jax.Array:
        """2 M N K · copies [FLOP]."""
        return 2.0 * self.rows * self.columns * self.inner * self.copies

    @property
    def elements(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Elements of the left operand (M K), the right one (K N) and the result (M N), all copies
        [count]."""
        inner = self.inner * self.copies
        return self.rows * inner, self.columns * inner, self.rows * self.columns * self.copies


@once
def tokens(model: Model, plan: Plan) -> Array:
    """Tokens of one micro-batch on one device: b s / cp."""
    return plan.layout.micro_batch * model.seq_len / plan.layout.cp


@once
def visits(model: Model, plan: Plan) -> Array:
    """Tokens that a device sends to experts, or computes for them, per micro-batch [count]: `t
    top_k imbalance etp / tp`.

    The ranks of tp share the tokens out among themselves (Megatron-LM asks for sequence parallelism
    beside experts), and those of etp work on the same ones.
    """
    return tokens(model, plan) * model.top_k * model.imbalance * plan.layout.etp / plan.layout.tp


def routing_bytes(model: Model, plan: Plan) -> Array:
    """Map of which experts the tokens of all ranks of ep visit, per micro-batch [byte]: `route t E
    ep / tp` (HybridEP: a byte for each)."""
    return (
        plan.software.route_bytes
        * tokens(model, plan)
        * model.n_experts
        * plan.layout.ep
        / plan.layout.tp
    )


def matmuls(model: Model, plan: Plan) -> Matmuls:
    """Forward matrix products of the mean layer and the head, per device and micro-batch, tensor
    parallel.

    `experts / ep` experts are local, of width `f / etp`; each sees `visits · ep / experts` tokens.
    Every rank of tp computes the latents of attention; of those of experts, and of the router, its
    share of the tokens (`visits`). A head of further tokens reads `2 h` into h before its logits:
    columns of the mean head's `(V + 2 h n / (1 + n)) / tp`.

    Limits: ranks of tp beyond the KV heads split a head's columns, and what Megatron-Core then
    gathers of it is left out.
    """
    layout = plan.layout
    t, h, tp = tokens(model, plan), model.d_model, layout.tp
    mean, local = mean_layer(model), model.n_experts / layout.ep
    routed, seen = local * mean.routed, visits(model, plan) / local
    always, f = mean.width / tp, model.d_ff / layout.etp
    r, up = mean.reach, 1.0 + model.gated_mlp
    through, grouped = ramp(mean.width), ramp(local - 1.0)
    logits = model.vocab + 2.0 * h * model.n_mtp / (1.0 + model.n_mtp)
    first, latents = mean.down_columns + mean.columns / tp, 2.0 * mean.latents * mean.routed
    logits = logits / tp
    return Matmuls(
        rows=stack(t, t, t, t, t, seen, seen, t / tp, t / tp, t),
        columns=stack(
            *(first, mean.up_columns / tp, h, up * always, h),
            *(up * f, r, r, model.n_experts, logits),
        ),
        inner=stack(h, mean.up_inner, mean.out / tp, h, always, r, f, h, h, h),
        copies=stack(
            *(1.0, mean.up, 1.0, through, through),
            *(routed, routed, latents, mean.routed, 1.0 + model.n_mtp),
        ),
        grouped=stack(*[0.0] * 5, grouped, grouped, *[0.0] * 3),
    )


CHUNK = 128.0
"""Tokens of one chunk of a Mamba-2 scan [token] (Nemotron-H configurations)."""


def attention_flops(model: Model, plan: Plan) -> Array:
    """FLOPs of the forward core of the mean layer: of attention, Q Kᵀ and P V, `2 b (s/cp) s a (2 e
    + x) / tp`, and of a Mamba-2 scan.

    Flash skips the causal half, and what a window w hides: of s keys the share `ω − ω²/2` is left,
    ω = w/s. Where ranks of cp hold the sequence in order, the last one decides: `ω − cp max(ω − 1 +
    1/cp, 0)² / 2`, the same for cp 1. Mamba-2 in chunks of c tokens (Dao & Gu 2024): `2 c (G N + i)
    + 4 i N` per token.
    """
    s, t = model.seq_len, tokens(model, plan)
    # a causal window as wide as the sequence is the causal half
    window = smaller(model.window / s, 1.0)
    full, part = (_seen(share, model, plan) for share in (1.0, window))
    seen = 1.0 - plan.software.flash * (1.0 - full + model.windowed * (full - part))
    scores = 2.0 * s * mean_layer(model).core * seen
    bc, inner = model.mamba_groups * model.mamba_state, model.mamba_inner
    scan = model.mamba_share * (2.0 * CHUNK * (bc + inner) + 4.0 * inner * model.mamba_state)
    return t * (scores + scan) / plan.layout.tp


def exponentials(model: Model, plan: Plan) -> Array:
    """Exponentials of one pass of the fused core of the mean layer, one for each score that is
    computed [count]: `FLOPs / 4 (e + x/2)`; 0 where attention is not fused and exponentiates in
    kernels of its own, bound by memory. A Mamba-2 scan counts as attention of its
    FLOPs."""
    return (
        plan.software.flash
        * attention_flops(model, plan)
        / (4.0 * (model.head_dim + 0.5 * model.qk_extra))
    )


def _seen(window: Array, model: Model, plan: Plan) -> Array:
    """Share of the keys that flash attention goes through, on the rank that decides [1]; `window`:
    share of the sequence."""
    last = plan.layout.cp * larger(window - 1.0 + 1.0 / plan.layout.cp, 0.0) ** 2
    skipped = plan.software.cp_balanced * window**2 + (1.0 - plan.software.cp_balanced) * last
    return window - 0.5 * model.causal * skipped


def stage_layers(model: Model, plan: Plan) -> Array:
    """Layers of the fullest stage [count]: `(L + heads of further tokens) / pp`, and `stage_excess`
    where stages are not alike."""
    return mean_layer(model).layers / plan.layout.pp + plan.layout.stage_excess


class Residents(struct.PyTreeNode, kw_only=True):
    """Parameters of one device before ZeRO shards them [count]: `layers` of its pipeline stage
    without the routed experts, `experts`, the routed ones (ranks of ep hold different ones), and
    `ends`, the embedding and head of the fullest stage."""

    layers: Array
    experts: Array
    ends: Array

    @property
    def dense(self) -> Array:
        """layers + ends: what all ranks of dp hold alike."""
        return self.layers + self.ends

    @property
    def total(self) -> Array:
        """dense + experts."""
        return self.dense + self.experts


def residents(model: Model, plan: Plan) -> Residents:
    """Parameters that a device of the mean stage holds, and the ends of the fullest: `L/pp` layers
    over tp (but for what latents come from, which every rank holds), routed experts over ep and etp
    instead (shared ones are on every rank of ep); the embedding on the first stage and the head on
    the last, both when there is one stage."""
    layout = plan.layout
    n = parameter_groups(model)
    layers = n.layers / layout.pp
    both = ramp(2.0 - layout.pp)
    return Residents(
        layers=layers * (n.whole + (n.attention - n.whole + n.mlp) / layout.tp),
        experts=layers * n.routed / (layout.etp * layout.ep),
        ends=(n.embedding + n.head * both) / layout.tp,
    )


def activation_bytes(model: Model, plan: Plan) -> Array:
    """Bytes of one activation tensor `t × h` on the wire: the message of tensor parallelism and of
    the pipeline."""
    return WORD * tokens(model, plan) * model.d_model


def split_ranks(plan: Plan) -> Array:
    """Ranks that share what is h wide between products [count]: tp with sequence parallelism, else
    1."""
    return 1.0 + plan.layout.sp * (plan.layout.tp - 1.0)
