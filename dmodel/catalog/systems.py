"""Systems by name: a chip and the levels of its network; and the system that a trace ran on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dmodel.catalog.chips import chip
from dmodel.catalog.loader import Entry, field, known_name, number, resolve, table
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.records import Cluster, Network

NUMBERS = {
    "size": "count",
    "bytes_per_s": "byte/s",
    "latency": "s",
    "torus_axes": "count",
    "in_network_reduction": "0 or 1",
}
"""Numbers of one network level and the unit of each in the data file."""


def _network(main: str) -> Network:
    """Network of a system, innermost level first, `[level]` arrays of float64."""
    import numpy as np

    from dmodel.records import Network
    from dmodel.topology import check

    levels = table("systems")[main]["levels"]
    column = {
        key: np.array(
            [
                number(lv[key], unit, f"systems/{main}/{lv['name']}/{key}", key == "size")
                for lv in levels
            ],
            np.float64,
        )
        for key, unit in NUMBERS.items()
    }
    found = Network(
        size=column["size"],
        bytes_per_s=column["bytes_per_s"],
        latency_s=column["latency"],
        torus_axes=column["torus_axes"],
        in_network_reduction=column["in_network_reduction"],
    )
    check(found, f"catalog, systems/{main}")
    return found


def check(main: str, where: str) -> None:
    """Refuse a system whose levels are no network.

    Raises:
      InputError: which level and number; where: it is described.
    """
    try:
        _network(main)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def system(name: str, precision: str = "bf16", accelerator: str = "") -> Cluster:
    """Build the system of that name for a matmul precision.

    A torus level's bandwidth is the sum over all links of a chip, one direction.

    Args:
      name: a name or alias of the catalog ("H100-DGX", "GB200-NVL72", "TPU-v5p"), or the path of a
        TOML file (`dmodel.catalog.own`).
      precision: as in `chip`. accelerator: chip in place of the system's own; "" = its own.

    Returns:
      Two levels, more where the tiers of a cluster are known (`H100-Superpod`,
      `H100-SuperPOD-Rail`, `H100-Llama-3`). The outermost one
      is unbounded, except in a cluster of known size.

    Raises:
      InputError: unknown system (with the nearest names), or the chip lacks the precision.

    >>> system("H100-DGX").network.size.tolist()
    [8.0, inf]
    """
    import numpy as np

    from dmodel.records import Cluster

    main = resolve("systems", name)
    return Cluster(
        chip=chip(accelerator or table("systems")[main]["chip"], precision),
        network=_network(main),
        devices=np.float64(0.0),
    )


def default_system(accelerator: str) -> str:
    """Name of the system that an accelerator stands in unless told otherwise.

    >>> default_system("A100-80GB")
    'A100-DGX'

    Raises:
      InputError: unknown accelerator, or one without a default.
    """
    main = resolve("chips", accelerator)
    found = table("chips")[main].get("system")
    if found is None:
        raise InputError(
            f"accelerator {main}: no default system in the catalog; name one with --system "
            "(`dmodel catalog systems`)"
        )
    return found


def machine_named(name: str, chip: str = "") -> tuple[str, str]:
    """The system and the chip of what is said of a machine, as names; a chip that is said for a
    system is that chip, in the system that it stands in.

    Args:
      name: said for a system, chip: for a chip; "" = nothing.

    >>> machine_named("H100-DGX"), machine_named("MI300X")
    (('H100-DGX', ''), ('', 'MI300X'))
    """
    if not name or chip or known_name("systems", name) is not None:
        return name, chip
    return (name, "") if known_name("chips", name) is None else ("", name)


def by_link(link: str) -> str | None:
    """Name of the system whose network logs call by a word of a link; None where none has it.

    >>> by_link("NVSwitch/EFAv2"), by_link("NVLink")
    ('H100-EFA-3200', None)
    """
    called = ((name, entry.get("links", ())) for name, entry in table("systems").items())
    return next((name for name, words in called if any(word in link for word in words)), None)


def _domain(domain_size: float | None, default: float) -> float:
    """Members of the inner level: the trace's own figure where it has one."""
    if domain_size is None or math.isnan(domain_size):
        return default
    if domain_size < 1 or math.isinf(domain_size):
        raise InputError(
            f"domain_size: expected devices in the scale-up domain, ≥ 1, got {domain_size}; "
            "blank "
            "means the default"
        )
    return float(domain_size)


