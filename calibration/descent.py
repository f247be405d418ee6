"""Descents from many starts, each at its own pace: Adam, and then L-BFGS, over one compiled loss
and gradient.

What a start finds depends neither on the other starts nor on how many threads there are: compiled
code does not hold Python's lock, so starts run beside each other. One start's pass is also small
enough for the cache of a core; that of all starts together is not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from threading import Event, Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

Tree = Any
"""A pytree of arrays: parameters, or a gradient by them."""

Loss = Callable[[Tree], tuple[Any, Tree]]
"""Loss and gradient of one set of parameters."""

Progress = Callable[[float, float], None]
"""Called with the share done and the least of the starts' losses, in the thread of a descent, one
call at a time."""

Enough = Callable[[Sequence["End"]], bool]
"""Whether the ends so far, in the order of the starts, are all that is wanted."""

TOGETHER = 4
"""Starts that are tried beside each other before `Enough` is asked [count]: the same whatever the
processors, so that the answer is."""

ADAM_SHARE, EVERY = 0.6, 10
"""Share of a descent's progress that Adam is, and steps between two reports."""

SUFFICIENT, TRIALS = 1e-4, 12
"""Share of the slope that a step has to gain (Armijo; Nocedal and Wright 2006, section 3.1), and
lengths that are tried for one."""

SHORTEST, LONGEST = 0.1, 0.5
"""Bounds of the next length over the last one, which safeguard the interpolation (the same, section
3.5)."""

GAIN, IDLE = 1e-9, 2
"""A step that gains less than this share of the loss is idle; so many in a row end a descent."""


class End(NamedTuple):
    """Where a descent ended: parameters, and their loss."""

    parameters: Tree
    loss: float


def descents(
    loss: Loss,
    starts: Sequence[Tree],
    *,
    adam: int,
    lbfgs: int,
    progress: Progress,
    threads: int | None = None,
    enough: Enough | None = None,
) -> list[End]:
    """Descend from every start, or until enough is found; ends in the order of the starts.

    Args:
      loss: of one start, compiled; called from several threads at once. starts: parameters to begin
        from, one at least, each with the same leaves. adam, lbfgs: steps of both, one at least, the
        latter at most. threads: None = one per core. enough: asked after every `TOGETHER` starts,
        whatever the threads; None = never.

    Raises:
      Exception: the first of any start, or of `progress`; the others end then.
    """
    watch, pool = (
        _Watch(len(starts), progress),
        ThreadPoolExecutor(max(1, min(threads or os.cpu_count() or 1, len(starts)))),
    )
    try:
        pool.submit(loss, starts[0]).result()  # traced and compiled once, and not by every thread
        found: list[End] = []
        step = len(starts) if enough is None else TOGETHER
        while len(found) < len(starts):
            begun = [
                pool.submit(
                    _descent, partial(watch.watched, loss), p, adam, lbfgs, partial(watch.report, i)
                )
                for i, p in list(enumerate(starts))[len(found) : len(found) + step]
            ]
            for each in wait(begun, return_when=FIRST_EXCEPTION).done:
                each.result()  # raises what ended it
            found += [each.result() for each in begun]
            if enough is not None and enough(found):
                break
        watch.end()
        return found
    finally:
        watch.left.set()
        pool.shutdown(cancel_futures=True)


class _Left(Exception):
    """Who waited for the descents has left: by an error of another one, or from the keyboard."""


class _Watch:
    """What all descents have done, reported as one."""

    def __init__(self, count: int, progress: Progress) -> None:
        self.done, self.loss = np.zeros(count), np.full(count, np.inf)
        self.progress, self.lock, self.left = progress, Lock(), Event()

    def watched(self, loss: Loss, p: Tree) -> tuple[Any, Tree]:
        """The loss, for as long as somebody waits for its descent."""
        if self.left.is_set():
            raise _Left
        return loss(p)

    def report(self, start: int, done: float, loss: float) -> None:
        """One descent's share done and loss."""
        with self.lock:
            self.done[start], self.loss[start] = done, loss
            self.progress(float(self.done.mean()), float(np.fmin.reduce(self.loss)))

    def end(self) -> None:
        """No descent is left."""
        with self.lock:
            self.done[:] = 1.0
            self.progress(1.0, float(np.fmin.reduce(self.loss)))


