"""Changes of the level of a series of step times: two-sided cumulative sums of ln(seconds) against
the run's own earlier steps.

With z the deviation of a step from the level, in standard deviations of the run and cut at ±4,

    S⁺ ← max(0, S⁺ + z − k),   S⁻ ← max(0, S⁻ − z − k),

and a sum above h is a change, which began where that sum was 0 last (Page 1954, Biometrika 41,
100). One step that takes long (a checkpoint, an evaluation) adds 4 at most, and is no change.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np

from calibration.importers.steps import warm_up

SLOWER, FASTER, RECOVERED = "slower", "faster", "recovered"
"""Kinds of change: against the level before; back to one that was left for a slower one."""

SLACK = 0.75
"""Half of the change that is looked for [standard deviations of a step]: k."""

LIMIT = 10.0
"""Sum at which a series has changed: h. Of independent normal steps one in about 10⁷ gets there
without a change."""

CUT = 4.0
"""Deviation beyond which a step counts no more [standard deviations]."""

LEARNS, KNOWS = 20, 200
"""Steps from which a level is known, and after which it is held, so that a slow drift away from it
shows."""

SHORTEST_RUN = 3
"""Steps by which the level of a run is told that is too short to be followed."""

DOUBT = 1.0
"""Standard errors of the level that are added to k."""

NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


class Change(NamedTuple):
    """A series that left its level.

    Attributes:
      kind: `SLOWER`, `FASTER`, or `RECOVERED`: back at a level before a slow-down.
      step: number of the step that told. since: of the first step of the new level.
      before, after: seconds of a step at the two levels. spread: standard deviation of ln(seconds)
        of one step. doubt: of ln(factor).
    """

    kind: str
    step: int
    since: int
    before: float
    after: float
    spread: float
    doubt: float

    @property
    def factor(self) -> float:
        """How many times as long a step takes."""
        return self.after / self.before


class Level(NamedTuple):
    """Where a series stands.

    Attributes:
      mean: of ln(seconds). spread: standard deviation of one step around it. steps: that it is
        known by.
    """

    mean: float
    spread: float
    steps: int

    @classmethod
    def of(cls, logs: np.ndarray, least: float) -> Level:
        """The level of some steps, those far out cut; neighbours that are alike count as fewer.

        Args:
          least: spread at least.
        """
        middle = float(np.median(logs))
        core = NORMAL * float(np.median(np.abs(logs - middle)))
        cut = np.clip(logs - middle, -CUT * core, CUT * core)
        mean = float(cut.mean())
        spread = max(core, float(cut.std())) * _alike(cut - mean)
        return cls(middle + mean, max(spread, least), len(logs))

    @property
    def slack(self) -> float:
        """k, and more while few steps say where the level is."""
        return SLACK + DOUBT / math.sqrt(self.steps)


MOST_ALIKE = 0.8
"""Correlation of neighbours that is believed at most."""


def _alike(deviations: np.ndarray) -> float:
    """How many times as far the mean of many steps strays as that of independent ones, by the
    correlation of neighbours."""
    own = float((deviations**2).sum())
    if not own:
        return 1.0
    shared = float((deviations[1:] * deviations[:-1]).sum()) / own
    shared = min(max(shared, 0.0), MOST_ALIKE)
    return math.sqrt((1.0 + shared) / (1.0 - shared))


class Detector:
    """Follows one series.

    Attributes:
      level: None while it is learned.
    """

    def __init__(self, least: float = 0.02):
        """Start to learn.

        Args:
          least: relative change that matters [1].
        """
        self._floor = math.log1p(least) / (2.0 * SLACK)
        self._known: list[float] = []
        self._open: list[float] = []
        self._sums = {SLOWER: 0.0, FASTER: 0.0}
        self._since: dict[str, int] = {}
        self._recent: deque[tuple[int, float]] = deque(maxlen=KNOWS)
        self._left_behind: list[Level] = []
        self._is_warm = False
        self.level: Level | None = None

    @property
    def seconds(self) -> float | None:
        """Seconds of a step at the level; None while it is learned."""
        return None if self.level is None or self._is_learning else math.exp(self.level.mean)

    @property
    def so_far(self) -> float | None:
        """Seconds of a step by the few steps there are; None without three."""
        if len(self._known) < SHORTEST_RUN:
            return self.seconds
        times = [math.exp(x) for x in self._known]
        return float(np.median(times[warm_up(times) :]))

    def take(self, step: int, seconds: float) -> Change | None:
        """Add a step; a change that it completes.

        Args:
          step: its number. seconds: > 0.
        """
        x = math.log(seconds)
        if self.level is None or self._is_learning:
            self._known.append(x)
            self._recent.append((step, x))
            return self._learned() if self._has_enough else None
        self._recent.append((step, x))
        found = self._judged(step, x, self.level)
        if found is None and len(self._known) < KNOWS:
            self._learn_more(x)
        return found

    def _learn_more(self, x: float) -> None:
        """Let steps refine the level once they turn out to be no beginning of a change: all of
        them, since only those near the level would make it look narrow."""
        self._open.append(x)
        if not any(self._sums.values()):
            self._known += self._open
            self._open = []
            self.level = Level.of(np.array(self._known), self._floor)

    @property
    def _is_learning(self) -> bool:
        return len(self._known) < LEARNS

    @property
    def _has_enough(self) -> bool:
        """Whether the steps so far make a level; those of the warm-up go first, once."""
        if self._is_learning:
            return False
        if not self._is_warm:
            self._is_warm = True
            self._known = self._known[warm_up([math.exp(x) for x in self._known]) :]
        return not self._is_learning

    def _learned(self) -> Change | None:
        """Take what was learned as the level; a change where a slow-down did not last so long."""
        now, last = Level.of(np.array(self._known), self._floor), self.level
        self._sums = dict.fromkeys(self._sums, 0.0)
        if last is None:
            self.level = now
            return None
        self.level = now._replace(spread=last.spread)
        if not self._is_back(self.level):
            return None
        steps = [step for step, _ in self._recent]
        return self._changed(RECOVERED, steps[-1], steps[-LEARNS], last, self.level)

    def _is_back(self, now: Level) -> bool:
        """Whether a level is one that was left for a slower one; what came behind it is over."""
        for i, one in enumerate(self._left_behind):
            if now.mean - one.mean <= one.slack * one.spread:
                del self._left_behind[i:]
                return True
        return False

    def _judged(self, step: int, x: float, level: Level) -> Change | None:
        z = min(max((x - level.mean) / level.spread, -CUT), CUT)
        for kind, sign in ((SLOWER, 1.0), (FASTER, -1.0)):
            if self._sums[kind] == 0.0:
                self._since[kind] = step
            self._sums[kind] = max(0.0, self._sums[kind] + sign * z - level.slack)
            if self._sums[kind] > LIMIT:
                return self._left(kind, step, level)
        return None

    def _left(self, kind: str, step: int, level: Level) -> Change:
        """The level is left: the steps of the new one are learned."""
        since = self._since[kind]
        new = [x for n, x in self._recent if n >= since]
        self._known, self._open = [], []
        self._sums = dict.fromkeys(self._sums, 0.0)
        self.level = Level(float(np.median(new)), level.spread, len(new))
        if kind == SLOWER:
            self._left_behind.append(level)
        elif self._is_back(self.level):
            kind = RECOVERED
        return self._changed(kind, step, since, level, self.level)

    def _changed(self, kind: str, step: int, since: int, before: Level, after: Level) -> Change:
        doubt = before.spread * math.sqrt(1.0 / before.steps + 1.0 / after.steps)
        levels = math.exp(before.mean), math.exp(after.mean)
        return Change(kind, step, since, *levels, before.spread, doubt)
