"""A plan as launch settings of Megatron-LM, NeMo, torchtitan or MaxText. What a framework cannot be
told is named, never dropped."""

from __future__ import annotations

import json
from types import ModuleType
from typing import NamedTuple

from dmodel.emit import maxtext, megatron, nemo, text, torchtitan
from dmodel.emit.sheet import Job, LeftOut, Setting, Sheet, number_format, whole
from dmodel.errors import InputError

FRAMEWORKS = {module.NAME: module for module in (megatron, nemo, torchtitan, maxtext)}
TARGETS = (*FRAMEWORKS, "json")
"""What a plan can be written for."""

FORMS = {
    "megatron": (".args", text.flags),
    "nemo": (".yaml", text.yaml),
    "torchtitan": (".toml", text.toml),
    "maxtext": (".yml", text.yaml),
}

LAUNCH = {
    "megatron": "Run on {n} processes: torchrun … pretrain_gpt.py $(grep -v '^#' FILE)",
    "nemo": (
        "Run on {n} processes: python megatron_gpt_pretraining.py --config-path=DIR "
        "--config-name=FILE"
    ),
    "torchtitan": "Run on {n} processes: CONFIG_FILE=FILE ./run_train.sh",
    "maxtext": "Run on {n} devices: python -m MaxText.train FILE run_name=…",
}

WHOLE = (
    "dp tp cp pp ep etp shard interleave micro_batch global_batch "
    "n_layers d_model d_ff n_heads n_kv_heads head_dim vocab seq_len n_experts top_k"
)
"""Numbers of a plan and a model that no framework takes a part of."""

BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "mxfp8": 1.0, "int8": 1.0, "nvfp4": 0.5, "fp32": 4.0}
"""Precision → bytes of one operand."""

ENVIRONMENT = "CUDA_DEVICE_MAX_CONNECTIONS=1 before Blackwell with tp or cp; unset with FSDP"
CONNECTED = ("megatron", "nemo")
"""Frameworks that read the environment."""


class Emitted(NamedTuple):
    """Launch settings.

    Attributes:
      target: one of `TARGETS`. version: of the framework whose names were checked. file: a name for
      the text. text: what to write there. settings: the same, name → value. left_out: fields that
      the framework cannot be told. broken: its rules that the plan breaks.
      beside: what is no part of a plan and has to be added.
    """

    target: str
    version: str
    file: str
    text: str
    settings: dict[str, Setting]
    left_out: tuple[LeftOut, ...]
    broken: tuple[str, ...]
    beside: tuple[str, ...]


def emit(target: str, job: Job) -> Emitted:
    """Write a discrete plan for a framework.

    Args:
      target: one of `TARGETS`. job: the plan (scalars), the model and their names.

    Raises:
      InputError: unknown target, or a number that has to be whole is not.

    >>> from dmodel import Plan, catalog
    >>> plan = Plan.of(dp=8.0, tp=2.0, sp=1.0, global_batch=64.0, zero=1.0, shard=8.0)
    >>> job = Job(catalog.transformer("llama-3-8b", 8192), plan)
    >>> emit("megatron", job).settings["tensor-model-parallel-size"]
    2
    """
    if target not in TARGETS:
        raise InputError(f"emit: expected one of {', '.join(TARGETS)}; got {target!r}")
    sheet = Sheet(job)
    for name in WHOLE.split():
        whole(sheet[name], name)
    _check_precision(sheet)
    if target == "json":
        return _plain(sheet)
    module = FRAMEWORKS[target]
    module.write(sheet)
    sheet.done()
    settings = _written(target, sheet)
    ending, form = FORMS[target]
    left = tuple(sheet.left_out)
    body = text.comments(_heading(sheet, module, left)) + form(settings)
    return Emitted(
        target,
        module.VERSION,
        f"plan{ending}",
        body,
        settings,
        left,
        tuple(sheet.broken),
        module.BESIDE,
    )


def _written(target: str, sheet: Sheet) -> dict[str, Setting]:
    """Settings that stand in the text; a flag of Megatron-LM that is off is not written."""
    if target != "megatron":
        return sheet.settings
    return {name: value for name, value in sheet.settings.items() if value is not False}


def _check_precision(sheet: Sheet) -> None:
    words = number_format(sheet)
    if words not in BYTES:
        raise InputError(
            f"precision: expected one of {', '.join(BYTES)}; got {sheet.job.precision!r}"
        )
    if BYTES[words] != sheet["operand_bytes"]:
        raise InputError(
            f"precision: {words} has operands of {BYTES[words]:g} bytes, the plan's have "
            f"{sheet['operand_bytes']:g}; "
            "name the precision that the plan was made for"
        )


def _plain(sheet: Sheet) -> Emitted:
    """The plan and the model field by field."""
    settings: dict[str, Setting] = {
        name: value if isinstance(value, str) else sheet[name]
        for name, value in sheet.values.items()
    }
    settings["precision"] = sheet.job.precision
    return Emitted(
        "json", "dmodel", "plan.json", json.dumps(settings, indent=1) + "\n", settings, (), (), ()
    )


def _heading(sheet: Sheet, module: ModuleType, left: tuple[LeftOut, ...]) -> list[str]:
    """Comments above the settings: how to launch, what is missing, what could not be told, which
    rules are broken."""
    devices = f"{sheet['dp'] * sheet['tp'] * sheet['cp'] * sheet['pp']:g}"
    lines = [
        f"{sheet.job.model_name or 'model'}: a plan of dmodel for {module.VERSION}.",
        LAUNCH[module.NAME].format(n=devices),
        *_beside(module),
    ]
    lines += [_left_out_line(reason, left) for reason in dict.fromkeys(x.reason for x in left)]
    return lines + [f"BROKEN RULE: {words}." for words in sheet.broken]


def _beside(module: ModuleType) -> list[str]:
    """What a launch needs beside a plan."""
    lines = [f"Add: {words}." for words in module.BESIDE]
    return lines + [f"Environment: {ENVIRONMENT}."] if module.NAME in CONNECTED else lines


def _left_out_line(reason: str, left: tuple[LeftOut, ...]) -> str:
    """What could not be told for one reason."""
    fields = [f"{x.field} = {_shown(x.value)}" for x in left if x.reason == reason]
    return f"LEFT OUT {', '.join(fields)}: {reason}."


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


__all__ = ["TARGETS", "Emitted", "Job", "LeftOut", "emit"]
