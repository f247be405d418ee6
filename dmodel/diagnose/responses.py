"""What a run would show under every cause: step, compute, exposed communication and memory, with
what is not known of each."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel.coefficients import Coefficients, from_unconstrained
from dmodel.diagnose.subject import Records, Subject
from dmodel.diagnose.variants import Variants
from dmodel.recorded import Recorded
from dmodel.step import memory_use, step_time

OBSERVABLES = ("time", "compute", "exposed", "memory")
"""What may be measured, in order: seconds of a step; seconds in which a device computes; seconds in
which it waits for others or for messages while nothing computes; bytes of the fullest device."""

LEAST_EXPOSED = 0.01
"""Share of the predicted step that is added to exposed seconds before their logarithm: less than
that says little."""


def _observed(cluster: Any, model: Any, plan: Any, coefficients: Any) -> dict[str, Any]:
    """Seconds of a step, and of it those that a profiler calls compute, and exposed communication:
    a device that waits for others does so inside of a collective or a transfer."""
    t = step_time(cluster, model, plan, coefficients)
    compute = t.matmul + t.attention + t.elementwise + t.recompute + t.head + t.optimizer
    return {
        "time": t.total,
        "compute": compute + t.contention,
        "exposed": t.exposed_communication + t.bubble + t.straggler,
    }


def _memory(model: Any, plan: Any, footprint: Any) -> dict[str, Any]:
    return {"memory": memory_use(model, plan, footprint=footprint).total}


OBSERVED, MEMORY = Recorded(_observed), Recorded(_memory)


class Responses(NamedTuple):
    """Observables of every variant.

    Attributes:
      seconds: time, compute and exposed at the points of the coefficients, `[3, point, n]` [s].
      memory: `[n]` [byte].
      mean: ln of the four observables, `[n, 4]`. cov: what the coefficients leave open of them,
        `[n, 4, 4]`, memory's aside.
      shares: of the stated step that are compute, exposed, and neither, `[3]` [1].
      rate, peak: what a variant's tokens, and the peak of its utilization, are over the stated
        ones, `[n]` [1].
    """

    seconds: np.ndarray
    memory: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    shares: np.ndarray
    rate: np.ndarray
    peak: np.ndarray

    @property
    def time(self) -> np.ndarray:
        """Seconds of a step of every variant at the prediction's coefficients, `[n]`."""
        return self.seconds[0, 0]


def responses(subject: Subject, cases: Variants) -> Responses:
    """Evaluate all variants at all points of the coefficients."""
    seconds = seconds_of(cases, subject.points)
    footprint = jax.tree.map(
        lambda x: np.full(cases.count, float(x)), subject.footprint
    )
    memory = MEMORY(cases.records.model, cases.records.plan, footprint)["memory"]
    memory = np.broadcast_to(memory, (cases.count,))
    least = LEAST_EXPOSED * seconds[0, 0, 0]
    logs = np.log(np.stack([seconds[0], seconds[1], seconds[2] + least]))
    total, compute, exposed = seconds[:, 0, 0]
    mean = np.concatenate([logs[:, 0].T, np.log(memory)[:, None]], 1)
    cov = np.zeros((cases.count, 4, 4))
    cov[:, :3, :3] = _covariance(logs)
    return Responses(
        seconds=seconds,
        memory=memory,
        mean=mean,
        cov=cov,
        shares=np.array([compute, exposed, max(total - compute - exposed, 0.0)]) / total,
        rate=_tokens(cases.records) / _tokens(cases.records)[0],
        peak=cases.beside["reading.peak"],
    )


def _tokens(records: Records) -> np.ndarray:
    return np.asarray(records.plan.global_batch) * np.asarray(records.model.seq_len)


def seconds_of(cases: Variants, points: np.ndarray) -> np.ndarray:
    """Time, compute and exposed seconds of variants at points `[C, point]`, `[3, point, n]`."""
    p, n = points.shape[1], cases.count
    coefficients = _coefficients(cases, points)
    found = OBSERVED(*_over_points(cases.records, p), coefficients)
    time, compute, exposed = (
        np.broadcast_to(found[name], (p * n,)).reshape(p, n) for name in OBSERVABLES[:3]
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
