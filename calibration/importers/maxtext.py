"""Training logs of MaxText: `Config param …` lines, and one line for each completed step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from calibration.importers.found import Result, count, number, truth
from calibration.importers.source import Source
from calibration.importers.steps import Step, numbered, seconds_of, summary
from calibration.traces.checkpoints import POLICIES

NAME, STACK = "maxtext", "maxtext"
SIGN = re.compile(r"completed step: \S+?, seconds:")

_PARAMETER = re.compile(r"Config param (\w+):\s?(.*)$")
_STEP = re.compile(r"completed step: (.*)$")
_DEVICES = re.compile(r"Num_devices: (\d+)")
_PARAMETERS = re.compile(r"number parameters: ([\d.]+) billion")

Config = dict[str, str]

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
RESULTS = {
    "q, k, v": QKV,
    "attention outputs": ("context",),
    "results of the output projection": ("out_proj",),
}
"""How notes name results inside a layer (`checkpoints.KEPT`) → settings that place them under
`remat_policy: custom`."""

UNNAMED = (
    "mlpwi mlpwi_0 mlpwi_1 mlpwo moe_mlpwi moe_mlpwi_0 moe_mlpwi_1 moe_mlpwo mla_q mla_kv "
    "attention_out engram"
).split()
"""Such settings of results that no note is made of (MaxText's `configs/base.yml`)."""


def parse(source: Source) -> Result:
    """One row for each configuration in the log."""
    result = Result(source.name)
    config: Config = {}
    steps: list[Step] = []
    for line, text in source.lines:
        if found := _PARAMETER.search(text):
            value = found[2].strip()
            # started again, otherwise; other hosts repeat the same
            if steps and config.get(found[1], value) != value:
                _row(result, config, steps)
                steps = []
            config[found[1]] = value
        elif found := _STEP.search(text):
            step = _step(result, line, found[1])
            steps += [step] if step else []
        elif found := _DEVICES.search(text):
            config["devices"] = found[1]
        elif found := _PARAMETERS.search(text):
            config["billions"] = found[1]
    _row(result, config, steps)
    return result


def _step(result: Result, line: int, text: str) -> Step | None:
    head, *fields = text.split(", ")
    values = {name.strip(): value for name, _, value in (field.partition(":") for field in fields)}
    if "seconds" not in values or len(fields) < 2:
        result.bad_line(
            line,
            "a completed step without its seconds: the line is cut short, or damaged; left out",
        )
        return None
    step, seconds = numbered(result, line, head), seconds_of(result, line, values["seconds"])
    if step is None or seconds is None:
        return None
    rates = {
        "tflops": number(values.get("TFLOP/s/device")),
        "tokens": number(values.get("Tokens/s/device")),
    }
    return Step(line, step, seconds, {name: value for name, value in rates.items() if value})


def _row(result: Result, config: Config, steps: list[Step]) -> None:
    found = summary(result, steps)
    if found is None:
        return
    cells, notes = described(config)
    cells |= {
        "stack": STACK,
        "step_time_s": found.seconds,
        "tflops_reported": found.median("tflops"),
        "tokens_per_s_per_accel": found.median("tokens"),
        "note": "; ".join([found.note, *notes]),
    }
    result.add(found.line, cells)


def _axis(config: Config, names: tuple[str, ...]) -> int | None:
    """Product of mesh axes; None when one is to be found out (-1) or no integer."""
    given = [
        config.get(f"{where}_{name}_parallelism", "1") for name in names for where in ("ici", "dcn")
    ]
    known = [count(value) for value in given]
    return None if None in known else math.prod(k for k in known if k)


def _devices(config: Config, batch: int | None) -> int | None:
    """Devices of the run: as printed, else from the batches, else the product of all mesh axes."""
    each = number(config.get("per_device_batch_size"))
    accumulate = count(config.get("gradient_accumulation_steps")) or 1
    told = count(config.get("devices")) or count(config.get("num_devices"))
    by_batch = count(batch / (each * accumulate)) if batch and each and each > 0 else None
    axes = tuple(
        name[4:-12] for name in config if name.startswith("ici_") and name.endswith("_parallelism")
    )
    return told or by_batch or (_axis(config, axes) if axes else None)


def described(config: Config) -> tuple[dict[str, Any], list[str]]:
    """Cells that the configuration tells, and remarks."""
    if not any(names[0] in config or names[-1] in config for names in DIRECT.values()):
        return {"n_accel": count(config.get("devices"))}, ["no configuration in the log"]
    cells: dict[str, Any] = {
        c: next((n for p in names if (n := count(config.get(p)))), None)
        for c, names in DIRECT.items()
    }
    degrees = {name: _axis(config, axes) for name, axes in AXES.items()}
    devices = _devices(config, cells["global_batch"])
    others = [degrees[name] for name in ("tp", "pp", "cp")]
    dp = (
        count(devices / math.prod(d for d in others if d))
        if devices and None not in others
        else None
    )
    shard = degrees.pop("shard") or dp  # an axis to be found out is as a rule that of sharding
    accumulate = count(config.get("gradient_accumulation_steps")) or 1
    experts = count(config.get("num_experts")) or 1
    billions = number(config.get("billions"))
    mlp = [
        count(config.get(p))
        for p in (("moe_mlp_dim", "base_moe_mlp_dim") if experts > 1 else ())
        + ("mlp_dim", "base_mlp_dim")
    ]
    cells |= degrees | {
        "model": config.get("model_name")
        if config.get("model_name") not in ("default", None)
        else None,
        "n_params": billions * 1e9 if billions else None,
        "d_ff": next((m for m in mlp if m), None),
        "gated_mlp": int("," in config["mlp_activations"]) if "mlp_activations" in config else None,
        "n_experts": experts if experts > 1 else None,
        "top_k": count(config.get("num_experts_per_tok")) if experts > 1 else None,
        "n_accel": devices,
        "dp": dp,
        "zero_stage": None if shard is None else 3 if shard > 1 else 0,
        "shard": shard if shard and dp and 1 < shard < dp else None,
        "micro_batch": _micro_batch(config, cells["global_batch"], dp, degrees["pp"], accumulate),
        "precision": _precision(config),
        "attention": _attention(config),
    }
    cells["recompute"], notes = _recompute(config.get("remat_policy"), config)
    return cells, notes


def _micro_batch(
    config: Config, batch: int | None, dp: int | None, pp: int | None, accumulate: int
) -> int | None:
    pieces = count(config.get("num_pipeline_microbatches")) if pp and pp > 1 else 1
    return count(batch / (dp * accumulate * pieces)) if batch and dp and pieces else None


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
    return (
        "flash"
        if "flash" in kernel or kernel == "autoselected"
        else "none"
        if kernel == "dot_product"
        else None
    )


def _recompute(policy: str | None, config: Config | None = None) -> tuple[str | None, list[str]]:
    """`full` saves nothing inside a layer, `minimal` the results of matrix products but not the
    core of attention; others that are known (`checkpoints.POLICIES`) go into the note, which rows
    are read by, and so does what single settings say under `custom`."""
    words = {"full": "full", "minimal": "selective", "none": "none", "": "none"}
    if policy is None or policy in words:
        return (words[policy] if policy is not None else None), []
    if policy == "custom" and config:
        return _custom(config)
    if policy in POLICIES:
        return "selective", [f"remat_policy {policy}"]
    return None, [f"remat_policy {policy[:40]}: recompute left blank"]


def _custom(config: Config) -> tuple[str | None, list[str]]:
    """What single settings keep of a layer, beside its input: `device`, in the host's memory
    (`offload`), or by default not (`remat`).

    A result is said to be in one place: left blank are parts of q, k and v, or these in both
    places, and what notes have no words for.
    """

    def places(names: Iterable[str]) -> set[str]:
        return {config.get(name, "remat").strip("'\"").lower() for name in names}

    fused = truth(config["fused_qkv"]) if "fused_qkv" in config else places(FUSED_QKV) != {"remat"}
    where = {
        said: places(FUSED_QKV if names == QKV and fused else names)
        for said, names in RESULTS.items()
    }
    told = all(
        len(found) == 1 and found <= {"remat", "device", "offload"} for found in where.values()
    )
    if places(UNNAMED) != {"remat"} or not told:
        held = [
            name
            for name in (*QKV, *FUSED_QKV, "context", "out_proj", *UNNAMED)
            if places([name]) != {"remat"}
        ]
        return None, [
            (
                "remat_policy custom: "
                f"{', '.join(f'{name} {config[name][:10]}' for name in held)}: "
                "recompute left blank"
            )
        ]
    kept = [said for said, found in where.items() if found != {"remat"}]
    results = [said for said in kept if where[said] == {"offload"}]
    host = results + (["layer inputs"] if places([INPUTS]) == {"offload"} else [])
    waits = f"{_listed(host)} kept in host memory"
    if not kept:
        return "full", [waits] if host else []
    if results == kept:
        return "selective", [f"{waits}, the rest recomputed"]
    return "selective", [f"{_listed(kept)} kept, the rest recomputed", *([waits] if host else [])]


def _listed(words: list[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)
