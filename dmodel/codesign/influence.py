"""Which law decides an answer: the same problem under every other published law, the plan held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dmodel.codesign.laws import KINDS
from dmodel.codesign.limits import NO_LIMIT
from dmodel.codesign.local import Local, solve
from dmodel.codesign.outcome import NAMES, OBJECTIVES, QUANTITIES
from dmodel.codesign.plans import Design
from dmodel.codesign.question import Question
from dmodel.codesign.unknowns import unit_of
from dmodel.errors import InputError


class Influence(NamedTuple):
    """The answer under another law.

    Attributes:
      kind, law, source: of the law. value: of the objective. change: of it, relative [1]. sizes: of
        what is freed, SI. moved: the largest factor by which a size changes, above 1. most: that
        size. residual: of the conditions of optimality.
    """

    kind: str
    law: str
    source: str
    value: float
    change: float
    sizes: dict[str, float]
    moved: float
    most: str
    residual: float


class Influences(NamedTuple):
    """entries: all other laws. decides: the kind whose laws move the sizes most. objective, unit,
    value, sizes: under the laws of the question, at the continuous optimum beside the design.
    statement: in words."""

    entries: tuple[Influence, ...]
    decides: str
    objective: str
    unit: str
    value: float
    sizes: dict[str, float]
    statement: str


def influence(stated: Question, design: Design) -> Influences:
    """Solve again under each published law of loss, batch and shape (and data, where tokens follow
    from it), one at a time.

    Under another loss law a loss to be reached is the one that it gives to the same run, because
    losses of different data and tokenizers do not compare; so what changes is how the run trades
    parameters for tokens.

    Limits: the plan is held; hardware that is freed moves with the sizes.
    """
    if design.plan is None:
        raise InputError(
            "influence: expected a design with a plan; got one without: nothing keeps the limits"
        )
    start = np.log([design.sizes[name] for name in stated.unknowns.names])
    here = solve(start, design.plan, stated.unknowns, stated.world, stated.at)
    entries = []
    for kind, name, law, source in _other_laws(stated):
        other = _under(stated, here.x, kind, law, design)
        found = solve(here.x, design.plan, other.unknowns, other.world, other.at)
        entries.append(_entry(stated, kind, name, source, here, found))
    moved = entries if stated.unknowns.free.any() else []
    decides = max(moved, key=lambda e: e.moved, default=None)
    i = NAMES.index(OBJECTIVES[stated.objective])
    return Influences(
        entries=tuple(entries),
        decides="" if decides is None else decides.kind,
        objective=stated.objective,
        unit=QUANTITIES[NAMES[i]],
        value=float(here.outcome.quantities[i]),
        sizes=_sizes(stated, here),
        statement="no law matters" if decides is None else _statement(decides),
    )


def _other_laws(stated: Question) -> Iterator[tuple[str, str, Any, str]]:
    """Kind, name, law and source of all published laws that the question does not use."""
    for kind, known in KINDS.items():
        if kind == "data" and not float(stated.world.law_tokens):
            continue
        for name, (law, source) in known.items():
            if not _same(getattr(stated.world.laws, kind), law):
                yield kind, name, law, source


def _same(a: object, b: object) -> bool:
    return all(
        np.allclose(float(x), float(y))
        for x, y in zip(vars(a).values(), vars(b).values(), strict=True)
    )


def _under(stated: Question, x: np.ndarray, kind: str, law: object, design: Design) -> Question:
    """The question under another law; a loss to be reached is that of the same run."""
    world = stated.world.replace(laws=stated.world.laws.replace(**{kind: law}))
    limit, i = np.asarray(stated.at.limit).copy(), NAMES.index("loss")
    if kind == "loss" and limit[i] < NO_LIMIT:
        held = stated.unknowns.replace(low=x, high=x)
        plan: Any = design.plan
        limit[i] = float(solve(x, plan, held, world, stated.at).outcome.quantities[i])
    return stated._replace(world=world, at=stated.at.replace(limit=limit))


def _sizes(stated: Question, found: Local) -> dict[str, float]:
    free = stated.unknowns.free
    return {
        n: float(np.exp(v))
        for n, v, f in zip(stated.unknowns.names, found.x, free, strict=True)
        if f
    }


def _entry(
    stated: Question, kind: str, name: str, source: str, here: Local, found: Local
) -> Influence:
    i = NAMES.index(OBJECTIVES[stated.objective])
    value, before = float(found.outcome.quantities[i]), float(here.outcome.quantities[i])
    shift = np.where(stated.unknowns.free, np.abs(found.x - here.x), -1.0)
    return Influence(
        kind=kind,
        law=name,
        source=source,
        value=value,
        change=value / before - 1.0,
        sizes=_sizes(stated, found),
        moved=float(np.exp(max(shift.max(), 0.0))),
        most=stated.unknowns.names[int(shift.argmax())],
        residual=found.residual,
    )


def _statement(most: Influence) -> str:
    return (
        f"the law of {most.kind} decides: under {most.law} instead ({most.source.split(':')[0]}) "
        f"{most.most} changes by a factor of "
        f"{most.moved:.2f} to {most.sizes[most.most]:.4g} {unit_of(most.most)}, and the objective "
        f"by {most.change:+.1%}"
    )
