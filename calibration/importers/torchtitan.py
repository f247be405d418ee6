"""Training logs of torchtitan: metrics by step, and the configuration as JSON or TOML or in the
messages at the start."""

from __future__ import annotations

import math
import re
from typing import Any

from calibration.collect.machine import accelerator_name
from calibration.importers import settings
from calibration.importers.found import Result, count, counted, nonzero, number
from calibration.importers.source import Line, Source, clock
from calibration.importers.steps import LONGEST, SHORTEST, Step, numbered, runs, summary
from dmodel.settings import text_of

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

SCHEDULE = tuple(
    f"{section}.pipeline_parallel_schedule" for section in ("parallelism", "experimental")
)
"""Settings that hold the name of the pipeline's schedule, newest first."""

SCHEDULES = {"gpipe": "gpipe", "zbvzerobubble": "zbv", "dualpipev": "dualpipev"}
"""Name of a schedule, whose case does not matter → its word here; 1F1B and its interleaved form
need none."""

PLAIN = ("1f1b", "interleaved1f1b")

EVERY_DEGREE = tuple(key for keys in DEGREES.values() for key in keys)

Facts = dict[str, Any]


class _Log:
    """What was read so far. told: facts of the messages at the start; config: settings."""

    def __init__(self) -> None:
        self.told: Facts = {}
        self.config: settings.Settings = {}
        self.rates: list[Step] = []


def parse(source: Source) -> Result:
    """One row for each log; step time is batch · sequence / (tokens per second and device ·
    devices)."""
    result, log, lines = Result(source.name), _Log(), source.lines
    log.config = settings.toml(lines)
    for i, (line, text) in enumerate(lines):
        if found := _STEP.search(text):
            _step(result, log, line, found[1], found[2], clock(text))
        elif found := _JSON.search(text):
            log.config |= _configuration(result, lines, i, found.end())
        else:
            log.told |= _message(text)
    for run in runs(log.rates):
        _row(result, log, run)
    return result


def _configuration(result: Result, lines: list[Line], i: int, column: int) -> settings.Settings:
    """The settings of a JSON document that begins in a line."""
    config = settings.json_at(lines, i, column)
    if config is None:
        result.bad_line(
            lines[i].number,
            "the configuration that begins here is no whole JSON object; not used",
        )
    return config or {}


def _step(result: Result, log: _Log, line: int, which: str, text: str, when: float | None) -> None:
    """Take a step; its time is that of one token, for now."""
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
        metrics = nonzero(**{name: fields.get(name) for name in ("memory", "tflops", "mfu")})
        log.rates.append(Step(line, step, 1.0 / rate, metrics | {"rate": rate}, when))


def _device(found: re.Match[str]) -> Facts:
    name, known = accelerator_name(found[1], "gpu")
    return {"accelerator": name} if known else {"device": found[1]}


def _size(found: re.Match[str]) -> Facts:
    return {"name": found[1], "flavor": found[2], "n_params": number(found[3])}


def _built(found: re.Match[str]) -> Facts:
    arguments = dict(re.findall(r"(\w+)=([^,()]+)", found[3]))
    return {"name": found[1], "flavor": found[2], "shape": arguments}


def _mesh(found: re.Match[str]) -> Facts:
    """Degrees, as pairs or as a list of sizes and one of names."""
    pairs = re.findall(r"(\w+)=(\d+)", found[1] or "")
    if not found[1]:
        names, sizes = re.findall(r"\w+", found[2] or ""), re.findall(r"\d+", found[3] or "")
        pairs = list(zip(names, sizes, strict=False))
    degrees: Facts = {}
    for name, size in dict(pairs).items():
        if name in MESH and (n := count(size)):
            degrees[MESH[name]] = n
    return {"mesh": degrees}


def _batch(found: re.Match[str]) -> Facts:
    names = ("local_batch", "global_batch", "seq_len")
    return {name: count(size) for name, size in zip(names, found.groups(), strict=True)}


def _applied(found: re.Match[str]) -> Facts:
    return {"recompute": found[1]}


