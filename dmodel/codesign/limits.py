"""Limits and objectives as one vector: logarithmic excess over every limit, ≤ 0 where it is
kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dmodel import struct
from dmodel.codesign.outcome import NAMES, OBJECTIVES, QUANTITIES
from dmodel.errors import InputError
from dmodel.types import Array, library

SCALE = np.array([20.0 if name == "loss" else 1.0 for name in NAMES])
"""Excess of the loss counts 20 times: loss falls as about the twentieth power of compute, so all
limits weigh alike."""

NO_LIMIT = 1e300


class Limits(struct.PyTreeNode, kw_only=True):
    """What must not be exceeded; None = no limit.

    Attributes:
      seconds: duration, with what failures cost [s]. loss: to reach [nat/token]. dollars: rent
      [dollar]. joules: with hosts and cooling [J]. watts: of the facility [W]. area_mm2: of one die
      [mm²]. batch: over the critical one [1]. tokens: there are [token].
      memory: share of the device's memory that may be used [1].
    """

    seconds: Array | None = None
    loss: Array | None = None
    dollars: Array | None = None
    joules: Array | None = None
    watts: Array | None = None
    area_mm2: Array | None = None
    batch: Array | None = None
    tokens: Array | None = None
    memory: Array | None = 1.0


class Goal(struct.PyTreeNode, kw_only=True):
    """Objective and limits as arrays: merit is `Σ weight ln quantity`, least is best; limit
    `[quantity]`, 1e300 where there is none; quantile of the samples that counts for every quantity,
    negative for the mean."""

    weight: np.ndarray
    limit: np.ndarray
    quantile: Array = -1.0


BUDGETS = ("seconds", "dollars", "joules", "tokens")
"""Limits one of which keeps a run finite."""


def goal(
    objective: str, limits: Limits, quantile: float | None = None, *, same_loss: bool = False
) -> Goal:
    """Objective and limits as arrays.

    Args:
      same_loss: whether the objective counts as often as the batch needs more tokens than small
        ones for the same loss, 1 + B / critical.
    Raises:
      InputError: an unknown objective, a limit that is not positive, or an objective that nothing
        holds back.
    """
    if objective not in OBJECTIVES:
        raise InputError(f"objective: expected one of {', '.join(OBJECTIVES)}; got {objective!r}")
    given = _given(limits)
    _refuse_negative(given)
    _refuse_endless(objective, given)
    sign = -1.0 if objective == "largest" else 1.0
    weight = np.zeros(len(NAMES))
    weight[NAMES.index(OBJECTIVES[objective])] = sign
    weight[NAMES.index("waste")] = float(same_loss)
    limit = np.array([float(given.get(n, NO_LIMIT)) for n in NAMES])
    return Goal(weight=weight, limit=limit, quantile=_checked_quantile(quantile))


def _given(limits: Limits) -> dict[str, Any]:
    """Limits that there are, by quantity."""
    every = {name: getattr(limits, name, None) for name in NAMES}
    return {name: value for name, value in every.items() if value is not None}


def _refuse_endless(objective: str, given: Mapping[str, Any]) -> None:
    """Refuse an objective that nothing holds back."""
    if objective in ("loss", "largest") and not set(BUDGETS) & set(given):
        raise InputError(
            f"objective {objective!r}: expected a limit of seconds, dollars, joules or "
            "tokens, or "
            "the answer is without end"
        )


def _refuse_negative(given: Mapping[str, Any]) -> None:
    """Refuse limits that are not positive."""
    for name, value in given.items():
        if not float(value) > 0.0:
            raise InputError(
                f"limit of {name}: expected a positive number of {QUANTITIES[name]}; got {value!r}"
            )


def _checked_quantile(quantile: float | None) -> float:
    """A quantile between 0 and 1; negative for the mean."""
    if quantile is None:
        return -1.0
    if not 0.0 < quantile < 1.0:
        raise InputError(
            f"quantile: expected a number between 0 and 1, or none for the mean; got {quantile!r}"
        )
    return quantile


def merit(quantities: Array, at: Goal) -> Any:
    """`Σ weight · scale · ln quantity` `[*batch]`; least is best."""
    xp = library(quantities, at.weight)
    return xp.tensordot(at.weight * SCALE, xp.log(quantities), 1)


def excess(quantities: Array, at: Goal) -> Any:
    """`scale · ln(quantity / limit)` `[quantity, *batch]`."""
    xp, shape = library(quantities, at.limit), (-1,) + (1,) * (np.ndim(quantities) - 1)
    over = xp.log(quantities) - xp.log(at.limit).reshape(shape)
    return SCALE.reshape(shape) * over


class Margin(NamedTuple):
    """One limit at a design: value and limit in the unit; slack of the limit, signed, in the unit;
    binding within `tolerance`."""

    name: str
    unit: str
    value: float
    limit: float
    slack: float


def margins(quantities: np.ndarray, at: Goal) -> tuple[Margin, ...]:
    """Signed margins of the limits that there are."""
    return tuple(
        Margin(name, QUANTITIES[name], float(q), float(limit), float(limit - q))
        for name, q, limit in zip(NAMES, quantities, at.limit, strict=True)
        if limit < NO_LIMIT
    )
