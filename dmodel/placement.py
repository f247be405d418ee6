"""Where the groups of a plan sit on the network: how many members of each group every level joins.

A group of degree n whose members are `stride` devices apart spans the interval [log stride, log stride + log n] of the
logarithmic device axis; level k of the network spans [log S_{k-1}, log S_k] with S_k the devices of its domain. The factor
of the group at the level is the exponential of the overlap of the two: exact where sizes divide, a smooth power in between.
"""

from __future__ import annotations

from itertools import accumulate

import jax
import jax.numpy as jnp
from flax import struct

from dmodel.plan import Plan
from dmodel.types import Array, stack


class Groups(struct.PyTreeNode, kw_only=True):
    """Members of each group that every level joins, `[K, *batch]` each; the product over levels is the group's size.

    Attributes:
      tp, cp, ep, pp: the plan's groups. shard: ranks that share one copy of the optimizer state or the weights (cp inside).
      replica: copies of it that reduce their gradients. data: all ranks that reduce gradients, `shard · replica`.
      expert_shard, expert_data: the same beside ep, whose ranks hold different experts.
    """

    tp: jax.Array
    cp: jax.Array
    ep: jax.Array
    pp: jax.Array
    shard: jax.Array
    replica: jax.Array
    data: jax.Array
    expert_shard: jax.Array
    expert_data: jax.Array


def _log_sizes(plan: Plan) -> dict[str, jax.Array]:
    """Natural logarithm of each placed degree; `shard` and `replica` make up what is left of dp beside ep.

    ZeRO shards over the inner part of the data-parallel ranks: HSDP keeps its copies inside the fast network.
    """
    # a degree a hair below 1, where slopes are taken from both sides, joins nobody: factors stay ≥ 1 and times ≥ 0
    logs = {name: jnp.maximum(jnp.log(jnp.asarray(getattr(plan, name))), 0.0) for name in ("tp", "cp", "ep", "pp", "dp")}
    beside = jnp.maximum(logs.pop("dp") - logs["ep"], 0.0)
    shard = jnp.clip(jnp.log(jnp.asarray(plan.shard)) - logs["ep"], 0.0, beside)
    return logs | {"shard": shard, "replica": beside - shard}


def _factors(bounds: jax.Array, size: Array) -> jax.Array:
    """Factors `[K, group, *batch]` of the groups between bounds `[group + 1, *batch]` on levels of `size` members `[K, *batch]`."""
    upper = jnp.cumsum(jnp.log(size), 0)
    lower = jnp.concatenate([jnp.zeros_like(upper[:1]), upper[:-1]], 0)
    # one clip for each bound: where a group ends exactly on a level's edge, the derivative is the mean of its two sides
    inside = jnp.clip(bounds[None], lower[:, None], upper[:, None])
    return jnp.exp(inside[:, 1:] - inside[:, :-1])


def place(plan: Plan, size: Array) -> Groups:
    """Members of each group at each level, in the plan's placement order.

    Args:
      plan: degrees and placement.
      size: members of one domain of each level, `[K, *batch]`; the last one infinite.

    Returns:
      Factors ≥ 1; a group that a level does not join has factor 1 there.
    """
    logs = _log_sizes(plan)
    order = [part for name in plan.placement for part in (("shard", "replica") if name == "dp" else (name,))]
    bounds = accumulate((logs[name] for name in order), initial=jnp.zeros_like(logs["tp"]))
    factors = dict(zip(order, jnp.unstack(_factors(stack(*bounds), size), axis=1), strict=True))
    beside = factors["cp"] * factors.pop("shard")
    shard, replica = beside * factors["ep"], factors["replica"]
    return Groups(shard=shard, data=shard * replica, expert_shard=beside, expert_data=beside * replica, **factors)
