"""What is trained: the shape of a transformer and its sequence length."""

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


class Model(struct.PyTreeNode, kw_only=True):
    """Shape of a decoder transformer. Shares are of the layers, between 0 and 1.

    Attributes:
      n_layers: L, layers [count].
      d_model: h, width of what goes from layer to layer [count].
      d_ff: f, width of one MLP, or of one expert [count].
      gated_mlp: 1 = an MLP has three matrices (SwiGLU, GeGLU); 0 = two.
      n_heads: a, heads of queries [count].
      n_kv_heads: g, heads of keys and values [count]; a for MHA, fewer for GQA, 1 for MQA.
      head_dim: e, width of a head [count].
      vocab: V, tokens of the vocabulary [count].
      seq_len: s, length of a sequence [token].
      tied_embeddings: 1 = input and output embeddings are one matrix; 0 = two.
      causal: 1 = a token sees those before it; 0 = all.
      n_experts: experts of a layer [count]; 1 = dense.
      top_k: experts that a token visits [count].
      n_shared_experts: experts that every token visits besides [count]; 0 = none.
      imbalance: load of the busiest expert over the mean, from 1 on [1]; 1 = even.
      expert_biases: 1 = the products of experts have biases (gpt-oss); 0 = none.
      expert_rank: width of the latents that routed experts read and return [count]; 0 = d_model.
      n_dense_layers: leading layers of a mixture that have no experts [count]; 0 = none.
      d_ff_dense: width of the MLP of those layers [count]; 0 = none.
      kv_rank: width of the latents of keys and values (MLA) [count]; 0 = projected directly.
      q_rank: width of the latents of queries (MLA) [count]; 0 = projected directly.
      rope_dim: width of the rotary key that all heads share in MLA [count]; 0 = none.
      qk_extra: what heads of queries and keys are wider than `head_dim` [count]; 0 = as wide.
      window: keys that a query of a windowed layer sees [token].
      windowed: share of the attention layers that have a window [1]; 0 = none.
      attention_share: share of the layers that hold attention [1]; 1 = all.
      mlp_share: share of the layers that hold an MLP, or experts [1]; 1 = all.
      mamba_share: share of the layers that hold a Mamba-2 mixer [1]; 0 = none.
      mamba_inner: inner width of a Mamba-2 mixer [count]; 0 = none.
      mamba_heads: heads of a Mamba-2 mixer [count]; 0 = none.
      mamba_groups: groups of a Mamba-2 mixer [count]; 0 = none.
      mamba_state: size of the state of a Mamba-2 mixer [count]; 0 = none.
      n_mtp: heads that predict further tokens, each a layer and logits more [count]; 0 = none.
      trainable: 1 = weights are trained; 0 = frozen (LoRA), without their gradients and optimizer.
      first_adapters: low-rank adapters beside products that read h, of a layer [count]; 0 = none.
      first_adapted: width of what those products return, all together [count]; 0 = none.
      last_adapters: low-rank adapters beside products that return h, of a layer [count]; 0 = none.
      last_adapted: width of what those products read, all together [count]; 0 = none.
      adapter_dropout: 1 = dropout before or behind adapters; 0 = none.
    """

    CHOICES = frozenset("gated_mlp tied_embeddings causal trainable adapter_dropout".split())
    """Fields that are choices, not sizes: no derivative is asked for."""

    OF_EXPERTS = frozenset(
        (
            "n_experts top_k n_shared_experts imbalance n_dense_layers d_ff_dense "
            "expert_biases expert_rank"
        ).split()
    )
    """Fields that say nothing of a model without experts."""

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


def check_counts(model: Model) -> None:
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
