"""Programs of every structure of models that the catalog has."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel.catalog.loader import table
from dmodel.catalog.models import transformer
from dmodel.catalog.systems import system
from dmodel.coefficients import SPECS, Coefficients
from dmodel.explore.programs import Program, evaluated, program, resolving, sloped
from dmodel.footprint import LEAST, SPREAD
from dmodel.recomputation import Again
from dmodel.records import Mixed, Model, Plan
from dmodel.records.case import Case

LEVELS = 2
"""Levels of the network that programs of all structures are written for."""

FURTHER = {3: 4}
"""Further levels of networks → of how many structures there are programs for them."""


class Offered(NamedTuple):
    """What programs are written for: a model that stands for its structure, and the levels of the
    network."""

    model: str
    levels: int


class Programs(NamedTuple):
    """What the page runs for models of one structure.

    Attributes:
      evaluated: time, memory and what follows, with slopes. resolving: what rules need.
    """

    evaluated: Program
    resolving: Program


def structure(model: Model) -> str:
    """Kinds of a model's parts, and which of them each kind of layer has.

    >>> structure(transformer("deepseek-v3"))
    'latent|dense,experts|0+0 0+1'
    """
    sides = (",".join(part.KIND for part in parts) for parts in (model.mixers, model.feeds))
    return "|".join([*sides, " ".join(f"{i}+{j}" for i, j in model.pairs)])


def models() -> dict[str, list[str]]:
    """Names of the catalog's models by structure, the structure of most models first."""
    found: dict[str, list[str]] = {}
    for name in table("models"):
        found.setdefault(structure(transformer(name)), []).append(name)
    return dict(sorted(found.items(), key=lambda pair: -len(pair[1])))


def offered() -> dict[str, Offered]:
    """What the page has programs for, by the name that the page knows it by."""
    names = {kinds: known[0] for kinds, known in models().items()}
    found = {kinds: Offered(name, LEVELS) for kinds, name in names.items()}
    for levels, many in FURTHER.items():
        some = list(names.items())[:many]
        found |= {f"{kinds} {levels}": Offered(name, levels) for kinds, name in some}
    return found


def _machine(levels: int) -> Any:
    """A system of the catalog with 16-bit products and a network of so many levels."""
    chips = table("chips")
    return system(
        next(
            name
            for name, entry in table("systems").items()
            if len(entry["levels"]) == levels and "bf16" in chips[entry["chip"]]["flops_per_s"]
        )
    )


def case_of(model: Model, levels: int = LEVELS) -> Case:
    """A case with a model on a machine of some levels, whose schedule is numbers; all else is as it
    is by default."""
    plan: Any = Plan.of(dp=1.0, global_batch=1.0)
    plan = plan.replace(layout=Mixed.of(plan.layout))
    coefficients = Coefficients(**{name: spec.default for name, spec in SPECS.items()})
    case = Case(
        cluster=_machine(levels),
        model=model.replace(order=()),
        plan=plan,
        coefficients=coefficients,
        footprint=LEAST,
    )
    return jax.tree.map(lambda x: np.asarray(x, np.float64), case)


def programs(model: Model, slopes: bool = True, levels: int = LEVELS) -> Programs:
    """Programs of a model's structure.

    Args:
      slopes: whether the first one gives them. levels: of the network.
    """
    case = case_of(model, levels)
    again = Again()._replace(said=())
    names = {"again": again, "model": case.model, "plan": case.plan}
    function, first = (sloped, "value") if slopes else (evaluated, "")
    return Programs(
        program(function, case, SPREAD, names={"case": case, "spread": SPREAD}, first=first),
        program(resolving, again, case.model, case.plan, names=names),
    )
