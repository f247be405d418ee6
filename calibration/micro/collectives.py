"""Time of one collective on an idle machine: the step model's α–β form, and what it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibration.micro.fitting import Form
from calibration.micro.reader import MicroTable
from calibration.micro.schema import COLLECTIVES
from dmodel import catalog
from dmodel.coefficients import Spec
from dmodel.cost.collectives import TREE_BANDWIDTH
from dmodel.smooth import maximum, minimum, ramp
from dmodel.types import Array, stack

SPECS: dict[str, Spec] = {
    "efficiency_inner": Spec(
        "1",
        "share of the inner bandwidth that large messages reach",
        "share",
        0.75,
        0.5,
        "hardware",
    ),
    "latency_inner": Spec(
        "1", "hop latency over the catalog's, inner level", "positive", 1.0, 0.7, "hardware"
    ),
    "base": Spec(
        "s", "time of the smallest message beyond its hops", "positive", 8e-6, 0.7, "hardware"
    ),
    "partners": Spec(
        "1",
        "time of a rank's own part over that of one that it hands on",
        "positive",
        0.2,
        0.8,
        "hardware",
    ),
    "crowding": Spec(
        "1",
        "inner bandwidth falls as (ranks)^-γ: wires shared through a host",
        "positive",
        0.01,
        1.5,
        "hardware",
    ),
    "in_network": Spec(
        "1",
        "bytes of an all-reduce in the switch over (1 + 1/g) of the message",
        "positive",
        1.2,
        0.3,
        "hardware",
    ),
    "exchange": Spec(
        "1", "time per byte of an all-to-all over that of a ring", "positive", 1.1, 0.3, "hardware"
    ),
    "low_latency": Spec(
        "1",
        "share of the bandwidth that the low-latency protocol keeps",
        "share",
        0.4,
        0.7,
        "hardware",
    ),
    "exchange_low": Spec(
        "1",
        "the same of an all-to-all, whose messages are a rank's pieces",
        "share",
        0.1,
        1.0,
        "hardware",
    ),
    "middle": Spec(
        "1", "share of the bandwidth that the middle protocol keeps", "share", 0.7, 0.7, "hardware"
    ),
    "middle_over": Spec(
        "s", "time that the middle protocol adds to start", "positive", 5e-6, 1.0, "hardware"
    ),
    "switch_over": Spec(
        "s",
        "time that the high-bandwidth protocol adds to start",
        "positive",
        2e-5,
        1.0,
        "hardware",
    ),
    "efficiency_outer": Spec(
        "1",
        "share of the outer bandwidth that large messages reach",
        "share",
        0.85,
        0.7,
        "hardware",
    ),
    "latency_outer": Spec(
        "1",
        "hop of a ring in lines over the catalog's latency, outer level",
        "positive",
        2.0,
        1.0,
        "hardware",
    ),
    "contention": Spec(
        "1", "outer bandwidth falls as (domains spanned)^-γ", "positive", 0.03, 1.0, "hardware"
    ),
}

WIDE = 16.0
"""Ranks from which a domain spans hosts."""


RING_HOPS, TREE_HOPS = (2.7, 4.0, 14.0), (5.0, 8.5, 14.0)
"""Hops between nodes in words, in lines of 128 bytes and in large blocks [µs], by the tuning table
of the communication library (NCCL, `tuning.cc`, 2.20 and later). Only their ratios count; what they
are on a fabric is `latency_outer`, of a ring in lines."""

LINES = 1
"""The protocol of lines. The library's tuner takes it for the gather of a layer over six nodes of
H100 and more: a node costs 7 hops of
1.9 µs and one of 4, for 0.92 of the bandwidth; in blocks 7 of 3.4 and one of 14."""


class Cases(NamedTuple):
    """Calls `[row]`: kind (index in `COLLECTIVES`), message [byte], ranks per inner domain and
    domains, and both levels' network."""

    kind: Array
    nbytes: Array
    inner: Array
    outer: Array
    bytes_per_s: tuple[Array, Array]
    latency_s: tuple[Array, Array]
    in_network: Array


def cases(table: MicroTable) -> Cases:
    """The rows of a table as records; ranks fill domains of the row's system, or its nodes where
    these are no smaller."""
    named = [
        row.text("system") or catalog.default_system(row.text("accelerator")) for row in table.rows
    ]
    nets = [catalog.system(name).network for name in named]
    sizes, rates, latencies, sums = (
        np.array([np.asarray(getattr(net, name))[:2] for net in nets], float)
        for name in ("size", "bytes_per_s", "latency_s", "in_network_reduction")
    )
    ranks, nodes, domain = table.numbers("n_accel"), table.numbers("nodes"), sizes[:, 0]
    # a domain wider than a host is filled first, in equal parts: 128 ranks of two NVL72 racks are
    # 64 and 64
    outer = np.where(domain >= WIDE, np.ceil(ranks / np.maximum(domain, 1.0)), nodes)
    return Cases(
        kind=np.array([COLLECTIVES.index(k) for k in table.texts("collective")], float),
        nbytes=table.numbers("message_bytes"),
        inner=ranks / outer,
        outer=outer,
        bytes_per_s=(rates[:, 0], rates[:, 1]),
        latency_s=(latencies[:, 0], latencies[:, 1]),
        in_network=sums[:, 0],
    )


