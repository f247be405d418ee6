"""TOML of torchtitan.

Names as in pytorch/torchtitan, `torchtitan/config/job_config.py` at commit
6404b932421f5ce382e7dac5ad381b2c17b1373c (2025, the releases configured by TOML; later ones are
configured in Python, by the same names), rules as in `distributed/parallel_dims.py` at
0119de156de558030726b8539ef0078d8aaaec99 and `distributed/pipeline_parallel.py` at
02ef790c79614758f85880e173d2338d7de502a3; the sections `quantize.linear.float8`,
`quantize.linear.mx`, `compile` and `expert_tensor_parallel_degree` as in releases from v0.2 on.
Read on 2026-11-21; `pipeline_parallel_expert_parallel_overlap` (`distributed/dual_pipe_v.py`, late
2025) and PyTorch's `torch/distributed/pipelining/schedules.py` on 2026-11-29.
"""

from __future__ import annotations

from dmodel.emit import shape
from dmodel.emit.sheet import Setting, Sheet, number_format, scaled_format, where
from dmodel.records import RULES, USUAL

NAME, VERSION = "torchtitan", "pytorch/torchtitan 6404b932 (job_config.py, TOML)"

BESIDE = (
    "training.dataset, training.steps, optimizer, lr_scheduler, checkpoint, metrics",
    "the tokenizer of the model",
)

FLAVORS = {
    "llama-3-8b": ("llama3", "8B"),
    "llama-3.1-8b": ("llama3", "8B"),
    "llama-3-70b": ("llama3", "70B"),
    "llama-3.1-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
}
"""Model of the catalog → name and flavor."""

SHAPE = (
    "n_layers d_model d_ff gated_mlp n_heads n_kv_heads head_dim vocab tied_embeddings n_experts "
    "top_k n_shared_experts "
    "expert_rank n_dense_layers d_ff_dense kv_rank q_rank rope_dim qk_extra window windowed n_mtp"
)

SCHEDULES = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "gpipe": "GPipe",
    "zero-bubble": "ZBVZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipe": "DualPipeV",
    "dualpipev": "DualPipeV",
}
"""Schedule of a plan → the nearest one of torchtitan."""

FOLDED = ("ZBVZeroBubble", "DualPipeV")
"""Those that fold two chunks onto a rank and split the backward pass, not so beside compile."""


def write(sheet: Sheet) -> None:
    """Fill the sheet."""
    _model(sheet)
    _degrees(sheet)
    _pipeline(sheet)
    why = (
        "gradients are reduced once per step within a pipeline, after each micro-batch without one"
    )
    shape.sharded_rounds(sheet, sheet["pp"] > 1, why)
    _experts(sheet)
    _recompute(sheet)
    _precision(sheet)
    _overlap(sheet)
    shape.leave_what_no_launcher_knows(sheet)
    rules(sheet)


def _model(sheet: Sheet) -> None:
    known = FLAVORS.get(sheet.job.model_name)
    sheet.either(
        SHAPE,
        {"model.name": known[0], "model.flavor": known[1]} if known else None,
        "shapes are flavors in torchtitan's Python code: add one of this shape and name it",
    )
    sheet.tell("seq_len", {"training.seq_len": sheet["seq_len"]})


def _degrees(sheet: Sheet) -> None:
    s, p = sheet, "parallelism."
    shard = s["shard"] if s["zero"] else 1
    s.tell(
        "dp shard",
        {
            p + "data_parallel_replicate_degree": int(s["dp"] / shard),
            p + "data_parallel_shard_degree": shard,
        },
    )
    s.tell("tp cp", {p + "tensor_parallel_degree": s["tp"], p + "context_parallel_degree": s["cp"]})
    _sharding(s)
    s.keeps(
        "sp",
        s["sp"] or s["tp"] == 1,
        "tensor parallelism always comes with sequence parallelism",
    )
    order = [name for name in s.values["placement"].split() if name != "ep"]
    s.keeps(
        "placement",
        order == ["tp", "cp", "dp", "pp"],
        "the mesh is ordered tp, cp, dp (sharded, then replicated), pp, innermost first",
    )


