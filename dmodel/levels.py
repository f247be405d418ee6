"""A network as collectives find it, and what the levels that a group spans make of its volume and
hops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import accumulate
from math import prod
from operator import mul

import jax
import jax.numpy as jnp
from jax import lax

from dmodel import struct
from dmodel.coefficients import Coefficients
from dmodel.once import once
from dmodel.records import Network
from dmodel.smooth import SHARPNESS, clip, inverse, ramp
from dmodel.types import Array, per_level, stack, trailing

OWN_PART = 0.4
"""What a rank's own part costs a ring beside those that it hands on [1]: it goes through the same
kernel, which copies it to the result or adds it to what came, n operations for n − 1 transfers
(NCCL's `all_gather.h`, `reduce_scatter.h`). Single calls of 2, 4 and 8 ranks: 0.3 on A100 and H100,
0.4 on H200, 0.5 to 0.6 on Blackwell (`partners` in `calibration/micro/data/fits.json`)."""


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
def torus_of(axes: jax.Array) -> jax.Array:
    """1 on a torus, of two axes and more, 0 on a level of one; linear in between."""
    return ramp(axes - 1.0)


@once
def inverse_of(values: jax.Array) -> jax.Array:
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
        return jnp.exp(self.log * inverse_of(self.net.torus_axes))

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
        torus = torus_of(net.torus_axes)
        own = clip(self.log * _per_members(net.members), inverse_of(net.torus_axes), 1.0)
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
        return (1.0 - torus_of(self.net.torus_axes)[:1]) * self.joined

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
        net, torus = self.net, torus_of(self.net.torus_axes)
        above = jnp.stack(_running(jnp.unstack(self.group)[::-1])[::-1])
        hops = (net.latency_s * net.torus_axes) * (self.axis - 1.0)
        return (hops * (torus + (1.0 - torus) * above)).sum(0)


Groups = jax.Array | Levels
"""Members per level, `[K, kind, *batch]`, or what is known of them."""


def levels_of(group: Groups, net: Fabric) -> Levels:
    """What collectives ask of a group."""
    return group if isinstance(group, Levels) else Levels(group, net)
