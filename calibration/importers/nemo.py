"""Training logs of NeMo: lines of iterations, states of a progress bar or lines of DLLogger with
`train_step_timing in s`, and the configuration as YAML or as DLLogger's parameters."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import dropwhile, takewhile
from typing import Any

from calibration.importers import settings
from calibration.importers.found import (
    Result,
    count,
    counted,
    in_host_memory,
    nonzero,
    number,
    of_some_layers,
    switch,
    truth,
)
from calibration.importers.source import Line, Source
from calibration.importers.steps import Step, numbered, runs, seconds_of, summary
from dmodel.units import GIB

NAME, STACK = "nemo", "nemo"
SIGN = re.compile(r"train_step_timing in s|reduced_train_loss")

_ITERATION = re.compile(r"Training epoch \S+, iteration (\S{1,20}?)/\S{1,20} \|(.*)$")
_BAR = re.compile(r"Epoch \S{1,20}?:[^/]{0,200}\b\d{1,12}/\d{1,12} \[[^,\]]{0,40},(.*)$")
_PACE = re.compile(r"([\d.]{1,12})(s/it|it/s)\b")
_LOGGER = re.compile(r"\bDLLL (\{.*)$")
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


class _Log:
    """A log while it is read: settings, steps by global batch, peaks of memory."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.config: settings.Settings = {}
        self.groups: dict[int | None, list[Step]] = {}
        self.memory: list[float] = []


def parse(source: Source) -> Result:
    """One row for each global batch of a log."""
    log, lines = _Log(Result(source.name)), source.lines
    for i, (line, text) in enumerate(lines):
        if found := _LOGGER.search(text):
            _logged(log, line, found[1])
        elif i + 1 == len(lines) and _cut(source, text):
            log.result.bad_line(
                line, "the file ends within a step time, or right behind it; left out"
            )
        elif _CONFIGURATION.search(text):
            log.config |= settings.yaml(_below(lines, i + 1))
        elif found := _VOCAB.search(text):
            log.config["padded_vocab_size"] = found[1]
        elif values := _values(text):
            _take(log, line, values)
    for batch, steps in log.groups.items():
        for run in runs(steps):
            _row(log, batch, run)
    return log.result


def _logged(log: _Log, line: int, text: str) -> None:
    """Take a line of DLLogger: parameters by path, or the figures of a step."""
    try:
        entry = json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError) as error:
        log.result.bad_line(line, f"no whole JSON object after DLLL ({str(error)[:60]}); left out")
        return
    data = entry.get("data") if isinstance(entry, dict) else None
    if not isinstance(data, dict):
        return
    if entry.get("step") == "PARAMETER":
        named = {str(k).removeprefix("cfg/").replace("/", "."): v for k, v in data.items()}
        log.config |= settings.flat(named)
    elif any(name in data for name in ("train_step_timing in s", "reduced_train_loss")):
        values = {str(k): str(v) for k, v in data.items()}
        _take(log, line, {"global_step": str(entry.get("step"))} | values)


def _cut(source: Source, last: str) -> bool:
    """Whether a file ends within a step time, or right behind it."""
    return not source.text.endswith(("\n", "\r")) and _LAST.search(last) is not None


def _values(text: str) -> dict[str, str]:
    """What the line of an iteration shows, its number as `global_step`; nothing of others."""
    if found := _ITERATION.search(text):
        return {"global_step": found[1]} | dict(_pair(part, ":") for part in found[2].split("|"))
    if found := _BAR.search(text):
        values = dict(_pair(part, "=") for part in found[1].rstrip("] ").split(","))
        return _with_pace(values, found[1]) if "global_step" in values else {}
    return {}


def _below(lines: list[Line], first: int) -> list[Line]:
    """Lines of the dump: up to the next line of the logger, without its own one above it."""
    below = lines[first : first + _SOME]
    dump = dropwhile(_of_logger, below)
    return list(takewhile(lambda line: not _of_logger(line), dump))


def _of_logger(line: Line) -> bool:
    return line.text.startswith("[")


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


def _take(log: _Log, line: int, values: dict[str, str]) -> None:
    """One iteration."""
    given = values.get("train_step_timing in s", values.get("pace"))
    if given is None:
        why = "the line is cut short, or the timing callback is off"
        log.result.bad_line(line, f"an iteration without `train_step_timing in s`: {why}; left out")
        return
    step = numbered(log.result, line, values["global_step"])
    seconds = seconds_of(log.result, line, given)
    if step is None or seconds is None:
        return
    peaks = (number(values.get(name)) for name in ("max_memory_allocated", "peak_memory_usage"))
    log.memory += filter(None, peaks)
    log.groups.setdefault(count(values.get("global_batch_size")), []).append(
        Step(line, step, seconds, _metrics(values))
    )


def _metrics(values: dict[str, str]) -> dict[str, float]:
    smoothed = "pace" in values and "train_step_timing in s" not in values
    return nonzero(
        tflops=number(values.get("TFLOPS_per_GPU")),
        tokens=number(values.get("tokens_per_sec_per_gpu")),
        pace=float(smoothed),
    )


