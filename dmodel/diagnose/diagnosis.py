"""Is a run's throughput what such runs have; and if not, why: the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dmodel import uncertainty
from dmodel.diagnose.causes import Beliefs, Cause, beliefs
from dmodel.diagnose.measured import ELSEWHERE, Measured, in_seconds, step_seconds
from dmodel.diagnose.posterior import NOTHING, Posterior, Table, posterior, table
from dmodel.diagnose.responses import LEAST_EXPOSED, OBSERVABLES, Responses, responses
from dmodel.diagnose.subject import Subject
from dmodel.diagnose.telling import Run, Seen, Told, best_for, densities, is_cause, told
from dmodel.diagnose.variants import Variants, variants

INSIDE, SLOWER, FASTER = "inside", "slower", "faster"

TAIL = 0.5 * (1.0 - uncertainty.LEVEL)
"""Share of such runs beyond each end of the interval, which is that of a prediction: who is there
is told so."""


class Explanation(NamedTuple):
    """One hypothesis after the measurement.

    Attributes:
      name, title: a short name, and a line. kind: of cause, or its name where it is none.
      probability: after the measurement [1].
      seconds: of the step that it explains: what the case with it takes more than without.
      size: how large it is where it is the cause, spread: standard deviation; None of what has no
        size. says: the size in words, "" for none.
      test: what to do to find out; None where no test tells.
    """

    name: str
    title: str
    kind: str
    probability: float
    seconds: float
    size: float | None
    spread: float | None
    says: str
    test: dict[str, Any] | None


class Diagnosis(NamedTuple):
    """The answer about one run.

    Attributes:
      verdict: "inside", "slower" or "faster", by the interval. measured_s, predicted_s: of a step
        [s]. interval: ends of what `uncertainty.LEVEL` of such runs take [s]. percentile: share of
        such runs that take less than measured [1].
      causes: most likely first; they add up to 1. faint: causes that cannot change this step by
        `causes.Effect.least` → the most that they change it by [1].
      parts: of what is known beside the step: measured, predicted, and the share of such runs with
        less. test: the best one overall; None where none tells. terms: of the predicted step by
        cause [s].
    """

    verdict: str
    measured_s: float
    predicted_s: float
    interval: tuple[float, float]
    percentile: float
    causes: tuple[Explanation, ...]
    faint: dict[str, float]
    parts: dict[str, dict[str, float]]
    test: dict[str, Any] | None
    terms: dict[str, float]

    @property
    def kinds(self) -> dict[str, float]:
        """Probability of every kind of cause, most likely first; they add up to 1."""
        total: dict[str, float] = {}
        for each in self.causes:
            total[each.kind] = total.get(each.kind, 0.0) + each.probability
        return dict(sorted(total.items(), key=lambda pair: -pair[1]))

    @property
    def document(self) -> dict[str, Any]:
        """As plain data."""
        low, high = self.interval
        return {
            "verdict": self.verdict,
            "measured": self.measured_s,
            "predicted": self.predicted_s,
            "interval": [low, high],
            "level": uncertainty.LEVEL,
            "percentile": self.percentile,
            "ratio": self.measured_s / self.predicted_s,
            "kinds": self.kinds,
            "causes": [each._asdict() for each in self.causes],
            "test": self.test,
            "parts": self.parts,
            "breakdown": {f"{name}_s": value for name, value in self.terms.items()},
            "cannot": self.faint,
        }

    def __str__(self) -> str:
        first = self.causes[0]
        return (
            f"{self.measured_s:.4g} s a step, predicted {self.predicted_s:.4g} s: {self.verdict}; "
            f"most likely {first.title} ({first.probability:.0%})"
        )


def diagnose(run: Subject, measured: Measured, held: Beliefs | None = None) -> Diagnosis:
    """Compare what was measured of a run with what such runs take, and rank what may be behind it.

    Args:
      held: causes and what is believed of them; None = the package's.

    Raises:
      InputError: parts of the step are longer than it.
    """
    held = held or beliefs()
    seconds = step_seconds(measured, *run.records)
    cases = variants(run, held.causes)
    found = responses(run, cases)
    of = table(run, cases, found, held, measured.kind)
    beside = _beside(run, measured)
    seen = [0, *(OBSERVABLES.index(name) for name in beside)]
    ready = Run(run, cases, found, seconds)
    logs = _logs({"time": seconds, **beside}, found)
    said = posterior(of, logs[None], seen, densities(ready, of, measured.tests))
    tests = told(Seen(ready, of, said, frozenset({*beside, *measured.tests})))
    scale = float(np.sqrt(found.cov[0, 0, 0] + run.misfit**2))
    predicted = float(found.time[0])
    low, high = uncertainty.band(predicted, scale)
    return Diagnosis(
        verdict=SLOWER if seconds > high else FASTER if seconds < low else INSIDE,
        measured_s=seconds,
        predicted_s=predicted,
        interval=(float(low), float(high)),
        percentile=float(uncertainty.share_below(np.log(seconds / predicted) / scale)),
        causes=_ranked(held, cases, (of, said), tests, seconds),
        faint={name: float(np.expm1(change)) for name, change in of.faint.items()},
        parts=_parts(beside, found, of),
        test=_recommended(tests, of, said),
        terms=found.terms,
    )


def _beside(run: Subject, measured: Measured) -> dict[str, float]:
    """What is known beside the step, by observable, in seconds and bytes."""
    if measured.elsewhere is None:
        return measured.beside
    elsewhere = in_seconds(measured.kind, measured.elsewhere, *run.records)
    return {**measured.beside, ELSEWHERE: elsewhere}


def _logs(known: Mapping[str, float], found: Responses) -> np.ndarray:
    """ln of what is measured, as `Responses.mean` has it."""
    least = {"exposed": LEAST_EXPOSED * float(found.time[0])}
    return np.log(np.array([value + least.get(name, 0.0) for name, value in known.items()]))


def _ranked(
    held: Beliefs,
    cases: Variants,
    answer: tuple[Table, Posterior],
    tests: list[Told],
    seconds: float,
) -> tuple[Explanation, ...]:
    """Every hypothesis, most likely first."""
    of, said = answer
    known = {each.name: each for each in held.causes}
    titles = {NOTHING: held.nothing[1]}
    stated, found = float(of.scaled[0].time[0]), []
    for i, name in enumerate(of.names):
        weights = said.sizes[i][0] / said.sizes[i][0].sum()
        test = best_for(tests, i)
        told_by = None if test is None else _test(test, of, said, i)
        probability = float(said.probability[0, i])
        if is_cause(name):
            one, cause = of.scaled[i], known[name]
            more = float(weights @ one.time) - stated
            size = _size(cause, weights, one.size)
            says = _says(cause, size, cases.labels[one.column[int(weights.argmax())]])
            head = (name, cause.title, cause.family, probability)
            found.append(Explanation(*head, more, *size, says, told_by))
        else:
            title = titles.get(name, held.otherwise[1])
            rest = seconds - stated
            head = (name, title, name, probability)
            found.append(Explanation(*head, rest, None, None, "", told_by))
    return tuple(sorted(found, key=lambda each: -each.probability))


def _size(cause: Cause, weights: np.ndarray, size: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of a size; of listed ones the most likely."""
    if cause.size.is_listed:
        return float(size[weights.argmax()]), 0.0
    mean = float(weights @ size)
    return mean, float(np.sqrt(weights @ (size - mean) ** 2))


