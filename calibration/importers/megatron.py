"""Training logs of Megatron-LM and its relatives: the dump of arguments, and a line for each
(interval of) iterations."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

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
from calibration.importers.source import Source
from calibration.importers.steps import Step, Summary, numbered, runs, seconds_of, summary
from dmodel.settings import text_of

NAME, STACK = "megatron", "megatron-lm"
SIGN = re.compile(r"elapsed time per iteration \((?:ms|s)\)")

_ARGUMENT = re.compile(r"^\s*([a-zA-Z]\w*) \.+ ?(.*)$")
_ARGUMENTS = re.compile(r"-{5,} arguments -{5,}")
_ITERATION = re.compile(r"iteration\s{1,12}(\S{1,20}?)\s{0,12}/\s{0,12}(\S{1,20}?)\s{0,12}\|(.*)$")
_PADDED = re.compile(r"padded vocab \(size: \d+\).*\(new size: (\d+)\)")
_MEMORY = re.compile(r"memory \(MB\).*max allocated: ([\d.eE+]+)")
_WORLD = re.compile(r"\busing (?=.*\bworld size: \d)(.*)$")
_DEGREE = re.compile(r"([a-z][a-z-]{1,60}?)[- ]size: (\d{1,15})")

Arguments = dict[str, str]

DIRECT = {
    "n_layers": ("num_layers", "encoder_num_layers"),
    "d_model": ("hidden_size",),
    "n_heads": ("num_attention_heads",),
    "head_dim": ("kv_channels",),
    "vocab": ("padded_vocab_size", "vocab_size"),
    "seq_len": ("seq_length", "encoder_seq_length", "max_position_embeddings"),
    "n_accel": ("world_size",),
    "dp": ("data_parallel_size",),
    "tp": ("tensor_model_parallel_size", "model_parallel_size"),
    "pp": ("pipeline_model_parallel_size",),
    "interleave": ("virtual_pipeline_model_parallel_size",),
    "cp": ("context_parallel_size",),
    "ep": ("expert_model_parallel_size", "moe_expert_parallel_size"),
    "micro_batch": ("micro_batch_size", "batch_size"),
    "n_experts": ("num_experts",),
}
"""Column → arguments that hold it, newest name first."""


class _Run:
    """One start of the program in a log: its arguments, and its steps by global batch. told:
    arguments that other lines than the dump of arguments hold; the dump goes before them."""

    def __init__(self) -> None:
        self.arguments: Arguments = {}
        self.told: Arguments = {}
        self.steps: dict[int | None, list[Step]] = {}
        self.peak_mib: float | None = None


class _Log:
    """A log while it is read. runs: starts of the program, the last of which lines belong to."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.runs = [_Run()]

    @property
    def run(self) -> _Run:
        """The start that is being read."""
        return self.runs[-1]

    def begin(self) -> None:
        """Another start of the program, where the last one has steps."""
        if self.run.steps:
            self.runs.append(_Run())


def parse(source: Source) -> Result:
    """One row for each start of the program and global batch; the iterations before it grew are
    other rows."""
    log = _Log(Result(source.name))
    for line, text in source.lines:
        _take(log, line, text)
    for run in log.runs:
        for batch, steps in run.steps.items():
            for each in runs(steps):
                _row(log.result, run, batch, each)
    return log.result


def _take(log: _Log, line: int, text: str) -> None:
    for pattern, take in LINES:
        if found := pattern.search(text):
            take(log, line, found)
            return


def _heading(log: _Log, line: int, found: re.Match[str]) -> None:
    log.begin()


def _argument(log: _Log, line: int, found: re.Match[str]) -> None:
    log.run.arguments[found[1]] = found[2].strip()


def _padded(log: _Log, line: int, found: re.Match[str]) -> None:
    log.run.told["padded_vocab_size"] = found[1]


def _world(log: _Log, line: int, found: re.Match[str]) -> None:
    log.begin()
    log.run.told |= _degrees(found[1])


def _memory(log: _Log, line: int, found: re.Match[str]) -> None:
    log.run.peak_mib = max(number(found[1]) or 0.0, log.run.peak_mib or 0.0)


def _degrees(text: str) -> Arguments:
    """What the first line of a run says of its degrees, in any order, by the names of the arguments
    that hold the same.

    >>> _degrees("world size: 8, context-parallel sizes: None, data-parallel-size: 2")
    {'world_size': '8', 'data_parallel_size': '2'}
    """
    parts = (_DEGREE.fullmatch(part.strip()) for part in re.split(r",| and ", text))
    return {found[1].replace("-", "_") + "_size": found[2] for found in parts if found}


