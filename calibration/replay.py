"""What a base knows of a stack, told again by the rows behind it: a fit of new rows of a known stack replays the old ones, at less weight.

A profile says what its rows left open as a normal distribution. That has no walls: where a host is fast enough, how fast it is has no
slope, and the distribution is as wide above as below, though above the rows would wait for it. The rows themselves have the wall. Shipped
profiles are fitted to the table that comes with the package, so their rows can be had by their fingerprints. They count as a power prior
(Ibrahim and Chen 2000): the likelihood of the old rows to the power `WEIGHT`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np

from calibration.traces import Cases, Labels, published, to_cases
from calibration.traces.table import fingerprint
from dmodel.profiles import Profile, family, members

WEIGHT = 0.2
"""What a row of the base counts beside a new one: releases differ by more than the rows of one of them say. With half of the groups of the
published table unseen and twelve rows of that half, the geometric mean of six sources' errors (median / mean) and their worst draw's mean
were 3.8 / 6.4 and 13 % without replay, 3.7 / 5.9 and 9 with old rows at 0.2, 3.7 / 6.0 and 9 at 0.3 (ten draws each). In six draws before,
1 left Megatron-Bridge at 11.3 in the mean (9.6 at 0.2), and 0.04 NeMo at 7.5 (7.0)."""


class Replay(NamedTuple):
    """Rows of the base to fit beside new ones, and the families of stacks that they stand for: those start as new ones, for all that is
    known of them stands in the rows."""

    rows: Cases | None
    families: frozenset[str]


NOTHING = Replay(None, frozenset())


def replay(cases: Cases, base: Profile) -> Replay:
    """The rows of the base that are to be fitted beside some cases.

    A family of stacks is told again when the base knows it on every chip of its new rows: on a new chip the stack's other rows, which say
    much of what they share, would leave it too little to differ by (twelve rows of Megatron-Bridge on B200, its rows on other chips known:
    4.4 / 8.2 % of the rest as a normal distribution, 8.1 / 13.6 beside its rows). Rows that are among the cases, fitted or held out, are
    not told again, and nothing is when the base has seen rows that do not come with the package: those could not be.

    Args:
      cases: all rows at hand, those held out too.
    """
    if not base.fitted_rows or not set(base.fitted_rows) <= set(_fingerprints()):
        return NOTHING
    pairs = {(family(s), members(a, s)["pair"]) for a, s in zip(cases.labels.accelerator, cases.labels.stack, strict=True)}
    strange = {name for name, pair in pairs if name not in base.stack_covariances or pair not in base.offsets["pair"]}
    families = frozenset(name for name, _ in pairs) - strange
    rows = _rows_of(families)
    if rows is not None:
        prints = rows.labels.fingerprint
        keep = np.isin(prints, base.fitted_rows) & ~np.isin(prints, cases.labels.fingerprint)
        rows = rows.take(keep) if keep.any() else None
    return Replay(rows, families)


def together(new: Cases, old: Cases | None) -> Cases:
    """New rows, then old ones."""
    if old is None:
        return new
    records = ((c.system, c.model, c.plan) for c in (new, old))
    system, model, plan = jax.tree.map(lambda *leaves: np.concatenate(leaves, -1), *records)
    labels = Labels(*(np.concatenate(columns) for columns in zip(new.labels, old.labels, strict=True)))
    return Cases(system=system, model=model, plan=plan, labels=labels)


@lru_cache(maxsize=1)
def _fingerprints() -> tuple[str, ...]:
    """Of every usable row of the published table, in its order."""
    return tuple(fingerprint(row) for row in published().rows)


@lru_cache(maxsize=8)
def _rows_of(families: frozenset[str]) -> Cases | None:
    """All usable rows of some families of stacks in the published table."""
    table = published().select(lambda row: family(row.stack) in families)
    return to_cases(table) if table.rows else None
