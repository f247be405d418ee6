"""A sensitivity answer as a whole: the plan, its elasticities, and the parts that are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dmodel.cli import sensitivity_parts as parts
from dmodel.cli.design_risk import risk_of
from dmodel.cli.elasticities import case_document
from dmodel.cli.options import Degrees
from dmodel.cli.output import Document, gib, percent, say
from dmodel.cli.sensitivity_shown import (
    Figures,
    draw_interactions,
    draw_regimes,
    draw_tornado,
)
from dmodel.cli.sensitivity_wanted import Wanted, check_names
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.records import Plan
    from dmodel.sensitivity import Point, Searched


def answer(asked: Asked, degrees: Degrees, w: Wanted) -> tuple[Document, Figures]:
    """The document, and the figures that belong to it."""
    from dmodel.cli.question import plan, plan_document
    from dmodel.report.words import summary
    from dmodel.sensitivity.case import inputs
    from dmodel.sensitivity.outputs import WORDS

    plans: Searched | None = None
    if w.reoptimize:
        chosen, assumed, plans = _best(asked, degrees, w)
    else:
        chosen, assumed = plan(asked, degrees)
        _say_if_too_large(asked, chosen)
    case = case_of(asked, chosen, w)
    check_names(inputs(case, asked.level_names), w)
    d: Document = {
        **asked.document(),
        "plan": plan_document(chosen),
        **case_document(asked, case, w.output),
        "assumptions": assumed,
    }
    d["output_words"] = WORDS[d["output"]]
    d["shares"] = _shares(d) if d["output"] == "step_time" else None
    _add_effects(d, asked, case)
    figures = _add_parts(d, asked, case, plans, w)
    d["summary"] = summary(d)
    return d, figures


def _best(asked: Asked, degrees: Degrees, w: Wanted) -> tuple[Plan, list[str], Searched]:
    """The best plan, what is assumed for all, and what is known of the others."""
    from dmodel.searching import space_of, usable
    from dmodel.sensitivity import searched
    from dmodel.sensitivity.case import inputs

    found = space_of(asked, degrees.attention or "")
    # one record for stages of one chunk and of several
    shared = _of_any_chunks(found.base)
    whole = shared.having(dp=float(asked.devices), global_batch=float(asked.global_batch))
    opening = case_of(asked, whole, w)
    check_names(inputs(opening, asked.level_names), w)
    risk = risk_of(w.max_risk)
    how = {"base": found.base, "choices": found.choices, "level_names": asked.level_names}
    plans = searched(opening, memory=usable(asked, risk), **how)
    say(
        f"best of {plans.considered:,} valid plans whose memory is too little with a risk of "
        f"{percent(risk)} at most (--max-risk)"
    )
    chosen = _of_any_chunks(plans.best.plans[0])
    return chosen, [str(each) for each in found.assumptions], plans


def _of_any_chunks(plan: Plan) -> Plan:
    """1F1B is the interleaved schedule of one chunk."""
    return plan.having(schedule="interleaved") if plan.layout.schedule == "1f1b" else plan


def _add_parts(
    d: Document, asked: Asked, case: Point, plans: Searched | None, w: Wanted
) -> Figures:
    """Add the parts of the answer that are wanted; the figures that belong to it."""
    figures: Figures = {"tornado": lambda: draw_tornado(d)}
    if w.reoptimize:
        assert plans is not None
        d["max_risk"] = risk_of(w.max_risk)
        d["reoptimized"] = parts.reoptimized_document(asked, case, d["output"], plans.memory)
        d["design"] = parts.design_document(asked, case, plans, w, d)
    figures |= _add_figures(d, asked, case, w)
    if w.base or w.ranges:
        d["global"] = parts.global_document(asked, case, d["output"], w)
    if w.check:
        d["check"] = parts.check_document(asked, case, d, plans.memory if plans else 1.0)
    return figures


def _add_figures(d: Document, asked: Asked, case: Point, w: Wanted) -> Figures:
    """Add the parts that are figures, all of them where there is a report."""
    figures: Figures = {}
    if w.interact or w.report:
        most = w.interact or INTERACTING
        d["interactions"] = parts.interactions_document(asked, case, d["output"], most)
        figures["interactions"] = lambda: draw_interactions(d)
    if w.axes or w.report:
        found = parts.map_of(asked, case, w.axes or "devices,bandwidth")
        d["regimes"] = parts.regime_document(found)
        figures["regimes"] = lambda: draw_regimes(found, d)
    return figures


INTERACTING = 12
"""Inputs of the heat map, where nothing else is asked."""


def _say_if_too_large(asked: Asked, chosen: Plan) -> None:
    """Say where a plan does not fit. It may be asked about all the same, as its answer may be what
    would change that."""
    from dmodel.step import memory_use

    short = float(
        memory_use(asked.model, chosen, footprint=asked.footprint).total
        - asked.cluster.chip.hbm_bytes
    )
    if short > 0.0:
        say(
            f"the plan does not fit: a device has {gib(short)} too little; sensitivities are "
            "of "
            "what it would be if it did"
        )


def case_of(asked: Asked, chosen: Plan, w: Wanted) -> Point:
    """The case of a job and plan, with the goal of the options."""
    from dmodel.goodput import DAY_S
    from dmodel.sensitivity import make_case
    from dmodel.sensitivity.goal import usual

    _check_positive("loss", w.loss)
    _check_positive("deadline-days", w.deadline_days)
    goal = usual(asked.model).replace(deadline_s=w.deadline_days * DAY_S)
    goal = goal if w.loss is None else goal.replace(loss=w.loss)
    return make_case(asked.cluster, asked.model, chosen, asked.coefficients, asked.footprint, goal)


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not 0.0 < value < float("inf"):
        raise InputError(f"--{name}: expected a positive number; got {value:g}")


def _shares(d: Document) -> dict[str, float]:
    """Shares of the step by what bounds it, from the elasticities."""
    from dmodel.sensitivity.regimes import MEMBERS, REGIMES

    found: dict[str, float] = dict.fromkeys(REGIMES, 0.0)
    for e in d["elasticities"]:
        if (base := e["name"].split("[")[0]) in MEMBERS:
            regime, sign = MEMBERS[base]
            found[regime] += sign * e["elasticity"]
    return found


def _add_effects(d: Document, asked: Asked, case: Point) -> None:
    """Give every elasticity the effect of 10 % more. Where the profile has a covariance, half the
    width of its 90 % interval is added."""
    import numpy as np

    from dmodel import uncertainty
    from dmodel.sensitivity.case import inputs
    from dmodel.sensitivity.gradient import evaluate
    from dmodel.sensitivity.local import scaled

    known = inputs(case, asked.level_names)
    places = [known.index(e["name"]) for e in d["elasticities"]]
    values, _ = evaluate(known, scaled(known, places, np.array([1.1])), d["output"])
    sd = _deviations(d["output"], asked, case)
    for e, value in zip(d["elasticities"], values, strict=True):
        e["more"] = float(value / d["value"] - 1.0)
        if sd and not e["name"].startswith("plan."):
            e["error"] = uncertainty.quantile(0.9) * sd[e["name"]]


def _deviations(output: str, asked: Asked, case: Point) -> dict[str, float]:
    """Standard deviation of each elasticity; none where the profile has no covariance."""
    from dmodel import uncertainty
    from dmodel.sensitivity.spread import deviations

    profile, stack = asked.profile, asked.stack or None
    sigma = uncertainty.covariance(profile, asked.accelerator, stack)
    if sigma is None:
        return {}
    points = uncertainty.points(profile.unconstrained(asked.accelerator, stack), sigma)
    return deviations(case, points, output, level_names=asked.level_names)
