"""Flags of Megatron-LM.

Names and rules as in NVIDIA/Megatron-LM, `megatron/training/arguments.py` at commit
000c4ac24f61159c138b0975def722c65245983c (autumn 2025, core 0.15), read on 2026-11-21:
`_add_network_size_args`, `_add_training_args`, `_add_distributed_args`, `_add_moe_args`,
`_add_mla_args`, `_add_mixed_precision_args`, `_add_transformer_engine_args` and the checks of
`validate_args`; of `TransformerConfig.__post_init__` that key/value groups and heads are multiples
of tp, and what overlapping the exchange of experts needs.
"""

from __future__ import annotations

from dmodel.emit import shape
from dmodel.emit.sheet import Setting, Sheet, whole
from dmodel.records import BUCKET_GRADIENTS, BUCKET_GRADIENTS_PER_RANK

NAME, VERSION = "megatron", "NVIDIA/Megatron-LM 000c4ac2 (core 0.15)"

BESIDE = (
    "data, tokenizer, learning rate, length of the run and checkpoints",
    (
        "normalization and positions (for Llama: --normalization RMSNorm --position-embedding-type "
        "rope --disable-bias-linear)"
    ),
)

ORDERS = {
    ("tp", "cp", "ep", "dp", "pp"): {},
    ("tp", "cp", "ep", "pp", "dp"): {"use-tp-pp-dp-mapping": True},
}
"""Order of the groups, innermost first → flags."""

STATES: dict[float, dict[str, Setting]] = {
    12.0: {},
    8.0: {
        "use-precision-aware-optimizer": True,
        "exp-avg-dtype": "bf16",
        "exp-avg-sq-dtype": "bf16",
    },
    6.0: {"use-precision-aware-optimizer": True, "exp-avg-dtype": "fp8", "exp-avg-sq-dtype": "fp8"},
}
"""Stored optimizer bytes per parameter (master weight and two moments) → flags."""


def write(sheet: Sheet) -> None:
    """Fill the sheet."""
    _shape(sheet)
    _degrees(sheet)
    _experts(sheet)
    _sharding(sheet)
    shape.sharded_rounds(sheet, False, "sharded gradients are reduced after each micro-batch")
    _recompute(sheet)
    _precision(sheet)
    _bytes(sheet)
    _overlap(sheet)
    shape.leave_what_no_launcher_knows(sheet)
    rules(sheet)


def _shape(sheet: Sheet) -> None:
    s = sheet
    plain = {
        "num-layers": s["n_layers"],
        "hidden-size": s["d_model"],
        "num-attention-heads": s["n_heads"],
    }
    s.tell("n_layers d_model n_heads", plain)
    dense = s["d_ff_dense"] if shape.is_mixture(s) and s["n_dense_layers"] else s["d_ff"]
    s.tell("d_ff d_ff_dense gated_mlp", {"ffn-hidden-size": dense, "swiglu": s["gated_mlp"] == 1})
    if s["n_kv_heads"] != s["n_heads"]:
        s.settings |= {"group-query-attention": True, "num-query-groups": s["n_kv_heads"]}
    s.tell("n_kv_heads")
    s.tell("seq_len", {"seq-length": s["seq_len"], "max-position-embeddings": s["seq_len"]})
    s.tell("vocab", {"vocab-size": s["vocab"]})
    s.tell("tied_embeddings", {"untie-embeddings-and-output-weights": s["tied_embeddings"] == 0})
    if shape.is_latent(s):
        s.tell(
            "kv_rank q_rank rope_dim qk_extra head_dim",
            {
                "multi-latent-attention": True,
                "kv-lora-rank": s["kv_rank"],
                "qk-pos-emb-head-dim": s["rope_dim"],
            }
            | ({"q-lora-rank": s["q_rank"]} if s["q_rank"] else {})
            | {
                "qk-head-dim": whole(s["head_dim"] + s["qk_extra"] - s["rope_dim"], "qk_extra"),
                "v-head-dim": s["head_dim"],
            },
        )
    else:
        s.tell("kv_rank q_rank rope_dim head_dim", {"kv-channels": s["head_dim"]})
        s.either(
            "qk_extra",
            {} if s["qk_extra"] == 0 else None,
            "queries wider than values need latent attention",
        )
    _windows(s)
    s.tell("n_mtp", {"mtp-num-layers": s["n_mtp"]} if s["n_mtp"] else {})


