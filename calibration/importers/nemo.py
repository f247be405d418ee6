"""Training logs of NeMo: lines of iterations or states of a progress bar with `train_step_timing in
s`, and the configuration as YAML."""

from __future__ import annotations

import re
from typing import Any

from calibration.importers import settings
from calibration.importers.found import Result, count, noted_in_host_memory, number, truth
from calibration.importers.source import Line, Source
from calibration.importers.steps import Step, numbered, seconds_of, summary
from dmodel.types import GIB

NAME, STACK = "nemo", "nemo"
SIGN = re.compile(r"train_step_timing in s|reduced_train_loss")

_ITERATION = re.compile(r"Training epoch \S+, iteration (\S{1,20}?)/\S{1,20} \|(.*)$")
_BAR = re.compile(r"Epoch \S{1,20}?:[^/]{0,200}\b\d{1,12}/\d{1,12} \[[^,\]]{0,40},(.*)$")
_PACE = re.compile(r"([\d.]{1,12})(s/it|it/s)\b")
_CONFIGURATION = re.compile(r"Experiment configuration")
_VOCAB = re.compile(r"Padded vocab_size: (\d+)")
_LAST = re.compile(r"train_step_timing in s[:=]\s*[\d.eE+\-]*$")
_ALL_BUT_ONE = re.compile(r"\$\{sum: ?\$\{[\w.]*num_layers\}, ?-1\}")
_SOME = 400
"""Lines after the heading that are searched for the configuration."""

DIRECT = {
    "n_layers": ("num_layers",),
    "d_model": ("hidden_size",),
    "d_ff": ("moe_ffn_hidden_size", "ffn_hidden_size"),
    "n_heads": ("num_attention_heads",),
    "n_kv_heads": ("num_query_groups", "num_attention_heads"),
    "head_dim": ("kv_channels",),
    "vocab": ("padded_vocab_size", "vocab_size"),
    "n_experts": ("num_moe_experts",),
    "top_k": ("moe_router_topk",),
    "seq_len": ("encoder_seq_length", "data.seq_length", "seq_length"),
    "tp": ("tensor_model_parallel_size",),
    "pp": ("pipeline_model_parallel_size",),
    "interleave": ("virtual_pipeline_model_parallel_size",),
    "cp": ("context_parallel_size",),
    "ep": ("expert_model_parallel_size",),
    "micro_batch": ("micro_batch_size",),
    "global_batch": ("global_batch_size",),
}
"""Column → settings that hold it, below `model` or beside it."""


def parse(source: Source) -> Result:
    """One row for each global batch of a log."""
    result, lines = Result(source.name), source.lines
    config: settings.Settings = {}
    groups: dict[int | None, list[Step]] = {}
    memory: list[float] = []
    for i, (line, text) in enumerate(lines):
        if i + 1 == len(lines) and not source.text.endswith(("\n", "\r")) and _LAST.search(text):
            result.bad_line(line, "the file ends within a step time, or right behind it; left out")
        elif _CONFIGURATION.search(text):
            config |= settings.yaml(_below(lines, i + 1))
        elif found := _VOCAB.search(text):
            config["padded_vocab_size"] = found[1]
        elif found := _ITERATION.search(text):
            values = dict(_pair(part, ":") for part in found[2].split("|"))
            _take(result, groups, memory, line, found[1], values)
        elif found := _BAR.search(text):
            values = dict(_pair(part, "=") for part in found[1].rstrip("] ").split(","))
            if "global_step" in values:
                _take(
                    result,
                    groups,
                    memory,
                    line,
                    values["global_step"],
                    _with_pace(values, found[1]),
                )
    for batch, steps in groups.items():
        _row(result, config, batch, steps, memory)
    return result


def _below(lines: list[Line], first: int) -> list[Line]:
    """Lines of the dump: up to the next line of the logger."""
    found: list[Line] = []
    for line in lines[first : first + _SOME]:
        if line.text.startswith("["):
            if found:
                break
            continue  # the logger's own line above the dump
        found.append(line)
    return found


def _pair(part: str, mark: str) -> tuple[str, str]:
    name, _, value = part.partition(mark)
    return name.strip(), value.strip()


def _with_pace(values: dict[str, str], text: str) -> dict[str, str]:
    """Where the bar shows no step time, its own smoothed pace."""
    pace = _PACE.search(text)
    if "train_step_timing in s" in values or not pace:
        return values
    rate = number(pace[1])
    shown = None if not rate else rate if pace[2] == "s/it" else 1.0 / rate
    return values | {"pace": repr(shown)}


