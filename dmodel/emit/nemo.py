"""YAML of NeMo's `megatron_gpt_pretraining`.

Names as in NVIDIA/NeMo,
`nemo/collections/llm/tools/auto_configurator/tests/base_configs_tests/test_base_configs.py` at
commit 00bdb97ce036c4da43e9f1cf7c45f4deab4bd890 and
`examples/nlp/language_modeling/conf/megatron_gpt_config.yaml` (NeMo 1.2x, 2024), read on
2026-11-21; the FSDP keys as in the fine-tuning configurations of the same releases. Later releases
(NeMo 2, Megatron-Bridge) build the same `model.*` names in Python.
"""

from __future__ import annotations

from dmodel.emit import shape
from dmodel.emit.sheet import Setting, Sheet, scaled_format, where

NAME, VERSION = "nemo", "NVIDIA/NeMo 00bdb97c (megatron_gpt_pretraining, mcore_gpt)"

BESIDE = (
    "model.data, model.tokenizer, model.optim.lr and its schedule, trainer.max_steps, exp_manager",
    "model.normalization, model.bias",
)


def write(sheet: Sheet) -> None:
    """Fill the sheet."""
    s = sheet
    devices = s["dp"] * s["tp"] * s["cp"] * s["pp"]
    per_node = min(s.job.per_domain, int(devices))
    s.divides(devices, per_node, "devices fill whole nodes")
    s.tell(
        "dp",
        {
            "trainer.devices": per_node,
            "trainer.num_nodes": -(-int(devices) // per_node),
            "trainer.precision": _half(s),
        },
    )
    s.settings["model.mcore_gpt"] = True
    _shape(s)
    _degrees(s)
    _sharding(s)
    shape.sharded_rounds(s, False, "sharded gradients are reduced after each micro-batch")
    _recompute(s)
    _precision(s)
    _overlap(s)
    shape.leave_what_no_launcher_knows(s)
    shape.lay_out(s, None)
    shape.common_rules(s)
    shape.context_rule(s)
    shape.interleaving_rule(s)


def _half(sheet: Sheet) -> str:
    return "16" if sheet.job.precision == "fp16" else "bf16"


LATER = (
    "n_shared_experts expert_rank n_dense_layers kv_rank q_rank rope_dim qk_extra windowed n_mtp"
)
"""Fields that only later releases know."""


def _shape(sheet: Sheet) -> None:
    s = sheet
    s.tell(
        "n_layers d_model n_heads n_kv_heads seq_len",
        {
            "model.num_layers": s["n_layers"],
            "model.hidden_size": s["d_model"],
            "model.num_attention_heads": s["n_heads"],
        }
        | {"model.num_query_groups": s["n_kv_heads"], "model.encoder_seq_length": s["seq_len"]}
        | {"model.max_position_embeddings": s["seq_len"], "model.data.seq_length": s["seq_len"]},
    )
    s.tell(
        "d_ff gated_mlp",
        {
            "model.ffn_hidden_size": s["d_ff"],
            "model.activation": "fast-swiglu" if s["gated_mlp"] else "gelu",
        },
    )
    s.tell("head_dim", {"model.kv_channels": s["head_dim"]})
    s.leave(
        "vocab",
        (
            "the vocabulary is that of model.tokenizer, padded to a multiple of "
            "model.make_vocab_size_divisible_by"
        ),
    )
    s.tell(
        "tied_embeddings", {"model.share_embeddings_and_output_weights": bool(s["tied_embeddings"])}
    )
    experts = {"model.num_moe_experts": s["n_experts"], "model.moe_router_topk": s["top_k"]}
    s.tell("n_experts top_k", where(shape.is_mixture(s), experts))
    for name in LATER.split():
        s.keeps(name, not s[name], "not part of this configuration; only of later releases")
    s.tell("d_ff_dense window")


def _degrees(sheet: Sheet) -> None:
    s = sheet
    s.tell(
        "tp cp pp sp",
        {"model.tensor_model_parallel_size": s["tp"], "model.pipeline_model_parallel_size": s["pp"]}
        | {
            "model.context_parallel_size": s["cp"],
            "model.sequence_parallel": bool(s["sp"]) and s["tp"] > 1,
        },
    )
    s.tell(
        "micro_batch global_batch",
        {"model.micro_batch_size": s["micro_batch"], "model.global_batch_size": s["global_batch"]},
    )
    chunks: dict[str, Setting] = {"model.virtual_pipeline_model_parallel_size": s["interleave"]}
    s.tell("interleave", where(s["interleave"] > 1, chunks))
    known = s["pp"] == 1 or s.values["schedule"] in ("1f1b", "interleaved")
    s.keeps("schedule", known, "NeMo runs 1F1B or interleaved 1F1B")
    order = tuple(s.values["placement"].split()) == ("tp", "cp", "ep", "dp", "pp")
    s.keeps("placement", order, "ranks are ordered tp-cp-ep-dp-pp")
    _experts(s)


def _experts(sheet: Sheet) -> None:
    s = sheet
    if shape.leave_without_experts(s, "ep etp merge_copies overlap_ep"):
        return
    s.tell("ep", {"model.expert_model_parallel_size": s["ep"]})
    shape.split_as_the_rest(s)
    s.keeps("merge_copies", not s["merge_copies"], "tokens travel by a plain all-to-all")
    s.keeps(
        "overlap_ep",
        not s["overlap_ep"] or s["ep"] == 1,
        "the exchange of experts stays exposed",
    )


def _sharding(sheet: Sheet) -> None:
    s, stage = sheet, sheet["zero"]
    if stage >= 2:
        _sharding_of_fsdp(s)
    else:
        s.tell("zero", {"model.optim.name": "distributed_fused_adam" if stage else "fused_adam"})
        s.keeps(
            "shard",
            not stage or s["shard"] == s["dp"],
            "optimizer states are sharded over all data-parallel ranks",
        )
    again = stage != 3 or s["reshard"]
    s.keeps("reshard", again, "gathered weights are freed after the forward pass")
    s.rule(stage < 2 or s["pp"] == 1, "FSDP is not offered beside pipeline parallelism")


def _sharding_of_fsdp(sheet: Sheet) -> None:
    hybrid = sheet["shard"] < sheet["dp"]
    whole = "hybrid" if hybrid else "full"
    sheet.tell(
        "zero",
        {
            "model.fsdp": True,
            "model.fsdp_sharding_strategy": "grad" if sheet["zero"] == 2 else whole,
            "model.optim.name": "fused_adam",
        },
    )
    sheet.keeps(
        "shard",
        not hybrid,
        "the hybrid strategy shards inside one node and replicates across nodes",
    )


AGAIN = "model.activations_checkpoint_"
"""How names of settings of recomputation begin."""


def _recompute(sheet: Sheet) -> None:
    s = sheet
    _layers_again(s)
    shape.leave_parts(
        s,
        "recomputed are whole layers, the core of attention or modules by name",
        "recompute_modules",
    )
    shape.recomputed_end(s, False, "recomputed layers are done again to their end")
    switched = {"model.cpu_offloading": True, "model.cpu_offloading_activations": True}
    shape.offloaded_layers(s, "model.cpu_offloading_num_layers", switched)
    _attention_again(s)
    why = (
        "Transformer Engine adds weight gradients to what is held, and goes through the experts "
        "of a rank one after the other"
    )
    s.keeps(
        "boundary_buffers",
        not s["boundary_buffers"],
        "a stage receives into memory that it takes as it goes",
    )
    shape.launched(s, True, True, why)
    shape.buckets(
        s, 0.0, "the distributed optimizer has buckets of its own (model.optim.bucket_cap_mb)"
    )
    shape.copies(s, True, "sums over replicas run beside the backward pass")
    s.tell(
        "flash", {"model.transformer_engine": True, "model.use_flash_attention": bool(s["flash"])}
    )


def _layers_again(sheet: Sheet) -> None:
    """Layers that are done again in full."""
    share = sheet["recompute_layers"]
    if share <= 0:
        sheet.tell("recompute_layers")
        return
    method, layers = ("uniform", 1) if share == 1 else ("block", shape.block_layers(sheet)[0])
    full: dict[str, Setting] = {
        AGAIN + "granularity": "full",
        AGAIN + "method": method,
        AGAIN + "num_layers": layers,
    }
    sheet.tell("recompute_layers", full)
    shape.leave_part_layers(sheet)


def _attention_again(sheet: Sheet) -> None:
    """The core of attention, done again alone."""
    share, core = sheet["recompute_layers"], sheet["recompute_attention"]
    if core == 1 and share == 0:
        sheet.tell("recompute_attention", {AGAIN + "granularity": "selective"})
        return
    sheet.keeps(
        "recompute_attention",
        not core or share == 1,
        "selective recomputation holds for all layers or none",
    )
    if not share and not core:
        sheet.settings[AGAIN + "granularity"] = None


def _precision(sheet: Sheet) -> None:
    sheet.settings |= {"model.megatron_amp_O2": True}
    _products(sheet)
    sheet.keeps("wide_layers", not sheet["wide_layers"], "all layers run in one precision")
    sheet.keeps(
        "gather_bytes weight_bytes",
        sheet["gather_bytes"] == 2 and sheet["weight_bytes"] == 2,
        "weights are stored and gathered in 2 bytes",
    )
    sheet.either(
        "reduce_bytes",
        _reduced(sheet),
        "without a distributed optimizer, gradients travel in 4 bytes",
    )
    if sheet["zero"] == 1:
        _stored(sheet, sheet["reduce_bytes"], DISTRIBUTED_STATES, DISTRIBUTED)
    else:
        _stored(sheet, 4, WHOLE_STATES, "master weight and two moments take 12 bytes")


def _products(sheet: Sheet) -> None:
    """Format of the products."""
    narrow = sheet["operand_bytes"] < 2
    fp8: dict[str, Setting] = {
        "model.fp8": True,
        "model.fp8_hybrid": True,
        "model.fp8_wgrad": True,
    }
    sheet.keeps(
        "operand_bytes scale_passes",
        not narrow
        or (scaled_format(sheet) in ("fp8", "fp8-delayed") and not sheet["scale_passes"]),
        "of the narrow formats, fp8 with delayed scaling only",
        where(narrow, fp8),
    )


def _reduced(sheet: Sheet) -> dict[str, Setting] | None:
    """Settings of the format in which gradients travel, None where there are none."""
    size, stage = sheet["reduce_bytes"], sheet["zero"]
    if stage >= 2:
        return {"model.fsdp_grad_reduce_dtype": "32" if size == 4 else "bf16"}
    if stage == 1 and size == 2:
        return {"model.optim.grad_sync_dtype": "bf16"}
    return {} if size == 4 else None


WHOLE_STATES: dict[float, dict[str, Setting]] = {12: {}}
DISTRIBUTED_STATES: dict[float, dict[str, Setting]] = {10: {}, 4: {"model.optim.dtype": "bf16"}}
"""Bytes of the optimizer per parameter → settings."""

DISTRIBUTED = (
    "the distributed optimizer keeps of a master weight only the bits that bf16 lacks: 10 "
    "bytes with two moments, 4 with all in bf16"
)


def _stored(
    sheet: Sheet, held: float, states: dict[float, dict[str, Setting]], reason: str
) -> None:
    """Bytes in which gradients are kept (`held`), and states of the optimizer."""
    sheet.keeps(
        "gradient_bytes",
        sheet["gradient_bytes"] == held,
        f"gradients are accumulated in {held:g} bytes",
    )
    sheet.either("optimizer_bytes", states.get(sheet["optimizer_bytes"]), reason)


def _overlap(sheet: Sheet) -> None:
    s = sheet
    hidden = s["overlap_tp"] and s["tp"] > 1
    s.keeps(
        "overlap_tp",
        s["sp"] or not hidden,
        "overlapping needs sequence parallelism; the exchange stays exposed",
        where(hidden, {"model.ub_tp_comm_overlap": True}),
    )
    shape.balanced(s, "sequences are always dealt out, first chunk with last")
    shape.overlapped(s, "cp", s["cp"], "the ring always hides what it can")
    early = bool(s["overlap_dp"])
    sync: dict[str, Setting] = {
        "model.optim.overlap_grad_sync": early,
        "model.optim.overlap_param_sync": early,
    }
    s.tell("overlap_dp", where(s["zero"] == 1, sync))
    _overlap_pipeline(s)


def _overlap_pipeline(sheet: Sheet) -> None:
    """Sends between stages."""
    chunks, hidden = sheet["interleave"], bool(sheet["overlap_pp"])
    late = sheet["pp"] > 1 and hidden and chunks == 1
    sends: dict[str, Setting] = {
        "model.overlap_p2p_comm": hidden,
        "model.batch_p2p_comm": not hidden,
    }
    sheet.keeps(
        "overlap_pp",
        not late,
        "without interleaving, activations between stages are not sent behind compute",
        where(chunks > 1, sends),
    )
