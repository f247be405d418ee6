"""Reading and checking the data files of the catalog, and finding an entry by any of its names."""

from __future__ import annotations

import difflib
import functools
import json
import math
import re
from collections.abc import Callable
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


MAKERS = re.compile(
    r"^((NVIDIA|AMD|Instinct|Tesla|GeForce|Quadro|Intel(\(R\))?|Habana|AWS|Google)[\s_\-]+)+",
    re.IGNORECASE,
)
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


SUFFIX = ".toml"
"""Ending of the path of a user's own file, which stands where a name of the catalog does."""

READERS: dict[str, Callable[[str], str]] = {}
"""By kind, what takes in a user's own file and returns its id (`dmodel.catalog.own`)."""

_ADDED: set[tuple[str, str]] = set()
"""Kind and name of what `add` has added."""

_CHANGES = [0]
"""How often `add` has changed the catalog."""


def add(kind: str, name: str, entry: Entry, where: str) -> None:
    """Add an entry to the catalog of this process; the same may come again, with other numbers too.

    Args:
      where: it is described, for messages.
    Raises:
      InputError: a name of the shipped catalog.
    """
    known = _spellings(kind).get(fold(name))
    if known is not None and (kind, known) not in _ADDED:
        taken = f"{name!r} is a name of the catalog ({known})"
        raise InputError(f"{where}: {taken}; give the machine another one")
    if table(kind).get(name) != entry:
        table(kind)[name] = entry
        _ADDED.add((kind, name))
        _CHANGES[0] += 1
        _spellings.cache_clear()


def is_added(kind: str, name: str) -> bool:
    """Whether an entry is of this process only."""
    return (kind, name) in _ADDED


def edition() -> int:
    """How often entries have been added or changed: caches of what they make depend on it."""
    return _CHANGES[0]


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
    its maker before it, as tools print it; the path of a TOML file means what it describes.

    >>> known_name("chips", "NVIDIA H100 80GB HBM3"), known_name("chips", "H101")
    ('H100-80GB', None)
    """
    if kind in READERS and str(name).endswith(SUFFIX):
        return READERS[kind](str(name))
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