MESSAGES = (
    (_DEVICE, _device),
    (_SIZE, _size),
    (_BUILT, _built),
    (_MESH, _mesh),
    (_BATCH, _batch),
    (_APPLIED, _applied),
)
"""Messages at the start, and what they tell; a line is the first that fits."""


def _message(text: str) -> Facts:
    """Facts in a message at the start; none where it is another line."""
    for pattern, facts in MESSAGES:
        if found := pattern.search(text):
            return facts(found)
    return {}


def _row(result: Result, log: _Log, run: list[Step]) -> None:
    cells, notes = described(log)
    # without the batch a rate still counts: the format has a column for it
    work = _work(cells) or 1.0
    interval = count(log.config.get("metrics.log_freq")) or 1
    each = "step" if interval == 1 else f"mean of {interval} steps"
    found = summary(result, _steps(result, run, work), each)
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
        "peak_kind": "reserved" if found.largest("memory") else None,
        "note": "; ".join([found.note, *notes]),
    }
    result.add(found.line, cells, steps=found.every)


def _work(cells: dict[str, Any]) -> float | None:
    """Tokens of a step and device; None where the log does not tell them."""
    batch, seq, devices = (cells.get(name) for name in ("global_batch", "seq_len", "n_accel"))
    return batch * seq / devices if batch and seq and devices else None


def _steps(result: Result, run: list[Step], work: float) -> list[Step]:
    """Steps of a run with their times; those of an impossible time are named."""
    steps = []
    for step in run:
        rate = step.metrics["rate"]
        seconds = work / rate
        if SHORTEST <= seconds <= LONGEST or work == 1.0:
            steps.append(step._replace(seconds=seconds))
        else:
            result.bad_line(
                step.line,
                f"{rate:g} tokens per second and device make a step of {seconds:.3g} s; left out",
            )
    return steps


def described(log: _Log) -> tuple[dict[str, Any], list[str]]:
    """Cells that the log tells, and remarks."""
    config, told = log.config, log.told
    local, batch = _batches(config, told)
    mesh = _degrees(config, told, batch, local)
    layout = _layout_told(log)
    dp = _data_parallel(mesh) if layout else None
    recompute, again = _recompute(config, told)
    schedule = _schedule(config) if (mesh["pp"] or 1) > 1 else ""
    known = {"schedule": SCHEDULES[schedule]} if schedule in SCHEDULES else {}
    cells: dict[str, Any] = {n: mesh[n] for n in ("tp", "pp", "cp", "ep")} if layout else {}
    cells |= shape(told.get("shape", {}))
    cells |= {
        "model": _model(config, told),
        "n_params": told.get("n_params"),
        "accelerator": told.get("accelerator"),
    }
    cells |= _devices(mesh, dp)
    cells |= {
        "seq_len": told.get("seq_len") or count(config.get("training.seq_len")),
        "micro_batch": _micro_batch(config, mesh["pp"], local),
        "global_batch": batch or (local * dp if local and dp else None),
        "precision": _precision(config),
        "recompute": recompute,
        "set": text_of({**again, **known}),
    }
    return cells, [*_missing(log), *_unknown_device(told), *_unknown_schedule(schedule)]


def of_configuration(config: settings.Settings) -> dict[str, Any]:
    """Cells that a configuration alone tells."""
    log = _Log()
    log.config = config
    return described(log)[0]


def _batches(config: settings.Settings, told: Facts) -> tuple[int | None, int | None]:
    """Sequences of a step, of one device and of all; the message before the settings."""
    each = config.get("training.local_batch_size", config.get("training.batch_size"))
    every = config.get("training.global_batch_size")
    return told.get("local_batch") or count(each), told.get("global_batch") or count(every)


def _layout_told(log: _Log) -> bool:
    return "mesh" in log.told or any(key in log.config for key in EVERY_DEGREE)


def _missing(log: _Log) -> list[str]:
    return [] if log.config or "mesh" in log.told else ["no configuration in the log"]


def _schedule(config: settings.Settings) -> str:
    """Name of the pipeline's schedule in small letters; nothing where it is not set."""
    return next((config[name].lower() for name in SCHEDULE if config.get(name)), "")


