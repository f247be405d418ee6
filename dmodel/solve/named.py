"""The input that a name means, and the range that it is searched in."""

from __future__ import annotations

import numpy as np

from dmodel.columns import BY_NAME
from dmodel.errors import InputError
from dmodel.sensitivity.case import Inputs, base_name
from dmodel.settings import unknown

SPAN = 100.0
"""Where no range is given: a positive number is this many times less, to more, than it is."""

HARDWARE = {
    "bandwidth.inner": "network.bytes_per_s[0]",
    "bandwidth.intra": "network.bytes_per_s[0]",
    "bandwidth.outer": "network.bytes_per_s[1]",
    "bandwidth.inter": "network.bytes_per_s[1]",
    "latency.inner": "network.latency_s[0]",
    "latency.intra": "network.latency_s[0]",
    "latency.outer": "network.latency_s[1]",
    "latency.inter": "network.latency_s[1]",
}
"""Short names of numbers of the network: inside of the innermost level, and beyond it."""

SPELLED = {"devices": "n_accel", "zero": "zero_stage"}
"""Other names of columns."""


def full_name(name: str, names: Inputs) -> str:
    """The input that a name means.

    Raises:
      InputError: none, or one of several.
    """
    if name in HARDWARE:
        return _level(name, names)
    if name in names.names:
        return name
    column = SPELLED.get(name, name)
    found = [n for n in names.names if n.rpartition(".")[2] == column]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{name}: which of {', '.join(found)}?")
    if column in BY_NAME:
        raise InputError(f"{name}: is no number that a plan depends on smoothly; see --help")
    raise InputError(f"{unknown(name)}; of hardware: {', '.join(HARDWARE)}")


def _level(name: str, names: Inputs) -> str:
    base, place = HARDWARE[name][:-1].split("[")
    levels = [n for n in names.names if base_name(n) == base]
    if int(place) >= len(levels):
        raise InputError(f"{name}: the network of this job has one level, {levels[0]}")
    return levels[int(place)]


def usual_range(name: str, at: float, between: tuple[float, float] | None) -> tuple[float, float]:
    """The range that is searched."""
    if between is not None:
        low, high = between
        if not (low < high and np.isfinite([low, high]).all() and low >= 0.0):
            raise InputError(
                f"between {low:g} and {high:g}: expected two numbers from 0 on, the smaller first"
            )
        return low, high
    if name.startswith("plan.") and 0.0 <= at <= 1.0 and name != "plan.global_batch":
        return 0.0, 1.0
    if not 0.0 < at < float("inf"):
        raise InputError(f"{name} is {at:g}: say a range with --between LOW HIGH")
    return at / SPAN, at * SPAN