def _iteration(log: _Log, line: int, found: re.Match[str]) -> None:
    """Take one line of iterations."""
    values = _fields(found[3])
    time, mean = _elapsed(values)
    if time is None:
        log.result.bad_line(
            line,
            "an iteration without its elapsed time: the line is cut short, or damaged; left out",
        )
        return
    step = numbered(log.result, line, found[1])
    seconds = seconds_of(log.result, line, *time)
    if step is None or seconds is None:
        return
    told = values.get("throughput per GPU (TFLOP/s/GPU)", values.get("TFLOPs", ""))
    rate = number(told.partition("/")[0])
    batch = count(values.get("global batch size", log.run.arguments.get("global_batch_size")))
    figures = nonzero(tflops=rate, mean=number(mean))
    log.run.steps.setdefault(batch, []).append(Step(line, step, seconds, figures))


def _fields(text: str) -> dict[str, str]:
    """`name: value` between bars; what no bar follows may be cut short."""
    whole = text.split("|")[:-1]
    fields = dict(part.split(":", 1) for part in whole if ":" in part)
    return {name.strip(): value.strip() for name, value in fields.items()}


def _elapsed(values: dict[str, str]) -> tuple[tuple[str, float] | None, str | None]:
    """The time of an iteration as written with seconds of its unit, and the mean of the run that
    some forks write behind it (`this/mean`)."""
    for name, value in values.items():
        if name.startswith("elapsed time per iteration"):
            this, _, mean = value.partition("/")
            return (this.strip(), 1e-3 if name.endswith("(ms)") else 1.0), mean.strip() or None
    return None, None


LINES: tuple[tuple[re.Pattern[str], Callable[[_Log, int, re.Match[str]], None]], ...] = (
    (_ARGUMENTS, _heading),
    (_ITERATION, _iteration),
    (_ARGUMENT, _argument),
    (_PADDED, _padded),
    (_WORLD, _world),
    (_MEMORY, _memory),
)
"""Lines that tell something, and what takes them; a line is the first that fits."""


def _row(result: Result, run: _Run, batch: int | None, steps: list[Step]) -> None:
    a = run.told | run.arguments
    interval = count(a.get("log_interval")) or 1
    found = summary(result, steps, "step" if interval == 1 else f"mean of {interval} steps")
    if found is None:
        return
    cells, notes = described(a)
    if not run.arguments:
        notes.append("no dump of arguments in the log")
    seconds, says = _of_few(found, steps)
    cells |= {
        "stack": STACK,
        "global_batch": batch or count(a.get("global_batch_size")),
        "step_time_s": seconds,
        "tflops_reported": found.median("tflops"),
        "peak_memory_gib": run.peak_mib / 1024.0 if run.peak_mib else None,
        "peak_kind": "allocated" if run.peak_mib else None,
        "note": "; ".join([found.note, *says, *notes]),
    }
    result.add(found.line, cells, steps=found.every)


FEW = 3
"""Logged times below which the mean of the run that a fork writes says more than their median."""


def _of_few(found: Summary, steps: list[Step]) -> tuple[float, list[str]]:
    """The step time, and what to say of the mean of the run, where a fork writes one. It is in the
    unit of the times."""
    last = steps[-1]
    mean = last.metrics.get("mean")
    # the unit is milliseconds or seconds: the mean is near the time in one of them
    unit = min((1.0, 1e-3), key=lambda u: abs((mean or 0.0) * u / last.seconds - 1.0))
    if mean is None or not 0.1 < mean * unit / last.seconds < 10.0:
        return found.seconds, []
    says = f"last {last.seconds:.6g} s, mean of the run {mean * unit:.6g} s"
    return (mean * unit if found.kept < FEW else found.seconds), [says]


def described(a: Arguments) -> tuple[dict[str, Any], list[str]]:
    """Cells that the arguments tell, and remarks."""
    cells: dict[str, Any] = {column: counted(a, names) for column, names in DIRECT.items()}
    cells |= _shape(a, cells) | {
        "sp": switch(a.get("sequence_parallel")),
        "precision": _precision(a),
        "attention": _attention(a),
        "zero_stage": _zero(a),
    }
    cells["recompute"], notes = _recompute(a, cells["n_layers"], cells["pp"] or 1)
    offloaded, waits = in_host_memory(_layers_offloaded(a), cells["n_layers"])
    schedule = _schedule(a) if (cells["pp"] or 1) > 1 else {}
    cells["set"] = "; ".join(filter(None, [offloaded, text_of(schedule)]))
    return cells, notes + waits


FOLDED = {"dualpipev": "dualpipev"}
"""`schedules_method` of MindSpeed → the schedule of the pipeline."""


