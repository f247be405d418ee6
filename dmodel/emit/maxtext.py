"""YAML of MaxText.

Names as in AI-Hypercomputer/maxtext, `src/MaxText/configs/base.yml` at commit
09d2025bc52059162c84f05846b15121b2b48eb0 (end of 2025);
rules as in the checks of `configs/types.py` of the same time: batch sizes, pipeline stages,
micro-batches, meshes. Read on 2026-11-21.
"""

from __future__ import annotations

from math import gcd

from dmodel.emit import shape
from dmodel.emit.sheet import Setting, Sheet, whole

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
    sheet.settings |= {"hardware": "tpu" if _on_tpu(sheet) else "gpu"}
    _shape(sheet)
    _mesh(sheet)
    _batch(sheet)
    _sharding(sheet)
    shape.sharded_rounds(sheet, False, "sharded gradients are reduced after each micro-batch")
    _recompute(sheet)
    _precision(sheet)
    _overlap(sheet)
    shape.leave_what_no_launcher_knows(sheet)
    shape.lay_out(sheet, None)
    rules(sheet)


def _on_tpu(sheet: Sheet) -> bool:
    return sheet.job.accelerator.upper().startswith("TPU")


def _shape(sheet: Sheet) -> None:
    s = sheet
    mixture = shape.is_mixture(s)
    s.tell(
        "n_layers d_model n_heads n_kv_heads head_dim vocab seq_len",
        {
            "base_num_decoder_layers": s["n_layers"],
            "base_emb_dim": s["d_model"],
            "base_num_query_heads": s["n_heads"],
        }
        | {
            "base_num_kv_heads": s["n_kv_heads"],
            "head_dim": s["head_dim"],
            "vocab_size": s["vocab"],
            "max_target_length": s["seq_len"],
        },
    )
    dense = s["d_ff_dense"] if mixture and s["n_dense_layers"] else s["d_ff"]
    words = ["silu", "linear"] if s["gated_mlp"] else ["gelu"]
    s.tell("d_ff d_ff_dense gated_mlp", {"base_mlp_dim": dense, "mlp_activations": words})
    s.tell("tied_embeddings", {"logits_via_embedding": bool(s["tied_embeddings"])})
    if not mixture:
        s.tell("n_experts top_k n_shared_experts n_dense_layers")
    else:
        experts: dict[str, Setting] = {
            "num_experts": s["n_experts"],
            "num_experts_per_tok": s["top_k"],
            "base_moe_mlp_dim": s["d_ff"],
        }
        s.tell("n_experts top_k", experts)
        s.tell(
            "n_shared_experts n_dense_layers",
            {
                "shared_experts": s["n_shared_experts"],
                "first_num_dense_layers": s["n_dense_layers"],
            },
        )
    s.either(
        "expert_rank",
        {} if s["expert_rank"] == 0 else None,
        "experts read tokens at the width of the model",
    )
    latent: dict[str, Setting] = {
        "attention_type": "mla",
        "q_lora_rank": s["q_rank"],
        "kv_lora_rank": s["kv_rank"],
    }
    if shape.is_latent(s):
        nope = whole(s["head_dim"] + s["qk_extra"] - s["rope_dim"], "qk_extra")
        s.tell(
            "kv_rank q_rank rope_dim qk_extra",
            latent
            | {
                "qk_nope_head_dim": nope,
                "qk_rope_head_dim": s["rope_dim"],
                "v_head_dim": s["head_dim"],
            },
        )
    else:
        s.tell("kv_rank q_rank rope_dim")
        s.either(
            "qk_extra",
            {} if s["qk_extra"] == 0 else None,
            "queries wider than values need latent attention",
        )
    local: dict[str, Setting] = {
        "attention_type": "local_sliding",
        "sliding_window_size": s["window"],
    }
    why = "which layers are windowed is part of decoder_block, not a share"
    s.either(
        "window windowed", {} if s["windowed"] == 0 else local if s["windowed"] == 1 else None, why
    )
    s.tell("n_mtp", {"mtp_num_layers": s["n_mtp"]} if s["n_mtp"] else {})


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


