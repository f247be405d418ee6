"""The same measurement, written twice or another way: rows that are alike in all that the model
reads, and in their time.

A fingerprint (`calibration.traces.fingerprint`) goes by the cells as they are written, and profiles
hold those of their rows. It cannot go by what the cells mean: the published table itself writes the
same thing in several ways (a step time with the throughput beside it and without; `cp` 1 and
blank), so every rule would give some of its rows another name. Rows are compared as records
instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import jax
import numpy as np

from calibration.traces import Cases, Problem, published, to_cases
from calibration.traces.reader import derived_time
from dmodel.profiles import Profile
from dmodel.records import NONE, OF_MODEL, Model
from dmodel.uncertainty import features

PLACES = 3
"""Decimals of the places that profiles keep of their rows
(`calibration.uncertainty.scatter.places`)."""

ROUNDED = 1e-4
"""Relative distance of two times that are one, once as a time and once as a throughput of five
digits. Repeated runs come as near now and then, which calls a row fitted that was not: the cautious
way."""

EQUAL = 1e-6
"""Relative distance of two times of one table that are one: published runs of one configuration, on
two days or two machines, come as near as 2e-5 and are two measurements."""


def records(cases: Cases) -> list[bytes]:
    """What the model reads of each row, its accelerator and stack, as a key; numbers to the seven
    digits of single precision."""
    n, labels = len(cases), cases.labels
    sizes = [getattr(cases.model, name) for name in OF_MODEL]
    table = _numbers((cases.system, sizes, cases.plan), n)
    names = (
        f"{a}\n{s}\n".encode()
        for a, s in zip(labels.accelerator.tolist(), labels.stack.tolist(), strict=True)
    )
    return [b"".join(each) for each in zip(names, table, _layers(cases.model, n), strict=True)]


def _numbers(records: object, n: int) -> list[bytes]:
    """Leaves of records of each row."""
    leaves = (np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(records))
    rows = [np.broadcast_to(leaf, (*leaf.shape[:-1], n)).reshape(-1, n) for leaf in leaves]
    return [row.tobytes() for row in np.concatenate(rows).T.astype(np.float32)]


def _layers(model: Model, n: int) -> list[bytes]:
    """Kinds of layers of each row, whatever others of its table have."""
    found: list[list[bytes]] = [[] for _ in range(n)]
    for (i, j), *counts in zip(model.pairs, model.shares, model.further, strict=True):
        mixer, feed = (
            None if k == NONE else of[k] for k, of in ((i, model.mixers), (j, model.feeds))
        )
        name = "\n".join(getattr(part, "KIND", "") for part in (mixer, feed)).encode()
        numbers = _numbers((counts, mixer, feed), n)
        there = np.broadcast_to(np.sum(np.abs(np.broadcast_arrays(*counts)), 0) > 0.0, n)
        for row in np.flatnonzero(there).tolist():
            found[row].append(name + numbers[row])
    return [b"\n".join(sorted(kinds)) for kinds in found]


def repeated(cases: Cases) -> list[Problem]:
    """Rows that stand in the table before, by fingerprint or by record and time, each with the
    place of the first; rows without a time are none."""
    labels, first, before = cases.labels, {}, {}
    found = []
    prints = zip(labels.fingerprint.tolist(), records(cases), strict=True)
    for i, (print_, record) in enumerate(prints):
        if not np.isfinite(labels.step_time_s[i]):
            continue
        alike = before.setdefault(record, [])
        other = first.setdefault(print_, i)
        if other == i:
            other = next((j for j in alike if _equal(labels.step_time_s[[i, j]])), None)
        if other is None:
            alike.append(i)
            continue
        reason = (
            f"the same configuration and time as {labels.file[other]}:{labels.line[other]}; both "
            "count in full"
        )
        found.append(Problem(str(labels.file[i]), int(labels.line[i]), reason))
    return found


def _equal(times: np.ndarray) -> bool:
    """Whether two times are the same but for rounding."""
    return bool(abs(times[0] / times[1] - 1.0) < EQUAL)


def written_otherwise(cases: Cases, fingerprints: Sequence[str]) -> np.ndarray:
    """True for rows that are none of the published table as written, but mean one of its rows that
    a profile was fitted on, `[rows]`.

    Only the rows of the shipped table can be known so: of others a profile has the fingerprint and
    the place (`maybe_fitted`).
    """
    names, places, times = _published()
    known = set(fingerprints)
    found = np.zeros(len(cases), bool)
    if not known.intersection(names):
        return found
    as_written = set(names)
    labels = cases.labels
    for i, record in enumerate(records(cases)):
        if labels.fingerprint[i] not in as_written:
            told = [times[j] for j in places.get(record, ()) if names[j] in known]
            ratios = labels.step_time_s[i] / np.array([*chain.from_iterable(told)], float)
            found[i] = bool((np.abs(ratios - 1.0) < ROUNDED).any())
    return found


def maybe_fitted(cases: Cases, profile: Profile) -> np.ndarray:
    """True where a profile that holds rows from outside the package has one of the same stack,
    sizes, degrees and chip, `[rows]`.

    Whether that was this measurement, written another way, such a profile cannot tell; of one of
    the package's rows alone `written_otherwise` does, so none is.
    """
    found = np.zeros(len(cases), bool)
    if set(profile.fitted_rows) <= set(_published()[0]):
        return found
    seen = {
        stack: set(map(tuple, np.round(rows, PLACES).tolist()))
        for stack, rows in profile.seen.items()
    }
    place = map(tuple, features(cases.system, cases.model, cases.plan).round(PLACES).tolist())
    return np.array(
        [
            p in seen.get(stack, ())
            for p, stack in zip(place, cases.labels.stack.tolist(), strict=True)
        ],
        bool,
    )


@lru_cache(maxsize=1)
def published_cases() -> Cases:
    """Cases of the shipped table; made once."""
    return to_cases(published())


@lru_cache(maxsize=1)
def _published() -> tuple[tuple[str, ...], dict[bytes, list[int]], list[tuple[float, ...]]]:
    """Of the usable published rows: fingerprints, which have a record, and their times as given and
    by the throughput [s]."""
    table, cases = published(), published_cases()
    places: dict[bytes, list[int]] = {}
    for i, record in enumerate(records(cases)):
        places.setdefault(record, []).append(i)
    seconds = zip(cases.labels.step_time_s.tolist(), map(derived_time, table.rows), strict=True)
    return (
        tuple(cases.labels.fingerprint.tolist()),
        places,
        [tuple(t for t in pair if t) for pair in seconds],
    )
