"""Runs in files that grow, each with a detector of changes: logs of training, and tables of traces
whose rows of one configuration are a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from calibration.importers.beside import beside
from calibration.importers.found import Result, number
from calibration.importers.steps import summary
from calibration.importers.tables import together
from calibration.importers.told import cells_of, flat
from calibration.traces import read
from calibration.traces.files import is_table
from calibration.traces.questions import completed
from calibration.traces.reader import measured_time, problems
from calibration.traces.table import Row
from calibration.watching.changes import Change, Detector
from calibration.watching.growing import Added, Log
from dmodel.columns import CONFIGURATION
from dmodel.errors import InputError


class Run(NamedTuple):
    """A run that is followed.

    Attributes:
      name: for people. row: what is known of it, None where that is not enough for a prediction;
      lacks: why then. factor: seconds of a step in one unit of the series; None where a rate tells
        no time of a step.
    """

    name: str
    row: Row | None
    lacks: str
    factor: float | None

    def seconds(self, value: float) -> float | None:
        """Seconds of a step for a value of the series."""
        return None if self.factor is None else value * self.factor


class News(NamedTuple):
    """What steps of a run bring.

    Attributes:
      run: it. step: number of the last one. change: that they complete; None = the level is known
        now for the first time. seconds: of a step at the level; None where the run
        tells no time.
    """

    run: Run
    step: int
    change: Change | None
    seconds: float | None


class _Followed:
    """One run: its detector, and whether its level was told."""

    def __init__(self, least: float):
        self.detector = Detector(least)
        self.is_told = False

    def take(self, run: Run, step: int, seconds: float) -> News | None:
        """Add a step; what it brings."""
        change = self.detector.take(step, seconds)
        level = self.detector.seconds
        if change is not None:
            return News(run, step, change, run.seconds(level or change.after))
        if level is not None and not self.is_told:
            self.is_told = True
            return News(run, step, None, run.seconds(level))
        return None


class Known(NamedTuple):
    """What is said of all runs beside their files, and how they are read. given: cells; format: of
    logs; least: relative change that matters [1]."""

    given: Mapping[str, str]
    with_files: tuple[Path, ...]
    format: str | None
    least: float


class File:
    """A file that is followed.

    Attributes:
      path: of it. steps: that were read so far.
    """

    def __init__(self, path: Path, known: Known):
        self.path = path
        self.steps = 0
        self._known = known
        self._followed: dict[str, _Followed] = {}
        self._last: dict[str, tuple[Run, int]] = {}

    def read(self, to_end: bool) -> Iterator[News]:
        """What is new in the file.

        Raises:
          InputError: it cannot be read as what it is.
        """
        for run, step, seconds in self._new(to_end):
            self.steps += 1
            one = self._followed.setdefault(run.name, _Followed(self._known.least))
            if found := one.take(run, step, seconds):
                yield found
            self._last[run.name] = (run, step)
        if to_end:
            yield from self._short()

    def _short(self) -> Iterator[News]:
        """The levels of runs that end before they are long enough to be followed."""
        for name, one in self._followed.items():
            seconds = one.detector.so_far
            if not one.is_told and seconds is not None:
                run, step = self._last[name]
                one.is_told = True
                yield News(run, step, None, run.seconds(seconds))

    def _new(self, to_end: bool) -> Iterator[tuple[Run, int, float]]:
        """New steps: the run, number and time of each."""
        raise NotImplementedError


class LogFile(File):
    """A log of training."""

    def __init__(self, path: Path, known: Known):
        super().__init__(path, known)
        self._log = Log(path, known.format)
        self._runs: dict[int, Run] = {}

    def _new(self, to_end: bool) -> Iterator[tuple[Run, int, float]]:
        for added in self._log.read(to_end):
            if added.begins or added.run not in self._runs:
                self._runs[added.run] = self._run(added)
            for step in added.steps:
                yield self._runs[added.run], step.number, step.seconds

    def _run(self, added: Added) -> Run:
        """A run by what its log and the user say."""
        name = str(self.path) + (f" run {added.run + 1}" if added.run else "")
        known = [beside(path) for path in self._known.with_files]
        own = _factor(number(added.result.rows[added.row][1].get("step_time_s")), added)
        try:
            found = together(
                [(self._log.format or "", added.result)], [], [], self._known.given, known
            )
        except InputError as error:
            return Run(name, None, str(error), own)
        place = [i for i, at in enumerate(found.origin) if at[1] == added.result.rows[added.row][0]]
        if not place:
            return Run(name, None, "; ".join(map(str, found.doubts[:1])), own)
        lacks = [column for column, rows in found.needed.items() if place[0] in rows]
        if lacks:
            return Run(name, None, _open(lacks), own)
        row = completed(Row(str(self.path), found.origin[place[0]][1], found.rows[place[0]]))
        if place[0] in found.unusable:
            return Run(name, None, found.unusable[place[0]], own)
        return Run(name, row, "", _factor(measured_time(row), added))


def _open(columns: list[str]) -> str:
    words = " ".join(f"--set {name}=…" for name in columns)
    return f"the log does not say all that a prediction needs; add {words}"


def _factor(whole: float | None, added: Added) -> float | None:
    """Seconds of a step in one unit of the log's series: a rate alone is a time up to a factor.

    Args:
      whole: seconds of a step, None = not told.
    """
    told = summary(Result(""), added.result.steps[added.row])
    return whole / told.seconds if told and whole else None


class TableFile(File):
    """A table of traces that rows are added to."""

    def __init__(self, path: Path, known: Known):
        super().__init__(path, known)
        if known.format or known.with_files:
            raise InputError(f"{path}: is a table; --format and --with are of logs")
        self._count, self._changed = 0, 0.0
        self._runs: dict[tuple[str, ...], Run] = {}

    def _new(self, to_end: bool) -> Iterator[tuple[Run, int, float]]:
        about = self.path.stat()
        if about.st_mtime == self._changed or not about.st_size:
            return
        if not to_end and not _is_whole(self.path):
            return
        self._changed = about.st_mtime
        rows = sorted(read(self.path).rows, key=lambda row: row.line)
        for row in rows:
            if row.line > self._count and (seconds := measured_time(row)):
                yield self._run(row), row.line, seconds
        self._count = max((row.line for row in rows), default=0)

    def _run(self, row: Row) -> Run:
        """The run of a row: all rows of its configuration."""
        key = tuple(row.text(column.name) for column in CONFIGURATION)
        if key not in self._runs:
            row = row._replace(cells=cells_of(flat(row.cells) | flat(self._known.given)))
            lacks = "; ".join(problems(row))
            name = f"{self.path} configuration of line {row.line}"
            self._runs[key] = Run(name, None if lacks else row, lacks, 1.0)
        return self._runs[key]


def _is_whole(path: Path) -> bool:
    """Whether a table is written to the end of its last row."""
    if path.suffix.lower() == ".parquet":
        return True
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) in b"\r\n"


def followed(path: Path, known: Known) -> File:
    """A file, as its name says what it is."""
    return (TableFile if is_table(path) else LogFile)(path, known)


class Folder:
    """A file, or all files of a folder, those that come later included.

    Attributes:
      files: that are followed. passed: files that are none, and why.
    """

    def __init__(self, path: Path, known: Known, clock: Callable[[], float] = time.monotonic):
        """Follow what is there.

        Raises:
          InputError: no such file or folder.
        """
        if not path.exists():
            raise InputError(
                f"{path}: no such file or folder; expected a log, a table, or a folder"
            )
        self.path, self._known, self._clock = path, known, clock
        self.files: dict[Path, File] = {}
        self.passed: dict[Path, str] = {}
        self._grew: dict[Path, float] = {}
        self._gap: dict[Path, float] = {}
        self.last = clock()

    def read(self, to_end: bool = False) -> Iterator[News]:
        """What is new in all files.

        Raises:
          InputError: the only file cannot be read as what it is.
        """
        paths = [self.path] if self.path.is_file() else sorted(self.path.rglob("*"))
        for path in paths:
            if path.is_file() and not path.name.startswith(".") and path not in self.passed:
                yield from self._read(path, to_end)

    def _read(self, path: Path, to_end: bool) -> Iterator[News]:
        try:
            if path not in self.files:
                self.files[path] = followed(path, self._known)
            file = self.files[path]
            before = file.steps
            yield from file.read(to_end)
        except FileNotFoundError:  # gone since the folder was listed
            return
        except InputError as error:
            if self.path.is_file():
                raise
            self.passed[path] = str(error)
            self.files.pop(path, None)
            return
        if file.steps > before:
            self._has_grown(path)

    def _has_grown(self, path: Path) -> None:
        now = self._clock()
        if path in self._grew:
            self._gap[path] = max(self._gap.get(path, 0.0), now - self._grew[path])
        self._grew[path] = self.last = now

    def stalled(self) -> Iterator[tuple[Path, float]]:
        """Files that bring no step for much longer than between steps before: each once, and for
        how long [s]."""
        now = self._clock()
        for path, when in list(self._grew.items()):
            if path in self._gap and now - when > max(STALLED * self._gap[path], AT_LEAST):
                del self._grew[path]
                yield path, now - when


STALLED, AT_LEAST = 5.0, 120.0
"""How many times the longest wait for steps so far, and how many seconds, are too long."""
