"""Training logs of Megatron-LM and its relatives: the dump of arguments, and a line for each
(interval of) iterations."""

from __future__ import annotations

import re
from typing import Any

from calibration.importers.found import Result, count, noted_in_host_memory, number, truth
from calibration.importers.source import Source
from calibration.importers.steps import Step, numbered, seconds_of, summary

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


def parse(source: Source) -> Result:
    """One row for each start of the program and global batch; the iterations before it grew are
    other rows."""
    result, runs = Result(source.name), [_Run()]
    for line, text in source.lines:
        run = runs[-1]
        if _ARGUMENTS.search(text):
            runs += [_Run()] if run.steps else []
        elif found := _ITERATION.search(text):
            _iteration(result, run, line, found)
        elif found := _ARGUMENT.match(text):
            run.arguments[found[1]] = found[2].strip()
        elif found := _PADDED.search(text):
            run.told["padded_vocab_size"] = found[1]
        elif found := _WORLD.search(text):
            runs += [_Run()] if run.steps else []
            runs[-1].told |= _degrees(found[1])
        elif found := _MEMORY.search(text):
            run.peak_mib = max(number(found[1]) or 0.0, run.peak_mib or 0.0)
    for run in runs:
        for batch, steps in run.steps.items():
            _row(result, run, batch, steps)
    return result


def _degrees(text: str) -> Arguments:
    """What the first line of a run says of its degrees, in any order, by the names of the arguments
    that hold the same.

    >>> _degrees("world size: 8, tensor-model-parallel size: 4, hierarchical context-parallel sizes: None, data-parallel-size: 2")
    {'world_size': '8', 'tensor_model_parallel_size': '4', 'data_parallel_size': '2'}
    """
    parts = (_DEGREE.fullmatch(part.strip()) for part in re.split(r",| and ", text))
    return {found[1].replace("-", "_") + "_size": found[2] for found in parts if found}


def _iteration(result: Result, run: _Run, line: int, found: re.Match[str]) -> None:
    """Take one line of iterations."""
    whole = found[3].split("|")[:-1]  # what no bar follows may be cut short
    fields = dict(part.split(":", 1) for part in whole if ":" in part)
    # some forks write `this/mean`
    values = {name.strip(): value.partition("/")[0].strip() for name, value in fields.items()}
    times = [
        (v, 1e-3 if name.endswith("(ms)") else 1.0)
        for name, v in values.items()
        if name.startswith("elapsed time per iteration")
    ]
    if not times:
        result.bad_line(
            line,
            "an iteration without its elapsed time: the line is cut short, or damaged; left out",
        )
        return
    step, seconds = numbered(result, line, found[1]), seconds_of(result, line, *times[0])
    if step is None or seconds is None:
        return
    rate = number(values.get("throughput per GPU (TFLOP/s/GPU)", values.get("TFLOPs")))
    batch = count(values.get("global batch size", run.arguments.get("global_batch_size")))
    run.steps.setdefault(batch, []).append(
        Step(line, step, seconds, {"tflops": rate} if rate else {})
    )


def _row(result: Result, run: _Run, batch: int | None, steps: list[Step]) -> None:
    a = run.told | run.arguments
    interval = count(a.get("log_interval")) or 1
    found = summary(result, steps, "step" if interval == 1 else f"mean of {interval} steps")
    if found is None:
        return
    cells, notes = described(a)
    notes += [] if run.arguments else ["no dump of arguments in the log"]
    cells |= {
        "stack": STACK,
        "global_batch": batch or count(a.get("global_batch_size")),
        "step_time_s": found.seconds,
        "tflops_reported": found.median("tflops"),
        "peak_memory_gib": run.peak_mib / 1024.0 if run.peak_mib else None,
        "note": "; ".join([found.note, *notes]),
    }
    result.add(found.line, cells)


