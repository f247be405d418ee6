"""Units in SI, and quantities as people write them ("25 GB/s"); importing this costs nothing."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

GIB = 2.0**30
"""[byte]"""

HOUR = 3600.0
"""[s]"""

PREFIXES = {"": "1", "k": "1e3", "K": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "P": "1e15"}
"""Decimal prefixes → factor."""

BINARY = {f"{p}i": str(1024**k) for k, p in enumerate("KMGT", 1)}
"""Binary prefixes → factor."""


def _bytes(after: str = "") -> dict[str, Decimal]:
    """Bytes and bits with every prefix, and what follows them."""
    every = PREFIXES | BINARY
    found = {f"{p}B{after}": Decimal(f) for p, f in every.items()}
    found |= {f"{p}b{after}": Decimal(f) / 8 for p, f in every.items()}
    found |= {f"{p}bit{after}": Decimal(f) / 8 for p, f in every.items()}
    return found | {f"{p}byte{after}": Decimal(f) for p, f in PREFIXES.items()}


def _with_prefixes(*names: str) -> dict[str, Decimal]:
    return {f"{p}{name}": Decimal(f) for name in names for p, f in PREFIXES.items()}


def _per_second() -> dict[str, Decimal]:
    """Bandwidths: "GB/s", "Gb/s", and as "Gbps", "GBps"."""
    found = _bytes("/s")
    return found | {f"{name[:-2]}ps": f for name, f in found.items() if name[-3] in "bB"}


def _counted() -> dict[str, Decimal]:
    """Multiples of a token, as runs are named by them: "15T", "15T tokens", "2 trillion"."""
    capital = {"K": "1e3", "M": "1e6", "B": "1e9", "G": "1e9", "T": "1e12"}
    short = capital | {name.lower(): factor for name, factor in capital.items()}
    long = {"million": "1e6", "billion": "1e9", "trillion": "1e12", "Bn": "1e9", "bn": "1e9"}
    named = short | long | {"": "1"}
    return {f"{n}{t}": Decimal(f) for n, f in named.items() for t in ("", "token", "tokens")}


SECONDS = {"s": "1", "ms": "1e-3", "us": "1e-6", "µs": "1e-6", "ns": "1e-9", "min": "60"}
"""Units of time → seconds."""

UNITS: dict[str, dict[str, Decimal]] = {
    "byte": {name: f for name, f in _bytes().items() if not name.endswith(("b", "bit"))},
    "byte/s": _per_second(),
    "FLOP/s": _with_prefixes("FLOP/s", "FLOPS", "FLOPs", "OP/s", "OPS"),
    "1/s": _with_prefixes("/s", "Hz") | {"1/s": Decimal(1)},
    "s": {unit: Decimal(f) for unit, f in SECONDS.items()},
    "W": {"W": Decimal(1), "kW": Decimal(1000)},
    "dollar/hour": {"dollar/hour": Decimal(1), "$/h": Decimal(1), "dollar/h": Decimal(1)},
    "token": _counted(),
    "1": {},
    "count": {},
}
"""Unit in SI → spellings of it and of its multiples → how many of the unit each is."""

NUMBER = re.compile(r"\s*([+-]?[\d.][\d.,_]*(?:[eE][+-]?\d+)?)\s*(\S.*?)?\s*")
"""A number, and what follows it."""

PRINTED = {
    "byte": ("TB", "GB", "GiB", "MB", "MiB", "KiB"),
    "byte/s": ("TB/s", "GB/s", "MB/s"),
    "FLOP/s": ("TFLOP/s", "GFLOP/s"),
    "1/s": ("T/s", "G/s"),
    "s": ("us", "ms", "s"),
    "W": ("W",),
    "dollar/hour": ("dollar/hour",),
    "token": ("T", "B", "M"),
}
"""Multiples in which numbers are written, the preferred first."""


def quantity(text: str, unit: str) -> float:
    """The number of a text in a unit; without a unit of its own it is in that one.

    Raises:
      ValueError: no number, or a unit of another kind; the message says which there are.

    >>> quantity("25 GB/s", "byte/s"), quantity("400Gb/s", "byte/s"), quantity("0.85 us", "s")
    (25000000000.0, 50000000000.0, 8.5e-07)
    """
    found = NUMBER.fullmatch(text)
    try:
        amount = Decimal(found[1].replace(",", "").replace("_", "")) if found else None
    except InvalidOperation:
        amount = None
    if found is None or amount is None:
        raise ValueError(f"expected {expected(unit)}, got {text!r}")
    if found[2] is None or found[2] == unit:
        return float(amount)
    factor = UNITS[unit].get(re.sub(r"\s+", "", found[2]))
    if factor is None:
        raise ValueError(f"expected {expected(unit)}, got the unit {found[2]!r} in {text!r}")
    return float(amount * factor)


def expected(unit: str) -> str:
    """What a quantity of a unit looks like, for messages."""
    names = PRINTED.get(unit, ())
    if not names:
        return "a number without unit"
    return f"a number with a unit ({', '.join(names)}) or in {unit}"


def tokens(text: str) -> float:
    """A number of tokens as people write it.

    Raises:
      ValueError: it is none.

    >>> tokens("15T"), tokens("1.5e12"), tokens("300 billion")
    (15000000000000.0, 1500000000000.0, 300000000000.0)
    """
    return quantity(text, "token")


def written(value: float, unit: str) -> str:
    """A number with a unit, which `quantity` reads as exactly that number.

    >>> written(450e9, "byte/s"), written(8.5e-7, "s"), written(50e9 / 7.0, "byte/s")
    ('450 GB/s', '0.85 us', '7142857142.857142 byte/s')
    """
    names = PRINTED.get(unit, ())
    for least, name in ((least, name) for least in LEAST for name in names):
        text = _plain(float(Decimal(repr(float(value))) / UNITS[unit][name]))
        exact = quantity(f"{text} {name}", unit) == value
        if exact and len(text) <= SHORT and abs(float(text)) >= least:
            return f"{text} {name}"
    return f"{_plain(value)} {unit}"


SHORT, LEAST = 10, (1.0, 0.1)
"""Letters that a number with a prefix has at most; the least that it is, at first and else."""


def _plain(value: float) -> str:
    """The shortest text of a number, whole numbers without a point."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
