"""Time of collective communication on a network of levels: α–β form, per level.

Groups are factors `[K, kind, *batch]` (`dmodel.placement`), bytes are `[kind, *batch]`: one call
times several kinds.
Bytes of a level flow while those of the others do (NCCL's rings are pipelined through all of them),
so the slowest level decides; hop latencies add up. Rates are per device and direction. The
innermost level has links of its own; levels outside it are tiers of one network, whose traffic
climbs through the lower ones: a third level and those beyond it load the second.
"""

from __future__ import annotations

from math import log, prod

import jax
import jax.numpy as jnp

from dmodel import struct
from dmodel.levels import (
    OWN_PART,
    Fabric,
    Groups,
    Levels,
    fabric,
    inner_outer,
    inverse_of,
    levels_of,
    torus_of,
)
from dmodel.smooth import inverse, maximum, minimum_of_two, positive, ramp
from dmodel.types import Array, each, trailing

__all__ = ["OWN_PART", "Fabric", "Levels", "fabric", "inner_outer"]

TREE_BANDWIDTH = 0.92
"""Share of the ring's bandwidth that a double binary tree reaches (NCCL's own tuning table,
`tuning.cc`, 2020 on)."""

TREE_HOP = 8.5 / 4.0
"""A hop of a tree between domains over one of a ring: it waits for two children and adds before it
sends on (NCCL's tuning table, lines of 128 bytes; by words 1.9, by large blocks 2.9 and later 1).
"""

SWITCH = 1.3
"""Time per byte of a sum in the switch of a domain over that of a ring [1], by single calls: 1.3 on
H200, 1.4 on H100 (`in_network` in `calibration/micro/data/fits.json`; 1.4 to 2.6 on Blackwell,
where NCCL 2.27 to 2.29 took rings for most of what was measured)."""


class Line(struct.PyTreeNode, kw_only=True):
    """Time of a collective as a line in its volume: `latency + V · seconds_per_byte`, `[kind,
    *batch]`."""

    seconds_per_byte: Array
    latency_s: Array

    def time(self, nbytes: Array) -> Array:
        """Time for `nbytes` [s]."""
        return self.latency_s + nbytes * self.seconds_per_byte

    def split(self, per_byte: Array) -> Line:
        """Line of a volume sent in `1 + V · per_byte` messages: each pays `latency_s`."""
        return self.replace(seconds_per_byte=self.seconds_per_byte + self.latency_s * per_byte)

    def kinds(self) -> list[Line]:
        """The lines of the kinds, `[*batch]` each."""
        pairs = zip(jnp.unstack(self.seconds_per_byte), jnp.unstack(self.latency_s), strict=True)
        return [Line(seconds_per_byte=s, latency_s=a) for s, a in pairs]


def gather_line(group: Groups, net: Fabric, copied: Array = 1.0, hop: Array = 1.0) -> Line:
    """Line of a ring all-gather, or reduce-scatter, in the volume of the gathered whole; see
    `gather_time`.

    Args:
      copied: 0 where ranks hand on parts without a copy of their own, else 1: scalar or `[1, kind,
        *batch]`. hop: time of a hop over that of the network: scalar or `[kind, *batch]`.
    """
    levels = levels_of(group, net)
    flow = (levels.handed + copied * levels.own) * levels.flow
    return Line(
        seconds_per_byte=maximum(flow, net.sharpness),
        latency_s=levels.start + hop * levels.hops_s,
    )


def gather_time(nbytes: jax.Array, group: Groups, net: Fabric) -> Array:
    """Time of a ring all-gather, or reduce-scatter, of `nbytes` in all [s].

    `max_k ( V_k (n − 1 + ρ)/n / rate_k ) + Σ_k α_k (g_k − 1) Π_{j>k} g_j` over the levels that join
    members, with `V_k = V / Π_{j<k} g_j` the volume left at level k, n = Π_k g_k and ρ =
    `OWN_PART`. A torus gathers level by level, `(g_k − 1)/g_k`. Of three levels and more the outer
    ones are tiers: see `_reach`, `_ring_share` and `_hops`.

    Limits: 0 for a group of one; latency-bound, ∝ g, as V → 0; V / rate as g → ∞ on one level.

    Args:
      nbytes: volume V of the gathered whole [byte], `[kind, *batch]`.
      group: members per level, `[K, kind, *batch]`.

    1 GB over 32 H100s in 4 nodes:

    >>> from dmodel import catalog, coefficients
    >>> net = fabric(catalog.system("H100-DGX").network, coefficients.default())
    >>> f"{1e3 * gather_time(jnp.array([1e9]), jnp.array([[8.0], [4.0]]), net)[0]:.1f} ms"
    '4.0 ms'
    """
    return gather_line(group, net).time(nbytes)


