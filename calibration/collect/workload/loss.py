"""Both ends of the model, split over the vocabulary: embedding, and head with cross-entropy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from calibration.collect.workload import mesh
from calibration.collect.workload.model import Norm, dtype_of
from calibration.collect.workload.spec import WorkloadSpec


def embed(spec: WorkloadSpec, params: Any, tokens: jax.Array) -> jax.Array:
    """Vectors of tokens `[b, t]` → `[b, t, h]`, or this rank's part of the sequence; each rank
    looks up its part of the vocabulary."""
    with jax.named_scope("embed"):
        table = mesh.gather(spec, params["embedding"], dtype_of(spec), tokens)["embedding"]
        if spec.tensor == 1:
            return table[tokens]
        own = tokens - mesh.index(spec, "tensor") * table.shape[0]
        inside = (own >= 0) & (own < table.shape[0])
        found = table[jnp.where(inside, own, 0)]
        return mesh.leave_tensor(
            spec, jnp.where(inside[..., None], found, jnp.zeros((), found.dtype))
        )


def head_loss(spec: WorkloadSpec, params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
    """Sum of the cross-entropies of this rank's tokens, in fp32; the same on all ranks of tensor.

    Args:
      x: `[b, t, h]` from the last layer, or this rank's part of the sequence. labels: `[b, t]`.
    """

    def loss(ends: Any, x: jax.Array) -> jax.Array:
        table = ends["head"] if "head" in ends else ends["embedding"]
        normed: Any = Norm(spec).apply({"params": {"norm": ends["norm"]}}, x)
        x = mesh.enter_tensor(spec, normed)
        logits = checkpoint_name(
            jnp.einsum("bth,vh->btv", x, table, preferred_element_type=jnp.float32), "logits"
        )
        return cross_entropy(spec, logits, labels).sum()

    shards = params["ends"] if not spec.tied else {**params["ends"], **params["embedding"]}
    kept = jax.checkpoint(
        loss, policy=jax.checkpoint_policies.save_only_these_names("logits", "norm")
    )
    with jax.named_scope("head"):
        # gathered once: the backward pass of the head follows at once
        return kept(mesh.gather(spec, shards, dtype_of(spec), x), x)


def cross_entropy(spec: WorkloadSpec, logits: jax.Array, labels: jax.Array) -> jax.Array:
    """`ln Σ_v exp(logit_v) − logit_label` of tokens `[b, t]`, logits `[b, t, V/tensor]`."""
    top = lax.stop_gradient(logits.max(-1))
    if spec.tensor > 1:
        top = lax.pmax(top, "tensor")
    shifted = logits - top[..., None]
    own = labels - mesh.index(spec, "tensor") * logits.shape[-1]
    inside = (own >= 0) & (own < logits.shape[-1])
    picked = jnp.take_along_axis(shifted, jnp.where(inside, own, 0)[..., None], -1)[..., 0]
    label = mesh.total(spec, jnp.where(inside, picked, jnp.zeros((), picked.dtype)), "tensor")
    return jnp.log(mesh.total(spec, jnp.exp(shifted).sum(-1), "tensor")) - label
