"""Reading and checking the data files of the catalog, and finding an entry by any of its names."""

from __future__ import annotations

import difflib
import functools
import json
import math
import re
from importlib import resources
from typing import Any

from dmodel.errors import InputError

VERSION = 1
"""Format of the data files."""

Entry = dict[str, Any]


def fold(name: str) -> str:
    """Fold the spellings of one name together: lower case, without spaces, `-` and `_` ("Llama 3
    70B" → "llama370b")."""
    return re.sub(r"[\s_\-]+", "", name).lower()


MAKERS = re.compile(r"^((NVIDIA|AMD|Instinct|Tesla|GeForce)[\s_\-]+)+", re.IGNORECASE)
"""Makers and brands that tools print before the name of a chip: `nvidia-smi` and PyTorch say
"NVIDIA H100 80GB HBM3"."""


@functools.cache
def document(kind: str) -> dict[str, Any]:
    """The data file of a kind ("chips", "systems", "models"), read once.

    Raises:
      InputError: the installed file is of another version.
    """
    text = (
        resources.files("dmodel.catalog").joinpath(f"data/{kind}.json").read_text(encoding="utf-8")
    )
    found = json.loads(text)
    if found.get("version") != VERSION:
        raise InputError(
            f"catalog file {kind}.json: expected version {VERSION}, got "
            f"{found.get('version')!r}; "
            "install dmodel again"
        )
    return found


def table(kind: str) -> dict[str, Entry]:
    """All entries of a kind by their main name, in the order of the file."""
    return document(kind)["entries"]


def extend(found: Any, where: str) -> None:
    """Add machines to the catalog of this process, from a document with the version and the entries
    of the data files:

    `{"version", "chips": {name: entry}, "systems": {name: entry}, "accelerators": {chip: system}}`.
    The same machine may come again, with other numbers, too; a name of the shipped catalog may not.

    Args:
      where: the document came from, for messages.
    Raises:
      InputError: another version, a document of another shape, or a name of the shipped catalog.
    """
    parts = _parts(found, where)
    added = [(kind, name) for kind in ("chips", "systems") for name in parts[kind]]
    for kind, name in added:
        _refuse_taken(kind, name, where)
    for kind, name in added:
        _ADDED.add((kind, name))
        table(kind)[name] = parts[kind][name]
    _spellings.cache_clear()
    for chip, system in parts["accelerators"].items():
        if main := known_name("chips", chip):
            table("chips")[main] = {**table("chips")[main], "system": system}


def _refuse_taken(kind: str, name: str, where: str) -> None:
    """Refuse a name of the shipped catalog."""
    known = _spellings(kind).get(fold(name))
    if known is not None and (kind, known) not in _ADDED:
        taken = f"{name!r} is a name of the catalog ({known})"
        raise InputError(f"{where}: {taken}; give the machine another one")


def _parts(found: Any, where: str) -> dict[str, dict[str, Any]]:
    """Entries of a document by kind.

    Raises:
      InputError: another version, or a document of another shape.
    """
    if not isinstance(found, dict) or found.get("version") != VERSION:
        expected = f"expected a description of machines of version {VERSION}"
        raise InputError(f"{where}: {expected}; collect it again with this version")
    parts: dict[str, Any] = {kind: found.get(kind) for kind in ("chips", "systems", "accelerators")}
    if not _are_parts(parts):
        raise InputError(
            f"{where}: expected objects named chips, systems and accelerators, each entry as in "
            "the catalog's data files"
        )
    return parts


def _are_parts(parts: dict[str, Any]) -> bool:
    """Whether the parts of a document have the shape of the data files."""
    are_dicts = all(isinstance(part, dict) for part in parts.values())
    return are_dicts and _are_entries(parts["chips"]) and _are_entries(parts["systems"])


_ADDED: set[tuple[str, str]] = set()
"""Kind and name of what `extend` has added."""


def _are_entries(part: dict[str, Any]) -> bool:
    return all(
        isinstance(entry, dict) and isinstance(entry.get("aliases"), list)
        for entry in part.values()
    )


@functools.cache
def _spellings(kind: str) -> dict[str, str]:
    """Main name of every folded name and alias; a name that two entries claim is an error of the
    data."""
    found: dict[str, str] = {}
    for name, entry in table(kind).items():
        for spelling in (name, *entry["aliases"]):
            if found.setdefault(fold(spelling), name) != name:
                raise InputError(
                    f"catalog file {kind}.json: {spelling!r} names both "
                    f"{found[fold(spelling)]!r} "
                    f"and {name!r}"
                )
    return found


