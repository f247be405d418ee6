"""The study's whole space of layouts at a given number of GPUs, enumerated with arrays, and how a
layout may lie on the network's levels.

A layout splits N GPUs into expert, tensor (d_model × d_ff), data and pipeline parallelism, `N =
N_EP · N_TP · N_DP · N_PP`, and chooses a schedule and its micro-batches. All degrees are whole
numbers that divide what they cut. Enumeration is kept for the most recent problems.

Erdil & Schneider-Joseph 2024 (arXiv 2411.01137), search of the authors' code of 2024-10-23.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dmodel.errors import InputError

MICRO_BATCH_CHOICES = 4
"""How many micro-batch counts the study tries under 1F1B; under zero-bubble it tries one."""

LARGEST = 2**62
"""Degrees and their products are counted in 64 bits."""


class Shape(NamedTuple):
    """What limits the degrees, whole numbers: width and inner width, layers, experts, tokens per
    step."""

    d_model: int
    d_ff: int
    layers: int
    experts: int
    batch_tokens: int


class Candidates(NamedTuple):
    """Layouts before they are placed on levels, float64 `[n]`; `ep` is the same for all.

    `interleave` is v, the chunks per stage; `zero_bubble` is 0 or 1; `micro_batches` is per
    pipeline, m.
    """

    dp: np.ndarray
    tp_model: np.ndarray
    tp_ff: np.ndarray
    pp: np.ndarray
    ep: np.ndarray
    micro_batches: np.ndarray
    interleave: np.ndarray
    zero_bubble: np.ndarray

    def __len__(self) -> int:
        return len(self.dp)


@lru_cache(maxsize=512)
def candidates(shape: Shape, n_gpus: int) -> Candidates:
    """Every layout of the study for N GPUs, in order of tensor, data and pipeline degree.

    * `N_EP = gcd(N, S)`, and the rest is `N_TP N_DP N_PP` with N_TP | d_model d_ff, N_DP | T, N_PP
      | L.
    * `N_f` divides N_TP and lies in [isqrt(N_TP), 4 isqrt(N_TP)]; `N_m = N_TP / N_f`; N_m | d_model
      and N_f | d_ff.
    * 1F1B: the four smallest m ≥ N_PP that divide T // (S N_DP), v = L / N_PP chunks per stage.
    * zero-bubble: the smallest such m ≥ 2 N_PP, v = 1.

    Limits: none, an empty record, when N has a prime factor that neither the matrices nor batch,
    layers or experts have, or when the batch has fewer micro-batches than every pipeline needs.
    """
    ep = math.gcd(n_gpus, shape.experts)
    rest = n_gpus // ep
    matrix = shape.d_model * shape.d_ff
    degrees = _divisors_within(rest, (matrix, shape.batch_tokens, shape.layers))
    if not len(degrees):
        return Candidates(*(np.empty(0) for _ in Candidates._fields))
    tp, tp_ff = _tensor_degrees(degrees, shape, matrix)
    dp = degrees[shape.batch_tokens % degrees == 0]
    # every pair of tensor and data degree whose remainder is a pipeline that divides the layers
    left = rest // tp[:, None]
    fits = left % dp == 0
    pp = np.where(fits, left // dp, 1)
    at_tp, at_dp = np.nonzero(fits & (shape.layers % pp == 0))
    pp = pp[at_tp, at_dp]
    stages = divisors(shape.layers)
    tokens = shape.batch_tokens // shape.experts
    tables = [_micro_batches(tokens // int(d), shape.layers) for d in dp]
    choices = np.array(tables).reshape(-1, len(stages), MICRO_BATCH_CHOICES + 1)[
        at_dp, np.searchsorted(stages, pp)
    ]
    row, choice = np.nonzero(choices)
    zero_bubble, pp = choice == MICRO_BATCH_CHOICES, pp[row]
    chosen_tp, chosen_ff = tp[at_tp[row]], tp_ff[at_tp[row]]
    columns = Candidates(
        dp=dp[at_dp[row]],
        tp_model=chosen_tp // chosen_ff,
        tp_ff=chosen_ff,
        pp=pp,
        ep=np.full(len(row), ep),
        micro_batches=choices[row, choice],
        interleave=np.where(zero_bubble | (pp == 1), 1, shape.layers // pp),
        zero_bubble=zero_bubble,
    )
    return Candidates(*(np.asarray(c, float) for c in columns))


def _tensor_degrees(
    degrees: np.ndarray, shape: Shape, matrix: int
) -> tuple[np.ndarray, np.ndarray]:
    """N_TP and N_f of every two-dimensional cut, in ascending order."""
    tp = degrees[matrix % degrees == 0]
    root = np.array([math.isqrt(t) for t in tp.tolist()], np.int64)[:, None]
    whole = tp[:, None]
    fits = (whole % degrees == 0) & (degrees >= root) & (degrees <= 4 * root)
    fits &= (shape.d_ff % degrees == 0) & (shape.d_model % np.maximum(whole // degrees, 1) == 0)
    row, column = np.nonzero(fits)
    return tp[row], degrees[column]


@lru_cache(maxsize=4096)
def _micro_batches(tokens: int, n_layers: int) -> np.ndarray:
    """Micro-batch counts for each pipeline degree that divides the layers, `[degrees, 5]`: four for
    1F1B, one for zero-bubble; 0: none."""
    stages, none = divisors(n_layers), np.zeros(MICRO_BATCH_CHOICES, np.int64)
    known = divisors(tokens) if tokens else none[:0]
    counts = np.append(known, none)
    one_f_one_b = counts[np.searchsorted(known, stages)[:, None] + np.arange(MICRO_BATCH_CHOICES)]
    return np.concatenate(
        [one_f_one_b, counts[np.searchsorted(known, 2 * stages)][:, None]], axis=1
    )


@lru_cache(maxsize=8192)
def divisors(n: int) -> np.ndarray:
    """Divisors of n in ascending order."""
    found = np.ones(1, np.int64)
    for prime, power in _factors(n):
        found = (found[:, None] * np.array([prime**i for i in range(power + 1)], np.int64)).ravel()
    return np.sort(found)


@lru_cache(maxsize=8192)
def _factors(n: int) -> tuple[tuple[int, int], ...]:
    """Primes of n and their powers, by trial division."""
    found, prime = [], 2
    while prime * prime <= n:
        power = 0
        while n % prime == 0:
            n, power = n // prime, power + 1
        if power:
            found.append((prime, power))
        prime += 1 if prime == 2 else 2
    return (*found, (n, 1)) if n > 1 else tuple(found)


def _divisors_within(n: int, parts: tuple[int, ...]) -> np.ndarray:
    """Divisors of n, or none when n cannot be a product of divisors of the parts: found without
    factoring n, which may be large."""
    primes = sorted({prime for part in parts for prime, _ in _factors(part)})
    left, found = n, np.ones(1, np.int64)
    if n >= LARGEST:
        return found[:0]
    for prime in primes:
        powers = [1]
        while left % prime == 0:
            left //= prime
            powers.append(powers[-1] * prime)
        found = (found[:, None] * np.array(powers, np.int64)).ravel()
    return np.sort(found) if left == 1 else found[:0]


def level_sizes(bounded: tuple[int, ...], n_gpus: int) -> tuple[int, ...]:
    """GPUs that each level of the network joins, innermost first; the outermost takes what is left.

    Args:
      bounded: sizes of all levels but the outermost, which has no bound.
      n_gpus: N; a level that is larger than what is left shrinks to it.

    Raises:
      InputError: N is beyond a level that it does not fill evenly, which the study's code refuses.
    """
    sizes, left = [], n_gpus
    for size in bounded:
        if left >= size and left % size:
            step = math.prod(sizes) * size
            raise InputError(
                f"{n_gpus} GPUs: the study covers only networks whose levels are filled evenly; "
                f"expected a multiple of {step} GPUs, "
                f"or fewer than that; try {n_gpus - n_gpus % step}"
            )
        sizes.append(min(size, left))
        left //= sizes[-1]
    return (*sizes, left)


@lru_cache(maxsize=256)
def splits(size: int, parts: int) -> np.ndarray:
    """All ways to write a level's size as an ordered product, `[parts, ways]`: how much of each
    degree lies on it."""
    if parts == 1:
        return np.array([[float(size)]])
    ways = []
    for first in divisors(size).tolist():
        rest = splits(size // first, parts - 1)
        ways.append(np.vstack([np.full((1, rest.shape[1]), float(first)), rest]))
    return np.concatenate(ways, axis=1)
