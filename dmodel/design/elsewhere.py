"""Plans judged, and groups of them bounded, by the workers of an executor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import Any

import jax
import numpy as np

from dmodel.breakdown import Breakdown
from dmodel.coefficients import Coefficients
from dmodel.cost.memory import Memory
from dmodel.design import rows as rows_
from dmodel.design.bounds import Bound, bounds_of
from dmodel.design.bounds import numbers as numbers_of_groups
from dmodel.design.judge import Evaluation, Judged, Problem, by_program, evaluate_draws_of
from dmodel.design.judge import evaluate_draws as evaluate_draws_here
from dmodel.parts import Arrays, Block, parts

ROWS = 1 << 14
"""Rows that a worker judges or bounds at once [count]."""

DRAWN = 256
"""Rows that a worker evaluates under all draws [count]."""


def _by(
    executor: Executor,
    batches: Iterable[np.ndarray],
    numbers: Callable[[np.ndarray], dict[str, np.ndarray]],
    function: Callable[..., Arrays],
    known: dict[str, Any],
) -> Iterator[tuple[np.ndarray, Arrays]]:
    """Rows in arrays of `ROWS` at most, in order, and what a function makes of their numbers."""
    waiting: deque[np.ndarray] = deque()

    def blocks() -> Iterator[Block]:
        for rows in batches:
            for start in range(0, len(rows), ROWS):
                waiting.append(rows[start : start + ROWS])
                batch = numbers(waiting[-1])
                yield Block(function, {**known, "batch": batch, "n": len(waiting[-1])})

    for part in parts(blocks(), executor):
        yield waiting.popleft(), part.arrays


def _without_stack(problem: Problem) -> Problem:
    """The problem without what its stack says, which is in the numbers of rows: rules do not
    travel."""
    space = problem.space
    return problem.replace(space=space.replace(choices=space.choices.replace(stack=None)))


def judged(
    problem: Problem, batches: Iterable[np.ndarray], executor: Executor, chunk: int
) -> Iterator[tuple[np.ndarray, Judged]]:
    """Rows of the space and what ranks them, in order.

    Args:
      batches: arrays of rows. chunk: of the program (`dmodel.sweep.sweep`).
    """
    numbers = partial(rows_.numbers, problem.space, problem.system)
    known = {"problem": _without_stack(problem), "chunk": chunk}
    for rows, arrays in _by(executor, batches, numbers, judged_block, known):
        yield rows, Judged(**arrays)


def judged_block(*, problem: Problem, batch: dict[str, np.ndarray], n: int, chunk: int) -> Arrays:
    """What a worker makes of rows: `Judged` by name."""
    found = by_program(problem, batch, n, chunk=chunk, threads=1)
    return {name: np.asarray(getattr(found, name)) for name in Judged._fields}


def bounded(
    problem: Problem, batches: Iterable[np.ndarray], executor: Executor
) -> Iterator[tuple[np.ndarray, Bound]]:
    """Groups and their bounds, whatever their sharding, in order.

    Args:
      batches: arrays of rows, one for each group.
    """
    numbers = partial(numbers_of_groups, problem, sharded=False)
    known = {"problem": _without_stack(problem)}
    for rows, arrays in _by(executor, batches, numbers, bounded_block, known):
        yield rows, Bound(**arrays)


def bounded_block(*, problem: Problem, batch: dict[str, np.ndarray], n: int) -> Arrays:
    """What a worker makes of groups: `Bound` by name."""
    found = bounds_of(problem, batch, threads=1)
    return {name: np.broadcast_to(np.asarray(x), n) for name, x in vars(found).items()}


def evaluate_draws(
    problem: Problem, rows: np.ndarray, drawn: Coefficients, executor: Executor | None = None
) -> Evaluation:
    """Evaluate rows under each of some draws of the coefficients, `[draw]`: leaves `[draw, n]`.

    Args:
      executor: of what computes; None for this process.
    """
    if executor is None:
        return evaluate_draws_here(problem, rows, drawn)
    known = {"problem": _without_stack(problem), "drawn": jax.tree.map(np.asarray, drawn)}
    numbers = partial(rows_.numbers, problem.space, problem.system)
    cut = (rows[i : i + DRAWN] for i in range(0, len(rows), DRAWN))
    found = [arrays for _, arrays in _by(executor, cut, numbers, drawn_block, known)]
    return _evaluation({n: np.concatenate([f[n] for f in found], -1) for n in found[0]})


def _evaluation(whole: Arrays) -> Evaluation:
    """Of leaves by dotted name."""

    def record(kind: Any, title: str) -> Any:
        return kind(**{n: whole[f"{title}.{n}"] for n in kind.__dataclass_fields__})

    rest = {n: x for n, x in whole.items() if "." not in n}
    return Evaluation(
        **rest, breakdown=record(Breakdown, "breakdown"), memory=record(Memory, "memory")
    )


def drawn_block(
    *, problem: Problem, batch: dict[str, np.ndarray], n: int, drawn: Coefficients
) -> Arrays:
    """What a worker makes of rows under draws: leaves of an `Evaluation` by dotted name."""
    found = evaluate_draws_of(problem, batch, n, drawn)
    shape = np.shape(found.step_time_s)
    leaves: dict[str, Any] = {}
    for name, value in vars(found).items():
        inner = vars(value).items() if isinstance(value, Breakdown | Memory) else ()
        leaves |= {f"{name}.{n}": x for n, x in inner} or {name: value}
    return {n: np.broadcast_to(np.asarray(x), shape) for n, x in leaves.items()}