def _says(cause: Cause, size: tuple[float, float], label: str) -> str:
    value, spread = size
    return cause.size.says.format(
        size=value, spread=spread, percent=f"{value:.0%}", giga=value / 1e9, label=label
    )


def _test(best: Told, of: Table, said: Posterior, hypothesis: int) -> dict[str, Any] | None:
    """A test, with what it shows if it is this hypothesis, and if it is the likeliest other that
    shows something else; None where none does."""
    p = said.probability[0]
    k = best.outcome.telling(p, hypothesis)
    shown, logs = best.outcome.shown(k), best.outcome.mean[:, k]
    order = [int(i) for i in np.argsort(-p) if i != hypothesis]
    unlike = (i for i in order if _is_unlike(best, logs[i] - logs[hypothesis]))
    other = next(unlike, None)
    if other is None:
        return None
    return {
        **_about(best, k),
        "bits": float(best.of_each[hypothesis]),
        "expected": float(shown[hypothesis]),
        "otherwise": {"name": of.names[other], "expected": float(shown[other])},
    }


DIFFERENT = 2.0
"""Standard deviations of a test's noise from which two outcomes are told apart."""


def _is_unlike(test: Told, gap: float) -> bool:
    """Whether two outcomes are told apart, by the difference of their logarithms."""
    return abs(gap) > DIFFERENT * test.test.noise


def _about(best: Told, k: int) -> dict[str, Any]:
    test, outcome = best.test, best.outcome
    return {
        "name": test.name,
        "does": test.does,
        "looks": outcome.of.looks[k],
        "unit": outcome.of.unit,
        "minutes": test.minutes,
    }


NAMED = 4
"""Hypotheses whose outcomes are told of the best test, at most."""


def _recommended(tests: list[Told], of: Table, said: Posterior) -> dict[str, Any] | None:
    """The best test overall, with what the likeliest hypotheses would show."""
    if not tests:
        return None
    best, p = tests[0], said.probability[0]
    k = best.outcome.telling(p)
    shown = best.outcome.shown(k)
    order = [int(i) for i in np.argsort(-p)[:NAMED]]
    return {
        **_about(best, k),
        "bits": best.information,
        "expected": {of.names[i]: float(shown[i]) for i in order},
        "tells": _tells(best, of, p),
    }


def _tells(best: Told, of: Table, p: np.ndarray) -> list[dict[str, Any]]:
    """The likeliest hypotheses of which a test shows something else than of an ordinary run: which
    of its numbers, and what it would be."""
    found, mean = [], best.outcome.mean
    for i in np.argsort(-p):
        k = best.outcome.telling(p, int(i))
        if _is_unlike(best, mean[i, k] - mean[0, k]) and is_cause(of.names[i]):
            shown = best.outcome.shown(k)
            found.append(
                {
                    "name": of.names[i],
                    "looks": best.outcome.of.looks[k],
                    "expected": float(shown[i]),
                    "otherwise": float(shown[0]),
                }
            )
    return found[:NAMED]


def _parts(known: Mapping[str, float], found: Responses, of: Table) -> dict[str, dict[str, float]]:
    """What is known beside the step against the prediction."""
    predicted = {
        "compute": float(found.seconds[1, 0, 0]),
        "exposed": float(found.seconds[2, 0, 0]),
        "memory": float(found.memory[0]),
        ELSEWHERE: float(found.time[0]),
    }
    scale = np.sqrt(np.diagonal(of.scaled[0].scale[0]))
    logs = dict(zip(known, _logs(known, found), strict=True))
    result = {}
    for name, value in known.items():
        at = OBSERVABLES.index(name)
        gap = (logs[name] - of.scaled[0].mean[0, at]) / scale[at]
        share = float(uncertainty.share_below(gap))
        result[name] = {"measured": value, "predicted": predicted[name], "percentile": share}
    return result
