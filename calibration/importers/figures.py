"""Rows of logs whose steps are figures by name (`calibration.importers.frameworks`): times
from times or rates, what follows from quotients of rates, and one row for each run."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from calibration.importers.found import Result, number
from calibration.importers.frameworks import Framework
from calibration.importers.source import Line, Source, clock
from calibration.importers.steps import LONGEST, SHORTEST, Step, Summary, numbered, runs, summary

PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}

Figures = dict[str, float]


class _Logged(NamedTuple):
    """One step as logged."""

    line: int
    step: int
    figures: Figures
    clock: float | None


def parser(framework: Framework) -> Callable[[Source], Result]:
    """A function that reads a log of a framework: one row for each run in it."""

    def parse(source: Source) -> Result:
        return _parse(framework, source)

    return parse


def _parse(framework: Framework, source: Source) -> Result:
    result = Result(source.name)
    told = _facts(framework, source.lines)
    logged = [
        step
        for line, text in _records(framework, source.lines)
        if (step := _logged(framework, result, line, text)) is not None
    ]
    if not logged:
        return result
    batch = _batch(told, logged)
    steps = [step for one in logged if (step := _step(one, batch)) is not None]
    for run in runs(steps):
        _row(framework, result, told, run, logged)
    return result


def _facts(framework: Framework, lines: Sequence[Line]) -> dict[str, Any]:
    """What other lines tell, the last one counts."""
    told: dict[str, Any] = {}
    for fact in framework.facts:
        for _, text in lines:
            if found := fact.pattern.search(text):
                text = found[1] or found[2]
                value = fact.words.get(text) if fact.words else number(text)
                told |= {} if value is None else {fact.column: value}
    return told


def _records(framework: Framework, lines: Sequence[Line]) -> Iterator[Line]:
    """Text of each step, one line or several."""
    i = 0
    while i < len(lines):
        line, text = lines[i]
        i += 1
        if not framework.step.search(text):
            continue
        parts = [text]
        while framework.goes_on and i < len(lines) and framework.goes_on.search(lines[i].text):
            parts.append(lines[i].text)
            i += 1
        yield Line(line, "\n".join(parts))


def _logged(framework: Framework, result: Result, line: int, text: str) -> _Logged | None:
    """The figures of a step; one without a rate or a time is named and None."""
    figures = _figures(framework, text)
    if not any(kind in figures for kind in RATES):
        # headings come without rates at steps that report none
        if not framework.goes_on:
            result.bad_line(
                line, "a step without a time or a rate: the line is cut short, or damaged; left out"
            )
        return None
    found = framework.step.search(text)
    which = next((group for group in found.groups() if group), None) if found else None
    step = line if which is None else numbered(result, line, which)
    return None if step is None else _Logged(line, step, figures, clock(text))


def _figures(framework: Framework, text: str) -> Figures:
    """The figures of a step, of several of a kind the first that is there."""
    figures: Figures = {}
    for quantity in framework.quantities:
        match = quantity.pattern.search(text)
        value = _figure(match) if match and quantity.kind not in figures else None
        if value is not None:
            figures[quantity.kind] = value * quantity.scale
    return figures


RATES = ("seconds", "steps", "samples", "tokens", "tokens_each", "running")


def _figure(match: re.Match[str]) -> float | None:
    """A positive figure; None where it is none."""
    value = number(match[1].rstrip(".,"))
    prefix = match[2] if match.re.groups > 1 else ""
    return value * PREFIXES[prefix or ""] if value is not None and value > 0.0 else None


def _batch(told: Mapping[str, Any], logged: Sequence[_Logged]) -> float | None:
    """Sequences of a step: as told, or as rates make it."""
    said = _median(logged, lambda f: f.get("batch"))
    made = _median(logged, lambda f: _over(f, "samples", "steps"))
    made = made or _median(logged, lambda f: _times(f, "samples", "seconds"))
    return told.get("global_batch") or said or _whole(made)


def _over(figures: Figures, above: str, below: str) -> float | None:
    return figures[above] / figures[below] if above in figures and below in figures else None


def _times(figures: Figures, one: str, other: str) -> float | None:
    return figures[one] * figures[other] if one in figures and other in figures else None


def _median(logged: Sequence[_Logged], of: Callable[[Figures], float | None]) -> float | None:
    found = [x for one in logged if (x := of(one.figures)) is not None]
    return statistics.median(found) if found else None


NEAR_WHOLE = 0.01
"""Share by which a quotient of logged rates, which are rounded, may differ from a whole number."""


def _whole(value: float | None) -> int | None:
    """The whole number that a quotient of rounded figures is; None where it is none."""
    if value is None or not 0.5 <= value <= 1e15:
        return None
    return round(value) if abs(value - round(value)) <= NEAR_WHOLE * value else None


def _step(one: _Logged, batch: float | None) -> Step | None:
    """A step with its time; where only a rate is told, the time of one token or sequence."""
    f = one.figures
    seconds = f.get("seconds")
    if seconds is None and "steps" in f:
        seconds = 1.0 / f["steps"]
    rate = f.get("samples", f.get("running"))
    if seconds is None and rate:
        seconds = (batch or 1.0) / rate
    if seconds is None:
        seconds = 1.0 / f.get("tokens_each", f.get("tokens", 1.0))
    if not 1e-9 <= seconds <= LONGEST:
        return None
    return Step(one.line, one.step, seconds, f, one.clock)


def _row(
    framework: Framework,
    result: Result,
    told: dict[str, Any],
    run: list[Step],
    logged: Sequence[_Logged],
) -> None:
    found = summary(result, run)
    if found is None:
        return
    mine = [one for one in logged if any(one.line == s.line for s in run)]
    cells = told | _derived(mine, told)
    timed = _is_timed(found, cells)
    notes = [found.note, framework.says, *_remarks(mine, found, cells, timed)]
    if not timed and "tokens_each" not in found.steps[0].metrics:
        result.bad_line(found.line, _open(found))
        result.hints.setdefault("global_batch", "… (without it a rate makes no step time)")
    rate = found.median("tokens_each") or _each(found.median("tokens"), cells)
    result.add(
        found.line,
        cells
        | {
            "stack": framework.stack,
            "step_time_s": found.seconds if timed and found.seconds >= SHORTEST else None,
            "tokens_per_s_per_accel": rate,
            "tflops_reported": found.median("tflops"),
            "mfu_reported": found.median("mfu"),
            "peak_memory_gib": found.largest("memory"),
            "note": "; ".join(filter(None, notes)),
        },
        {} if timed else _rates(found),
        found.every,
    )


def _rates(found: Summary) -> dict[str, float | None]:
    """Rates of all devices."""
    samples = found.median("samples") or found.median("running")
    return {"samples_per_s": samples, "tokens_per_s": found.median("tokens")}


def _each(rate: float | None, cells: Mapping[str, Any]) -> float | None:
    return rate / cells["n_accel"] if rate and cells.get("n_accel") else None


def _open(found: Summary) -> str:
    rate = found.median("samples") or found.median("running")
    what = f"{rate:.6g} sequences" if rate else f"{found.median('tokens') or 0.0:.6g} tokens"
    return f"a rate of {what} a second makes a step time only with the global batch"


def _is_timed(found: Summary, cells: Mapping[str, Any]) -> bool:
    """Whether the steps have times, and not rates alone."""
    told = found.steps[0].metrics
    by_batch = ("samples" in told or "running" in told) and bool(cells.get("global_batch"))
    return "seconds" in told or "steps" in told or by_batch


def _derived(mine: Sequence[_Logged], told: Mapping[str, Any]) -> dict[str, Any]:
    """Cells that follow from quotients of rates."""
    out = {
        "global_batch": told.get("global_batch") or _batch(told, mine),
        "seq_len": _whole(_median(mine, lambda f: f.get("seq") or _over(f, "tokens", "samples"))),
        "n_accel": told.get("n_accel")
        or _whole(
            _median(
                mine,
                lambda f: _over(f, "tokens", "tokens_each") or _over(f, "samples", "samples_each"),
            )
        ),
    }
    return {name: value for name, value in out.items() if value}


def _remarks(
    mine: Sequence[_Logged], found: Summary, cells: Mapping[str, Any], timed: bool
) -> list[str]:
    """What else the figures tell of a step."""
    tokens = [one.figures["consumed"] / (one.step + 1) for one in mine if "consumed" in one.figures]
    notes = []
    if tokens and max(tokens) <= 1.001 * min(tokens):
        notes.append(f"{tokens[0]:g} tokens a step (num_consumed_tokens over steps)")
    if timed and not cells.get("n_accel") and "tokens_each" in found.steps[0].metrics:
        each = found.median("tokens_each") or 0.0
        notes.append(f"{each * found.seconds:.6g} tokens a step and device")
    return notes
