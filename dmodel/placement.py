"""Where the groups of a plan sit on the network: how many members of each group every level joins.

A group of degree n whose members are `stride` devices apart spans the interval [log stride, log
stride + log n] of the
logarithmic device axis; level k of the network spans [log S_{k-1}, log S_k] with S_k the devices of
its domain. The factor
of the group at the level is the exponential of the overlap of the two: exact where sizes divide, a
smooth power in between.
"""

from __future__ import annotations

from itertools import accumulate, combinations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from dmodel.records import Layout, Plan
from dmodel.smooth import clip
from dmodel.types import Array, each, stack


class Groups(struct.PyTreeNode, kw_only=True):
    """Members of each group that every level joins, `[K, *batch]` each; the product over levels is
    the group's size.

    Attributes:
      tp, cp, ep, etp, pp: the plan's groups. shard: ranks that share one copy of the optimizer
        state or the weights (cp inside).
      replica: copies of it that reduce their gradients. data: all ranks that reduce gradients,
        `shard · replica`.
      expert_shard, expert_data: the same among the ranks that hold the same experts. all: devices
        of the run.
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


class Ordered(Layout, kw_only=True):
    """A layout whose placement is a number: one program then holds all orders, side by side.

    Attributes:
      tp_cp, tp_dp, tp_pp, cp_dp, cp_pp, dp_pp: 1 where the ranks of the first group are neighbours
        and the second joins them, 0 where it is the other way round. ep_dp: 1 where the ranks that
        share a layer's experts are neighbours. They stand for `placement`.
    """

    tp_cp: Array
    tp_dp: Array
    tp_pp: Array
    cp_dp: Array
    cp_pp: Array
    dp_pp: Array
    ep_dp: Array


PAIRS: tuple[tuple[str, str], ...] = (*combinations(("tp", "cp", "dp", "pp"), 2), ("ep", "dp"))
"""Pairs of groups whose order `Ordered` names."""


def _log_sizes(layout: Layout) -> dict[str, jax.Array]:
    """Natural logarithm of each degree; `shard` and `replica` make up dp.

    ZeRO shards over the inner part of the data-parallel ranks: HSDP keeps its copies inside the
    fast network.
    """
    # a degree a hair below 1, where slopes are taken from both sides, joins nobody: factors stay ≥
    # 1 and times ≥ 0
    logs = {
        name: jnp.maximum(jnp.log(jnp.asarray(getattr(layout, name))), 0.0)
        for name in ("tp", "cp", "ep", "etp", "pp", "dp")
    }
    dp = logs.pop("dp")
    shard = clip(jnp.log(jnp.asarray(layout.shard)), 0.0, dp)
    return logs | {"shard": shard, "replica": dp - shard}


def _expert_bounds(logs: dict[str, jax.Array], order: tuple[str, ...]) -> list[jax.Array]:
    """Ends of etp, ep and the shards and copies of experts, on the axis of the ranks of tp, cp and
    dp; etp, shards, copies, ep when `order` has dp before ep."""
    tp, whole = logs["tp"], logs["tp"] + logs["cp"] + logs["shard"] + logs["replica"]
    etp = jnp.minimum(logs["etp"], tp)
    ep = jnp.minimum(logs["ep"], whole - etp)
    shard = clip(whole - logs["replica"] - etp - ep, 0.0, whole - etp - ep)
    near = order.index("ep") < order.index("dp")
    steps = [etp, ep, shard] if near else [etp, shard, whole - etp - ep - shard]
    return [*accumulate(steps, initial=jnp.zeros_like(tp)), whole]


def _levels(size: Array) -> tuple[jax.Array, jax.Array]:
    """Where each level begins and ends on the logarithmic device axis, `[K, 1, *batch]` each; the
    last one never ends, so that no member of a group is dropped: whether the fabric holds all
    devices is asked where the plan is made (`topology.check_devices`)."""
    upper = jnp.cumsum(jnp.log(size), 0)
    lower = jnp.concatenate([jnp.zeros_like(upper[:1]), upper[:-1]], 0)
    return lower[:, None], jnp.concatenate([upper[:-1], jnp.full_like(upper[:1], jnp.inf)], 0)[
        :, None
    ]


def place(plan: Plan, size: Array) -> Groups:
    """Members of each group at each level, in the plan's placement order.

    Args:
      plan: degrees and placement.
      size: members of one domain of each level, `[K, *batch]`; the last one takes all that is left.

    Returns:
      Factors ≥ 1; a group that a level does not join has factor 1 there.
    """
    layout = plan.layout
    if isinstance(layout, Ordered):
        return _place_ordered(layout, size)
    logs = _log_sizes(layout)
    order = [
        part
        for name in layout.placement
        if name != "ep"
        for part in (("shard", "replica") if name == "dp" else (name,))
    ]
    ends = list(accumulate((logs[name] for name in order), initial=jnp.zeros_like(logs["tp"])))
    lower, upper = _levels(size)
    bounds, experts = stack(*ends)[None], stack(*_expert_bounds(logs, layout.placement))[None]
    # one clip for each bound: where a group ends exactly on a level's edge, the derivative is the
    # mean of its two sides
    inside = clip(bounds, lower, upper)
    if order[-1] == "pp":
        beside = clip(experts, lower, upper)
    else:
        # experts lie on the ranks of a pipeline stage, which other stages interrupt
        start = ends[order.index("pp")][None, None]
        before, after = (
            jnp.minimum(experts, start),
            jnp.maximum(experts, start) + logs["pp"][None, None],
        )
        beside = clip(before, lower, upper) + clip(after, lower, upper)
    dense, spread = (jnp.exp(x[:, 1:] - x[:, :-1]) for x in (inside, beside))
    f = dict(zip(order, jnp.unstack(dense, axis=1), strict=True))
    near = layout.placement.index("ep") < layout.placement.index("dp")
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


def _place_ordered(layout: Ordered, size: Array) -> Groups:
    """`place` where the order is a number: a group starts behind those that lie inside it, `start_x
    = Σ_y (y inside x) log n_y`."""
    logs = _log_sizes(layout)
    length = {
        "tp": logs["tp"],
        "cp": logs["cp"],
        "dp": logs["shard"] + logs["replica"],
        "pp": logs["pp"],
    }
    start = {name: jnp.zeros_like(logs["tp"]) for name in length}
    for inner, outer in PAIRS[:-1]:
        inside = getattr(layout, f"{inner}_{outer}")
        start[outer] = start[outer] + inside * length[inner]
        start[inner] = start[inner] + (1.0 - inside) * length[outer]
    starts = {
        "tp": start["tp"],
        "cp": start["cp"],
        "pp": start["pp"],
        "shard": start["dp"],
        "replica": start["dp"] + logs["shard"],
    }
    near, far = (stack(*_expert_bounds(logs, order)) for order in (("ep", "dp"), ("dp", "ep")))
    # etp, ep, shards and copies of experts: where each begins and ends on the axis of a stage's
    # ranks
    by_ep = each(layout.ep_dp)
    begin = by_ep * near[:4] + (1.0 - by_ep) * far[np.array([0, 3, 1, 2])]
    end = by_ep * near[1:] + (1.0 - by_ep) * far[np.array([1, 4, 2, 3])]
    lower, upper = _levels(size)

    def beside(bounds: jax.Array) -> jax.Array:
        """Experts lie on the ranks of a pipeline stage, which other stages interrupt."""
        before, after = (
            jnp.minimum(bounds, start["pp"][None]),
            jnp.maximum(bounds, start["pp"][None]) + logs["pp"][None],
        )
        return clip(before[None], lower, upper) + clip(after[None], lower, upper)

    names = ("tp", "cp", "pp", "shard", "replica")
    first = stack(*(starts[name] for name in names))[None]
    last = first + stack(*(logs[name] for name in names))[None]
    dense = jnp.exp(clip(last, lower, upper) - clip(first, lower, upper))
    tp, cp, pp, shard, replica = jnp.unstack(dense, axis=1)
    etp, ep, expert_shard, copies = jnp.unstack(jnp.exp(beside(end) - beside(begin)), axis=1)
    run = sum(length.values())
    return Groups(
        tp=tp,
        cp=cp,
        pp=pp,
        etp=etp,
        ep=ep,
        shard=cp * shard,
        replica=replica,
        data=cp * shard * replica,
        expert_shard=expert_shard,
        expert_data=expert_shard * copies,
        all=jnp.exp(clip(jnp.asarray(run)[None, None], lower, upper) - lower)[:, 0],
    )
