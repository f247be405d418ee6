"""Chips and systems of a user's own, in TOML files: one of a chip, one of a system.

A file is known by its path wherever the catalog's names are: `--system ./mine.toml`,
`dm.cluster("./mine.toml", 512)`. `dmodel catalog systems NAME --toml` prints one to start from.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from dmodel.catalog import chips, doubts, limits, loader, systems
from dmodel.catalog.loader import SUFFIX, Entry, nearest, table
from dmodel.errors import InputError

CHIP = {
    "memory": ("hbm_bytes", "memory"),
    "bandwidth": ("hbm_bytes_per_s", "memory bandwidth"),
    "exponentials": ("exponentials_per_s", "exponentials"),
    "kernel_latency": ("kernel_latency", "kernel latency"),
    "idle_power": ("idle_power", "idle power"),
    "peak_power": ("peak_power", "peak power"),
    "price": ("price", "price"),
    "last_level_cache": ("last_level_cache", "cache"),
    "power_demand": ("power_demand", "factor"),
    "grouped_efficiency": ("grouped_efficiency", "factor"),
}
"""Keys of a chip → name in the catalog's data, quantity of `limits.LIMITS`."""

WORDS = ("name", "about", "source", "date")
OF_CHIP = (*WORDS, "like", "generation", "platform", "system", "peak", *CHIP)
OF_SYSTEM = (*WORDS, "chip", "level")
LEVEL = {"bandwidth": ("bytes_per_s", "bandwidth"), "latency": ("latency", "latency")}
OF_LEVEL = ("name", "size", *LEVEL, "torus_axes", "in_network_reduction", "source", "date")
"""Keys that there are."""

NEEDED = ("peak", "memory", "bandwidth")
"""Keys of a chip that is like no other."""


class Place:
    """Where something is said, for messages, and who says it."""

    def __init__(self, path: Path, found: Mapping[str, Any], inside: str = "") -> None:
        self.path, self.where = path, f"{path}{inside}"
        changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        self.source = str(found.get("source", path))
        self.date = str(found.get("date", changed.strftime("%Y-%m-%d")))

    def entry(self, value: float | None, unit: str) -> Entry:
        """A number as the catalog's data have it."""
        return {"value": value, "unit": unit, "source": self.source, "date": self.date}


def system(path: str) -> str:
    """Take in the system of a file; its id in the catalog of this process.

    Raises:
      InputError: a file that cannot be read, a key or value that there cannot be.
    """
    return _take("systems", path, path)


def chip(path: str) -> str:
    """Take in the chip of a file; as `system`."""
    return _take("chips", path, path)


loader.READERS.update(systems=system, chips=chip)


def add(path: Path) -> str:
    """Take in a system by the name that its file says, so that traces may name it and its chip.

    Raises:
      InputError: as `system`; a name of the shipped catalog.
    """
    name = _read(path).get("name")
    if not isinstance(name, str) or not name:
        raise InputError(f"{path}: name: expected the name by which traces know it, got {name!r}")
    return _take("systems", str(path), name)


def _take(kind: str, path: str, name: str) -> str:
    """Take in what a file says under a name."""
    found, file = _read(Path(path)), Path(path)
    if kind == "chips":
        return _chip(found, Place(file, found), _text(found, "name", path) or name)
    return _system(found, Place(file, found), name)


def _read(path: Path) -> dict[str, Any]:
    """A file's content, read again when it has changed.

    Raises:
      InputError: no readable TOML.
    """
    try:
        seen = path.stat()
        return _parsed(path, seen.st_mtime_ns, seen.st_size)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(
            f"{path}: not readable ({why}); name an entry of the catalog or a TOML file"
        ) from None


@lru_cache(maxsize=64)
def _parsed(path: Path, changed: int, size: int) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not readable as TOML ({error})") from None


def _check_keys(found: Mapping[str, Any], known: Iterable[str], where: str, hint: str = "") -> None:
    """Refuse keys that there are not."""
    known = list(known)
    for key in found:
        if key not in known:
            close = nearest(key, known, 1)
            near = f"; nearest: {close[0]}" if close else ""
            raise InputError(
                f"{where}: unknown key {key!r}{near}. Keys are {', '.join(known)}{hint}"
            )


