"""What the limit of risk on memory means for a design: what plans may need, and what it costs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from dmodel.cli.output import Document, gib, percent
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.design import Candidate, Design

ROUNDING = 1e-9
"""Relative difference of two merits that is rounding [1]."""

MAX_RISK = "10%"
"""Where no risk is said."""

MaxRisk = Annotated[
    str,
    typer.Option(
        metavar="SHARE",
        help="Largest accepted probability of running out of memory, up to 50%.",
        rich_help_panel="The search",
    ),
]


def risk_of(text: str) -> float:
    """The risk on memory that a plan may have, a share or a percentage [1].

    Raises:
      InputError: it is none, or more than that of a plan that is predicted to need all memory.
    """
    stripped = text.strip()
    number, of = stripped.removesuffix("%"), 100.0 if stripped.endswith("%") else 1.0
    try:
        value = float(number) / of
    except ValueError:
        value = math.nan
    if not 0.0 < value <= 0.5:
        raise InputError(
            f"--max-risk: expected a share above 0 and up to 0.5, such as 0.1 or 10%; got {text!r}"
        )
    return value


def memory_limit(risk: float, asked: Asked, found: Design) -> Document:
    """The risk that plans may have, the memory that they may need for it, and what this costs: the
    share by which the best plan is worse than one that might need all memory; None where groups of
    plans were left out, or no plan fits."""
    from dmodel.searching import usable

    costs = None
    if found.exact and found.filled is not None:
        best = merit_of(found.objective, found.exact[0])
        worse = best / found.filled - 1.0
        costs = worse if worse > ROUNDING else 0.0
    has = float(asked.cluster.chip.hbm_bytes)
    return {
        "max_risk": risk,
        "usable_bytes": usable(asked, risk) * has,
        "device_bytes": has,
        "costs": costs,
    }


def merit_of(objective: str, c: Candidate) -> float:
    """What an objective counts of a candidate: seconds, dollars or joules of a step."""
    tokens = float(c.tokens_per_s) * float(c.step_time_s)
    each = {
        "time": float(c.step_time_s),
        "cost": float(c.dollars_per_token) * tokens,
        "energy": float(c.joules_per_token) * tokens,
    }
    return each[objective]


def risk_lines(d: Document) -> list[str]:
    """What plans may need at the risk that may be taken, and what this costs."""
    limit = d.get("memory_limit")
    if not limit:
        return []
    lines, risk = [], percent(limit["max_risk"])
    usable, has = gib(limit["usable_bytes"]), gib(limit["device_bytes"])
    costs = ""
    if limit["costs"] is not None:
        costs = f"; this costs {percent(limit['costs'], 2)}"
    lines.append(f"Memory: plans may need {usable} of {has}, a risk of {risk} (--max-risk){costs}.")
    if d["closest"] and not d["exact"]:
        closest, its = d["closest"], percent(d["closest"]["oom_probability"])
        lines.append(f"The least risky plan: {closest['label']}, a risk of {its}.")
    return lines
