"""Marginal values: what one more unit of every limit, and of everything that is not freed, is worth
to the objective; checked by re-solving.

At a design whose plan is held, the sizes between its rungs are an ordinary optimum with
multipliers. By the envelope theorem the objective's slope by a limit is its multiplier, and by any
fixed number the Lagrangian's own slope: `dJ*/dp = ∂J/∂p + Σ λ ∂g/∂p`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmodel.codesign.limits import SCALE
from dmodel.codesign.local import LIMITS, Local, solve
from dmodel.codesign.outcome import NAMES, OBJECTIVES, QUANTITIES
from dmodel.codesign.plans import Design
from dmodel.codesign.question import Question
from dmodel.codesign.unknowns import UNITS
from dmodel.errors import InputError

NATURAL = {
    "seconds": (86400.0, "day"),
    "dollars": (1.0, "dollar"),
    "joules": (3.6e9, "MWh"),
    "watts": (1e6, "MW"),
    "tokens": (1e9, "10^9 tokens"),
    "flops_per_s": (1e12, "TFLOP/s"),
    "hbm_bytes": (1e9, "GB"),
    "hbm_bytes_per_s": (1e9, "GB/s"),
    "bytes_per_s": (1e9, "GB/s"),
    "latency_s": (1e-6, "µs"),
}
"""SI units of one natural unit, and its name; all others are natural as they are."""

LEAST = 1e-5
"""Elasticity of the objective below which a limit does not bind."""


class Price(NamedTuple):
    """What one more unit of something is worth.

    Attributes:
      name: of a limit, of what is not freed, or of a bound of what is ("devices ≤"). kind: "limit",
      "given" or "bound". unit: natural one. at: in that unit. elasticity: ∂ ln objective / ∂ ln
      name [1]. per_unit: change of the objective per unit, in the objective's SI unit. dollars:
      what the unit is worth in dollars of the run's budget, or of its cost when that is the
      objective; None without either.
    """

    name: str
    kind: str
    unit: str
    at: float
    elasticity: float
    per_unit: float
    dollars: float | None


class Prices(NamedTuple):
    """prices: largest effect first. objective, unit, value: at the continuous optimum beside the
    design, its plan held. local: that optimum; `local.residual` says how well the conditions of
    optimality hold. slack: limits that do not bind, worth nothing."""

    prices: tuple[Price, ...]
    objective: str
    unit: str
    value: float
    local: Local
    slack: tuple[str, ...]


class Checked(NamedTuple):
    """name; elasticity by the multipliers; resolved: by solving again a little below and above;
    error: relative difference [1]."""

    name: str
    elasticity: float
    resolved: float
    error: float


def natural(name: str) -> tuple[float, str]:
    """SI units of one natural unit of a name, and what it is called."""
    base = name.split("[")[0].rstrip(" ≤≥")
    return NATURAL.get(base, (1.0, (QUANTITIES | UNITS).get(base, "1")))


def _optimum(stated: Question, design: Design) -> Local:
    if design.plan is None:
        raise InputError(
            "marginal values: expected a design with a plan; got one without: nothing keeps "
            "the "
            "limits"
        )
    start = np.log([design.sizes[name] for name in stated.unknowns.names])
    return solve(start, design.plan, stated.unknowns, stated.world, stated.at)


def _worth(stated: Question) -> tuple[int, float]:
    """Index of the objective's quantity, and merit per logarithm of it."""
    i = NAMES.index(OBJECTIVES[stated.objective])
    return i, float(stated.at.weight[i] * SCALE[i])


def marginal_values(stated: Question, design: Design) -> Prices:
    """Prices of all limits that bind, of all that is not freed, and of the bounds that bind.

    Limits: of small changes, with the plan held; a change that makes another plan best is worth
    more. Hardware that is not freed counts as given, without what the bill would ask for it.

    Args:
      design: one that keeps the limits, as in `CoDesign.found`.
    """
    found = _optimum(stated, design)
    i, per_log = _worth(stated)
    value = float(found.outcome.quantities[i])
    of_limits = _of_limits(stated, found, per_log)
    entries = [*of_limits, *_of_sizes(stated, found, per_log)]
    dollar = _per_dollar(stated, value, {e[0]: e for e in entries})
    binding = sorted(filter(_binds, entries), key=lambda e: -abs(e[3]))
    return Prices(
        prices=tuple(_price(e, value, dollar) for e in binding),
        objective=stated.objective,
        unit=QUANTITIES[NAMES[i]],
        value=value,
        local=found,
        slack=tuple(e[0] for e in of_limits if _is_slack(e)),
    )


