"""Networks as they are built, as levels: nested tiers, rail-optimised fat trees with
oversubscription, slices of a torus; and their check.

A tier is described by the devices of one of its domains; a `Network` counts members of the level
below. What cannot be a network is an error here, where it is described, because formulas would
answer with infinities.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, prod
from typing import NamedTuple

import jax
import numpy as np

from dmodel.records import Cluster, Network
from dmodel.types import InputError

SWITCH_LATENCY_S = 1e-6
"""What one more tier adds to a hop [s]: two switches of a few tenths of a microsecond and 100 m of
fibre at 5 ns/m; assumed."""

SU_NODES = 32
"""Nodes of a scalable unit, whose GPUs of one rank in the node share a leaf switch (NVIDIA DGX
SuperPOD H100 reference architecture)."""


class Tier(NamedTuple):
    """One level of a network.

    Attributes:
      devices: of one domain of the tier; infinite = as many as there are. bytes_per_s: per device
      and direction, before oversubscription. latency_s: of one hop. oversubscription: capacity
      below over capacity above, ≥ 1. torus_axes, in_network_reduction: as in `Network`.
    """

    devices: float
    bytes_per_s: float
    latency_s: float
    oversubscription: float = 1.0
    torus_axes: float = 1.0
    in_network_reduction: float = 0.0


def network(tiers: Sequence[Tier], where: str = "network") -> Network:
    """Nested tiers, innermost first, as a network: sizes `devices_k / devices_{k−1}`, rates
    `bytes/s over oversubscription`.

    Raises:
      InputError: the tiers do not nest, or a number is none of a network (`check`).

    An NVLink domain of 8 and 128 nodes behind it:

    >>> network([Tier(8, 4.5e11, 1e-6), Tier(1024, 5e10, 5e-6)]).size.tolist()
    [8.0, 128.0]
    """
    if not tiers:
        raise InputError(f"{where}: expected at least one level")
    below = 1.0
    for k, tier in enumerate(tiers):
        _nests(tier.devices, below, where, k)
        if not (isfinite(tier.oversubscription) and tier.oversubscription >= 1.0):
            raise InputError(
                f"{where}, level {k}: oversubscription is capacity below over capacity above, "
                f"expected ≥ 1; got {tier.oversubscription!r}"
            )
        below = tier.devices
    devices = [1.0, *(t.devices for t in tiers)]
    column = {
        "size": [b / a for a, b in zip(devices, devices[1:], strict=False)],
        "bytes_per_s": [t.bytes_per_s / t.oversubscription for t in tiers],
        "latency_s": [t.latency_s for t in tiers],
        "torus_axes": [t.torus_axes for t in tiers],
        "in_network_reduction": [t.in_network_reduction for t in tiers],
    }
    found = Network(**{name: np.asarray(values, np.float64) for name, values in column.items()})
    check(found, where)
    return found


def _nests(devices: float, below: float, where: str, k: int) -> None:
    """Refuse a level whose domains are no whole number of those below it."""
    if not devices >= 1.0 or below == inf:
        what = (
            "the level below has no end"
            if below == inf
            else "expected devices of one domain, from 1 on"
        )
        raise InputError(
            f"{where}, level {k}: {what}; got {devices!r}. List levels innermost first, an "
            "unbounded one last"
        )
    if isfinite(devices) and devices % below:
        near = max(round(devices / below), 1) * below
        if k == 0:
            raise InputError(
                f"{where}, level 0: expected a whole number of devices of one domain; got "
                f"{devices!r}; {near:g} would be one"
            )
        raise InputError(
            f"{where}: levels do not nest: a domain of {devices:g} devices on level {k} is no "
            f"whole number of domains of {below:g} "
            f"on level {k - 1}; {near:g} would be"
        )


def check(net: Network, where: str = "network") -> None:
    """Refuse what no network can be: no bandwidth, a level within an unbounded one, domains of no
    member, latencies below 0.

    Raises:
      InputError: says which level and number, and what was expected.
    """
    columns = {name: np.asarray(getattr(net, name), float) for name in Network.__dataclass_fields__}
    lengths = {name: x.shape for name, x in columns.items()}
    if len(set(lengths.values())) > 1 or columns["size"].ndim != 1 or not columns["size"].size:
        raise InputError(
            f"{where}: expected one number per level and attribute; got shapes {lengths}"
        )
    rules = {
        "size": (lambda x: x >= 1.0, "members of one domain, from 1 on"),
        "bytes_per_s": (lambda x: isfinite(x) and x > 0.0, "a bandwidth above 0 byte/s"),
        "latency_s": (lambda x: isfinite(x) and x >= 0.0, "a latency of 0 s or more"),
        "torus_axes": (
            lambda x: isfinite(x) and x >= 1.0,
            "1 for a switch, or the axes of a torus",
        ),
        "in_network_reduction": (lambda x: 0.0 <= x <= 1.0, "0 or 1"),
    }
    for name, (holds, expected) in rules.items():
        for k, value in enumerate(columns[name].tolist()):
            if not holds(value):
                raise InputError(
                    f"{where}, level {k}: {name}: expected {expected}; got {value!r}. A link "
                    "that "
                    "is missing is no level"
                )
    for k, value in enumerate(columns["size"][:-1].tolist()):
        if value == inf:
            raise InputError(
                f"{where}: levels do not nest: level {k} has no end, so nothing is left for "
                "level "
                f"{k + 1}; give it a size"
            )


def capacity(net: Network) -> float:
    """Devices that the network joins: the product of its sizes; infinite when its last level has no
    end [count]."""
    return prod(np.asarray(net.size, float).tolist())


def check_devices(net: Network, devices: float, where: str = "network") -> None:
    """Refuse more devices than the fabric holds, what is no count of devices, and what is no
    network (`check`).

    Raises:
      InputError: with both numbers.
    """
    check(net, where)
    held = capacity(net)
    if not devices >= 1.0:
        raise InputError(f"{where}: expected a number of devices from 1 on; got {devices!r}")
    if devices > held:
        sizes = " × ".join(f"{s:g}" for s in np.asarray(net.size, float).tolist())
        raise InputError(
            f"{where}: {devices:,.0f} devices, but the fabric holds {held:,.0f} ({sizes}); use "
            "fewer devices or a larger outer level"
        )


def fat_tree(
    system: Cluster,
    tiers: Sequence[float] = (SU_NODES, 64 * SU_NODES),
    oversubscription: Sequence[float] = (),
    *,
    tier_latency_s: float = SWITCH_LATENCY_S,
) -> Cluster:
    """A system whose outer network is a fat tree: leaf switches, spines and cores in place of one
    flat level.

    Rail-optimised: a leaf joins the GPUs of one rank in `tiers[0]` nodes, so a node reaches that
    many others over one switch, on all its adapters at once. Each further tier adds a round of
    switches to a hop and has the rate of an adapter over its oversubscription.
    A ring crosses a tier once for each of its domains, whatever the oversubscription; all-to-all
    and expert parallelism pay it in full.

    Args:
      system: its innermost level is the scale-up domain, its last one the adapters. tiers: nodes of
        one domain, innermost first;
        a last tier without end joins them, unless the last number is infinite.
      oversubscription: of each tier and the last; 1 where none is given.

    >>> from dmodel import catalog
    >>> tree = fat_tree(catalog.system("H100-DGX"), (32, 256), (1, 1, 7))
    >>> tree.network.size.tolist(), (tree.network.bytes_per_s / 1e9).round(1).tolist()
    ([8.0, 32.0, 8.0, inf], [450.0, 50.0, 50.0, 7.1])
    """
    flat = system.network
    scale_up, rate, latency = (
        float(flat.size[0]),
        float(flat.bytes_per_s[-1]),
        float(flat.latency_s[-1]),
    )  # type: ignore[index]
    nodes = [*map(float, tiers)] + ([] if tiers and tiers[-1] == inf else [inf])
    over = [*map(float, oversubscription)] + [1.0] * (len(nodes) - len(oversubscription))
    if len(over) > len(nodes):
        raise InputError(
            f"fat tree: {len(oversubscription)} oversubscriptions for {len(nodes)} tiers; give "
            "one for each, or fewer"
        )
    inner = Tier(
        scale_up,
        *(float(x[0]) for x in (flat.bytes_per_s, flat.latency_s)),
        1.0,  # type: ignore
        *(float(x[0]) for x in (flat.torus_axes, flat.in_network_reduction)),
    )  # type: ignore
    outer = [
        Tier(
            n * scale_up,
            rate,
            latency + k * tier_latency_s,
            o,
            1.0,
            float(flat.in_network_reduction[-1]),
        )  # type: ignore[index]
        for k, (n, o) in enumerate(zip(nodes, over, strict=True))
    ]
    return system.replace(network=network([inner, *outer], "fat tree"))


def with_scale_up(system: Cluster, devices: float) -> Cluster:
    """The system with another number of devices in its scale-up domain: NVLink domains of 8, 36 or
    72; a slice of a TPU pod."""
    size = np.asarray(system.network.size, float).copy()
    size[0] = devices
    found = system.network.replace(size=size)
    check(found, f"a scale-up domain of {devices!r}")
    return system.replace(network=found)


def slices(
    system: Cluster, shape: Sequence[int], n_slices: float = inf, wrap: Sequence[bool] | None = None
) -> Cluster:
    """Slices of a torus pod, joined by the data-centre network.

    An axis of a slice that is not as long as a cube's does not close: a ring along it runs back on
    the same links, at half the rate. Axes of one device have links that nobody uses.

    Args:
      system: a TPU of the catalog; its innermost level is the torus of a whole pod. shape: chips
      along each axis, two or three numbers. n_slices: how many there are at most. wrap: which axes
      close; where None, those that are a multiple of 4 (cubes of 4 × 4 × 4 behind
        optical switches: TPU v4, v5p; Jouppi et al. 2023), on two axes those of 16 (v5e, v6e).

    >>> from dmodel import catalog
    >>> two = slices(catalog.system("TPU-v5e"), (8, 16), n_slices=2).network
    >>> two.size.tolist(), float(two.bytes_per_s[0] / 1e9)
    ([128.0, 2.0], 150.0)
    """
    pod = system.network
    axes, chips = int(float(pod.torus_axes[0])), float(prod(shape))  # type: ignore[index]
    if axes < 2 or not 1 <= len(shape) <= axes or any(s < 1 or s != int(s) for s in shape):
        raise InputError(
            f"slice: expected chips along each of {axes} axes of the pod, whole numbers; got "
            f"{tuple(shape)}"
        )
    check_devices(jax.tree.map(lambda x: np.asarray(x, float)[:1], pod), chips, "slice")
    period = 4 if axes == 3 else 16
    closed = [s % period == 0 for s in shape] if wrap is None else list(wrap)
    if len(closed) != len(shape):
        raise InputError(
            f"slice: {len(closed)} entries of wrap for {len(shape)} axes; expected one for "
            "each "
            "axis"
        )
    used = [1.0 if c else 0.5 for s, c in zip(shape, closed, strict=True) if s > 1]
    size, rate, torus = (
        np.asarray(x, float).copy() for x in (pod.size, pod.bytes_per_s, pod.torus_axes)
    )
    size[:2], torus[0] = (chips, n_slices), max(len(used), 1)
    rate[0] *= max(sum(used), 0.5) / axes
    found = pod.replace(size=size, bytes_per_s=rate, torus_axes=torus)
    check(found, "slices")
    return system.replace(network=found)
