"""Steps that were added to a log since it was last read: what its beginning says of the run is
kept, and only what is new is read again."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from calibration.importers import formats
from calibration.importers.found import TRACES, Result
from calibration.importers.source import LARGEST, MAGIC, Source
from calibration.importers.steps import Step
from dmodel.errors import InputError

OVERLAP = 3
"""Steps that are read again with the new ones, so that those of several lines are whole."""

MOST_HEAD = 2**24
"""Bytes before the first step that are kept."""

MOST_WITHOUT = 2**28
"""Bytes without one step after which a file is no log of a run."""


class Added(NamedTuple):
    """What a log has that is new.

    Attributes:
      run: number of the run in the file, from 0. steps: new ones, by number. result, row: what the
        last reading found of the whole run, and its place there. begins: whether the run is new.
    """

    run: int
    steps: tuple[Step, ...]
    result: Result
    row: int
    begins: bool


class Log:
    """A log that grows.

    Attributes:
      path: of it. format: name of its format; None until it has a step.
    """

    def __init__(self, path: Path, format: str | None = None):
        self.path = path
        self.format = format
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._head: bytes | None = None
        self._offset, self._seen, self._run, self._last = 0, 0, 0, -1

    def read(self, to_end: bool = False) -> list[Added]:
        """New steps, run by run; none where there is nothing new. A file that became shorter is
        read from its beginning.

        Args:
          to_end: take a last line without a line end, too: nothing will follow.

        Raises:
          InputError: a log of no known format, one whose steps are not told one by one, packed.
        """
        size = self.path.stat().st_size
        if size < self._seen:
            self._begin_anew()
        if size == self._seen and not to_end:
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(LARGEST)
        if not self._offset and data[:2] == MAGIC:
            raise InputError(f"{self.path}: is packed, so it does not grow; use `dmodel diagnose`")
        self._seen = self._offset + len(data)
        return self._of(_lines(data, to_end))

    def _of(self, new: bytes) -> list[Added]:
        """Steps in what is new; `new` ends with a line."""
        result = self._parsed(new)
        if result is None:
            return []
        found = [i for i, steps in enumerate(result.steps) if steps]
        if not found:
            raise InputError(
                f"{self.path}: a file of format {self.format} does not tell single steps, so there "
                "is nothing to follow; `dmodel diagnose` answers about it as a whole"
            )
        added = [self._added(result, row, n) for n, row in enumerate(found)]
        self._move_on(new, result.steps[found[-1]], result.steps[found[0]])
        return [each for each in added if each.steps]

    def _parsed(self, new: bytes) -> Result | None:
        """What is new, read behind the beginning; None where it has no step yet."""
        source = Source(str(self.path), (self._head or b"") + new)
        try:
            name, result = formats.parse(source, self.format)
        except InputError:
            # a log says what it is with its first step
            if self._head is None and len(new) > MOST_WITHOUT:
                raise
            return None
        if result.table != TRACES:
            raise InputError(f"{self.path}: measures collectives, not steps; name a training log")
        self.format = name
        return result

    def _added(self, result: Result, row: int, n: int) -> Added:
        """The new steps of one run: the first of what is read goes on with the last one."""
        steps = result.steps[row]
        begins = n > 0 or self._head is None
        if n > 0:
            self._run, self._last = self._run + 1, -1
        new = tuple(step for step in steps if step.number > self._last)
        if new:
            self._last = new[-1].number
        return Added(self._run, new, result, row, begins)

    def _move_on(self, new: bytes, last: tuple[Step, ...], first: tuple[Step, ...]) -> None:
        """Keep what the beginning says, and go to where reading goes on."""
        lines = new.split(b"\n")
        skipped = 0 if self._head is None else self._head.count(b"\n")
        if self._head is None:
            before = min(step.line for step in first) - 1
            self._head = _joined(lines[:before])[:MOST_HEAD]
        places = sorted(step.line for step in last)
        at = max(places[-min(OVERLAP, len(places))] - 1 - skipped, 0)
        self._offset += len(_joined(lines[:at]))


def _lines(data: bytes, to_end: bool) -> bytes:
    """Whole lines; states of a progress bar are lines, too, and take as many bytes as before."""
    data = data.replace(b"\r", b"\n")
    return data + b"\n" if to_end and not data.endswith(b"\n") else data[: data.rfind(b"\n") + 1]


def _joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)