def _seconds_per_byte(c: Mapping[str, Array], x: Cases) -> tuple[Array, Array]:
    """Of both levels; ranks share wires, and many domains meet each other's traffic."""
    inner = jnp.exp(c["crowding"] * jnp.log(x.inner)) / (x.bytes_per_s[0] * c["efficiency_inner"])
    outer = jnp.exp(c["contention"] * jnp.log(x.outer)) / (x.bytes_per_s[1] * c["efficiency_outer"])
    return inner, outer


def flow(c: Mapping[str, Array], x: Cases) -> jax.Array:
    """Time for the bytes of each call at full bandwidth [s], `[row]`: the slower of its two levels.

    Inner level of g ranks: `V (g − 1 + partners)/g` for gathers, scatters and, times `exchange`,
    all-to-all: a rank's own part goes
    through the same kernel. An all-reduce `V (2 (g − 1) + partners)/g`, which has one operation
    more than transfers too, or
    `in_network · (1 + 1/g) V` where the switch adds (each rank's whole message is read, its part of
    the sum is written), the better one. Outer level of d domains, through the links of g ranks: a
    ring through all n passes `V (n − 1)/n` out of every domain, an all-to-all
    `V (d − 1)/d · g`; an all-reduce twice the ring, or as a tree V for two domains and 2 V for
    more, whichever is less.
    """
    g, d, v = (jnp.asarray(a) for a in (x.inner, x.outer, x.nbytes))
    inner, outer = _seconds_per_byte(c, x)
    part, n, joined = (g - 1.0) / g, g * d, ramp(d - 1.0)
    own = c["partners"] * ramp(g - 1.0) / g
    reduce, exchange = jnp.asarray(x.kind) == 0.0, jnp.asarray(x.kind) == 3.0
    switch = jnp.where(
        jnp.asarray(x.in_network) > 0.0, c["in_network"] * (1.0 + 1.0 / g), 2.0 * part + own
    )
    gathered = part + own
    inner_share = jnp.where(
        reduce,
        minimum(stack(2.0 * part + own, switch)),
        jnp.where(exchange, c["exchange"] * gathered, gathered),
    )
    tree = (joined + ramp(d - 2.0)) / TREE_BANDWIDTH
    ring = joined * (n - 1.0) / n
    outer_share = (
        jnp.where(
            reduce, minimum(stack(2.0 * ring, tree)), jnp.where(exchange, g * (d - 1.0) / d, ring)
        )
        / g
    )
    return maximum(stack(v * inner_share * inner, v * outer_share * outer))


def hops(c: Mapping[str, Array], x: Cases, protocol: int = LINES) -> jax.Array:
    """Latency of the hops [s], `[row]`: a ring's through d groups of g, `(g − 1) d α + (d − 1) r
    α_outer`, twice for an all-reduce unless a tree of rings' `2 (g − 1) α + 2 t log2(d) α_outer` is
    less; an all-to-all one of each level. r and t: hops of the protocol between
    nodes over a ring's in lines (`RING_HOPS`, `TREE_HOPS`)."""
    g, d = jnp.asarray(x.inner), jnp.asarray(x.outer)
    inner, outer = (
        x.latency_s[0] * c["latency_inner"],
        x.latency_s[1] * c["latency_outer"] / RING_HOPS[LINES],
    )
    ring = inner * (g - 1.0) * d + RING_HOPS[protocol] * outer * (d - 1.0)
    tree = inner * (g - 1.0) + TREE_HOPS[protocol] * outer * jnp.log2(d)
    exchange = inner * ramp(g - 1.0) + RING_HOPS[protocol] * outer * ramp(d - 1.0)
    kind = jnp.asarray(x.kind)
    return jnp.where(
        kind == 0.0, 2.0 * minimum(stack(ring, tree)), jnp.where(kind == 3.0, exchange, ring)
    )


def time(c: Mapping[str, Array], x: Cases) -> jax.Array:
    """Time of each call [s], `[row]`: `base + min_p(over_p + hops_p + flow / share_p)`.

    The communication library has protocols that flag every word, or every line of 128 bytes, quick
    to start at a part of the bandwidth (`low_latency`, `middle`), and one that moves large blocks;
    it takes the best. With base = crowding = 0, all shares 1, nothing to start and partners
    `OWN_PART` (0 for an all-to-all), the inner level is that of `dmodel.cost.collectives`.

    Limits: base + hops as the message shrinks, `V · share / rate` as it grows.
    """
    moved = flow(c, x)
    low = jnp.where(jnp.asarray(x.kind) == 3.0, c["exchange_low"], c["low_latency"])
    begun = ((0.0, low), (c["middle_over"], c["middle"]), (c["switch_over"], 1.0))
    least = hops(c, x, 0)
    # what all protocols take stays outside, where the smooth minimum does not see it
    protocols = [
        over + (hops(c, x, p) - least) + moved / share for p, (over, share) in enumerate(begun)
    ]
    return jnp.asarray(c["base"]) + least + minimum(stack(*protocols))


FORM = Form("collective", SPECS, time)
