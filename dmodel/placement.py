"""Where the groups of a plan sit on the network: how many members of each group every level joins.

A group of degree n whose members are `stride` devices apart spans the interval [log stride, log
stride + log n] of the
logarithmic device axis; level k of the network spans [log S_{k-1}, log S_k] with S_k the devices of
its domain. The factor
of the group at the level is the exponential of the overlap of the two: exact where sizes divide, a
smooth power in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, combinations
from operator import add

import jax
import jax.numpy as jnp

from dmodel import struct
from dmodel.records import Layout, Plan, weight_copies
from dmodel.smooth import clip, positive
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
      stacked: all of them side by side, `[K, group, *batch]`, in the order of `GROUPS`. logs: their
        natural logarithms.
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
    stacked: jax.Array
    logs: jax.Array


PARTS: dict[str, tuple[str, ...]] = {
    "cp": ("cp",),
    "shard": ("cp", "shard", "copies"),
    "expert_shard": ("expert_shard", "copies"),
    "etp": ("etp",),
    "ep": ("ep",),
    "tp": ("tp",),
    "data": ("cp", "shard", "replica", "copies"),
    "expert_data": ("expert_shard", "expert_replica", "copies"),
    "replica": ("replica",),
    "pp": ("pp",),
    "all": ("all",),
}
"""Intervals that make up each group: those that gather, those that sum, from tp on, stages.
`copies` are the ranks of a pipeline that hold the same weights, where there are several."""

GROUPS: tuple[str, ...] = tuple(PARTS)
"""Names of the groups, in their order in `Groups.stacked`."""


def _members(lengths: jax.Array, names: Sequence[str]) -> Groups:
    """Groups from the lengths of intervals at each level, `[K, interval, *batch]`."""
    parts = dict(zip(names, jnp.unstack(lengths, axis=1), strict=True))
    sums = (
        reduce(add, (parts[name] for name in PARTS[group] if name in parts)) for group in GROUPS
    )
    logs = jnp.stack(list(sums), axis=1)
    stacked = jnp.exp(logs)
    named = dict(zip(GROUPS, jnp.unstack(stacked, axis=1), strict=True))
    return Groups(stacked=stacked, logs=logs, **named)


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


SIZES: tuple[str, ...] = ("tp", "cp", "ep", "etp", "pp", "dp", "shard", "replica")
"""Intervals of a plan, in the order of `_log_sizes`."""


def _log_sizes(layout: Layout) -> jax.Array:
    """Natural logarithm of each degree, `[size, *batch]`; `shard` and `replica` make up dp.

    ZeRO shards over the inner part of the data-parallel ranks: HSDP keeps its copies inside the
    fast network.
    """
    degrees = stack(*(jnp.asarray(getattr(layout, name)) for name in SIZES[:-1]))
    # a degree a hair below 1, where slopes are taken from both sides, joins nobody: factors stay ≥
    # 1 and times ≥ 0
    logs = positive(jnp.log(degrees))
    dp = logs[5:6]
    replica = positive(dp - logs[6:])
    return jnp.concatenate([logs[:6], dp - replica, replica])


def _expert_bounds(logs: dict[str, jax.Array], order: tuple[str, ...]) -> list[jax.Array]:
    """Ends of etp, ep and the shards and copies of experts, on the axis of the ranks of tp, cp and
    dp; etp, shards, copies, ep when `order` has dp before ep."""
    tp, whole = logs["tp"], logs["tp"] + logs["cp"] + logs["dp"]
    etp = _smaller(logs["etp"], tp)
    ep = _smaller(logs["ep"], whole - etp)
    rest = whole - etp - ep
    shard = clip(rest - logs["replica"], 0.0, rest)
    near = order.index("ep") < order.index("dp")
    steps = [etp, ep, shard] if near else [etp, shard, rest - shard]
    return [*accumulate(steps, initial=jnp.zeros_like(tp)), whole]


def _smaller(a: jax.Array, b: jax.Array) -> jax.Array:
    """The smaller of two."""
    return a - positive(a - b)


def _levels(size: Array) -> tuple[jax.Array, jax.Array]:
    """Where each level begins and ends on the logarithmic device axis, `[K, 1, *batch]` each; the
    last one never ends, so that no member of a group is dropped: whether the fabric holds all
    devices is asked where the plan is made (`topology.check_devices`)."""
    upper = jnp.cumsum(jnp.log(size), 0)
    lower = jnp.concatenate([jnp.zeros_like(upper[:1]), upper[:-1]], 0)
    return lower[:, None], jnp.concatenate([upper[:-1], jnp.full_like(upper[:1], jnp.inf)], 0)[
        :, None
    ]


def _copies(
    layout: Layout, end: jax.Array, stages: jax.Array, levels: tuple[jax.Array, jax.Array]
) -> dict[str, jax.Array]:
    """Ranks of a pipeline that hold the same weights, at each level `[K, 1, *batch]`; nothing where
    its schedule keeps one copy.

    Stages i and pp − 1 − i have the same layers, so these ranks are the halves of the pipeline: the
    outermost part of its interval, which ends at `end`.
    """
    copies = weight_copies(layout)
    if isinstance(copies, float) and copies == 1.0:
        return {}
    start = end - _smaller(jnp.log(copies), stages)
    first, last = (clip(x[None, None], *levels) for x in (start, end))
    return {"copies": last - first}


def _in_order(placement: Sequence[str]) -> list[str]:
    """Intervals on the device axis, innermost first."""
    apart = {"dp": ("shard", "replica"), "ep": ()}
    return [part for name in placement for part in apart.get(name, (name,))]


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
    logs = dict(zip(SIZES, jnp.unstack(_log_sizes(layout)), strict=True))
    order = _in_order(layout.placement)
    ends = list(accumulate((logs[name] for name in order), initial=jnp.zeros_like(logs["tp"])))
    experts = _expert_bounds(logs, layout.placement)
    if order[-1] == "pp":
        bounds = stack(*ends, *experts)
    else:
        # experts lie on the ranks of a pipeline stage, which other stages interrupt
        start = order.index("pp")
        beyond = [positive(x - ends[start]) for x in experts]
        before = [x - y for x, y in zip(experts, beyond, strict=True)]
        bounds = stack(*ends, *before, *(ends[start + 1] + x for x in beyond))
    lower, upper = _levels(size)
    # one clip for each bound: where a group ends exactly on a level's edge, the derivative is the
    # mean of its two sides
    at = clip(bounds[None], lower, upper)
    n = len(order)
    dense, spread = at[:, : n + 1], at[:, n + 1 : n + 6]
    if order[-1] != "pp":
        spread = spread + at[:, n + 6 :]
    steps = [dense[:, 1:] - dense[:, :-1], spread[:, 1:] - spread[:, :-1], dense[:, n:] - lower]
    near = layout.placement.index("ep") < layout.placement.index("dp")
    same = ("expert_shard", "expert_replica")
    names = (*order, "etp", *(("ep", *same) if near else (*same, "ep")), "all")
    last = ends[order.index("pp") + 1]
    copies = _copies(layout, last, logs["pp"], (lower, upper))
    return _members(jnp.concatenate([*steps, *copies.values()], 1), (*names, *copies))


def _place_ordered(layout: Ordered, size: Array) -> Groups:
    """`place` where the order is a number: a group starts behind those that lie inside it, `start_x
    = Σ_y (y inside x) log n_y`."""
    logs = dict(zip(SIZES, jnp.unstack(_log_sizes(layout)), strict=True))
    length = {name: logs[name] for name in ("tp", "cp", "dp", "pp")}
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
    near = stack(*_expert_bounds(logs, ("ep", "dp")))
    far = list(_expert_bounds(logs, ("dp", "ep")))
    # etp, ep, shards and copies of experts: where each begins and ends on the axis of a stage's
    # ranks
    by_ep = each(layout.ep_dp)
    begin = by_ep * near[:4] + (1.0 - by_ep) * stack(*(far[i] for i in (0, 3, 1, 2)))
    end = by_ep * near[1:] + (1.0 - by_ep) * stack(*(far[i] for i in (1, 4, 2, 3)))
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
    run = sum(length.values())
    lengths = [
        clip(last, lower, upper) - clip(first, lower, upper),
        beside(end) - beside(begin),
        clip(jnp.asarray(run)[None, None], lower, upper) - lower,
    ]
    experts = ("etp", "ep", "expert_shard", "expert_replica")
    copies = _copies(layout, start["pp"] + logs["pp"], logs["pp"], (lower, upper))
    names = (*names, *experts, "all", *copies)
    return _members(jnp.concatenate([*lengths, *copies.values()], 1), names)
