"""The machine of a question: the system that it names, else the one that stack or chip imply."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from dmodel.catalog.hosts import host as host_of
from dmodel.catalog.loader import edition, known_name, table
from dmodel.catalog.quantities import changed
from dmodel.catalog.systems import (
    LARGEST_HOST,
    host_size,
    is_host_of_torus,
    slice_size,
    system_for,
)
from dmodel.question import Assumption, Question
from dmodel.records import Cluster


def machine(
    question: Question, chip: str, values: Mapping[str, Any], said: list[Assumption]
) -> Cluster:
    """Chip and network: the question's own system, else the one that stack or chip imply.

    A run on a torus stands in one slice, whatever its hosts hold: an open `domain_size`, and one
    that is a host's, is the slice (`dmodel.catalog.systems.slice_size`).

    Raises:
      InputError: unknown accelerator or system, or a precision that the chip lacks.
    """
    name = question.system or str(values.get("system", ""))
    said.extend(_notes(question, chip, name))
    host = values.get("accel_per_node", question.number("accel_per_node"))
    running = min(question.known("n_accel"), host or LARGEST_HOST, LARGEST_HOST)
    at = question.precision, running, edition()
    base = _looked_up(chip, name, None, *at)
    if question.system:
        size = question.number("domain_size") or _of_a_host(host, base)
    else:
        size, text = _domain(question, host, base)
        said.extend([Assumption(text, about=("domain_size",))] if text else [])
    if size is not None:
        base = _looked_up(chip, name, size, *at)
    if any(values.get(each) for each in HOSTED):
        said.append(_said_of_host(chip, name, running))
    return changed(base, question.settings, name)


HOSTED = ("offload", "offload_inputs", "offload_results", "offload_optimizer", "offload_weights")
"""Settings that say what waits in host memory."""


def _said_of_host(chip: str, system: str, running: float) -> Assumption:
    """Which host is meant, where something waits in its memory."""
    its = host_of(chip, system)
    text = (
        f"host: {its.about}; {its.link / 1e9:.4g} GB/s in a direction, and of its memory "
        f"{its.per_device(running) / 1e9:.3g} GB/s for each device ({its.source}, {its.date})"
    )
    about = ("bandwidth.host", "bandwidth.host-memory")
    return Assumption(text, about=about)


def _notes(question: Question, chip: str, system: str) -> list[Assumption]:
    """What is to be said of a machine: announced figures, what its file leaves out, doubts."""
    found = []
    for kind, name in (("chips", chip), ("systems", system)):
        main = known_name(kind, name) if name else None
        entry = {} if main is None else table(kind)[main]
        found += [Assumption(text) for text in entry.get("notes", ())]
        if kind == "chips" and "announced" in entry:
            found.append(Assumption(f"{main}: figures as announced, {entry['announced']}"))
        own = entry.get("chip")
        if own is not None and question.system and known_name("chips", chip) != own:
            found.append(Assumption(f"{main} with {known_name('chips', chip)} in place of {own}"))
    return found


def _of_a_host(host: float | None, base: Cluster) -> float | None:
    """Devices of the innermost domain where a host holds fewer; None where it does not say."""
    return host_size(host, base.network) if host else None


def _domain(question: Question, host: float | None, base: Cluster) -> tuple[float | None, str]:
    """Devices of the innermost domain, None = the catalog's, and what is assumed of it."""
    given = question.number("domain_size")
    devices = question.known("n_accel")
    if given and not (given == host and is_host_of_torus(given, devices, base.network)):
        return given, ""
    start = f"domain_size {given:g}, one host" if given else "domain_size blank"
    if (size := slice_size(devices, host, base.network)) is not None:
        return size, f"{start}: {size:g}, the slice as one torus"
    size = _of_a_host(host, base)
    whose = "the catalog's" if size is None else f"{size:g}, the devices of a host"
    return size, f"{start}: {whose}"


@lru_cache(maxsize=4096)
def _looked_up(
    chip: str,
    name: str,
    domain_size: float | None,
    precision: str,
    running: float,
    edition: int,
) -> Cluster:
    """A system of the catalog in its state of an edition; devices of a host that run share the
    bandwidth of its memory."""
    found, its = system_for(chip, name, domain_size, precision), host_of(chip, name)
    rate = np.float64(its.per_device(running))
    chip_there = found.chip.replace(
        host_bytes_per_s=np.float64(its.link), host_memory_bytes_per_s=rate
    )
    return found.replace(chip=chip_there)
