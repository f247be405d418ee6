"""Mean and variance of many values, merged from parts without loss of digits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Moments(NamedTuple):
    """Of some quantities, `[n]`: how many values there are, their mean, and the sum of the squares
    of their distances from it."""

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @property
    def deviation(self) -> np.ndarray:
        """Standard deviation of the values; 0 of a single one."""
        return np.sqrt(self.squares / np.maximum(self.count - 1.0, 1.0))


def moments(values: np.ndarray) -> Moments:
    """Of values `[n, value]`, one at least."""
    mean = values.mean(1)
    squares = ((values - mean[:, None]) ** 2).sum(1)
    return Moments(np.full(len(values), float(values.shape[1])), mean, squares)


def merged(a: Moments, b: Moments) -> Moments:
    """Of the values of both (Chan, Golub and LeVeque 1979, equation 2.1)."""
    count = a.count + b.count
    share = np.divide(b.count, count, out=np.zeros_like(count), where=count > 0.0)
    gap = b.mean - a.mean
    squares = a.squares + b.squares + gap**2 * a.count * share
    return Moments(count, a.mean + gap * share, squares)
