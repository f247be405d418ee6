"""Time something that a device does: warm up, repeat until the median is known well enough, keep
what was seen.

Compilation is not timed here (`program.compiled`). A sample is the mean of one or more calls; calls
may be in flight together, so that a device works through them without waiting for the host, and a
sample ends when the last result is there. The interval is looked at after every batch of samples,
and looking often makes it a little less certain than it says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

KEPT = 256
"""Samples kept one by one; of more of them 21 quantiles are kept, and every outlier (up to this
many)."""

OUTLIER = 5.0
"""A sample is an outlier when it lies further from the median than this many times the median
distance."""


class Settings(NamedTuple):
    """When to stop repeating.

    Attributes:
      confidence: of the interval around the median. precision: its half width over the median that
        is good enough.
      fewest, most: samples. longest_s: seconds of repeating after which the interval is taken as it
        is.
      warmup_calls, warmup_s: at least so many calls and seconds before the first sample.
      sample_s: least length of a sample, which decides how many calls it takes [s].
    """

    confidence: float = 0.95
    precision: float = 0.01
    fewest: int = 7
    most: int = 200
    longest_s: float = 2.0
    warmup_calls: int = 2
    warmup_s: float = 0.1
    sample_s: float = 2e-3


class Timing(NamedTuple):
    """Samples [s per call], calls in each, seconds of warming up, and whether the median met the
    precision asked for."""

    samples: tuple[float, ...]
    calls: int
    warmup_s: float
    settled: bool
    confidence: float


@lru_cache(maxsize=4096)
def interval_ranks(n: int, confidence: float) -> tuple[int, int] | None:
    """Ranks, from 0, of the two ordered samples between which the median lies with at least this
    confidence; None when n are too few.

    `P(x_(l) ≤ median ≤ x_(n−1−l)) = 1 − 2 Σ_{k ≤ l} C(n, k) / 2ⁿ`, whatever the distribution (the
    sign test's interval).

    >>> interval_ranks(5, 0.95), interval_ranks(6, 0.95), interval_ranks(100, 0.95)
    (None, (0, 5), (39, 60))
    """
    tail, low = 0.0, -1
    while (
        low + 1 < n - low - 2 and 2.0 * (tail + math.comb(n, low + 1) / 2.0**n) <= 1.0 - confidence
    ):
        low += 1
        tail += math.comb(n, low) / 2.0**n
    return None if low < 0 else (low, n - 1 - low)


def median(values: Sequence[float]) -> float:
    """The middle of the ordered values."""
    ordered = sorted(values)
    n = len(ordered)
    return 0.5 * (ordered[(n - 1) // 2] + ordered[n // 2])


def half_width(samples: Sequence[float], confidence: float) -> float:
    """Half width of the median's interval over the median [1]; infinite while the samples are too
    few."""
    ranks = interval_ranks(len(samples), confidence)
    if ranks is None:
        return math.inf
    ordered = sorted(samples)
    return 0.5 * (ordered[ranks[1]] - ordered[ranks[0]]) / median(ordered)


def timed(
    call: Callable[[int], Any],
    wait: Callable[[Any], Any],
    settings: Settings,
    *,
    in_flight: int = 1,
    agree: Callable[[int], int] = lambda value: value,
    between: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Repeat a call until its median is known.

    Args:
      call: starts the i-th call and returns its result. wait: returns when a result is there.
      in_flight: calls that may be started before one is waited for.
      agree: process 0's value of an integer, so that all processes of a job make the same calls.
      between: done between batches of samples, outside the time (sensors).
    """
    started, number = clock(), 0
    while number < settings.warmup_calls or agree(int(clock() - started < settings.warmup_s)):
        began = clock()
        wait(call(number))
        one, number = max(clock() - began, 1e-9), number + 1
    warmup = clock() - started
    calls = agree(max(1, min(math.ceil(settings.sample_s / one), 10_000)))
    samples: list[float] = []
    began, wanted = clock(), settings.fewest
    while True:
        between()
        while len(samples) < wanted:
            samples.append(_sample(call, wait, number, calls, in_flight, clock))
            number += calls
        settled = half_width(samples, settings.confidence) <= settings.precision
        spent = clock() - began >= settings.longest_s or len(samples) >= settings.most
        if agree(int(settled or spent)):
            return Timing(tuple(samples), calls, warmup, settled, settings.confidence)
        wanted = min(len(samples) + max(len(samples) // 2, 1), settings.most)


def _sample(
    call: Callable[[int], Any],
    wait: Callable[[Any], Any],
    first: int,
    calls: int,
    in_flight: int,
    clock: Callable[[], float],
) -> float:
    """Mean time of a call [s]."""
    began = clock()
    result = None
    for i in range(calls):
        result = call(first + i)
        if (i + 1) % in_flight == 0:
            wait(result)
    wait(result)
    return (clock() - began) / calls


def summary(timing: Timing) -> dict[str, Any]:
    """The samples as they are stored: median with its interval, spread, all samples or their
    quantiles, outliers."""
    ordered, n = sorted(timing.samples), len(timing.samples)
    middle = median(ordered)
    away = [abs(x - middle) for x in ordered]
    deviation = median(away)
    outliers = [x for x, off in zip(ordered, away, strict=True) if off > OUTLIER * deviation]
    low, high = interval_ranks(n, timing.confidence) or (0, n - 1)
    found: dict[str, Any] = {
        "median_s": middle,
        "low_s": ordered[low],
        "high_s": ordered[high],
        "confidence": timing.confidence,
        "settled": timing.settled,
        "fastest_s": ordered[0],
        "mean_s": sum(ordered) / n,
        "deviation_s": deviation,
        "samples": n,
        "calls": timing.calls,
        "warmup_s": timing.warmup_s,
        "outliers": len(outliers),
    }
    if n <= KEPT:
        found["all_s"] = list(timing.samples)
    else:
        found["quantiles_s"] = [ordered[round(q * (n - 1) / 20)] for q in range(21)]
        found["outliers_s"] = sorted(outliers, key=lambda x: -abs(x - middle))[:KEPT]
    return {k: _rounded(v) for k, v in found.items()}


def _rounded(value: Any) -> Any:
    """Seconds to seven digits: clocks know no more."""
    if isinstance(value, list):
        return [_rounded(x) for x in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value