def _sharding(sheet: Sheet) -> None:
    """What is sharded, and whether weights are freed after the forward pass."""
    less = sheet["zero"] in (1, 2)
    sheet.keeps(
        "zero",
        not less,
        "FSDP shards weights, gradients and optimizer states alike; kept after the forward "
        "pass, they come nearest",
    )
    after = "never" if less or not sheet["reshard"] else "always"
    freed = {"parallelism.fsdp_reshard_after_forward": after}
    sheet.tell("reshard", where(sheet["zero"], freed))


STAGES = "parallelism.pipeline_parallel_"
"""How names of settings of the pipeline begin."""

ENDS: dict[str, Setting] = {
    STAGES + "first_stage_less_layers": 1,
    STAGES + "last_stage_less_layers": 1,
}
"""By default the first and the last stage get one layer less, as plans whose stages do not divide
the layers have it."""


def _pipeline(sheet: Sheet) -> None:
    s = sheet
    batch: dict[str, Setting] = {"training.global_batch_size": s["global_batch"]}
    if s["pp"] == 1:
        shape.lay_out(s, ENDS)
        s.tell("pp interleave schedule", {STAGES + "degree": 1})
        s.tell("micro_batch global_batch", {"training.local_batch_size": s["micro_batch"]} | batch)
        return
    local: dict[str, Setting] = {
        "training.local_batch_size": int(s["global_batch"] / s["dp"]),
        STAGES + "microbatch_size": s["micro_batch"],
    }
    s.tell("micro_batch global_batch", local | batch)
    folded = RULES[s.values["schedule"]].chunks == 1 and _schedule(s) in FOLDED
    chunks = 2 * s["pp"] if folded else s["pp"] * s["interleave"]
    s.settings |= dict.fromkeys(ENDS, 0)
    # plans of one chunk on a rank have their layers otherwise than two that are folded
    shape.lay_out(s, None if folded else ENDS, dealt=True)
    _stages(s, chunks)
    s.keeps("interleave", not folded, "zero-bubble schedules fold two chunks into each stage")
    _pipeline_rules(s, chunks)


def _schedule(sheet: Sheet) -> str:
    """Name of the schedule."""
    planned = sheet.values["schedule"]
    several = planned in USUAL and sheet["interleave"] > 1
    return SCHEDULES["interleaved" if several else planned]


def _items(sheet: Sheet) -> float:
    """Layers that are dealt out, with embedding and head where these count as such."""
    ends = (float(sheet.settings[name] or 0) for name in ENDS)  # type: ignore[arg-type]
    return sheet["n_layers"] + sum(ends)


