"""YAML of MaxText.

Names as in AI-Hypercomputer/maxtext, `src/MaxText/configs/base.yml` at commit
09d2025bc52059162c84f05846b15121b2b48eb0 (end of 2025);
rules as in the checks of `configs/types.py` of the same time: batch sizes, pipeline stages,
micro-batches, meshes. Read on 2026-11-21.
"""

from __future__ import annotations

from math import gcd

from dmodel.emit import maxtext_memory, maxtext_model, shape
from dmodel.emit.maxtext_memory import on_tpu
from dmodel.emit.sheet import Setting, Sheet, where

NAME, VERSION = "maxtext", "AI-Hypercomputer/maxtext 09d2025b (configs/base.yml)"

BESIDE = (
    (
        "run_name, base_output_directory, dataset_type and its paths, tokenizer_path, steps, "
        "learning_rate"
    ),
    "decoder_block, or model_name",
)

AXES = {
    "tp": "tensor",
    "cp": "context",
    "ep": "expert",
    "fsdp": "fsdp",
    "data": "data",
    "pp": "pipeline",
}
"""Group → mesh axis."""


def write(sheet: Sheet) -> None:
    """Fill the sheet."""
    sheet.settings |= {"hardware": "tpu" if on_tpu(sheet) else "gpu"}
    maxtext_model.write(sheet)
    _mesh(sheet)
    _experts(sheet)
    _batch(sheet)
    _sharding(sheet)
    shape.sharded_rounds(sheet, False, "sharded gradients are reduced after each micro-batch")
    maxtext_memory.write(sheet)
    _overlap(sheet)
    shape.leave_what_no_launcher_knows(sheet)
    shape.lay_out(sheet, None)
    rules(sheet)


