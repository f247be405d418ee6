"""Training logs of MaxText: `Config param …` lines, and one line for each completed step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from calibration.importers.found import Result, count, counted, nonzero, number, truth
from calibration.importers.source import Source
from calibration.importers.steps import Step, numbered, runs, seconds_of, summary
from dmodel.catalog.stack import stack
from dmodel.settings import text_of

NAME, STACK = "maxtext", "maxtext"
SIGN = re.compile(r"completed step: \S+?, seconds:")

_PARAMETER = re.compile(r"Config param (\w+):\s?(.*)$")
_STEP = re.compile(r"completed step: (.*)$")
_DEVICES = re.compile(r"Num_devices: (\d+)")
_PARAMETERS = re.compile(r"number parameters: ([\d.]+) billion")

_PLANNED = re.compile(r"Total (?:estimated )?memory size: ([\d.]+) GB")
"""Of one device, in GiB (`max_utils.print_compiled_memory_stats` divides by 1024^3)."""

Config = dict[str, str]
Degrees = dict[str, int | None]

DIRECT = {
    "n_layers": ("num_decoder_layers", "base_num_decoder_layers"),
    "d_model": ("emb_dim", "base_emb_dim"),
    "n_heads": ("num_query_heads", "base_num_query_heads"),
    "n_kv_heads": ("num_kv_heads", "base_num_kv_heads"),
    "head_dim": ("head_dim",),
    "vocab": ("vocab_size",),
    "seq_len": ("max_target_length",),
    "global_batch": ("global_batch_size_to_train_on", "global_batch_size_to_load"),
}
"""Column → parameters that hold it, the derived one first."""

AXES = {
    "tp": ("tensor", "tensor_transpose", "tensor_sequence"),
    "pp": ("pipeline",),
    "cp": ("context", "sequence"),
    "ep": ("expert",),
    "shard": ("fsdp", "fsdp_transpose", "expert"),
}
"""Column → mesh axes whose product it is, each inside (`ici_`) and between (`dcn_`) slices; experts
shard the batch as well."""


QKV, FUSED_QKV, INPUTS = (
    ("query_proj", "key_proj", "value_proj"),
    ("qkv_proj",),
    "decoder_layer_input",
)
RESULTS = {"qkv": QKV, "core": ("context",), "out": ("out_proj",)}
"""Results inside a layer, as `recompute_keeps` names them → parameters that place them under
`remat_policy: custom`."""

UNNAMED = (
    "mlpwi mlpwi_0 mlpwi_1 mlpwo moe_mlpwi moe_mlpwi_0 moe_mlpwi_1 moe_mlpwo mla_q mla_kv "
    "attention_out engram"
).split()
"""Such parameters of results that are not read (MaxText's `configs/base.yml`)."""

Again = tuple[str | None, dict[str, Any], list[str]]
"""What is recomputed: the column's word, settings beside it, remarks."""


TOLD = ((_DEVICES, "devices"), (_PARAMETERS, "billions"), (_PLANNED, "planned_gb"))
"""Messages, and the names under which their figures stand beside the parameters."""


def parse(source: Source) -> Result:
    """One row for each configuration in the log."""
    result = Result(source.name)
    config: Config = {}
    steps: list[Step] = []
    for line, text in source.lines:
        if found := _PARAMETER.search(text):
            name, value = found[1], found[2].strip()
            # started again, otherwise; other hosts repeat the same
            if steps and config.get(name, value) != value:
                _row(result, config, steps)
                steps = []
            config[name] = value
        elif found := _STEP.search(text):
            steps += _step(result, line, found[1])
        else:
            config |= _told(text)
    _row(result, config, steps)
    return result


def _told(text: str) -> Config:
    """What a message tells beside the parameters; nothing where it is another line."""
    for pattern, name in TOLD:
        if found := pattern.search(text):
            return {name: found[1]}
    return {}


def _step(result: Result, line: int, text: str) -> list[Step]:
    """The completed step that a line tells; none where its figures cannot be."""
    head, *fields = text.split(", ")
    values = {name.strip(): value for name, _, value in (field.partition(":") for field in fields)}
    if "seconds" not in values or len(fields) < 2:
        result.bad_line(
            line,
            "a completed step without its seconds: the line is cut short, or damaged; left out",
        )
        return []
    step, seconds = numbered(result, line, head), seconds_of(result, line, values["seconds"])
    if step is None or seconds is None:
        return []
    rates = nonzero(
        tflops=number(values.get("TFLOP/s/device")), tokens=number(values.get("Tokens/s/device"))
    )
    return [Step(line, step, seconds, rates)]


def _row(result: Result, config: Config, steps: list[Step]) -> None:
    for run in runs(steps):
        _row_of_run(result, config, run)


def _row_of_run(result: Result, config: Config, steps: list[Step]) -> None:
    found = summary(result, steps)
    if found is None:
        return
    cells, notes = described(config)
    planned = number(config.get("planned_gb"))
    if planned:
        notes.append("peak memory is what XLA plans (memory_analysis), of one device")
    cells |= {
        "stack": STACK,
        "step_time_s": found.seconds,
        "tflops_reported": found.median("tflops"),
        "tokens_per_s_per_accel": found.median("tokens"),
        "peak_memory_gib": planned,
        "peak_kind": "planned" if planned else None,
        "note": "; ".join([found.note, *notes]),
    }
    result.add(found.line, cells, steps=found.every)


def _axis(config: Config, names: tuple[str, ...]) -> int | None:
    """Product of mesh axes; None when one is to be found out (-1) or no integer."""
    given = [
        config.get(f"{where}_{name}_parallelism", "1") for name in names for where in ("ici", "dcn")
    ]
    known = [count(value) for value in given]
    return None if None in known else math.prod(filter(None, known))


def _devices(config: Config, batch: int | None) -> int | None:
    """Devices of the run: as printed, else from the batches, else the product of all mesh axes."""
    printed = count(config.get("devices")) or count(config.get("num_devices"))
    return printed or _devices_by_batch(config, batch) or _devices_by_axes(config)


def _devices_by_batch(config: Config, batch: int | None) -> int | None:
    each = number(config.get("per_device_batch_size"))
    if not batch or not each or each <= 0:
        return None
    return count(batch / (each * _accumulated(config)))


def _devices_by_axes(config: Config) -> int | None:
    axes = tuple(
        name[4:-12] for name in config if name.startswith("ici_") and name.endswith("_parallelism")
    )
    return _axis(config, axes) if axes else None


def _accumulated(config: Config) -> int:
    """Pieces that the batch of a device is worked through in."""
    return count(config.get("gradient_accumulation_steps")) or 1


def described(config: Config) -> tuple[dict[str, Any], list[str]]:
    """Cells that the configuration tells, and remarks."""
    if not any(names[0] in config or names[-1] in config for names in DIRECT.values()):
        return {"n_accel": count(config.get("devices"))}, ["no configuration in the log"]
    cells: dict[str, Any] = {c: counted(config, names) for c, names in DIRECT.items()}
    degrees = {name: _axis(config, axes) for name, axes in AXES.items()}
    devices, batch = _devices(config, cells["global_batch"]), cells["global_batch"]
    dp = _data_parallel(degrees, devices)
    shard = degrees.pop("shard") or dp  # an axis to be found out is as a rule that of sharding
    cells |= degrees | _model(config) | {"n_accel": devices, "dp": dp} | _sharded(shard, dp)
    cells |= {
        "micro_batch": _micro_batch(config, batch, dp, degrees["pp"]),
        "precision": _precision(config),
        "attention": _attention(config),
    }
    cells["recompute"], again, notes = _recompute(config.get("remat_policy"), config)
    return cells | {"set": text_of(again)}, notes


def _data_parallel(degrees: Degrees, devices: int | None) -> int | None:
    """What tensors, pipeline and context leave of the devices, where it is a whole number."""
    others = [degrees[name] for name in ("tp", "pp", "cp")]
    if not devices or None in others:
        return None
    return count(devices / math.prod(filter(None, others)))


def _model(config: Config) -> dict[str, Any]:
    """Cells of the model that no single parameter holds."""
    name, billions = config.get("model_name"), number(config.get("billions"))
    experts = count(config.get("num_experts")) or 1
    dense = ("mlp_dim", "base_mlp_dim")
    widths = ("moe_mlp_dim", "base_moe_mlp_dim", *dense) if experts > 1 else dense
    return {
        "model": None if name == "default" else name,
        "n_params": billions * 1e9 if billions else None,
        "d_ff": counted(config, widths),
        "gated_mlp": int("," in config["mlp_activations"]) if "mlp_activations" in config else None,
        "n_experts": experts if experts > 1 else None,
        "top_k": count(config.get("num_experts_per_tok")) if experts > 1 else None,
    }


def _sharded(shard: int | None, dp: int | None) -> dict[str, Any]:
    """Cells of sharding over the devices of data parallelism."""
    if shard is None:
        return {"zero_stage": None, "shard": None}
    return {
        "zero_stage": 3 if shard > 1 else 0,
        "shard": shard if dp and 1 < shard < dp else None,
    }


def _micro_batch(config: Config, batch: int | None, dp: int | None, pp: int | None) -> int | None:
    pieces = count(config.get("num_pipeline_microbatches")) if pp and pp > 1 else 1
    if not batch or not dp or not pieces:
        return None
    return count(batch / (dp * _accumulated(config) * pieces))


def _precision(config: Config) -> str | None:
    quantized = config.get("quantization", "").strip("'\"").lower()
    if quantized.startswith("int8"):
        return "int8"
    if "fp8" in quantized:
        return "fp8"
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(
        config.get("dtype", "").strip("'\"")
    )


def _attention(config: Config) -> str | None:
    kernel = config.get("attention", "")
    if "flash" in kernel or kernel == "autoselected":
        return "flash"
    return "none" if kernel == "dot_product" else None


POLICY_WORDS = {"full": "full", "minimal": "selective", "none": "none", "": "none"}
"""`remat_policy` → word for it: `full` saves nothing inside a layer, `minimal` the results of
matrix products but not the core of attention."""


def _recompute(policy: str | None, config: Config | None = None) -> Again:
    """What a policy recomputes. Those that the stack's facts know are settings by name, and what
    single parameters say under `custom` are settings too."""
    if policy is None:
        return None, {}, []
    if policy in POLICY_WORDS:
        return POLICY_WORDS[policy], {}, []
    if policy == "custom" and config:
        return _custom(config)
    if policy in stack(STACK).asks("recompute_policy"):
        return "selective", {"recompute_policy": policy}, []
    return None, {}, [f"remat_policy {policy[:40]}: recompute left blank"]


def _custom(config: Config) -> Again:
    """What single parameters keep of a layer, beside its input: `device`, in the host's memory
    (`offload`), or by default not (`remat`).

    A result is said to be in one place: left blank are parts of q, k and v, or these in both
    places, and results that are not read.
    """
    where = _where(config)
    told = all(len(found) == 1 and found <= PLACES for found in where.values())
    if not told or _places(config, UNNAMED) != {"remat"}:
        return None, {}, [_unread(config)]
    kept = [name for name, found in where.items() if found != {"remat"}]
    hosted = [name for name in kept if where[name] == {"offload"}]
    return _kept(kept, hosted, _places(config, [INPUTS]) == {"offload"})


def _kept(kept: list[str], hosted: list[str], inputs: bool) -> Again:
    """Word, settings and remark for results that are kept, those of them in the host's memory, and
    whether layers' inputs are there."""
    again = {"recompute_keeps": kept, "offload_inputs": inputs, "offload_results": bool(hosted)}
    part = hosted and hosted != kept
    notes = [f"in host memory {', '.join(hosted)} alone, read as all that is kept"] if part else []
    return ("selective" if kept else "full"), {n: v for n, v in again.items() if v}, notes


PLACES = {"remat", "device", "offload"}


def _places(config: Config, names: Iterable[str]) -> set[str]:
    """Where some parameters put what they stand for."""
    return {config.get(name, "remat").strip("'\"").lower() for name in names}


def _where(config: Config) -> dict[str, set[str]]:
    """Where each of `RESULTS` is kept."""
    if "fused_qkv" in config:
        fused = truth(config["fused_qkv"])
    else:
        fused = _places(config, FUSED_QKV) != {"remat"}
    return {
        name: _places(config, FUSED_QKV if names == QKV and fused else names)
        for name, names in RESULTS.items()
    }


def _unread(config: Config) -> str:
    """The remark on parameters that are not read."""
    names = (*QKV, *FUSED_QKV, "context", "out_proj", *UNNAMED)
    held = [name for name in names if _places(config, [name]) != {"remat"}]
    listed = ", ".join(f"{name} {config[name][:10]}" for name in held)
    return f"remat_policy custom: {listed}: recompute left blank"
