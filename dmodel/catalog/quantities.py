"""Single numbers of a machine by name, in place of those of its chip and its network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dmodel.catalog import limits
from dmodel.errors import InputError
from dmodel.units import HOUR

if TYPE_CHECKING:
    from dmodel.records import Cluster


class Quantity(NamedTuple):
    """A number of a machine.

    Attributes:
      what: quantity of `limits.LIMITS`. part: "chip", or "intra" or "inter" of the network.
      leaf: of the record. meaning: for people.
    """

    what: str
    part: str
    leaf: str
    meaning: str


QUANTITIES = {
    "peak": Quantity("peak", "chip", "flops_per_s", "dense rate of the plan's products"),
    "exponentials": Quantity("exponentials", "chip", "exponentials_per_s", "rate of exponentials"),
    "memory": Quantity("memory", "chip", "hbm_bytes", "memory of a device"),
    "bandwidth.memory": Quantity(
        "memory bandwidth", "chip", "hbm_bytes_per_s", "bandwidth of the memory"
    ),
    "bandwidth.intra": Quantity(
        "bandwidth", "intra", "bytes_per_s", "of the innermost level, per device and direction"
    ),
    "bandwidth.inter": Quantity(
        "bandwidth",
        "inter",
        "bytes_per_s",
        "of the outer one of two levels, per device: of a host's ports over its devices",
    ),
    "latency.kernel": Quantity(
        "kernel latency", "chip", "kernel_latency_s", "from one dependent empty kernel to the next"
    ),
    "latency.intra": Quantity("latency", "intra", "latency_s", "of a hop on the innermost level"),
    "latency.inter": Quantity(
        "latency", "inter", "latency_s", "of a hop on the outer one of two levels"
    ),
    "bandwidth.host": Quantity(
        "bandwidth", "chip", "host_bytes_per_s", "of the link to the host, in one direction"
    ),
    "bandwidth.host-memory": Quantity(
        "memory bandwidth", "chip", "host_memory_bytes_per_s", "of the host's memory, for a device"
    ),
    "power.idle": Quantity("idle power", "chip", "idle_watts", "of a device at rest"),
    "power.peak": Quantity("peak power", "chip", "peak_watts", "of a device at full load"),
    "price": Quantity("price", "chip", "price_per_s", "rent of a device"),
}
"""Names that settings have for numbers of a machine."""


def value_of(name: str, text: Any) -> float:
    """A quantity by its name from what somebody wrote, in SI.

    Raises:
      InputError: no number, a unit of another kind, or beyond physics.
    """
    return limits.number(QUANTITIES[name].what, text, name)


def unit_of(name: str) -> str:
    """Unit of a quantity in SI."""
    return limits.LIMITS[QUANTITIES[name].what].unit


def changed(cluster: Cluster, settings: Mapping[str, Any], where: str = "") -> Cluster:
    """The machine with the numbers that settings say.

    Args:
      where: its name, for messages.
    Raises:
      InputError: a number of the outer level where there are more than two levels, or one.
    """
    said = [name for name in QUANTITIES if name in settings]
    for name in said:
        one, value = QUANTITIES[name], float(settings[name])
        change = _in_chip if one.part == "chip" else _in_network(name, where)
        cluster = change(cluster, one, value)
    return cluster


def _in_chip(cluster: Cluster, one: Quantity, value: float) -> Cluster:
    import numpy as np

    chip, leaf = cluster.chip, one.leaf
    new = {leaf: np.float64(value / HOUR if leaf == "price_per_s" else value)}
    if leaf == "flops_per_s" and chip.flops_per_s == chip.attention_flops_per_s:
        # products in 16 bits: attention has their rate
        new["attention_flops_per_s"] = new[leaf]
    return cluster.replace(chip=chip.replace(**new))


def _in_network(name: str, where: str) -> Callable[[Cluster, Quantity, float], Cluster]:
    """What changes a number of a level."""

    def change(cluster: Cluster, one: Quantity, value: float) -> Cluster:
        levels = cluster.network.n_levels
        if one.part == "inter" and levels != 2:
            raise InputError(
                f"{name}: {where or 'the network'} has {levels} levels, and this is the outer one "
                "of two; say it in a file: `dmodel catalog systems NAME --toml` prints a start"
            )
        values = getattr(cluster.network, one.leaf).copy()  # type: ignore[union-attr]
        values[0 if one.part == "intra" else 1] = value
        return cluster.replace(network=cluster.network.replace(**{one.leaf: values}))

    return change
