"""A sweep cut into blocks, each some plans under some draws, and what a worker makes of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dmodel.asked import Asked, laid
from dmodel.coefficients import NAMES, from_unconstrained
from dmodel.design import rows as rows_
from dmodel.design import space as spaces
from dmodel.design.judge import Problem, shared
from dmodel.errors import InputError
from dmodel.footprint import RISK
from dmodel.montecarlo.draws import drawn
from dmodel.montecarlo.evaluated import WAYS, shared_of
from dmodel.montecarlo.table import Arrays, flat, table_of, thinned
from dmodel.parts import Block
from dmodel.placement import PAIRS
from dmodel.records import LEAVES, MIXED, Plan, leaf
from dmodel.searching import space_of, stated, usable
from dmodel.uncertainty import covariance

PAIRS_OF_BLOCK = {"numpy": 1 << 16, "compiled": 1 << 21}
"""Evaluations of a block where nothing is said, by the way in which they are done [count]: one to
ten seconds of a core."""

LEAST_ROWS = 4096
"""Plans of a space that are listed at once, at least [count]."""

MOST_DRAWS = 4096
"""Draws of a block [count]; more are cut into ranges of so many."""

FEW = 1 << 20
"""Evaluations of a sweep below which no program is compiled [count]: numpy is done before."""

TOP = 10
"""Plans of least mean step time that the answer has [count]."""

MOST_PAIRS = 10**15
"""Evaluations of a sweep at most [count]: beyond it a typing mistake is likelier."""

NAMED_ORDERS = ("schedule", "placement")
"""Names in a plan; of what is evaluated they are numbers."""


class Plans(NamedTuple):
    """Plans of a job, in an order.

    Attributes:
      problem: what all share. count: how many [count]. words: a list's, `[plan]`; None where they
        are all of the problem's space. leaves: of a list, `[plan]`.
    """

    problem: Problem
    count: int
    words: tuple[str, ...] | None
    leaves: dict[str, np.ndarray] | None


class Sweep(NamedTuple):
    """A job's part of a sweep.

    Attributes:
      asked: the job. plans: of it. draws: of the coefficients [count]. seed: of the draws. top:
        plans of least mean to keep. memory: bytes that a plan may need. pairs: evaluations of a
        block. way: how it is evaluated, a name of `WAYS`.
    """

    asked: Asked
    plans: Plans
    draws: int
    seed: int
    top: int
    memory: float
    pairs: int
    way: str

    @property
    def size(self) -> int:
        """Evaluations where all plans fit [count]."""
        return self.plans.count * self.draws


def of_space(asked: Asked, everything: bool = False) -> Plans:
    """All plans of a job's space.

    Args:
      everything: all that a plan can vary, in place of what is usual.
    """
    problem = stated(asked, space_of(asked, everything=everything))
    count = spaces.count(problem.space)
    if not count:
        raise InputError(
            f"no plan of {asked.devices} devices is valid for this job; ask for another number of "
            f"devices or sequences, such as {_near(problem)} devices"
        )
    return Plans(problem, count, None, None)


def plans_of(
    asked: Asked, words: Sequence[Mapping[str, Any]] | None, everything: bool = False
) -> Plans:
    """A list of plans, or all of a job's space where there is none.

    Raises:
      InputError: both, or as `listed` and `of_space`.
    """
    if words is None:
        return of_space(asked, everything)
    if everything:
        raise InputError("everything: the plans are given; leave one of the two")
    return listed(asked, words)


def _near(problem: Problem) -> str:
    return " or ".join(map(str, spaces.neighbouring_counts(problem.space))) or "8"


def listed(asked: Asked, words: Sequence[Mapping[str, Any]]) -> Plans:
    """Plans of a list.

    Args:
      words: of each plan, name → value of columns and settings of its layout, such as `{"tp": 8,
        "pp": 4}`.

    Raises:
      InputError: none, or one that is no plan of the job, with its place.
    """
    if not words:
        raise InputError("plans: expected one at least; the list is empty")
    plans = [_laid(asked, each, i) for i, each in enumerate(words)]
    base = plans[0].alike()
    problem = stated(asked, space_of(asked))
    problem = problem.replace(space=problem.space.replace(base=base))
    told = tuple(map(_told, words))
    return Plans(problem, len(plans), told, _stacked(plans, asked))


def _told(words: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in words.items())


def _stacked(plans: Sequence[Plan], asked: Asked) -> dict[str, np.ndarray]:
    """Plans as leaves `[plan]`, at the job's precision."""
    each = [_leaves(plan) for plan in plans]
    whole = {n: np.array([leaves[n] for leaves in each]) for n in each[0]}
    return whole | {"flops_per_s": np.full(len(plans), float(asked.cluster.chip.flops_per_s))}


def _laid(asked: Asked, words: Mapping[str, Any], place: int) -> Plan:
    try:
        return laid(asked, words).plan
    except InputError as error:
        raise InputError(f"plan {place + 1}: {error}") from error


def _leaves(plan: Plan) -> dict[str, float]:
    """A plan as numbers: the leaves of a draft."""
    found = {n: float(leaf(plan, n)) for n in LEAVES if n not in NAMED_ORDERS}
    found |= {n: float(plan.layout.schedule == name) for n, name in MIXED.items()}
    order = rows_.order_numbers(plan.layout.placement)
    return found | {f"{a}_{b}": x for (a, b), x in zip(PAIRS, order, strict=True)}


