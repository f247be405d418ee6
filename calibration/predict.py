"""Predict measured configurations: one evaluation of all rows, each under the coefficients of its
accelerator and stack. Files of similar length share its record (`calibration.padding`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from calibration.padding import longer, row_count
from calibration.traces import Cases, TraceTable
from calibration.traces.table import FLAGGED, REFUSED, Finding
from dmodel.breakdown import TERMS, Breakdown
from dmodel.coefficients import NAMES, Coefficients, from_unconstrained
from dmodel.cost.memory import out_of_memory_probability
from dmodel.errors import InputError
from dmodel.footprint import Footprint, whole
from dmodel.prediction import NONE
from dmodel.profiles import Profile, nearest
from dmodel.recorded import Recorded
from dmodel.records import Cluster, Model, Plan
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
    scatter_of,
)
from dmodel.uncertainty import points as sigma_points


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
    spread: Array,
    coefficients: Coefficients,
    *,
    sharpness: float,
) -> dict[str, Any]:
    """Breakdown, step time, bytes per device, probability of too few of them, and model FLOP
    utilization."""
    terms = step_time(system, model, plan, coefficients, sharpness=sharpness)
    used = memory_use(model, plan, footprint=footprint).total
    needed = memory_use(model, plan, footprint=whole(footprint)).total
    return {
        "terms": {name: getattr(terms, name) for name in TERMS},
        "total": terms.total,
        "used": used,
        "risk": out_of_memory_probability(needed, system.chip.hbm_bytes, spread),
        "mfu": mfu(system, model, plan, terms, CONVENTION),
    }


EVALUATE = Recorded(_evaluate)

MOST_ROWS = 2048
"""Rows that are predicted at once: what is between the steps has to fit a cache."""


def evaluator(records: tuple, rows: int) -> Callable[[np.ndarray], dict[str, Any]]:
    """Predictions of some rows, of their unconstrained coefficients `[coefficient, row]`.

    Args:
      records: system, model, plan, footprint and spread, leaves `[..., row]`.
    """
    parts = [slice(i, min(i + MOST_ROWS, rows)) for i in range(0, rows, MOST_ROWS)]
    size = row_count(rows) if len(parts) == 1 else MOST_ROWS

    def cut(tree: Any, part: slice) -> Any:
        return longer(jax.tree.map(lambda x: np.asarray(x)[..., part], tree), size)

    def coefficients(z: np.ndarray, part: slice) -> Coefficients:
        return from_unconstrained(cut(z, part))

    some = np.zeros((len(NAMES), rows))
    each = [
        EVALUATE.varied(*cut(records, part), like=coefficients(some, part), sharpness=SHARPNESS)
        for part in parts
    ]

    def evaluated(z: np.ndarray) -> dict[str, Any]:
        found = [
            jax.tree.map(lambda x, n=part.stop - part.start: x[..., :n], of(coefficients(z, part)))
            for of, part in zip(each, parts, strict=True)
        ]
        return jax.tree.map(lambda *xs: np.concatenate(xs, -1), *found)

    return evaluated


def assign(cases: Cases, profile: Profile | None) -> tuple[list[Profile], list[str]]:
    """The profile of every row, and why: the given one, or the shipped one nearest to the row's
    accelerator and stack."""
    pairs = list(zip(map(str, cases.labels.accelerator), map(str, cases.labels.stack), strict=True))
    if profile is not None:
        return [profile] * len(pairs), ["given"] * len(pairs)
    found = {pair: nearest(*pair) for pair in dict.fromkeys(pairs)}
    return [found[pair][0] for pair in pairs], [found[pair][1] for pair in pairs]


def predict(cases: Cases, profile: Profile | None = None) -> Predictions:
    """Predict every case.

    Args:
      cases: from `calibration.traces.to_cases`; step times may be unknown.
      profile: for all rows; None takes the shipped profile nearest to each row.
    """
    enable_float64()
    profiles, reasons = assign(cases, profile)
    labels = zip(
        profiles, map(str, cases.labels.accelerator), map(str, cases.labels.stack), strict=True
    )
    z = np.stack([p.unconstrained(accelerator, stack) for p, accelerator, stack in labels], 1)
    known = [
        p.footprint_for(stack)
        for p, stack in zip(profiles, map(str, cases.labels.stack), strict=True)
    ]
    footprint = jax.tree.map(lambda *values: np.array(values), *(f.footprint for f in known))
    spread = np.array([f.spread for f in known])

    evaluated = evaluator(
        (cases.system, cases.model.replace(order=()), cases.plan, footprint, spread), len(cases)
    )
    found = evaluated(z)
    memory = found["used"]
    scale, parameter_sd = doubt(cases, profiles, lambda z: np.log(evaluated(z)["total"]), z)
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
        parameter_sd=parameter_sd,
        memory_spread=spread,
    )


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


def doubt(
    cases: Cases,
    profiles: list[Profile],
    log_time: Callable[[np.ndarray], np.ndarray],
    z: np.ndarray,
) -> tuple:
    """Student-t scale of ln(measured / predicted) of every row, and the coefficients' part of it
    `[rows]`; NaN without a covariance.

    Args:
      log_time: ln t `[rows]` of coefficients `[C, rows]`: called at every sigma point. z: the
        coefficients of the prediction.
    """
    labels, place = cases.labels, features(cases.system, cases.model, cases.plan)
    points = np.repeat(z[None], 2 * len(z) + 1, 0)
    rest, known = np.full(len(cases), np.nan), np.zeros(len(cases), bool)
    pairs: dict[tuple[int, str, str], list[int]] = {}
    for i, (p, accelerator, stack) in enumerate(
        zip(profiles, labels.accelerator.tolist(), labels.stack.tolist(), strict=True)
    ):
        pairs.setdefault((id(p), accelerator, stack), []).append(i)
    for (_, accelerator, stack), rows in pairs.items():
        p = profiles[rows[0]]
        sigma = covariance(p, accelerator, stack)
        if sigma is None:
            continue
        points[:, :, rows] = sigma_points(z[:, rows[0]], sigma).T[:, :, None]
        rest[rows], known[rows] = (
            misfit(scatter_of(p, stack), distance(p, stack, place[rows])),
            True,
        )
    if not known.any():
        return rest, rest
    sd = np.where(known, parameter_sd(np.stack([log_time(each) for each in points])), np.nan)
    return np.hypot(sd, rest), sd