def _windows(sheet: Sheet) -> None:
    share, size = sheet["windowed"], sheet["window"]
    if share == 0:
        sheet.tell("windowed window")
        return
    every = 1.0 / (1.0 - share) if share < 1 else 0.0
    if abs(every - round(every)) > 1e-6:
        sheet.leave(
            "windowed",
            (
                f"--window-attn-skip-freq takes one whole layer in N; {share:g} of the layers is "
                "no "
                "such share"
            ),
        )
    else:
        sheet.tell("windowed", {"window-attn-skip-freq": round(every)} if every else {})
    sheet.tell("window", {"window-size": f"{size - 1:g},0"})


def _degrees(sheet: Sheet) -> None:
    s = sheet
    s.tell("dp")  # what the others leave of the processes
    s.tell(
        "tp cp pp sp",
        {
            "tensor-model-parallel-size": s["tp"],
            "pipeline-model-parallel-size": s["pp"],
            "context-parallel-size": s["cp"],
        }
        | {"sequence-parallel": bool(s["sp"]) and s["tp"] > 1},
    )
    s.tell(
        "micro_batch global_batch",
        {"micro-batch-size": s["micro_batch"], "global-batch-size": s["global_batch"]},
    )
    split = "in-pipeline-split"
    shape.lay_out(s, {f"account-for-embedding-{split}": True, f"account-for-loss-{split}": True})
    s.tell(
        "interleave",
        {"num-virtual-stages-per-pipeline-rank": s["interleave"]} if s["interleave"] > 1 else {},
    )
    schedule = s.values["schedule"]
    known = s["pp"] == 1 or schedule in ("1f1b", "interleaved")
    s.either(
        "schedule",
        {} if known else None,
        f"Megatron-LM runs 1F1B or interleaved 1F1B, not {schedule}",
    )
    order = ORDERS.get(tuple(s.values["placement"].split()))
    s.either(
        "placement",
        order,
        "ranks are ordered tp-cp-ep-dp-pp or, with --use-tp-pp-dp-mapping, tp-cp-ep-pp-dp",
    )


def _experts(sheet: Sheet) -> None:
    s = sheet
    if shape.leave_without_experts(
        s,
        (
            "n_experts top_k n_shared_experts expert_rank n_dense_layers ep etp merge_copies "
            "overlap_ep"
        ),
    ):
        return
    s.tell(
        "n_experts top_k",
        {
            "num-experts": s["n_experts"],
            "moe-router-topk": s["top_k"],
            "moe-ffn-hidden-size": s["d_ff"],
        },
    )
    s.settings["moe-grouped-gemm"] = True
    shared = whole(s["n_shared_experts"] * s["d_ff"], "n_shared_experts · d_ff")
    s.tell("n_shared_experts", {"moe-shared-expert-intermediate-size": shared} if shared else {})
    s.tell("expert_rank", {"moe-latent-size": s["expert_rank"]} if s["expert_rank"] else {})
    dense = s["n_dense_layers"]
    pattern = f"([0]*{dense:g}+[1]*{s['n_layers'] - dense:g})"
    s.tell("n_dense_layers", {"moe-layer-freq": pattern} if dense else {})
    s.tell(
        "ep etp", {"expert-model-parallel-size": s["ep"], "expert-tensor-parallel-size": s["etp"]}
    )
    merged: dict[str, Setting] = {"moe-token-dispatcher-type": "flex", "moe-enable-deepep": True}
    s.tell(
        "merge_copies", merged if s["merge_copies"] else {"moe-token-dispatcher-type": "alltoall"}
    )
    chunks = s["pp"] == 1 or s["interleave"] > 1
    able = s["ep"] > 1 and chunks and s["recompute_layers"] == 0 and not s["n_mtp"]
    if not s["overlap_ep"] or s["ep"] == 1:
        s.tell("overlap_ep")
    else:
        why = (
            "overlapping the exchange needs interleaved stages where pp > 1, no full "
            "recomputation and no MTP heads; it stays exposed"
        )
        s.either("overlap_ep", {"overlap-moe-expert-parallel-comm": True} if able else None, why)