def _binds(entry: tuple) -> bool:
    """Whether this has a price, and is none of the limits that are no quantity."""
    return abs(entry[3]) > LEAST and entry[0] not in LIMITS[len(NAMES) :]


def _of_limits(stated: Question, found: Local, per_log: float) -> list[tuple]:
    """Name, kind, value and elasticity of every limit."""
    limits = (*np.asarray(stated.at.limit), *np.ones(len(LIMITS) - len(NAMES)))
    scale = (*SCALE, *np.ones(len(LIMITS) - len(NAMES)))
    return [
        (name, "limit", limits[j], -found.multipliers[j] * scale[j] / per_log)
        for j, name in enumerate(LIMITS)
    ]


def _of_sizes(stated: Question, found: Local, per_log: float) -> list[tuple]:
    """Name, kind, value and elasticity of what is given, and of the bounds of what is freed."""
    lagrangian = found.slopes[0] + found.multipliers @ found.slopes[1:]
    entries = []
    for j, name in enumerate(stated.unknowns.names):
        x = np.exp(found.x[j])
        if not stated.unknowns.free[j]:
            entries.append((name, "given", x, lagrangian[j] / per_log))
        else:
            entries.append((f"{name} ≥", "bound", x, found.low[j] / per_log))
            entries.append((f"{name} ≤", "bound", x, -found.high[j] / per_log))
    return entries


def _is_slack(entry: tuple) -> bool:
    """Whether there is such a limit, and it does not bind."""
    return abs(entry[3]) <= LEAST and entry[2] < 1e299


def _per_dollar(stated: Question, value: float, entries: dict[str, tuple]) -> float | None:
    """Change of the objective by one dollar more; None when dollars decide nothing."""
    if stated.objective == "cost":
        return -1.0
    _, _, at, elasticity = entries["dollars"]
    return elasticity * value / at if abs(elasticity) > LEAST else None


def _price(entry: tuple, value: float, dollar: float | None) -> Price:
    name, kind, at, elasticity = entry
    size, unit = natural(name)
    per_unit = float(elasticity * value / at * size)
    return Price(
        name,
        kind,
        unit,
        float(at / size),
        float(elasticity),
        per_unit,
        None if dollar is None else per_unit / dollar,
    )


def check_marginal_values(
    stated: Question, design: Design, found: Prices, change: float = 2e-3
) -> tuple[Checked, ...]:
    """Solve again with each priced number a little smaller and larger, and compare the slope.

    Args:
      design, found: as of `marginal_values`. change: relative, to either side, of the number, or of
        the objective where that changes more (a loss 1 % lower may cost half as much again); the
        error of the comparison falls with its square.
    """
    i, _ = _worth(stated)
    checked = []
    for price in found.prices:
        step = change / max(1.0, abs(price.elasticity))
        values = [
            np.log(_again(stated, design, found.local.x, price, factor).outcome.quantities[i])
            for factor in (-step, step)
        ]
        resolved = float((values[1] - values[0]) / (2.0 * step))
        checked.append(
            Checked(price.name, price.elasticity, resolved, abs(resolved / price.elasticity - 1.0))
        )
    return tuple(checked)


def _again(
    stated: Question, design: Design, start: np.ndarray, price: Price, shift: float
) -> Local:
    """The optimum with one number times e^shift, from the old optimum."""
    u, at, x = stated.unknowns, stated.at, start.copy()
    if price.kind == "limit":
        limit = np.asarray(at.limit).copy()
        limit[NAMES.index(price.name)] *= np.exp(shift)
        at = at.replace(limit=limit)
    else:
        j = u.index(price.name.rstrip(" ≤≥"))
        low, high = u.low.copy(), u.high.copy()
        x[j] += shift
        low[j] += shift if "≤" not in price.name else 0.0
        high[j] += shift if "≥" not in price.name else 0.0
        u = u.replace(low=low, high=high)
    return solve(x, design.plan, u, stated.world, at)  # type: ignore[arg-type]