def sweep_of(
    asked: Asked,
    plans: Plans,
    draws: int,
    *,
    seed: int = 0,
    top: int = TOP,
    risk: float = RISK,
    pairs: int | None = None,
) -> Sweep:
    """A job's part of a sweep.

    Args:
      draws: of the coefficients, from what the profile leaves open of them [count].
      seed: of the draws. top: plans of least mean step time to keep. risk: probability at most that
        a plan needs more memory than its device has. pairs: evaluations of a
        block; None = `PAIRS_OF_BLOCK`.

    Raises:
      InputError: numbers that are none, or a profile that keeps no covariance.
    """
    way = "numpy" if plans.count * draws < FEW else "compiled"
    pairs = PAIRS_OF_BLOCK[way] if pairs is None else pairs
    for name, value, most in (
        ("draws", draws, MOST_PAIRS),
        ("top", top, 10**6),
        ("block", pairs, 10**9),
        ("evaluations", plans.count * draws, MOST_PAIRS),
    ):
        if not 1 <= value <= most:
            raise InputError(f"{name}: expected 1 to {most:,}; got {value:,}")
    if covariance(asked.profile, asked.accelerator, asked.stack or None) is None:
        raise InputError(
            f"profile {asked.profile.name}: it keeps no covariance, so nothing is known of its "
            "doubt; fit it again, or name another profile"
        )
    memory = usable(asked, risk) * float(asked.cluster.chip.hbm_bytes)
    return Sweep(asked, plans, draws, seed, top, memory, pairs, way)


def blocks(sweep: Sweep) -> Iterator[Block]:
    """The blocks of a job, in order: all draws of some plans before the next ones."""
    at_once = max(sweep.pairs // min(sweep.draws, MOST_DRAWS), 1)
    known, start = _known(sweep), 0
    for row, leaves in _batches(sweep.plans, at_once):
        plans = {n: _short(x) for n, x in leaves.items()}
        for first in range(0, sweep.draws, MOST_DRAWS):
            stop = min(first + MOST_DRAWS, sweep.draws)
            of = {"first_plan": start, "first": first, "stop": stop, "row": row, "plans": plans}
            yield Block(evaluated_block, {**known, **of}, size=len(row) * (stop - first))
        start += len(row)


def _known(sweep: Sweep) -> dict[str, Any]:
    """Arguments that all blocks of a job share."""
    asked, problem = sweep.asked, sweep.plans.problem
    return {
        "shared": shared_of({k: v for k, v in shared(problem).items() if k != "coefficients"}),
        "mean": asked.profile.unconstrained(asked.accelerator, asked.stack or None),
        "sigma": np.asarray(covariance(asked.profile, asked.accelerator, asked.stack or None)),
        "seed": sweep.seed,
        "of_draws": sweep.draws,
        "top": sweep.top,
        "memory": sweep.memory,
        "way": sweep.way,
    }


def _short(values: np.ndarray) -> np.ndarray:
    """Values that are all the same as a single one: blocks travel."""
    return values[:1] if (values == values[:1]).all() else values


def _batches(plans: Plans, size: int) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Rows that describe plans, `[plan, column]`, and their leaves, `[plan]`, in order."""
    if plans.leaves is not None:
        for start in range(0, plans.count, size):
            stop = min(start + size, plans.count)
            row = np.arange(start, stop, dtype=float)[:, None]
            yield row, {n: x[start:stop] for n, x in plans.leaves.items()}
        return
    space, system = plans.problem.space, plans.problem.system
    for rows in _even(rows_.batches(space, max(size, LEAST_ROWS)), size):
        yield rows, rows_.numbers(space, system, rows)


def _even(batches: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """The same rows in arrays of one size, but for the last."""
    held = rows_.EMPTY
    for rows in batches:
        held = np.concatenate([held, rows])
        while len(held) >= size:
            yield held[:size]
            held = held[size:]
    if len(held):
        yield held


def evaluated_block(
    *,
    shared: Any,
    mean: np.ndarray,
    sigma: np.ndarray,
    seed: int,
    of_draws: int,
    top: int,
    memory: float,
    way: str,
    first_plan: int,
    first: int,
    stop: int,
    row: np.ndarray,
    plans: dict[str, np.ndarray],
) -> Arrays:
    """What a worker makes of a block: every plan at the mean of the coefficients, those that fit
    under every draw, and of these what may still be part of the answer."""
    n = len(row)
    leaves = {name: np.broadcast_to(x, (n,)) for name, x in plans.items()}
    z = np.concatenate([mean[:, None], drawn(mean, sigma, seed, first, stop)], 1)
    found = from_unconstrained(z)
    draws = np.stack([np.asarray(getattr(found, name)) for name in NAMES])
    at_mean = WAYS[way](shared, leaves, draws, np.stack([np.arange(n), np.zeros(n, int)]))
    fits = np.flatnonzero(at_mean.memory_bytes <= memory)
    times = np.empty((len(fits), stop - first))
    if len(fits):
        plan, draw = np.meshgrid(fits, 1 + np.arange(stop - first), indexing="ij")
        pairs = np.stack([plan.ravel(), draw.ravel()])
        times = WAYS[way](shared, leaves, draws, pairs).step_time_s.reshape(times.shape)
    table = table_of(
        times,
        first_plan + fits.astype(np.int64),
        row[fits],
        at_mean.memory_bytes[fits],
        at_mean.step_time_s[fits],
        np.arange(first, stop, dtype=np.int64),
    )
    counted = np.array([n, len(fits)] if first == 0 else [0, 0], np.int64)
    table = table._replace(considered=counted[:1], fits=counted[1:])
    return flat(thinned(table, of_draws, top))