def _row(log: _Log, batch: int | None, steps: list[Step]) -> None:
    found = summary(log.result, steps)
    if found is None:
        return
    cells, notes = described(log.config)
    if any("pace" in s.metrics for s in found.steps):
        notes.append("times are the progress bar's smoothed pace")
    cells |= {
        "stack": STACK,
        "global_batch": batch or cells.get("global_batch"),
        "step_time_s": found.seconds,
        "tflops_reported": found.median("tflops"),
        "tokens_per_s_per_accel": found.median("tokens"),
        "peak_memory_gib": max(log.memory) / GIB if log.memory else None,
        "peak_kind": "allocated" if log.memory else None,
        "note": "; ".join([found.note, *notes]),
    }
    log.result.add(found.line, cells, steps=found.every)


def described(config: settings.Settings) -> tuple[dict[str, Any], list[str]]:
    """Cells that the configuration tells, and remarks."""
    if not config:
        return {}, ["no configuration in the log"]
    told = _Told(config)
    cells: dict[str, Any] = {c: counted(told, names) for c, names in DIRECT.items()}
    cells |= _devices(told, cells) | _experts(cells)
    cells |= {
        "gated_mlp": _gated(told.get("activation")),
        "sp": switch(told.get("sequence_parallel")),
        "precision": _precision(told),
        "attention": _attention(told),
        "zero_stage": _zero(told.get("fsdp"), told.get("optim.name")),
    }
    cells["recompute"], notes = _recompute(told)
    cells["set"], waits = _offloaded(told, cells["n_layers"])
    return cells, notes + waits


class _Told(Mapping[str, str]):
    """Settings by their name alone, which stand below `model`, beside it, or below `trainer`."""

    PLACES = ("model.", "model.config.", "", "trainer.")

    def __init__(self, config: settings.Settings) -> None:
        self.config = config

    def __getitem__(self, name: str) -> str:
        for place in self.PLACES:
            if place + name in self.config:
                return self.config[place + name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.config)

    def __len__(self) -> int:
        return len(self.config)


def _devices(told: _Told, cells: dict[str, Any]) -> dict[str, Any]:
    """Cells of the devices; data parallelism is what the other degrees leave of them."""
    nodes = count(told.config.get("trainer.num_nodes"))
    each = count(told.config.get("trainer.devices"))
    devices = nodes * each if nodes and each else None
    inner = math.prod(cells[name] or 1 for name in ("tp", "pp", "cp"))
    return {
        "n_accel": devices,
        "accel_per_node": each,
        "dp": count(devices / inner) if devices else None,
    }


def _experts(cells: dict[str, Any]) -> dict[str, Any]:
    """Cells of experts, blank where there is one."""
    names = ("n_experts", "top_k")
    several = cells["n_experts"] and cells["n_experts"] > 1
    return {name: cells[name] if several else None for name in names}


def _gated(activation: str | None) -> int | None:
    return int("glu" in activation) if activation else None


def _attention(told: _Told) -> str | None:
    names = ("use_flash_attention", "transformer_engine")
    return "flash" if any(truth(told.get(name)) for name in names) else None


PRECISIONS = {
    "bf16": "bf16",
    "bf16-mixed": "bf16",
    "16": "fp16",
    "16-mixed": "fp16",
    "32": "fp32",
    "32-true": "fp32",
}


def _precision(told: _Told) -> str | None:
    if truth(told.get("fp8")):
        return "fp8"
    given = told.config.get("trainer.precision", told.get("precision"))
    return PRECISIONS.get(str(given).lower())


def _zero(fsdp: str | None, optimizer: str | None) -> int | None:
    if truth(fsdp):
        return 3
    if optimizer is None:
        return None
    return int(optimizer.startswith(("distributed_", "mcore_distributed")))


def _recompute(told: _Told) -> tuple[str | None, list[str]]:
    kind = told.get("activations_checkpoint_granularity") or told.get("recompute_granularity")
    if kind in ("null", "None"):
        return "none", []
    some = _layers_of_stages(told) if kind == "full" else None
    if some:
        return None, [of_some_layers(some)]
    return (kind if kind in ("full", "selective") else None), []


def _layers_of_stages(told: _Told) -> int | None:
    """How many layers of each stage are recomputed, where it is not all."""
    if told.get("activations_checkpoint_method") != "block":
        return None
    return count(told.get("activations_checkpoint_num_layers"))


def _offloaded(told: _Told, layers: int | None) -> tuple[str, list[str]]:
    """Setting and note of layers whose activations are offloaded, where that is switched on."""
    excluded = truth(told.get("cpu_offloading_activations") or "True") is False
    if excluded or not truth(told.get("cpu_offloading")):
        return "", []
    return in_host_memory(_layers_offloaded(told, layers), layers)


def _layers_offloaded(told: _Told, layers: int | None) -> int | None:
    """As told; all but the last by default, which dumps give as a formula."""
    given = told.get("cpu_offloading_num_layers", "")
    if layers and _ALL_BUT_ONE.fullmatch(given):
        return layers - 1
    return count(given)