def _schedule(a: Arguments) -> dict[str, str]:
    """The pipeline's schedule where a relative runs another one than 1F1B: MindSpeed, or the
    zero-bubble fork (sail-sg/zero-bubble-pipeline-parallelism)."""
    method = FOLDED.get(a.get("schedules_method", ""))
    if method:
        return {"schedule": method}
    if _any_on(a, "zero_bubble_v_schedule"):
        return {"schedule": "zbv"}
    return {"schedule": "zero-bubble"} if _any_on(a, "enable_zero_bubble") else {}


def _shape(a: Arguments, cells: dict[str, Any]) -> dict[str, Any]:
    """Cells of the shape that no single argument holds."""
    width, experts, groups = cells["d_model"], cells["n_experts"], cells["n_heads"]
    feed = count(a.get("ffn_hidden_size")) or (4 * width if width else None)
    if truth(a.get("group_query_attention")):
        groups = count(a.get("num_query_groups"))
    return {
        "d_ff": (count(a.get("moe_ffn_hidden_size")) if experts else None) or feed,
        "gated_mlp": switch(a.get("swiglu")),
        "n_kv_heads": groups,
        "top_k": count(a.get("moe_router_topk")) if experts else None,
    }


def _on(a: Arguments, name: str) -> bool:
    """An argument that is set, and not to False, 0 or None."""
    return a.get(name, "None") not in ("None", "False", "0", "", "null")


FP8_RECIPES = {"mxfp8": "mxfp8", "blockwise": "fp8-blockwise128"}


def _precision(a: Arguments) -> str | None:
    if _any_on(a, "fp4", "fp4_format"):
        return "nvfp4"
    if _any_on(a, "fp8", "fp8_format"):
        return FP8_RECIPES.get(a.get("fp8_recipe", ""), "fp8")
    half = next((name for name in ("bf16", "fp16") if _on(a, name)), None)
    if half is None and ("bf16" in a or "fp16" in a):
        return "fp32"
    return half


def _any_on(a: Arguments, *names: str) -> bool:
    return any(_on(a, name) for name in names)


def _attention(a: Arguments) -> str | None:
    backend = a.get("attention_backend", "").rpartition(".")[2]
    if _on(a, "use_flash_attn") or backend in ("flash", "fused"):
        return "flash"
    if backend in ("unfused", "local"):
        return "none"
    # the default of Transformer Engine picks a fused kernel wherever there is one
    if a.get("transformer_impl") == "transformer_engine":
        return "flash"
    return "none" if a.get("use_flash_attn") == "False" else None


SHARDED = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""`data_parallel_sharding_strategy` → stage of ZeRO."""


def _zero(a: Arguments) -> int | None:
    if _on(a, "zero_stage"):
        return count(a["zero_stage"])
    if _on(a, "use_torch_fsdp2"):
        return 3
    if _any_on(a, "use_megatron_fsdp", "use_custom_fsdp"):
        return SHARDED.get(a.get("data_parallel_sharding_strategy", ""))
    return int(_on(a, "use_distributed_optimizer")) if "use_distributed_optimizer" in a else None


def _recompute(a: Arguments, layers: int | None, pp: int) -> tuple[str | None, list[str]]:
    """Recomputation; of some layers only there is no word for it in the format."""
    kind = a.get("recompute_granularity", a.get("activations_checkpoint_granularity"))
    if kind is None:
        return _recompute_of_old(a), []
    if kind == "None":
        return "none", []
    some = _layers_of_stages(a) if kind == "full" else None
    if some and layers and some * pp < layers:
        return None, [of_some_layers(some)]
    if kind in ("selective", "full"):
        return kind, []
    return None, [f"recompute_granularity {kind[:40]}: left blank"]


def _recompute_of_old(a: Arguments) -> str | None:
    """Recomputation by the arguments of releases without `recompute_granularity`."""
    old = a.get("checkpoint_activations", a.get("activations_checkpoint_method"))
    if old is None:
        return None
    return "none" if old in ("False", "None") else "full"


def _layers_of_stages(a: Arguments) -> int | None:
    """How many layers of each stage are recomputed, where it is not all."""
    if a.get("recompute_method") != "block":
        return None
    return count(a.get("recompute_num_layers", a.get("activations_checkpoint_num_layers")))


def _layers_offloaded(a: Arguments) -> int | None:
    """Layers whose activations are offloaded: their number alone switches it on, unless the dump
    says that all or activations are off."""
    off = any(
        truth(a.get(name)) is False and name in a
        for name in ("cpu_offloading", "cpu_offloading_activations")
    )
    return None if off else count(a.get("cpu_offloading_num_layers"))
