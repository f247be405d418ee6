"""Run the protocols of the accuracy study: `run(name, cases, seeds=range(10)) -> list[Outcome]`.

Every protocol hides a whole family of software from the base, divides the rows of its target anew
for every seed, fits the one part from the base and judges the other.
`experiments.targets.catalog(cases)` lists those that the rows allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from calibration.choosing import Choosing, alternatives, choosing
from calibration.fit import fit
from calibration.footprints import fit_footprints
from calibration.predict import predict
from calibration.ship import View, rebase
from calibration.traces import Cases
from dmodel.parts import Arrays, Block, parts
from dmodel.profiles import Profile, default_profile
from experiments.bases import Bases
from experiments.divisions import FAMILIES, Goal, Protocol, everybody, shipped
from experiments.targets import catalog


class Outcome(NamedTuple):
    """What a protocol found: errors [%] as the middle of the seeds and as the worst seed; every
    figure of choosing as the middle.

    Attributes:
      errors: median and mean of every seed `[seed, 2]`.
      measured, predicted: of the first seed's judged rows: step times [s], or peaks [byte].
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
    measured: np.ndarray
    predicted: np.ndarray


def answer(
    cases: Cases, protocol: Protocol, base: Profile, seed: int, starts: int | None = None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Indices of the judged rows of one seed, their predictions [s], and the rows fitted (of the
    largest fit); starts: of each fit."""
    rows, predicted, fitted = [], [], 0
    for part in protocol.divide(cases, protocol.target(cases), seed):
        profile = (
            fit(cases.take(part.fitted), base, seed=seed, starts=starts)
            if part.fitted.any()
            else base
        )
        judged = np.flatnonzero(part.judged)
        rows.append(judged)
        predicted.append(predict(cases.take(judged), profile).step_time_s)
        fitted = max(fitted, int(part.fitted.sum()))
    return np.concatenate(rows), np.concatenate(predicted), fitted


def _answers(
    cases: Cases,
    name: str,
    base: Profile,
    seeds: Sequence[int],
    starts: int | None,
    executor: Executor | None,
) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """`answer` of every seed."""
    if executor is None:
        return [answer(cases, catalog(cases)[name], base, seed, starts) for seed in seeds]
    known = {"cases": cases, "name": name, "base": base, "starts": starts}
    blocks = [Block(answer_block, {**known, "seed": seed}) for seed in seeds]
    found = [part.arrays for part in parts(blocks, executor)]
    return [(each["rows"], each["predicted"], int(each["fitted"])) for each in found]


def answer_block(
    *, cases: Cases, name: str, base: Profile, seed: int, starts: int | None
) -> Arrays:
    """What a worker makes of a seed: `answer` by name."""
    rows, predicted, fitted = answer(cases, catalog(cases)[name], base, seed, starts)
    return {"rows": rows, "predicted": predicted, "fitted": np.array(fitted)}


def answer_memory(
    cases: Cases, protocol: Protocol, seed: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """As `answer`, of peaks of memory [byte]."""
    (part,) = protocol.divide(cases, protocol.target(cases), seed)
    profile = replace(default_profile(), footprints=fit_footprints(cases.take(part.fitted), {}))
    judged = np.flatnonzero(part.judged)
    return judged, predict(cases.take(judged), profile).memory_bytes, int(part.fitted.sum())


def _standing(base: Profile, cases: Cases, protocol: Protocol) -> Profile:
    """The base, or its view of the target's family."""
    if not protocol.family:
        return base
    target = cases.labels.source[protocol.target(cases)]
    family = next(f for f in FAMILIES if np.isin(target, f).all())
    kin = np.unique(cases.labels.stack[np.isin(cases.labels.source, family)]).tolist()
    chips = np.unique(cases.labels.accelerator[protocol.target(cases)]).tolist()
    return rebase(
        base, View("family", tuple(chips), tuple(s for s in kin if s in base.stacks), "family")
    )


def run(
    name: str,
    cases: Cases,
    seeds: Iterable[int] = range(10),
    bases: Bases | None = None,
    starts: int | None = None,
    executor: Executor | None = None,
) -> list[Outcome]:
    """Run one protocol: an outcome of all judged rows, and one for each of its parts.

    Args:
      cases: the published table, and rows of further files. seeds: draws; a protocol without chance
        takes the first.
      executor: whose workers fit, a draw each; None for this process.
      bases: where fitted bases are kept; None fits anew. starts: of fits from them; None as `dmodel
        fit` has it.
    Raises:
      KeyError: no such protocol for these rows.
    """
    protocol = catalog(cases)[name]
    drawn = list(seeds) if protocol.random else [0]
    if protocol.memory:
        measured = cases.labels.peak_memory_bytes
        answers = [answer_memory(cases, protocol, seed) for seed in drawn]
    else:
        hidden = protocol.hidden(cases) | ~shipped(cases)
        known = (bases or Bases()).without(cases, hidden, name, executor)
        base = _standing(known, cases, protocol)
        measured = cases.labels.step_time_s
        answers = _answers(cases, name, base, drawn, starts, executor)
    every = {"": (everybody, protocol.goal), **protocol.parts}
    alike = np.arange(len(cases)) if protocol.memory else alternatives(cases)
    found = [
        _outcome((name, part), goal, rule(cases), measured, alike, answers)
        for part, (rule, goal) in every.items()
    ]
    return [outcome for outcome in found if outcome is not None]


def _outcome(
    title: tuple[str, str],
    goal: Goal,
    wanted: np.ndarray,
    measured_by_row: np.ndarray,
    alike: np.ndarray,
    answers: Sequence[tuple[np.ndarray, np.ndarray, int]],
) -> Outcome | None:
    """Errors and choosing of the wanted rows of every seed's answer."""
    errors, chosen, logs, kept = [], [], [], []
    for rows, predicted, _ in answers:
        mask = wanted[rows]
        if not mask.any():
            continue
        measured = measured_by_row[rows[mask]]
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
        protocol=title[0],
        part=title[1],
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
        measured=measured_by_row[kept[0][0]],
        predicted=kept[0][1],
    )


def _middle(found: Sequence[Choosing]) -> Choosing:
    """The middle of every figure over the seeds."""

    def of(field: str) -> float | None:
        values = [getattr(c, field) for c in found if getattr(c, field) is not None]
        return float(np.median(values)) if values else None

    count = lambda field: int(np.median([getattr(c, field) for c in found]))  # noqa: E731
    return Choosing(count("choices"), of("regret"), of("worst_regret"), count("pairs"), of("order"))