def _sharding(sheet: Sheet) -> None:
    s, stage = sheet, sheet["zero"]
    copies = whole(s["dp"] / s["shard"], "dp / shard") if stage and s["shard"] > 1 else 1
    replicas: dict[str, Setting] = (
        {"num-distributed-optimizer-instances": copies} if copies > 1 else {}
    )
    fsdp: dict[str, Setting] = {
        "use-megatron-fsdp": True,
        "no-gradient-accumulation-fusion": True,
        "ckpt-format": "fsdp_dtensor",
    }
    kept = stage == 3 and not s["reshard"]
    torch_does = kept and s["pp"] == 1 and s["ep"] == 1 and copies == 1 and not s["tied_embeddings"]
    if torch_does:  # of the two FSDPs only this one can keep weights after the forward pass
        settings: dict[str, Setting] = {
            "use-torch-fsdp2": True,
            "torch-fsdp2-no-reshard-after-forward": True,
        }
        s.tell(
            "zero shard reshard",
            settings | {"no-gradient-accumulation-fusion": True, "ckpt-format": "torch_dist"},
        )
        return
    strategies = {2: "optim_grads", 3: "optim_grads_params"}
    if stage >= 2:
        strategy: dict[str, Setting] = {
            "data-parallel-sharding-strategy": strategies[int(stage)],
            "use-distributed-optimizer": True,
        }
        s.tell("zero shard", fsdp | strategy | replicas)
    else:
        s.tell("zero shard", {"use-distributed-optimizer": True} | replicas if stage else {})
    s.either(
        "reshard",
        None if kept else {},
        "Megatron-FSDP frees gathered weights after the forward pass; they are gathered again",
    )


