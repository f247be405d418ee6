"""Degrees and devices, which are whole numbers: they are tried one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dmodel.asked import Asked, ask, laid
from dmodel.errors import InputError
from dmodel.resolve import Resolved
from dmodel.sensitivity.case import Point, inputs, make_case
from dmodel.sensitivity.goal import usual
from dmodel.settings import changed
from dmodel.solve.answer import End, Root, Solution
from dmodel.solve.curve import POINTS, Curve, end_at, root_at
from dmodel.solve.goals import Goal, computed, in_its_unit

WHOLE = ("n_accel", "dp", "tp", "pp", "cp", "ep", "zero_stage", "interleave", "micro_batch")
"""Columns that are whole numbers and decide others: they are tried, not solved for."""


def case_of(asked: Asked, found: Resolved, tokens: float | None = None) -> Point:
    """The numbers of a plan of a job, and tokens of the run where they are stated."""
    model = found.model.replace(order=())
    goal = usual(model).replace(tokens=tokens)
    return make_case(asked.cluster, model, found.plan, asked.coefficients, asked.footprint, goal)


def tried(
    asked: Asked,
    name: str,
    wanted: Goal,
    between: tuple[float, float] | None,
    words: Mapping[str, Any],
    tokens: float | None,
) -> Solution:
    """A whole number: every value of the range that makes a plan.

    Args:
      words: of the layout, beside the question's. tokens: of the run, where they are stated.

    Raises:
      InputError: an empty range, or no value in it makes a plan.
    """
    stated = laid(asked, words)
    now = _number(name, stated)
    low, high = between or (_least(name), _most(name, now, stated))
    if not low < high:
        raise InputError(f"between {low:g} and {high:g}: expected two numbers, the smaller first")
    points: list[tuple[float, Point, Asked]] = []
    for value in _candidates(name, now, low, high):
        try:
            job = ask(_changed(asked, name, value, words), asked.profile)
            points.append((value, case_of(job, laid(job, {}), tokens), job))
        except InputError:
            continue
    if not points:
        raise InputError(
            f"{name} from {low:g} to {high:g}: no value makes a plan; degrees have to divide the "
            "devices and the batch"
        )
    evaluated = [(value, *_evaluated(case, wanted, job, value)) for value, case, job in points]
    outputs = {value: root.output for value, root, _ in evaluated}
    return Solution(
        input=name,
        output=wanted.output,
        wanted=wanted.value,
        relation=wanted.relation,
        at=now,
        now=_evaluated(case_of(asked, stated, tokens), wanted, asked, now)[0].output,
        between=(low, high),
        roots=tuple(_roots([root for _, root, _ in evaluated], wanted)),
        ends=(evaluated[0][2], evaluated[-1][2]),
        limits=(),
        least=min(outputs.values()),
        most=max(outputs.values()),
        tried=outputs,
    )


def _roots(found: list[Root], wanted: Goal) -> list[Root]:
    """Where a bound is kept for the first time, from the range's lower end on and after each place
    where it is not; of `=` see `_passing`."""
    if wanted.relation == "=":
        return _passing(found, wanted.value)
    kept = [wanted.holds(root.output) for root in found]
    before = [False, *kept]
    return [root for root, now, was in zip(found, kept, before, strict=False) if now > was]


def _passing(found: list[Root], target: float) -> list[Root]:
    """Values with the wanted output; else, where it passes between two, the nearer one."""
    near = lambda root: abs(np.log(root.output / target))  # noqa: E731
    roots: dict[float, Root] = {}
    for one, other in zip(found, found[1:] or found, strict=False):
        for root in (one, other):
            if near(root) < 1e-9:
                roots[root.value] = root._replace(exact=True)
        if (one.output - target) * (other.output - target) < 0.0:
            best = min(one, other, key=near)
            roots.setdefault(best.value, best)
    return [roots[value] for value in sorted(roots)]


def _number(name: str, found: Resolved) -> float:
    plan = found.plan
    if name == "n_accel":
        return float(plan.devices)
    return float(getattr(plan.layout, "zero" if name == "zero_stage" else name))


def _least(name: str) -> float:
    return 0.0 if name == "zero_stage" else 1.0


def _most(name: str, now: float, found: Resolved) -> float:
    if name == "zero_stage":
        return 3.0
    return 64.0 * now if name == "n_accel" else float(found.plan.devices)


def _candidates(name: str, now: float, low: float, high: float) -> list[float]:
    """Whole numbers that are worth a try: 2^k and 3 · 2^k, multiples and parts of devices that are
    stated, and all small ones."""
    base = [2.0**k for k in range(24)] + [3.0 * 2.0**k for k in range(24)]
    wanted = [*base, *map(float, range(17))]
    if name == "n_accel":
        wanted += [now * x for x in base] + [now / x for x in base]
    whole = {x for x in wanted if x == round(x) and low <= x <= high}
    return sorted(whole)[:POINTS]


def _changed(asked: Asked, name: str, value: float, words: Mapping[str, Any]) -> Any:
    """The question with a whole number changed; dp is what is left of the devices."""
    question = changed(asked.question, words)
    gone = () if name == "dp" else ("dp", "shard")
    columns = {n: v for n, v in question.columns.items() if n not in gone}
    if name == "dp":
        columns.pop("shard", None)
        columns["n_accel"] = (
            value * float(columns["n_accel"]) / float(laid(asked, words).plan.layout.dp)
        )
    return changed(question._replace(columns=columns), {name: value})


def _evaluated(case: Point, wanted: Goal, asked: Asked, at: float) -> tuple[Root, End]:
    """One plan, with a whole number of some value."""
    _, unit = in_its_unit(wanted, case)
    names = inputs(case, None)
    line = Curve(names, names.names.index("plan.global_batch"), computed(wanted.output))
    x = np.array([names.values[line.index]])
    found = line(x)
    root = root_at(line, float(x[0]), unit, float(asked.cluster.chip.hbm_bytes))
    end = end_at(found, x, 0, unit)
    return root._replace(value=at, slope=None, exact=False), end._replace(value=at)
