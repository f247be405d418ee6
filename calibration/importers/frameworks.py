"""Training logs whose steps are figures by name: one line each, or a heading and one line for each
figure. Which figures a framework writes, and in which unit, is a table.

Formats as printed by InternLM (`record_current_batch_training_metrics`), neuronx-distributed
(`Throughput`, a mean of ten steps), DeepSpeed (`ThroughputTimer`, `PipelineEngine`), MosaicML
Composer (`SpeedMonitor`, `MemoryMonitor`), OLMo-core (`SpeedMonitorCallback`) and OLMo.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from dmodel.units import GIB

_FIGURE = r"[:=]\s*'?([\d.,]+(?:[eE][+\-]?\d+)?)([KMGTP]?)"
"""A name is followed by its figure."""


class Quantity(NamedTuple):
    """A figure of a step. pattern: of its name and figure. scale: to the unit of its kind."""

    kind: str
    pattern: re.Pattern[str]
    scale: float = 1.0


class Fact(NamedTuple):
    """What another line tells of the run. column: of the table. words: of a cell for those of the
    log; none = a count."""

    column: str
    pattern: re.Pattern[str]
    words: Mapping[str, str] = {}


class Framework(NamedTuple):
    """How one framework logs.

    Attributes:
      name: of the format. stack: that wrote it. sign: by which a text is told. step: a line that is
        a step, or begins one; its first group is the step's number. goes_on: further lines of it,
        None where it is one line. quantities: its figures, of several of a kind the first that is
        there. facts: of other lines.
      says: what a person should know of its figures, for the note.
    """

    name: str
    about: str
    stack: str
    sign: re.Pattern[str]
    step: re.Pattern[str]
    goes_on: re.Pattern[str] | None
    quantities: tuple[Quantity, ...]
    facts: tuple[Fact, ...] = ()
    says: str = ""


def _of(kind: str, name: str, scale: float = 1.0) -> Quantity:
    """A figure that follows its name, which is no part of a longer one."""
    return Quantity(kind, re.compile(rf"(?<![\w/]){re.escape(name)}\s*{_FIGURE}"), scale)


def _dumped(column: str, name: str, words: Mapping[str, str] = {}) -> Fact:
    """A fact of a dump `name ..... value`."""
    return Fact(
        column, re.compile(rf"\b{name} \.* ?(?:stage=)?(\S+)$|\b{name} \.* ?stage=(\d)"), words
    )


INTERNLM = Framework(
    "internlm",
    "log of InternLM or InternEvo, tgs (tokens/gpu/second)",
    "internlm",
    re.compile(r"\btgs \(tokens/gpu/second\)="),
    re.compile(r"^(?=.*\btgs \(tokens/gpu/second\)=).*?\bstep=(\d+)"),
    None,
    (
        _of("tokens_each", "tgs (tokens/gpu/second)"),
        _of("tflops", "tflops"),
        _of("consumed", "num_consumed_tokens"),
    ),
)

NEURONX = Framework(
    "neuronx",
    "log of neuronx-distributed, step_time and seq/s",
    "neuronx-distributed",
    re.compile(r"\bstep \d+ step_time [\d.]|- \(\d+, \d+\) step_loss : "),
    re.compile(r"\bstep (\d+) step_time|- \(\d+, (\d+)\) step_loss :"),
    None,
    (
        Quantity("seconds", re.compile(r"step_time ([\d.eE+\-]+)s")),
        Quantity("running", re.compile(r"throughput(?: :)? ([\d.eE+\-]+)")),
    ),
    says="its rate is a mean of up to ten steps, and not taken where there is a step time",
)

DEEPSPEED = Framework(
    "deepspeed",
    "log of DeepSpeed, SamplesPerSec or samples/sec",
    "deepspeed",
    re.compile(r"SamplesPerSec=|iter time \(s\): |Samples/sec: [\d.]+, Time/seq"),
    re.compile(
        r"(?:epoch=\d{1,9}/micro_step=\d{1,12}/global_step=|\b\d{1,9}/)(\d{1,12}), "
        r"(?:RunningAvg)?SamplesPerSec="
        r"|\bsteps?: {1,9}(\d{1,12})(?: {0,9}/ {0,9}\d{1,12})? loss: .*iter time \(s\): "
        r"|Latency: [\d.]{1,15}s, TFLOPs: [\d.]{1,15}, Samples/sec: ()"
    ),
    None,
    (
        Quantity("seconds", re.compile(r"iter time \(s\): ([\d.eE+\-]+)")),
        Quantity("seconds", re.compile(r"Latency: ([\d.eE+\-]+)s, TFLOPs")),
        _of("samples", "CurrSamplesPerSec"),
        _of("samples", "SamplesPerSec"),
        _of("samples", "samples/sec"),
        _of("samples", "Samples/sec"),
        _of("tflops", "TFLOPs"),
        _of("batch", "Batch Size"),
        _of("seq", "Sequence Length"),
        Quantity("memory", re.compile(r"MaxMemAllocated=([\d.]+)GB")),
    ),
    (
        _dumped("global_batch", "train_batch_size"),
        _dumped("micro_batch", "train_micro_batch_size_per_gpu"),
        _dumped("n_accel", "world_size"),
        _dumped("zero_stage", "(?:zero_config|zero_optimization_stage)"),
        _dumped("precision", "bfloat16_enabled", {"True": "bf16"}),
        _dumped("precision", "fp16_enabled", {"True": "fp16"}),
    ),
)

COMPOSER = Framework(
    "composer",
    "log of MosaicML Composer or LLM Foundry, throughput/batches_per_sec",
    "composer",
    re.compile(r"\bthroughput/(?:device/)?(?:batches|samples|tokens)_per_sec: "),
    re.compile(r"\[(?:epoch=\d+/\d+\]\[)?batch=(\d+)/\d+\]:"),
    re.compile(r"^\s+(?:Train|Eval) |^\s*(?:Train )?[a-zA-Z][\w ]*/[\w/ ]+: "),
    (
        _of("steps", "throughput/batches_per_sec"),
        _of("samples", "throughput/samples_per_sec"),
        _of("tokens", "throughput/tokens_per_sec"),
        _of("tokens_each", "throughput/device/tokens_per_sec"),
        _of("samples_each", "throughput/device/samples_per_sec"),
        _of("tflops", "throughput/device/flops_per_sec", 1e-12),
        _of("mfu", "throughput/device/mfu"),
        _of("memory", "memory/peak_reserved_mem", 1e9 / GIB),
        _of("memory", "memory/peak_allocated_mem", 1e9 / GIB),
    ),
    says="rates are means of the last batches",
)

OLMO_CORE = Framework(
    "olmo-core",
    "log of OLMo-core, throughput/device/TPS",
    "olmo-core",
    re.compile(r"\bthroughput/device/(?:TPS|BPS)(?: \(actual avg\))?="),
    re.compile(r"\[step=(\d+)/\d+"),
    re.compile(r"^\s*[\w][\w ()%.\-]*/[\w /()%.\-]+=|^\s*[a-zA-Z][\w ()%/.\-]*="),
    (
        _of("steps", "throughput/device/BPS"),
        _of("tokens_each", "throughput/device/TPS"),
        _of("tflops", "throughput/device/flopsPS", 1e-12),
        _of("mfu", "throughput/device/MFU", 0.01),
        _of("memory", "gpu_memory/GPU reserved mem (GiB)"),
        _of("memory", "gpu_memory/GPU active mem (GiB)"),
        _of("memory", "system/GPU reserved mem (GiB)"),
    ),
)

OLMO = Framework(
    "olmo",
    "log of OLMo, throughput/device/tokens_per_second",
    "olmo",
    re.compile(r"\bthroughput/device/(?:tokens|batches)_per_second="),
    re.compile(r"\[step=(\d+)/\d+"),
    OLMO_CORE.goes_on,
    (
        _of("steps", "throughput/device/batches_per_second"),
        _of("tokens_each", "throughput/device/tokens_per_second"),
        _of("memory", "System/Peak GPU Memory (MB)", 1e6 / GIB),
    ),
    says="rates are means of the last batches",
)

FRAMEWORKS = (INTERNLM, NEURONX, DEEPSPEED, COMPOSER, OLMO_CORE, OLMO)