def _mesh(sheet: Sheet) -> None:
    """Axes inside one domain (`ici_`) as the placement fills it, the rest between domains
    (`dcn_`)."""
    s = sheet
    sizes, room = _groups(s), s.job.per_domain
    order = [
        part
        for name in s.values["placement"].split()
        for part in (("fsdp", "data") if name == "dp" else (name,))
    ]
    inner = {}
    for name in order:
        inner[name] = gcd(sizes[name], room)
        room //= inner[name]
    tensor = "tensor_sequence" if s["sp"] and s["tp"] > 1 else "tensor"
    for name in ("data", "fsdp", "ep", "cp", "tp", "pp"):
        axis = tensor if name == "tp" else AXES[name]
        s.settings |= {
            f"ici_{axis}_parallelism": inner[name],
            f"dcn_{axis}_parallelism": sizes[name] // inner[name],
        }
    s.tell("dp tp cp sp")
    s.leave(
        "placement",
        (
            "the order within a domain is chosen by JAX's device mesh; only what lies between "
            "domains "
            "(dcn_) is as planned"
        ),
    )
    if shape.leave_without_experts(s, "ep etp merge_copies"):
        return
    s.tell("ep")
    s.divides(s["dp"], s["ep"], "dp is a multiple of ep: experts lie on data-parallel ranks")
    s.either(
        "etp",
        {} if s["etp"] == s["tp"] else None,
        "experts are split by the same tensor parallelism as the rest",
    )
    s.either(
        "merge_copies",
        {} if not s["merge_copies"] else None,
        "each copy of a token travels on its own",
    )


def _batch(sheet: Sheet) -> None:
    s = sheet
    devices, micro = (
        s["dp"] * s["tp"] * s["cp"] * s["pp"],
        s["global_batch"] / (s["dp"] * s["micro_batch"]),
    )
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
        (
            "all micro-batches run forward, then all backward (circular GPipe): their activations "
            "are "
            "all held"
        ),
    )
    s.divides(micro, s["pp"], "micro-batches are a multiple of pp")


def _sharding(sheet: Sheet) -> None:
    s = sheet
    if s["zero"] in (1, 2):
        s.settings["shard_optimizer_over_data"] = True
    s.either(
        "zero",
        None if s["zero"] == 2 else {},
        "shard_optimizer_over_data shards optimizer states (ZeRO-1); gradients stay whole",
    )
    partial = s["zero"] in (1, 2) and s["shard"] < s["dp"]
    s.either(
        "shard", None if partial else {}, "optimizer states are sharded over the whole data axis"
    )
    kept = s["zero"] == 3 and not s["reshard"]
    once: dict[str, Setting] | None = {"pipeline_fsdp_ag_once": True} if s["pp"] > 1 else None
    s.either("reshard", once if kept else {}, "XLA gathers weights again for the backward pass")


def _recompute(sheet: Sheet) -> None:
    s, share, core = sheet, sheet["recompute_layers"], sheet["recompute_attention"]
    streams = s["recompute_elementwise"] == 1
    policy = (
        "full"
        if share > 0
        else "minimal"
        if core > 0
        else "minimal_with_context"
        if streams
        else "none"
    )
    s.settings["remat_policy"] = policy
    inputs: dict[str, Setting] = (
        {"remat_policy": "custom", "decoder_layer_input": "offload"} if s["offload"] else {}
    )
    able = s["offload"] in (0, 1) and (share == 1 or not s["offload"])
    s.either(
        "offload",
        inputs if able else None,
        "policies offload the inputs of layers that are recomputed in full, or results by name",
    )
    reasons = {
        "bytes": "no policy recomputes modules by Megatron-Core's names",
        "products": "the policy keeps results of all products",
    }
    for name, why in reasons.items():
        s.either(f"recompute_{name}", {} if not s[f"recompute_{name}"] or share == 1 else None, why)
    told = (
        {} if share == 1 or streams or policy == "none" and not s["recompute_elementwise"] else None
    )
    s.either(
        "recompute_elementwise",
        told,
        "beside products and the core of attention, policies keep nothing of a layer",
    )
    s.either(
        "recompute_layers",
        {} if share in (0, 1) else None,
        "one policy holds for all layers: all are recomputed in full",
    )
    shape.recomputed_end(
        s,
        not shape.is_mixture(s),
        "compiled, recomputation ends once the backward pass has what it needs",
    )
    held = core in (0, 1) or share > 0
    s.either(
        "recompute_attention",
        {} if held else None,
        "one policy holds for all layers: the core of attention is recomputed in all",
    )
    kernel = ("flash" if _on_tpu(s) else "cudnn_flash_te") if s["flash"] else "dot_product"
    s.tell("flash", {"attention": kernel})
    shape.buckets(s, 0.0, "XLA combines messages by thresholds of its own")
    shape.copies(s, False, "the loop over layers waits for sums over replicas")
    shape.launched(
        s,
        False,
        False,
        "XLA decides what it fuses, and one kernel does the products of all experts",
        compiled=True,
    )


