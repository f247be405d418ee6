"""Descents from many starts: Adam, and then L-BFGS, over one loss and gradient that takes several
sets of parameters at once.

What a start finds does not depend on how long others take: each asks for the loss where it wants to
know it, and what all of them ask for is computed together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

Loss = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Losses `[set]` and gradients `[set, parameter]` of sets of parameters `[set, parameter]`."""

Progress = Callable[[float, float], None]
"""Called with the share done and the least of the starts' losses."""

Enough = Callable[[Sequence["End"]], bool]
"""Whether the ends so far, in the order of the starts, are all that is wanted."""

Inverse = Callable[[np.ndarray], np.ndarray]
"""What an inverse of the loss's second derivative, symmetric and positive, makes of a vector
`[parameter]`."""

Curvature = Callable[[np.ndarray], Inverse]
"""Such an inverse at parameters `[parameter]`, near to that of the loss."""

TOGETHER = 4
"""Starts that are tried beside each other before `Enough` is asked [count]."""

RENEWED = 15
"""Steps of L-BFGS after which the curvature is asked for anew, and the memory begins anew."""

ADAM_SHARE, EVERY = 0.6, 10
"""Share of a descent's progress that Adam is, and steps between two reports."""

RATE, LAST = 0.08, 0.05
"""Rate of Adam at first, and the share of it that is left at the end of its cosine."""

FIRST_MOMENT, SECOND_MOMENT, TINY = 0.9, 0.999, 1e-8
"""Adam's constants (Kingma and Ba 2015)."""

MEMORY = 20
"""Steps that L-BFGS remembers."""

SUFFICIENT, TRIALS = 1e-4, 12
"""Share of the slope that a step has to gain (Armijo; Nocedal and Wright 2006, section 3.1), and
lengths that are tried for one."""

SHORTEST, LONGEST = 0.1, 0.5
"""Bounds of the next length over the last one, which safeguard the interpolation (the same, section
3.5)."""

GAIN, IDLE = 1e-9, 2
"""A step that gains less than this share of the loss is idle; so many in a row end a descent."""


class End(NamedTuple):
    """Where a descent ended: parameters `[parameter]`, and their loss."""

    parameters: np.ndarray
    loss: float


class Place(NamedTuple):
    """Parameters, their loss and its gradient."""

    p: np.ndarray
    value: float
    grads: np.ndarray


Asking = Generator[np.ndarray, Place, End]
"""A descent: it gives parameters, and takes what the loss is there."""


def descents(
    loss: Loss,
    starts: Sequence[np.ndarray],
    *,
    adam: int,
    lbfgs: int,
    progress: Progress,
    enough: Enough | None = None,
    together: int = TOGETHER,
    curvature: Curvature | None = None,
) -> list[End]:
    """Descend from every start, or until enough is found; ends in the order of the starts.

    Args:
      loss: of several sets at once. starts: parameters to begin from `[parameter]`, one at least.
      adam, lbfgs: steps of both, one at least, the latter at most. enough: asked after so many
        starts `together`; None = never. curvature: what L-BFGS begins from; None = nothing is
        known.
    """
    watch = _Watch(len(starts), progress)
    found: list[End] = []
    step = len(starts) if enough is None else together
    while len(found) < len(starts):
        first = len(found)
        found += _together(
            loss,
            [
                _descent(p, adam, lbfgs, partial(watch.report, first + i), curvature)
                for i, p in enumerate(starts[first : first + step])
            ],
        )
        if enough is not None and enough(found):
            break
    watch.end()
    return found


def _together(loss: Loss, begun: Sequence[Asking]) -> list[End]:
    """The ends of descents, whose questions are answered together."""
    asked = {i: next(each) for i, each in enumerate(begun)}
    ends: dict[int, End] = {}
    while asked:
        values, grads = loss(np.stack(list(asked.values())))
        answers = zip(list(asked.items()), values.tolist(), grads, strict=True)
        for (i, p), value, slope in answers:
            try:
                asked[i] = begun[i].send(Place(p, value, slope))
            except StopIteration as stop:
                ends[i] = stop.value
                del asked[i]
    return [ends[i] for i in range(len(begun))]


class _Watch:
    """What all descents have done, reported as one."""

    def __init__(self, count: int, progress: Progress) -> None:
        self.done, self.loss = np.zeros(count), np.full(count, np.inf)
        self.progress = progress

    def report(self, start: int, done: float, loss: float) -> None:
        """One descent's share done and loss."""
        self.done[start], self.loss[start] = done, loss
        self.progress(float(self.done.mean()), float(np.fmin.reduce(self.loss)))

    def end(self) -> None:
        """No descent is left."""
        self.done[:] = 1.0
        self.progress(1.0, float(np.fmin.reduce(self.loss)))


