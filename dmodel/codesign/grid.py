"""The alternative to a search: every combination of values with every valid plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dmodel.codesign.lattice import points
from dmodel.codesign.outcome import NAMES, OBJECTIVES
from dmodel.codesign.plans import Design
from dmodel.codesign.polish import feasible
from dmodel.codesign.question import Question
from dmodel.types import InputError


class Grid(NamedTuple):
    """best: design of the grid that keeps all limits, None when none does. value: its objective.
    combinations: of sizes; evaluations: of the model, all plans of all combinations [count]."""

    best: Design | None
    value: float | None
    combinations: int
    evaluations: int


def exhaustive(
    stated: Question,
    values: Mapping[str, Sequence[float] | np.ndarray],
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Grid:
    """Evaluate every valid plan at every combination of values; tokens follow in closed form, as in
    the search.

    Args:
      values: of every freed unknown but the tokens. progress: called with the combinations done and
        all.

    Raises:
      InputError: a freed unknown without values, or values of what is not freed.
    """
    u = stated.unknowns
    needed = {n for n, f in zip(u.names, u.free, strict=True) if f and n != "tokens"}
    if set(values) != needed:
        raise InputError(
            f"grid: expected values of {', '.join(sorted(needed))}; got {', '.join(sorted(values))}"
        )
    planner = stated.planner(threads)
    fixed = u.values(np.log(u.value))
    chosen = points({n: np.asarray(v, dtype=float) for n, v in values.items()})
    best: Design | None = None
    for i, sizes in enumerate(chosen):
        found = planner.search(fixed | sizes)
        if feasible(found) and (best is None or found.merit < best.merit):
            best = found
        if progress is not None:
            progress(i + 1, len(chosen))
    name = NAMES.index(OBJECTIVES[stated.objective])
    value = None if best is None else float(best.outcome.quantities[name])  # type: ignore
    return Grid(best=best, value=value, combinations=len(chosen), evaluations=planner.evaluations)
