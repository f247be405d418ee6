"""What a run would show under every cause: step, compute, exposed communication and memory, with
what is not known of each."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel import counts
from dmodel.breakdown import MESSAGES, TERMS
from dmodel.coefficients import Coefficients, from_unconstrained
from dmodel.diagnose.subject import Records, Subject
from dmodel.diagnose.variants import AROUND, Variants
from dmodel.recorded import Recorded
from dmodel.step import memory_use, step_time
from dmodel.tables import parameter_groups

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
      tokens, sequences, peak, flops: what a variant's tokens, its sequences, the peak of its
        utilization and what it counts as FLOPs are over the stated ones, `[n]` [1].
      kept: share of its tokens that a rate counts, `[n]` [1].
      least: seconds of a step whose products run at the chip's peak, and nothing else, `[n]`.
    """

    seconds: np.ndarray
    memory: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    shares: np.ndarray
    terms: dict[str, float]
    tokens: np.ndarray
    kept: np.ndarray
    sequences: np.ndarray
    peak: np.ndarray
    flops: np.ndarray
    least: np.ndarray

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
        tokens=_tokens(cases.records),
        kept=cases.beside["reading.tokens"],
        sequences=_sequences(cases.records),
        peak=cases.beside["reading.peak"],
        flops=cases.beside["reading.flops"],
        least=least_seconds(cases.records),
    )


def _shares(total: np.ndarray, compute: np.ndarray, exposed: np.ndarray) -> np.ndarray:
    """Shares of steps that are compute, exposed, and neither, `[n, 3]`."""
    rest = np.maximum(total - compute - exposed, 0.0)
    return np.stack([compute, exposed, rest], 1) / total[:, None]


def least_seconds(records: Records) -> np.ndarray:
    """Seconds of a step whose products run at the chip's peak, and nothing else: two FLOPs for each
    parameter that is no table of the embedding, forward and back, and for its gradient [s]."""
    cluster, model, plan = records
    tables = (1.0 - np.asarray(model.tied_embeddings)) * parameter_groups(model).embedding
    each = 2.0 * (2.0 + np.asarray(model.trainable)) * (counts.active_parameters(model) - tables)
    tokens = np.asarray(plan.global_batch) * np.asarray(model.seq_len)
    return tokens * each / np.asarray(plan.devices * cluster.chip.flops_per_s)


def _sequences(records: Records) -> np.ndarray:
    """Sequences of a step over the stated ones."""
    batch = np.asarray(records.plan.global_batch)
    return batch / batch[0]


def _tokens(records: Records) -> np.ndarray:
    """Tokens of a step over the stated ones."""
    length = np.asarray(records.model.seq_len)
    return _sequences(records) * length / length[0]


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
    update = (cases.beside["step.update"] - 1.0) * terms["optimizer"]
    time = (time + waits + update) * np.prod([cases.beside[name] for name in AROUND], 0)
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
