"""The machine of a question: the system that it names, else the one that stack or chip imply."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from dmodel.catalog.loader import canonical
from dmodel.catalog.systems import host_size, is_host_of_torus, slice_size, system_for
from dmodel.deciding import first_facts
from dmodel.question import Assumption, Question, degrees, words
from dmodel.records import Cluster


def machine(
    question: Question, chip: str, values: Mapping[str, Any], said: list[Assumption]
) -> Cluster:
    """Chip and network: the question's own system, else the one that stack or chip imply.

    A run on a torus stands in one slice, whatever its hosts hold: an open `domain_size`, and one
    that is a host's, is the slice (`dmodel.catalog.systems.slice_size`).
    """
    name = question.system or str(values.get("system", ""))
    base = _looked_up(chip, name, None, question.precision, question.system != "")
    size = question.number("domain_size")
    if not question.system:
        size, text = _domain(question, values, base, size)
        said.extend([Assumption(text, about=("domain_size",))] if text else [])
    return base if size is None else _looked_up(chip, name, size, question.precision, False)


def _domain(
    question: Question, values: Mapping[str, Any], base: Cluster, given: float | None
) -> tuple[float | None, str]:
    """Devices of the innermost domain, None = the catalog's, and what is assumed of it."""
    host = values.get("accel_per_node", question.number("accel_per_node"))
    devices = question.known("n_accel")
    if given and not (given == host and is_host_of_torus(given, devices, base.network)):
        return given, ""
    start = f"domain_size {given:g}, one host" if given else "domain_size blank"
    if (size := slice_size(devices, host, base.network)) is not None:
        return size, f"{start}: {size:g}, the slice as one torus"
    size = host_size(host, base.network) if host else None
    whose = "the catalog's" if size is None else f"{size:g}, the devices of a host"
    return size, f"{start}: {whose}"


def system_of(question: Question) -> Cluster:
    """Chip and network of a question whose shape is complete.

    Raises:
      InputError: unknown accelerator or system, or a precision that the chip lacks.
    """
    at = degrees(question)
    chip = canonical("chips", question.text("accelerator"))
    found = first_facts(question, words(question, at, chip))
    return machine(question, question.text("accelerator"), found.values, [])


@lru_cache(maxsize=4096)
def _looked_up(
    chip: str, name: str, domain_size: float | None, precision: str, whole: bool
) -> Cluster:
    """A system of the catalog; whole: with all levels of its network."""
    return system_for(chip, name, domain_size, precision, whole=whole)
