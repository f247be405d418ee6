"""Known chips, systems and models: data files in which every number has a source and a date, and
their loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dmodel.catalog import chips as _chips
from dmodel.catalog import model_names as _models
from dmodel.catalog import own as _own  # noqa: F401  takes in files wherever names are
from dmodel.catalog import systems as _systems
from dmodel.catalog.chips import chip, precisions
from dmodel.catalog.loader import Entry, table
from dmodel.catalog.systems import default_system, system, system_for
from dmodel.errors import InputError
from dmodel.lazily import surface

if TYPE_CHECKING:
    from dmodel.catalog.models import transformer

__all__ = [
    "KINDS",
    "chip",
    "default_system",
    "entries",
    "names",
    "precisions",
    "system",
    "system_for",
    "transformer",
]

surface(__name__, {"transformer": "dmodel.catalog.models"})

_FIELDS = {"chips": _chips.fields, "systems": _systems.fields, "models": _models.fields}
OPTIONAL = ("chip", "announced", "compared", "doubts")
"""What some entries say beside their names and numbers."""

KINDS = tuple(_FIELDS)
"""Kinds of entries that the catalog holds."""


def _check(kind: str) -> None:
    if kind not in KINDS:
        raise InputError(
            f"unknown kind of catalog entry {kind!r}; expected one of: {', '.join(KINDS)}"
        )


def names(kind: str) -> list[str]:
    """Main names of a kind of entries ("chips", "systems", "models"), in the order of the data
    file."""
    _check(kind)
    return list(table(kind))


def entries(kind: str) -> list[Entry]:
    """All entries of a kind for display: `{name, aliases, about, [chip], [announced], [compared],
    [doubts], fields}`.

    `fields` are rows `{field, value, unit, source, date}` in the units of the data file; a missing
    value means unbounded. `compared` says `{what, with, date}`: which numbers were looked up, where
    and when; `doubts` are what was not found or is printed differently.
    """
    _check(kind)
    return [
        {
            "name": name,
            "aliases": list(entry["aliases"]),
            "about": entry["about"],
            **{key: entry[key] for key in OPTIONAL if key in entry},
            "fields": _FIELDS[kind](entry),
        }
        for name, entry in table(kind).items()
    ]
