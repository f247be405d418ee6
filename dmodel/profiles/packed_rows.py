"""The rows that a profile was fitted to, in few bytes: their fingerprints, and their places.

A profile beside another says which of the other's rows are its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dmodel.profiles import integers
from dmodel.profiles.integers import Packed
from dmodel.profiles.writing import PLACE_DECIMALS

_HEXADECIMAL = re.compile("([0-9a-f]{2})+")

Seen = Mapping[str, Sequence[Sequence[float]]]
"""Places of rows by stack."""


def fingerprints(texts: Sequence[str]) -> np.ndarray:
    """Texts as bytes of one width: half as many where all are hexadecimal and as long, `[row,
    byte]`; as bytes of their own otherwise, `[row]`."""
    if texts and len(set(map(len, texts))) == 1 and all(map(_HEXADECIMAL.fullmatch, texts)):
        return np.array([list(bytes.fromhex(x)) for x in texts], np.uint8)
    return np.array([x.encode() for x in texts], np.bytes_)


def texts(found: np.ndarray) -> list[str]:
    """The fingerprints again.

    Raises:
      ValueError: no bytes.
    """
    if found.dtype == np.uint8 and found.ndim == 2:
        return [bytes(row).hex() for row in found]
    if found.dtype.kind != "S" or found.ndim != 1:
        raise ValueError("fingerprints of fitted rows must be bytes")
    return [x.decode() for x in found.tolist()]


def pack_places(seen: Seen) -> Packed:
    """Places, feature by feature, each row as what it differs by from the one before it."""
    rows = [row for rows in seen.values() for row in rows]
    steps = integers.steps(
        np.array(rows, float).reshape(len(rows), len(rows[0]) if rows else 0), PLACE_DECIMALS
    )
    return integers.pack(np.diff(steps.T, axis=1, prepend=0))


def unpack_places(packed: Packed, counts: Mapping[str, int]) -> dict[str, list[list[float]]]:
    """The places again.

    Raises:
      ValueError: there are not as many as the stacks have.
    """
    steps = integers.unpack(packed).cumsum(1).T
    if min(counts.values(), default=0) < 0 or sum(counts.values()) != len(steps):
        raise ValueError(f"expected the places of {sum(counts.values())} rows")
    rows = iter((steps / 10.0**PLACE_DECIMALS).tolist())
    return {stack: [next(rows) for _ in range(count)] for stack, count in counts.items()}


def which(part: Sequence[Any], whole: Sequence[Any]) -> np.ndarray | None:
    """Which of the whole are the part, in this order; None where some are not."""
    found, at = np.zeros(len(whole), bool), 0
    for i, x in enumerate(whole):
        if at < len(part) and part[at] == x:
            found[i] = True
            at += 1
    return found if at == len(part) else None


def which_places(part: Seen, whole: Seen) -> np.ndarray | None:
    """The same of places, stack after stack of the whole."""
    if not set(part) <= set(whole):
        return None
    found = [which(part.get(stack, ()), rows) for stack, rows in whole.items()]
    if any(x is None for x in found):
        return None
    return np.concatenate([np.zeros(0, bool), *(x for x in found if x is not None)])


def chosen(which: np.ndarray, whole: Sequence[Any]) -> list[Any]:
    """Those of the whole.

    Raises:
      ValueError: the choice is not of as many.
    """
    if which.dtype != bool or which.shape != (len(whole),):
        raise ValueError(f"expected a choice of {len(whole)} rows")
    return [x for x, mine in zip(whole, which.tolist(), strict=True) if mine]


def chosen_places(which: np.ndarray, whole: Seen, stacks: Sequence[str]) -> dict[str, list]:
    """Places of those of the whole, of the stacks named."""
    named = [(stack, row) for stack, rows in whole.items() for row in rows]
    found = chosen(which, named)
    return {stack: [row for s, row in found if s == stack] for stack in stacks}
