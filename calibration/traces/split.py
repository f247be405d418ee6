"""Split cases into fitted and held-out ones, by whole groups, the same way every time."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict

import numpy as np

from calibration.traces.rows import Cases
from dmodel.errors import InputError


def split(cases: Cases, share: float = 0.2, seed: int = 0) -> np.ndarray:
    """Hold out whole groups: about `share` of the rows of every source and very nearly of all rows.

    Groups are ordered by a hash of their name and the seed, source by source, and taken while that
    brings the rows held out nearer to the share; what one source is short of passes to the next. A
    group that several sources share goes wherever its most rows are.

    Args:
      share: of the rows [0..1].
      seed: another seed, another split.
    Returns:
      `[rows]`, True where held out.
    Raises:
      InputError: the share is not in 0..1.
    """
    if not 0.0 <= share <= 1.0:
        raise InputError(f"share of rows to hold out: expected a number from 0 to 1, got {share}")
    groups, sources = cases.labels.group.tolist(), cases.labels.source.tolist()
    sizes = Counter(groups)
    held: set[str] = set()
    wanted = 0.0
    for _, members in sorted(_strata(groups, sources).items()):
        wanted += share * sum(sizes[name] for name in members)
        for name in sorted(members, key=lambda each: _hash(each, seed)):
            if 0.5 * sizes[name] < wanted:
                held.add(name)
                wanted -= sizes[name]
    return np.array([name in held for name in groups], dtype=bool)


def _strata(groups: list[str], sources: list[str]) -> dict[str, set[str]]:
    """Groups by the source that has the most of their rows."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for name, source in zip(groups, sources, strict=True):
        rows[name][source] += 1
    strata: dict[str, set[str]] = defaultdict(set)
    for name, counts in rows.items():
        strata[max(sorted(counts), key=lambda source: counts[source])].add(name)
    return strata


def _hash(name: str, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{name}".encode()).hexdigest()
