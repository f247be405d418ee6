"""When nothing keeps the limits: which limit binds, by how much, and the nearest change of each
that lets a design exist."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmodel.codesign.answer import CoDesign, solve_question
from dmodel.codesign.limits import NO_LIMIT, Goal, excess
from dmodel.codesign.outcome import NAMES, QUANTITIES
from dmodel.codesign.plans import Design
from dmodel.codesign.question import Question
from dmodel.codesign.relax import ANNEAL

RELAXED = ("seconds", "dollars", "joules", "loss", "memory", "watts", "area_mm2", "batch")
"""Limits that a change is sought for, each alone."""


class Change(NamedTuple):
    """One limit alone, changed so that a design exists: limit as asked, least value with which one
    was found, and the design; the unit is that of the quantity. None when changing this limit alone
    does not help, as far as the search found."""

    name: str
    unit: str
    limit: float
    needed: float | None
    design: Design | None


class Changes(NamedTuple):
    """binding: the limit that the nearest design breaks most, relatively; amount: by how much, in
    `unit`. changes: by limit, smallest relative change first. statement: in words. evaluations: of
    all searches [count]."""

    binding: str
    unit: str
    amount: float
    changes: tuple[Change, ...]
    statement: str
    evaluations: int


def nearest_change(
    stated: Question,
    answer: CoDesign,
    *,
    n_starts: int = 8,
    seed: int = 0,
    anneal: tuple[float, ...] = ANNEAL,
) -> Changes:
    """For each limit, the least value of it with which the search finds a design that keeps all
    others.

    Args:
      answer: of `codesign`, one without a design. n_starts, seed, anneal: of each search, as in
        `codesign`.
    """
    at, found, spent = stated.at, [], 0
    for name in RELAXED:
        i = NAMES.index(name)
        limit = float(np.asarray(at.limit)[i])
        if limit >= NO_LIMIT:
            continue
        least = solve_question(
            stated._replace(at=_least(at, i)), n_starts=n_starts, seed=seed, anneal=anneal
        )
        spent += least.evaluations.total
        best = least.found
        needed = None if best is None else float(best.outcome.quantities[i])  # type: ignore
        found.append(Change(name, QUANTITIES[name], limit, needed, least.found))
    found.sort(key=lambda c: np.inf if c.needed is None else c.needed / c.limit)
    binding, amount = _binding(answer, at)
    unit = QUANTITIES.get(binding, "")
    return Changes(
        binding, unit, amount, tuple(found), _statement(binding, unit, amount, found), spent
    )


def _least(at: Goal, i: int) -> Goal:
    """The goal of making one quantity least, its own limit taken away."""
    limit, weight = np.asarray(at.limit).copy(), np.zeros(len(NAMES))
    limit[i], weight[i] = NO_LIMIT, 1.0
    return at.replace(limit=limit, weight=weight)


def _binding(answer: CoDesign, at: Goal) -> tuple[str, float]:
    """The limit that the nearest design breaks most, and by how much; "divisibility" when no size
    has a valid plan."""
    nearest = answer.nearest
    if nearest is None or nearest.outcome is None:
        return "divisibility", 0.0
    q = np.asarray(nearest.outcome.quantities)
    i = int(np.asarray(excess(q, at)).argmax())
    return NAMES[i], float(q[i] - np.asarray(at.limit)[i])


def _statement(binding: str, unit: str, amount: float, found: list[Change]) -> str:
    text = f"no design keeps the limits: {binding} binds"
    text += f", broken by {amount:.4g} {unit} in the nearest design" if amount > 0.0 else ""
    helps = [c for c in found if c.needed is not None and c.needed > c.limit]
    if not helps:
        return text + "; changing one limit alone did not help"
    ways = [f"{c.name} of {c.needed:.4g} {c.unit} instead of {c.limit:.4g}" for c in helps]
    return text + "; nearest changes that let a design exist: " + ", or ".join(ways)
