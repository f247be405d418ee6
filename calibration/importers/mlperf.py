"""MLPerf training logs: `:::MLLOG` lines of JSON. Step time from tracked statistics, checked
against the clock of blocks; else from rates, else from the clock."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import defaultdict
from typing import Any, NamedTuple

from calibration.importers.blocks import Block, Mark, blocks, counts
from calibration.importers.found import Result, accelerator_of, count, counted, number
from calibration.importers.source import Source
from calibration.importers.steps import LONGEST, SHORTEST, Step, Summary, seconds_of, summary

NAME, STACK = "mlperf", "mlperf"
SIGN = re.compile(r":::MLLOG")

_ENTRY = re.compile(r":::MLLOG\s?(.*)$")
_MARK = re.compile(r"(run|block|epoch|eval)_(start|stop)$")
_PLATFORM = re.compile(r"^(\d+) ?x ?(.+)$")
_NOISE = re.compile(r"(?i)\b(?:nvidia|amd|intel|google|dgx|hgx|instinct|superchip|sxm\d?)\b")
_TPU = re.compile(r"(?i)tpu-?(v\d\w*?)-(\d+)$")

BENCHMARKS = {
    "gpt3": ("gpt-3-175b", 2048, ""),
    "llama2_70b_lora": ("llama-2-70b", 8192, "lora"),
    "llama31_405b": ("llama-3.1-405b", 8192, ""),
    "llama31_8b": ("llama-3.1-8b", 8192, ""),
}
"""Benchmark → model, sequence length (MLPerf training rules), flag."""

TPUS = {"v5l": "v5e", "v5litepod": "v5e"}
"""Words for TPUs in names of platforms, where they are others than the catalog's."""

DIRECT = {
    "global_batch": ("global_batch_size",),
    "seq_len": ("max_sequence_length", "sequence_length"),
    "tp": ("tensor_model_parallel_size", "tensor_model_parallel", "tensor_parallelism"),
    "pp": ("pipeline_model_parallel_size", "pipeline_model_parallel", "pipeline_parallelism"),
    "interleave": ("virtual_pipeline_model_parallel_size", "interleaved_pipeline"),
    "cp": ("context_parallel_size", "context_parallel", "context_parallelism"),
    "ep": ("expert_model_parallel_size", "expert_parallelism"),
    "micro_batch": ("micro_batch_size",),
    "n_accel": ("num_accelerators", "number_of_accelerators", "world_size", "num_gpus"),
}
"""Column → keys of events that hold it."""

TIMES = ("train_step_time", "train_step_timing")
"""Statistics that are the time of a step [s], or the mean of some."""

APART = 0.05
"""Share by which a series of step times may differ from the clock of blocks; the clock counts where
all differ by more."""

UNIT = 0.25
"""Share by which a rate may differ from what the clock says, to be in the unit that fits."""

SOON = 0.05
"""Shortest step of a benchmark [s] that a rate is read as, where no clock tells its unit: the
fastest published run of GPT-3 takes 0.8 s."""


