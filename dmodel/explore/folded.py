"""Texts of programs for the page: names as distances, so that alike statements are alike, and what
two programs share written once.

Both take six tenths off what programs are once they are compressed. `source/unfolded.ts` has the
way back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

BODY = "function f"
"""Start of a line that holds a function's statements; all other lines stay as they are."""

TOKEN = re.compile(
    r"const (?P<made>[A-Z$_]\w*)="
    r"|t\[(?P<kept>\d+)\]=\+(?P<what>[A-Z$_]\w*);"
    r"|t\[(?P<slot>\d+)\]"
    r"|(?<![\w$])(?P<name>[A-Z$_]\w*)"
)


class _Folding:
    """Statements counted through all functions, and where values lie."""

    def __init__(self) -> None:
        self.count = 0
        self.names: dict[str, int] = {}
        self.slots: dict[int, int] = {}

    def line(self, line: str) -> str:
        if not line.startswith(BODY):
            return line
        self.names = {}
        return TOKEN.sub(self.token, line)

    def token(self, found: re.Match[str]) -> str:
        """A statement's name as "@", a value as the statements since then; what keeps a value for
        another function is left out."""
        if found["made"]:
            self.names[found["made"]] = self.count
            self.count += 1
            return "@"
        if found["kept"]:
            self.slots[int(found["kept"])] = self.names[found["what"]]
            return ""
        if found["slot"]:
            return f"#{self.count - self.slots[int(found['slot'])]}"
        own = self.names.get(found["name"])
        return found["name"] if own is None else f"#{self.count - own}"


def folded(text: str) -> str:
    """A program of `dmodel.explore.javascript` in few bytes.

    >>> folded("function f0(x,y,t){const A=exp(x[0]);t[0]=+A;}\\nfunction f1(x,y,t){y[0]=t[0];}")
    'function f0(x,y,t){@exp(x[0]);}\\nfunction f1(x,y,t){y[0]=#1;}'
    """
    folding = _Folding()
    return "\n".join(map(folding.line, text.split("\n")))


PIECES = re.compile("(?<=[;,])").split
"""Cuts a text into pieces that may be copied."""

RUN = 2
"""Pieces of a copy at least."""

LEAST = 16
"""Letters of a copy at least; a copy itself takes about as many."""

FEWEST = 40
"""Places of a base that are tried for a copy."""


def closest(name: str, others: Iterable[str]) -> str:
    """The name of a structure that is most like another; "" where there is none."""

    def alike(other: str) -> float:
        return SequenceMatcher(None, other, name, autojunk=False).ratio()

    return max(others, key=alike, default="")


class _Base:
    """A text in pieces, and where runs of pieces begin."""

    def __init__(self, text: str) -> None:
        self.pieces = PIECES(text)
        self.letters = [0]
        self.runs: dict[tuple[str, ...], list[int]] = {}
        for piece in self.pieces:
            self.letters.append(self.letters[-1] + len(piece))
        for i in range(len(self.pieces) - RUN + 1):
            self.runs.setdefault(tuple(self.pieces[i : i + RUN]), []).append(i)

    def longest(self, pieces: list[str], begin: int, near: int) -> tuple[int, int]:
        """First piece and number of pieces of the longest copy, of two the one that is nearer."""
        best = (0, 0, 0)
        for start in self.runs.get(tuple(pieces[begin : begin + RUN]), ())[:FEWEST]:
            n = RUN
            while pieces[begin + n : begin + n + 1] == self.pieces[start + n : start + n + 1] != []:
                n += 1
            best = max(best, (n, -abs(self.letters[start] - near), start))
        return best[2], best[0]


def beside(text: str, base: str) -> str:
    """A text with what it shares with another as copies: "~d,n~" is n letters of the base, which
    begin d behind the end of the last copy.

    >>> beside("@exp(x[0]);@log(#1);y[0]=#1;", "y[1]=#3;@exp(x[0]);@log(#1);")
    '~8,20~y[0]=#1;'
    """
    pieces, of = PIECES(text), _Base(base)
    found, at, end = [], 0, 0
    while at < len(pieces):
        start, n = of.longest(pieces, at, end)
        begin, stop = of.letters[start], of.letters[start + n]
        if stop - begin < LEAST:
            found.append(pieces[at])
            at += 1
        else:
            found.append(f"~{begin - end},{stop - begin}~")
            at, end = at + n, stop
    return "".join(found)
