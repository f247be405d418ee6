"""Training logs of torchtitan: metrics by step, and the configuration as JSON or TOML or in the
messages at the start."""

from __future__ import annotations

import math
import re
from typing import Any

from calibration.collect.machine import accelerator_name
from calibration.importers import settings
from calibration.importers.found import Result, count, number
from calibration.importers.source import Source
from calibration.importers.steps import LONGEST, SHORTEST, Step, numbered, summary

NAME, STACK = "torchtitan", "torchtitan"
SIGN = re.compile(r"step:\s*\S+\s+loss:.*\b(?:tps|wps):")

_STEP = re.compile(r"step:\s*(\S+)\s+loss:(.*)$")
_FIELD = re.compile(r"(memory|tps|wps|tflops|mfu):\s*([\d.,eE+\-]+|nan|inf)")
_CUT = re.compile(r"(?:tps|wps):\s*[\d,.]*$")
_JSON = re.compile(r"Running with (?:args|configs?): (?=\{)")
_DEVICE = re.compile(r"CUDA capacity: (.+?) with ([\d.]+)GiB")
_SIZE = re.compile(r"Model (\S+) (\S+) size: ([\d,]+) total parameters")
_BUILT = re.compile(r"Building (\S+) (\S+) with \w+\((.*)\)")
_MESH = re.compile(r"device mesh with (?:parallelism: (.+)|\[(.+?)\], \[(.+?)\])")
_BATCH = re.compile(r"local batch size (\d+), global batch size (\d+).*sequence length (\d+)")
_APPLIED = re.compile(r"Applied (full|selective|none) activation checkpointing")

MESH = {
    "dp_replicate": "replicate",
    "dp_shard": "shard",
    "dp": "shard",
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "ep": "ep",
}
DEGREES = {
    "replicate": (
        "parallelism.data_parallel_replicate_degree",
        "training.data_parallel_replicate_degree",
    ),
    "shard": (
        "parallelism.data_parallel_shard_degree",
        "training.data_parallel_shard_degree",
        "training.data_parallel_degree",
    ),
    "tp": ("parallelism.tensor_parallel_degree", "training.tensor_parallel_degree"),
    "pp": ("parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree"),
    "cp": ("parallelism.context_parallel_degree", "experimental.context_parallel_degree"),
    "ep": ("parallelism.expert_parallel_degree",),
}
"""Degree → settings that hold it, newest name first; −1 = what is left."""


