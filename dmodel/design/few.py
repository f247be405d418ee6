"""Rows that numpy computes, as long as they are few: that needs no program."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from dmodel.recorded import Recorded

Tree = Any

ROWS = (16, 128, 1024, 4096)
"""Rows that numpy computes at once [count], for few and for many: a record is made ready for each
number of rows, and what is between its steps has to fit a cache."""

FEW = 1 << 19
"""Rows after which a program is compiled, or loaded [count]: it takes as long as numpy takes for
them."""

_DONE: dict[Any, int] = {}
"""Rows that numpy did, by function and structure; `FEW` where a program is there."""


def takes_numpy(function: Any, records: Tree, count: int) -> bool:
    """Whether rows are so few, with those before them, that numpy is done before a program is
    there.

    Args:
      function: what names it. records: what it reads, of which only the structure counts.
      count: rows that are asked for now, which are counted.
    """
    kind = function, jax.tree.structure(records)
    done = _DONE.get(kind, 0) + count
    _DONE[kind] = min(done, FEW)
    return done < FEW and jax.default_backend() == "cpu"


def by_numpy(function: Recorded, each: Tree, fixed: Tree, count: int, **static: Any) -> Tree:
    """The answer of a function of `(fixed, each)` for rows, `[..., count]`.

    Args:
      function: of any number of rows of its last argument.
      each: leaves `[..., count]`, or scalars that all rows share. fixed: what all rows share.
    """
    size = next((n for n in ROWS if n >= count), ROWS[-1])
    whole = -(-count // size) * size

    def filled(x: Any) -> np.ndarray:
        x = np.broadcast_to(x, (*np.shape(x)[:-1], count) if np.ndim(x) else (count,))
        return np.concatenate([x, np.repeat(x[..., -1:], whole - count, -1)], -1)

    every = jax.tree.map(filled, each)

    def part(start: int) -> Tree:
        return jax.tree.map(lambda x: x[..., start : start + size], every)

    of = function.varied(fixed, like=part(0), **static)
    parts = [of(part(start)) for start in range(0, whole, size)]
    return jax.tree.map(lambda *xs: np.concatenate(xs, -1)[..., :count], *parts)
