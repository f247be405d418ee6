"""The certificate of a design: how far the plan is from the best that was checked, or from a proven
lower bound."""

from __future__ import annotations

import numpy as np

from dmodel import struct
from dmodel.design import rows as rows_
from dmodel.design import space as spaces
from dmodel.design.bounds import arithmetic_floor, group_bounds, keeps_limits, merit_bounds
from dmodel.design.judge import Problem
from dmodel.design.search import Ranking

BOUNDED = 1 << 21
"""Groups up to which the lower bound of the whole space is that of its groups [count]: beyond, it
is the arithmetic alone."""

UNITS = {"time": "s", "cost": "dollar", "energy": "J"}


class Certificate(struct.PyTreeNode, kw_only=True):
    """What is known about the quality of a design.

    Attributes:
      kind: "all" valid plans were evaluated; "pruned": those left out are proven to be no better;
        "bound": only a lower bound is known; "none": no plan fits, or was found to.
      gap: merit of the gradient's plan over that of the exact optimum, less 1; None unless both are
        known [1].
      bound: no valid plan that fits has a smaller merit: the objective of one step [s, dollar or
        J]; infinite without one that fits. floor_s: no plan's arithmetic takes less, whatever it
        needs besides [s].
      distance: merit of the best plan found over `bound`, less 1: proven to be no farther from the
      optimum; None without a plan [1]. statement: the same in words.
    """

    kind: str = struct.field(pytree_node=False)
    gap: float | None
    bound: float
    floor_s: float
    distance: float | None
    statement: str = struct.field(pytree_node=False)


def space_bound(problem: Problem, threads: int | None = None) -> float:
    """A merit that no valid plan undercuts: the least bound of the groups that may fit, else the
    arithmetic of all devices."""
    chip, n = problem.system.chip, problem.space.n_devices
    # devices at rest draw the least
    per_second = {
        "time": 1.0,
        "cost": n * float(chip.price_per_s),
        "energy": n * float(chip.idle_watts),
    }[problem.objective]
    least, seen = np.inf, 0
    for rows in rows_.groups(problem.space):
        seen += len(rows)
        if seen > BOUNDED:
            return arithmetic_floor(problem) * per_second
        found = group_bounds(problem, rows, sharded=False, threads=threads)
        fits = keeps_limits(problem, rows, found)
        least = min(least, float(np.min(merit_bounds(problem, found), initial=np.inf, where=fits)))
    return max(least, arithmetic_floor(problem) * per_second) if np.isfinite(least) else np.inf


def certify(
    problem: Problem, exact: Ranking | None, gradient: float | None, threads: int | None = None
) -> Certificate:
    """Compare the two searches, both judged by the same function.

    Args:
      exact: of the exact search, None when there was none. gradient: merit of the plan found by
        gradient if it keeps all limits.
    """
    best = _best_merit(exact)
    whole = _is_whole(exact, best)
    bound = _bound(problem, exact, gradient, threads)
    found = min((x for x in (best, gradient) if x is not None), default=None)
    distance = None if found is None else max(found / bound - 1.0, 0.0)
    gap = _gap(gradient, best) if whole else None
    kind = "none" if found is None else _kind(exact, whole)
    return Certificate(
        kind=kind,
        gap=gap,
        bound=bound,
        floor_s=arithmetic_floor(problem),
        distance=distance,
        statement=_words(problem, kind, exact, gap, bound, distance),
    )


def _is_whole(exact: Ranking | None, best: float | None) -> bool:
    """Whether an exact search proved that no plan is better than its best."""
    return best is not None and exact is not None and exact.bound >= best


def _best_merit(exact: Ranking | None) -> float | None:
    """Merit of the best plan of an exact search; None without one."""
    return float(exact.merits[0]) if exact is not None and len(exact.merits) else None


def _searched(exact: Ranking | None) -> bool:
    """Whether an exact search decided anything."""
    return exact is not None and exact.considered > 0


def _bound(
    problem: Problem, exact: Ranking | None, gradient: float | None, threads: int | None
) -> float:
    """The bound of an exact search, else of the space where a plan was found."""
    if exact is not None and exact.considered > 0:
        return float(exact.bound)
    return np.inf if gradient is None else space_bound(problem, threads)


def _gap(gradient: float | None, best: float | None) -> float | None:
    """Merit of the gradient's plan over the best one's, less 1."""
    if gradient is None or best is None:
        return None
    gap = gradient / best - 1.0
    # two plans of one merit are equally good; the last digits are rounding
    return 0.0 if abs(gap) < 1e-9 else gap


def _kind(exact: Ranking | None, whole: bool) -> str:
    """How a search decided all plans, or that it did not."""
    if exact is None or not whole:
        return "bound"
    return "all" if exact.evaluated == exact.considered else "pruned"


def _words(
    problem: Problem,
    kind: str,
    exact: Ranking | None,
    gap: float | None,
    bound: float,
    distance: float | None,
) -> str:
    """The certificate in a sentence."""
    if kind == "none" or distance is None:
        return _words_of_none(problem, exact)
    if kind == "bound" or exact is None:
        return _words_of_bound(UNITS[problem.objective], _searched(exact), bound, distance)
    how = _words_of_all(kind, exact)
    return how if gap is None else f"the plan found by gradient {_compared(gap)} {how}"


def _words_of_none(problem: Problem, exact: Ranking | None) -> str:
    """That nothing fits, or was found to."""
    if _searched(exact) or not spaces.degrees(problem.space):
        return "no plan fits, so there is nothing to certify"
    return "no plan was found that fits; not checked whether any does"


def _words_of_all(kind: str, exact: Ranking) -> str:
    """The best plan where all were decided."""
    if kind != "pruned":
        return f"the best of all {exact.considered:,} valid plans, which were all checked"
    best = f"the best of all {exact.considered:,} valid plans: {exact.evaluated:,} were checked, "
    left = f"{exact.considered - exact.evaluated:,} are proven to be worse or not to fit"
    return best + left


def _compared(gap: float) -> str:
    return "is" if gap == 0.0 else f"is {gap:.2%} worse than"


def _words_of_bound(unit: str, searched: bool, bound: float, distance: float) -> str:
    """How far a plan may be from the best, where not all were decided."""
    checked = "not checked against all plans"
    if searched:
        checked = "time ran out before all plans were decided"
    reached = f"the proven lower bound of {bound:.4g} {unit}"
    return f"{checked}: at most {distance:.1%} worse than any, by {reached}"
