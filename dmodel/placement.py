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
      tp, cp, ep, etp, pp: the plan's groups. shard: ranks that share one copy of the optimizer state or the weights (cp inside).
      replica: copies of it that reduce their gradients. data: all ranks that reduce gradients, `shard · replica`.
      expert_shard, expert_data: the same among the ranks that hold the same experts. all: devices of the run.
    """

    tp: jax.Array
    cp: jax.Array
    ep: jax.Array
    etp: jax.Array
    pp: jax.Array
    shard: jax.Array
    replica: jax.Array
    data: jax.Array
    expert_shard: jax.Array
    expert_data: jax.Array
    all: jax.Array


def _log_sizes(plan: Plan) -> dict[str, jax.Array]:
    """Natural logarithm of each degree; `shard` and `replica` make up dp.

    ZeRO shards over the inner part of the data-parallel ranks: HSDP keeps its copies inside the fast network.
    """
    # a degree a hair below 1, where slopes are taken from both sides, joins nobody: factors stay ≥ 1 and times ≥ 0
    logs = {name: jnp.maximum(jnp.log(jnp.asarray(getattr(plan, name))), 0.0) for name in ("tp", "cp", "ep", "etp", "pp", "dp")}
    dp = logs.pop("dp")
    shard = jnp.clip(jnp.log(jnp.asarray(plan.shard)), 0.0, dp)
    return logs | {"shard": shard, "replica": dp - shard}


def _expert_bounds(logs: dict[str, jax.Array], order: tuple[str, ...]) -> list[jax.Array]:
    """Ends of etp, ep and the shards and copies of experts, on the axis of the ranks of tp, cp and dp; etp, shards, copies, ep when `order`
    has dp before ep."""
    tp, whole = logs["tp"], logs["tp"] + logs["cp"] + logs["shard"] + logs["replica"]
    etp = jnp.minimum(logs["etp"], tp)
    ep = jnp.minimum(logs["ep"], whole - etp)
    shard = jnp.clip(whole - logs["replica"] - etp - ep, 0.0, whole - etp - ep)
    near = order.index("ep") < order.index("dp")
    steps = [etp, ep, shard] if near else [etp, shard, whole - etp - ep - shard]
    return [*accumulate(steps, initial=jnp.zeros_like(tp)), whole]


def _levels(size: Array) -> tuple[jax.Array, jax.Array]:
    """Where each level begins and ends on the logarithmic device axis, `[K, 1, *batch]` each."""
    upper = jnp.cumsum(jnp.log(size), 0)
    lower = jnp.concatenate([jnp.zeros_like(upper[:1]), upper[:-1]], 0)
    return lower[:, None], upper[:, None]


def place(plan: Plan, size: Array) -> Groups:
    """Members of each group at each level, in the plan's placement order.

    Args:
      plan: degrees and placement.
      size: members of one domain of each level, `[K, *batch]`; the last one infinite.

    Returns:
      Factors ≥ 1; a group that a level does not join has factor 1 there.
    """
    logs = _log_sizes(plan)
    order = [part for name in plan.placement if name != "ep" for part in (("shard", "replica") if name == "dp" else (name,))]
    ends = list(accumulate((logs[name] for name in order), initial=jnp.zeros_like(logs["tp"])))
    lower, upper = _levels(size)
    bounds, experts = stack(*ends)[None], stack(*_expert_bounds(logs, plan.placement))[None]
    # one clip for each bound: where a group ends exactly on a level's edge, the derivative is the mean of its two sides
    inside = jnp.clip(bounds, lower, upper)
    if order[-1] == "pp":
        beside = jnp.clip(experts, lower, upper)
    else:
        # experts lie on the ranks of a pipeline stage, which other stages interrupt
        start = ends[order.index("pp")][None, None]
        before, after = jnp.minimum(experts, start), jnp.maximum(experts, start) + logs["pp"][None, None]
        beside = jnp.clip(before, lower, upper) + jnp.clip(after, lower, upper)
    dense, spread = (jnp.exp(x[:, 1:] - x[:, :-1]) for x in (inside, beside))
    f = dict(zip(order, jnp.unstack(dense, axis=1), strict=True))
    near = plan.placement.index("ep") < plan.placement.index("dp")
    etp, *rest = jnp.unstack(spread, axis=1)
    ep, expert_shard, copies = rest if near else (rest[2], rest[0], rest[1])
    shard = f["cp"] * f.pop("shard")
    return Groups(
        shard=shard,
        data=shard * f["replica"],
        etp=etp,
        ep=ep,
        expert_shard=expert_shard,
        expert_data=expert_shard * copies,
        all=jnp.exp(inside[:, -1] - lower[:, 0]),
        **f,
    )
