"""Time of collective communication on a network of levels: α–β form, per level.

Groups are factors `[K, kind, *batch]` (`dmodel.placement`), bytes are `[kind, *batch]`: one call
times several kinds.
Bytes of a level flow while those of the others do (NCCL's rings are pipelined through all of them),
so the slowest level decides; hop latencies add up. Rates are per device and direction. The
innermost level has links of its own; levels outside it are tiers of one network, whose traffic
climbs through the lower ones: a third level and those beyond it load the second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import accumulate
from math import log, prod
from operator import mul

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from dmodel.coefficients import Coefficients
from dmodel.once import once
from dmodel.records import Network
from dmodel.smooth import SHARPNESS, clip, inverse, maximum, minimum_of_two, positive, ramp
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
def _torus(axes: jax.Array) -> jax.Array:
    """1 on a torus, of two axes and more, 0 on a level of one; linear in between."""
    return ramp(axes - 1.0)


@once
def _inverse(values: jax.Array) -> jax.Array:
    """1 over the values."""
    return inverse(values)


@once
def _per_members(members: jax.Array) -> jax.Array:
    """1 over the natural logarithm of the members of the run."""
    return inverse(jnp.maximum(jnp.log(members), 1e-9))


def _running(values: Sequence[jax.Array]) -> list[jax.Array]:
    """Product of the values before each: 1, v_0, v_0 v_1, …"""
    return list(accumulate(values[:-1], mul, initial=jnp.ones_like(values[0])))


def _of_kinds(compute: Callable[[Levels], jax.Array], axis: int) -> cached_property[jax.Array]:
    """A quantity of all kinds at once, computed when it is first asked for; of some of them, a part
    of that."""

    def found(levels: Levels) -> jax.Array:
        if levels.whole is None:
            return compute(levels)
        values = getattr(levels.whole, compute.__name__)
        return lax.slice_in_dim(values, *levels.kinds, axis=axis)

    found.__doc__ = compute.__doc__
    return cached_property(found)


by_level, by_kind = partial(_of_kinds, axis=1), partial(_of_kinds, axis=0)
"""Of a quantity `[K, kind, *batch]`, and of one `[kind, *batch]`."""


class Levels:
    """Groups on a network, `[K, kind, *batch]`, and what collectives ask of them: each quantity is
    computed once for all kinds, when it is first asked for."""

    def __init__(
        self,
        group: jax.Array,
        net: Fabric,
        whole: Levels | None = None,
        kinds: tuple[int, int] = (0, 0),
        log: jax.Array | None = None,
    ) -> None:
        self.group, self.net, self.whole, self.kinds = jnp.asarray(group), net, whole, kinds
        if log is not None:
            # in place of the property
            self.log = log

    def part(self, start: int, stop: int) -> Levels:
        """Of the kinds from `start` on, up to `stop`."""
        group = lax.slice_in_dim(self.group, start, stop, axis=1)
        return Levels(group, self.net, self, (start, stop))

    @by_level
    def log(self) -> jax.Array:
        """Natural logarithm of the members."""
        return jnp.log(self.group)

    @by_level
    def axis(self) -> jax.Array:
        """Members along each axis of a torus, `g^(1/d)`."""
        return jnp.exp(self.log * _inverse(self.net.torus_axes))

    @by_level
    def share(self) -> jax.Array:
        """1 over the members."""
        return inverse(self.group)

    @by_level
    def joined(self) -> jax.Array:
        """1 where a level joins members, 0 where it does not; linear for factors between 1 and 2
        (they are never below 1)."""
        return ramp(self.group - 1.0)

    @by_level
    def left(self) -> jax.Array:
        """Share of the volume that reaches a level, `1 / Π_{j<k} g_j`: what is left by the domains
        of the levels below."""
        return jnp.stack(_running(jnp.unstack(self.share)))

    @by_level
    def reach(self) -> jax.Array:
        """Members whose traffic the links of a level carry: its own, and on outer levels those of
        all tiers above, `Π_{j≥k} g_j` for k ≥ 1."""
        if self.group.shape[0] <= 2:
            return self.group
        first, *outer = jnp.unstack(self.group)
        return jnp.stack([first, *list(accumulate(outer[::-1], mul))[::-1]])

    @by_level
    def log_reach(self) -> jax.Array:
        """Natural logarithm of `reach`."""
        return self.log if self.group.shape[0] <= 2 else jnp.log(self.reach)

    @by_level
    def beyond(self) -> jax.Array:
        """Share of what a level carries that is from other members than one, `1 − 1 / reach`."""
        return 1.0 - (self.share if self.group.shape[0] <= 2 else inverse(self.reach))

    @by_kind
    def size(self) -> jax.Array:
        """Members of the group; one by one, as the derivative of `jnp.prod` takes three times as
        many operations."""
        first, *others = jnp.unstack(self.group)
        return prod(others, start=first)

    @by_kind
    def start(self) -> jax.Array:
        """Fixed time of a collective [s]: its launch, the choice of protocol, the first handshake;
        0 for a group of one."""
        return self.net.start_s * ramp(self.size - 1.0)

    @by_level
    def cost(self) -> jax.Array:
        """`r_k^γ_k / rate_k` with `r_k` the members that reach the level [s/byte]: wider groups
        meet more traffic on shared links.

        On a torus of d axes a group has the links of its own axes, `max(ln g / ln members, 1/d)` of
        all: 16 of a slice of 16 × 16 one half.
        """
        net = self.net
        torus = _torus(net.torus_axes)
        own = clip(self.log * _per_members(net.members), _inverse(net.torus_axes), 1.0)
        links = 1.0 - torus + torus * own
        return jnp.exp(net.contention * self.log_reach) * inverse(net.bytes_per_s * links)

    @by_level
    def flow(self) -> jax.Array:
        """What a byte of the whole takes at each level, if all of what is left passes [s/byte]."""
        return self.left * self.cost

    @by_level
    def handed(self) -> jax.Array:
        """Share of the volume left at a level that a ring hands on through it, `(n − 1)/n`, n all
        members of the group, on a level that joins any, since one ring goes through all ranks
        (NCCL) and hands on every part but one between nodes as well as inside them. `(g − 1)/g` of
        a torus and of the slices joined above it, which gather one after the other."""
        return self.beyond + self.flat * (1.0 - self.beyond - self.rest[None])

    @by_level
    def own(self) -> jax.Array:
        """What a rank's own part costs beside what a ring hands on, `ρ/n` (`OWN_PART`); 0 on a
        torus."""
        return OWN_PART * self.flat * self.rest[None]

    @by_level
    def flat(self) -> jax.Array:
        """1 where one ring goes through the ranks of a level that joins any."""
        return (1.0 - _torus(self.net.torus_axes)[:1]) * self.joined

    @by_kind
    def rest(self) -> jax.Array:
        """1 over all members."""
        return inverse(self.size)

    @by_kind
    def hops_s(self) -> jax.Array:
        """Latency of the sequential hops of a ring [s], `g − 1` of them; on a torus of d axes `d
        (g^(1/d) − 1)`. One ring goes through all ranks, so it makes the hops of a level in each
        group that it passes: `(g_k − 1) Π_{j>k} g_j`, and levels of one latency add up to the hops
        of one. A torus gathers by axes and then across slices, once each."""
        net, torus = self.net, _torus(self.net.torus_axes)
        above = jnp.stack(_running(jnp.unstack(self.group)[::-1])[::-1])
        hops = (net.latency_s * net.torus_axes) * (self.axis - 1.0)
        return (hops * (torus + (1.0 - torus) * above)).sum(0)


Groups = jax.Array | Levels
"""Members per level, `[K, kind, *batch]`, or what is known of them."""


def _levels(group: Groups, net: Fabric) -> Levels:
    """What collectives ask of a group."""
    return group if isinstance(group, Levels) else Levels(group, net)


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
    levels = _levels(group, net)
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
    levels = _levels(group, net)
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
    torus = _torus(net.torus_axes)[0]
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
    levels = _levels(group, net)
    ring, part, n = levels.axis, levels.beyond, levels.group.shape[0]
    torus, axes = _torus(net.torus_axes), net.torus_axes
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
    levels = _levels(group, net)
    # seconds per byte, and latency
    of_levels = jnp.stack(jnp.broadcast_arrays(_inverse(net.bytes_per_s), net.latency_s), 1)
    slowest = maximum(levels.joined[:, None] * of_levels, net.sharpness)
    return levels.start + nbytes * slowest[0] + slowest[1]