def _text(found: Mapping[str, Any], key: str, where: str) -> str:
    value = found.get(key, "")
    if not isinstance(value, str):
        raise InputError(f"{where}, {key}: expected a text, got {value!r}")
    return value


def _chip(found: Mapping[str, Any], place: Place, name: str) -> str:
    """Take in a chip; its id."""
    is_system = "; this is of a system: --system" if "level" in found else ""
    _check_keys(found, OF_CHIP, place.where, is_system)
    like = _known(_text(found, "like", place.where), f"{place.where}, like")
    model = table("chips")[like] if like else None
    own = _numbers(found, CHIP, place)
    rates = _peaks(found, place)
    if model is None:
        _check_needed(found, place.where)
        model, notes = _nearest(rates, own, name)
    else:
        notes = []
    whole = {key: model[key] for key, _ in CHIP.values() if key in model} | own
    entry: Entry = {
        "aliases": [],
        "called": _text(found, "name", place.where),
        "about": _text(found, "about", place.where) or f"as {place.path} describes it",
        "generation": _text(found, "generation", place.where)
        or (model["generation"] if like else ""),
        "platform": _text(found, "platform", place.where) or model["platform"],
        **({"like": like} if like else {}),
        **_default_system(found, like, model, place),
        "flops_per_s": rates or model["flops_per_s"],
        **whole,
    }
    entry["notes"] = [*notes, *doubts.of_chip(entry, name)]
    loader.add("chips", name, entry, place.where)
    return name


def _default_system(
    found: Mapping[str, Any], like: str, model: Entry, place: Place
) -> dict[str, str]:
    """The system that a chip stands in unless told."""
    name = _text(found, "system", place.where) or (model.get("system", "") if like else "")
    return {"system": name} if name else {}


def _check_needed(found: Mapping[str, Any], where: str) -> None:
    """Refuse a chip that is like no other and says too little."""
    if missing := [key for key in NEEDED if key not in found]:
        raise InputError(
            f"{where}: {', '.join(missing)}: missing; a chip needs {', '.join(NEEDED)}, or `like` "
            "with the name of a chip that has them"
        )


def _numbers(
    found: Mapping[str, Any], keys: Mapping[str, tuple[str, str]], place: Place
) -> dict[str, Entry]:
    """Quantities by their names in the catalog's data."""
    taken: dict[str, Entry] = {}
    for key, (name, what) in keys.items():
        if key in found:
            value = limits.number(what, found[key], f"{place.where}, {key}")
            taken[name] = place.entry(value, limits.LIMITS[what].unit)
    return taken


def _peaks(found: Mapping[str, Any], place: Place) -> dict[str, Entry]:
    """Rates by precision."""
    peaks = found.get("peak", {})
    if not isinstance(peaks, dict) or ("peak" in found and not peaks):
        raise InputError(
            f'{place.where}, peak: expected rates by precision, such as bf16 = "989 TFLOP/s"; got '
            f"{peaks!r}"
        )
    _check_keys(peaks, _precisions(), f"{place.where}, peak")
    rates = {p: limits.number("peak", v, f"{place.where}, peak, {p}") for p, v in peaks.items()}
    return {p: place.entry(rate, "FLOP/s") for p, rate in rates.items()}


def _precisions() -> list[str]:
    """Precisions of the catalog's chips, and those of processors."""
    found = [p for entry in table("chips").values() for p in entry["flops_per_s"]]
    return list(dict.fromkeys([*found, "tf32", "fp32"]))


def _nearest(
    rates: Mapping[str, Entry], own: Mapping[str, Entry], name: str
) -> tuple[Entry, list[str]]:
    """The catalog's chip whose peak is nearest, and that it fills what is left out."""
    peak = doubts.half_rate(rates)
    shipped = [
        (main, e) for main, e in table("chips").items() if not loader.is_added("chips", main)
    ]
    main, entry = min(
        shipped, key=lambda pair: abs(math.log(doubts.half_rate(pair[1]["flops_per_s"]) / peak))
    )
    needed = [key for key in CHIP if CHIP[key][0] in chips.NUMBERS]
    left = [key for key in needed if CHIP[key][0] not in own]
    shown = {key: entry[key] for key in chips.NUMBERS} | {"generation": "", "platform": "gpu"}
    text = f"{name}: {', '.join(left)} left out: those of {main}, whose peak is nearest"
    return shown, [text] if left else []


