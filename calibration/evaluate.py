"""How far predictions are from measurements: by source and overall, fitted rows apart from held-out
ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration.traces import Cases
from dmodel.catalog.chips import platform
from dmodel.records import value


class Errors(NamedTuple):
    """Statistics of |predicted / measured − 1| of some rows: how many, median, mean, 90th
    percentile, largest; and the median of ln(predicted / measured), whose sign says too slow (+) or
    too fast (−)."""

    rows: int
    median: float
    mean: float
    p90: float
    max: float
    bias: float


class Line(NamedTuple):
    """Errors of one source (or "overall") on fitted rows, held-out rows and all; None where there
    are none."""

    name: str
    fitted: Errors | None
    held_out: Errors | None
    all: Errors


class Evaluation(NamedTuple):
    """One line by source, the overall line, and the error of every row `[rows]`."""

    by_source: list[Line]
    overall: Line
    error: np.ndarray


def errors(predicted: np.ndarray, measured: np.ndarray) -> Errors | None:
    """Statistics of some rows; None for no rows."""
    if len(predicted) == 0:
        return None
    ratio = np.asarray(predicted) / np.asarray(measured)
    gap = np.abs(ratio - 1.0)
    return Errors(
        len(gap),
        float(np.median(gap)),
        float(gap.mean()),
        float(np.quantile(gap, 0.9)),
        float(gap.max()),
        float(np.median(np.log(ratio))),
    )


NOTHING = Errors(0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""Errors of no rows."""


def evaluate(
    cases: Cases,
    predicted: np.ndarray,
    fitted: np.ndarray | None = None,
    rows: np.ndarray | None = None,
) -> Evaluation:
    """Compare predicted with measured step times.

    Args:
      predicted: step times [s], `[rows]`.
      fitted: True where the row was used in the fit, `[rows]`; None = none was (all count as held
        out).
      rows: which rows to judge, `[rows]` bool; None = all with a measured time.
    """
    measured = cases.labels.step_time_s
    judged = np.isfinite(measured) if rows is None else np.asarray(rows) & np.isfinite(measured)
    used = np.zeros(len(measured), bool) if fitted is None else np.asarray(fitted)

    def line(name: str, where: np.ndarray) -> Line | None:
        parts = [errors(predicted[m], measured[m]) for m in (where & used, where & ~used, where)]
        return Line(name, parts[0], parts[1], parts[2]) if parts[2] is not None else None

    sources = cases.labels.source
    lines = (line(str(s), judged & (sources == s)) for s in dict.fromkeys(sources))
    overall = line("overall", judged) or Line("overall", None, None, NOTHING)
    return Evaluation(list(filter(None, lines)), overall, np.abs(predicted / measured - 1.0))


def fitted_rows(cases: Cases, fingerprints: Sequence[str]) -> np.ndarray:
    """True for the rows whose fingerprint a profile was fitted on, `[rows]`."""
    known = set(fingerprints)
    return np.array([f in known for f in cases.labels.fingerprint])


def dense_gpu_rows(cases: Cases) -> np.ndarray:
    """The rows of the headline figure: dense models, 16-bit matmuls, GPUs, no flag, `[rows]`
    bool. A chip that the catalog does not know counts as a GPU."""
    labels = cases.labels
    is_gpu = {name: platform(name) in ("gpu", "") for name in set(labels.accelerator.tolist())}
    gpu = np.array([is_gpu[name] for name in labels.accelerator.tolist()], bool)
    return (
        gpu
        & (np.asarray(value(cases.model, "n_experts", 1.0)) <= 1.0)
        & np.isin(labels.precision, ("bf16", "fp16"))
        & (labels.flag == "")
    )
