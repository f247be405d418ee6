"""Training logs of the Hugging Face Trainer and what is built on it (Axolotl, LLaMA-Factory, TRL):
the header of a run, its figures at the end, its progress bar, and LLaMA-Factory's
`trainer_log.jsonl`."""

from __future__ import annotations

import re
import statistics
from typing import Any, NamedTuple

from calibration.importers.bars import Pace, State, bars, pace, state
from calibration.importers.found import Result, count, number
from calibration.importers.source import Line, Source
from calibration.importers.steps import LONGEST, SHORTEST

NAME, STACK = "trainer", "transformers"
SIGN = re.compile(
    r"train_runtime['\"]?\s*[:=]|\*{5} Running training \*{5}|\{'loss': '?[\d.]+'?,|"
    r"\"current_steps\": \d+, \"total_steps\": \d+"
)

_BEGIN = re.compile(r"\*{5} Running training \*{5}")
_FIGURE = re.compile(
    r"['\"]?\b(train_runtime|train_samples_per_second|train_steps_per_second|epoch|throughput|"
    r"tokens_per_second_per_gpu|tokens/train_per_sec_per_gpu|num_input_tokens_seen|"
    r"current_steps|total_steps|elapsed_time|total_tokens|"
    r"memory/[a-z_]+ ?\((?:gib|GiB)\))['\"]?\s*[:=]\s*['\"]?"
    r"((?:\d+ days?, )?\d{1,4}:\d\d:\d\d(?:\.\d+)?|[\d,]+(?:\.\d+)?(?:[eE][+\-]?\d+)?)"
)
_HEADER = re.compile(
    r"^(?:.*(?:>>|\]|INFO)\s*[:\-]?)?\s*(Num examples|Num Epochs|"
    r"Instantaneous batch size per device|Total train batch size[^=]*|"
    r"Gradient Accumulation steps|Total optimization steps|"
    r"Number of trainable parameters) = ([\d,]+)\s*$"
)
_LABEL = re.compile(r"^[A-Za-z][^|]{0,80}:\s")

STACKS = (
    ("axolotl", re.compile(r"\[axolotl\.|\baxolotl\.|memory/(?:max_(?:mem_)?active|device_)")),
    ("llama-factory", re.compile(r"llama_?factory|\"current_steps\": \d", re.IGNORECASE)),
)
"""Programs on top, and by what a log shows them."""

MEMORY = re.compile(r"memory/(?:max_(?:mem_)?(active|allocated)|(?:device_)(?:mem_)?(reserved))")


