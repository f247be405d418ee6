"""Predict measured configurations: one evaluation of all rows, each under the coefficients of its
accelerator and stack."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from calibration.traces import Cases, TraceTable, to_cases
from calibration.traces.table import FLAGGED, REFUSED, Finding
from dmodel.asked import where_blank
from dmodel.breakdown import TERMS, Breakdown
from dmodel.coefficients import Coefficients, from_unconstrained
from dmodel.cost.memory import out_of_memory_probability
from dmodel.errors import InputError
from dmodel.footprint import Footprint, whole
from dmodel.prediction import NONE
from dmodel.profiles import Profile, nearest
from dmodel.profiles.record import Fitted
from dmodel.recorded import Recorded
from dmodel.records import Cluster, Model, Plan, trimmed
from dmodel.run import CONVENTION, mfu
from dmodel.smooth import SHARPNESS
from dmodel.step import memory_use, step_time
from dmodel.types import Array, enable_float64
from dmodel.uncertainty import (
    LEVEL,
    band,
    covariance,
    distance,
    features,
    misfit,
    parameter_sd,
    points,
    scatter_of,
)


class Predictions(NamedTuple):
    """What the model says of each row, numpy `[rows]`.

    Attributes:
      step_time_s: predicted step time [s]. breakdown: its terms [s]. memory_bytes, headroom_bytes:
        per device, of the one that the stack reports; headroom is negative when the plan does not
        fit. oom_probability: that the fullest device runs out of memory [1].
      mfu: model FLOP utilization by `convention`. profile: name of what predicted each row. reason:
        why.
      scale: Student-t scale of ln(measured / predicted) of a time that was not fitted; NaN where
      the profile carries no covariance. parameter_sd: the coefficients' part of it. memory_spread:
      standard deviation of ln(measured / predicted) of a peak.
    """

    step_time_s: np.ndarray
    breakdown: Breakdown
    memory_bytes: np.ndarray
    headroom_bytes: np.ndarray
    oom_probability: np.ndarray
    mfu: np.ndarray
    convention: str
    profile: list[str]
    reason: list[str]
    scale: np.ndarray
    parameter_sd: np.ndarray
    memory_spread: np.ndarray

    def take(self, rows: np.ndarray) -> Predictions:
        """The predictions of a mask."""
        names = {
            n: [x for x, kept in zip(getattr(self, n), rows, strict=True) if kept]
            for n in ("profile", "reason")
        }
        arrays = jax.tree.map(
            lambda x: np.asarray(x)[rows],
            {n: x for n, x in self._asdict().items() if n not in (*names, "convention")},
        )
        return self._replace(**names, **arrays)

    def interval(self, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the interval of step time [s], `[rows]` each; NaN where there is none."""
        return band(self.step_time_s, self.scale, level)


def _evaluate(
    system: Cluster,
    model: Model,
    plan: Plan,
    footprint: Footprint,
    beside: Array,
    spread: Array,
    coefficients: Coefficients,
    *,
    sharpness: float,
) -> dict[str, Any]:
    """Breakdown, step time, bytes per device as the row counts them (`Cases.beside`), probability
    of too few of them, and model FLOP utilization."""
    terms = step_time(system, model, plan, coefficients, sharpness=sharpness)
    told = footprint.replace(reserved=beside * footprint.reserved)
    used = memory_use(model, plan, footprint=told).total
    needed = memory_use(model, plan, footprint=whole(footprint)).total
    return {
        "terms": {name: getattr(terms, name) for name in TERMS},
        "total": terms.total,
        "used": used,
        "risk": out_of_memory_probability(needed, system.chip.hbm_bytes, spread),
        "mfu": mfu(system, model, plan, terms, CONVENTION),
    }


EVALUATE = Recorded(_evaluate, any_rows=True)

MOST_ROWS = 2048
"""Rows that are predicted at once: what is between the steps has to fit a cache."""


class Group(NamedTuple):
    """Rows of one accelerator and stack, which have their coefficients in common.

    Attributes:
      profile: what predicts them. rows: their places. mean: its unconstrained coefficients `[C]`.
      covariance: of these, None where the profile carries none. memory: what the stack holds.
    """

    profile: Profile
    accelerator: str
    stack: str
    rows: list[int]
    mean: np.ndarray
    covariance: np.ndarray | None
    memory: Fitted


