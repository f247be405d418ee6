"""The input that a name means, and the range that it is searched in."""

from __future__ import annotations

import numpy as np

from dmodel.catalog.quantities import QUANTITIES
from dmodel.columns import BY_NAME
from dmodel.errors import InputError
from dmodel.sensitivity.case import Inputs, base_name
from dmodel.settings import unknown

SPAN = 100.0
"""Where no range is given: a positive number is this many times less, to more, than it is."""

HARDWARE = tuple(name for name in QUANTITIES if name != "price")
"""Names that `--set` has for numbers of a machine, but for the price, which is by the hour there
and by the second here."""

SPELLED = {"devices": "n_accel", "zero": "zero_stage"}
"""Other names of columns."""


def full_name(name: str, names: Inputs) -> str:
    """The input that a name means.

    Raises:
      InputError: none, or one of several.
    """
    if name in HARDWARE:
        return _of_machine(name, names)
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
    raise InputError(unknown(name))


def _of_machine(name: str, names: Inputs) -> str:
    """The input of a number of the machine.

    Raises:
      InputError: the plan does not depend on it, or it is of the outer one of two levels and there
        are not two.
    """
    one = QUANTITIES[name]
    if one.part == "chip":
        found = f"chip.{one.leaf}"
        if found not in names.names:
            raise InputError(f"{name}: is no number that a plan depends on smoothly; see --help")
        return found
    levels = [n for n in names.names if base_name(n) == f"network.{one.leaf}"]
    if one.part == "inter" and len(levels) != 2:
        raise InputError(
            f"{name}: is of the outer one of two levels, and the network of this job has "
            f"{len(levels)}; expected one of {', '.join(levels)}"
        )
    return levels[0 if one.part == "intra" else 1]


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