def _system(found: Mapping[str, Any], place: Place, name: str) -> str:
    """Take in a system; its id."""
    is_chip = "; this is of a chip: --chip" if {"peak", *CHIP} & {*found} else ""
    _check_keys(found, OF_SYSTEM, place.where, is_chip)
    entry: Entry = {
        "aliases": [],
        "about": _text(found, "about", place.where) or f"as {place.path} describes it",
        "chip": _chip_of(found, place),
        "levels": _levels(found, place),
    }
    entry["notes"] = doubts.of_system(entry, name)
    loader.add("systems", name, entry, place.where)
    systems.check(name, place.where)
    _be_default(entry["chip"], name)
    return name


def _be_default(chip_name: str, system_name: str) -> None:
    """Where an added chip names no system, it stands in the one whose file has it."""
    entry = table("chips")[chip_name]
    if "system" not in entry and loader.is_added("chips", chip_name):
        entry["system"] = system_name


def _chip_of(found: Mapping[str, Any], place: Place) -> str:
    """Id of a system's chip: of the catalog, of a file beside this one, or described in it."""
    said = found.get("chip")
    if isinstance(said, dict):
        inside = Place(place.path, {"source": place.source, "date": place.date, **said}, ", chip")
        return _chip(said, inside, _text(said, "name", inside.where) or inside.where)
    if not isinstance(said, str) or not said:
        raise InputError(
            f"{place.where}, chip: expected a chip of the catalog, the path of a chip's file or a "
            f"table [chip]; got {said!r}"
        )
    if said.endswith(SUFFIX):
        return chip(str(place.path.parent / said))
    return _known(said, f"{place.where}, chip")


def _known(name: str, where: str) -> str:
    """Id of a chip of the catalog; "" of none."""
    try:
        return loader.resolve("chips", name) if name else ""
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _levels(found: Mapping[str, Any], place: Place) -> list[Entry]:
    said = found.get("level")
    if not isinstance(said, list) or not all(isinstance(one, dict) for one in said) or not said:
        raise InputError(
            f"{place.where}, level: expected [[level]] tables, innermost first, each with size, "
            f"bandwidth and latency; got {said!r}"
        )
    return [_level(one, k, len(said), place) for k, one in enumerate(said)]


def _level(said: Mapping[str, Any], k: int, n: int, whole: Place) -> Entry:
    """One level of a network."""
    outer = {"source": whole.source, "date": whole.date, **said}
    place = Place(whole.path, outer, f", level {k + 1}")
    _check_keys(said, OF_LEVEL, place.where)
    if missing := [key for key in LEVEL if key not in said]:
        raise InputError(f"{place.where}, {missing[0]}: missing; a level needs {', '.join(LEVEL)}")
    last = k == n - 1
    return {
        "name": _text(said, "name", place.where) or f"level {k + 1}",
        "size": place.entry(_size(said, place.where, last), "count"),
        **_numbers(said, LEVEL, place),
        "torus_axes": place.entry(_count(said, "torus_axes", place.where, 1, 6), "count"),
        "in_network_reduction": place.entry(_switch(said, place.where), "0 or 1"),
    }


def _size(said: Mapping[str, Any], where: str, last: bool) -> float | None:
    """Domains that a level joins; None where the last has no end."""
    if "size" not in said and last:
        return None
    if "size" not in said:
        raise InputError(f"{where}, size: missing; only the last level may go without")
    return _count(said, "size", where, 1, 10**9)


def _count(said: Mapping[str, Any], key: str, where: str, low: int, high: int) -> float:
    value = said.get(key, low)
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
    if not whole or not low <= value <= high:
        raise InputError(
            f"{where}, {key}: expected a whole number from {low} to {high:,}, got {value!r}"
        )
    return float(value)


def _switch(said: Mapping[str, Any], where: str) -> float:
    value = said.get("in_network_reduction", False)
    if value not in (True, False, 0, 1):
        raise InputError(f"{where}, in_network_reduction: expected true or false, got {value!r}")
    return float(value)
