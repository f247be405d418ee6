"""Solve for a number: the way from names to roots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dmodel.asked import Asked, laid
from dmodel.errors import InputError
from dmodel.sensitivity.case import inputs
from dmodel.sensitivity.outputs import OF_THE_RUN
from dmodel.solve.answer import Solution
from dmodel.solve.curve import POINTS, Curve, end_at, root_at
from dmodel.solve.goals import Goal, computed, goal, in_its_unit
from dmodel.solve.named import SPELLED, full_name, usual_range
from dmodel.solve.newton import Scale, bracketed, newton
from dmodel.solve.whole import WHOLE, case_of, tried


def solve(
    asked: Asked,
    name: str,
    such_that: str,
    between: tuple[float, float] | None = None,
    words: Mapping[str, Any] | None = None,
    tokens: float | None = None,
) -> Solution:
    """All values of an input at which an output is as wanted.

    Args:
      name: of the input: a name of `--set`, an input as `dmodel sensitivity` names it
        ("chip.flops_per_s", "network.bytes_per_s[NVLink 4]"), or one of `HARDWARE`.
      such_that: `output=value` with a unit ("mfu=45%", "memory=70GB", "days=30"), or a bound
        ("days<=30"): of whole numbers the first that keep it, else where it is reached.
      between: range of the input, SI; None = a hundredth to a hundred times of what it is, shares
        from 0 to 1, whole numbers as far as they go.
      words: of the layout, beside the question's. tokens: of the whole run; None = those that
        reach the loss of 20 tokens per parameter.

    Raises:
      InputError: an unknown name, a value that is none, an empty range, tokens for an output that
        is not of the whole run.
    """
    wanted = goal(such_that)
    _check_tokens(wanted.output, tokens)
    whole = SPELLED.get(name, name)
    if whole in WHOLE:
        return tried(asked, whole, wanted, between, words or {}, tokens)
    found = laid(asked, words or {})
    case = case_of(asked, found, tokens)
    names = inputs(case, asked.level_names or None)
    index = names.names.index(full_name(name, names))
    at = float(names.values[index])
    low, high = usual_range(names.names[index], at, between)
    line = Curve(names, index, computed(wanted.output))
    return _solved(line, (wanted, *in_its_unit(wanted, case)), at, (low, high), asked)


def _check_tokens(output: str, tokens: float | None) -> None:
    """Refuse tokens of the run for what does not depend on them."""
    if tokens is not None and computed(output) not in OF_THE_RUN:
        raise InputError(
            f"tokens of the run: {output} does not depend on them; leave them out, or ask for days "
            "or dollars"
        )


def _solved(
    line: Curve,
    wanted: tuple[Goal, float, float],
    at: float,
    between: tuple[float, float],
    asked: Asked,
) -> Solution:
    """Roots between two ends.

    Args:
      wanted: the goal; its value, and one unit of it, as the line has it.
    """
    aim, target, unit = wanted
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
        output=aim.output,
        wanted=aim.value,
        relation=aim.relation,
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