def _precision(sheet: Sheet) -> None:
    s, words = sheet, sheet.job.precision.partition("-")[0].lower()
    known = {"bf16": "", "fp8": "fp8", "int8": "int8"}
    s.settings["dtype"] = "bfloat16" if words != "fp16" else "float16"
    told = {"quantization": known[words]} if words in known else {} if words == "fp16" else None
    s.either("operand_bytes", told, f"of the narrow formats, fp8 and int8; not {words}")
    narrow = s["operand_bytes"] < 2
    for name in ("wide_layers", "scale_passes"):
        s.either(
            name, {} if not s[name] or not narrow else None, "follows from the quantization library"
        )
    s.either(
        "gather_bytes",
        {} if s["gather_bytes"] == 2 else None,
        "weights are cast to dtype, and gathered as XLA places the cast",
    )
    both = s["weight_bytes"] + s["optimizer_bytes"]
    states: dict[float, dict[str, Setting]] = {
        12: {"weight_dtype": "float32"},
        10: {"weight_dtype": "float32", "mu_dtype": "bfloat16"},
    }
    if both not in states:
        s.settings["weight_dtype"] = "float32"
    why = (
        "one 4-byte copy of the weights and two moments are stored: 12 bytes per parameter in all "
        "(10 with mu_dtype bfloat16)"
    )
    s.either("weight_bytes optimizer_bytes", states.get(both), why)
    grads = {4.0: "float32", 2.0: "bfloat16"}.get(s["gradient_bytes"])
    s.either(
        "gradient_bytes",
        {"grad_dtype": grads} if grads else None,
        "gradients are kept in 4 or 2 bytes",
    )
    same = s["reduce_bytes"] == s["gradient_bytes"]
    s.either(
        "reduce_bytes", {} if same else None, "gradients are reduced in the type XLA finds them in"
    )


def _overlap(sheet: Sheet) -> None:
    s = sheet
    for name, degree in (("tp", s["tp"]), ("ep", s["ep"]), ("dp", s["dp"])):
        why = "what hides behind compute is decided by XLA and its flags"
        s.either(f"overlap_{name}", {} if s[f"overlap_{name}"] or degree == 1 else None, why)
    ring: dict[str, Setting] | None = (
        {}
        if s["cp"] == 1
        else {"context_parallel_strategy": "ring" if s["overlap_cp"] else "all_gather"}
    )
    if _on_tpu(s) and s["cp"] > 1 and s["overlap_cp"]:
        ring = None
    s.tell(
        "cp_balanced",
        {"context_parallel_load_balance": bool(s["cp_balanced"])} if s["cp"] > 1 else {},
    )
    s.either(
        "overlap_cp",
        ring,
        "on TPUs keys and values are gathered before attention; the ring is offered on GPUs only",
    )
    s.tell(
        "overlap_pp",
        {"pipeline_delay_activation_forwarding": bool(s["overlap_pp"])} if s["pp"] > 1 else {},
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
    if s["cp"] > 1:
        s.divides(s["seq_len"], 2 * s["cp"], "the sequence is a multiple of 2 · context")
    if s["ep"] > 1:
        s.rule(
            s["zero"] == 3,
            (
                "the expert axis shards the other weights too, as FSDP does: choose ZeRO-3 with "
                "experts"
            ),
        )
    if s["pp"] > 1 and s["overlap_pp"]:
        micro = s["global_batch"] / (s["dp"] * s["micro_batch"])
        s.rule(
            micro >= 2 * s["pp"],
            f"delayed forwarding needs 2 · pp micro-batches: {micro:g} for {2 * s['pp']:g}",
        )
    accumulates = s["pp"] == 1 and s["global_batch"] > s["dp"] * s["micro_batch"]
    s.rule(
        not (s.settings.get("quantization") == "fp8" and accumulates),
        "fp8 is not offered with gradient accumulation",
    )
    used = sizes["data"] * sizes["fsdp"] * sizes["ep"]
    s.rule(used == s["dp"], f"data · fsdp · expert makes up dp: {used} for {s['dp']:g}")
