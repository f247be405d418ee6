"""All whole-numbered plans of a case, evaluated once; the best ones with one input changed then
need a look at few of them.

As a rate, or a share of one, grows to f times, a step time falls at most to 1/f, and as it falls a
step time does not; the same of times, the other way round. So only plans whose step now takes no
longer than that of the best then over `least(name, f)` can be the best then, and these are looked
at. This holds as each part of a step is as long as its rates and times say, and a pass grows with
its work and messages (`dmodel.hiding`); `MARGIN` is for smooth maxima and what nobody thought of.
Memory of a device rules plans in and out and changes no time. For any other input, and in spaces
too large to hold, the search starts anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dmodel.design import Choices, Limits, design
from dmodel.design import exact as search
from dmodel.design import problem as state
from dmodel.design import rows as rows_
from dmodel.design import space as spaces
from dmodel.design.judge import (
    Problem,
    evaluate,
    excess,
    memory_bytes,
    merits,
    rank_key,
)
from dmodel.design.search import LARGE
from dmodel.errors import NoPlanFits
from dmodel.records import Plan, leaf
from dmodel.sensitivity.case import Inputs, Point, inputs, rebuild, scale
from dmodel.smooth import SHARPNESS

POOL, JOINING = 128, 32
"""Plans of the first search that are followed, and those that join from a further one."""

LIMIT = 2.0
"""Inputs are followed up to this factor, and down to one over it."""

MARGIN = 0.01
"""How much shorter than its bound a step may be, as arithmetic slows to half: of 18,000 random
plans under random coefficients, on networks with all and with 3 % of their bandwidth, none was
(`tests/test_monotone.py` looks at others)."""

WITHIN = LIMIT / (1.0 - MARGIN)
"""Step times are kept up to this times the best."""

SLACK = 1e-9
"""Relative rounding that decides nothing."""

CAPACITY = "chip.hbm_bytes"


class Ranked(NamedTuple):
    """Some of the best plans, and their step times [s], best first."""

    plans: tuple[Plan, ...]
    seconds: np.ndarray


class Near(NamedTuple):
    """Rows of the space within `WITHIN` of the best and `LIMIT` of the memory: their step times [s]
    and memory [byte], `[n]`."""

    rows: np.ndarray
    seconds: np.ndarray
    memory: np.ndarray


class Searched(NamedTuple):
    """What is known of all plans of a case.

    Attributes:
      known: its inputs by name. base, choices, sharpness: of the search. memory: share of a
        device's memory that plans may need [1]. best: at least two, where as many fit.
      considered: valid plans. near: None where the space is too large to hold.
    """

    case: Point
    known: Inputs
    base: Plan | None
    choices: Choices | None
    sharpness: float
    memory: float
    best: Ranked
    considered: int
    near: Near | None


class _Way(NamedTuple):
    """How plans are searched: as `Searched` has it."""

    base: Plan | None
    choices: Choices | None
    sharpness: float
    memory: float


def _stated(case: Point, way: _Way) -> Problem:
    count = round(float(np.prod([float(leaf(case.plan, d)) for d in ("dp", "tp", "cp", "pp")])))
    return state(
        case.system,
        case.model,
        count,
        round(float(case.plan.global_batch)),
        case.coefficients,
        limits=Limits(memory=way.memory),
        base=way.base,
        choices=way.choices,
        footprint=case.footprint,
        sharpness=way.sharpness,
    )


def _room(stated: Problem) -> float:
    """Memory of a device that a plan may need [byte]."""
    return float(stated.system.chip.hbm_bytes * stated.limits.memory)


def _ranked(stated: Problem, rows: np.ndarray, seconds: np.ndarray, top: int) -> Ranked:
    """The best of rows that fit, ordered as every search orders them."""
    merit = rank_key(seconds) if len(seconds) else seconds
    if len(merit) > top:
        near = np.flatnonzero(merit <= np.partition(merit, top - 1)[top - 1])
        rows, merit = rows[near], merit[near]
    order = rows_.plainest_first(rows, merit)[:top]
    return Ranked(tuple(rows_.plans(stated.space, stated.system, rows[order])), merit[order])


def _that_hold(
    stated: Problem, batches: Iterable[np.ndarray], capacity: float
) -> Iterator[np.ndarray]:
    """Rows that need no more memory of a device [byte], which takes a tenth of the work to tell."""
    for rows in batches:
        few = rows[memory_bytes(stated, rows) <= capacity * (1.0 + SLACK)] if len(rows) else rows
        if len(few):
            yield few


def _evaluated(stated: Problem, batches: Iterable[np.ndarray]) -> Iterator[Near]:
    for rows in batches:
        found = evaluate(stated, rows, quick=True)
        yield Near(rows, merits(stated, found), np.asarray(found.memory_bytes))


def searched(
    case: Point,
    *,
    base: Plan | None = None,
    choices: Choices | None = None,
    memory: float = 1.0,
    sharpness: float = SHARPNESS,
    level_names: Sequence[str] | None = None,
) -> Searched:
    """Search all plans on as many devices as the case's plan uses, with its batch.

    Args:
      base, choices: of `design`. memory: share of a device's memory that plans may need [1].
        level_names: of the network levels, as in `inputs`.

    Raises:
      NoPlanFits: none does.
    """
    way = _Way(base, choices, sharpness, memory)
    stated, known = _stated(case, way), inputs(case, level_names)
    splits = spaces.splits(stated.space)
    considered = spaces.count(stated.space, splits)
    if considered > LARGE:
        near, found = None, search(stated, POOL)
        best = Ranked(tuple(rows_.plans(stated.space, stated.system, found.rows)), found.merits)
    else:
        every = rows_.batches(stated.space, known=splits)
        hold = _that_hold(stated, every, LIMIT * _room(stated))
        near = _within(stated, _evaluated(stated, hold))
        fits = near.memory <= _room(stated)
        best = _ranked(stated, near.rows[fits], near.seconds[fits], POOL)
    if not best.plans:
        limit = design(
            case.system,
            case.model,
            stated.space.n_devices,
            stated.space.global_batch,
            case.coefficients,
            method="exact",
            top=1,
            limits=stated.limits,
            base=base,
            choices=choices,
            footprint=case.footprint,
            sharpness=sharpness,
        ).binding
        raise NoPlanFits(
            f"{limit.message if limit else 'no plan is valid'}; sensitivities are of a plan "
            "that "
            "fits"
        )
    return Searched(case, known, *way, best, considered, near)


def _within(stated: Problem, parts: Iterator[Near]) -> Near:
    """Those that may be the best when a rate or a time changes by `LIMIT`."""
    capacity, fastest, held = _room(stated), np.inf, []
    for part in parts:
        fastest = min(
            fastest, float(np.min(part.seconds, initial=np.inf, where=part.memory <= capacity))
        )
        held.append(_chosen(part, part.seconds <= WITHIN * fastest))
    joined = (
        Near(*(np.concatenate(x) for x in zip(*held, strict=True)))
        if held
        else Near(rows_.EMPTY, np.empty(0), np.empty(0))
    )
    return _chosen(joined, joined.seconds <= WITHIN * fastest)


def _chosen(near: Near, which: np.ndarray) -> Near:
    return Near(*(x[which] for x in near))


def least(name: str, factor: float) -> float | None:
    """Share of its step time that a plan keeps at least when an input becomes `factor` times
    itself; None where nothing is known."""
    if name == CAPACITY:
        return 1.0
    share = {"rate": min(1.0, 1.0 / factor), "time": min(1.0, factor), "other": None}[scale(name)]
    return None if share is None else (1.0 - MARGIN) * share


def best_with(s: Searched, place: int, factor: float, at_most: float) -> Ranked:
    """The best `JOINING` plans with one input times a factor, of all whose step takes no longer
    than `at_most` [s] then."""
    x = s.known.values.copy()
    x[place] *= factor
    way = _Way(s.base, s.choices, s.sharpness, s.memory)
    stated = _stated(rebuild(x, s.known.tree, s.known.levels), way)
    share, name = least(s.known.names[place], factor), s.known.names[place]
    room = float(s.known[CAPACITY]) * s.memory * LIMIT
    if s.near is None:
        found = search(stated, JOINING)
        return Ranked(tuple(rows_.plans(stated.space, stated.system, found.rows)), found.merits)
    fastest = float(s.best.seconds[0])
    enough = (
        share is not None
        and at_most <= share * WITHIN * fastest
        and _room(stated) <= room * (1.0 + SLACK)
    )
    if not enough:
        return _best(stated, rows_.batches(stated.space))
    fits = s.near.memory <= _room(stated)
    few = _chosen(s.near, fits & (s.near.seconds * float(share or 0.0) <= at_most * (1.0 + SLACK)))
    return (
        _ranked(stated, few.rows, few.seconds, JOINING)
        if name == CAPACITY
        else _best(stated, [few.rows])
    )


def _best(stated: Problem, batches: Iterable[np.ndarray]) -> Ranked:
    """The best `JOINING` of rows that fit."""
    held = [(rows_.EMPTY, np.empty(0))]
    for rows in _that_hold(stated, batches, _room(stated)):
        found = evaluate(stated, rows, quick=True)
        fits = excess(stated, rows, found) <= 0.0
        held.append((rows[fits], merits(stated, found)[fits]))
    rows, seconds = (np.concatenate(x) for x in zip(*held, strict=True))
    return _ranked(stated, rows, seconds, JOINING)