def _take(
    result: Result,
    groups: dict[int | None, list[Step]],
    memory: list[float],
    line: int,
    which: str,
    values: dict[str, str],
) -> None:
    """One iteration."""
    given = values.get("train_step_timing in s", values.get("pace"))
    if given is None:
        why = "the line is cut short, or the timing callback is off"
        result.bad_line(line, f"an iteration without `train_step_timing in s`: {why}; left out")
        return
    step, seconds = (
        numbered(result, line, values.get("global_step", which)),
        seconds_of(result, line, given),
    )
    if step is None or seconds is None:
        return
    found = {
        "tflops": number(values.get("TFLOPS_per_GPU")),
        "tokens": number(values.get("tokens_per_sec_per_gpu")),
    }
    metrics = {name: value for name, value in found.items() if value}
    if "pace" in values and "train_step_timing in s" not in values:
        metrics["pace"] = 1.0
    memory += [
        m
        for name in ("max_memory_allocated", "peak_memory_usage")
        if (m := number(values.get(name)))
    ]
    groups.setdefault(count(values.get("global_batch_size")), []).append(
        Step(line, step, seconds, metrics)
    )


def _row(
    result: Result,
    config: settings.Settings,
    batch: int | None,
    steps: list[Step],
    memory: list[float],
) -> None:
    found = summary(result, steps)
    if found is None:
        return
    cells, notes = described(config)
    if any("pace" in s.metrics for s in found.steps):
        notes.append("times are the progress bar's smoothed pace")
    cells |= {
        "stack": STACK,
        "global_batch": batch or cells.get("global_batch"),
        "step_time_s": found.seconds,
        "tflops_reported": found.median("tflops"),
        "tokens_per_s_per_accel": found.median("tokens"),
        "peak_memory_gib": max(memory) / GIB if memory else None,
        "note": "; ".join([found.note, *notes]),
    }
    result.add(found.line, cells)


def described(config: settings.Settings) -> tuple[dict[str, Any], list[str]]:
    """Cells that the configuration tells, and remarks."""
    if not config:
        return {}, ["no configuration in the log"]

    def get(name: str) -> str | None:
        return next(
            (
                config[k]
                for k in (f"model.{name}", f"model.config.{name}", name, f"trainer.{name}")
                if k in config
            ),
            None,
        )

    cells: dict[str, Any] = {
        c: next((n for s in names if (n := count(get(s)))), None) for c, names in DIRECT.items()
    }
    nodes, each = count(config.get("trainer.num_nodes")), count(config.get("trainer.devices"))
    devices = nodes * each if nodes and each else None
    inner = (cells["tp"] or 1) * (cells["pp"] or 1) * (cells["cp"] or 1)
    experts = cells["n_experts"] and cells["n_experts"] > 1
    activation = get("activation")
    cells |= {
        "n_accel": devices,
        "accel_per_node": each,
        "dp": count(devices / inner) if devices else None,
        "n_experts": cells["n_experts"] if experts else None,
        "top_k": cells["top_k"] if experts else None,
        "gated_mlp": int("glu" in activation) if activation else None,
        "sp": None
        if get("sequence_parallel") is None
        else int(truth(get("sequence_parallel")) or False),
        "precision": _precision(get("fp8"), config.get("trainer.precision", get("precision"))),
        "attention": "flash"
        if truth(get("use_flash_attention")) or truth(get("transformer_engine"))
        else None,
        "zero_stage": _zero(get("fsdp"), get("optim.name")),
    }
    cells["recompute"], notes = _recompute(get)
    return cells, notes + _offloaded(get, cells["n_layers"])


def _precision(fp8: str | None, given: str | None) -> str | None:
    if truth(fp8):
        return "fp8"
    words = {
        "bf16": "bf16",
        "bf16-mixed": "bf16",
        "16": "fp16",
        "16-mixed": "fp16",
        "32": "fp32",
        "32-true": "fp32",
    }
    return words.get(str(given).lower())


def _zero(fsdp: str | None, optimizer: str | None) -> int | None:
    return (
        3
        if truth(fsdp)
        else None
        if optimizer is None
        else int(optimizer.startswith(("distributed_", "mcore_distributed")))
    )


def _recompute(get: Any) -> tuple[str | None, list[str]]:
    kind = get("activations_checkpoint_granularity") or get("recompute_granularity")
    method, some = (
        get("activations_checkpoint_method"),
        count(get("activations_checkpoint_num_layers")),
    )
    if kind in ("null", "None"):
        return "none", []
    if kind == "full" and method == "block" and some:
        return None, [f"recomputes {some} layers of each stage in full: left blank"]
    return (kind if kind in ("full", "selective") else None), []


def _offloaded(get: Any, layers: int | None) -> list[str]:
    """Layers whose activations are offloaded, where that is switched on; all but the last by
    default, which dumps give as a formula."""
    if (
        not truth(get("cpu_offloading"))
        or truth(get("cpu_offloading_activations") or "True") is False
    ):
        return []
    told = get("cpu_offloading_num_layers") or ""
    by_default = layers - 1 if layers and _ALL_BUT_ONE.fullmatch(told) else None
    return noted_in_host_memory(count(told) or by_default, layers)
