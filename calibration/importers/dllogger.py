"""Logs of DLLogger as NVIDIA's DeepLearningExamples write them: `DLLL {json}` lines whose step is a
list, `[epoch, step]` or `[epoch, iteration, step]`; `[epoch]` ends one, `[]` is the summary.

Such lines hold losses and rates by names of each project's own, but all the seconds since the
start: the time of a step is the difference to the line before, over the steps in between.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from calibration.importers.found import Result, number
from calibration.importers.source import Source
from calibration.importers.steps import LONGEST, SHORTEST, Step, runs, summary

NAME = "dllogger"
SIGN = re.compile(r"\bDLLL \{[^\n]{0,400}?\"step\": ?(?:\[\d|\d)")

_LOGGER = re.compile(r"\bDLLL (\{.*)$")
_SIZES = {
    "seq_len": re.compile(r"\bmax_seq_length=(\d{1,9})\b"),
    "micro_batch": re.compile(r"\bbatch_size_per_gpu=(\d{1,9})\b"),
    "recompute": re.compile(r"\bcheckpoint_activations=(True)\b"),
}
"""Column → what a parameter `Config`, a printed namespace, says of it."""

_NAMED = {"batch_size_per_gpu": "micro_batch", "max_seq_length": "seq_len"}
"""Parameter → column."""

EVALUATES = re.compile(r"\b(?:val|valid|validation|eval|test)(?:[._/ ]|uation|$)")
"""How names of figures begin that no training step logs."""


class _At(NamedTuple):
    """A line of a step. counter: within the run. elapsed: since the start [s]."""

    line: int
    counter: int
    elapsed: float


def parse(source: Source) -> Result:
    """One row for each run in the log."""
    result, told, at = Result(source.name), {}, []
    for line, text in source.lines:
        found = _LOGGER.search(text)
        entry = _entry(result, line, found[1]) if found else None
        if entry is None:
            continue
        if entry.get("step") == "PARAMETER":
            told |= _told(entry["data"])
        elif (logged := _at(line, entry)) is not None:
            at.append(logged)
    for run in runs(_steps(at)):
        _row(result, told, run)
    if not result.rows and at:
        result.bad_line(at[0].line, "steps without a second one after a known time; left out")
    return result


def _entry(result: Result, line: int, text: str) -> dict[str, Any] | None:
    """The object of a line; None where it has no data."""
    try:
        entry = json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError) as error:
        result.bad_line(line, f"no whole JSON object after DLLL ({str(error)[:60]}); left out")
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("data"), dict) else None


def _told(data: dict[str, Any]) -> dict[str, Any]:
    """Cells that parameters say."""
    printed = " ".join(str(value)[:20000] for name, value in data.items() if name == "Config")
    found = {column: p.search(printed) for column, p in _SIZES.items()}
    cells: dict[str, Any] = {column: m[1] for column, m in found.items() if m}
    if "recompute" in cells:
        cells["recompute"] = "full"
    return cells | {column: data[name] for name, column in _NAMED.items() if name in data}


def _at(line: int, entry: dict[str, Any]) -> _At | None:
    """Where a training step's line stands; None for ends of epochs, summaries and evaluations."""
    step = entry.get("step")
    counters = step if isinstance(step, list) else [None, step]
    if len(counters) < 2 or all(EVALUATES.match(str(name)) for name in entry["data"]):
        return None
    counter = number(counters[-1])
    elapsed = number(entry.get("elapsedtime", entry.get("timestamp")))
    if counter is None or elapsed is None or not 0.0 <= counter < 1e12:
        return None
    return _At(line, int(counter), elapsed)


def _steps(at: list[_At]) -> list[Step]:
    """Times from one line to the next, of steps whose counter goes up."""
    found = []
    for before, after in zip(at, at[1:], strict=False):
        count, passed = after.counter - before.counter, after.elapsed - before.elapsed
        if count > 0 and SHORTEST <= passed / count <= LONGEST:
            found.append(Step(after.line, after.counter, passed / count, {"of": float(count)}))
    return found


def _row(result: Result, told: dict[str, Any], steps: list[Step]) -> None:
    found = summary(result, steps)
    if found is None:
        return
    each = found.median("of") or 1.0
    notes = [found.note, "times are differences of DLLogger's clock"]
    notes += [f"one line for {each:g} steps"] if each > 1.0 else []
    cells = told | {"step_time_s": found.seconds, "note": "; ".join(notes)}
    result.add(found.line, cells)
