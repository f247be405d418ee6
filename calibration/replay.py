"""What a base knows of a stack, told again by the rows behind it: a fit of new rows of a known
stack replays the old ones, at less weight.

A profile says what its rows left open as a normal distribution. That has no walls: where a host is
fast enough, how fast it is has no slope, and the distribution is as wide above as below, though
above the rows would wait for it. The rows themselves have the wall. Shipped profiles are fitted to
the table that comes with the package, so their rows can be had by their fingerprints. They count as
a power prior (Ibrahim and Chen 2000): the likelihood of the old rows to the power `WEIGHT`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np

from calibration.evaluate import fitted_rows
from calibration.traces import Cases, Labels, to_cases
from calibration.traces.published import fingerprints, of_families
from dmodel.profiles import Profile, family, members
from dmodel.records import Model
from dmodel.records.model import stacked

WEIGHT = 0.2
"""What a row of the base counts beside a new one: releases differ by more than the rows of one of
them say. With half of the groups of the published table unseen and twelve rows of that half, the
geometric mean of six sources' errors (median / mean) and their worst draw's mean were 3.7 / 6.4 and
13 % without replay, 3.3 / 5.9 and 9 with it (ten draws, the same base). Other weights, with stacks
starting from a mean of 0: 3.7 / 5.9 and 9 at 0.2, 3.7 / 6.0 and 9 at 0.3; in six draws 1 left
Megatron-Bridge at 11.3 in the mean (9.6 at 0.2), 0.04 NeMo at 7.5 (7.0)."""


class Replay(NamedTuple):
    """What of a base is told again by its rows.

    Attributes:
      rows: to fit beside new ones; None = none. families: of stacks that may move as far as new
        ones, because what holds them stands in `rows` and among the cases. said: what becomes of
        known stacks, as the end of a sentence.
    """

    rows: Cases | None
    families: frozenset[str]
    said: str = ""


NOTHING = Replay(None, frozenset())


def replay(new: Cases, base: Profile, at_hand: Sequence[str] | np.ndarray = ()) -> Replay:
    """The rows of the base that are to be fitted beside new ones.

    A family of stacks is told again when the base knows it on every chip of its new rows: on a new
    chip the stack's other rows, which say much of what they share, would leave it too little to
    differ by (twelve rows of Megatron-Bridge on B200, its rows on other chips known: 4.4 / 8.2 % of
    the rest as a normal distribution, 8.1 / 13.6 beside its rows). None is when the base has seen
    rows that do not come with the package, which could not be told.

    Offsets keep the base's as their mean. From a mean of 0 variants without a new row lose what
    told them apart: torchtitan's, by rows of its 8-bit one, went from 4.4 % in the mean to 9.0, and
    come to 3.4 so; of known stacks vTrain on one node was 6.3 / 11.0 for 4.2 / 10.9.

    Args:
      new: the rows to fit. at_hand: fingerprints of all rows of the caller, those held out too:
        they are not told again.
    """
    known, elsewhere = _known(new, base)
    if not known:
        return NOTHING
    if not base.fitted_rows or not set(base.fitted_rows) <= fingerprints():
        names = ", ".join(sorted(known))
        return NOTHING._replace(
            said=(
                f", which knows {names} as a normal distribution (not all of its rows are in the "
                "package)"
            )
        )
    families = frozenset(known - elsewhere)
    rows = _told_again(families, base, [*at_hand, *new.labels.fingerprint])
    said = "" if rows is None else f", beside {len(rows)} of its rows"
    if others := ", ".join(sorted(known & elsewhere)):
        said += f", which knows {others} on other chips alone, as a normal distribution"
    return Replay(rows, families, said)


def _known(new: Cases, base: Profile) -> tuple[set[str], set[str]]:
    """Families of stacks of new rows that the base knows, and those of a row on a chip where it
    does not."""
    known, elsewhere = set(), set()
    for accelerator, stack in zip(new.labels.accelerator, new.labels.stack, strict=True):
        name = family(stack)
        if name in base.stack_covariances:
            known.add(name)
        if members(accelerator, stack)["pair"] not in base.offsets["pair"]:
            elsewhere.add(name)
    return known, elsewhere


def _told_again(families: frozenset[str], base: Profile, at_hand: Sequence[str]) -> Cases | None:
    """Rows of some families that the base was fitted on and that are not at hand; None without
    any."""
    rows = _rows_of(families)
    if rows is None:
        return None
    keep = fitted_rows(rows, base.fitted_rows) & ~fitted_rows(rows, at_hand)
    return rows.take(keep) if keep.any() else None


def together(new: Cases, old: Cases | None) -> Cases:
    """New rows, then old ones, as `to_cases` makes both: of one number of network levels, one
    schedule and one placement. Models have the kinds of layers of both."""
    if old is None:
        return new
    records = ((c.system, c.plan) for c in (new, old))
    system, plan = jax.tree.map(lambda *leaves: np.concatenate(leaves, -1), *records)
    labels = Labels(
        *(np.concatenate(columns) for columns in zip(new.labels, old.labels, strict=True))
    )
    return Cases(system=system, model=_models(new.model, old.model), plan=plan, labels=labels)


def _models(new: Model, old: Model) -> Model:
    """Models of both, `[row]`."""
    order = new.order if new.order == old.order else ()
    new, old = (model.replace(order=order) for model in (new, old))
    if jax.tree.structure(new) == jax.tree.structure(old):
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, -1), new, old)
    return stacked([*_one_by_one(new), *_one_by_one(old)])


def _one_by_one(model: Model) -> Iterator[Model]:
    """The rows of a batch of models."""
    for i in range(np.shape(model.d_model)[0]):
        yield jax.tree.map(lambda leaf, i=i: leaf[i], model)


@lru_cache(maxsize=8)
def _rows_of(families: frozenset[str]) -> Cases | None:
    """All usable rows of some families of stacks in the published table."""
    table = of_families(families)
    return to_cases(table) if table.rows else None
