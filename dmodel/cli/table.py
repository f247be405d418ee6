"""Tables as lines of text: columns as wide as their cells, cells folded where the terminal is too
narrow."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

EDGE, BETWEEN = " ", "   "
"""What stands at both ends of a line, and between two columns."""

LEAST = 1
"""Columns of a terminal that are left to any column of a table."""


def folded(text: str, width: int) -> list[str]:
    """A text in lines that fit.

    >>> folded("as wide as it is", 8)
    ['as wide', 'as it is']
    """
    return [
        part
        for line in text.split("\n")
        for part in (
            [line]
            if len(line) <= width
            else textwrap.wrap(line, width, break_on_hyphens=False) or [""]
        )
    ]


def laid_out(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], width: int
) -> tuple[list[str], list[str]]:
    """Lines of the head of a table, and of its rows with the rule above them.

    Args:
      right: of each column, whether it is aligned to the right. width: of the terminal.
    """
    room = width - 2 * len(EDGE) - len(BETWEEN) * (len(header) - 1)
    widths = _fitting(_natural([header, *rows]), room)
    rule = EDGE + "─" * (sum(widths) + len(BETWEEN) * (len(widths) - 1))
    lines = [line for row in rows for line in _lines(row, widths, right)]
    return _lines(header, widths, right), [rule, *lines]


def _natural(rows: Sequence[Sequence[str]]) -> list[int]:
    """Widths of columns in which nothing is folded."""
    columns = zip(*rows, strict=True)
    return [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]


def _fitting(widths: list[int], room: int) -> list[int]:
    """Widths that fit: the widest column gives first, the first column, which names a row, last."""
    widths = list(widths)
    while sum(widths) > room:
        others = [i for i in range(1, len(widths)) if widths[i] > LEAST]
        # of columns that are alike, the first gives first
        i = max(others, key=lambda i: (widths[i], -i)) if others else 0
        if widths[i] <= LEAST:
            break
        widths[i] -= 1
    return widths


def _lines(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    """Lines of one row."""
    cells = [folded(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(map(len, cells))
    filled = [cell + [""] * (height - len(cell)) for cell in cells]
    sides = [str.rjust if is_right else str.ljust for is_right in right]
    return [
        EDGE + BETWEEN.join(s(c, w) for s, c, w in zip(sides, line, widths, strict=True)).rstrip()
        for line in zip(*filled, strict=True)
    ]
