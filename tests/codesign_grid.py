"""The alternative to the search over sizes: every combination of values with every valid plan."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

import numpy as np

from dmodel.codesign import Design, Question
from dmodel.codesign.outcome import NAMES, OBJECTIVES
from dmodel.codesign.polish import feasible


class Grid(NamedTuple):
    """value: objective of the best design that keeps all limits. combinations: of sizes [count]."""

    value: float
    combinations: int


def exhaustive(stated: Question, values: Mapping[str, np.ndarray]) -> Grid:
    """Evaluate every valid plan at every combination of values of every freed unknown but the
    tokens, which follow in closed form, as in the search."""
    u, planner = stated.unknowns, stated.planner(None)
    assert set(values) == {n for n, f in zip(u.names, u.free, strict=True) if f} - {"tokens"}
    fixed, best = u.values(np.log(u.value)), None
    chosen = [dict(zip(values, map(float, at), strict=True)) for at in product(*values.values())]
    for sizes in chosen:
        found: Design = planner.search(fixed | sizes)
        if feasible(found) and (best is None or found.merit < best.merit):
            best = found
    assert best is not None
    return Grid(
        float(best.outcome.quantities[NAMES.index(OBJECTIVES[stated.objective])]), len(chosen)
    )
