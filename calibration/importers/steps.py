"""Times of many steps → one: warm-up dropped, median, spread; how much of it in words, for the note
of the row."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from calibration.importers.found import Result, number

SETTLED = 0.1
"""A run is warm from the first step within this of the median of its second half."""

SHORTEST, LONGEST = 1e-6, 1e6
"""Seconds that a step may take; beyond it a figure is a slip."""


class Step(NamedTuple):
    """One logged step (or mean of some). line: of the file. number: as logged. metrics: other
    figures beside the time, by name. clock: when it was logged [s], None = not told."""

    line: int
    number: int
    seconds: float
    metrics: Mapping[str, float] = {}
    clock: float | None = None


class Summary(NamedTuple):
    """A run of steps. seconds: median after warm-up. kept, dropped: steps. line: of the first.
    note: all that in words. steps: kept ones. every: those dropped, too."""

    seconds: float
    kept: int
    dropped: int
    line: int
    note: str
    steps: tuple[Step, ...]
    every: tuple[Step, ...]

    def median(self, name: str) -> float | None:
        """Median of another figure over the kept steps that have it."""
        found = [s.metrics[name] for s in self.steps if name in s.metrics]
        return statistics.median(found) if found else None

    def largest(self, name: str) -> float | None:
        """Largest value of another figure over the kept steps that have it."""
        return max((s.metrics[name] for s in self.steps if name in s.metrics), default=None)


class _Run:
    """Steps of one run while they are told apart. first: number it began with. times: seconds and
    clock by number."""

    def __init__(self, step: Step) -> None:
        self.steps = [step]
        self.first = step.number
        self.times = {step.number: step}

    def take(self, step: Step) -> None:
        """Add a step."""
        self.steps.append(step)
        self.first = min(self.first, step.number)
        self.times.setdefault(step.number, step)

    def goes_on_with(self, step: Step) -> bool:
        """Whether a step is of this run: later, or one that another rank or a restart logged."""
        if self._means_begin_anew(step):
            return False
        if known := self.times.get(step.number):
            return _is_same(known, step, step.number == self.first)
        return step.number >= self.first - (len(self.steps) == 1)

    def _means_begin_anew(self, step: Step) -> bool:
        """Whether a running mean of rates (`running`) starts again: it is what the step alone
        makes, and not what the steps before would leave of it."""
        last, begin = self.steps[-1], self.steps[0]
        if "running" not in step.metrics or len(self.steps) < 3:
            return False
        told = step.metrics["running"]
        n, took = len(self.steps), sum(s.seconds for s in self.steps)
        on = last.metrics.get("running", told) * (n + 1) / n * took / (took + step.seconds)
        anew = begin.metrics.get("running", told) * begin.seconds / step.seconds
        return abs(told - anew) < 0.1 * told and abs(told - on) > 0.2 * told


TOGETHER = 2.0
"""Seconds between lines of several ranks on one step, at most, or the step's own time."""


def _is_same(known: Step, step: Step, is_first: bool) -> bool:
    """Whether two logged times are of one step: alike, or written at the same time; those of a
    run's first step differ by what each rank compiles. A first step that comes again later begins
    another run."""
    if known.clock is not None and step.clock is not None:
        near = abs(step.clock - known.clock) <= max(TOGETHER, known.seconds, step.seconds)
        later = step.clock > known.clock and not is_first
        return near or (later and _is_alike(known, step))
    return is_first or _is_alike(known, step)


def _is_alike(known: Step, step: Step) -> bool:
    return abs(step.seconds / known.seconds - 1.0) <= SETTLED


def runs(steps: Iterable[Step]) -> list[list[Step]]:
    """Steps by run, in the order of the file: another one begins where numbers fall behind the
    first, or where a step comes again with another time. Ranks that log the same step, and a
    restart that goes on as fast, are one run.

    >>> [len(run) for run in runs([Step(1, 36, 4.0), Step(2, 9, 8.0), Step(3, 10, 8.0)])]
    [1, 2]
    """
    found: list[_Run] = []
    for step in steps:
        if found and found[-1].goes_on_with(step):
            found[-1].take(step)
        else:
            found.append(_Run(step))
    return [run.steps for run in found]


