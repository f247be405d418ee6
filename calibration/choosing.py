"""How well predictions choose among measured plans: regret of the plan predicted fastest, and the
share of pairs in the right order.

Alternatives are rows that a user could have chosen between: the same software, model, sequence,
batch, devices and precision.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibration.traces import Cases
from dmodel.records import ff_width, value

CLEAR = 0.02
"""Relative difference of two measured times from which their order is asked for: below it, noise
decides."""

TIE = 1e-9
"""Relative difference of two predictions below which they are the same: identical configurations
measured twice."""


class Choosing(NamedTuple):
    """Figures of some rows.

    Attributes:
      choices: sets of alternatives [count]. regret: time of the plan predicted fastest over the
        best measured one, minus 1: mean over the choices; worst_regret: the largest. pairs: of
        alternatives whose times differ by more than 2 % [count]. order: share of them that are
        predicted in the right order, ties counting half. None where there is nothing to choose.
    """

    choices: int
    regret: float | None
    worst_regret: float | None
    pairs: int
    order: float | None


def alternatives(cases: Cases) -> np.ndarray:
    """Name of the set of alternatives of every row, `[rows]`."""
    model, labels = cases.model, cases.labels
    numbers = (
        model.n_layers,
        model.d_model,
        ff_width(model),
        value(model, "n_experts", 1.0),
        model.seq_len,
        model.trainable,
        cases.plan.global_batch,
    )
    columns = [
        labels.stack,
        labels.accelerator,
        labels.precision,
        labels.n_accel,
        *(np.broadcast_to(x, len(cases)) for x in numbers),
    ]
    return np.array(
        [
            "|".join(f"{x:g}" if isinstance(x, float) else str(x) for x in row)
            for row in zip(*columns, strict=True)
        ]
    )


def regret(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Measured time of the alternative predicted fastest over the least measured one, minus 1; of
    several that are predicted alike the
    mean of their times."""
    first = predicted <= predicted.min() * (1.0 + TIE)
    return float(measured[first].mean() / measured.min() - 1.0)


def order(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """For each pair of alternatives that clearly differ: 1 = predicted in the right order, 0 = in
    the wrong one, ½ = alike."""
    i, j = np.triu_indices(len(measured), 1)
    clear = np.abs(np.log(measured[i] / measured[j])) > np.log1p(CLEAR)
    i, j = i[clear], j[clear]
    gap = np.log(predicted[i] / predicted[j])
    right = np.sign(gap) == np.sign(measured[i] - measured[j])
    return np.where(np.abs(gap) <= TIE, 0.5, right.astype(float))


def choosing(names: np.ndarray, predicted: np.ndarray, measured: np.ndarray) -> Choosing:
    """Figures of rows with the names of their sets of `alternatives`, `[rows]` each; sets of one
    row are no choice."""
    found, index, sizes = np.unique(np.asarray(names, str), return_inverse=True, return_counts=True)
    groups = [np.flatnonzero(index == k) for k in np.flatnonzero(sizes > 1)]
    if not groups:
        return Choosing(choices=0, regret=None, worst_regret=None, pairs=0, order=None)
    regrets = [regret(predicted[g], measured[g]) for g in groups]
    right = np.concatenate([order(predicted[g], measured[g]) for g in groups])
    return Choosing(
        choices=len(groups),
        regret=float(np.mean(regrets)),
        worst_regret=float(np.max(regrets)),
        pairs=len(right),
        order=float(right.mean()) if len(right) else None,
    )
