"""The programs of a page, traced from the same functions that Python runs.

Models of one structure, the kinds of their layers, share programs; all sizes are inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel import run, step
from dmodel.breakdown import TERMS
from dmodel.cost.memory import out_of_memory_probability
from dmodel.counts import CONVENTIONS, parameters
from dmodel.explore.javascript import javascript
from dmodel.explore.scalars import Scalars
from dmodel.footprint import whole
from dmodel.recomputation import Again, offloading, redone
from dmodel.recording import recorded
from dmodel.records import Model, Plan
from dmodel.records.case import Case
from dmodel.unlike import flops_of_kinds

Tree = Any
"""A pytree of arrays."""


class Program(NamedTuple):
    """A function of records as JavaScript.

    Attributes:
      inputs: paths of all numbers that it reads, such as "case.plan.layout.tp". outputs: paths of
        all that it gives. first: how many of these the short call gives. text: of both functions.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    first: int
    text: str


def paths(records: Tree) -> tuple[str, ...]:
    """Dotted path of every number of records, elements of arrays by their index."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(records):
        name = ".".join(_key(key) for key in path)
        shape = np.shape(leaf)
        found += [name] if shape == () else [f"{name}.{i}" for i in range(int(np.prod(shape)))]
    return tuple(found)


def _key(key: Any) -> str:
    return str(next(getattr(key, n) for n in ("name", "key", "idx") if hasattr(key, n)))


def program(
    function: Callable[..., dict[str, Any]], *records: Tree, names: Tree, first: str = ""
) -> Program:
    """The program of a function of records.

    Args:
      function: pure, with nested dictionaries by text as its answer. names: the records by name.
      first: key of the answer whose outputs the short call gives; "" = all.
    Raises:
      Unknown: it uses an operation that has no text in JavaScript.
    """
    with jax.enable_x64(True):
        record = recorded(function, *records)
    outputs = [i for keys, i in zip(record.names, record.outputs, strict=True)]
    order = sorted(range(len(outputs)), key=lambda i: record.names[i][0] != first)
    ordered = record._replace(
        outputs=tuple(outputs[i] for i in order), names=tuple(record.names[i] for i in order)
    )
    scalars = Scalars(ordered, [np.shape(x) for x in jax.tree.leaves(records)])
    named: list[str] = []
    short = 0
    for keys, shape in zip(ordered.names, scalars.shapes, strict=True):
        name = ".".join(keys[1:] if first else keys)
        size = int(np.prod(shape, dtype=int))
        named += [name] if shape == () else [f"{name}.{i}" for i in range(size)]
        short += size if first in ("", keys[0]) else 0
    return Program(paths(names), tuple(named), short, javascript(scalars, short))


def evaluated(case: Case, spread: Any) -> dict[str, Any]:
    """Time by cause, memory by purpose, and what follows from them, of one plan.

    Args:
      spread: standard deviation of ln(measured / predicted) of memory [1].
    """
    records = case.cluster, case.model, case.plan
    breakdown = step.step_time(*records, case.coefficients)
    footprint = whole(case.footprint)
    memory = step.memory_use(case.model, case.plan, footprint=footprint)
    outputs = run.outputs(*records, breakdown, case.coefficients, footprint=footprint)
    size = case.cluster.chip.hbm_bytes
    return {
        "time": {term: getattr(breakdown, term) for term in TERMS},
        "memory": dict(vars(memory)),
        "oom_probability": out_of_memory_probability(memory.total, size, spread),
        "outputs": dict(vars(outputs)),
        "mfu": {name: run.mfu(*records, breakdown, name) for name in CONVENTIONS},
        "least_utilization": run.least_utilization(*records, breakdown.total),
    }


def sizes(case: Case) -> tuple[str, ...]:
    """Paths of the numbers of a case that are sizes, not choices: those that have slopes."""
    return tuple(name for name in paths(case) if not _is_choice(case, name))


def _is_choice(case: Case, path: str) -> bool:
    record: Any = case
    for key in path.split("."):
        if key in getattr(record, "CHOICES", ()):
            return True
        record = record[int(key)] if key.isdecimal() else getattr(record, key)
    return False


SLOPED = ("step_time_s",)
"""Outputs whose slopes a program gives: those of memory are a seventh of its text."""


def sloped(case: Case, spread: Any) -> dict[str, Any]:
    """As `evaluated`, with the slopes of `SLOPED` in every size of the case."""
    wanted, names = {*sizes(case)}, paths(case)
    leaves, tree = jax.tree.flatten(case)

    def total(numbers: list[Any], of: str) -> Any:
        found = evaluated(jax.tree.unflatten(tree, numbers), spread)
        return found["outputs"][of]

    slopes = {of: jax.grad(partial(total, of=of))(leaves) for of in SLOPED}
    each = {of: dict(zip(names, _elements(found), strict=True)) for of, found in slopes.items()}
    kept = {of: {n: x for n, x in found.items() if n in wanted} for of, found in each.items()}
    return {"value": evaluated(case, spread), "slopes": kept}


def _elements(leaves: list[Any]) -> list[Any]:
    """All numbers of leaves one by one."""
    found: list[Any] = []
    for leaf in leaves:
        found += [leaf] if np.ndim(leaf) == 0 else [leaf[i] for i in range(len(leaf))]
    return found


def resolving(again: Again, model: Model, plan: Plan) -> dict[str, Any]:
    """What the rules of `dmodel.resolve` need of a model: shares of a plan that follow from what is
    done again, the count of parameters, FLOPs of its kinds of layers.

    "redone" is of the plan as `again` has it, "offload" of the plan as it is given.
    """
    done = redone(again, model, plan).layout
    names = ("recompute_products", "recompute_bytes", "offload")
    flops = flops_of_kinds(model) if len(model.pairs) > 1 else []
    return {
        "redone": {name: getattr(done, name) for name in names},
        "offload": offloading(again, model, plan).layout.offload,
        "parameters": parameters(model),
        "flops": {str(i): x for i, x in enumerate(flops)},
    }