def described(a: Arguments) -> tuple[dict[str, Any], list[str]]:
    """Cells that the arguments tell, and remarks."""
    cells: dict[str, Any] = {}
    for column, names in DIRECT.items():
        cells[column] = next((n for name in names if (n := count(a.get(name)))), None)
    heads, experts = cells["n_heads"], cells["n_experts"] or 0
    groups = count(a.get("num_query_groups")) if truth(a.get("group_query_attention")) else heads
    feed = (count(a.get("moe_ffn_hidden_size")) if experts else None) or count(
        a.get("ffn_hidden_size")
    )
    width = cells["d_model"]
    cells |= {
        "d_ff": feed or (4 * width if width else None),
        "gated_mlp": int(truth(a.get("swiglu")) or False) if "swiglu" in a else None,
        "n_kv_heads": groups,
        "top_k": count(a.get("moe_router_topk")) if experts else None,
        "sp": int(truth(a.get("sequence_parallel")) or False) if "sequence_parallel" in a else None,
        "precision": _precision(a),
        "attention": _attention(a),
        "zero_stage": _zero(a),
    }
    cells["recompute"], notes = _recompute(a, cells["n_layers"], cells["pp"] or 1)
    return cells, notes + _offloaded(a, cells["n_layers"])


def _on(a: Arguments, name: str) -> bool:
    """An argument that is set, and not to False, 0 or None."""
    return a.get(name, "None") not in ("None", "False", "0", "", "null")


def _precision(a: Arguments) -> str | None:
    if _on(a, "fp4") or _on(a, "fp4_format"):
        return "nvfp4"
    if _on(a, "fp8") or _on(a, "fp8_format"):
        return {"mxfp8": "mxfp8", "blockwise": "fp8-blockwise128"}.get(
            a.get("fp8_recipe", ""), "fp8"
        )
    for name in ("bf16", "fp16"):
        if _on(a, name):
            return name
    return "fp32" if "bf16" in a or "fp16" in a else None


def _attention(a: Arguments) -> str | None:
    backend = a.get("attention_backend", "").rpartition(".")[2]
    if _on(a, "use_flash_attn") or backend in ("flash", "fused"):
        return "flash"
    if backend in ("unfused", "local"):
        return "none"
    # the default of Transformer Engine picks a fused kernel wherever there is one
    return (
        "flash"
        if a.get("transformer_impl") == "transformer_engine"
        else "none"
        if a.get("use_flash_attn") == "False"
        else None
    )


def _zero(a: Arguments) -> int | None:
    if _on(a, "zero_stage"):
        return count(a["zero_stage"])
    if _on(a, "use_torch_fsdp2"):
        return 3
    if _on(a, "use_megatron_fsdp") or _on(a, "use_custom_fsdp"):
        strategy = a.get("data_parallel_sharding_strategy", "")
        return {"optim": 1, "optim_grads": 2, "optim_grads_params": 3}.get(strategy)
    return int(_on(a, "use_distributed_optimizer")) if "use_distributed_optimizer" in a else None


def _recompute(a: Arguments, layers: int | None, pp: int) -> tuple[str | None, list[str]]:
    """Recomputation; of some layers only there is no word for it in the format."""
    kind = a.get("recompute_granularity", a.get("activations_checkpoint_granularity"))
    old = a.get("checkpoint_activations", a.get("activations_checkpoint_method"))
    if kind is None:
        return (None, []) if old is None else ("none" if old in ("False", "None") else "full", [])
    if kind == "None":
        return "none", []
    some = count(a.get("recompute_num_layers", a.get("activations_checkpoint_num_layers")))
    if (
        kind == "full"
        and a.get("recompute_method") == "block"
        and some
        and layers
        and some * pp < layers
    ):
        return None, [f"recomputes {some} layers of each stage in full: left blank"]
    return (
        (kind, [])
        if kind in ("selective", "full")
        else (None, [f"recompute_granularity {kind[:40]}: left blank"])
    )


def _offloaded(a: Arguments, layers: int | None) -> list[str]:
    """Layers whose activations are offloaded: their number alone switches it on, unless the dump
    says that all or activations are off."""
    off = any(
        truth(a.get(name)) is False and name in a
        for name in ("cpu_offloading", "cpu_offloading_activations")
    )
    return [] if off else noted_in_host_memory(count(a.get("cpu_offloading_num_layers")), layers)
