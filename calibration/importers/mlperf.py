"""MLPerf training logs: `:::MLLOG` lines of JSON. Step time from tracked statistics, else from
samples between blocks."""

from __future__ import annotations

import json
import re
from typing import Any

from calibration.collect.machine import accelerator_name
from calibration.importers.found import Result, count, number
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
    try:
        entry = json.JSONDecoder().raw_decode(text.strip())[0]
    except (ValueError, RecursionError) as error:
        result.bad_line(line, f"no whole JSON object after :::MLLOG ({str(error)[:60]}); left out")
        return
    if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
        result.bad_line(line, "an entry without a key; left out")
        return
    key, value, metadata = entry["key"], entry.get("value"), entry.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if key == "tracked_stats" and isinstance(value, dict):
        _statistics(result, log, line, value, metadata)
    elif key in ("block_start", "block_stop", "epoch_start", "epoch_stop"):
        _block(result, log, line, key, number(entry.get("time_ms")), metadata)
    elif value is not None:
        log.values[key] = value


def _statistics(
    result: Result, log: _Log, line: int, value: dict[str, Any], metadata: dict[str, Any]
) -> None:
    at = next((metadata[name] for name in SAMPLES if name in metadata), line)
    step = numbered(result, line, at)
    if step is None:
        return
    if "train_step_time" in value:
        seconds = seconds_of(result, line, value["train_step_time"])
        log.times += [Step(line, step, seconds)] if seconds is not None else []
    elif "throughput" in value:
        rate = number(value["throughput"])
        if rate is None or rate <= 0.0:
            result.bad_line(
                line,
                (
                    "throughput: expected a positive number, got "
                    f"{str(value['throughput'])[:30]!r}; "
                    "left out"
                ),
            )
        else:
            log.rates.append((line, step, rate))


def _block(
    result: Result, log: _Log, line: int, key: str, clock_ms: float | None, metadata: dict[str, Any]
) -> None:
    """Remember where a block began, and what it took when it ends."""
    samples = next(
        (
            n
            for name in ("samples_count", "epoch_num", "step")
            if (n := number(metadata.get(name))) is not None
        ),
        None,
    )
    if clock_ms is None:
        result.bad_line(line, f"{key} without a time; left out")
    elif key.endswith("start"):
        log.began = (clock_ms, samples or 0.0)
    elif samples is not None and log.began is not None:
        log.blocks.append((line, 1e-3 * (clock_ms - log.began[0]), log.began[1], samples))
        log.began = None


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
                (
                    "throughput without global_batch_size makes no step time: give --set "
                    "global_batch=…"
                ),
            )
        return [], ""
    if log.rates:
        found = [(line, step, batch / rate) for line, step, rate in log.rates]
        kept = [
            Step(line, step, s)
            for line, step, t in found
            if (s := seconds_of(result, line, t)) is not None
        ]
        return kept, "global batch over reported throughput"
    blocks = [(line, t * batch / done if done > 0.0 else -1.0) for line, t, done in _done(log)]
    kept = [
        Step(line, line, s)
        for line, t in blocks
        if (s := seconds_of(result, line, t, what="time and samples of a block")) is not None
    ]
    return kept, "clock of blocks over their steps"


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
    cells: dict[str, Any] = {
        c: next((n for k in keys if (n := count(values.get(k)))), None)
        for c, keys in DIRECT.items()
    }
    model, seq_len, flag = BENCHMARKS.get(
        str(values.get("submission_benchmark")), (None, None, None)
    )
    inner = (cells["tp"] or 1) * (cells["pp"] or 1) * (cells["cp"] or 1)
    accumulate = count(values.get("gradient_accumulation_steps"))
    told = cells["tp"] or cells["pp"] or cells["cp"]
    dp = count(cells["n_accel"] / inner) if cells["n_accel"] and told else None
    micro = cells["micro_batch"]
    if micro is None and dp and accumulate and cells["global_batch"]:
        micro = count(cells["global_batch"] / (dp * accumulate))
    name, known = accelerator_name(
        re.sub(r"^\d+ ?x ?", "", str(values.get("submission_platform", ""))[:80]), "gpu"
    )
    return cells | {
        "model": model,
        "accelerator": name if known else None,
        "seq_len": cells["seq_len"] or seq_len,
        "flag": flag,
        "dp": dp,
        "micro_batch": micro,
    }
