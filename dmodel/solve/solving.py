"""Solve for a number: the way from names to roots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dmodel.asked import Asked, laid
from dmodel.sensitivity.case import inputs
from dmodel.solve.answer import Solution
from dmodel.solve.curve import POINTS, Curve, end_at, root_at
from dmodel.solve.goals import computed, goal, in_its_unit
from dmodel.solve.named import SPELLED, full_name, usual_range
from dmodel.solve.newton import Scale, bracketed, newton
from dmodel.solve.whole import WHOLE, case_of, tried


def solve(
    asked: Asked,
    name: str,
    such_that: str,
    between: tuple[float, float] | None = None,
    words: Mapping[str, Any] | None = None,
) -> Solution:
    """All values of an input at which an output is as wanted.

    Args:
      name: of the input: a name of `--set`, an input as `dmodel sensitivity` names it
        ("chip.flops_per_s", "network.bytes_per_s[NVLink 4]"), or one of `HARDWARE`.
      such_that: `output=value` with a unit ("mfu=45%", "memory=70GB", "days=30").
      between: range of the input, SI; None = a hundredth to a hundred times of what it is, shares
        from 0 to 1, whole numbers as far as they go.
      words: of the layout, beside the question's.

    Raises:
      InputError: an unknown name, a value that is none, an empty range.
    """
    output, wanted = goal(such_that)
    whole = SPELLED.get(name, name)
    if whole in WHOLE:
        return tried(asked, whole, (output, wanted), between, words or {})
    found = laid(asked, words or {})
    case = case_of(asked, found)
    names = inputs(case, asked.level_names or None)
    index = names.names.index(full_name(name, names))
    at = float(names.values[index])
    low, high = usual_range(names.names[index], at, between)
    target, factor = in_its_unit(output, wanted, case)
    line = Curve(names, index, computed(output))
    return _solved(line, (output, target, factor), at, (low, high), asked)


def _solved(
    line: Curve,
    wanted: tuple[str, float, float],
    at: float,
    between: tuple[float, float],
    asked: Asked,
) -> Solution:
    """Roots between two ends.

    Args:
      wanted: name of the output; its value, and one unit of it, as the line has it.
    """
    output, target, unit = wanted
    scale = Scale(between[0] > 0.0)
    u = np.linspace(scale.to(between[0]), scale.to(between[1]), POINTS)
    x = np.clip(scale.back(u), *between)
    found = line(x)
    brackets, seen = bracketed(line, scale, x, found, target)
    roots = newton(line, scale, brackets, target)
    size = float(asked.cluster.chip.hbm_bytes)
    now = float(line(np.array([at]))["value"][0])
    ends = tuple(end_at(found, x, i, unit) for i in (0, POINTS - 1))
    far = [1e-3 * between[0], 1e3 * between[1]] if scale.is_log else []
    values = [float(y) / unit for y in line(np.array(far))["value"]] if far else []
    return Solution(
        input=line.names.names[line.index],
        output=output,
        wanted=target / unit,
        at=at,
        now=now / unit,
        between=between,
        roots=tuple(root_at(line, x, unit, size) for x in roots),
        ends=ends,
        limits=tuple(v for v in values if np.isfinite(v)),
        least=float(seen.min()) / unit,
        most=float(seen.max()) / unit,
        tried={},
    )
