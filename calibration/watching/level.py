"""The level of a run against a profile, and what may be behind it or behind a change."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from calibration.traces.table import Row
from calibration.watching.changes import SLOWER, Change
from calibration.watching.runs import News
from dmodel.asked import chosen_profile, where_blank
from dmodel.diagnose.changed import why
from dmodel.diagnose.diagnosis import INSIDE, Diagnosis, diagnose
from dmodel.diagnose.measured import Measured
from dmodel.diagnose.subject import Stated, Subject, subject
from dmodel.resolve import resolve

MOST = 5
"""Causes that are told of one piece of news."""

LEAST = 0.01
"""Probability from which a cause is told."""


def stated(row: Row, profile: str | None) -> tuple[Stated, str]:
    """The run of a row with the profile that answers, and why that one.

    Raises:
      InputError: what the row says is no run, or an unknown profile.
    """
    question = row.question
    found, reason = chosen_profile(profile, row.accelerator, row.stack)
    resolved = resolve(question, where_blank(found, row.stack))
    return Stated(question, resolved, found, row.accelerator, row.stack), reason


class Expected:
    """What a profile expects of a run.

    Attributes:
      profile: its name. reason: why this one.
    """

    def __init__(self, row: Row, profile: str | None):
        """As `stated`."""
        self._stated, self.reason = stated(row, profile)
        self.profile = self._stated.profile.name

    @cached_property
    def _subject(self) -> Subject:
        return subject(self._stated)

    def judged(self, seconds: float) -> Diagnosis:
        """A level [s] against what such runs take."""
        return diagnose(self._subject, Measured("time", seconds))

    def causes(self, change: Change, seconds: float) -> list[dict[str, Any]]:
        """What may be behind a change; seconds as the run's own level before has them.

        Args:
          seconds: of a step at the level before [s].
        """
        predicted = self.judged(seconds).predicted_s
        found = why(self._subject, predicted, change.factor, change.doubt)
        return [
            _cause(each) | {"seconds": each.seconds * seconds / predicted}
            for each in found[:MOST]
            if each.probability >= LEAST
        ]


def _cause(each: Any) -> dict[str, Any]:
    return {
        "name": each.name,
        "title": each.title,
        "probability": each.probability,
        "seconds": each.seconds,
        "says": each.says,
        "test": each.test
        and {n: each.test[n] for n in ("name", "does", "looks") if n in each.test},
    }


def document(news: News, expected: Expected | None) -> dict[str, Any]:
    """A piece of news as plain data: `kind` is that of a change, or `level` with its `verdict`."""
    about: dict[str, Any] = {"run": news.run.name, "step": news.step, "seconds": news.seconds}
    change = news.change
    if change is not None:
        before = news.run.seconds(change.before)
        about |= {
            "kind": change.kind,
            "since": change.since,
            "before": before,
            "factor": change.factor,
            "spread": change.spread,
            "causes": [],
        }
        if expected is not None and before is not None and change.kind == SLOWER:
            about["causes"] = expected.causes(change, before)
        return about
    about["kind"] = "level"
    if expected is None or news.seconds is None:
        return about | {"verdict": None, "why": news.run.lacks, "causes": []}
    found = expected.judged(news.seconds)
    causes = [_cause(c) for c in found.causes[:MOST] if c.probability >= LEAST]
    return about | {
        "verdict": found.verdict,
        "predicted": found.predicted_s,
        "interval": list(found.interval),
        "percentile": found.percentile,
        "profile": expected.profile,
        "causes": [] if found.verdict == INSIDE else causes,
    }


def is_alarm(about: dict[str, Any]) -> bool:
    """Whether somebody should look: a run became slower, is slower than such runs, or stands
    still."""
    return about["kind"] in (SLOWER, STALLED) or about.get("verdict") == SLOWER


STALLED = "stalled"