def system_for(
    accelerator: str,
    name: str = "",
    domain_size: float | None = None,
    precision: str = "bf16",
) -> Cluster:
    """Build the system that a configuration ran on.

    Args:
      accelerator: name of the chip ("A100-80GB", "TPU-v5p"), in place of the system's own.
      name: of a system of the catalog; "" = the chip's default.
      domain_size: devices in the scale-up domain, in place of the system's own; None or NaN keeps
        that. Of a torus a power of two below its pod is a slice, whose axes may be open
        (`topology.slices`).
      precision: as in `chip`.

    Raises:
      InputError: unknown accelerator or system, a precision that the chip lacks, or a domain size
        below 1.
    """
    from dmodel.topology import slices

    base = system(name or default_system(accelerator), precision, accelerator)
    chips = _domain(domain_size, float(base.network.size[0]))  # type: ignore[index]
    pod = float(base.network.size[0])  # type: ignore[index]
    axes = int(base.network.torus_axes[0])  # type: ignore[index]
    if axes > 1 and chips < pod and math.log2(chips).is_integer():
        return slices(base, _shape(int(math.log2(chips)), axes))
    return base.replace(network=_with_domain(base.network, chips))


def _with_domain(network: Network, chips: float) -> Network:
    """A network whose innermost domains have so many devices; levels that this domain holds whole
    are gone."""
    import jax
    import numpy as np

    size = np.asarray(network.size, float)
    reach = np.cumprod(size)
    kept = np.concatenate([[0], 1 + np.flatnonzero(reach[1:] > chips)])
    reach = np.concatenate([[1.0, chips], reach[kept[1:]]])
    rest: Network = jax.tree.map(lambda leaf: np.asarray(leaf)[kept], network)
    return rest.replace(size=reach[1:] / reach[:-1])


LARGEST_HOST = 16.0
"""Devices of the largest servers (DGX-2). A domain of more, a rack of NVL72 or a pod of TPUs, joins
hosts."""


TORUS_HOST = 8.0
"""Devices of the largest host of a torus: TPU hosts have 1, 4 or 8 chips, or 8 cores of 4 (Google
Cloud TPU documentation, pages of v4 to TPU7x, 2025-11)."""


def slice_size(devices: float, host: float | None, network: Network) -> float | None:
    """Devices of the slice of a torus that a run of `devices` stands in [count]: all of them, at
    most a pod; where `host` is more than any host has (`TORUS_HOST`), it is the slice. None where
    the network is no torus.

    Args:
      devices: of the run [count]. host: devices of one host, if known [count]. network: of the
        catalog.
    """
    pod, axes = float(network.size[0]), float(network.torus_axes[0])  # type: ignore[index]
    if axes <= 1.0:
        return None
    sliced = host if host and host > TORUS_HOST else devices
    return min(sliced, devices, pod)


def is_host_of_torus(domain: float, devices: float, network: Network) -> bool:
    """Whether a domain is one host of a slice that has more of them: hosts of a slice share its
    torus, so no network is between them."""
    torus = float(network.torus_axes[0]) > 1.0  # type: ignore[index]
    return torus and domain <= TORUS_HOST and domain < devices


def host_size(host: float, network: Network) -> float | None:
    """Devices of a host where it is the fast domain: the catalog's domain is within one host, and
    that host is smaller [count]. None where the catalog's holds.

    A domain that joins hosts (`LARGEST_HOST`; a torus) does not depend on how many devices each
    has.

    Args:
      host: devices of one host [count]. network: of the catalog.
    """
    size, axes = float(network.size[0]), float(network.torus_axes[0])  # type: ignore[index]
    return None if size > LARGEST_HOST or axes > 1.0 or host >= size else host


def _shape(doublings: int, axes: int) -> tuple[int, ...]:
    """Chips along each axis of a slice of `2^doublings`, as near to equal as may be, the longest
    last: the shapes that Google Cloud offers.

    >>> _shape(5, 2), _shape(7, 3)
    ((4, 8), (4, 4, 8))
    """
    return tuple(2 ** ((doublings + i) // axes) for i in range(axes))


def fields(entry: Entry) -> list[Entry]:
    """Every number of one system as rows for display."""
    return [
        field(f"{level['name']}/{key}", level[key]) for level in entry["levels"] for key in NUMBERS
    ]
