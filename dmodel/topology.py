"""Slices of a torus, and the check of every network.

What cannot be a network is an error here, where it is described, because formulas would answer with
infinities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite, prod

import jax
import numpy as np

from dmodel.errors import InputError
from dmodel.records import Cluster, Network

RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    "size": (lambda x: x >= 1.0, "members of one domain, from 1 on"),
    "bytes_per_s": (lambda x: isfinite(x) and x > 0.0, "a bandwidth above 0 byte/s"),
    "latency_s": (lambda x: isfinite(x) and x >= 0.0, "a latency of 0 s or more"),
    "torus_axes": (lambda x: isfinite(x) and x >= 1.0, "1 for a switch, or the axes of a torus"),
    "in_network_reduction": (lambda x: 0.0 <= x <= 1.0, "0 or 1"),
}
"""What numbers of a level must be."""


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
    for name, (holds, expected) in RULES.items():
        _check_levels(where, name, columns[name], holds, expected)
    _check_nested(where, columns["size"])


def _check_levels(
    where: str, name: str, values: np.ndarray, holds: Callable[[float], bool], expected: str
) -> None:
    """Refuse a level with a number that breaks a rule."""
    for k, value in enumerate(values.tolist()):
        if not holds(value):
            raise InputError(
                f"{where}, level {k}: {name}: expected {expected}; got {value!r}. A link that "
                "is missing is no level"
            )


def _check_nested(where: str, size: np.ndarray) -> None:
    """Refuse levels within which there is nothing left."""
    for k, value in enumerate(size[:-1].tolist()):
        if value == inf:
            raise InputError(
                f"{where}: levels do not nest: level {k} has no end, so nothing is left for level "
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
    _check_shape(shape, axes)
    check_devices(jax.tree.map(lambda x: np.asarray(x, float)[:1], pod), chips, "slice")
    closed = _closed(shape, axes, wrap)
    used = [1.0 if c else 0.5 for s, c in zip(shape, closed, strict=True) if s > 1]
    size, rate, torus = (
        np.asarray(x, float).copy() for x in (pod.size, pod.bytes_per_s, pod.torus_axes)
    )
    size[:2], torus[0] = (chips, n_slices), max(len(used), 1)
    rate[0] *= max(sum(used), 0.5) / axes
    found = pod.replace(size=size, bytes_per_s=rate, torus_axes=torus)
    check(found, "slices")
    return system.replace(network=found)


def _check_shape(shape: Sequence[int], axes: int) -> None:
    """Refuse a slice that is no part of a torus of so many axes."""
    whole = all(s >= 1 and s == int(s) for s in shape)
    if axes < 2 or not 1 <= len(shape) <= axes or not whole:
        raise InputError(
            f"slice: expected chips along each of {axes} axes of the pod, whole numbers; got "
            f"{tuple(shape)}"
        )


def _closed(shape: Sequence[int], axes: int, wrap: Sequence[bool] | None) -> list[bool]:
    """Whether each axis of a slice closes."""
    period = 4 if axes == 3 else 16
    closed = [s % period == 0 for s in shape] if wrap is None else list(wrap)
    if len(closed) != len(shape):
        raise InputError(
            f"slice: {len(closed)} entries of wrap for {len(shape)} axes; expected one for "
            "each "
            "axis"
        )
    return closed
