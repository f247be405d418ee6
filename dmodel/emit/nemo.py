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
from dmodel.emit.sheet import Setting, Sheet

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
    if s["cp"] > 1:
        s.divides(s["seq_len"], 2 * s["cp"], "the sequence is a multiple of 2 · cp")
    if s["interleave"] > 1:
        s.divides(
            s["global_batch"] / (s["dp"] * s["micro_batch"]),
            s["pp"],
            "micro-batches are a multiple of pp, with interleaving",
        )


def _half(sheet: Sheet) -> str:
    return "16" if sheet.job.precision == "fp16" else "bf16"


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
    mixture = shape.is_mixture(s)
    s.tell(
        "n_experts top_k",
        {"model.num_moe_experts": s["n_experts"], "model.moe_router_topk": s["top_k"]}
        if mixture
        else {},
    )
    for names, none in (
        ("n_shared_experts", 0),
        ("expert_rank", 0),
        ("n_dense_layers", 0),
        ("kv_rank", 0),
        ("q_rank", 0),
        ("rope_dim", 0),
        ("qk_extra", 0),
        ("windowed", 0),
        ("n_mtp", 0),
    ):
        s.either(
            names,
            {} if s[names] == none else None,
            "not part of this configuration; only of later releases",
        )
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
    s.tell(
        "interleave",
        {"model.virtual_pipeline_model_parallel_size": s["interleave"]}
        if s["interleave"] > 1
        else {},
    )
    known = s["pp"] == 1 or s.values["schedule"] in ("1f1b", "interleaved")
    s.either("schedule", {} if known else None, "NeMo runs 1F1B or interleaved 1F1B")
    order = tuple(s.values["placement"].split()) == ("tp", "cp", "ep", "dp", "pp")
    s.either("placement", {} if order else None, "ranks are ordered tp-cp-ep-dp-pp")
    if shape.leave_without_experts(s, "ep etp merge_copies overlap_ep"):
        return
    s.tell("ep", {"model.expert_model_parallel_size": s["ep"]})
    s.either(
        "etp",
        {} if s["etp"] == s["tp"] else None,
        "experts are split by the same tensor parallelism as the rest",
    )
    s.either(
        "merge_copies", {} if not s["merge_copies"] else None, "tokens travel by a plain all-to-all"
    )
    s.either(
        "overlap_ep",
        {} if not s["overlap_ep"] or s["ep"] == 1 else None,
        "the exchange of experts stays exposed",
    )


def _sharding(sheet: Sheet) -> None:
    s, stage = sheet, sheet["zero"]
    hybrid = stage > 1 and s["shard"] < s["dp"]
    if stage >= 2:
        kind = "grad" if stage == 2 else "hybrid" if hybrid else "full"
        s.tell(
            "zero",
            {
                "model.fsdp": True,
                "model.fsdp_sharding_strategy": kind,
                "model.optim.name": "fused_adam",
            },
        )
        s.either(
            "shard",
            {} if not hybrid else None,
            "the hybrid strategy shards inside one node and replicates across nodes",
        )
    else:
        s.tell("zero", {"model.optim.name": "distributed_fused_adam" if stage else "fused_adam"})
        s.either(
            "shard",
            {} if not stage or s["shard"] == s["dp"] else None,
            "optimizer states are sharded over all data-parallel ranks",
        )
    kept = stage == 3 and not s["reshard"]
    s.either("reshard", None if kept else {}, "gathered weights are freed after the forward pass")
    s.rule(stage < 2 or s["pp"] == 1, "FSDP is not offered beside pipeline parallelism")


