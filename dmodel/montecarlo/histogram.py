"""Quantiles of many positive values from histograms with bins of equal width in the logarithm.

The same values give the same bins, whatever the blocks that they come in and the order of merging;
a quantile is within `ERROR` of the exact one. It is the sketch of Masson, Rim and Lee 2019
("DDSketch"), without its collapse of bins; of the libraries for it none takes arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ERROR = 0.0025
"""Relative error of a quantile at most [1]."""

STEP = float(np.log1p(ERROR) - np.log1p(-ERROR))
"""Width of a bin in the logarithm, so that its middle is within `ERROR` of both of its ends."""


class Histogram(NamedTuple):
    """Bins that have values, sorted by quantity and bin: of which quantity they are, their place
    and how many values they have, `[bin]`, int64."""

    of: np.ndarray
    place: np.ndarray
    count: np.ndarray


NOTHING = Histogram(*(np.empty(0, np.int64) for _ in range(3)))


def histogram(values: np.ndarray) -> Histogram:
    """Of positive values `[n, value]`, of n quantities."""
    if not values.size:
        return NOTHING
    place = np.floor(np.log(values) / STEP).astype(np.int64)
    of = np.repeat(np.arange(len(values)), values.shape[1])
    return _summed(of, place.ravel(), np.ones(place.size, np.int64))


def _summed(of: np.ndarray, place: np.ndarray, count: np.ndarray) -> Histogram:
    """Bins, each once."""
    order = np.lexsort((place, of))
    of, place, count = of[order], place[order], count[order]
    first = np.flatnonzero(np.r_[True, (np.diff(of) != 0) | (np.diff(place) != 0)])
    return Histogram(of[first], place[first], np.add.reduceat(count, first))


def merged(a: Histogram, b: Histogram) -> Histogram:
    """Of the values of both."""
    if not len(a.of) or not len(b.of):
        return a if len(a.of) else b
    return _summed(*(np.concatenate(pair) for pair in zip(a, b, strict=True)))


def chosen(found: Histogram, quantities: np.ndarray) -> Histogram:
    """Of some quantities, sorted, which get the numbers 0, 1, …"""
    at = np.searchsorted(quantities, found.of)
    kept = at < len(quantities)
    kept[kept] = quantities[at[kept]] == found.of[kept]
    return Histogram(at[kept], found.place[kept], found.count[kept])


def quantile(found: Histogram, level: float) -> float:
    """The value below which a share of all values lies, whatever quantity they are of.

    Args:
      level: from 0 to 1, of a histogram with values.
    """
    order = np.argsort(found.place, kind="stable")
    below = np.cumsum(found.count[order])
    at = int(np.searchsorted(below, level * below[-1], side="left"))
    lower = np.exp(found.place[order][min(at, len(order) - 1)] * STEP)
    return float(lower * (1.0 + ERROR))
