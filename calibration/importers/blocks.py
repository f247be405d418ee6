"""Steps of a run from the clock of its blocks: what a block took, evaluation taken out where the
log says when it was, over the steps that its counters say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from calibration.importers.found import number

COUNTERS = ("samples_count", "first_epoch_num", "epoch_num")
"""Metadata that count sequences or tokens since the run began, at the ends of blocks."""

SIZES = ("epoch_count", "samples_count", "epoch_num")
"""Metadata of a block that may hold its size alone."""

MOST = 1e18
"""Largest count of a block; more is a slip."""

WHOLE = 1e-6
"""A quotient of counts this near a whole number is one."""


class Mark(NamedTuple):
    """One event. kind: run, block, epoch or eval. begins: whether it starts there. clock_s: when.
    counts: metadata that are numbers."""

    line: int
    kind: str
    begins: bool
    clock_s: float
    counts: Mapping[str, float]


class Block(NamedTuple):
    """A stretch of training. seconds: without evaluation, as far as the log says when that was.
    steps: of it. evaluated: whether evaluation may be in it. clock_s: when it ended."""

    line: int
    seconds: float
    steps: float
    evaluated: bool
    clock_s: float


def counts(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Metadata that are numbers."""
    return {name: x for name, value in metadata.items() if (x := number(value)) is not None}


def steps_of(count: float, batch: int, seq_len: int | None) -> float:
    """Steps that a count makes: of tokens where it is that of whole batches of them, else of
    sequences.

    A count of sequences is no multiple of a batch's tokens, unless a block has as many steps as a
    sequence has tokens.

    >>> steps_of(50331648, 2048, 2048), steps_of(24576, 2048, 2048), steps_of(12288, 64, 8192)
    (12.0, 12.0, 192.0)
    """
    tokens = batch * (seq_len or 0)
    if tokens and count >= tokens and _is_whole(count / tokens):
        return count / tokens
    return count / batch


def _is_whole(value: float) -> bool:
    return abs(value - round(value)) <= WHOLE * value


def blocks(marks: Sequence[Mark], batch: int, seq_len: int | None) -> list[Block]:
    """Blocks of a log: by counters at their ends, else its epochs so, else by sizes of blocks. A
    size may be that of what lies between two evaluations, and not of the block."""
    units = Units(batch, seq_len)
    for kind, sized in (("block", False), ("epoch", False), ("block", True)):
        if found := _found(marks, kind, sized, units):
            return found
    return []


class Units(NamedTuple):
    """What makes a step: sequences of a batch, and tokens of one."""

    batch: int
    seq_len: int | None

    def steps(self, count: float) -> float:
        """Steps that a count makes."""
        return steps_of(count, self.batch, self.seq_len)


def _found(marks: Sequence[Mark], kind: str, sized: bool, units: Units) -> list[Block]:
    """Blocks, or epochs, whose steps can be told."""
    spans = _spans([m for m in marks if m.kind in (kind, "run")], kind)
    starts = [m for m in marks if m.kind == kind and m.begins]
    return [
        _block(marks, begin, end, steps)
        for begin, end in spans
        if (steps := _steps(begin, end, starts, units) or sized * _size(begin, end, units))
    ]


def _block(marks: Sequence[Mark], begin: Mark, end: Mark, steps: float) -> Block:
    apart = _evaluating(marks, begin.clock_s, end.clock_s)
    inside = begin.kind == "run" or end.begins or not _marked(marks)
    return Block(end.line, end.clock_s - begin.clock_s - apart, steps, inside, end.clock_s)


def _spans(marks: Sequence[Mark], kind: str) -> list[tuple[Mark, Mark]]:
    """(begin, end) of blocks. A stop before any start ends what began with the run, and a start
    ends a block that was not stopped."""
    found: list[tuple[Mark, Mark]] = []
    open_: Mark | None = None
    for mark in marks:
        if mark.kind == kind:
            if open_ is not None and (open_.kind == kind or not mark.begins):
                found.append((open_, mark))
            open_ = mark if mark.begins else None
        elif mark.begins and open_ is None:
            open_ = mark
    return found


def _steps(begin: Mark, end: Mark, starts: Sequence[Mark], units: Units) -> float | None:
    """Steps of a block: by counters at its ends, or by those of the next one's begin."""
    later = next((s for s in starts if s.clock_s >= end.clock_s and s is not begin), None)
    for name in COUNTERS:
        for far in (end, later):
            if far is not None and (done := _between(begin, far, name)):
                return units.steps(done)
    done = _between(begin, end, "step")
    if done is None:
        return None
    # beside the samples of a block its steps are told, without them as a rule samples
    return done if done * units.batch in begin.counts.values() else units.steps(done)


def _size(begin: Mark, end: Mark, units: Units) -> float:
    """Steps of a block by a count of it alone; 0 without one."""
    for name in SIZES:
        if 0.0 < begin.counts.get(name, 0.0) <= MOST and (
            name in end.counts or name == "epoch_count"
        ):
            return units.steps(begin.counts[name])
    return 0.0


def _between(begin: Mark, end: Mark, name: str) -> float | None:
    """What a counter has counted from one mark to another; None where it does not say."""
    first, last = begin.counts.get(name), end.counts.get(name)
    if last is None or (first is None and begin.kind != "run"):
        return None
    done = last - (first or 0.0)
    return done if 0.0 < done <= MOST else None


def _marked(marks: Sequence[Mark]) -> bool:
    """Whether the log says when it evaluated."""
    return any(mark.kind == "eval" for mark in marks)


def _evaluating(marks: Sequence[Mark], begin_s: float, end_s: float) -> float:
    """Seconds of evaluation within a time."""
    total, began = 0.0, None
    for mark in (m for m in marks if m.kind == "eval"):
        if mark.begins:
            began = mark.clock_s
        elif began is not None:
            total += max(min(mark.clock_s, end_s) - max(began, begin_s), 0.0)
            began = None
    return total
