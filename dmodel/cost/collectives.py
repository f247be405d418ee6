"""Time of collective communication on a network of levels: α–β form, per level.

Groups are factors `[K, kind, *batch]` (`dmodel.placement`), bytes are `[kind, *batch]`: one call
times several kinds.
Bytes of a level flow while those of the others do (NCCL's rings are pipelined through all of them),
so the slowest level decides; hop latencies add up. Rates are per device and direction. The
innermost level has links of its own; levels outside it are tiers of one network, whose traffic
climbs through the lower ones: a third level and those beyond it load the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import log, prod
from operator import mul

import jax
import jax.numpy as jnp
from flax import struct

from dmodel.coefficients import Coefficients
from dmodel.once import once
from dmodel.records import Network
from dmodel.smooth import SHARPNESS, clip, inverse, maximum, minimum, ramp
from dmodel.types import Array, each, per_level, stack, trailing

TREE_BANDWIDTH = 0.92
"""Share of the ring's bandwidth that a double binary tree reaches (NCCL's own tuning table,
`tuning.cc`, 2020 on)."""

TREE_HOP = 8.5 / 4.0
"""A hop of a tree between domains over one of a ring: it waits for two children and adds before it
sends on (NCCL's tuning table, lines of 128 bytes; by words 1.9, by large blocks 2.9 and later 1).
"""

OWN_PART = 0.4
"""What a rank's own part costs a ring beside those that it hands on [1]: it goes through the same
kernel, which copies it to the result or adds it to what came, n operations for n − 1 transfers
(NCCL's `all_gather.h`, `reduce_scatter.h`). Single calls of 2, 4 and 8 ranks: 0.3 on A100 and H100,
0.4 on H200, 0.5 to 0.6 on Blackwell (`partners` in `calibration/micro/data/fits.json`)."""


SWITCH = 1.3
"""Time per byte of a sum in the switch of a domain over that of a ring [1], by single calls: 1.3 on
H200, 1.4 on H100 (`in_network` in `calibration/micro/data/fits.json`; 1.4 to 2.6 on Blackwell,
where NCCL 2.27 to 2.29 took rings for most of what was measured)."""


class Fabric(struct.PyTreeNode, kw_only=True):
    """A network as collectives find it: derated rates [byte/s] and hop latencies [s], `[K, 1,
    *batch]`; start of a
    collective [s], `[1, *batch]`. members: devices of the run, or domains of them, that a level
    joins; 1 where a group is taken to have all its links to itself."""

    bytes_per_s: jax.Array
    latency_s: jax.Array
    torus_axes: jax.Array
    in_network_reduction: jax.Array
    contention: jax.Array
    start_s: jax.Array
    members: jax.Array
    sharpness: float = struct.field(pytree_node=False, default=SHARPNESS)


def inner_outer(inner: Array, outer: Array, n_levels: int) -> jax.Array:
    """`[K, *batch]` from the value of the innermost level and that of all others."""
    return stack(inner, *[outer] * (n_levels - 1))


def fabric(
    network: Network, coefficients: Coefficients, sharpness: float = SHARPNESS, members: Array = 1.0
) -> Fabric:
    """Derate a network by the fitted efficiencies.

    Args:
      members: of the whole run at each level, `[K, *batch]`.

    `rate_k = η_net,k · bytes_per_s_k`, `latency_k = c_k · latency_s_k`; innermost and outer levels
    have their own coefficients.
    """
    c, k = coefficients, network.n_levels
    efficiency = inner_outer(c.net_efficiency_inner, c.net_efficiency_outer, k)
    latency = inner_outer(c.net_latency_inner, c.net_latency_outer, k)
    contention = inner_outer(jnp.zeros_like(c.net_contention), c.net_contention, k)
    rank = jnp.ndim(network.bytes_per_s)
    return Fabric(
        bytes_per_s=per_level(trailing(efficiency, rank) * network.bytes_per_s),
        latency_s=per_level(trailing(latency, rank) * network.latency_s),
        torus_axes=per_level(network.torus_axes),
        in_network_reduction=per_level(network.in_network_reduction),
        contention=per_level(trailing(contention, rank)),
        start_s=trailing(stack(c.collective_start), rank),
        members=per_level(
            members if jnp.ndim(members) else jnp.full(jnp.shape(network.bytes_per_s), members)
        ),
        sharpness=sharpness,
    )


@once
def _joined(group: jax.Array) -> jax.Array:
    """1 where a level joins members, 0 where it does not; linear for factors between 1 and 2 (they
    are never below 1)."""
    return ramp(group - 1.0)


@once
def _levels(values: jax.Array) -> tuple[jax.Array, ...]:
    """The values of each level."""
    return tuple(jnp.unstack(values))


@once
def _log(group: jax.Array) -> jax.Array:
    """Natural logarithm of the members."""
    return jnp.log(group)


@once
def _inverse(members: jax.Array) -> jax.Array:
    """1 over the members."""
    return inverse(members)


@once
def _size(values: jax.Array) -> jax.Array:
    """Product over levels `[kind, *batch]`, one by one: the derivative of `jnp.prod` takes three
    times as many operations."""
    first, *others = _levels(values)
    return prod(others, start=first)


def _running(values: Sequence[jax.Array]) -> list[jax.Array]:
    """Product of the values before each: 1, v_0, v_0 v_1, …"""
    return list(accumulate(values[:-1], mul, initial=jnp.ones_like(values[0])))


def _left(group: jax.Array) -> jax.Array:
    """Share of the volume that reaches a level, `1 / Π_{j<k} g_j`: what is left by the domains of
    the levels below."""
    return jnp.stack(_running(_levels(_inverse(group))))


@once
def _reach(group: jax.Array) -> jax.Array:
    """Members whose traffic the links of a level carry: its own, and on outer levels those of all
    tiers above, `Π_{j≥k} g_j` for k ≥ 1."""
    if group.shape[0] <= 2:
        return group
    return jnp.concatenate([group[:1], jnp.cumprod(group[:0:-1], 0)[::-1]])


def _start(group: jax.Array, net: Fabric) -> jax.Array:
    """Fixed time of a collective [s]: its launch, the choice of protocol, the first handshake; 0
    for a group of one."""
    return net.start_s * _joined(_size(group))


def _seconds_per_byte(group: jax.Array, net: Fabric) -> jax.Array:
    """`r_k^γ_k / rate_k` with `r_k` the members that reach the level: wider groups meet more
    traffic on shared links.

    On a torus of d axes a group has the links of its own axes, `max(ln g / ln members, 1/d)` of
    all: 16 of a slice of 16 × 16 one half.
    """
    torus = ramp(net.torus_axes - 1.0)
    own = clip(_log(group) / jnp.maximum(_log(net.members), 1e-9), 1.0 / net.torus_axes, 1.0)
    links = 1.0 - torus + torus * own
    return jnp.exp(net.contention * _log(_reach(group))) * inverse(net.bytes_per_s * links)


def _ring_share(group: jax.Array, net: Fabric) -> tuple[jax.Array, jax.Array]:
    """Share of the volume left at a level that a ring hands on through it, `(n − 1)/n`, n all
    members of the group, on a level that joins any, since one ring goes through all ranks (NCCL)
    and hands on every part but one between nodes as well as inside them; and what a rank's own part
    costs beside, `ρ/n` (`OWN_PART`). `(g − 1)/g` and 0 of a torus and of the slices joined above
    it, which gather one after the other."""
    left, rest = _inverse(_reach(group)), _size(_inverse(group))[None]
    flat = (1.0 - ramp(net.torus_axes[:1] - 1.0)) * _joined(group)
    return 1.0 - left + flat * (left - rest), OWN_PART * flat * rest


def _hops(group: jax.Array, net: Fabric) -> jax.Array:
    """Sequential hops of a ring, `g − 1`; on a torus of d axes `d (g^(1/d) − 1)`. One ring goes
    through all ranks, so it makes the hops of a level in each group that it passes: `(g_k − 1)
    Π_{j>k} g_j`, and levels of one latency add up to the hops of one. A torus gathers by axes and
    then across slices, once each."""
    hops = net.torus_axes * (jnp.exp(_log(group) / net.torus_axes) - 1.0)
    above, torus = jnp.stack(_running(_levels(group)[::-1])[::-1]), ramp(net.torus_axes - 1.0)
    return hops * (torus + (1.0 - torus) * above)


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


def gather_line(group: jax.Array, net: Fabric, copied: Array = 1.0) -> Line:
    """Line of a ring all-gather, or reduce-scatter, in the volume of the gathered whole; see
    `gather_time`.

    Args:
      copied: 0 where ranks hand on parts without a copy of their own, else 1: scalar or `[1, kind,
        *batch]`.
    """
    share, own = _ring_share(group, net)
    flow = (share + copied * own) * _left(group) * _seconds_per_byte(group, net)
    return Line(
        seconds_per_byte=maximum(flow, net.sharpness),
        latency_s=_start(group, net) + (net.latency_s * _hops(group, net)).sum(0),
    )


def gather_time(nbytes: jax.Array, group: jax.Array, net: Fabric) -> Array:
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


def all_reduce_time(
    nbytes: jax.Array, group: jax.Array, net: Fabric, calls: Array = 1.0
) -> jax.Array:
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
    reach, (share, own) = _reach(group), _ring_share(group, net)
    ring, joined = 2.0 * share + own, _joined(reach)
    tree = jnp.concatenate([ring[:1], joined[1:] + ramp(reach[1:] - 2.0)])
    cost = _left(group) * _seconds_per_byte(group, net)
    inside = jnp.minimum(ring[:1], joined[:1] * SWITCH * (1.0 + _inverse(group)[:1]))
    reduced, rest = (
        net.in_network_reduction * jnp.concatenate([inside, joined[1:]]),
        1.0 - net.in_network_reduction,
    )

    def flow(times: jax.Array) -> Array:
        return nbytes * maximum(cost * (rest * times + reduced), net.sharpness)

    hop = net.latency_s * trailing(
        inner_outer(1.0, TREE_HOP, group.shape[0]) / log(2.0), group.ndim
    )
    by_ring = 2.0 * calls * (net.latency_s * _hops(group, net)).sum(0) + flow(ring)
    by_tree = 2.0 * calls * (hop * _log(group)).sum(0) + flow(tree) / TREE_BANDWIDTH
    torus = ramp(net.torus_axes[0] - 1.0)
    better = minimum(stack(by_ring, by_tree), net.sharpness)
    return jnp.asarray(calls * _start(group, net) + torus * by_ring + (1.0 - torus) * better)


def _transfers(group: jax.Array, copies: Array, merged: Array) -> jax.Array:
    """Transfers into the domains below each level over the copies sent [1]: `D (1 − (1 − 1/D)^c) /
    c` when copies are merged, c of them
    to D domains taken at random, c / c when not."""
    copies, merged = each(copies), each(merged)
    domains = jnp.concatenate([_size(group)[None], _reach(group)[1:]])
    # where there is one domain nothing is sent, and the logarithm would be that of 0
    missed = jnp.exp(copies * jnp.log(jnp.maximum(1.0 - _inverse(domains), 1e-9)))
    return 1.0 + merged * (domains * (1.0 - missed) / copies - 1.0)


def all_to_all_time(
    nbytes: jax.Array, group: jax.Array, net: Fabric, copies: Array = 1.0, merged: Array = 0.0
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
    ring = jnp.exp(_log(group) / net.torus_axes)
    torus, part = ramp(net.torus_axes - 1.0), 1.0 - _inverse(_reach(group))
    passed = part + torus * (
        jnp.maximum(0.25 * net.torus_axes * (ring - inverse(ring)), part) - part
    )
    # of the bytes inside the innermost domain, those that go to no other one
    inside = _size(_inverse(group)[1:]) if group.shape[0] > 1 else jnp.ones_like(group[0])
    passed = jnp.concatenate([inside[None] * passed[:1], passed[1:]])
    flow = nbytes * maximum(
        passed * _transfers(group, copies, merged) * _seconds_per_byte(group, net), net.sharpness
    )
    hop = net.latency_s * _joined(group)
    return (
        _start(group, net)
        + flow
        + (hop.sum(0) if group.shape[0] <= 2 else hop[0] + maximum(hop[1:], net.sharpness))
    )


def point_to_point_time(nbytes: jax.Array, group: jax.Array, net: Fabric) -> jax.Array:
    """Time to send `nbytes` to the next member [s], over the slowest level that the group spans; 0
    for a group of one."""
    joined = _joined(group)
    flow = nbytes * maximum(joined / net.bytes_per_s, net.sharpness)
    return _start(group, net) + flow + maximum(joined * net.latency_s, net.sharpness)