def _unknown_schedule(name: str) -> list[str]:
    known = not name or name in (*SCHEDULES, *PLAIN)
    return [] if known else [f"schedule {name[:40]}: read as 1F1B"]


def _unknown_device(told: Facts) -> list[str]:
    return [f"device {told['device'][:60]}"] if "device" in told else []


Mesh = dict[str, int | None]


def _degree(config: settings.Settings, keys: tuple[str, ...]) -> int | None:
    """A degree as set: 1 where nothing is said, None for what is left of the devices."""
    given = counted(config, keys)
    if given is None and not any(config.get(key) == "-1" for key in keys):
        return 1
    return given


def _degrees(config: settings.Settings, told: Facts, batch: int | None, local: int | None) -> Mesh:
    """All degrees of a run, the message before the settings; None = not known."""
    mesh: Mesh = {name: _degree(config, keys) for name, keys in DEGREES.items()}
    mesh |= told.get("mesh", {})
    # what is left of the devices, if gradients are not accumulated
    if mesh["shard"] is None and batch and local:
        mesh["shard"] = count(batch / (local * (mesh["replicate"] or 1)))
    return mesh


def _data_parallel(mesh: Mesh) -> int | None:
    """Replicas times shards, where both are known."""
    replicate, shard = mesh["replicate"], mesh["shard"]
    return replicate * shard if replicate and shard else None


def _devices(mesh: Mesh, dp: int | None) -> dict[str, Any]:
    """Cells that follow from the degree of data parallelism; blank where it is not known."""
    if not dp:
        return dict.fromkeys(("n_accel", "dp", "zero_stage", "shard"))
    shard = mesh["shard"] or 1
    inner = (mesh[name] or 1 for name in ("tp", "pp", "cp"))
    return {
        "n_accel": dp * math.prod(inner),
        "dp": dp,
        "zero_stage": 3 if shard > 1 else 0,
        "shard": shard if 1 < shard < dp else None,
    }


def _model(config: settings.Settings, told: Facts) -> str | None:
    name = told.get("name") or config.get("model.name")
    flavor = told.get("flavor") or config.get("model.flavor")
    return f"{name}-{flavor}" if name and flavor else None


def _micro_batch(config: settings.Settings, pp: int | None, local: int | None) -> int | None:
    if pp == 1:
        return local
    return count(config.get("parallelism.pipeline_parallel_microbatch_size"))


def shape(arguments: dict[str, str]) -> dict[str, Any]:
    """Shape out of the printed arguments of a model."""
    width = count(arguments.get("dim"))
    if not width:
        return {}
    inner = count(arguments.get("hidden_dim"))
    if inner is None:
        inner = _inner_width(arguments, width)
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


def _inner_width(arguments: dict[str, str], width: int) -> int | None:
    """The width of a Llama MLP: 8/3 of the model's, scaled and rounded up."""
    scale = number(arguments.get("ffn_dim_multiplier")) or 1.0
    multiple = count(arguments.get("multiple_of"))
    if not multiple or not 0.0 < scale < 100.0:
        return None
    return multiple * -(-int(scale * int(8 * width / 3)) // multiple)


def _precision(config: settings.Settings) -> str | None:
    converters = config.get("model.converters", "") + config.get("model.float8", "")
    if "mx" in converters:
        return "mxfp8"
    if "float8" in converters:
        return "fp8"
    words = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    return words.get(config.get("training.mixed_precision_param", ""))


def _recompute(config: settings.Settings, told: Facts) -> tuple[str | None, dict[str, float]]:
    """The word for what is recomputed, or the share of the layers; of whole layers "selective" is
    not said, since that is the word of checkpoints by operator."""
    mode = told.get("recompute") or config.get("activation_checkpoint.mode")
    every = count(config.get("activation_checkpoint.selective_ac_option"))
    if mode == "selective" and every:
        return ("full", {}) if every == 1 else (None, {"recompute_layers": 1.0 / every})
    return (mode if mode in ("none", "selective", "full") else None), {}
