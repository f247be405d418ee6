"""Lines of collective benchmarks: sizes, times and bandwidths by the columns that a header names;
of a line without a header, by how many fields it has."""

from __future__ import annotations

import re
from typing import NamedTuple

from calibration.importers.found import number

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]i?)?B?")
_TIME = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+\-]?\d+)?)(ns|us|µs|ms|s)?")

MICROS = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}

BYTES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Columns(NamedTuple):
    """Names of columns. head: before the first time. each: of a group of measurements. groups: how
    many there are. micros: unit of time [us]. either: whether its GB may be 2^30
    bytes (`decimal`)."""

    head: tuple[str, ...]
    each: tuple[str, ...]
    groups: int
    micros: float = 1.0
    either: bool = False


HEADS = {
    0: ("size", "count", "type"),
    1: ("size", "count", "type", "redop"),
    2: ("size", "count", "type", "redop", "root"),
}
"""Columns before the times, by the words and ranks behind the type."""

GROUP = ("time", "algbw", "busbw", "wrong")


class Values(NamedTuple):
    """Figures of a line. operation: of the reduction. algorithm, bus: bandwidths in GB/s, 0 = not
    told. wrong: as printed."""

    nbytes: float
    operation: str
    time_us: float
    algorithm: float
    bus: float
    wrong: str


def in_columns(text: str) -> str:
    """A line of a table with bars as one with blanks between its cells.

    >>> in_columns("| 1.0 KiB | 5.21 |"), in_columns(" 1024  5.21")
    ('1.0KiB 5.21', ' 1024  5.21')
    """
    if not text.lstrip().startswith("|"):
        return text
    return " ".join("".join(cell.split()) for cell in text.strip().strip("|").split("|"))


def columns(text: str) -> Columns:
    """The columns that a header names.

    >>> columns("#  size  count  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong").head
    ('size', 'count')
    """
    words = text.strip().lstrip("#").lower().split()
    names = [re.sub(r"\(.*\)$", "", word).lstrip("#").split(":")[0] for word in words]
    names = ["wrong" if name in ("error", "wrong") else name for name in names]
    first = names.index("time") if "time" in names else len(names)
    groups = max(names.count("algbw"), 1)
    each = tuple(names[first:])[: max((len(names) - first) // groups, 1)]
    millis = any("(ms)" in word for word in words)
    of_nccom = any("(elems)" in word for word in words)
    return Columns(tuple(names[:first]), each, groups, 1e3 if millis else 1.0, of_nccom)


def read(fields: list[str], known: Columns | None) -> Values | None:
    """The figures of a line: of the first group of measurements that it has; None where it is none,
    or not whole."""
    found = known or _guessed(fields)
    if found is None or len(fields) not in _lengths(found):
        return None
    cells = dict(zip(found.head, fields, strict=False))
    at = len(found.head)
    group = dict(zip(found.each, fields[at : at + len(found.each)], strict=False))
    nbytes, time = _bytes(cells.get("size", "")), _micros(group.get("time", ""), found.micros)
    algorithm, bus = (_bandwidth(group.get(name, "0")) for name in ("algbw", "busbw"))
    if nbytes is None or time is None or algorithm is None or bus is None:
        return None
    if found.either:
        algorithm, bus = decimal(nbytes, time, algorithm, bus)
    operation = cells.get("redop", "")
    return Values(nbytes, operation, time, algorithm, bus, group.get("wrong", "N/A"))


def decimal(nbytes: float, micros: float, algorithm: float, bus: float) -> tuple[float, float]:
    """Bandwidths of nccom-test [GB/s]: some releases divide by 2^30, others by 10^9;
    size and time tell which it was.

    >>> decimal(33554432, 768, 40.69, 40.69), decimal(65536, 8.18, 8.01, 7.76)
    ((43.6906, 43.6906), (8.01, 7.76))
    """
    factor, rate = 2**30 / 1e9, nbytes / (1e3 * micros) if micros else 0.0
    # nearer to what follows from size and time, on a scale of ratios
    if algorithm * algorithm * factor > rate * rate:
        factor = 1.0
    return round(algorithm * factor, 4), round(bus * factor, 4)


def _bandwidth(text: str) -> float | None:
    """A bandwidth as printed; None where it is none, or negative."""
    value = number(text)
    return None if value is None or value < 0.0 else value


def _lengths(found: Columns) -> tuple[int, ...]:
    """Fields of a whole line: of all groups, or of one, where the other was not measured."""
    return len(found.head) + found.groups * len(found.each), len(found.head) + len(found.each)


def _guessed(fields: list[str]) -> Columns | None:
    """Columns of a line without a header: by its words, and how many figures follow."""
    words = [f for f in fields[2:5] if re.fullmatch(r"[a-z]\w*", f)]
    behind = len(fields) - 2 - len(words)
    if not words or len(words) > 2:
        return None
    root = len(words) == 2 and behind in (5, 9)
    size = behind - root
    if size not in (4, 8):
        return None
    return Columns(HEADS[len(words) - 1 + root], GROUP, size // 4)


def _bytes(text: str) -> float | None:
    """A size, which may have a unit."""
    found = _SIZE.fullmatch(text)
    value = number(found[1]) if found else None
    if found is None or value is None:
        return None
    return value * BYTES.get((found[2] or "")[:1], 1)


def _micros(text: str, unit: float) -> float | None:
    """A time [us], which may have a unit of its own."""
    found = _TIME.fullmatch(text)
    value = number(found[1]) if found else None
    if found is None or value is None:
        return None
    return value * (MICROS[found[2]] if found[2] else unit)
