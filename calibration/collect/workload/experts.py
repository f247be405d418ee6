"""Routing with capacity: which place of which expert each visit gets, and the way there and back by
indices (no one-hot products).

Tokens share out the places in groups of one sequence, in order; so what is dropped does not depend
on the mesh. There is no balancing
loss: it would be a mean over ranks, and what is measured is time.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from calibration.collect.workload.spec import WorkloadSpec


class Routes(NamedTuple):
    """place: of each visit among all experts' places, or one past the last when dropped, `[visit]`
    int32. weight: `[visit]`, fp32."""

    place: jax.Array
    weight: jax.Array


def dispatch(spec: WorkloadSpec, x: jax.Array, router: jax.Array) -> tuple[jax.Array, Routes]:
    """Send tokens to the places of experts.

    Args:
      x: tokens `[b, t, h]`. router: `[h, experts]`.
    Returns:
      `[experts, places, h]`, zeros where a place is empty, and the routes for `combine`.
    """
    s = spec
    tokens = x.reshape(-1, s.d_model)
    logits = jnp.einsum("nh,hx->nx", tokens, router, preferred_element_type=jnp.float32)
    top, chosen = jax.lax.top_k(logits, s.top_k)
    routes = Routes(_places(s, chosen.astype(jnp.int32)), jax.nn.softmax(top, -1).reshape(-1))
    visits = jnp.repeat(tokens, s.top_k, axis=0)
    places = s.n_experts * _per_expert(s, len(tokens))
    sent = jnp.zeros((places, s.d_model), x.dtype).at[routes.place].add(visits, mode="drop")
    return sent.reshape(s.n_experts, -1, s.d_model), routes


def _per_expert(spec: WorkloadSpec, tokens: int) -> int:
    """Places of one expert for all groups of this device."""
    return tokens // spec.expert_group * spec.capacity


def _places(spec: WorkloadSpec, chosen: jax.Array) -> jax.Array:
    """Place of each visit, `[token, k]` experts → `[token · k]`: first come, first served inside a
    group."""
    s, n = spec, spec.n_experts
    groups = chosen.reshape(-1, s.expert_group * s.top_k)
    asked = jax.nn.one_hot(groups, n, dtype=jnp.int32)
    rank = ((jnp.cumsum(asked, 1, dtype=jnp.int32) - 1) * asked).sum(-1, dtype=jnp.int32)
    group = jnp.arange(len(groups), dtype=jnp.int32)[:, None]
    place = groups * _per_expert(s, chosen.shape[0]) + group * s.capacity + rank
    return jnp.where(rank < s.capacity, place, n * _per_expert(s, chosen.shape[0])).reshape(-1)


def combine(back: jax.Array, routes: Routes, x: jax.Array) -> jax.Array:
    """Bring the experts' answers `[experts, places, h]` home and weigh them: `[b, t, h]`; dropped
    visits count 0."""
    h = x.shape[-1]
    visits = back.reshape(-1, h).at[routes.place].get(mode="fill", fill_value=0)
    weighed = visits * routes.weight.astype(x.dtype)[:, None]
    return weighed.reshape(*x.shape[:2], -1, h).sum(2)