def _descent(loss: Loss, p: Tree, adam: int, lbfgs: int, report: Progress) -> End:
    if adam:
        p = _by_adam(loss, p, adam, lambda done, value: report(ADAM_SHARE * done, value))
    end = by_lbfgs(
        loss, p, lbfgs, lambda done, value: report(ADAM_SHARE + (1.0 - ADAM_SHARE) * done, value)
    )
    report(1.0, end.loss)
    return end


def _adam(steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(0.08, steps, 0.05))


@partial(jax.jit, static_argnames="steps")
def _adam_update(grads: Tree, state: Tree, p: Tree, steps: int) -> tuple:
    # optax raises a float to its integer count of steps
    with jax.numpy_dtype_promotion("standard"):
        updates, state = _adam(steps).update(grads, state, p)
    return optax.apply_updates(p, updates), state


def _by_adam(loss: Loss, p: Tree, steps: int, progress: Progress) -> Tree:
    state = _adam(steps).init(p)
    for i in range(steps):
        value, grads = loss(p)
        p, state = _adam_update(grads, state, p, steps)
        if i % EVERY == EVERY - 1:
            progress((i + 1) / steps, float(value))
    return p


_LBFGS = optax.scale_by_lbfgs(memory_size=20)


@jax.jit
def _direction(grads: Tree, memory: Tree, p: Tree) -> tuple:
    """Preconditioned descent direction, its slope, and the new memory."""
    with jax.numpy_dtype_promotion("standard"):
        ascent, memory = _LBFGS.update(grads, memory, p)
    return jax.tree.map(jnp.negative, ascent), jnp.negative(optax.tree.vdot(ascent, grads)), memory


@jax.jit
def _moved(p: Tree, direction: Tree, length: Any) -> Tree:
    """p + length · direction."""
    return optax.tree.add_scale(p, length, direction)


class _Place(NamedTuple):
    """Parameters, their loss and its gradient."""

    p: Tree
    value: float
    grads: Tree


def by_lbfgs(loss: Loss, p: Tree, steps: int, progress: Progress) -> End:
    """L-BFGS with an Armijo search, whose next length is where the parabola through value, slope
    and trial is least.

    A memory whose direction does not descend, or along which no length gains, is begun anew.

    Args:
      loss: compiled. p: parameters to begin from. steps: at most. progress: called every `EVERY` of
        them.
    """
    value, grads = loss(p)
    at, memory, idle = _Place(p, float(value), grads), _LBFGS.init(p), 0
    for i in range(steps):
        before = at.value
        at, memory = _lbfgs_step(loss, at, memory)
        idle = 0 if before - at.value > GAIN * abs(before) else idle + 1
        if i % EVERY == EVERY - 1:
            progress((i + 1) / steps, at.value)
        if idle == IDLE:
            break
    return End(at.p, at.value)


def _lbfgs_step(loss: Loss, at: _Place, memory: Tree) -> tuple[_Place, Tree]:
    """The next place and its memory; where no length gains, the same place with an empty one."""
    direction, slope, memory = _direction(at.grads, memory, at.p)
    if not slope < 0.0:
        direction, slope, memory = _direction(at.grads, _LBFGS.init(at.p), at.p)
    found = _search(loss, at, direction, float(slope))
    return (at, _LBFGS.init(at.p)) if found is None else (found, memory)


def _search(loss: Loss, at: _Place, direction: Tree, slope: float) -> _Place | None:
    """The place at the first length that gains enough; None if none of them does."""
    length = 1.0
    for _ in range(TRIALS):
        p = _moved(at.p, direction, length)
        value, grads = loss(p)
        above = float(value) - at.value - SUFFICIENT * length * slope
        if above <= 0.0:
            return _Place(p, float(value), grads)
        least = -0.5 * slope * length**2 / (float(value) - at.value - slope * length)
        length = (
            float(np.clip(least, SHORTEST * length, LONGEST * length))
            if np.isfinite(least)
            else SHORTEST * length
        )
    return None