class _Log:
    """What was read: values of events by key, series of step times by what stands beside them,
    rates, times of stretches, marks of blocks."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.series: dict[tuple[str, ...], list[Step]] = defaultdict(list)
        self.rates: list[Step] = []
        self.marks: list[Mark] = []


class _Times(NamedTuple):
    """Steps, and where their times come from. each: what one of them stands for."""

    steps: list[Step]
    how: str
    each: str = "step"


def parse(source: Source) -> Result:
    """One row for each run of the log."""
    result = Result(source.name)
    logs = [_Log()]
    for line, text in source.lines:
        if found := _ENTRY.search(text):
            _entry(result, logs, line, found[1])
    for log in logs:
        _row(result, log)
    if not result.rows and not result.troubles:
        result.trouble("whole file", _nothing(logs[-1]))
    return result


def _nothing(log: _Log) -> str:
    """Why a log without a complaint makes no row."""
    seen = [name for name, there in (("blocks", log.marks), ("values", log.values)) if there]
    return (
        f"no step time: of {', '.join(TIMES)}, throughput and whole blocks it has none"
        + (f" (it has {' and '.join(seen)})" if seen else "")
        + "; take the log of the whole run"
    )


def _entry(result: Result, logs: list[_Log], line: int, text: str) -> None:
    """Take one line."""
    entry = _object(result, line, text)
    if entry is None:
        return
    key, value, metadata = entry["key"], entry.get("value"), entry.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if key == "submission_benchmark" and any(m.kind == "run" for m in logs[-1].marks):
        logs.append(_Log())
    log = logs[-1]
    clock = number(entry.get("time_ms"))
    if key == "tracked_stats" and isinstance(value, dict):
        _statistics(result, log, line, clock, value, metadata)
    elif found := _MARK.match(key):
        _mark(result, log, line, clock, found, metadata)
    elif value is not None:
        log.values[key] = value


def _object(result: Result, line: int, text: str) -> dict[str, Any] | None:
    """The entry of a line; one that cannot be is named and None."""
    try:
        entry = json.JSONDecoder().raw_decode(text.strip())[0]
    except (ValueError, RecursionError) as error:
        result.bad_line(line, f"no whole JSON object after :::MLLOG ({str(error)[:60]}); left out")
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
        result.bad_line(line, "an entry without a key; left out")
        return None
    return entry


def _mark(
    result: Result,
    log: _Log,
    line: int,
    clock_ms: float | None,
    found: re.Match[str],
    metadata: dict[str, Any],
) -> None:
    """Note where something began or ended."""
    if clock_ms is None:
        result.bad_line(line, f"{found[0]} without a time; left out")
        return
    begins = found[2] == "start"
    log.marks.append(Mark(line, found[1], begins, 1e-3 * clock_ms, counts(metadata)))


def _statistics(
    result: Result,
    log: _Log,
    line: int,
    clock_ms: float | None,
    value: dict[str, Any],
    metadata: dict[str, Any],
) -> None:
    """Take tracked statistics: a step time belongs to the series of those with the same figures
    beside it."""
    clock = None if clock_ms is None else 1e-3 * clock_ms
    if name := next((name for name in TIMES if name in value), ""):
        seconds = seconds_of(result, line, value[name])
        if seconds is not None:
            beside = tuple(sorted(str(key)[:40] for key in value if key != name))
            series = log.series[(name, *beside)]
            # counters may be those of each block, so that steps are told by their order
            series.append(Step(line, len(series), seconds, clock=clock))
    elif "throughput" in value:
        rate = number(value["throughput"])
        if rate is None or rate <= 0.0:
            shown = str(value["throughput"])[:30]
            result.bad_line(
                line, f"throughput: expected a positive number, got {shown!r}; left out"
            )
        else:
            log.rates.append(Step(line, len(log.rates), rate, counts(metadata), clock))


def _row(result: Result, log: _Log) -> None:
    cells, hints = described(log.values)
    batch, seq_len = cells["global_batch"], cells["seq_len"]
    by_clock = blocks(log.marks, batch, seq_len) if batch else []
    timed = _timed(result, by_clock)
    found = _chosen(result, log, by_clock, timed, batch, seq_len)
    if found is None:
        return
    done, how = found
    result.hints |= hints
    result.add(
        done.line,
        cells | {"stack": STACK, "step_time_s": done.seconds, "note": f"{done.note}; {how}"},
        steps=done.every,
    )


def _timed(result: Result, by_clock: list[Block]) -> list[Step]:
    """Mean step of each block."""
    found = []
    for i, block in enumerate(by_clock):
        what = "time and samples of a block"
        seconds = seconds_of(result, block.line, block.seconds / block.steps, what=what)
        if seconds is not None:
            found.append(Step(block.line, i, seconds, clock=block.clock_s))
    return found


def _chosen(
    result: Result,
    log: _Log,
    by_clock: list[Block],
    timed: list[Step],
    batch: int | None,
    seq_len: int | None,
) -> tuple[Summary, str] | None:
    """The summary of the step times that count, and where they come from."""
    clock = _summary_of_blocks(result, timed) if timed else None
    told = _reported(result, log, by_clock, clock)
    if told is not None:
        return told
    rated = _by_rate(result, log, clock, batch, seq_len)
    if rated is not None:
        return rated
    return None if clock is None else (clock, _said_of_blocks(by_clock))


def _summary_of_blocks(result: Result, timed: list[Step]) -> Summary | None:
    return summary(result, timed, "mean of a block", least=0)


def _said_of_blocks(by_clock: list[Block]) -> str:
    if any(block.evaluated for block in by_clock):
        return (
            "clock of blocks over their steps, evaluation and all else in them included: an upper "
            "bound"
        )
    return "clock of blocks over their steps, without evaluation"


def _reported(
    result: Result, log: _Log, by_clock: list[Block], clock: Summary | None
) -> tuple[Summary, str] | None:
    """The series of reported times nearest the clock, where one is near; where none is, the clock
    counts, and without a clock the longest series."""
    kept = [one for kind, steps in log.series.items() if (one := _Series.of(result, kind, steps))]
    if not kept:
        return None
    words = "; ".join(f"{one.name} {one.summary.seconds:.4g} s" for one in kept)
    several = f" (series: {words})" if len(kept) > 1 else ""
    if clock is None:
        longest = max(kept, key=lambda one: one.summary.kept)
        return longest.taken(result), f"as reported ({longest.name}){several}"
    at = clock.seconds
    nearest = min(kept, key=lambda one: abs(math.log(one.summary.seconds / at)))
    off = nearest.summary.seconds / at - 1.0
    # evaluation may be in the clock's, which is an upper bound then
    if abs(off) <= APART or (off < 0.0 and any(block.evaluated for block in by_clock)):
        agrees = f"; the clock of blocks says {at:.4g} s"
        return nearest.taken(result), f"as reported ({nearest.name}){several}{agrees}"
    said = _said_of_blocks(by_clock)
    return clock, f"{said}; reported {words}: off by {100 * off:+.2g} %, so the clock counts"


class _Series(NamedTuple):
    """A series of reported times. name: its statistic, and what stands beside it. aside: troubles
    of it, which are noted where it counts."""

    name: str
    summary: Summary
    aside: Result

    @classmethod
    def of(cls, result: Result, kind: tuple[str, ...], steps: list[Step]) -> _Series | None:
        """The series of some steps; None without any."""
        aside = Result(result.file)
        found = summary(aside, steps)
        return None if found is None else cls(_kind(kind), found, aside)

    def taken(self, result: Result) -> Summary:
        """Its summary, its troubles noted."""
        result.troubles += self.aside.troubles
        return self.summary


def _kind(kind: tuple[str, ...]) -> str:
    name, *beside = kind
    return f"{name} with {', '.join(beside)}" if beside else name


def _by_rate(
    result: Result, log: _Log, clock: Summary | None, batch: int | None, seq_len: int | None
) -> tuple[Summary, str] | None:
    """Steps by the reported throughput, in the unit that the clock says."""
    if not log.rates:
        return None
    if batch is None:
        result.trouble(
            "whole file",
            "throughput without global_batch_size makes no step time: give --set global_batch=…",
        )
        return None
    rate = statistics.median(step.seconds for step in log.rates)
    unit, each, why = _unit(rate, batch, seq_len, clock)
    if not unit:
        result.bad_line(log.rates[0].line, f"throughput {rate:.6g}: {why}; left out")
        return None
    steps = [
        step._replace(seconds=each / step.seconds)
        for step in log.rates
        if SHORTEST <= each / step.seconds <= LONGEST
    ]
    found = summary(result, steps, "mean of a block", least=0)
    said = f"global batch over reported throughput, in {unit} a second: {why}"
    return None if found is None else (found, said)


def _unit(
    rate: float, batch: int, seq_len: int | None, clock: Summary | None
) -> tuple[str, float, str]:
    """(unit of a rate, how much of it a step is, why): sequences or tokens; "" where neither can
    be."""
    units = {"sequences": float(batch)} | ({"tokens": float(batch * seq_len)} if seq_len else {})
    if clock is not None:
        fits = {u: each for u, each in units.items() if _near(each / rate, clock.seconds)}
        if len(fits) == 1:
            ((unit, each),) = fits.items()
            return unit, each, f"the clock of blocks says {clock.seconds:.4g} s a step"
        shown = ", ".join(f"{each / rate:.3g} s in {unit}" for unit, each in units.items())
        why = f"makes a step of {shown}, and the clock of blocks {clock.seconds:.4g} s"
        return "", 0.0, why
    for unit, each in units.items():
        if SOON <= each / rate <= 100.0 * LONGEST * SHORTEST:
            return unit, each, f"a step of {each / rate:.3g} s; no clock of blocks to check it by"
    shown = ", ".join(f"{each / rate:.3g} s in {unit}" for unit, each in units.items())
    return "", 0.0, f"makes a step of {shown}: neither can be"


def _near(seconds: float, clock: float) -> bool:
    """Whether a time is that of the clock; evaluation may be in the clock's."""
    return (1.0 - UNIT) <= seconds / clock <= 1.0 + UNIT


