"""MLPerf training logs: `:::MLLOG` lines of JSON. Step time from tracked statistics, else from
samples between blocks."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from calibration.importers.found import Result, accelerator_of, count, counted, number
from calibration.importers.source import Source
from calibration.importers.steps import Step, numbered, seconds_of, summary

NAME, STACK = "mlperf", "mlperf"
SIGN = re.compile(r":::MLLOG")

_ENTRY = re.compile(r":::MLLOG\s?(.*)$")

BENCHMARKS = {
    "gpt3": ("gpt-3-175b", 2048, ""),
    "llama2_70b_lora": ("llama-2-70b", 8192, "lora"),
    "llama31_405b": ("llama-3.1-405b", 8192, ""),
    "llama31_8b": ("llama-3.1-8b", 8192, ""),
}
"""Benchmark → model, sequence length (MLPerf training rules), flag."""

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

SAMPLES = ("samples_count", "step", "epoch_num", "first_epoch_num")
"""Metadata that count samples, at the ends of blocks."""


class _Log:
    """Values of events by key, and three ways to a step time: reported times, reported rates, clock
    and samples of blocks."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.times: list[Step] = []
        self.rates: list[tuple[int, int, float]] = []
        self.blocks: list[tuple[int, float, float, float]] = []
        self.began: tuple[float, float] | None = None


def parse(source: Source) -> Result:
    """One row for each log."""
    result, log = Result(source.name), _Log()
    for line, text in source.lines:
        if found := _ENTRY.search(text):
            _entry(result, log, line, found[1])
    _row(result, log)
    return result


def _entry(result: Result, log: _Log, line: int, text: str) -> None:
    """Take one line."""
    entry = _object(result, line, text)
    if entry is None:
        return
    key, value, metadata = entry["key"], entry.get("value"), entry.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if key == "tracked_stats" and isinstance(value, dict):
        _statistics(result, log, line, value, metadata)
    elif key in ("block_start", "block_stop", "epoch_start", "epoch_stop"):
        _block(result, log, line, key, number(entry.get("time_ms")), metadata)
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


def _statistics(
    result: Result, log: _Log, line: int, value: dict[str, Any], metadata: dict[str, Any]
) -> None:
    at = next((metadata[name] for name in SAMPLES if name in metadata), line)
    step = numbered(result, line, at)
    if step is None:
        return
    if "train_step_time" in value:
        seconds = seconds_of(result, line, value["train_step_time"])
        if seconds is not None:
            log.times.append(Step(line, step, seconds))
    elif "throughput" in value:
        rate = _rate(result, line, value["throughput"])
        if rate is not None:
            log.rates.append((line, step, rate))


def _rate(result: Result, line: int, given: object) -> float | None:
    """A throughput; one that cannot be is named and None."""
    rate = number(given)
    if rate is not None and rate > 0.0:
        return rate
    shown = str(given)[:30]
    result.bad_line(line, f"throughput: expected a positive number, got {shown!r}; left out")
    return None


def _block(
    result: Result, log: _Log, line: int, key: str, clock_ms: float | None, metadata: dict[str, Any]
) -> None:
    """Remember where a block began, and what it took when it ends."""
    samples = _samples(metadata)
    if clock_ms is None:
        result.bad_line(line, f"{key} without a time; left out")
    elif key.endswith("start"):
        log.began = (clock_ms, samples or 0.0)
    elif samples is not None and log.began is not None:
        log.blocks.append((line, 1e-3 * (clock_ms - log.began[0]), log.began[1], samples))
        log.began = None


def _samples(metadata: dict[str, Any]) -> float | None:
    """Samples that a block is at, where it says so."""
    counts = (number(metadata.get(name)) for name in ("samples_count", "epoch_num", "step"))
    return next((n for n in counts if n is not None), None)


def _done(log: _Log) -> list[tuple[int, float, float]]:
    """(line, seconds, samples) of each block. Loggers count samples since the start of the run, or
    those of the block alone."""
    ends = [stop for _, _, _, stop in log.blocks]
    alone = len(ends) > 1 and max(ends) == min(ends)
    return [
        (line, seconds, stop if alone or stop == start else stop - start)
        for line, seconds, start, stop in log.blocks
    ]


def _steps(result: Result, log: _Log, batch: int | None) -> tuple[list[Step], str]:
    """Steps, and where their times come from."""
    if log.times:
        return log.times, "as reported (train_step_time)"
    if batch is None:
        if log.rates or log.blocks:
            result.trouble(
                "whole file",
                "throughput without global_batch_size makes no step time: give --set "
                "global_batch=…",
            )
        return [], ""
    if log.rates:
        return _steps_by_rate(result, log, batch), "global batch over reported throughput"
    return _steps_by_clock(result, log, batch), "clock of blocks over their steps"


def _steps_by_rate(result: Result, log: _Log, batch: int) -> list[Step]:
    steps = []
    for line, step, rate in log.rates:
        seconds = seconds_of(result, line, batch / rate)
        if seconds is not None:
            steps.append(Step(line, step, seconds))
    return steps


def _steps_by_clock(result: Result, log: _Log, batch: int) -> list[Step]:
    steps = []
    for line, took, done in _done(log):
        each = took * batch / done if done > 0.0 else -1.0
        seconds = seconds_of(result, line, each, what="time and samples of a block")
        if seconds is not None:
            steps.append(Step(line, line, seconds))
    return steps


def _row(result: Result, log: _Log) -> None:
    cells = described(log.values)
    steps, how = _steps(result, log, cells["global_batch"])
    found = summary(result, steps, "mean of a block")
    if found is None:
        return
    result.add(
        found.line,
        cells | {"stack": STACK, "step_time_s": found.seconds, "note": f"{found.note}; {how}"},
    )


def described(values: dict[str, Any]) -> dict[str, Any]:
    """Cells that the events tell."""
    cells: dict[str, Any] = {c: counted(values, keys) for c, keys in DIRECT.items()}
    model, seq_len, flag = BENCHMARKS.get(
        str(values.get("submission_benchmark")), (None, None, None)
    )
    platform = str(values.get("submission_platform", ""))[:80]
    dp = _data_parallel(cells)
    return cells | {
        "model": model,
        "accelerator": accelerator_of([re.sub(r"^\d+ ?x ?", "", platform)]),
        "seq_len": cells["seq_len"] or seq_len,
        "flag": flag,
        "dp": dp,
        "micro_batch": cells["micro_batch"] or _micro_batch(values, cells["global_batch"], dp),
    }


def _data_parallel(cells: dict[str, Any]) -> int | None:
    """What the other degrees leave of the devices, where any of these is told."""
    others = [cells[name] for name in ("tp", "pp", "cp") if cells[name]]
    return count(cells["n_accel"] / math.prod(others)) if cells["n_accel"] and others else None


def _micro_batch(values: dict[str, Any], batch: int | None, dp: int | None) -> int | None:
    accumulate = count(values.get("gradient_accumulation_steps"))
    return count(batch / (dp * accumulate)) if batch and dp and accumulate else None