def _descent(
    p: np.ndarray, adam: int, lbfgs: int, report: Progress, curvature: Curvature | None
) -> Asking:
    if adam:
        p = yield from _by_adam(p, adam, lambda done, value: report(ADAM_SHARE * done, value))
    before = ADAM_SHARE if adam else 0.0
    end = yield from by_lbfgs(
        p, lbfgs, lambda done, value: report(before + (1.0 - before) * done, value), curvature
    )
    report(1.0, end.loss)
    return end


def _by_adam(
    p: np.ndarray, steps: int, progress: Progress
) -> Generator[np.ndarray, Place, np.ndarray]:
    """Adam, whose rate falls along a cosine."""
    mean, square = np.zeros_like(p), np.zeros_like(p)
    for i in range(steps):
        at = yield p
        mean = FIRST_MOMENT * mean + (1.0 - FIRST_MOMENT) * at.grads
        square = SECOND_MOMENT * square + (1.0 - SECOND_MOMENT) * at.grads**2
        rate = RATE * (LAST + (1.0 - LAST) * 0.5 * (1.0 + np.cos(np.pi * i / steps)))
        root = np.sqrt(square / (1.0 - SECOND_MOMENT ** (i + 1)))
        p = p - rate * mean / (1.0 - FIRST_MOMENT ** (i + 1)) / (root + TINY)
        if i % EVERY == EVERY - 1:
            progress((i + 1) / steps, at.value)
    return p


class _Memory:
    """The last steps of L-BFGS, and the curvature that they met (Nocedal and Wright 2006, algorithm
    7.4).

    Args:
      inverse: of the curvature before any step; None = nothing is known.
    """

    def __init__(self, inverse: Inverse | None = None) -> None:
        self.inverse = inverse
        self.pairs: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=MEMORY)

    def add(self, before: Place, after: Place) -> None:
        """Remember a step."""
        moved, changed = after.p - before.p, after.grads - before.grads
        along = float(moved @ changed)
        self.pairs.append((moved, changed, 1.0 / along if along else 0.0))

    def direction(self, grads: np.ndarray) -> np.ndarray:
        """Preconditioned descent direction; where nothing is known no longer than 1."""
        found, shares = grads, []
        for moved, changed, weight in reversed(self.pairs):
            shares.append(weight * float(moved @ found))
            found = found - shares[-1] * changed
        found = self.inverse(found) if self.inverse else found * self._scale(grads)
        for (moved, changed, weight), share in zip(self.pairs, reversed(shares), strict=True):
            found = found + (share - weight * float(changed @ found)) * moved
        return -found

    def _scale(self, grads: np.ndarray) -> float:
        if not self.pairs:
            return min(1.0, 1.0 / max(float(np.linalg.norm(grads)), 1e-300))
        moved, changed, _ = self.pairs[-1]
        square = float(changed @ changed)
        return float(changed @ moved) / square if square > 0.0 else 1.0


def by_lbfgs(
    p: np.ndarray, steps: int, progress: Progress, curvature: Curvature | None = None
) -> Asking:
    """L-BFGS with an Armijo search, whose next length is where the parabola through value, slope
    and trial is least.

    A memory whose direction does not descend, or along which no length gains, is begun anew.

    Args:
      p: parameters to begin from. steps: at most. progress: called every `EVERY` of them.
      curvature: asked for every `RENEWED` of them.
    """
    at = yield p
    memory, idle = _Memory(), 0
    for i in range(steps):
        if curvature is not None and i % RENEWED == 0:
            memory = _Memory(curvature(at.p))
        before = at
        at, memory = yield from _lbfgs_step(at, memory)
        idle = 0 if before.value - at.value > GAIN * abs(before.value) else idle + 1
        if i % EVERY == EVERY - 1:
            progress((i + 1) / steps, at.value)
        if idle == IDLE:
            break
    return End(at.p, at.value)


def _lbfgs_step(at: Place, memory: _Memory) -> Generator[np.ndarray, Place, tuple[Place, _Memory]]:
    """The next place and its memory; where no length gains, the same place with an empty one."""
    direction = memory.direction(at.grads)
    slope = float(direction @ at.grads)
    if not slope < 0.0:
        memory = _Memory(memory.inverse)
        direction = memory.direction(at.grads)
        slope = float(direction @ at.grads)
    found = yield from _search(at, direction, slope)
    if found is None:
        return at, _Memory(memory.inverse)
    memory.add(at, found)
    return found, memory


def _search(
    at: Place, direction: np.ndarray, slope: float
) -> Generator[np.ndarray, Place, Place | None]:
    """The place at the first length that gains enough; None if none of them does."""
    length = 1.0
    for _ in range(TRIALS):
        found = yield at.p + length * direction
        if found.value - at.value - SUFFICIENT * length * slope <= 0.0:
            return found
        beyond = found.value - at.value - slope * length
        least = -0.5 * slope * length**2 / beyond if beyond else np.inf
        length = (
            float(np.clip(least, SHORTEST * length, LONGEST * length))
            if np.isfinite(least)
            else SHORTEST * length
        )
    return None
