"""Measured cells of many rows against what is known of their configurations.

Each bit of a mark is one finding of `calibration.plausible`, or one cell that is no measurement.
Rows of one configuration with the same mark are judged alike, so that the reader of small tables
judges the first of them and its words hold for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from calibration.fleets.columns import encoded, trimmed
from calibration.plausible import CONVENTION, LEAST, PEAK, ROOM, ROUNDED, SLOW_FLAGS, runs
from calibration.traces import Row
from calibration.traces.schema import MEASURED
from dmodel.columns import MOST, SMALLEST
from dmodel.units import GIB

if TYPE_CHECKING:
    import pyarrow as pa

    from calibration.fleets.blocks import Block

FIGURES = tuple(column.name for column in MEASURED if column.kind != "text")
"""Columns that hold measurements."""

MARKS = (*FIGURES, "untimed", "beyond-peak", "idle", "full", "beyond-memory", "contradiction")
MARKS += ("rate", "share")
"""What each bit says: a cell that is no positive number; no time; findings."""


class Bounds(NamedTuple):
    """What the checks of measured cells need of configurations, `[configuration]` each.

    Attributes:
      least, most: FLOP of a token, see `plausible.Run`. tokens: of a step. devices: count.
      peak: [FLOP/s] and memory [GiB] of a device. slow: whether the row is said to be slow.
    """

    least: np.ndarray
    most: np.ndarray
    tokens: np.ndarray
    devices: np.ndarray
    peak: np.ndarray
    memory: np.ndarray
    slow: np.ndarray

    def and_more(self, other: Bounds) -> Bounds:
        """These, then others."""
        return Bounds(*(np.append(a, b) for a, b in zip(self, other, strict=True)))

    def take(self, of: np.ndarray) -> Bounds:
        """Of some configurations."""
        return Bounds(*(x[of] for x in self))


def unknown(count: int) -> Bounds:
    """Bounds of configurations that cannot be used: nothing is beyond them."""
    none = [np.full(count, np.nan) for _ in Bounds._fields[:-1]]
    return Bounds(*none, slow=np.ones(count, bool))


def bounds(rows: Sequence[Row | None]) -> Bounds:
    """Bounds of configurations by a row of each; None = it cannot be used."""
    found = unknown(len(rows))
    known = [i for i, row in enumerate(rows) if row is not None]
    for i, run in zip(known, runs([row for row in rows if row is not None]), strict=True):
        memory = float(run.machine.chip.hbm_bytes) / GIB
        slow = not SLOW_FLAGS.isdisjoint(run.row.flags)
        values = (run.least, run.most, run.tokens, run.devices, run.peak, memory, slow)
        for column, value in zip(found, values, strict=True):
            column[i] = value
    return found


class Measured(NamedTuple):
    """Measured cells of rows, `[row]` each, NaN where there is none that is a measurement.

    Attributes:
      figures: by column. bad: bits of cells that are none. time: of a step [s], as given, else from
        the throughput.
    """

    figures: dict[str, np.ndarray]
    bad: np.ndarray
    time: np.ndarray


def measured(block: Block, at: Bounds) -> Measured:
    """The measured cells of a block; at: bounds of the configuration of each row."""
    count = block.table.num_rows
    figures, bad = {}, np.zeros(count, np.int64)
    for i, name in enumerate(FIGURES):
        if name in block.columns:
            figures[name], wrong = _numbers(block.table[name])
            bad |= wrong.astype(np.int64) << i
        else:
            figures[name] = np.full(count, np.nan)
    given, derived = figures["step_time_s"], _derived(figures, at)
    return Measured(figures, bad, np.where(np.isnan(given), derived, given))


def _derived(figures: dict[str, np.ndarray], at: Bounds) -> np.ndarray:
    """Step time by the throughput [s]."""
    return at.tokens / (figures["tokens_per_s_per_accel"] * at.devices)


def _numbers(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Cells as numbers, NaN where there is none, and where a cell is no measurement."""
    import pyarrow as pa

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = trimmed(column)
    given = column.is_valid().to_numpy()
    try:
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        cells, index = encoded(column)
        values = np.array([*map(_number, cells), np.nan])[index]
    with np.errstate(invalid="ignore"):
        bad = given & ~((values >= SMALLEST) & (values <= MOST))
    return np.where(given & ~bad, values, np.nan), bad


def _number(cell: object) -> float:
    try:
        return float(str(cell))
    except ValueError:
        return np.nan


def marks(found: Measured, at: Bounds, require_time: bool) -> np.ndarray:
    """What is wrong with each row, bits of `MARKS`, `[row]`; 0 = its configuration decides.

    Args:
      at: bounds of the configuration of each row.
    """
    peak = found.figures["peak_memory_gib"]
    with np.errstate(all="ignore"):
        share = at.least * at.tokens / (at.peak * at.devices * found.time)
        apart = np.abs(found.figures["step_time_s"] / _derived(found.figures, at) - 1.0)
        rate = 1e12 * found.figures["tflops_reported"] / at.peak
        wrong = {
            "untimed": np.isnan(found.time) & require_time,
            "beyond-peak": share > 1.0,
            "idle": (share < LEAST) & ~at.slow,
            "full": (peak > at.memory * (1.0 + 1e-3)) & (peak <= ROOM * at.memory),
            "beyond-memory": peak > ROOM * at.memory,
            "contradiction": apart > ROUNDED,
            "rate": _contradicts(rate, share, at, CONVENTION),
            "share": _contradicts(found.figures["mfu_reported"], share, at, PEAK),
        }
    total = found.bad.copy()
    for name, which in wrong.items():
        total |= which.astype(np.int64) << MARKS.index(name)
    return total


def named(mark: int) -> list[str]:
    """What a mark says.

    >>> named(1 | 1 << MARKS.index("idle"))
    ['step_time_s', 'idle']
    """
    return [name for i, name in enumerate(MARKS) if mark >> i & 1]


def _contradicts(at: np.ndarray, share: np.ndarray, known: Bounds, room: float) -> np.ndarray:
    """Published utilizations that the time contradicts, or that are none."""
    most = np.fmin(room * share * known.most / known.least, 1.0)
    return (at < np.where(np.isnan(share), 0.0, share / room)) | (at > most)
