"""Groups of rows that are alike in configuration and in what is wrong with their measurements."""

from __future__ import annotations

import numpy as np

from calibration.fleets.blocks import Block
from calibration.fleets.keys import distinct
from calibration.traces import Row
from calibration.traces.files import cell
from calibration.traces.reader import judged, spelled


class Groups:
    """Groups of rows of one configuration and one mark, in the order in which they are first seen.

    Attributes:
      configuration, mark: of each. rows: the first row of each. verdicts: of each configuration, a
        row without measured cells and why it cannot be used.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], int] = {}
        self.rows: list[Row] = []
        self.verdicts: list[tuple[Row, str]] = []

    def of(self, configuration: np.ndarray, marks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The group of every row `[row]`, and the first rows of new groups, by their number."""
        first, inverse = distinct(np.stack([configuration, marks]))
        before = len(self.known)
        pairs = zip(configuration[first].tolist(), marks[first].tolist(), strict=True)
        found = np.array([self.known.setdefault(pair, len(self.known)) for pair in pairs], np.int64)
        return found[inverse], first[found >= before]

    def judged(self, require_time: bool) -> list[tuple[Row, str]]:
        """The first row of every group, and why the group cannot be used."""
        marked = [i for i, (_, mark) in enumerate(self.known) if mark]
        alone = dict(zip(marked, judged([self.rows[i] for i in marked], require_time), strict=True))
        found = []
        for i, (configuration, _) in enumerate(self.known):
            like, reason = self.verdicts[configuration]
            found.append(alone.get(i, (self.rows[i]._replace(found=like.found), reason)))
        return found


def rows_at(block: Block, places: np.ndarray) -> list[Row]:
    """Rows of a block as the reader of small tables has them."""
    cells = block.table.take(places).to_pylist()
    lines = block.lines[places].tolist()
    return [
        spelled(Row(block.file, line, {name: cell(value) for name, value in each.items()}))
        for line, each in zip(lines, cells, strict=True)
    ]
