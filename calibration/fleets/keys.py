"""What tells configurations apart, as numbers: rows with the same number are repeats."""

from __future__ import annotations

import math

import numpy as np

from calibration.fleets.blocks import Block
from calibration.fleets.columns import encoded
from calibration.traces import schema
from calibration.traces.files import cell
from dmodel.columns import CONFIGURATION, parse_number

KEYS = (*(column.name for column in CONFIGURATION), "set", "flag", "source")
"""Columns that decide what is predicted of a row, or how it is judged."""

MOST_CODES = 2**62
"""Products of numbers of codes stay below."""


class Configurations:
    """Numbers of configurations, in the order in which they are first seen."""

    def __init__(self) -> None:
        self.texts: list[dict[str, int]] = [{"": 0} for _ in KEYS]
        self.known: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.known)

    def of(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """The configuration of every row of a block `[row]`, and rows that are the first ones of
        new configurations, by their number."""
        codes = np.stack([self._codes(block, i) for i in range(len(KEYS))])
        first, inverse = distinct(codes)
        found, before = np.empty(len(first), np.int64), len(self.known)
        for i, key in enumerate(codes[:, first].T):
            found[i] = self.known.setdefault(key.tobytes(), len(self.known))
        return found[inverse], first[found >= before]

    def not_numbers(self) -> set[str]:
        """Columns of numbers in which some cell is none."""
        pairs = zip(KEYS, self.texts, strict=True)
        return {n for n, known in pairs if n in schema.NUMBERS and any(map(_is_text, known))}

    def _codes(self, block: Block, key: int) -> np.ndarray:
        """The text of a column, as numbers `[row]`."""
        name, known = KEYS[key], self.texts[key]
        if name not in block.columns:
            return np.zeros(block.table.num_rows, np.int32)
        values, index = encoded(block.table[name])
        texts = [_meaning(name, cell(value).strip()) for value in values]
        numbers = [known.setdefault(text, len(known)) for text in texts]
        return np.array([*numbers, 0], np.int32)[index]


def distinct(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First places of the different columns of codes `[key, row]` in the order of their places,
    and which of them each is `[row]`."""
    whole, size = np.zeros(codes.shape[1], np.int64), 1
    for row in codes:
        most = int(row.max(initial=0)) + 1
        if most == 1:
            continue
        if size * most > MOST_CODES:
            _, whole = np.unique(whole, return_inverse=True)
            size = int(whole.max()) + 1
        whole, size = whole * most + row, size * most
    _, first, inverse = np.unique(whole, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return first[order], rank[inverse]


def _is_text(cell: str) -> bool:
    """Whether a cell that is not blank is no number."""
    try:
        return bool(cell) and math.isnan(float(cell))
    except ValueError:
        return True


def _meaning(name: str, text: str) -> str:
    """A cell as it counts: numbers by value, words of the format as it spells them."""
    column = schema.BY_NAME[name]
    if not text:
        return ""
    if column.kind == "text":
        return schema.spelled(name, text)
    try:
        return repr(parse_number(column, text))
    except ValueError:
        return text
