"""Golden values of Megatron-LM's functional tests: series of a run by step, one JSON document."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from calibration.importers.found import Result, number
from calibration.importers.source import Source
from calibration.importers.steps import LONGEST, SHORTEST, Step, summary
from dmodel.units import GIB

NAME, STACK = "megatron-golden", "megatron-lm"
SIGN = re.compile(r'^\s*\{[\s\S]{0,4000}?"(?:start_step|iteration-time|iteration_timing_avg)"\s*:')

TIME, MEAN = "iteration-time", "iteration_timing_avg"
"""Times of iterations [s], and the mean of all (documents of old versions)."""

MEMORY = ("mem-max-allocated-bytes", "mem-allocated-bytes")


def parse(source: Source) -> Result:
    """One row: of the run that the values were taken from."""
    result = Result(source.name)
    try:
        document = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        result.bad_line(1, f"no whole JSON document ({str(error)[:60]}); nothing of it is read")
        return result
    if not isinstance(document, dict):
        result.bad_line(1, "expected a JSON object of series by name")
        return result
    _row(result, document)
    return result


def _row(result: Result, document: dict[str, Any]) -> None:
    steps = [
        Step(1, n, seconds)
        for n, seconds in _series(document.get(TIME)).items()
        if SHORTEST <= seconds <= LONGEST
    ]
    found = summary(result, steps)
    mean = number(document.get(MEAN)) or 0.0
    if found is None and not SHORTEST <= mean <= LONGEST:
        names = ", ".join(str(name)[:40] for name in list(document)[:8])
        result.bad_line(1, f"no {TIME}: it has {names}; nothing measured a step")
        return
    peak = _peak(document)
    notes = [found.note if found else f"{MEAN}: mean of the run, warm-up included"]
    notes += [f"peak {peak / 1e9:.4g} GB (10^9 bytes)"] if peak else []
    result.add(
        1,
        {
            "stack": STACK,
            "step_time_s": found.seconds if found else mean,
            "peak_memory_gib": peak / GIB if peak else None,
            "peak_kind": "allocated" if peak else None,
            "note": "; ".join(notes),
        },
    )


def _peak(document: Mapping[str, Any]) -> float | None:
    """The highest use of memory [byte]."""
    return next((max(s.values()) for n in MEMORY if (s := _series(document.get(n)))), None)


def _series(series: Any) -> dict[int, float]:
    """Figures by step; what is no number is left out, since times are kept of some steps only."""
    values = series.get("values") if isinstance(series, Mapping) else None
    if isinstance(values, list):
        values = {str(i): x for i, x in enumerate(values)}
    if not isinstance(values, Mapping):
        return {}
    found = {step: number(x) for step, x in values.items()}
    return {
        int(n): x
        for step, x in found.items()
        if x is not None and x > 0.0 and (n := number(step)) is not None and abs(n) < 1e12
    }