def _stages(sheet: Sheet, chunks: float) -> None:
    """Degree and schedule of the pipeline, and layers of each of its chunks."""
    each = -(-int(_items(sheet)) // int(chunks))
    settings = {"degree": sheet["pp"], "schedule": _schedule(sheet), "layers_per_stage": each}
    sheet.tell("pp schedule", {STAGES + name: value for name, value in settings.items()})
    if RULES[sheet.values["schedule"]].copies > 1:
        why = "no schedule holds two copies of the weights; DualPipeV, of one copy, comes nearest"
        sheet.leave("schedule", why)


def _pipeline_rules(sheet: Sheet, chunks: float) -> None:
    items, micro = _items(sheet), shape.micro_batches(sheet)
    each = -(-int(items) // int(chunks))
    sheet.rule(
        -(-int(items) // each) == chunks,
        f"{items:g} layers (with embedding and head, where these count) fill {chunks:g} chunks",
    )
    sheet.rule(
        micro >= chunks,
        f"micro-batches fill the pipeline: {micro:g} for {chunks:g} stages (torchtitan warns, and "
        "bubbles grow)",
    )


def _experts(sheet: Sheet) -> None:
    s, p = sheet, "parallelism.expert_"
    if shape.leave_without_experts(s, "ep etp merge_copies overlap_ep"):
        return
    s.tell("ep etp", {p + "parallel_degree": s["ep"], p + "tensor_parallel_degree": s["etp"]})
    s.tell(
        "merge_copies", {p + "parallel_comm_backend": "deepep" if s["merge_copies"] else "standard"}
    )
    _exchange(s)
    if s["ep"] > 1:
        _expert_rules(s)


def _exchange(sheet: Sheet) -> None:
    """Whether the exchange of experts hides."""
    s = sheet
    may = s["pp"] > 1 and s["ep"] > 1 and _schedule(s) == SCHEDULES["dualpipev"]
    done_again = any(s[name] for name in ("recompute_layers", "recompute_elementwise"))
    beside = bool(s["overlap_ep"]) and not done_again
    hidden: dict[str, Setting] = {STAGES + "expert_parallel_overlap": beside}
    s.keeps(
        "overlap_ep",
        s["ep"] <= 1 or (may and beside) or not s["overlap_ep"],
        "the exchange of experts hides only within the DualPipeV schedule, without recomputation",
        where(may, hidden),
    )
    if may and s["overlap_ep"] and done_again:
        s.settings |= hidden


def _expert_rules(sheet: Sheet) -> None:
    s = sheet
    inner = s["cp"] * (s["tp"] if s["etp"] == 1 else 1)
    ranks = float(s.settings["parallelism.data_parallel_shard_degree"])  # type: ignore[arg-type]
    s.rule(s["etp"] in (1, s["tp"]), "expert tensor parallelism is 1 or tp")
    s.divides(s["ep"], inner, "ep is a multiple of cp (and of tp, when experts are whole)")
    s.divides(ranks * inner, s["ep"], "sharded dp · cp (· tp) is a multiple of ep")


def _recompute(sheet: Sheet) -> None:
    s, share = sheet, sheet["recompute_layers"]
    _layers_again(s)
    s.keeps("offload", not s["offload"], "activations stay on the device")
    if not _is_by_operator(s):
        shape.leave_parts(s, "parts of layers are recomputed by operator, in all layers")
    if share and abs(share - 1.0 / _every(s)) > 1e-9:
        s.leave(
            "recompute_layers",
            f"recomputed is one layer in {_every(s)}, the next share above {share:.3g}",
        )
    # where recomputation ends follows from the release, and from what is compiled
    s.tell("recompute_last last_kept exchange_kept")
    _kernels(s)


def _is_by_operator(sheet: Sheet) -> bool:
    """Whether layers do their streams again, and no layer does all."""
    return sheet["recompute_layers"] == 0 and sheet["recompute_elementwise"] == 1


def _every(sheet: Sheet) -> int:
    """One layer in so many is done again."""
    return int(1.0 / sheet["recompute_layers"] + 1e-9)


def _layers_again(sheet: Sheet) -> None:
    """Which layers are done again, and what of them."""
    key, part = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
    if _is_by_operator(sheet):
        parts = "recompute_products recompute_elementwise recompute_bytes"
        sheet.tell(f"recompute_layers {parts}", {key: "selective", part: "op"})
    elif sheet["recompute_layers"] == 0:
        sheet.tell("recompute_layers", {key: "none"})
    elif _every(sheet) == 1:
        sheet.tell("recompute_layers", {key: "full"})
    else:
        sheet.tell("recompute_layers", {key: "selective", part: str(_every(sheet))})


def _kernels(sheet: Sheet) -> None:
    s = sheet
    s.keeps(
        "recompute_attention",
        not s["recompute_attention"] or s["recompute_layers"] == 1,
        "the core of attention alone is not recomputed; kernels are fused",
    )
    s.keeps("flash", s["flash"], "attention runs in fused kernels")
    shape.buckets(s, 0.0, "buckets of gradients have one size, whatever their group")
    shape.copies(s, True, "sums over replicas run beside the backward pass")
    s.keeps(
        "boundary_buffers",
        s["pp"] == 1 or s["boundary_buffers"],
        "PyTorch's pipelines have buffers for all that a stage receives in a step",
    )
    shape.launched(
        s,
        False,
        False,
        "gradients are added up by kernels of their own, and one kernel does the products of all "
        "experts",
    )


def _precision(sheet: Sheet) -> None:
    s = sheet
    s.settings |= {
        "training.mixed_precision_param": "bfloat16",
        "training.mixed_precision_reduce": "float32",
        "compile.enable": s["pp"] == 1 or _schedule(s) not in FOLDED,
    }
    _products(s)
    _weights(s)
    s.keeps("gradient_bytes", s["gradient_bytes"] == 4, "gradients are kept in 4 bytes")
    s.keeps(
        "reduce_bytes",
        s["reduce_bytes"] == 4,
        "gradients are reduced in 4 bytes (mixed_precision_reduce knows no other)",
    )


FLOAT8 = {"fp8": "tensorwise", "fp8-tensorwise": "tensorwise", "fp8-rowwise": "rowwise"}
"""Format of the products → name of its recipe."""

MX = {"model.converters": ["quantize.linear.mx"], "quantize.linear.mx.recipe_name": "mxfp8_cublas"}


def _recipe(sheet: Sheet) -> dict[str, Setting] | None:
    """Settings of the format of the products; None where there are none."""
    words = scaled_format(sheet)
    if sheet["operand_bytes"] >= 2:
        return {} if words == "bf16" else None
    if words not in FLOAT8:
        return {**MX} if words == "mxfp8" else None
    gathers = FLOAT8[words] == "tensorwise" and sheet["gather_bytes"] == 1
    return {
        "model.converters": ["quantize.linear.float8"],
        "quantize.linear.float8.recipe_name": FLOAT8[words],
        **where(gathers, {"quantize.linear.float8.enable_fsdp_float8_all_gather": True}),
    }


def _products(sheet: Sheet) -> None:
    """Format of the products, and how they are scaled."""
    sheet.either(
        "operand_bytes",
        _recipe(sheet),
        f"products run in bfloat16, float8 or mxfp8, not in {scaled_format(sheet)}",
    )
    current = sheet["scale_passes"] > 0 or number_format(sheet) == "mxfp8"
    sheet.keeps(
        "scale_passes",
        current or sheet["operand_bytes"] >= 2,
        "scales are those of the tensor itself, read before it is cast",
    )
    sheet.keeps(
        "wide_layers",
        not sheet["wide_layers"],
        "modules are kept in 16 bits by name (filter_fqns), not by share",
    )


def _weights(sheet: Sheet) -> None:
    """How weights are gathered and stored."""
    size = sheet["gather_bytes"]
    sheet.keeps(
        "gather_bytes",
        size == 2 or (size == 1 and FLOAT8.get(scaled_format(sheet)) == "tensorwise"),
        "weights are gathered in 2 bytes, or in 1 with a float8 scale for each tensor",
    )
    sheet.keeps(
        "weight_bytes optimizer_bytes",
        sheet["weight_bytes"] + sheet["optimizer_bytes"] == 12,
        "one 4-byte copy of the weights and two 4-byte moments are stored, sharded: 12 bytes per "
        "parameter in all",
    )


def _overlap(sheet: Sheet) -> None:
    s, p = sheet, "parallelism."
    beside: dict[str, Setting] = {p + "enable_async_tensor_parallel": bool(s["overlap_tp"])}
    s.tell("overlap_tp", where(s["tp"] > 1, beside))
    shape.balanced(s, "sequences are dealt out first with last by default")
    rotate: dict[str, Setting] = {
        p + "context_parallel_rotate_method": "alltoall" if s["overlap_cp"] else "allgather"
    }
    s.tell("overlap_cp", where(s["cp"] > 1, rotate))
    shape.overlapped(s, "dp", s["dp"], "FSDP always prefetches")
    shape.overlapped(s, "pp", s["pp"], "sends between stages always run beside compute")


def rules(sheet: Sheet) -> None:
    """What `ParallelDims` and the pipeline refuse."""
    s = sheet
    shape.common_rules(s)
    multiple = s["tp"] * (2 * s["cp"] if s["cp"] > 1 else 1)
    s.divides(s["seq_len"], multiple, "the sequence is a multiple of tp (and of 2 · cp)")
    if s["zero"] == 3:
        s.divides(s["dp"], s["shard"], "dp is a multiple of the sharding group")
    plain = s["zero"] == 0 and s["dp"] > 1
    s.rule(
        not plain or s["tp"] * s["cp"] * s["pp"] == 1,
        "plain data parallelism (zero 0) is offered on its own only; choose ZeRO-3",
    )