def groups_of(cases: Cases, profiles: list[Profile]) -> list[Group]:
    """Rows by profile, accelerator and stack."""
    labels = cases.labels
    found: dict[tuple[int, str, str], list[int]] = {}
    for i, (p, accelerator, stack) in enumerate(
        zip(profiles, labels.accelerator.tolist(), labels.stack.tolist(), strict=True)
    ):
        found.setdefault((id(p), accelerator, stack), []).append(i)
    return [
        Group(
            profile=(p := profiles[rows[0]]),
            accelerator=accelerator,
            stack=stack,
            rows=rows,
            mean=p.unconstrained(accelerator, stack),
            covariance=covariance(p, accelerator, stack),
            memory=p.footprint_for(stack),
        )
        for (_, accelerator, stack), rows in found.items()
    ]


def sigma_points(groups: list[Group]) -> np.ndarray:
    """Unconstrained coefficients to evaluate, `[point, C, group]`: the mean first, alone where no
    group has a covariance; of a group without one it is all that there is."""
    found = [
        np.repeat(g.mean[:, None], 1 + 2 * len(g.mean), 1)
        if g.covariance is None
        else points(g.mean, g.covariance)
        for g in groups
    ]
    known = any(g.covariance is not None for g in groups)
    return np.stack(found, -1).swapaxes(0, 1)[: None if known else 1]


def evaluated(
    records: tuple, coefficients: Coefficients, of: np.ndarray
) -> tuple[dict[str, Any], np.ndarray]:
    """Predictions of rows under the first of some coefficients, and their step times under each.

    Args:
      records: system, model, plan, footprint, `beside` and spread, leaves `[..., row]`.
      coefficients: leaves `[point, group]`. of: group of each row.
    Returns:
      As `_evaluate`, leaves `[row]`; step times `[point, row]` [s].
    """
    places = batches(records[1], len(of))
    found = [_evaluated_batch(_rows_of(records, at), coefficients, of[at]) for at in places]
    order = np.argsort(np.concatenate(places))
    return jax.tree.map(lambda *xs: np.take(np.concatenate(xs, -1), order, -1), *found)


def _rows_of(records: tuple, places: np.ndarray) -> tuple:
    """Records of some rows, without kinds of layers that none of them has."""
    system, model, *others = jax.tree.map(lambda x: x[..., places], records)
    return (system, trimmed(model), *others)


def batches(model: Model, rows: int) -> list[np.ndarray]:
    """Places of rows that are predicted together. Of many rows those with the kinds of layers that
    most have come apart from the others, whose parts they need no tables for."""
    if rows <= MOST_ROWS // 2:
        return [np.arange(rows)]
    kinds = zip(model.shares, model.further, strict=True)
    has = np.array([(np.asarray(a) > 0.0) | (np.asarray(b) > 0.0) for a, b in kinds])
    _, kind, count = np.unique(has, axis=1, return_inverse=True, return_counts=True)
    most = kind.ravel() == count.argmax()
    parts = [np.flatnonzero(part) for part in (most, ~most) if part.any()]
    return [part[i : i + MOST_ROWS] for part in parts for i in range(0, len(part), MOST_ROWS)]


