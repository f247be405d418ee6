"""What the limit of risk on memory means for a design: what plans may need, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dmodel.cli.output import Document, gib, percent

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.design import Candidate, Design

ROUNDING = 1e-9
"""Relative difference of two merits that is rounding [1]."""


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