def _recompute(sheet: Sheet) -> None:
    s, share, key = sheet, sheet["recompute_layers"], "model.activations_checkpoint_"
    layers = share * shape.chunk_layers(s)
    if share > 0:
        k = -int(-layers // 1) if abs(layers - round(layers)) > 1e-9 else round(layers)
        full: dict[str, Setting] = {
            key + "granularity": "full",
            key + "method": "uniform",
            key + "num_layers": 1,
        }
        block: dict[str, Setting] = {
            key + "granularity": "full",
            key + "method": "block",
            key + "num_layers": k,
        }
        s.tell("recompute_layers", full if share == 1 else block)
        if abs(layers - k) > 1e-9:
            s.leave(
                "recompute_layers",
                f"recomputed are whole layers of each model chunk: {k} instead of {layers:g}",
            )
    else:
        s.tell("recompute_layers")
    shape.leave_parts(
        s,
        "recomputed are whole layers, the core of attention or modules by name",
        "recompute_modules",
    )
    shape.recomputed_end(s, False, "recomputed layers are done again to their end")
    switched = {"model.cpu_offloading": True, "model.cpu_offloading_activations": True}
    shape.offloaded_layers(s, "model.cpu_offloading_num_layers", switched)
    core = s["recompute_attention"]
    if core == 1 and share == 0:
        s.tell("recompute_attention", {key + "granularity": "selective"})
    else:
        s.either(
            "recompute_attention",
            {} if not core or share == 1 else None,
            "selective recomputation holds for all layers or none",
        )
    if not share and not core:
        s.settings[key + "granularity"] = None
    why = (
        "Transformer Engine adds weight gradients to what is held, and goes through the experts "
        "of a rank one after the other"
    )
    shape.launched(s, True, True, why)
    shape.buckets(
        s, 0.0, "the distributed optimizer has buckets of its own (model.optim.bucket_cap_mb)"
    )
    shape.copies(s, True, "sums over replicas run beside the backward pass")
    s.tell(
        "flash", {"model.transformer_engine": True, "model.use_flash_attention": bool(s["flash"])}
    )


def _precision(sheet: Sheet) -> None:
    s, words = sheet, sheet.job.precision.partition("-")[0].lower()
    s.settings |= {"model.megatron_amp_O2": True}
    narrow = s["operand_bytes"] < 2
    able = not narrow or (words == "fp8" and not s["scale_passes"])
    fp8: dict[str, Setting] = {
        "model.fp8": True,
        "model.fp8_hybrid": True,
        "model.fp8_wgrad": True,
    }
    why = "of the narrow formats, fp8 with delayed scaling only"
    s.either("operand_bytes scale_passes", ((fp8 if narrow else {}) if able else None), why)
    s.either("wide_layers", {} if not s["wide_layers"] else None, "all layers run in one precision")
    whole_half = s["gather_bytes"] == 2 and s["weight_bytes"] == 2
    s.either(
        "gather_bytes weight_bytes",
        {} if whole_half else None,
        "weights are stored and gathered in 2 bytes",
    )
    fsdp: dict[str, Setting] = {
        "model.fsdp_grad_reduce_dtype": "32" if s["reduce_bytes"] == 4 else "bf16"
    }
    narrow_sync: dict[str, Setting] = {"model.optim.grad_sync_dtype": "bf16"}
    told = (
        fsdp
        if s["zero"] >= 2
        else narrow_sync
        if s["zero"] == 1 and s["reduce_bytes"] == 2
        else {}
        if s["reduce_bytes"] == 4
        else None
    )
    s.either("reduce_bytes", told, "without a distributed optimizer, gradients travel in 4 bytes")
    one = s["zero"] == 1
    held = s["reduce_bytes"] if one else 4
    s.either(
        "gradient_bytes",
        {} if s["gradient_bytes"] == held else None,
        f"gradients are accumulated in {held:g} bytes",
    )
    whole: dict[float, dict[str, Setting]] = {12: {}}
    parts: dict[float, dict[str, Setting]] = {10: {}, 4: {"model.optim.dtype": "bf16"}}
    why = (
        "the distributed optimizer keeps of a master weight only the bits that bf16 lacks: 10 "
        "bytes with two moments, 4 with all in bf16"
    )
    states = (parts if one else whole).get(s["optimizer_bytes"])
    s.either(
        "optimizer_bytes", states, why if one else "master weight and two moments take 12 bytes"
    )


def _overlap(sheet: Sheet) -> None:
    s = sheet
    hidden = bool(s["overlap_tp"]) and s["tp"] > 1
    why = "overlapping needs sequence parallelism; the exchange stays exposed"
    s.either(
        "overlap_tp",
        ({"model.ub_tp_comm_overlap": True} if s["sp"] else None) if hidden else {},
        why,
    )
    s.either(
        "cp_balanced",
        {} if s["cp"] == 1 or s["cp_balanced"] else None,
        "sequences are always dealt out, first chunk with last",
    )
    s.either(
        "overlap_cp",
        {} if s["overlap_cp"] or s["cp"] == 1 else None,
        "the ring always hides what it can",
    )
    early = bool(s["overlap_dp"])
    sync: dict[str, Setting] = {
        "model.optim.overlap_grad_sync": early,
        "model.optim.overlap_param_sync": early,
    }
    s.tell("overlap_dp", sync if s["zero"] == 1 else {})
    late = s["pp"] > 1 and s["overlap_pp"] and s["interleave"] == 1
    hidden = bool(s["overlap_pp"])
    sends: dict[str, Setting] = (
        {"model.overlap_p2p_comm": hidden, "model.batch_p2p_comm": not hidden}
        if s["interleave"] > 1
        else {}
    )
    s.either(
        "overlap_pp",
        None if late else sends,
        "without interleaving, activations between stages are not sent behind compute",
    )
