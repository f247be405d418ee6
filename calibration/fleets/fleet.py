"""A table of many rows as one of configurations: each the first of its repeats, with the statistics
of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from calibration.fleets import screen
from calibration.fleets.blocks import Block, blocks
from calibration.fleets.groups import Groups, rows_at
from calibration.fleets.keys import Configurations
from calibration.fleets.sources import Source, sources
from calibration.fleets.statistics import WIDTH, Histogram, Level, Sums, levels
from calibration.fleets.when import Times
from calibration.traces import Cases, Problem, Row, TraceTable, to_cases
from calibration.traces.reader import judged, misspelled, no_rows, table_of
from calibration.traces.schema import NUMBERS
from dmodel.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

MOST_BROKEN = 1000
"""Broken lines that are told one by one; of more their number is."""


class Repeats(NamedTuple):
    """Measurements of groups of rows, `[group]` each.

    Attributes:
      rows: count, those without a time too. times: count. level: of ln(step time / s), `variance`
        that of one row about it and `quantiles` `[quantile, group]`: see `statistics.levels`.
      peak: geometric mean of peaks of memory [GiB]. first, last: dates, "" where none is known.
    """

    rows: np.ndarray
    times: np.ndarray
    level: np.ndarray
    variance: np.ndarray
    quantiles: np.ndarray
    peak: np.ndarray
    first: np.ndarray
    last: np.ndarray

    def take(self, groups: np.ndarray) -> Repeats:
        """Those of some groups."""
        return Repeats(*(x[..., groups] for x in self))


class Dated(NamedTuple):
    """Sums of ln(step time / s) by group, month and release, `[cell]` each. Text "" = not said."""

    group: np.ndarray
    month: np.ndarray
    release: np.ndarray
    count: np.ndarray
    total: np.ndarray


@dataclass(frozen=True)
class Fleet:
    """Rows that were read, by configuration.

    Attributes:
      files: they come from. table: one row for each group of rows that are alike in configuration
        and in what is wrong with their measurements, usable or set aside. Its measured cells are
        those of the group: the level of the times, the mean of the peaks.
      repeats: of `table.rows`. aside: rows behind each of `table.aside`.
      dated: sums of times, by index of `table.rows`. kinds: Arrow type that holds every cell
        of a column. of: of each block the index of each
        row in `table.rows`, -1 where it was set aside.
      total: rows read.
    """

    files: tuple[Source, ...]
    table: TraceTable
    repeats: Repeats
    aside: np.ndarray
    dated: Dated
    kinds: Mapping[str, pa.DataType]
    of: list[np.ndarray] = field(repr=False)
    total: int

    def select(self, kept: np.ndarray, table: TraceTable, aside: np.ndarray) -> Fleet:
        """The fleet with some of its usable rows.

        Args:
          kept: which, `[row]` bool. table: of those, with the others set aside. aside: rows behind
            each row that the table has set aside.
        """
        place = np.where(kept, np.cumsum(kept) - 1, -1)
        place = np.append(place, -1)
        group = place[self.dated.group]
        dated = Dated(*(x[group >= 0] for x in self.dated._replace(group=group)))
        return Fleet(
            self.files,
            table,
            self.repeats.take(np.flatnonzero(kept)),
            aside,
            dated,
            self.kinds,
            [place[of] for of in self.of],
            self.total,
        )

    def cases(self) -> Cases:
        """Cases of the usable rows, each with how many measurements it stands for and the variance
        of their mean.

        Raises:
          InputError: no row is usable.
        """
        if not self.table.rows:
            raise InputError(
                f"no usable row among {self.total:,} (the first problem: "
                f"{self.table.problems[0]}); expected at least one measured configuration"
            )
        cases = to_cases(self.table)
        known = self.repeats
        repeated = known.times.sum() > len(known.times)
        with np.errstate(all="ignore"):
            of_mean = np.where(known.times > 0, known.variance / known.times, 0.0) * repeated
        labels = cases.labels._replace(repeats=known.rows, variance=of_mean)
        return cases.replace(labels=labels)


def read(paths: Sequence[Path], require_time: bool = True) -> Fleet:
    """Read files, or folders of them, in blocks of bounded memory.

    Args:
      paths: CSV or Parquet, or folders of either.
      require_time: rows without a measured time are set aside.
    Raises:
      InputError: a file cannot be read as a table of traces, or no row was found.
    """
    files = tuple(file for path in paths for file in sources(Path(path)))
    reading = _Reading(require_time)
    for block in blocks(files, require_time):
        reading.add(block)
    if not reading.total:
        raise no_rows(files[0].path)
    return reading.fleet(files)


class _Reading:
    """A fleet while it is read."""

    def __init__(self, require_time: bool) -> None:
        self.require_time = require_time
        self.configurations, self.groups = Configurations(), Groups()
        self.known = screen.unknown(0)
        self.times, self.total = Times(), 0
        self.columns: dict[str, set[pa.DataType]] = {}
        self.notes: dict[tuple[str, ...], list[Problem]] = {}
        self.broken: list[tuple[Row, str]] = []
        self.lost: Counter[str] = Counter()
        self.of: list[np.ndarray] = []
        self.bins = Sums(("group", "bin"))
        self.dates = Sums(("group", "month", "release"))
        self.reference = np.zeros(0)
        self.bad = 0

    def add(self, block: Block) -> None:
        """Rows of a block."""
        self._header(block)
        self._broken(block)
        self.total += block.table.num_rows + len(block.broken)
        configuration, new = self.configurations.of(block)
        self._learn(block, configuration, new)
        at = self.known.take(configuration)
        found = screen.measured(block, at)
        self.bad |= int(np.bitwise_or.reduce(found.bad))
        marks = screen.marks(found, at, self.require_time)
        group, first = self.groups.of(configuration, marks)
        self.groups.rows += rows_at(block, first)
        self.of.append(group)
        self._count(block, group, first, found)

    def _header(self, block: Block) -> None:
        if block.columns not in self.notes:
            self.notes[block.columns] = list(misspelled(Path(block.file), block.columns))
        for name in block.columns:
            self.columns.setdefault(name, set()).add(block.table[name].type)

    def _broken(self, block: Block) -> None:
        room = max(MOST_BROKEN - len(self.broken), 0)
        self.broken += block.broken[:room]
        if lost := len(block.broken[room:]):
            self.lost[block.file] += lost

    def _learn(self, block: Block, configuration: np.ndarray, new: np.ndarray) -> None:
        """Judge configurations that are new, by rows without measured cells."""
        blank = [_unmeasured(row) for row in rows_at(block, new)]
        verdicts = list(judged(blank, False))
        self.known = self.known.and_more(
            screen.bounds([None if reason else row for row, reason in verdicts])
        )
        self.groups.verdicts += verdicts

    def _count(
        self, block: Block, group: np.ndarray, first: np.ndarray, found: screen.Measured
    ) -> None:
        log = np.log(found.time)
        self.reference = np.append(self.reference, log[first])
        self.reference = _filled(self.reference, group, log)
        over = log - self.reference[group]
        timed = ~np.isnan(over)
        own = over[timed]
        self.bins.add(
            {
                "group": group[timed],
                "bin": np.round(own / WIDTH).astype(np.int64),
                "count": np.ones(len(own), np.int64),
                "total": own,
                "square": own**2,
            }
        )
        peak = np.log(found.figures["peak_memory_gib"])
        when = self.times.of(block)
        self.dates.add(
            {
                "group": group,
                "month": when.month,
                "release": when.release,
                "rows": np.ones(len(group), np.int64),
                "count": timed.astype(np.int64),
                "total": np.where(timed, over, 0.0),
                "peaks": (~np.isnan(peak)).astype(np.int64),
                "peak": np.nan_to_num(peak),
                "first": when.first,
                "last": when.last,
            }
        )

    def fleet(self, files: tuple[Source, ...]) -> Fleet:
        """The whole."""
        return _whole(self, files)


def _unmeasured(row: Row) -> Row:
    """A row without its measured cells."""
    return row._replace(cells={**row.cells, **dict.fromkeys(screen.FIGURES, "")})


def _filled(reference: np.ndarray, group: np.ndarray, log: np.ndarray) -> np.ndarray:
    """References of groups, of which a first row had no time, by a later one."""
    if not np.isnan(reference).any():
        return reference
    later = np.flatnonzero(np.isnan(reference)[group] & ~np.isnan(log))[::-1]
    reference = reference.copy()
    reference[group[later]] = log[later]
    return reference


def _whole(reading: _Reading, files: tuple[Source, ...]) -> Fleet:
    """What was read, as a fleet."""
    verdicts = reading.groups.judged(reading.require_time)
    repeats, dated = _statistics(reading, len(verdicts))
    told = [
        (_measured_as(row, repeats, i), _counted(reason, int(repeats.rows[i])))
        for i, (row, reason) in enumerate(verdicts)
    ]
    usable = np.array([not reason for _, reason in told], bool)
    place = np.where(usable, np.cumsum(usable) - 1, -1)
    lost = [(Row(name, 0, {}), f"{n:,} lines more are broken") for name, n in reading.lost.items()]
    notes = [*chain.from_iterable(reading.notes.values()), *reading.times.strange]
    table = table_of(tuple(reading.columns), [*told, *reading.broken, *lost], notes)
    group = place[dated.group]
    aside = [*repeats.rows[~usable].tolist(), *[1] * len(reading.broken), *reading.lost.values()]
    return Fleet(
        files=files,
        table=table,
        repeats=repeats.take(np.flatnonzero(usable)),
        aside=np.array(aside, np.int64),
        dated=Dated(*(x[group >= 0] for x in dated._replace(group=group))),
        kinds=_kinds(reading),
        of=[place[of].astype(np.int32) for of in reading.of],
        total=reading.total,
    )


def _kinds(reading: _Reading) -> dict[str, pa.DataType]:
    """Type of every column: as stored, numbers of the format that stand as text as numbers, and
    text where cells are neither."""
    import pyarrow as pa

    wrong = set(screen.named(reading.bad)) | reading.configurations.not_numbers()
    found = {}
    for name, types in reading.columns.items():
        stored = next(iter(types)) if len(types) == 1 else pa.string()
        plain = not reading.broken and name in NUMBERS and name not in wrong
        found[name] = pa.float64() if pa.types.is_string(stored) and plain else stored
    return found


def _counted(reason: str, rows: int) -> str:
    """A reason that holds for some rows, of which the first is told."""
    more = f" (and {rows - 1:,} more of this configuration)" if rows > 1 else ""
    return reason + more if reason else ""


def _statistics(reading: _Reading, groups: int) -> tuple[Repeats, Dated]:
    """Statistics of all groups."""
    bins, dates = reading.bins.whole(), reading.dates.whole()
    found = levels(
        Histogram(*(bins[n].to_numpy() for n in ("group", "count", "total", "square"))), groups
    )
    group, count, total, rows, peaks, peak = (
        dates[n].to_numpy() for n in ("group", "count", "total", "rows", "peaks", "peak")
    )
    with np.errstate(all="ignore"):
        peak = np.exp(np.bincount(group, peak, groups) / np.bincount(group, peaks, groups))
    first, last = _ends(group, dates, groups)
    names = [np.array(dates[n].to_pylist(), np.str_) for n in ("month", "release")]
    repeats = _repeats(found, reading.reference, np.bincount(group, rows, groups), peak)
    total = total + count * np.nan_to_num(reading.reference[group])
    dated = Dated(group, names[0], names[1], count, total)
    return repeats._replace(first=first, last=last), dated


def _repeats(found: Level, reference: np.ndarray, rows: np.ndarray, peak: np.ndarray) -> Repeats:
    none = np.full(len(rows), "", np.str_)
    return Repeats(
        rows.astype(np.int64),
        found.count.astype(np.int64),
        found.level + reference,
        found.variance,
        found.quantiles + reference,
        peak,
        none,
        none,
    )


def _ends(group: np.ndarray, dates, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last date of every group, "" where none is known."""
    first, last = [""] * groups, [""] * groups
    columns = (group.tolist(), dates["first"].to_pylist(), dates["last"].to_pylist())
    for i, begin, end in zip(*columns, strict=True):
        if begin:
            first[i] = min(first[i] or begin, begin)
            last[i] = max(last[i], end)
    return np.array(first, np.str_), np.array(last, np.str_)


def _measured_as(row: Row, repeats: Repeats, group: int) -> Row:
    """A row with the measured cells of its group; as it is where it is the only one."""
    if repeats.rows[group] == 1 or not repeats.times[group]:
        return row
    time, peak = np.exp(repeats.level[group]), repeats.peak[group]
    cells = {**row.cells, **dict.fromkeys(screen.FIGURES, ""), "step_time_s": repr(float(time))}
    if np.isfinite(peak):
        cells["peak_memory_gib"] = repr(float(peak))
    return row._replace(cells=cells)
