"""The attention core: scores written to memory, or one block of queries at a time; keys and values
of the whole sequence are gathered."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from calibration.collect.workload import mesh
from calibration.collect.workload.spec import WorkloadSpec

BLOCK = 128
"""Queries whose scores exist at once where no fused kernel is at hand [token]."""


def attend(
    spec: WorkloadSpec, q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array
) -> jax.Array:
    """Softmax of causal scores times values.

    Args:
      q: `[b, t, a, e]`. k, v: `[b, t, g, e]`, of this rank's tokens. positions: of these tokens in
        the sequence, `[t]`.
    Returns:
      `[b, t, a, e]`
    """
    both = mesh.gather_sequence(spec, jnp.concatenate([k, v], -1)) if spec.context > 1 else None
    if both is not None:
        k, v = jnp.split(both, 2, -1)
    with jax.named_scope("core"):
        return _core(spec, q, k, v, positions)


def _core(
    spec: WorkloadSpec, q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array
) -> jax.Array:
    if spec.attention == "none":
        return written(q, k, v, positions)
    if jax.default_backend() == "gpu" and q.dtype == jnp.bfloat16 and spec.context == 1:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    return blocked(spec, q, k, v, positions)


def written(q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array) -> jax.Array:
    """All scores at once, softmax in fp32, kept as probabilities `[b, g, a/g, t, s]` in fp32."""
    (b, t, a, e), g = q.shape, k.shape[2]
    scores = (
        jnp.einsum(
            "btgre,bsge->bgrts",
            q.reshape(b, t, g, a // g, e),
            k,
            preferred_element_type=jnp.float32,
        )
        * e**-0.5
    )
    causal = positions[:, None] >= jnp.arange(k.shape[1], dtype=jnp.int32)[None, :]
    shares = softmax(jnp.where(causal[None, None, None], scores, jnp.float32(-1e30)))
    return jnp.einsum("bgrts,bsge->btgre", shares.astype(q.dtype), v).reshape(b, t, a, e)


@jax.custom_jvp
def softmax(x: jax.Array) -> jax.Array:
    """Softmax over the last axis, whose slope reads the result that has a name, so that keeping it
    spares the products before it."""
    return jax.nn.softmax(x, axis=-1)


@softmax.defjvp
def _softmax_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    y, t = checkpoint_name(jax.nn.softmax(primals[0], axis=-1), "scores"), tangents[0]
    return y, y * (t - (y * t).sum(-1, keepdims=True))


def blocked(
    spec: WorkloadSpec, q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array
) -> jax.Array:
    """`written` for `BLOCK` queries at a time, done again in the backward pass; all of the causal
    square, not its half."""
    b, t, a, e = q.shape
    block = max(n for n in range(1, min(BLOCK, t) + 1) if t % n == 0)
    queries = jnp.moveaxis(q.reshape(b, t // block, block, a, e), 1, 0)

    def one(_: None, part: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        return None, written(part[0], k, v, part[1])

    again = jax.checkpoint(
        one, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=spec.unroll
    )
    _, mixed = lax.scan(
        again, None, (queries, positions.reshape(t // block, block)), unroll=spec.unroll
    )
    return jnp.moveaxis(mixed, 0, 1).reshape(b, t, a, e)
