"""Run the protocols of the accuracy study: `run(name, cases, seeds=range(10)) -> list[Outcome]`.

Every protocol hides a whole family of software from the base, divides the rows of its target anew for every seed, fits the one part from
the base and judges the other. `experiments.targets.catalog(cases)` lists those that the rows allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from calibration.choosing import Choosing, alternatives, choosing
from calibration.fit import fit
from calibration.predict import predict
from calibration.ship import View, rebase
from calibration.traces import Cases
from dmodel.profiles import Profile
from experiments.bases import Bases
from experiments.divisions import FAMILIES, Goal, Protocol, everybody, shipped
from experiments.targets import catalog


class Outcome(NamedTuple):
    """What a protocol found: errors [%] as the middle of the seeds and as the worst seed; choosing of the middle seed by regret.

    Attributes:
      errors: median and mean of every seed `[seed, 2]`. rows, predicted: of the first seed: indices into the cases, and step times [s].
    """

    protocol: str
    part: str
    rows_fitted: int
    rows_judged: int
    seeds: int
    median: float
    mean: float
    worst_median: float
    worst_mean: float
    bias: float
    choosing: Choosing
    goal: Goal
    errors: np.ndarray
    rows: np.ndarray
    predicted: np.ndarray


def answer(cases: Cases, protocol: Protocol, base: Profile, seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Indices of the judged rows of one seed, their predictions [s], and the rows fitted (of the largest fit)."""
    rows, predicted, fitted = [], [], 0
    for part in protocol.divide(cases, protocol.target(cases), seed):
        profile = fit(cases.take(part.fitted), base, seed=seed, starts=1) if part.fitted.any() else base
        judged = np.flatnonzero(part.judged)
        rows.append(judged)
        predicted.append(predict(cases.take(judged), profile).step_time_s)
        fitted = max(fitted, int(part.fitted.sum()))
    return np.concatenate(rows), np.concatenate(predicted), fitted


def _standing(base: Profile, cases: Cases, protocol: Protocol) -> Profile:
    """The base, or its view of the target's family."""
    if not protocol.family:
        return base
    target = cases.labels.source[protocol.target(cases)]
    family = next(f for f in FAMILIES if np.isin(target, f).all())
    kin = np.unique(cases.labels.stack[np.isin(cases.labels.source, family)]).tolist()
    chips = np.unique(cases.labels.accelerator[protocol.target(cases)]).tolist()
    return rebase(base, View("family", tuple(chips), tuple(s for s in kin if s in base.stacks), "family"))


def run(name: str, cases: Cases, seeds: Iterable[int] = range(10), bases: Bases | None = None) -> list[Outcome]:
    """Run one protocol: an outcome of all judged rows, and one for each of its parts.

    Args:
      cases: the published table, and rows of further files. seeds: draws; a protocol without chance takes the first.
      bases: where fitted bases are kept; None fits anew.
    Raises:
      KeyError: no such protocol for these rows.
    """
    protocol = catalog(cases)[name]
    hidden = protocol.hidden(cases) | ~shipped(cases)
    base = _standing((bases or Bases()).without(cases, hidden, name), cases, protocol)
    drawn = list(seeds) if protocol.random else [0]
    answers = [answer(cases, protocol, base, seed) for seed in drawn]
    parts = {"": (everybody, protocol.goal), **protocol.parts}
    found = [_outcome(name, part, goal, rule(cases), cases, answers) for part, (rule, goal) in parts.items()]
    return [outcome for outcome in found if outcome is not None]


def _outcome(
    name: str, part: str, goal: Goal, wanted: np.ndarray, cases: Cases, answers: Sequence[tuple[np.ndarray, np.ndarray, int]]
) -> Outcome | None:
    """Errors and choosing of the wanted rows of every seed's answer."""
    alike = alternatives(cases)
    errors, chosen, logs, kept = [], [], [], []
    for rows, predicted, _ in answers:
        mask = wanted[rows]
        if not mask.any():
            continue
        measured = cases.labels.step_time_s[rows[mask]]
        ratio = predicted[mask] / measured
        errors.append((100 * np.median(np.abs(ratio - 1.0)), 100 * np.abs(ratio - 1.0).mean()))
        logs.append(100 * np.median(np.log(ratio)))
        chosen.append(choosing(alike[rows[mask]], predicted[mask], measured))
        kept.append((rows[mask], predicted[mask]))
    if not errors:
        return None
    table = np.array(errors)
    middle, worst = np.median(table, 0), table.max(0)
    return Outcome(
        protocol=name,
        part=part,
        rows_fitted=max(a[2] for a in answers),
        rows_judged=int(np.median([len(rows) for rows, _ in kept])),
        seeds=len(table),
        median=float(middle[0]),
        mean=float(middle[1]),
        worst_median=float(worst[0]),
        worst_mean=float(worst[1]),
        bias=float(np.median(logs)),
        choosing=_middle(chosen),
        goal=goal,
        errors=table,
        rows=kept[0][0],
        predicted=kept[0][1],
    )


def _middle(found: Sequence[Choosing]) -> Choosing:
    """The middle of every figure over the seeds."""

    def of(field: str) -> float | None:
        values = [getattr(c, field) for c in found if getattr(c, field) is not None]
        return float(np.median(values)) if values else None

    count = lambda field: int(np.median([getattr(c, field) for c in found]))  # noqa: E731
    return Choosing(count("choices"), of("regret"), of("worst_regret"), count("pairs"), of("order"))
