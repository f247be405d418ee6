"""What numbers of a machine can be: limits beyond which a mistake of units is certain."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dmodel.errors import InputError
from dmodel.units import UNITS, expected, quantity, written


class Limit(NamedTuple):
    """A quantity that people write.

    Attributes:
      unit: in SI. low, high: between which it lies. meant: unit that a bare number probably is in.
      meaning: for people.
    """

    unit: str
    low: float
    high: float
    meant: str
    meaning: str


LIMITS = {
    "peak": Limit("FLOP/s", 1e9, 2e17, "TFLOP/s", "dense rate of products, without sparsity"),
    "exponentials": Limit("1/s", 1e6, 1e17, "T/s", "exponentials that the chip takes"),
    "memory": Limit("byte", 1e8, 1e13, "GB", "memory of a device"),
    "memory bandwidth": Limit("byte/s", 1e8, 2e14, "GB/s", "bandwidth of the memory"),
    "kernel latency": Limit("s", 1e-10, 1e-2, "us", "from one dependent empty kernel to the next"),
    "idle power": Limit("W", 0.0, 1e5, "W", "power at rest"),
    "peak power": Limit("W", 0.0, 1e5, "W", "power at full load"),
    "price": Limit("dollar/hour", 0.0, 1e4, "dollar/hour", "rent of a device"),
    "cache": Limit("byte", 1e3, 1e12, "MB", "largest cache before the memory"),
    "factor": Limit("1", 0.0, 100.0, "", "a factor"),
    "bandwidth": Limit("byte/s", 1e6, 1e13, "GB/s", "of a level, per device and direction"),
    "latency": Limit("s", 1e-9, 0.1, "us", "of one hop of a collective"),
}
"""Quantities of chips and of levels of a network, by what they are.

Low and high are a tenth of the smallest device that anybody trains on, and ten times the largest
announced one, or more.
"""


def number(what: str, value: Any, where: str) -> float:
    """A quantity from what somebody wrote, in SI.

    Args:
      what: of `LIMITS`. value: text with a unit, or a number in SI. where: its place, for messages.
    Raises:
      InputError: no number, another unit, or beyond physics; says what would do.

    >>> number("memory", "80 GB", "here")
    80000000000.0
    """
    limit = LIMITS[what]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{where}: expected {expected(limit.unit)}, got {value!r}")
    try:
        found = quantity(value, limit.unit) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{where}: {error}") from None
    if not math.isfinite(found):
        raise InputError(f"{where}: expected {expected(limit.unit)}, got {value!r}")
    if not limit.low <= found <= limit.high:
        raise InputError(f"{where}: {_beyond(limit, value, found)}")
    return found


def _beyond(limit: Limit, value: Any, found: float) -> str:
    """Why a number cannot be meant, with the arithmetic."""
    low, high = (written(x, limit.unit) for x in (limit.low, limit.high))
    text = f"expected {low} to {high} ({limit.meaning}), got {value!r}"
    if str(value) != written(found, limit.unit):
        text += f" = {found:g} {limit.unit}"
    scaled = found * float(UNITS[limit.unit].get(limit.meant, 1))
    if limit.low <= scaled <= limit.high and scaled != found:
        text += f'; is "{found:g} {limit.meant}" meant?'
    return text
