"""What is discrete about an unrounded layout: which degrees exceed one at which level, the
schedule, and where weights stay resident.

Given a pattern, the time of a run is a smooth function of the degrees; the frontier is the best
over patterns. A degree that is present at a level is at least 2 there, so that its latency counts
in full; one that is absent is 1 and costs none.
"""

from __future__ import annotations

from math import isfinite, log
from typing import NamedTuple

import numpy as np

from dmodel.theory.layout import KINDS

DP, TP_MODEL, TP_FF, PP, EP = range(len(KINDS))
CUT_RATIO = 16.0
"""The study cuts d_ff at least as often as d_model, and at most 16 times as often."""

TIERS = 3
"""Weights fit into no memory below HBM, into the larger of L2 and the multiprocessors' registers,
or into both."""


class Pattern(NamedTuple):
    """Discrete choices of a layout.

    Attributes:
      present: for each level, innermost first, the kinds (indices of `KINDS`) whose degree exceeds
        one there.
      zero_bubble: the schedule; otherwise interleaved 1F1B. resident: number of memories below HBM
        that weights fit into, 0 to 2.
    """

    present: tuple[frozenset[int], ...]
    zero_bubble: bool
    resident: int = 0

    def describe(self) -> str:
        """One line for people: `tp_model+tp_ff | dp+tp_model+tp_ff+pp, zero bubble, weights in no
        cache`."""
        levels = " | ".join(
            "+".join(KINDS[k] for k in sorted(level)) or "none" for level in self.present
        )
        where = ("no cache", "one cache", "both caches")[self.resident]
        return f"{levels}, {'zero bubble' if self.zero_bubble else '1F1B'}, weights in {where}"


class Arrays(NamedTuple):
    """A pattern as numbers, so that many patterns run as one batch.

    Attributes:
      present: `[kind, K]`, 1 where a degree is more than one. residual: `[kind, K]`, 1 for the
      degree that fills a bounded level up. expert: `[K]`, 1 at the level where the experts' degree
      takes what is left of it. zero_bubble, resident: scalars.
    """

    present: np.ndarray
    residual: np.ndarray
    expert: np.ndarray
    zero_bubble: np.ndarray
    resident: np.ndarray


def _expert_level(pattern: Pattern) -> int | None:
    """The highest level that has experts, None without."""
    return max((i for i, level in enumerate(pattern.present) if EP in level), default=None)


def possible(pattern: Pattern, sizes: tuple[float, ...], sparse: bool) -> bool:
    """Whether some layout has the pattern: bounded levels are filled by degrees of 2 or more, with
    room to choose; experts have a level."""
    expert = _expert_level(pattern)
    if sparse != (expert is not None):
        return False
    for i, (level, size) in enumerate(zip(pattern.present, sizes, strict=True)):
        if isfinite(size) and not _fills(level, size, i == expert):
            return False
    return True


def _fills(level: frozenset[int], size: float, has_experts: bool) -> bool:
    """Whether kinds of parallelism can fill a bounded level."""
    if not level or (has_experts and level == {EP}):
        return False
    return len(level) == 1 or len(level) * log(2.0) <= log(size) - 1e-9


def arrays(pattern: Pattern, sizes: tuple[float, ...]) -> Arrays:
    """The pattern as numbers; the level's residual is its last kind that is not of experts, or
    experts where they are alone."""
    shape = (len(KINDS), len(sizes))
    present, residual, expert = np.zeros(shape), np.zeros(shape), np.zeros(len(sizes))
    for i, (level, size) in enumerate(zip(pattern.present, sizes, strict=True)):
        present[sorted(level), i] = 1.0
        if isfinite(size):
            residual[max(level - {EP}, default=EP), i] = 1.0
    top = _expert_level(pattern)
    if top is not None:
        expert[top] = 1.0
    return Arrays(
        present,
        residual,
        expert,
        np.array(float(pattern.zero_bubble)),
        np.array(float(pattern.resident)),
    )


def typical(n_levels: int, sparse: bool) -> list[Pattern]:
    """Patterns to begin with: tensor parallelism inside, everything outside; each schedule and tier
    of residence."""
    experts = frozenset({EP}) if sparse else frozenset()
    tensor, all_kinds = frozenset({TP_MODEL, TP_FF}), frozenset({DP, TP_MODEL, TP_FF, PP})
    present = (*([tensor] * (n_levels - 1)), all_kinds | experts)
    alone = (*([frozenset({TP_FF})] * (n_levels - 1)), frozenset({DP, TP_MODEL}) | experts)
    return [
        Pattern(p, zb, tier)
        for p in (present, alone)
        for zb in (True, False)
        for tier in range(TIERS)
    ]


def neighbours(pattern: Pattern) -> list[Pattern]:
    """Patterns one choice away: a kind more, less or exchanged at one level; the other schedule;
    residence one tier up or down."""
    found = [pattern._replace(zero_bubble=not pattern.zero_bubble)]
    found += [
        pattern._replace(resident=t)
        for t in (pattern.resident - 1, pattern.resident + 1)
        if 0 <= t < TIERS
    ]
    for i, level in enumerate(pattern.present):
        others = set(range(len(KINDS))) - level
        changed = [level ^ {k} for k in range(len(KINDS))]
        changed += [(level - {out}) | {new} for out in level for new in others]
        found += [
            pattern._replace(
                present=(*pattern.present[:i], frozenset(c), *pattern.present[i + 1 :])
            )
            for c in changed
        ]
    return found
