"""Co-design: sizes, hardware and plan together, for an objective under limits; with what was
checked, what binds, and what decides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmodel.codesign.bound import proven_bound
from dmodel.codesign.limits import Margin, margins
from dmodel.codesign.outcome import NAMES, OBJECTIVES, QUANTITIES
from dmodel.codesign.plans import Design
from dmodel.codesign.polish import feasible, polish
from dmodel.codesign.question import Question
from dmodel.codesign.relax import ANNEAL, Search, relax
from dmodel.codesign.unknowns import unit_of


class Evaluations(NamedTuple):
    """What a search cost [count]: gradients, of one start at one step; plans, evaluated without
    one; other, of local optima.

    `total` counts a gradient as `GRADIENT` evaluations.
    """

    gradients: int
    plans: int
    other: int

    @property
    def total(self) -> int:
        """Everything in evaluations of the model."""
        return GRADIENT * self.gradients + self.plans + self.other


GRADIENT = 4
"""Evaluations that a gradient by reverse mode counts as."""


class Chosen(NamedTuple):
    """One size of a design: SI value with its unit, whether it was freed, and the bound that it
    lies on ("", "lower", "upper")."""

    name: str
    value: float
    unit: str
    free: bool
    bound: str


class CoDesign(NamedTuple):
    """Answer.

    Attributes:
      question: what was asked. found: the best design that keeps all limits; None when none was
        found. sizes: every size of it.
      objective, unit, value: what was made best, and how far it got. quantities: of the run, by
        name, SI. margins: of the limits.
      relaxed: value of the objective that the gradient search reached before rounding; no proven
        bound, None when it found nothing that keeps the limits. bound: nothing within the bounds
        does better, proven (`bound.proven_bound`). evaluations. neighbours: valid
        sizes nearby, all checked. statement: what was checked, in words.
      nearest: the design that breaks the limits least, when none keeps them.
    """

    question: Question
    found: Design | None
    sizes: tuple[Chosen, ...]
    objective: str
    unit: str
    value: float | None
    quantities: dict[str, float]
    margins: tuple[Margin, ...]
    relaxed: float | None
    bound: float | None
    evaluations: Evaluations
    neighbours: int
    statement: str
    nearest: Design | None


def solve_question(
    stated: Question,
    *,
    n_starts: int = 16,
    seed: int = 0,
    anneal: tuple[float, ...] = ANNEAL,
    threads: int | None = None,
) -> CoDesign:
    """Find sizes, hardware and plan that are best for an objective under limits.

    Gradient search of all of them relaxed, from many starts; the best ends rounded to valid sizes,
    each with the best of all its valid plans; descent rung by rung to sizes none of whose
    neighbours is better. That no design keeps the limits is an answer: `found` is None.

    Args:
      n_starts: for each ZeRO stage. seed: of the starts. anneal: sharpness of each part of the
        gradient search. threads: of the plan search.
    """
    planner = stated.planner(threads)
    search = relax(
        stated.unknowns,
        stated.world,
        stated.at,
        stated.base,
        stated.choices.zero,
        n_starts=n_starts,
        seed=seed,
        anneal=anneal,
    )
    end = polish(planner, search)
    cost = Evaluations(gradients=search.gradients, plans=planner.evaluations, other=end.evaluations)
    good = end.best if feasible(end.best) else None
    name = OBJECTIVES[stated.objective]
    quantities = {} if good is None else _quantities(good)
    relaxed = (
        float(search.quantities[NAMES.index(name), 0]) if search.violation[0] <= 0.01 else None
    )
    bound = proven_bound(stated)
    return CoDesign(
        question=stated,
        found=good,
        sizes=() if good is None else _chosen(stated, good),
        objective=stated.objective,
        unit=QUANTITIES[name],
        value=quantities.get(name),
        quantities=quantities,
        margins=() if good is None else margins(good.outcome.quantities, stated.at),  # type: ignore
        relaxed=relaxed,
        bound=bound,
        evaluations=cost,
        neighbours=end.neighbours,
        statement=_statement(
            end.best,
            end.neighbours,
            len(planner.found),
            (relaxed, bound),
            quantities.get(name),
            search,
        ),
        nearest=None if good is not None else end.best,
    )


def _quantities(design: Design) -> dict[str, float]:
    return dict(zip(NAMES, map(float, design.outcome.quantities), strict=True))  # type: ignore


def _chosen(stated: Question, design: Design) -> tuple[Chosen, ...]:
    """Sizes as records."""
    u, found = stated.unknowns, []
    for i, name in enumerate(u.names):
        x = np.log(design.sizes[name])
        near = "lower" if x - u.low[i] < 1e-6 else "upper" if u.high[i] - x < 1e-6 else ""
        found.append(
            Chosen(
                name, design.sizes[name], unit_of(name), bool(u.free[i]), near if u.free[i] else ""
            )
        )
    return tuple(found)


def _statement(
    best: Design, around: int, looked: int, beyond: tuple, value: float | None, search: Search
) -> str:
    """What was checked and what was not; beyond: the relaxed optimum and the proven bound, None
    where there is none."""
    relaxed, bound = beyond
    if value is None:
        return (
            f"no design keeps the limits among {looked} valid sizes, each with all its plans; "
            "sizes beyond those were not checked"
        )
    text = (
        f"best of all {best.considered:,} valid plans at these sizes, and none of {around} "
        "neighbouring sizes is better with any plan"
    )
    if relaxed is not None:
        text += (
            f"; {abs(value / relaxed - 1.0):.2%} from the relaxed optimum ({relaxed:.5g}), which "
            "is no proven bound"
        )
    if bound is not None and np.isfinite(bound):
        text += (
            f"; {abs(value / bound - 1.0):.2%} from what arithmetic alone allows ({bound:.5g}), "
            "which is proven"
        )
    return text + (
        f". Not checked: sizes further away ({looked} were looked at, from "
        f"{search.x.shape[1]} starts)"
    )
