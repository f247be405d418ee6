"""Ways to run a pipeline that a search may choose: schedule, chunks of a stage, micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from dmodel.records import RULES, SCHEDULES

Run = tuple[int, int, int]
"""Code of the schedule in `SCHEDULES`, interleave, micro-batch."""


@lru_cache(maxsize=4096)
def runs(
    schedules: tuple[str, ...],
    chunks: tuple[int, ...],
    batches: tuple[int, ...],
    share: int,
    pp: int,
) -> list[Run]:
    """Valid ways to run a pipeline; on one stage all schedules are 1F1B.

    Args:
      schedules: that are offered. chunks: numbers of model chunks in which layers lie on pp stages.
      batches: micro-batches. share: sequences of a data-parallel rank.
    """
    if pp == 1:
        return [(SCHEDULES.index("1f1b"), 1, b) for b in batches]
    return [
        *_of_fixed_chunks(schedules, chunks, batches, share, pp),
        *_interleaved(schedules, chunks, batches, share, pp),
    ]


def _of_fixed_chunks(
    schedules: tuple[str, ...],
    chunks: tuple[int, ...],
    batches: tuple[int, ...],
    share: int,
    pp: int,
) -> list[Run]:
    """Of schedules with as many chunks per stage as they ask for."""
    known = [(name, RULES[name]) for name in schedules if RULES[name].chunks in chunks]
    return [
        (SCHEDULES.index(name), rules.chunks, b)
        for (name, rules), b in product(known, batches)
        if rules.allows(pp, share // b)
    ]


def _interleaved(
    schedules: tuple[str, ...],
    chunks: tuple[int, ...],
    batches: tuple[int, ...],
    share: int,
    pp: int,
) -> list[Run]:
    """Of stages in several chunks, where these are offered."""
    if "interleaved" not in schedules:
        return []
    code = SCHEDULES.index("interleaved")
    several = chunks[1:] if "1f1b" in schedules else chunks
    return [(code, v, b) for v, b in _chunked(several, batches, share, pp)]


def _chunked(
    chunks: tuple[int, ...], batches: tuple[int, ...], share: int, pp: int
) -> Iterator[tuple[int, int]]:
    """(interleave, micro-batch): several chunks take micro-batches in groups of pp."""
    for v, b in product(chunks, batches):
        if v == 1 or share // b % pp == 0:
            yield v, b
