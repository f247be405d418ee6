"""Progress bars of tqdm: how far, after how long. Elapsed times are whole seconds, so that a pace
comes from states far apart."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from calibration.importers.found import number

BAR = re.compile(
    r"(\d{1,12})/(\d{1,12}) \[(?:(\d{1,4}):)?(\d{1,3}):(\d\d)<[^,\]]{1,40}, {1,4}"
    r"([\d.]{1,12})(s/it|it/s)"
)

LEAST = 20.0
"""Seconds between two states from which their pace is known within 5 %."""

WARM = 0.1
"""Share of a bar that counts as warm-up, at most."""


class State(NamedTuple):
    """A state of a bar. done, total: iterations. elapsed_s: since it began. pace_s: seconds of an
    iteration as the bar smooths them; None where it shows 0."""

    line: int
    done: int
    total: int
    elapsed_s: float
    pace_s: float | None


class Pace(NamedTuple):
    """Seconds of an iteration, and how they were told."""

    seconds: float
    says: str
    line: int


def state(line: int, text: str) -> State | None:
    """The last state of a bar that a line shows; None where it shows none.

    >>> state(1, " 50%|#####     | 25/50 [01:35<01:35,  3.80s/it]")
    State(line=1, done=25, total=50, elapsed_s=95.0, pace_s=3.8)
    """
    found = next(reversed(list(BAR.finditer(text))), None)
    if found is None:
        return None
    hours, minutes, seconds = (int(found[i] or 0) for i in (3, 4, 5))
    shown = number(found[6])
    pace = None if not shown else shown if found[7] == "s/it" else 1.0 / shown
    elapsed = 3600.0 * hours + 60.0 * minutes + seconds
    return State(line, int(found[1]), int(found[2]), elapsed, pace)


def bars(states: Sequence[State]) -> list[list[State]]:
    """States by bar: another one begins where the total changes, or what is done falls."""
    found: list[list[State]] = []
    for one in states:
        last = found[-1][-1] if found else None
        goes_on = last and one.total == last.total and one.elapsed_s >= last.elapsed_s
        if last and goes_on and one.done >= last.done:
            found[-1].append(one)
        else:
            found.append([one])
    return found


def pace(states: Sequence[State]) -> Pace | None:
    """Seconds of an iteration of one bar: between states far apart, without the first tenth; else
    as the bar shows them."""
    last = states[-1]
    begin = next((s for s in states if s.done >= max(WARM * last.done, 1.0)), last)
    took, done = last.elapsed_s - begin.elapsed_s, last.done - begin.done
    if took >= LEAST and done > 0:
        says = f"from {begin.done} to {last.done} of {last.total} of the progress bar"
        return Pace(took / done, says, begin.line)
    shown = [s.pace_s for s in states if s.pace_s]
    if not shown:
        return None
    says = f"median of {len(shown)} paces that the progress bar shows, which are smoothed"
    return Pace(statistics.median(shown), says, states[0].line)
