"""The machine of a question: the system that it names, else the one that stack or chip imply."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from dmodel.catalog.systems import host_size, system_for
from dmodel.question import Assumption, Question
from dmodel.records import Cluster


def machine(
    question: Question, chip: str, values: Mapping[str, Any], said: list[Assumption]
) -> Cluster:
    """Chip and network: the question's own system, else the one that stack or chip imply.

    Raises:
      InputError: unknown accelerator or system, or a precision that the chip lacks.
    """
    name = question.system or str(values.get("system", ""))
    given = question.number("domain_size")
    base = _looked_up(chip, name, None, question.precision, question.system != "")
    inner = None if given else _of_a_host(question, values, base)
    if given is None and not question.system:
        whose = "the catalog's" if inner is None else f"{inner:g}, the devices of a host"
        said.append(Assumption(f"domain_size blank: {whose}"))
    size = given or inner
    return base if size is None else _looked_up(chip, name, size, question.precision, False)


def _of_a_host(question: Question, values: Mapping[str, Any], base: Cluster) -> float | None:
    """Devices of the innermost domain where a host holds fewer; None where it does not say."""
    host = values.get("accel_per_node", question.number("accel_per_node"))
    return host_size(host, base.network) if host else None


@lru_cache(maxsize=4096)
def _looked_up(
    chip: str, name: str, domain_size: float | None, precision: str, whole: bool
) -> Cluster:
    """A system of the catalog; whole: with all levels of its network."""
    return system_for(chip, name, domain_size, precision, whole=whole)
