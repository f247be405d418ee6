"""What a run would show under every cause: step, compute, exposed communication and memory, with
what is not known of each."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel.breakdown import MESSAGES, TERMS
from dmodel.coefficients import Coefficients, from_unconstrained
from dmodel.diagnose.subject import Records, Subject
from dmodel.diagnose.variants import Variants
from dmodel.recorded import Recorded
from dmodel.step import memory_use, step_time

OBSERVABLES = ("time", "compute", "exposed", "memory", "elsewhere")
"""What may be measured, in order: seconds of a step; seconds in which a device computes; seconds in
which it waits for others or for messages while nothing computes; bytes of the fullest device;
seconds of a step of the same run on machines as stated."""

LEAST_EXPOSED = 0.01
"""Share of the predicted step that is added to exposed seconds before their logarithm: less than
that says little."""


COMPUTE = (
    *("matmul", "attention", "elementwise", "recompute", "head", "optimizer"),
    "contention",
)
EXPOSED = (*MESSAGES, "bubble", "straggler")
"""Terms of a step that a profiler calls compute, and exposed communication: a device that waits for
others does so inside of a collective or a transfer."""


def _observed(cluster: Any, model: Any, plan: Any, coefficients: Any) -> dict[str, Any]:
    found = step_time(cluster, model, plan, coefficients)
    return {name: getattr(found, name) for name in TERMS}


def _memory(model: Any, plan: Any, footprint: Any) -> dict[str, Any]:
    return {"memory": memory_use(model, plan, footprint=footprint).total}


OBSERVED, MEMORY = Recorded(_observed), Recorded(_memory)


class Responses(NamedTuple):
    """Observables of every variant.

    Attributes:
      seconds: time, compute and exposed at the points of the coefficients, `[3, point, n]` [s].
      memory: `[n]` [byte].
      mean: ln of the observables, `[n, 5]`. cov: what the coefficients leave open of them,
        `[n, 5, 5]`, memory's aside.
      shares: of each step that are compute, exposed, and neither, `[n, 3]` [1].
      terms: of the stated step by cause, of the prediction [s].
      rate, peak: what a variant's tokens, and the peak of its utilization, are over the stated
        ones, `[n]` [1].
    """

    seconds: np.ndarray
    memory: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    shares: np.ndarray
    terms: dict[str, float]
    rate: np.ndarray
    peak: np.ndarray

    @property
    def time(self) -> np.ndarray:
        """Seconds of a step of every variant at the prediction's coefficients, `[n]`."""
        return self.seconds[0, 0]


def responses(subject: Subject, cases: Variants) -> Responses:
    """Evaluate all variants at all points of the coefficients."""
    terms = _terms(cases, subject.points)
    seconds = _summed(cases, terms)
    footprint = jax.tree.map(lambda x: np.full(cases.count, float(x)), subject.footprint)
    memory = MEMORY(cases.records.model, cases.records.plan, footprint)["memory"]
    memory = np.broadcast_to(memory, (cases.count,))
    least = LEAST_EXPOSED * seconds[0, 0, 0]
    elsewhere = seconds[0][:, cases.home]
    logs = np.log(np.stack([seconds[0], seconds[1], seconds[2] + least, elsewhere]))
    mean = np.insert(logs[:, 0].T, 3, np.log(memory), 1)
    cov = np.zeros((cases.count, 5, 5))
    timed = np.array([0, 1, 2, 4])
    cov[:, timed[:, None], timed] = _covariance(logs)
    return Responses(
        seconds=seconds,
        memory=memory,
        mean=mean,
        cov=cov,
        shares=_shares(*seconds[:, 0]),
        terms={name: float(values[0, 0]) for name, values in terms.items()},
        rate=_tokens(cases.records) / _tokens(cases.records)[0],
        peak=cases.beside["reading.peak"],
    )


def _shares(total: np.ndarray, compute: np.ndarray, exposed: np.ndarray) -> np.ndarray:
    """Shares of steps that are compute, exposed, and neither, `[n, 3]`."""
    rest = np.maximum(total - compute - exposed, 0.0)
    return np.stack([compute, exposed, rest], 1) / total[:, None]


def _tokens(records: Records) -> np.ndarray:
    return np.asarray(records.plan.global_batch) * np.asarray(records.model.seq_len)


def seconds_of(cases: Variants, points: np.ndarray) -> np.ndarray:
    """Time, compute and exposed seconds of variants at points `[C, point]`, `[3, point, n]`."""
    return _summed(cases, _terms(cases, points))


def _terms(cases: Variants, points: np.ndarray) -> dict[str, np.ndarray]:
    """Terms of the step, `[point, n]` each [s]."""
    p, n = points.shape[1], cases.count
    found = OBSERVED(*_over_points(cases.records, p), _coefficients(cases, points))
    return {x: np.broadcast_to(found[x], (p * n,)).reshape(p, n) for x in TERMS}


def _summed(cases: Variants, terms: dict[str, np.ndarray]) -> np.ndarray:
    """Time, compute and exposed seconds, with what causes add beside the model."""
    time, compute, exposed = (
        np.sum([terms[name] for name in names], 0) for names in (TERMS, COMPUTE, EXPOSED)
    )
    waits = (cases.beside["step.waits"] - 1.0) * compute
    time = (time + waits) * cases.beside["step.outside"]
    return np.stack([time, compute, exposed + waits])


def _over_points(records: Records, p: int) -> Records:
    """Variants one after the other, once for each point."""
    return jax.tree.map(lambda x: np.tile(x, (*[1] * (x.ndim - 1), p)), records)


def _coefficients(cases: Variants, points: np.ndarray) -> Coefficients:
    """Coefficients of all variants at all points, `[point · n]`."""
    found = from_unconstrained(np.repeat(points, cases.count, 1))
    p = points.shape[1]
    factors = {n: np.tile(f, p) * getattr(found, n) for n, f in cases.factors.items()}
    return found.replace(**factors)


def _covariance(logs: np.ndarray) -> np.ndarray:
    """Covariance of observables from their logarithms at the points `[k, point, n]`, `[n, k, k]`:
    as `uncertainty.parameter_sd`, for pairs."""
    half = (logs.shape[1] - 1) // 2
    up = logs[:, 1 : half + 1] - logs[:, :1]
    down = logs[:, half + 1 :] - logs[:, :1]
    bend = (up + down) / 6.0
    pair = lambda a, b: np.einsum("ipn,jpn->nij", a, b)  # noqa: E731
    return (pair(up, up) + pair(down, down)) / 6.0 - pair(bend, bend)