def _groups(sheet: Sheet) -> dict[str, int]:
    """Size of each mesh axis: dp is data · fsdp · expert."""
    s = sheet
    experts = int(s["ep"]) if shape.is_mixture(s) else 1
    shard = int(s["shard"]) if s["zero"] == 3 else 1
    fsdp = max(shard // experts, 1) if s["zero"] == 3 else 1
    data = max(int(s["dp"]) // (fsdp * experts), 1)
    return {
        "tp": int(s["tp"]),
        "cp": int(s["cp"]),
        "ep": experts,
        "fsdp": fsdp,
        "data": data,
        "pp": int(s["pp"]),
    }


def _inner(sheet: Sheet) -> dict[str, int]:
    """Size of each axis inside one domain, as the placement fills it."""
    sizes, room = _groups(sheet), sheet.job.per_domain
    inner = {}
    for name in sheet.values["placement"].replace("dp", "fsdp data").split():
        inner[name] = gcd(sizes[name], room)
        room //= inner[name]
    return inner


def _mesh(sheet: Sheet) -> None:
    """Axes inside one domain (`ici_`) as the placement fills it, the rest between domains
    (`dcn_`)."""
    s = sheet
    sizes, inner = _groups(s), _inner(s)
    axes = {**AXES, "tp": "tensor_sequence"} if s["sp"] and s["tp"] > 1 else AXES
    for name in ("data", "fsdp", "ep", "cp", "tp", "pp"):
        s.settings |= {
            f"ici_{axes[name]}_parallelism": inner[name],
            f"dcn_{axes[name]}_parallelism": sizes[name] // inner[name],
        }
    s.tell("dp tp cp sp")
    s.leave(
        "placement",
        "the order within a domain is chosen by JAX's device mesh; only what lies between domains "
        "(dcn_) is as planned",
    )


def _experts(sheet: Sheet) -> None:
    s = sheet
    if shape.leave_without_experts(s, "ep etp merge_copies"):
        return
    s.tell("ep")
    s.divides(s["dp"], s["ep"], "dp is a multiple of ep: experts lie on data-parallel ranks")
    shape.split_as_the_rest(s)
    s.keeps("merge_copies", not s["merge_copies"], "each copy of a token travels on its own")


def _batch(sheet: Sheet) -> None:
    s = sheet
    devices, micro = s["dp"] * s["tp"] * s["cp"] * s["pp"], shape.micro_batches(s)
    if s["pp"] == 1:
        each = s["dp"] * s["micro_batch"] / devices
        s.tell(
            "micro_batch global_batch",
            {"per_device_batch_size": each, "gradient_accumulation_steps": int(micro)},
        )
        s.tell("pp interleave schedule")
        return
    s.tell(
        "micro_batch global_batch",
        {"per_device_batch_size": s["global_batch"] / devices, "gradient_accumulation_steps": 1},
    )
    s.settings |= {
        "num_pipeline_microbatches": int(micro),
        "num_layers_per_pipeline_stage": int(shape.chunk_layers(s)),
    }
    s.tell("pp interleave", {"num_pipeline_repeats": s["interleave"]})
    s.leave(
        "schedule",
        "all micro-batches run forward, then all backward (circular GPipe): their activations are "
        "all held",
    )
    s.divides(micro, s["pp"], "micro-batches are a multiple of pp")


def _sharding(sheet: Sheet) -> None:
    s = sheet
    states = s["zero"] in (1, 2)
    s.keeps(
        "zero",
        s["zero"] != 2,
        "shard_optimizer_over_data shards optimizer states (ZeRO-1); gradients stay whole",
    )
    if states:
        s.settings["shard_optimizer_over_data"] = True
    s.keeps(
        "shard",
        not states or s["shard"] >= s["dp"],
        "optimizer states are sharded over the whole data axis",
    )
    kept = s["zero"] == 3 and not s["reshard"]
    s.keeps(
        "reshard",
        not kept or s["pp"] > 1,
        "XLA gathers weights again for the backward pass",
        where(kept, {"pipeline_fsdp_ag_once": True}),
    )


def _overlap(sheet: Sheet) -> None:
    s = sheet
    for name in ("tp", "ep", "dp"):
        shape.overlapped(
            s, name, s[name], "what hides behind compute is decided by XLA and its flags"
        )
    _context(s)
    delayed: dict[str, Setting] = {"pipeline_delay_activation_forwarding": bool(s["overlap_pp"])}
    s.tell("overlap_pp", where(s["pp"] > 1, delayed))


def _context(sheet: Sheet) -> None:
    """How keys and values come to the ranks of a sequence."""
    s = sheet
    if s["cp"] == 1:
        s.tell("cp_balanced overlap_cp")
        return
    s.tell("cp_balanced", {"context_parallel_load_balance": bool(s["cp_balanced"])})
    s.keeps(
        "overlap_cp",
        not (on_tpu(s) and s["overlap_cp"]),
        "on TPUs keys and values are gathered before attention; the ring is offered on GPUs only",
        {"context_parallel_strategy": "ring" if s["overlap_cp"] else "all_gather"},
    )


def rules(sheet: Sheet) -> None:
    """What the configuration's checks and JAX's sharding refuse."""
    s = sheet
    shape.common_rules(s)
    sizes = _groups(s)
    s.divides(
        s["d_model"],
        sizes["fsdp"] * sizes["cp"] * sizes["ep"],
        "the width is a multiple of fsdp · context · expert",
    )
    s.divides(s["vocab"], s["tp"], "the vocabulary is a multiple of tp")
    shape.context_rule(s, "context")
    s.rule(
        s["ep"] <= 1 or s["zero"] == 3,
        "the expert axis shards the other weights too, as FSDP does: choose ZeRO-3 with experts",
    )
    _batch_rules(s)
    used = sizes["data"] * sizes["fsdp"] * sizes["ep"]
    s.rule(used == s["dp"], f"data · fsdp · expert makes up dp: {used} for {s['dp']:g}")


def _batch_rules(sheet: Sheet) -> None:
    s, micro = sheet, shape.micro_batches(sheet)
    if s["pp"] > 1 and s["overlap_pp"]:
        s.rule(
            micro >= 2 * s["pp"],
            f"delayed forwarding needs 2 · pp micro-batches: {micro:g} for {2 * s['pp']:g}",
        )
    accumulates = s["pp"] == 1 and s["global_batch"] > s["dp"] * s["micro_batch"]
    s.rule(
        not (s.settings.get("quantization") == "fp8" and accumulates),
        "fp8 is not offered with gradient accumulation",
    )
