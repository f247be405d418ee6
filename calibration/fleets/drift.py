"""How measured over predicted times move from month to month, and from release to release.

A month is another mix of configurations than the last one. So beside the ratio of its own rows
stands what has changed for the same configurations: the effect of the month in a model of a level
for each configuration and an effect for each month, by weighted least squares (two-way analysis of
variance).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibration.fleets.statistics import SHARED

ENDS = (0.1, 0.9)
"""Shares of the configurations below the ends of a period's range."""


class Cells(NamedTuple):
    """Times by configuration and period, `[cell]` each: the configuration, the period as an index,
    how many, and the mean of ln(measured / predicted)."""

    configuration: np.ndarray
    period: np.ndarray
    count: np.ndarray
    ratio: np.ndarray


class Period(NamedTuple):
    """A month, or a release.

    Attributes:
      name: of it. rows, configurations: count. ratio, low, high: measured over predicted time, mean
        of ln over the configurations, each once, and where a tenth of them lies below and above.
      change, error: of ln t of the same configurations since the first period [1], and its standard
        error; None where no configuration leads from the first period to it.
    """

    name: str
    rows: int
    configurations: int
    ratio: float
    low: float
    high: float
    change: float | None
    error: float | None


def cells(
    configuration: np.ndarray,
    period: np.ndarray,
    count: np.ndarray,
    total: np.ndarray,
    log_predicted: np.ndarray,
) -> Cells:
    """Cells of sums of ln t by configuration and period, of which several may be of one cell.

    Args:
      configuration, period, count, total: `[sum]`. log_predicted: by configuration.
    """
    periods = int(period.max(initial=0)) + 1
    place, inverse = np.unique(configuration * periods + period, return_inverse=True)
    n = np.bincount(inverse, count, len(place))
    mean = np.bincount(inverse, total, len(place)) / np.maximum(n, 1.0)
    own, timed = place // periods, n > 0.0
    found = Cells(own, place % periods, n, mean - log_predicted[own])
    return Cells(*(x[timed] for x in found))


def drift(found: Cells, names: list[str]) -> list[Period]:
    """Every period that has a time, in the order of the names; the first one is what `change` is
    from. None where no row says its period."""
    present = np.unique(found.period)
    if not len(present):
        return []
    change, error = changes(found, present)
    return [
        _period(found, int(p), names[p], change[i], error[i])
        for i, p in enumerate(present.tolist())
    ]


def _period(found: Cells, period: int, name: str, change: float, error: float) -> Period:
    mine = found.period == period
    ratio = found.ratio[mine]
    low, high = np.quantile(ratio, ENDS)
    known = bool(np.isfinite(change))
    return Period(
        name=name,
        rows=int(found.count[mine].sum()),
        configurations=int(mine.sum()),
        ratio=float(np.exp(ratio.mean())),
        low=float(np.exp(low)),
        high=float(np.exp(high)),
        change=float(change) if known else None,
        error=float(error) if known else None,
    )


def changes(found: Cells, periods: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Effect of each period since the first, and its standard error; NaN where no configuration
    leads there.

    A cell of n rows weighs n / (n + `SHARED`): many repeats of one configuration in one month share
    what that month was to it.
    """
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    at = np.searchsorted(periods, found.period)
    _, own = np.unique(found.configuration, return_inverse=True)
    weight = found.count / (found.count + SHARED)
    shape = (int(own.max(initial=-1)) + 1, len(periods))
    by = sparse.csr_matrix((weight, (own, at)), shape=shape)
    pulled = sparse.csr_matrix((weight * found.ratio, (own, at)), shape=shape)
    total = np.asarray(by.sum(1)).ravel()
    level = np.asarray(pulled.sum(1)).ravel() / total
    # what is left of the normal equations once the levels are eliminated
    shared = (by.T @ sparse.diags(1.0 / total) @ by).toarray()
    matrix = np.diag(np.asarray(by.sum(0)).ravel()) - shared
    side = np.asarray(pulled.sum(0)).ravel() - by.T @ level
    inverse = np.linalg.pinv(matrix, hermitian=True)
    effect = inverse @ side
    rest = found.ratio - effect[at]
    rest -= (np.bincount(own, weight * rest) / total)[own]
    free = max(len(at) - shape[0] - len(periods) + 1, 1)
    variance = (weight * rest**2).sum() / free
    diagonal = np.diag(inverse)
    square = variance * np.maximum(diagonal + diagonal[0] - 2.0 * inverse[0], 0.0)
    _, part = connected_components(shared, directed=False)
    known = part == part[0]
    return (
        np.where(known, effect - effect[0], np.nan),
        np.where(known, np.sqrt(square), np.nan),
    )
