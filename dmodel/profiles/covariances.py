"""Covariances of a profile in few bytes: each as what it differs by from one that is known.

Covariances of chips and stacks are numbers of three digits. Each but one is stored as the distance
of its numbers from those of the one most like it, in steps of the last digit. Those of stacks have
five digits and lie near the mean of their own chips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dmodel.profiles import integers
from dmodel.profiles.groupings import family
from dmodel.profiles.integers import Packed
from dmodel.profiles.writing import PAIR_DIGITS, STACK_DIGITS

Covariances = Mapping[str, Sequence[float]]
"""Lower triangles by name."""


def _likeness(places: np.ndarray) -> tuple[list[int], list[int]]:
    """An order, and for each in it the earlier one that it is nearest to, or −1 (a minimum spanning
    tree by bits)."""
    cost = np.log2(np.abs(places) + 1.0).sum(1)
    parent, left = np.full(len(places), -1), set(range(len(places)))
    order: list[int] = []
    while left:
        nearest = min(sorted(left), key=lambda i: cost[i])
        left.remove(nearest)
        order.append(nearest)
        apart = np.log2(np.abs(places - places[nearest]) + 1.0).sum(1)
        closer = apart < cost
        closer[order] = False
        cost, parent = np.where(closer, apart, cost), np.where(closer, nearest, parent)
    at = {i: n for n, i in enumerate(order)}
    return order, [at.get(int(parent[i]), -1) for i in order]


def _exact(values: np.ndarray, digits: int) -> np.ndarray:
    places = integers.ranks(values, digits)
    if not np.array_equal(integers.ranked(places, digits), values):
        raise ValueError(f"a covariance has more than {digits} digits, or is too small")
    return places


def _least(places: np.ndarray) -> int:
    """What all places but 0 are beyond."""
    beyond = np.abs(places[places != 0])
    return int(beyond.min()) - 1 if beyond.size else 0


def _table(covariances: Covariances, size: int) -> np.ndarray:
    return np.array(list(covariances.values()), float).reshape(len(covariances), size)


def _means(pairs: np.ndarray, stack_of: Sequence[int], count: int) -> np.ndarray:
    """Mean over the pairs of each stack; 0 without any. Added up one by one: every machine has the
    same sums."""
    found = np.zeros((count, pairs.shape[1]))
    for pair, stack in zip(pairs, stack_of, strict=True):
        if stack >= 0:
            found[stack] = found[stack] + pair
    own = np.asarray(stack_of, int)
    return found / np.maximum(np.bincount(own[own >= 0], minlength=count), 1)[:, None]


def pack(
    stacks: Covariances, pairs: Covariances, size: int
) -> tuple[dict[str, Any], dict[str, Packed]]:
    """Words and tables of the covariances of stacks, and of chips and stacks, of `size` numbers
    each.

    Raises:
      ValueError: a number has more digits than those of a profile on disk.
    """
    tables = _table(pairs, size), _table(stacks, size)
    of_pairs, of_stacks = (
        _exact(x, n) for x, n in zip(tables, (PAIR_DIGITS, STACK_DIGITS), strict=True)
    )
    least = _least(of_pairs)
    of_pairs = np.sign(of_pairs) * (np.abs(of_pairs) - least)
    order, parents = _likeness(of_pairs)
    known = of_pairs[order]
    start = np.where(np.array(parents)[:, None] < 0, 0, known[parents]) if parents else known
    pair_names, stack_names = [list(pairs)[i] for i in order], list(stacks)
    own = [family(name.partition(" ")[2]) for name in pair_names]
    stack_of = [stack_names.index(s) if s in stack_names else -1 for s in own]
    means = integers.ranks(_means(tables[0][order], stack_of, len(stacks)), STACK_DIGITS)
    words = {
        "pairs": pair_names,
        "parents": parents,
        "least": least,
        "digits": [PAIR_DIGITS, STACK_DIGITS],
        "stacks": stack_names,
        "stack_of": stack_of,
    }
    return words, {
        "pairs": integers.pack(known - start),
        "stacks": integers.pack(of_stacks - means),
    }


def unpack(
    words: Mapping[str, Any], tables: Mapping[str, Packed]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The covariances of stacks, and of chips and stacks, again.

    Raises:
      ValueError, KeyError, TypeError, IndexError: damaged.
    """
    places = integers.unpack(tables["pairs"])
    for i, parent in enumerate(words["parents"]):
        if parent >= i:
            raise ValueError("a covariance is described by a later one")
        if parent >= 0:
            places[i] += places[parent]
    places = np.sign(places) * (np.abs(places) + int(words["least"]))
    of_pairs, of_stacks = _digits(words)
    pairs = integers.ranked(places, of_pairs)
    apart = integers.unpack(tables["stacks"])
    means = _means(pairs, words["stack_of"], len(apart))
    stacks = integers.ranked(integers.ranks(means, of_stacks) + apart, of_stacks)
    return _named(words["stacks"], stacks), _named(words["pairs"], pairs)


def _digits(words: Mapping[str, Any]) -> tuple[int, int]:
    """Digits of the covariances of chips and stacks, and of stacks, in a file; the first files do
    not say them."""
    of_pairs, of_stacks = words.get("digits", (4, 6))
    if not {of_pairs, of_stacks} <= set(range(1, 10)):
        raise ValueError(f"digits {words['digits']}: expected two whole numbers from 1 to 9")
    return of_pairs, of_stacks


def _named(names: Sequence[str], table: np.ndarray) -> dict[str, list[float]]:
    return dict(sorted(zip(names, table.tolist(), strict=True)))
