"""Chips and systems as the text of a file of one's own, which reads as exactly the same numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dmodel.catalog.loader import Entry, is_added, resolve, table
from dmodel.catalog.own import CHIP, LEVEL
from dmodel.units import written


class Line(NamedTuple):
    """A key and its number, with the entry of the catalog's data that it is from."""

    key: str
    value: str
    entry: Entry


def of_chip(name: str) -> str:
    """A chip of the catalog as a file.

    >>> of_chip("h100").splitlines()[1]
    'like = "H100-80GB"'
    """
    main = resolve("chips", name)
    entry = table("chips")[main]
    about = f"# {entry['about']}. What is left out is as of `like`, whose coefficients hold."
    return (
        "\n".join([about, f"like = {_text(entry.get('like', main))}", *_chip(entry, "peak")]) + "\n"
    )


def of_system(name: str) -> str:
    """A system of the catalog as a file; a chip of one's own is a table in it."""
    entry = table("systems")[resolve("systems", name)]
    about, chip = f"about = {_text(entry['about'])}", entry["chip"]
    own = is_added("chips", chip)
    lines = _chip_table(chip, table("chips")[chip]) if own else [f"chip = {_text(chip)}"]
    return "\n".join([about, *lines, *_levels(entry)]) + "\n"


def of_machine(name: str, system: Entry, chip: Entry) -> str:
    """A system with its chip as one file, for a machine that the catalog does not have.

    Args:
      name: of the system; its chip's name is in its entry. system, chip: as the catalog's data.
    """
    lines = [f"name = {_text(name)}", f"about = {_text(system['about'])}"]
    return "\n".join([*lines, *_chip_table(system["chip"], chip), *_levels(system)]) + "\n"


def _chip_table(name: str, chip: Entry) -> list[str]:
    """Lines of a chip as a table of a system's file.

    Args:
      name: where its entry does not say what its own file calls it.
    """
    said = {key: chip.get(key) for key in ("about", "like", "generation", "platform")}
    words = {"name": chip.get("called", name), **said}
    own = [f"{key} = {_text(value)}" for key, value in words.items() if value]
    return ["", "[chip]", *own, *_chip(chip, "chip.peak")]


def _chip(entry: Entry, peak: str) -> list[str]:
    """Lines of a chip's numbers, and of its rates as a table of their own."""
    return [*_commented(_numbers(entry)), "", f"[{peak}]", *_commented(_peaks(entry))]


def _levels(entry: Entry) -> list[str]:
    """Lines of the levels of a network, each a table."""
    lines = []
    for level in entry["levels"]:
        lines += ["", "[[level]]", f"name = {_text(level['name'])}", *_commented(_level(level))]
    return lines


def _text(value: str) -> str:
    """A text of TOML, whose basic strings are JSON's but for characters that have none here."""
    return json.dumps(value, ensure_ascii=False)


def _numbers(entry: Entry) -> list[Line]:
    found = ((key, entry.get(name)) for key, (name, _) in CHIP.items())
    return [_line(key, number) for key, number in found if number is not None]


def _peaks(entry: Entry) -> list[Line]:
    return [_line(precision, rate) for precision, rate in entry["flops_per_s"].items()]


def _line(key: str, number: Entry) -> Line:
    value, unit = number["value"], number["unit"]
    plain = unit in ("1", "count")
    return Line(key, repr(float(value)) if plain else f'"{written(value, unit)}"', number)


def _level(level: Entry) -> list[Line]:
    """Numbers of a level; an unbounded one has no size."""
    size, axes = level["size"], level["torus_axes"]
    adds = level["in_network_reduction"]
    bounded = [Line("size", str(int(size["value"])), size)] if size["value"] is not None else []
    rates = [_line(key, level[name]) for key, (name, _) in LEVEL.items()]
    torus = [Line("torus_axes", str(int(axes["value"])), axes)] if axes["value"] != 1 else []
    switch = Line("in_network_reduction", "true", adds)
    return [*bounded, *rates, *torus, *([switch] if adds["value"] else [])]


def _commented(lines: Sequence[Line]) -> Iterator[str]:
    """Lines of a table; above those of one source that source and its date."""
    said = None
    for line in lines:
        source = f"# {line.entry['source']}, {line.entry['date']}"
        if source != said:
            yield source
        said = source
        yield f"{line.key} = {line.value}"
