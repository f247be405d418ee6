"""Plans in words, as the tests state them."""

from __future__ import annotations

from typing import Any

from dmodel.question import Question
from dmodel.records import Model, Plan
from dmodel.resolve import resolve

ALONE = {"tp": 1.0, "pp": 1.0, "cp": 1.0, "ep": 1.0, "micro_batch": 1.0, "interleave": 1.0}
COLUMNS = (*ALONE, "dp", "etp", "sp", "shard", "zero_stage", "recompute")


def plan(
    model: Model, devices: int, *, global_batch: int, base: Plan | None = None, **words: Any
) -> Plan:
    """The layout of words on a base of all else, ZeRO stage 0 without a word."""
    said = ALONE | {"zero_stage": words.pop("zero", 0), "recompute": "none"} | words
    if isinstance(said["recompute"], float):
        said["recompute_layers"] = said.pop("recompute")
    sizes = {"n_accel": float(devices), "global_batch": float(global_batch)}
    columns = {n: v if isinstance(v, str) else float(v) for n, v in said.items() if n in COLUMNS}
    settings = {n: v for n, v in said.items() if n not in COLUMNS}
    columns |= {"accelerator": "H100-80GB", "model": "own", **sizes}
    found = resolve(Question(columns, settings, model=model)).plan
    start = Plan.of(dp=1.0, global_batch=1.0) if base is None else base
    layout = found.layout.replace(placement=start.layout.placement)
    return start.replace(layout=layout, global_batch=found.global_batch)
