"""Hosts of devices: the link between both, and the bandwidth of the host's memory."""

from __future__ import annotations

from typing import NamedTuple

from dmodel.catalog.loader import Entry, known_name, number, table

DEFAULT = "default"
"""The entry that stands for hosts of which nothing is known."""


class Host(NamedTuple):
    """A host as one of its devices sees it.

    Attributes:
      about: in words. link: rate of the link, in one direction [byte/s]. memory: bandwidth of the
        memory of the whole host [byte/s]. devices: on it [count]. source, date: of the memory.
    """

    about: str
    link: float
    memory: float
    devices: float
    source: str
    date: str

    def per_device(self, running: float) -> float:
        """What of the memory's bandwidth each of so many devices has [byte/s]."""
        return self.memory / max(min(running, self.devices), 1.0)


def host(chip: str, system: str = "") -> Host:
    """The host of a system, else of a chip, else of its generation, else `DEFAULT`.

    >>> host("GH200-96GB").link, host("H200-141GB").about
    (450000000000.0, 'PCIe 5 x16, two Xeon Platinum 8480C with 8 channels of DDR5-4800, 8 devices')
    """
    hosts, main = table("hosts"), known_name("chips", chip)
    system = (known_name("systems", system) or "") if system else ""
    entry = {} if main is None else table("chips")[main]
    names = (system, main, entry.get("like"), entry.get("generation"), DEFAULT)
    name = next(each for each in names if each in hosts)
    return _host(hosts[name], f"hosts/{name}")


def _host(entry: Entry, where: str) -> Host:
    return Host(
        about=entry["about"],
        link=number(entry["link"], "byte/s", f"{where}/link"),
        memory=number(entry["memory"], "byte/s", f"{where}/memory"),
        devices=number(entry["devices"], "count", f"{where}/devices"),
        source=entry["memory"]["source"],
        date=entry["memory"]["date"],
    )
