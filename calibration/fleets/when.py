"""When and with what rows were measured: month, date and release, beside the configuration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration.fleets.blocks import Block
from calibration.fleets.columns import encoded
from calibration.traces import Problem
from calibration.traces.files import cell

DATE, RELEASE = "date", "release"
"""Columns that say it."""

_ISO = re.compile(r"(\d{4}-(?:0[1-9]|1[0-2]))(-(?:0[1-9]|[12]\d|3[01]))?(?=$|[T ])")


class When(NamedTuple):
    """Of rows, `[row]` of text each: "" = not said. first, last: null there, for sums."""

    month: object
    release: object
    first: object
    last: object


class Times:
    """Reads them. strange: what is to be said of the first cell of each file that is no date."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self.strange: list[Problem] = []

    def of(self, block: Block) -> When:
        """Of every row of a block."""
        values, index = self._column(block, DATE)
        dates = list(map(day, values))
        self._note(block, values, dates, index)
        date = _text([d or None for d in dates], index, None)
        month = _text([d[:7] for d in dates], index, "")
        return When(month, _text(*self._column(block, RELEASE), ""), date, date)

    def _note(self, block: Block, values: list[str], dates: list[str], index: np.ndarray) -> None:
        """Keep the first cell of a file that is no date."""
        wrong = [bool(v) and not d for v, d in zip(values, dates, strict=True)]
        if any(wrong) and block.file not in self._files:
            self._files.add(block.file)
            strange = wrong.index(True)
            line = int(block.lines[np.flatnonzero(index == strange)[0]])
            text = f"{DATE} = {values[strange][:40]!r}: no date by ISO 8601 (2026-11-29), so it "
            self.strange.append(Problem(block.file, line, text + "stands in no month"))

    def _column(self, block: Block, name: str) -> tuple[list[str], np.ndarray]:
        """Different texts of a column, and which of them each row has, -1 = none."""
        if name not in block.columns:
            return [], np.full(block.table.num_rows, -1)
        values, index = encoded(block.table[name])
        return [cell(value).strip() for value in values], index


def day(text: str) -> str:
    """A date by ISO 8601 as `YYYY-MM-DD`, or `YYYY-MM`; "" where a text is none.

    >>> day("2026-03-01T12:00:00Z"), day("2026-03"), day("last week")
    ('2026-03-01', '2026-03', '')
    """
    found = _ISO.match(text)
    return found[0] if found else ""


def _text(values: Sequence[str | None], index: np.ndarray, none: str | None):
    """Texts of rows, by which of some values each has."""
    import pyarrow as pa

    whole = pa.array([*values, none], pa.string())
    return whole.take(pa.array(np.where(index < 0, len(values), index)))
