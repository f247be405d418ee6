"""What is trained: the shape of a transformer and its sequence length. Numbers only; names live in
the catalog."""

from __future__ import annotations

from flax import struct

from dmodel.types import Array, InputError

COUNTED = (
    "n_layers",
    "d_model",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "vocab",
    "seq_len",
    "n_experts",
    "top_k",
)
"""What every model has one of at least: one without experts has one, its MLP."""


class Transformer(struct.PyTreeNode, kw_only=True):
    """Shape of a decoder transformer (all counts; 0/1 where a choice is meant).

    Attributes:
      n_layers: L. d_model: h. d_ff: f, the width of one MLP (of one expert when there are several).
      gated_mlp: 1 = three matrices (SwiGLU, GeGLU), 0 = two.
      n_heads: a. n_kv_heads: g (a for MHA, fewer for GQA, 1 for MQA). head_dim: e.
      vocab: V. tied_embeddings: 1 when input and output embeddings are one matrix.
      seq_len: s [token].
      causal: 1 for causal attention.
      n_experts: experts of one layer (1 = dense). top_k: experts that each token visits.
      n_shared_experts: experts that every token visits besides. imbalance: load of the busiest
        expert over the mean (≥ 1).
      expert_biases: 1 = the products of experts have biases (gpt-oss).
      expert_rank: width of the latents that routed experts read and return (0 = d_model); a layer
      has a product into them and one back. n_dense_layers: leading layers of a mixture without
      experts. d_ff_dense: width of their MLP.
      kv_rank, q_rank: widths of the latents of keys and values, and of queries, in multi-head
      latent attention (0 = projected directly). rope_dim: width of the rotary key that all heads
      share in latent attention. qk_extra: what heads of queries and keys are wider than
        those of values, `head_dim`.
      window: keys that a query of a windowed layer sees [token]. windowed: share of the attention
      layers that are windowed. attention_share, mlp_share, mamba_share: share of the layers that
      hold attention, an MLP (or experts), and a Mamba-2 mixer. mamba_inner, mamba_heads,
      mamba_groups, mamba_state: inner width, heads, groups and state size of a Mamba-2 mixer.
      n_mtp: heads that predict further tokens, each a layer of its own and the logits once more.
      trainable: 1 when the weights are trained; 0 for a frozen base (LoRA): no weight gradients, no
        optimizer.
      first_adapters, last_adapters: low-rank adapters (LoRA, Hu et al. 2021) of a layer beside
        products that read h (queries, keys and values, MLP up) and beside those that return it
        (projection, down) [count]. first_adapted, last_adapted: widths of what the former return
        and of what the latter read, of all together [count]. adapter_dropout: 1 when dropout comes
        before or behind them.
    """

    n_layers: Array
    d_model: Array
    d_ff: Array
    gated_mlp: Array
    n_heads: Array
    n_kv_heads: Array
    head_dim: Array
    vocab: Array
    seq_len: Array
    tied_embeddings: Array = 0.0
    causal: Array = 1.0
    n_experts: Array = 1.0
    top_k: Array = 1.0
    n_shared_experts: Array = 0.0
    imbalance: Array = 1.0
    expert_biases: Array = 0.0
    expert_rank: Array = 0.0
    n_dense_layers: Array = 0.0
    d_ff_dense: Array = 0.0
    kv_rank: Array = 0.0
    q_rank: Array = 0.0
    rope_dim: Array = 0.0
    qk_extra: Array = 0.0
    window: Array = 1.0
    windowed: Array = 0.0
    attention_share: Array = 1.0
    mlp_share: Array = 1.0
    mamba_share: Array = 0.0
    mamba_inner: Array = 0.0
    mamba_heads: Array = 0.0
    mamba_groups: Array = 0.0
    mamba_state: Array = 0.0
    n_mtp: Array = 0.0
    trainable: Array = 1.0
    first_adapters: Array = 0.0
    first_adapted: Array = 0.0
    last_adapters: Array = 0.0
    last_adapted: Array = 0.0
    adapter_dropout: Array = 0.0


def check_counts(model: Transformer) -> None:
    """Refuse a model of plain numbers without something that every model has; arrays are taken as
    they are.

    Raises:
      InputError: one of `COUNTED` is below 1, or no number.
    """
    for name in COUNTED:
        value = getattr(model, name)
        if isinstance(value, int | float) and not value >= 1.0:
            hint = (
                " (a model without experts has one, its MLP)"
                if name in ("n_experts", "top_k")
                else ""
            )
            raise InputError(f"model: {name}: expected a number from 1 on; got {value!r}{hint}")