class _Log:
    """What was read so far. told: facts of the messages at the start; config: settings."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.config: settings.Settings = {}
        self.rates: list[tuple[int, int, float, dict[str, float]]] = []


def parse(source: Source) -> Result:
    """One row for each log; step time is batch · sequence / (tokens per second and device ·
    devices)."""
    result, log, lines = Result(source.name), _Log(), source.lines
    log.config = settings.toml(lines)
    for i, (line, text) in enumerate(lines):
        if found := _STEP.search(text):
            _step(result, log, line, found[1], found[2])
        elif found := _JSON.search(text):
            config = settings.json_at(lines, i, found.end())
            if config is None:
                result.bad_line(
                    line, "the configuration that begins here is no whole JSON object; not used"
                )
            log.config |= config or {}
        else:
            _message(log.told, text)
    if log.rates:
        _row(result, log)
    return result


def _step(result: Result, log: _Log, line: int, which: str, text: str) -> None:
    fields = {name: number(value.rstrip(".")) for name, value in _FIELD.findall(text)}
    rate = fields.get("tps") or fields.get("wps")
    if not rate or rate <= 0.0 or _CUT.search(text):
        result.bad_line(
            line,
            "a step without its tokens per second: the line is cut short, or damaged; left out",
        )
        return
    step = numbered(result, line, which)
    if step is not None:
        log.rates.append(
            (
                line,
                step,
                rate,
                {name: v for name in ("memory", "tflops", "mfu") if (v := fields.get(name))},
            )
        )


def _message(told: dict[str, Any], text: str) -> None:
    """Facts in the messages at the start."""
    if found := _DEVICE.search(text):
        name, known = accelerator_name(found[1], "gpu")
        told["accelerator" if known else "device"] = name if known else found[1]
    elif found := _SIZE.search(text):
        told |= {"name": found[1], "flavor": found[2], "n_params": number(found[3])}
    elif found := _BUILT.search(text):
        told |= {
            "name": found[1],
            "flavor": found[2],
            "shape": dict(re.findall(r"(\w+)=([^,()]+)", found[3])),
        }
    elif found := _MESH.search(text):
        named = zip(
            re.findall(r"\w+", found[2] or ""), re.findall(r"\d+", found[3] or ""), strict=False
        )
        pairs = dict(re.findall(r"(\w+)=(\d+)", found[1]) if found[1] else named)
        told["mesh"] = {
            MESH[name]: n for name, size in pairs.items() if name in MESH and (n := count(size))
        }
    elif found := _BATCH.search(text):
        told |= {
            "local_batch": count(found[1]),
            "global_batch": count(found[2]),
            "seq_len": count(found[3]),
        }
    elif found := _APPLIED.search(text):
        told["recompute"] = found[1]


def _row(result: Result, log: _Log) -> None:
    cells, notes = described(log)
    batch, seq, devices = (cells.get(name) for name in ("global_batch", "seq_len", "n_accel"))
    # without the batch a rate still counts: the format has a column for it
    work = batch * seq / devices if batch and seq and devices else 1.0
    steps = []
    for line, step, rate, metrics in log.rates:
        seconds = work / rate
        if SHORTEST <= seconds <= LONGEST or work == 1.0:
            steps.append(Step(line, step, seconds, metrics | {"rate": rate}))
        else:
            result.bad_line(
                line,
                f"{rate:g} tokens per second and device make a step of {seconds:.3g} s; left out",
            )
    found = summary(
        result, steps, "step" if _interval(log) == 1 else f"mean of {_interval(log)} steps"
    )
    if found is None:
        return
    utilization = found.median("mfu")
    cells |= {
        "stack": STACK,
        "step_time_s": found.seconds if work != 1.0 else None,
        "tokens_per_s_per_accel": found.median("rate"),
        "tflops_reported": found.median("tflops"),
        "mfu_reported": utilization / 100.0 if utilization else None,
        "peak_memory_gib": found.largest("memory"),
        "note": "; ".join([found.note, *notes]),
    }
    result.add(found.line, cells)


def _interval(log: _Log) -> int:
    return count(log.config.get("metrics.log_freq")) or 1


def described(log: _Log) -> tuple[dict[str, Any], list[str]]:
    """Cells that the log tells, and remarks."""
    config, told = log.config, log.told
    mesh: dict[str, int | None] = {
        name: next(
            (n for key in keys if (n := count(config.get(key)))),
            None if any(config.get(k) == "-1" for k in keys) else 1,
        )
        for name, keys in DEGREES.items()
    } | told.get("mesh", {})
    local = told.get("local_batch") or count(
        config.get("training.local_batch_size", config.get("training.batch_size"))
    )
    batch = told.get("global_batch") or count(config.get("training.global_batch_size"))
    # what is left of the devices, if gradients are not accumulated
    if mesh["shard"] is None and batch and local:
        mesh["shard"] = count(batch / (local * (mesh["replicate"] or 1)))
    told_layout = "mesh" in told or any(key in config for keys in DEGREES.values() for key in keys)
    dp = (
        mesh["replicate"] * mesh["shard"]
        if mesh["replicate"] and mesh["shard"] and told_layout
        else None
    )
    inner = math.prod(mesh[n] or 1 for n in ("tp", "pp", "cp"))
    name, flavor = (
        told.get("name") or config.get("model.name"),
        told.get("flavor") or config.get("model.flavor"),
    )
    cells: dict[str, Any] = (
        {name: mesh[name] for name in ("tp", "pp", "cp", "ep")} if told_layout else {}
    )
    cells |= shape(told.get("shape", {})) | {
        "model": f"{name}-{flavor}" if name and flavor else None,
        "n_params": told.get("n_params"),
        "accelerator": told.get("accelerator"),
        "n_accel": dp * inner if dp else None,
        "dp": dp,
        "zero_stage": None if not dp else 3 if (mesh["shard"] or 1) > 1 else 0,
        "shard": mesh["shard"] if dp and 1 < (mesh["shard"] or 1) < dp else None,
        "seq_len": told.get("seq_len") or count(config.get("training.seq_len")),
        "micro_batch": local
        if mesh["pp"] == 1
        else count(config.get("parallelism.pipeline_parallel_microbatch_size")),
        "global_batch": batch or (local * dp if local and dp else None),
        "precision": _precision(config),
        "recompute": _recompute(config, told),
    }
    notes = [] if config or "mesh" in told else ["no configuration in the log"]
    every = config.get("activation_checkpoint.selective_ac_option", "")
    if cells["recompute"] == "selective" and every.isdigit() and int(every):
        # whole layers: the word is that of checkpoints by operator
        cells["recompute"], share = (
            ("full", "") if int(every) == 1 else (None, f"1 of {int(every)} layers recomputed")
        )
        notes += [share] if share else []
    return cells, notes + ([f"device {told['device'][:60]}"] if "device" in told else [])


def shape(arguments: dict[str, str]) -> dict[str, Any]:
    """Shape out of the printed arguments of a model; the width of a Llama MLP is 8/3 of the
    model's, scaled and rounded up."""
    width = count(arguments.get("dim"))
    if not width:
        return {}
    scale, multiple = (
        number(arguments.get("ffn_dim_multiplier")) or 1.0,
        count(arguments.get("multiple_of")),
    )
    inner = count(arguments.get("hidden_dim"))
    if inner is None and multiple and 0.0 < scale < 100.0:
        inner = multiple * -(-int(scale * int(8 * width / 3)) // multiple)
    heads = count(arguments.get("n_heads"))
    return {
        "n_layers": count(arguments.get("n_layers")),
        "d_model": width,
        "d_ff": inner,
        "gated_mlp": 1 if inner else None,
        "n_heads": heads,
        "n_kv_heads": count(arguments.get("n_kv_heads")) or heads,
        "head_dim": count(arguments.get("head_dim")),
        "vocab": count(arguments.get("vocab_size")),
    }


def _precision(config: settings.Settings) -> str | None:
    converters = config.get("model.converters", "") + config.get("model.float8", "")
    if "mx" in converters:
        return "mxfp8"
    if "float8" in converters:
        return "fp8"
    words = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    return words.get(config.get("training.mixed_precision_param", ""))


def _recompute(config: settings.Settings, told: dict[str, Any]) -> str | None:
    mode = told.get("recompute") or config.get("activation_checkpoint.mode")
    return mode if mode in ("none", "selective", "full") else None