def _evaluated_batch(
    records: tuple, coefficients: Coefficients, of: np.ndarray
) -> tuple[dict[str, Any], np.ndarray]:
    """As `evaluated`, of few enough rows: of very few, under several coefficients at once."""
    rows, count = len(of), len(jax.tree.leaves(coefficients)[0])
    once = min(max(MOST_ROWS // rows, 1), count)
    points = np.minimum(np.arange(-(-count // once) * once), count - 1).reshape(-1, once)

    def taken(at: np.ndarray) -> Coefficients:
        return jax.tree.map(lambda x: x[at[:, None], of].ravel(), coefficients)

    tiled = jax.tree.map(lambda x: np.tile(x, once), records)
    run = EVALUATE.varied(*tiled, like=taken(points[0]), sharpness=SHARPNESS)
    found = [run(taken(at)) for at in points]
    first = jax.tree.map(lambda x: x[:rows], found[0])
    times = np.concatenate([each["total"] for each in found])
    return first, times[: rows * count].reshape(count, rows)


def assign(cases: Cases, profile: Profile | None) -> tuple[list[Profile], list[str]]:
    """The profile of every row, and why: the given one, or the shipped one nearest to the row's
    accelerator and stack."""
    pairs = list(zip(map(str, cases.labels.accelerator), map(str, cases.labels.stack), strict=True))
    if profile is not None:
        return [profile] * len(pairs), ["given"] * len(pairs)
    found = {pair: nearest(*pair) for pair in dict.fromkeys(pairs)}
    return [found[pair][0] for pair in pairs], [found[pair][1] for pair in pairs]


def as_asked(table: TraceTable, cases: Cases, profile: Profile | None) -> Cases:
    """Cases of a table with its blank recomputation as of single questions: the least at the usual
    risk, by what the profile of each row says that its stack holds."""
    if not any("recompute blank" in text for row in cases.labels.assumptions for text in row):
        return cases
    groups = groups_of(cases, assign(cases, profile)[0])
    rules = {i: where_blank(group.profile, group.stack) for group in groups for i in group.rows}
    return to_cases(table, [rules[i] for i in range(len(cases))])


def predict(cases: Cases, profile: Profile | None = None) -> Predictions:
    """Predict every case.

    Args:
      cases: from `calibration.traces.to_cases`; step times may be unknown.
      profile: for all rows; None takes the shipped profile nearest to each row.
    """
    enable_float64()
    profiles, reasons = assign(cases, profile)
    groups = groups_of(cases, profiles)
    of = np.empty(len(cases), int)
    for i, group in enumerate(groups):
        of[group.rows] = i
    footprint = jax.tree.map(lambda *x: np.array(x)[of], *(g.memory.footprint for g in groups))
    spread = np.array([g.memory.spread for g in groups])[of]
    z = sigma_points(groups)
    model, told = cases.model.replace(order=()), (footprint, cases.beside, spread)
    records = (cases.system, model, cases.plan, *told)
    found, times = evaluated(records, _coefficients(z), of)
    memory = found["used"]
    scale, sd = doubt(cases, groups, times)
    return Predictions(
        step_time_s=found["total"],
        breakdown=Breakdown(**found["terms"]),
        memory_bytes=memory,
        headroom_bytes=np.asarray(cases.system.chip.hbm_bytes) - memory,
        oom_probability=found["risk"],
        mfu=found["mfu"],
        convention=CONVENTION,
        profile=[p.name for p in profiles],
        reason=reasons,
        scale=scale,
        parameter_sd=sd,
        memory_spread=spread,
    )


def _coefficients(z: np.ndarray) -> Coefficients:
    """Coefficients, leaves `[point, group]`, of unconstrained ones `[point, C, group]`."""
    return from_unconstrained(z.swapaxes(0, 1))


TIME = "step time [s]"
"""How a predicted time is called."""


def beyond_physics(found: Predictions) -> dict[int, Finding]:
    """What is wrong with predictions, by row: no finite positive number, and a term below 0, are
    refused; more FLOP/s than the chips have is flagged."""
    wrong: dict[int, Finding] = {}
    figures = {TIME: found.step_time_s, "memory [byte]": found.memory_bytes}
    terms = {n: np.asarray(getattr(found.breakdown, n)) for n in TERMS}
    for i, share in enumerate(found.mfu.tolist()):
        bad = [f"{n} {x[i]:.3g}" for n, x in figures.items() if not 0.0 < x[i] < np.inf]
        bad += [f"{n} {x[i]:.3g} s" for n, x in terms.items() if x[i] < -NONE * figures[TIME][i]]
        if bad:
            text = f"predicted {', '.join(bad)}: some cell lies outside the range of the model"
            wrong[i] = Finding("prediction", REFUSED, text)
        elif share > 1.0:
            text = f"predicted MFU {share:.3g} by {found.convention}, expected less than 1"
            wrong[i] = Finding("prediction", FLAGGED, text)
    return wrong


def within_physics(
    table: TraceTable, cases: Cases, found: Predictions
) -> tuple[TraceTable, Cases, Predictions]:
    """Table, cases and predictions without the rows whose predictions are no numbers, which are set
    aside; those beyond the chips are flagged.

    Raises:
      InputError: no row is left.
    """
    wrong = beyond_physics(found)
    if not wrong:
        return table, cases, found
    table, kept = table.with_findings(wrong), np.ones(len(cases), bool)
    kept[[i for i, each in wrong.items() if each.severity == REFUSED]] = False
    if not kept.any():
        raise InputError(f"no row can be predicted (the first problem: {table.problems[-1]})")
    flags = np.array([row.flag for row in table.rows], np.str_)
    cases = cases.take(kept)
    return table, cases.replace(labels=cases.labels._replace(flag=flags)), found.take(kept)


def doubt(cases: Cases, groups: list[Group], times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Student-t scale of ln(measured / predicted) of every row, and the coefficients' part of it
    `[row]`; NaN without a covariance.

    Args:
      times: step time at every sigma point `[point, row]` [s].
    """
    place = features(cases.system, cases.model, cases.plan)
    rest = np.full(len(cases), np.nan)
    for g in groups:
        if g.covariance is not None:
            far = distance(g.profile, g.stack, place[g.rows])
            rest[g.rows] = misfit(scatter_of(g.profile, g.stack), far)
    sd = np.where(np.isnan(rest), np.nan, parameter_sd(np.log(times)))
    return np.hypot(sd, rest), sd