def _recompute(sheet: Sheet) -> None:
    s, share = sheet, sheet["recompute_layers"]
    layers = share * shape.chunk_layers(s)
    if share == 1:
        s.tell(
            "recompute_layers",
            {
                "recompute-granularity": "full",
                "recompute-method": "uniform",
                "recompute-num-layers": 1,
            },
        )
    elif share > 0:
        k = int(-(-layers // 1)) if abs(layers - round(layers)) > 1e-9 else round(layers)
        s.tell(
            "recompute_layers",
            {
                "recompute-granularity": "full",
                "recompute-method": "block",
                "recompute-num-layers": k,
            },
        )
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
        "--recompute-modules",
    )
    shape.recomputed_end(s, False, "recomputed layers are done again to their end")
    shape.offloaded_layers(s, "cpu-offloading-num-layers", {})
    core = s["recompute_attention"]
    if core == 0 or share == 1:
        s.tell("recompute_attention")
    elif core == 1 and share == 0:
        s.tell(
            "recompute_attention",
            {"recompute-granularity": "selective", "recompute-modules": "core_attn"},
        )
    else:
        s.leave(
            "recompute_attention",
            (
                "selective recomputation holds for all layers or none, and not beside full "
                "recomputation of some"
            ),
        )
    s.tell("flash", {"attention-backend": "flash" if s["flash"] else "unfused"})
    why = "buckets hold 40 million gradients, or a million per rank, or what --ddp-bucket-size says"
    shape.buckets(
        s,
        BUCKET_GRADIENTS_PER_RANK * s["reduce_bytes"],
        why,
        {"ddp-bucket-size": int(BUCKET_GRADIENTS)},
    )
    shape.copies(s, True, "sums over replicas run beside the backward pass")
    shape.launched(
        s,
        bool(s["fused_sums"]),
        True,
        "Transformer Engine goes through the experts of a rank one after the other",
    )
    if not s["fused_sums"]:
        s.settings["no-gradient-accumulation-fusion"] = True


def _precision(sheet: Sheet) -> None:
    s, words = sheet, sheet.job.precision.partition("-")[0].lower()
    half = "fp16" if words == "fp16" else "bf16"
    s.settings[half] = True
    if s["operand_bytes"] == 2:
        s.tell("operand_bytes wide_layers scale_passes")
        return
    current = "tensorwise" if s["scale_passes"] else "delayed"
    formats: dict[str, dict[str, Setting]] = {
        "fp8": {"fp8-format": "hybrid", "fp8-recipe": current},
        "mxfp8": {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"},
        "nvfp4": {"fp4-format": "e2m1", "fp4-recipe": "nvfp4"},
    }
    known = formats.get(words)
    s.either(
        "operand_bytes scale_passes",
        known,
        f"Transformer Engine has no {words or 'such'} products; they run in {half}",
    )
    wide = s["wide_layers"] * s["n_layers"]
    ends = {
        "first-last-layers-bf16": True,
        "num-layers-at-start-in-bf16": int(wide / 2),
        "num-layers-at-end-in-bf16": -int(-wide // 2),
    }
    able = wide == int(wide) and known is not None
    s.either(
        "wide_layers",
        ({} if not wide else ends) if able else None,
        "16-bit layers are whole ones, at the two ends",
    )
    if wide and able:
        s.rule(
            formats[words].get("fp8-recipe") != "delayed",
            "delayed scaling keeps no layers in 16 bits: use --fp8-recipe tensorwise",
        )


def _bytes(sheet: Sheet) -> None:
    s = sheet
    gathered = {2.0: {}, 1.0: {"fp8-param-gather": True}, 0.5: {"fp4-param-gather": True}}.get(
        s["gather_bytes"]
    )
    if s["operand_bytes"] == 2 and s["gather_bytes"] != 2:
        gathered = None
    s.either(
        "gather_bytes",
        gathered,
        f"weights are gathered in the format of the products, not in {s['gather_bytes']:g} bytes",
    )
    stored = s["weight_bytes"] == 2 or (s["weight_bytes"] == s["gather_bytes"] and gathered)
    s.either(
        "weight_bytes",
        {} if stored else None,
        "weights are stored in the format in which they are gathered, 2 bytes by default",
    )
    grad = {
        4.0: {"accumulate-allreduce-grads-in-fp32": True},
        2.0: {"grad-reduce-in-bf16": True},
    }.get(s["gradient_bytes"])
    s.either(
        "gradient_bytes", grad, "gradients are kept in 4 bytes, or in 2 with --grad-reduce-in-bf16"
    )
    same = s["reduce_bytes"] == s["gradient_bytes"]
    why = (
        "gradients travel in the format in which they are stored (--grad-reduce-in-bf16 makes "
        "both 2 bytes, and memory less than planned)"
    )
    s.either("reduce_bytes", {} if same else None, why)
    states = STATES.get(s["optimizer_bytes"])
    able = states is not None and (not states or s["zero"] >= 1)
    s.either(
        "optimizer_bytes",
        states if able else None,
        "optimizer states are 12 bytes, or 8 or 6 with a distributed optimizer",
    )


def _overlap(sheet: Sheet) -> None:
    s = sheet
    if s["tp"] == 1 or not s["overlap_tp"]:
        s.tell("overlap_tp")
    else:
        able = bool(s["sp"]) and s["n_experts"] == 1
        why = (
            "--tp-comm-overlap needs --sequence-parallel and no experts; the exchange stays exposed"
        )
        s.either("overlap_tp", {"tp-comm-overlap": True} if able else None, why)
    ring = {"cp-comm-type": "p2p"} if s["cp"] > 1 else {}
    s.either(
        "cp_balanced",
        {} if s["cp"] == 1 or s["cp_balanced"] else None,
        "sequences are always dealt out, first chunk with last",
    )
    hidden = s["cp"] == 1 or s["overlap_cp"]
    s.either(
        "overlap_cp",
        ring if hidden else None,
        "the ring (--cp-comm-type p2p) always hides what it can",
    )
    reduce = {"overlap-grad-reduce": True} | ({"overlap-param-gather": True} if s["zero"] else {})
    if "use-torch-fsdp2" in s.settings:
        s.either("overlap_dp", {} if s["overlap_dp"] else None, "FSDP always prefetches")
    else:
        s.tell("overlap_dp", reduce if s["overlap_dp"] and s["dp"] * s["cp"] > 1 else {})
    if s["pp"] == 1:
        s.tell("overlap_pp")
    elif s["interleave"] > 1:
        s.tell("overlap_pp", {} if s["overlap_pp"] else {"no-overlap-p2p-communication": True})
    else:
        why = "without interleaving, activations between stages are not sent behind compute"
        s.either("overlap_pp", None if s["overlap_pp"] else {}, why)


def rules(sheet: Sheet) -> None:
    """What `validate_args` and `TransformerConfig` refuse."""
    s = sheet
    shape.common_rules(s)
    if s["cp"] > 1:
        s.divides(s["seq_len"], 2 * s["cp"], "the sequence is a multiple of 2 · cp")
    if s["sp"] and s["tp"] > 1:
        s.divides(
            s["seq_len"] / s["cp"],
            s["tp"],
            "tokens of a context-parallel rank are a multiple of tp, with sequence parallelism",
        )
    if s["interleave"] > 1:
        s.divides(
            s["global_batch"] / (s["dp"] * s["micro_batch"]),
            s["pp"],
            "micro-batches are a multiple of pp, with interleaving",
        )
        s.rule(
            s["pp"] > (1 if s["overlap_pp"] else 2),
            "interleaving needs pp > 1, and pp > 2 without overlapped sends",
        )
    if s["zero"] and s["shard"] > 1:
        s.divides(s["dp"], s["shard"], "dp is a multiple of the sharding group")
    s.rule(
        not (s.job.precision == "fp16" and s["ep"] > 1), "expert parallelism is not offered in fp16"
    )
    s.rule(
        not (
            s.settings.get("use-tp-pp-dp-mapping")
            and s["pp"] > 1
            and s["ep"] * s["etp"] not in (1, s["tp"] * s["cp"])
        ),
        (
            "with tp-pp-dp mapping, experts have as many data-parallel ranks as the rest: ep · "
            "etp "
            "= tp · cp"
        ),
    )
