"""What is kept of the measurements of configurations: sums that merge, block by block.

Times count by their logarithm. Each configuration keeps count, sum and sum of squares by month and
release, and a histogram with bins of a fixed width in ln t, from which quantiles follow to that
width (as in DDSketch: Masson, Rim and Lee 2019). Both are tables of partial sums, which pyarrow
adds up, so that memory goes with configurations and not with rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

WIDTH = 0.004
"""Width of a bin of the histogram of ln t: quantiles are good to 0.4 %."""

QUANTILES = (0.1, 0.5, 0.9)
"""Shares of a configuration's rows below what is told."""

CLIP = 2.0
"""Standard deviations beyond which a row counts as one at that distance, when a configuration's
level is found (Huber 1964): rows that a failing host held up do not move it far."""

TENTHS = 1.2815515655446004
"""Standard deviations of a normal distribution between its median and its upper decile."""

ENOUGH = 5
"""Rows from which on a configuration's own deciles tell outliers."""

SHARED = 4.0
"""Rows for which the scatter of all configurations counts in the scatter of each."""

ROUNDS = 20
"""Of the level with clipped rows."""


class Sums:
    """A table of sums by some keys, added to block by block.

    Args:
      keys: columns that say what is summed; others are sums, but `first` and `last`, which are the
        least and the largest text.
    """

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.keys, self.parts, self.compact = list(keys), [], 1 << 16

    def add(self, columns: dict[str, object]) -> None:
        """Rows of one block."""
        import pyarrow as pa

        self.parts.append(self._summed(pa.table(columns)))
        if sum(part.num_rows for part in self.parts) > 2 * self.compact:
            self.compact = max(self.whole().num_rows, self.compact)

    def whole(self) -> pa.Table:
        """The sums so far, by keys in order."""
        import pyarrow as pa

        if not self.parts:
            raise ValueError("no block was added")
        if len(self.parts) > 1:
            self.parts = [self._summed(pa.concat_tables(self.parts))]
        return self.parts[0].sort_by([(key, "ascending") for key in self.keys])

    def _summed(self, table: pa.Table) -> pa.Table:
        how = {"first": "min", "last": "max"}
        names = [name for name in table.column_names if name not in self.keys]
        asked = [(name, how.get(name, "sum")) for name in names]
        # one thread adds in the order of the rows, so that sums are the same each time
        found = table.group_by(self.keys, use_threads=False).aggregate(asked)
        renamed = {f"{name}_{what}": name for name, what in asked}
        return found.rename_columns([renamed.get(name, name) for name in found.column_names])


class Histogram(NamedTuple):
    """Times in bins, `[cell]` each, by owner and by bin: the owner, how many, sum and sum of
    squares of their ln t over the owner's reference."""

    owner: np.ndarray
    count: np.ndarray
    total: np.ndarray
    square: np.ndarray


class Level(NamedTuple):
    """Where the times of each owner lie, `[owner]`, NaN for one without a time.

    Attributes:
      count: times. level: of ln t over the owner's reference, rows far from it clipped. variance:
        of one row about it. quantiles: `[quantile, owner]` at `QUANTILES`, of ln t alike.
    """

    count: np.ndarray
    level: np.ndarray
    variance: np.ndarray
    quantiles: np.ndarray


def levels(found: Histogram, owners: int) -> Level:
    """The level of every owner, by its histogram.

    The level is the mean of ln t with rows beyond `CLIP` standard deviations brought in to there;
    these deviations are those between the deciles, where no outlier is counted. The variance is
    that of the clipped rows, and leans on that of all owners for few rows.
    """
    count = np.bincount(found.owner, found.count, owners)
    mean = found.total / found.count
    tenths = np.stack([_quantile(found, mean, count, q) for q in QUANTILES])
    with np.errstate(all="ignore"):
        spread = np.maximum((tenths[2] - tenths[0]) / (2.0 * TENTHS), WIDTH)
        level = np.bincount(found.owner, found.total, owners) / count
    reach = np.where(count < ENOUGH, np.inf, CLIP * spread)[found.owner]
    clipped = mean
    for _ in range(ROUNDS):
        middle = level[found.owner]
        clipped = np.clip(mean, middle - reach, middle + reach)
        with np.errstate(all="ignore"):
            new = np.bincount(found.owner, found.count * clipped, owners) / count
        done = np.fmax.reduce(np.abs(new - level), initial=0.0) < 1e-12
        level = new
        if done:
            break
    inside = np.maximum(found.square - found.total * mean, 0.0)
    square = found.count * (clipped - level[found.owner]) ** 2 + np.where(
        clipped == mean, inside, 0.0
    )
    return Level(count, level, _variance(np.bincount(found.owner, square, owners), count), tenths)


def _variance(square: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Variance of one row of every owner, by sums of squares: few rows lean on those of all."""
    free = np.maximum(count - 1.0, 0.0)
    common = square.sum() / free.sum() if free.sum() else 0.0
    return (square + SHARED * common) / (free + SHARED)


def _quantile(found: Histogram, mean: np.ndarray, count: np.ndarray, share: float) -> np.ndarray:
    """The mean of the bin in which a quantile of every owner lies, `[owner]`."""
    below = np.cumsum(found.count)
    start = np.cumsum(count) - count
    place = np.searchsorted(below, start + share * (count - 1.0), side="right")
    values = np.append(mean, np.nan)[np.minimum(place, len(mean))]
    return np.where(count > 0.0, values, np.nan)