class _Run:
    """One run while it is read. head: its header. end: figures at the end. tokens: rates by token.
    memory: GiB by kind. states: of progress bars. logged: (line, steps, seconds) of
    `trainer_log.jsonl`."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.head: dict[str, int] = {}
        self.end: dict[str, float] = {}
        self.tokens: list[float] = []
        self.throughput: list[float] = []
        self.memory: dict[str, float] = {}
        self.states: list[State] = []
        self.logged: list[State] = []


class _Time(NamedTuple):
    """A step time and how it was told."""

    seconds: float
    says: str
    line: int


def parse(source: Source) -> Result:
    """One row for each run: a header, or the figures at its end, tell them apart."""
    result, runs = Result(source.name), [_Run(1)]
    stack = next((name for name, sign in STACKS if sign.search(source.plain)), STACK)
    for line in source.lines:
        _take(runs, line)
    for run in runs:
        _row(result, run, stack)
    return result


def _take(runs: list[_Run], line: Line) -> None:
    run = runs[-1]
    if _BEGIN.search(line.text):
        if run.end or run.states or run.logged or run.head:
            runs.append(_Run(line.number))
    elif head := _HEADER.match(line.text):
        if n := count(head[2]):
            run.head[head[1].partition(" (")[0]] = n
    elif figures := dict(_FIGURE.findall(line.text)):
        if _ends_again(run, figures.get("train_runtime")):
            runs.append(run := _Run(line.number))
        _figures(run, line, figures)
    if not _LABEL.match(line.text) and (shown := state(line.number, line.text)):
        run.states.append(shown)


SHOWN = 1.0
"""Seconds by which the same runtime may differ in two notations."""


def _ends_again(run: _Run, runtime: str | None) -> bool:
    """Whether a runtime is that of another run than this one, which has ended."""
    before, now = run.end.get("train_runtime"), _seconds(runtime or "")
    return before is not None and now is not None and abs(now - before) > SHOWN


def _figures(run: _Run, line: Line, figures: dict[str, str]) -> None:
    """Figures of one dictionary."""
    for name in AT_END:
        value = _seconds(figures[name]) if name in figures else None
        if value:
            run.end.setdefault(name, value)
    run.tokens += _rates(figures, BY_TOKEN)
    run.throughput += _rates(figures, ("throughput",))
    for name, value in figures.items():
        _memory(run, name, value)
    _progress(run, line, figures)


AT_END = ("train_runtime", "train_samples_per_second", "train_steps_per_second")
BY_TOKEN = ("tokens_per_second_per_gpu", "tokens/train_per_sec_per_gpu")


def _rates(figures: dict[str, str], names: tuple[str, ...]) -> list[float]:
    """Rates by some names that are more than 0."""
    return [rate for name in names if (rate := number(figures.get(name)))]


def _memory(run: _Run, name: str, value: str) -> None:
    """Take a figure of memory [GiB]; others are passed over."""
    kind, gib = MEMORY.match(name), number(value)
    if kind and gib:
        word = kind[1] or kind[2]
        run.memory[word] = max(gib, run.memory.get(word, 0.0))


def _progress(run: _Run, line: Line, figures: dict[str, str]) -> None:
    """Take how far a run is, as LLaMA-Factory logs it."""
    done, total = count(figures.get("current_steps")), count(figures.get("total_steps"))
    elapsed = _seconds(figures.get("elapsed_time", ""))
    if done and total and elapsed is not None:
        run.logged.append(State(line.number, done, total, elapsed, None))


def _seconds(text: str) -> float | None:
    """A number of seconds, or `h:mm:ss`.

    >>> _seconds("0:03:31.50"), _seconds("8418.1"), _seconds("1 day, 0:00:10")
    (211.5, 8418.1, 86410.0)
    """
    days, _, clock = text.rpartition(" day")
    parts = (clock.partition(", ")[2] if days else text).split(":")
    if len(parts) != 3:
        return number(text)
    values = [number(part) for part in (days or "0", *parts)]
    if None in values:
        return None
    return sum(x * unit for x, unit in zip(values, (86400, 3600, 60, 1), strict=True) if x)


def _row(result: Result, run: _Run, stack: str) -> None:
    total = run.head.get("Total optimization steps")
    time = _time(run, _bar(run, total), total)
    if time is None and not (run.tokens or run.throughput):
        return
    _hint(result, run)
    cells = _cells(run) | {"stack": stack, **_peak(run)}
    rate = statistics.median(run.tokens) if run.tokens else None
    if time is None:
        every = statistics.median(run.throughput) if run.throughput else None
        if rate is None:
            result.bad_line(
                run.line,
                f"a rate of {every:.6g} tokens a second makes a step time only with the global "
                "batch and the sequence length",
            )
        cells |= {"tokens_per_s_per_accel": rate, "note": "; ".join(_rated(run, rate))}
        result.add(run.line, cells, {"tokens_per_s": every})
        return
    note = "; ".join([time.says, *_rated(run, rate)])
    result.add(time.line, cells | {"step_time_s": time.seconds, "note": note})


def _rated(run: _Run, rate: float | None) -> list[str]:
    """What a log says of tokens: those that are trained on, without padding."""
    said = [f"{rate:g} tokens a second and device, of those that are trained on"] if rate else []
    if run.throughput:
        said.append(f"throughput {run.throughput[-1]:g} tokens a second of all devices")
    return said


def _peak(run: _Run) -> dict[str, Any]:
    """The highest use of memory that tensors had, else that was reserved, and its kind."""
    known = [word for word in ("active", "allocated", "reserved") if word in run.memory]
    if not known:
        return {}
    kind = "reserved" if known[0] == "reserved" else "allocated"
    return {"peak_memory_gib": run.memory[known[0]], "peak_kind": kind}


def _cells(run: _Run) -> dict[str, Any]:
    """Cells of the header; the batch also from rates at the end."""
    each, batch = (
        run.head.get(name)
        for name in ("Instantaneous batch size per device", "Total train batch size")
    )
    pieces = run.head.get("Gradient Accumulation steps", 1)
    samples, steps = (run.end.get(f"train_{w}_per_second") for w in ("samples", "steps"))
    if batch is None and samples and steps and steps >= 0.05:
        made = min(samples / steps, 1e15)
        batch = round(made) if abs(made - round(made)) <= 0.02 * made else None
    return {
        "global_batch": batch,
        "micro_batch": each,
        "dp": count(batch / (each * pieces)) if batch and each else None,
    }


def _hint(result: Result, run: _Run) -> None:
    """Devices, where the header's batches tell the data-parallel ranks."""
    if dp := _cells(run)["dp"]:
        why = "total batch over batch per device and accumulation; more where tp, pp or cp is"
        result.hints["n_accel"] = f"{dp} ({why})"


def _bar(run: _Run, total: int | None) -> Pace | None:
    """The pace of the training's bar: of the total that the header says, else of the longest."""
    found = bars(run.logged) or bars(run.states)
    named = [bar for bar in found if bar[-1].total == total]
    chosen = max(named or found, key=lambda bar: bar[-1].elapsed_s, default=None)
    return pace(chosen) if chosen else None


def _time(run: _Run, bar: Pace | None, total: int | None) -> _Time | None:
    """The mean of the whole run where its end says it, else the pace of the bar."""
    mean = _mean(run, total)
    slower = f"; {bar.says}: {bar.seconds:.4g} s" if bar and mean else ""
    if mean is not None and SHORTEST <= mean <= LONGEST:
        says = (
            "mean of the whole run, warm-up, evaluation and saving included: an upper bound"
            f"{slower}"
        )
        return _Time(mean, says, run.line)
    if bar is not None and SHORTEST <= bar.seconds <= LONGEST:
        return _Time(bar.seconds, f"{bar.says}; evaluation and saving may be in it", bar.line)
    return None


def _mean(run: _Run, total: int | None) -> float | None:
    """Runtime over steps, else one over their rate, which is rounded to a thousandth."""
    runtime, rate = run.end.get("train_runtime"), run.end.get("train_steps_per_second")
    steps = total or next((s.total for s in reversed(run.states) if s.done == s.total), None)
    by_steps = runtime / steps if runtime and steps else None
    if rate is None or rate <= 0.0:
        return by_steps
    near = by_steps is not None and abs(by_steps * rate - 1.0) <= 0.05 + 0.0005 / rate
    return by_steps if near else 1.0 / rate
