"""The catalog's chips and systems as Markdown tables, for the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dmodel.catalog.loader import Entry, is_added, table
from dmodel.units import written

HALF, EIGHT = ("bf16", "fp16"), ("fp8", "mxfp8", "int8")
"""Precisions of 16 and of 8 bits, the preferred first."""


def chips() -> str:
    """All shipped chips: dense peaks, memory, power and usual system."""
    header = ("chip", "also", "16 bits", "8 bits", "memory", "bandwidth", "power", "system")
    rows = [
        (
            _name(main, entry),
            ", ".join(entry["aliases"]),
            _rate(entry, HALF),
            _rate(entry, EIGHT),
            _shown(entry["hbm_bytes"]),
            _shown(entry["hbm_bytes_per_s"]),
            _shown(entry["peak_power"]),
            entry["system"],
        )
        for main, entry in table("chips").items()
        if not is_added("chips", main)
    ]
    return _table(header, rows)


def systems() -> str:
    """All shipped systems: chip and levels of the network, innermost first."""
    rows = [
        (
            _name(main, entry),
            ", ".join(entry["aliases"]),
            entry["chip"],
            "; ".join(map(_level, entry["levels"])),
        )
        for main, entry in table("systems").items()
        if not is_added("systems", main)
    ]
    return _table(("system", "also", "chip", "levels: size, bandwidth, latency"), rows)


def _name(main: str, entry: Entry) -> str:
    """Name of an entry, and when it was announced where that is all."""
    return f"{main} (announced {entry['announced']})" if "announced" in entry else main


def _rate(entry: Entry, precisions: Sequence[str]) -> str:
    rates = entry["flops_per_s"]
    found = next((rates[p] for p in precisions if p in rates), None)
    return "" if found is None else _shown(found)


def _shown(number: Entry) -> str:
    """A number with its unit, to four digits."""
    return written(float(f"{number['value']:.4g}"), number["unit"])


def _level(level: Entry) -> str:
    size, axes = level["size"]["value"], level["torus_axes"]["value"]
    count = "any" if size is None else f"{size:,}"
    torus = f", {axes}D torus" if axes > 1 else ""
    rates = f"{_shown(level['bytes_per_s'])}, {_shown(level['latency'])}"
    return f"{level['name']}: {count}, {rates}{torus}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