def all_reduce_time(nbytes: jax.Array, group: Groups, net: Fabric, calls: Array = 1.0) -> jax.Array:
    """Time of an all-reduce of `nbytes` [s]: the better of ring and double binary tree.

    Ring: `(2 (n − 1) + ρ)/n`, since it has 2 n − 1 operations for 2 n − 2 transfers (NCCL's
    `all_reduce.h`), and the hops of two gathers. Tree: `2 Σ_k α_k log2 g_k`, with hops between
    domains 8.5/4 times as long as a ring's; inside domains the ring's bytes, between them V of two
    domains and 2 V of more, for each of the two trees has half of V, in one a domain is a leaf and
    in the other it passes on; at 0.92 of the rate. A switch between domains that reduces takes each
    byte once; inside one each rank's share of the sum passes once more, for it reads that from all
    and writes it to all: `1.3 (1 + 1/g)` (`SWITCH`), or a ring, if that is less.
    Trees are NCCL's: on a torus, and between slices of one, there are rings alone.

    Limits: as `gather_time`; the ring wins for large messages, the tree for large groups and for
    two domains.

    Args:
      calls: messages that the volume is sent in, one after the other.
    """
    levels = levels_of(group, net)
    n, reach, ring = levels.group.shape[0], levels.reach, 2.0 * levels.handed + levels.own
    joined = levels.joined if n <= 2 else ramp(reach - 1.0)
    outer = joined[1:]
    tree = jnp.concatenate([ring[:1], outer + ramp(reach[1:] - 2.0)])
    inside = jnp.minimum(ring[:1], joined[:1] * SWITCH * (2.0 - levels.beyond[:1]))
    switched = net.in_network_reduction
    reduced = switched * jnp.concatenate([inside, outer])
    # ring and tree on an axis of their own
    times = jnp.stack([ring, tree], 1)
    passed = levels.flow[:, None] * ((1.0 - switched)[:, None] * times + reduced[:, None])
    by_ring, by_tree = jnp.unstack(maximum(passed, net.sharpness))
    hop = net.latency_s * trailing(2.0 / log(2.0) * inner_outer(1.0, TREE_HOP, n), reach.ndim)
    by_ring = 2.0 * calls * levels.hops_s + nbytes * by_ring
    by_tree = calls * (hop * levels.log).sum(0) + nbytes * by_tree * (1.0 / TREE_BANDWIDTH)
    torus = torus_of(net.torus_axes)[0]
    better = minimum_of_two(by_ring, by_tree, net.sharpness)
    return jnp.asarray(calls * levels.start + better + torus * (by_ring - better))


def _transfers(levels: Levels, copies: Array, merged: Array) -> jax.Array:
    """Transfers into the domains below each level over the copies sent [1]: `D (1 − (1 − 1/D)^c) /
    c` when copies are merged, c of them
    to D domains taken at random, c / c when not."""
    copies, merged = each(copies), each(merged)
    domains = jnp.concatenate([levels.size[None], levels.reach[1:]])
    # where there is one domain nothing is sent, and the logarithm would be that of 0
    missed = jnp.exp(copies * jnp.log(jnp.maximum(1.0 - inverse(domains), 1e-9)))
    return 1.0 + merged * (domains * (1.0 - missed) * inverse(copies) - 1.0)


def all_to_all_time(
    nbytes: jax.Array, group: Groups, net: Fabric, copies: Array = 1.0, merged: Array = 0.0
) -> jax.Array:
    """Time of an all-to-all in which each device holds `nbytes` for all n members [s].

    Level k carries what leaves the domain below it but not its own: `V (Π_{j≤k} g_j − Π_{j<k} g_j)
    / n`, an outer tier all that leaves
    the domain below it; the slowest level decides. Each level adds one hop, of tiers the farthest
    one does. On a torus of d axes a byte passes `d (m − 1/m) / 4` links on average, m = g^(1/d) of
    a ring.

    Limits: 0 for a group of one; V / rate as g → ∞ on one switch, `V d g^(1/d) / (4 rate)` on a
    torus.

    Args:
      copies: of each token among its bytes. merged: 1 when those for one domain travel together
        (DeepEP, Zhao et al. 2025), 0 when apart.
    """
    levels = levels_of(group, net)
    ring, part, n = levels.axis, levels.beyond, levels.group.shape[0]
    torus, axes = torus_of(net.torus_axes), net.torus_axes
    passed = part + torus * positive(0.25 * axes * (ring - inverse(ring)) - part)
    # of the bytes inside the innermost domain, those that go to no other one
    others = jnp.unstack(levels.share)[1:]
    if others:
        inside = prod(others[1:], start=others[0])
        passed = jnp.concatenate([inside[None] * passed[:1], passed[1:]])
    flow = nbytes * maximum(
        passed * _transfers(levels, copies, merged) * levels.cost, net.sharpness
    )
    hop = net.latency_s * levels.joined
    hops = hop.sum(0) if n <= 2 else hop[0] + maximum(hop[1:], net.sharpness)
    return levels.start + flow + hops


def point_to_point_time(nbytes: jax.Array, group: Groups, net: Fabric) -> jax.Array:
    """Time to send `nbytes` to the next member [s], over the slowest level that the group spans; 0
    for a group of one."""
    levels = levels_of(group, net)
    # seconds per byte, and latency
    of_levels = jnp.stack(jnp.broadcast_arrays(inverse_of(net.bytes_per_s), net.latency_s), 1)
    slowest = maximum(levels.joined[:, None] * of_levels, net.sharpness)
    return levels.start + nbytes * slowest[0] + slowest[1]
