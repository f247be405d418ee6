"""What is wanted: an output and its value, from words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from dmodel.errors import InputError
from dmodel.goodput import DAY_S
from dmodel.sensitivity.case import Point
from dmodel.sensitivity.outputs import ALIASES, OUTPUTS
from dmodel.units import quantity

EXTRA: dict[str, tuple[str, Callable[[float, Point], float]]] = {
    "tokens_per_s_per_device": ("tokens_per_s", lambda y, case: y * _devices(case)),
    "days": ("time_to_loss", lambda y, case: y * DAY_S),
}
"""Outputs that are others of `sensitivity.OUTPUTS` in another unit: which, and what it is in it."""

IN_SI = {"step_time": "s", "memory": "byte"}
"""Outputs that are wanted as quantities (`dmodel.units`), and their unit."""

UNITS: dict[str, dict[str, float]] = {
    "mfu": {"": 1.0, "%": 0.01},
    "days": {"": 1.0, "d": 1.0, "days": 1.0},
    "time_to_loss": {"": 1.0, "s": 1.0, "d": DAY_S, "days": DAY_S},
}
"""Units in which outputs may be wanted → SI units, or days, in one."""

_GOAL = re.compile(r"\s*(\w+)\s*(<=|>=|=)\s*([0-9.eE+-]+)\s*([A-Za-z%/]*)\s*")


class Goal(NamedTuple):
    """What is wanted: `output relation value`, the relation one of =, <=, >=; the value in SI, or
    in the output's own unit."""

    output: str
    value: float
    relation: str = "="

    def holds(self, output: float) -> bool:
        """Whether an output keeps a bound; no value but the wanted one is equal to it."""
        if self.relation == "=":
            return output == self.value
        return output <= self.value if self.relation == "<=" else output >= self.value


def goal(text: str) -> Goal:
    """What is wanted, of `output=value`, `output<=value` or `output>=value`.

    >>> goal("mfu=45%")
    Goal(output='mfu', value=0.45, relation='=')

    Raises:
      InputError: another form, an unknown output or unit, a value that cannot be.
    """
    match = _GOAL.fullmatch(text)
    if match is None:
        raise InputError(
            f"such that {text!r}: expected OUTPUT=VALUE, such as mfu=45% or step_time=5s, "
            "or a bound, such as days<=30"
        )
    name, relation, number, unit = match.groups()
    name = ALIASES.get(name, name)
    known = [*OUTPUTS, *EXTRA]
    if name not in known:
        raise InputError(
            f"such that {text!r}: unknown output {name!r}; expected one of {', '.join(known)}"
        )
    value = _value(name, number, unit, text)
    if not 0.0 < value < float("inf"):
        raise InputError(f"such that {text!r}: expected a positive number")
    if name == "mfu" and value > 1.0:
        raise InputError(f"such that {text!r}: utilization is 100 % at most; say mfu=45%")
    return Goal(name, value, relation)


def _value(name: str, number: str, unit: str, text: str) -> float:
    """A number with its unit, in SI or in the output's own unit; no number is none.

    Raises:
      InputError: a unit of another kind.
    """
    if name in IN_SI:
        try:
            return quantity(f"{number} {unit}".strip(), IN_SI[name])
        except ValueError as error:
            raise InputError(f"such that {text!r}: {name}: {error}") from None
    units = UNITS.get(name, {"": 1.0})
    if unit.lower() not in units:
        allowed = ", ".join(filter(None, units)) or "none"
        raise InputError(f"such that {text!r}: unknown unit {unit!r}; units of {name}: {allowed}")
    try:
        return float(number) * units[unit.lower()]
    except ValueError:
        return float("nan")


def in_its_unit(wanted: Goal, case: Point) -> tuple[float, float]:
    """The wanted value in the unit of the output that is computed, and that unit in its own."""
    if wanted.output not in EXTRA:
        return wanted.value, 1.0
    value = EXTRA[wanted.output][1](wanted.value, case)
    return value, value / wanted.value


def _devices(case: Point) -> float:
    return float(case.plan.devices)


def computed(output: str) -> str:
    """The output of `sensitivity.OUTPUTS` that stands for one."""
    return EXTRA[output][0] if output in EXTRA else output
