"""What is not known of a design. Intervals of the listed plans, whether the best one beats the
next, how often it stays the best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dmodel.cli.output import Document, percent

if TYPE_CHECKING:
    import numpy as np

    from dmodel.asked import Asked
    from dmodel.design import Candidate, Design, Evaluation, Problem
    from dmodel.uncertainty import Uncertain

DRAWS = 64
"""Draws of the coefficients [count]."""


def row_of(c: Candidate, stated: Problem) -> list[float]:
    """A candidate as a row of the space, whose plans share one precision."""
    from dmodel.design.rows import COLUMNS
    from dmodel.design.space import placements
    from dmodel.records import SCHEDULES, leaf

    order = placements(stated.space).index(c.plan.layout.placement)
    code = {"schedule": SCHEDULES.index(c.plan.layout.schedule), "placement": order, "precision": 0}
    return [float(code[name] if name in code else leaf(c.plan, name)) for name in COLUMNS]


def _judged(stated: Problem, rows: np.ndarray, unconstrained: np.ndarray) -> Evaluation:
    """What the model says of rows with each of some coefficients, `[C, draw]`."""
    from dmodel.coefficients import from_unconstrained
    from dmodel.design import evaluate_draws

    return evaluate_draws(stated, rows, from_unconstrained(unconstrained))


def robust(asked: Asked, stated: Problem, found: Design) -> Document | None:
    """How often the chosen plan stays the best one when the coefficients are drawn from what the
    fit left open. None without a covariance.

    Draws are normal in the unconstrained coefficients; rivals are the best plans at their mean.
    Limits: what the model lacks beyond its coefficients is not drawn, as it is common to plans of
    one kind.
    """
    import numpy as np

    from dmodel.coefficients import to_unconstrained
    from dmodel.design import merits
    from dmodel.uncertainty import covariance

    sigma = covariance(asked.profile, asked.accelerator, asked.stack or None)
    if sigma is None or len(found.exact) < 2:
        return None
    values, axes = np.linalg.eigh(np.asarray(sigma))
    normal = np.random.default_rng(0).normal(size=(DRAWS, len(values)))
    draws = (
        np.asarray(to_unconstrained(asked.coefficients))
        + normal * np.sqrt(np.maximum(values, 0.0)) @ axes.T
    )
    rows = np.array([row_of(c, stated) for c in found.exact])
    table = merits(stated, _judged(stated, rows, draws.T))
    regret = table[:, 0] / np.min(table, axis=1) - 1.0
    return {
        "best_in": float((regret <= 1e-9).mean()),
        "within_1_percent_in": float((regret <= 0.01).mean()),
        "mean_regret": float(regret.mean()),
        "median_regret": float(np.median(regret)),
        "largest_regret": float(regret.max()),
        "draws": len(draws),
        "rivals": len(rows),
        "alike": _alike(found, rows, table),
    }


def _alike(found: Design, rows: np.ndarray, table: np.ndarray) -> Document:
    """The plans that are as good as the best, as far as can be told, and the simplest of them.

    A plan is as good where it is worse by less than the standard deviation of that difference.

    Args:
      rows: of the plans, best first. table: their merits with each draw, `[draw, plan]`.
    """
    import numpy as np

    from dmodel.cli.question import plan_document, short
    from dmodel.design.rows import plainest_first

    worse = np.log(table / table[:, :1])
    near = np.flatnonzero(worse.mean(0) <= worse.std(0))
    at = int(near[plainest_first(rows[near], np.zeros(len(near)))[0]])
    simplest = found.exact[at]
    return {
        "plans": len(near),
        "simplest": short(plan_document(simplest.plan)),
        "place": at + 1,
        "step_time_s": float(simplest.step_time_s),
        "worse": float(np.median(table[:, at] / table[:, 0]) - 1.0),
    }


def _uncertain(asked: Asked, stated: Problem, plans: list[Candidate]) -> Uncertain | None:
    """Step times of plans with their intervals, all with the same coefficients; None where the
    profile carries no covariance."""
    import numpy as np

    from dmodel import uncertainty as u

    stack = asked.stack or None
    sigma = u.covariance(asked.profile, asked.accelerator, stack)
    if sigma is None:
        return None
    z = u.points(asked.profile.unconstrained(asked.accelerator, stack), sigma)
    rows = np.array([row_of(c, stated) for c in plans])
    draws = np.log(np.asarray(_judged(stated, rows, z).step_time_s))
    places = np.concatenate([u.features(asked.cluster, asked.model, c.plan) for c in plans])
    return u.uncertain(
        draws,
        u.misfit(
            u.scatter_of(asked.profile, stack), u.distance(asked.profile, asked.stack, places)
        ),
    )


def add_intervals(asked: Asked, stated: Problem, found: Design, document: Document) -> None:
    """Give every listed plan its 90 % interval, and say how likely the best one beats the next."""
    from dmodel.uncertainty import probability_faster

    listed = list(zip(found.exact, document["exact"], strict=False))
    listed += [(found.gradient, document["gradient"])] if found.gradient is not None else []
    listed += list(zip(found.front, document["front"], strict=True))
    second = found.exact[1:2]
    known = _uncertain(asked, stated, [*(c for c, _ in listed), *second])
    if known is None:
        return
    for i, (_, d) in enumerate(listed):
        d["step_time_s_low"], d["step_time_s_high"] = float(known.low[i]), float(known.high[i])
    if second:
        document["beats_next"] = {
            "label": second_label(found),
            "probability": probability_faster(known, 0, len(listed)),
        }


def second_label(found: Design) -> str:
    """The second best plan of the exact search in a few words."""
    from dmodel.cli.question import plan_document, short

    return short(plan_document(found.exact[1].plan))


def doubt_lines(d: Document) -> list[str]:
    """What is said below the table."""
    lines = []
    if d.get("beats_next"):
        chance = d["beats_next"]["probability"]
        lines.append(
            f"The first plan is faster than the second ({d['beats_next']['label']}) with a "
            f"probability of {percent(chance, 0)}."
        )
    if d.get("robust"):
        r = d["robust"]
        lines.append(
            f"Uncertainty: best of {r['rivals']} in {percent(r['best_in'], 0)} of {r['draws']} "
            "draws of the coefficients, within 1 % of the best "
            f"in {percent(r['within_1_percent_in'], 0)}; regret "
            f"{percent(r['median_regret'], 2)} in the median"
        )
        lines.append(_line_of_alike(r["alike"], r["rivals"]))
    return lines


def _line_of_alike(alike: Document, rivals: int) -> str:
    """How many plans cannot be told from the best, and the simplest of them."""
    if alike["plans"] == 1:
        return "No other plan is as good, within the uncertainty of the coefficients."
    first = "the first itself" if alike["place"] == 1 else alike["simplest"]
    way = "slower" if alike["worse"] >= 0.0 else "faster"
    more = f", {percent(abs(alike['worse']), 2)} {way} in the median" if alike["place"] > 1 else ""
    return (
        f"Equally good, within the uncertainty of the coefficients: {alike['plans']} of {rivals}. "
        f"The simplest of them: {first}{more}."
    )