def pooled(steps: Iterable[Step]) -> list[Step]:
    """Steps by number; those that several ranks logged, or a restarted run did again, count once,
    with their median."""
    by_number: dict[int, list[Step]] = {}
    for step in steps:
        by_number.setdefault(step.number, []).append(step)
    return [_one(n, same) for n, same in sorted(by_number.items())]


def _one(n: int, same: list[Step]) -> Step:
    """One step for several of a number."""
    metrics: dict[str, list[float]] = {}
    for step in same:
        for name, value in step.metrics.items():
            metrics.setdefault(name, []).append(value)
    return Step(
        min(s.line for s in same),
        n,
        statistics.median(s.seconds for s in same),
        {name: statistics.median(values) for name, values in metrics.items()},
    )


def warm_up(seconds: Sequence[float], least: int = 1) -> int:
    """Leading steps to drop: those before the first that is within `SETTLED` of the median of the
    second half; `least` of three or more (compilation, allocation, first batches), and half of all
    at most.

    >>> warm_up([30.0, 4.0, 2.0, 2.1, 2.0, 2.0]), warm_up([2.0, 2.0, 2.0]), warm_up([2.0])
    (2, 1, 0)
    """
    if len(seconds) < 3:
        return 0
    settled = statistics.median(seconds[len(seconds) // 2 :])
    leading = next((i for i, t in enumerate(seconds) if abs(t / settled - 1.0) <= SETTLED), 0)
    return min(max(leading, least), len(seconds) // 2)


def summary(
    result: Result, steps: Iterable[Step], each: str = "step", least: int = 1
) -> Summary | None:
    """Median and spread of steps after warm-up; None without steps. Fewer than three are named as a
    trouble.

    Args:
      each: what one figure of the log stands for ("mean of 10 steps"). least: leading figures to
        drop at least; none where each is the mean of many steps.
    """
    all_steps = pooled(steps)
    if not all_steps:
        return None
    dropped = warm_up([s.seconds for s in all_steps], least)
    kept = all_steps[dropped:]
    median = statistics.median(s.seconds for s in kept)
    if not dropped and least:
        result.bad_line(
            all_steps[0].line,
            f"only {len(kept)} logged times from here: warm-up cannot be told, and may be in the "
            "step time",
        )
    text = (
        f"median of {len(kept)} logged times"
        + (f", each the {each}" if each != "step" else "")
        + _dropped_in_words(all_steps[:dropped], median, least)
        + _spread_in_words([s.seconds for s in kept], median)
    )
    first, every = all_steps[0].line, tuple(all_steps)
    return Summary(median, len(kept), dropped, first, text, tuple(kept), every)


def _dropped_in_words(dropped: list[Step], median: float, least: int) -> str:
    if not dropped:
        return ", none dropped: too few to tell warm-up" if least else ", no warm-up seen"
    worst = max(s.seconds for s in dropped) / median
    return f", {len(dropped)} before them dropped as warm-up (up to {worst:.3g} times the median)"


def _spread_in_words(seconds: list[float], median: float) -> str:
    """Where the middle half lies, of more than three."""
    if len(seconds) <= 3:
        return ""
    quarter, _, three = statistics.quantiles(seconds, n=4)
    low, high = 100 * (quarter / median - 1), 100 * (three / median - 1)
    return f"; middle half {low:+.2g} to {high:+.2g} %"


def seconds_of(
    result: Result, line: int, text: object, scale: float = 1.0, what: str = "step time"
) -> float | None:
    """A time [s] out of a log; one that cannot be is named and None."""
    value = number(text)
    if value is None or not SHORTEST <= value * scale <= LONGEST:
        shown = str(text).strip()[:30]
        result.bad_line(
            line,
            (
                f"{what}: expected a time from {SHORTEST:g} to {LONGEST:g} s, got {shown!r}; this "
                "step is left out"
            ),
        )
        return None
    return value * scale


def numbered(result: Result, line: int, text: object) -> int | None:
    """Number of a step out of a log; one that cannot be is named and None."""
    value = number(text)
    if value is None or not 0.0 <= value < 1e12 or value != int(value):
        result.bad_line(
            line,
            (
                f"step number: expected a whole number, got {str(text).strip()[:30]!r}; this step "
                "is "
                "left out"
            ),
        )
        return None
    return int(value)