def nearest(name: str, known: list[str], n: int = 3) -> list[str]:
    """The names most like `name`, best first: those that begin as it does (`BEGINNING`) before all
    others, by likeness in each part; then names that contain it or are contained in it."""
    wanted = fold(name)
    inside = [k for k in known if wanted and (wanted in fold(k) or fold(k) in wanted)]
    folded = {fold(k): k for k in known}
    similar = [
        folded[k]
        for k in difflib.get_close_matches(wanted, list(folded), n=max(len(folded), 1), cutoff=0.4)
    ]
    begins = wanted[: min(BEGINNING, max(len(wanted) - 1, 1))]
    return sorted(dict.fromkeys(similar + inside), key=lambda k: not fold(k).startswith(begins))[:n]


BEGINNING = 4
"""Letters, of fewer all but the last, by which two names begin alike: `H100X` as the H100s do, and
not the H800."""


def bare(kind: str, name: str) -> str:
    """The name without makers and brands before it, which only chips have."""
    return MAKERS.sub("", name.strip()) if kind == "chips" else name


def known_name(kind: str, name: str) -> str | None:
    """Main name of the entry that `name` means; None when no entry has that name. A chip may have
    its maker before it, as tools print it.

    >>> known_name("chips", "NVIDIA H100 80GB HBM3"), known_name("chips", "H101")
    ('H100-80GB', None)
    """
    spellings = _spellings(kind)
    return spellings.get(fold(str(name))) or spellings.get(fold(bare(kind, str(name))))


def canonical(kind: str, name: str) -> str:
    """Main name of an entry where there is one, else the name folded to one spelling.

    >>> canonical("models", "Llama 3 70B"), canonical("models", "Our_Own 7B")
    ('llama-3-70b', 'our-own-7b')
    """
    return known_name(kind, name) or re.sub(r"[\s_]+", "-", str(name).strip()).lower()


def resolve(kind: str, name: str) -> str:
    """Main name of the entry that `name` means.

    Raises:
      InputError: no entry has that name; the message offers the nearest ones.
    """
    main = known_name(kind, name)
    if main is None:
        raise InputError(unknown(kind, name))
    return main


def unknown(kind: str, name: str, more: str = "") -> str:
    """Text of the error about a name that the catalog does not hold."""
    spelled = [
        spelling for main, entry in table(kind).items() for spelling in (main, *entry["aliases"])
    ]
    alike = nearest(bare(kind, str(name)), spelled, len(spelled))
    close = list(dict.fromkeys(_spellings(kind)[fold(spelling)] for spelling in alike))[:3]
    hint = f"nearest: {', '.join(close)}" if close else f"known: {', '.join(table(kind))}"
    return f"unknown {kind[:-1]} {name!r}; {hint}. `dmodel catalog {kind}` lists all{more}"


def number(entry: Entry, unit: str, where: str, allow_null: bool = False) -> float:
    """Value of one number of a data file, checked: its unit, that it is finite and not negative,
    that it has a source and a date.

    Args:
      entry: `{"value", "unit", "source", "date"}`. where: its place, for the message.
      allow_null: a missing value means unbounded, hence infinity.
    """
    value, source, date = entry.get("value"), entry.get("source"), entry.get("date")
    if value is None and allow_null:
        value = math.inf
    elif not _is_amount(value):
        raise InputError(f"catalog, {where}: expected a finite number ≥ 0, got {value!r}")
    if entry.get("unit") != unit:
        raise InputError(f"catalog, {where}: expected the unit {unit!r}, got {entry.get('unit')!r}")
    if not source or not re.fullmatch(r"\d{4}(-\d{2}){0,2}", str(date)):
        raise InputError(
            f"catalog, {where}: every number needs a source and a date (YYYY-MM), got "
            f"{source!r}, "
            f"{date!r}"
        )
    return float(value)  # type: ignore[arg-type]


def _is_amount(value: Any) -> bool:
    """Whether this is a finite number that is not negative."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0


def field(name: str, entry: Entry) -> Entry:
    """One number of a data file as a row for display."""
    return {
        "field": name,
        "value": entry["value"],
        "unit": entry["unit"],
        "source": entry["source"],
        "date": entry["date"],
    }
