"""Numbers for people: few digits, a fitting unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def named(model: str) -> str:
    """A model's name, also where it has none."""
    return model or "own shape"


def seconds(x: float) -> str:
    """A time with a fitting unit: "12.3 s", "45.6 ms", "7.8 µs"."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(x) >= scale:
            return f"{digits(x / scale)} {unit}"
    return "0 s" if x == 0.0 else f"{x / 1e-9:.3g} ns"


def gib(x: float) -> str:
    """Bytes in GiB."""
    return f"{x / 2**30:.1f} GiB"


def percent(x: float, places: int = 1) -> str:
    """A share as per cent."""
    return f"{100.0 * x:.{places}f} %"


def digits(x: float, n: int = 3) -> str:
    """n significant digits without an exponent for everyday sizes, with thousands set apart."""
    if x == 0.0:
        return "0"
    if not 1e-4 <= abs(x) < 1e12:
        return f"{x:.{n}g}"
    places = max(n - 1 - math.floor(math.log10(abs(x))), 0)
    return f"{x:,.{places}f}"


def plan_cells(name: str, plan: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of a table of plans: name, label, step time, MFU (6N+12Lhs), tokens per second,
    memory, headroom."""
    return (
        name,
        plan["label"],
        seconds(plan["step_time_s"]),
        percent(plan["mfu"]),
        digits(plan["tokens_per_s"]),
        gib(plan["memory_bytes_per_device"]),
        gib(plan["headroom_bytes"]),
    )