def described(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Cells that the events tell, and what they let guess of others."""
    cells: dict[str, Any] = {c: counted(values, keys) for c, keys in DIRECT.items()}
    model, seq_len, flag = BENCHMARKS.get(
        str(values.get("submission_benchmark")), (None, None, None)
    )
    dp = _data_parallel(cells)
    cells |= {
        "model": model,
        "seq_len": cells["seq_len"] or seq_len,
        "flag": flag,
        "dp": dp,
        "micro_batch": cells["micro_batch"] or _micro_batch(values, cells["global_batch"], dp),
    }
    return cells, _platform(str(values.get("submission_platform", ""))[:80])


def _platform(text: str) -> dict[str, str]:
    """What the name of the platform lets guess. It is free text of who submits, and a run on GB300
    was published under the name of GB200; so it is asked for."""
    if not text:
        return {}
    why = f"submission_platform is {text!r}, free text"
    if tpu := _TPU.match(text):
        name = accelerator_of(["TPU-" + TPUS.get(tpu[1].lower(), tpu[1].lower())])
        hints = {"n_accel": f"{tpu[2]} ({why})"}
        return hints | ({"accelerator": f"{name} ({why})"} if name else {})
    nodes = _PLATFORM.match(text)
    words = _NOISE.sub("", nodes[2] if nodes else text)
    name = accelerator_of([" ".join(words.split())])
    hints = {"accelerator": f"{name} ({why})" if name else f"… ({why})"}
    if nodes:
        hints["n_accel"] = f"… ({why}: {nodes[1]} nodes, times the devices of one)"
    return hints


def _data_parallel(cells: dict[str, Any]) -> int | None:
    """What the other degrees leave of the devices, where any of these is told."""
    others = [cells[name] for name in ("tp", "pp", "cp") if cells[name]]
    return count(cells["n_accel"] / math.prod(others)) if cells["n_accel"] and others else None


def _micro_batch(values: dict[str, Any], batch: int | None, dp: int | None) -> int | None:
    accumulate = count(values.get("gradient_accumulation_steps"))
    return count(batch / (dp * accumulate)) if batch and dp and accumulate else None
