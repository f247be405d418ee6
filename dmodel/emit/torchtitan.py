"""TOML of torchtitan.

Names as in pytorch/torchtitan, `torchtitan/config/job_config.py` at commit
6404b932421f5ce382e7dac5ad381b2c17b1373c (2025, the releases configured by TOML; later ones are
configured in Python, by the same names), rules as in `distributed/parallel_dims.py` at
0119de156de558030726b8539ef0078d8aaaec99 and `distributed/pipeline_parallel.py` at
02ef790c79614758f85880e173d2338d7de502a3; the sections `quantize.linear.float8`,
`quantize.linear.mx`, `compile` and `expert_tensor_parallel_degree` as in releases from v0.2 on.
Read on 2026-11-21.
"""

from __future__ import annotations

from dmodel.emit import shape
from dmodel.emit.sheet import Setting, Sheet

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

SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe"}


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
    named: dict[str, Setting] = {"model.name": known[0], "model.flavor": known[1]} if known else {}
    sheet.either(
        SHAPE,
        named if known else None,
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
    if s["zero"] in (1, 2):
        s.leave(
            "zero",
            (
                "FSDP shards weights, gradients and optimizer states alike; kept after the forward "
                "pass, they come nearest"
            ),
        )
    else:
        s.tell("zero")
    keeps = s["zero"] in (1, 2) or not s["reshard"]
    s.tell(
        "reshard",
        {p + "fsdp_reshard_after_forward": "never" if keeps else "always"} if s["zero"] else {},
    )
    s.either(
        "sp",
        {} if s["sp"] or s["tp"] == 1 else None,
        "tensor parallelism always comes with sequence parallelism",
    )
    order = [name for name in s.values["placement"].split() if name != "ep"] == [
        "tp",
        "cp",
        "dp",
        "pp",
    ]
    s.either(
        "placement",
        {} if order else None,
        "the mesh is ordered tp, cp, dp (sharded, then replicated), pp, innermost first",
    )


def _pipeline(sheet: Sheet) -> None:
    s, p = sheet, "parallelism.pipeline_parallel_"
    batch: dict[str, Setting] = {"training.global_batch_size": s["global_batch"]}
    ends: dict[str, Setting] = {p + "first_stage_less_layers": 1, p + "last_stage_less_layers": 1}
    if s["pp"] == 1:
        shape.lay_out(s, ends)
        s.tell("pp interleave schedule", {p + "degree": 1})
        s.tell("micro_batch global_batch", {"training.local_batch_size": s["micro_batch"]} | batch)
        return
    local = s["global_batch"] / s["dp"]
    s.tell(
        "micro_batch global_batch",
        {"training.local_batch_size": int(local), p + "microbatch_size": s["micro_batch"]} | batch,
    )
    zero_bubble = s.values["schedule"] == "zero-bubble"
    name = (
        "ZBVZeroBubble"
        if zero_bubble
        else SCHEDULES["interleaved" if s["interleave"] > 1 else s.values["schedule"]]
    )
    chunks = 2 * s["pp"] if zero_bubble else s["pp"] * s["interleave"]
    # by default the first and the last stage get one layer less, as plans whose stages do not
    # divide the layers have it
    s.settings |= dict.fromkeys(ends, 0)
    # zero-bubble folds the last chunk onto the first stage: its layers lie otherwise
    shape.lay_out(s, None if zero_bubble else ends, dealt=True)
    items = s["n_layers"] + sum(s.settings[setting] for setting in ends)  # type: ignore[misc]
    each = -(-int(items) // int(chunks))
    s.tell(
        "pp schedule", {p + "degree": s["pp"], p + "schedule": name, p + "layers_per_stage": each}
    )
    s.either(
        "interleave",
        None if zero_bubble else {},
        "zero-bubble schedules fold two chunks into each stage",
    )
    s.rule(
        -(-int(items) // each) == chunks,
        f"{items:g} layers (with embedding and head, where these count) fill {chunks:g} chunks",
    )
    micro = s["global_batch"] / (s["dp"] * s["micro_batch"])
    s.rule(
        micro >= chunks,
        (
            f"micro-batches fill the pipeline: {micro:g} for {chunks:g} stages (torchtitan warns, "
            "and "
            "bubbles grow)"
        ),
    )


def _experts(sheet: Sheet) -> None:
    s, p = sheet, "parallelism.expert_"
    if shape.leave_without_experts(s, "ep etp merge_copies overlap_ep"):
        return
    s.tell("ep etp", {p + "parallel_degree": s["ep"], p + "tensor_parallel_degree": s["etp"]})
    s.tell(
        "merge_copies", {p + "parallel_comm_backend": "deepep" if s["merge_copies"] else "standard"}
    )
    hidden = s["ep"] > 1 and s["overlap_ep"]
    s.either(
        "overlap_ep",
        None if hidden else {},
        "the exchange of experts hides only within the DualPipeV schedule",
    )
    if s["ep"] > 1:
        inner = s["cp"] * (s["tp"] if s["etp"] == 1 else 1)
        ranks = s.settings["parallelism.data_parallel_shard_degree"]
        s.rule(s["etp"] in (1, s["tp"]), "expert tensor parallelism is 1 or tp")
        s.divides(s["ep"], inner, "ep is a multiple of cp (and of tp, when experts are whole)")
        s.divides(float(ranks) * inner, s["ep"], ("sharded dp · cp (· tp) is a multiple of ep"))  # type: ignore


def _recompute(sheet: Sheet) -> None:
    s, share, a = sheet, sheet["recompute_layers"], "activation_checkpoint."
    every = int(1.0 / share + 1e-9) if share else 0
    by_operator = share == 0 and s["recompute_elementwise"] == 1
    if by_operator:
        parts = "recompute_products recompute_elementwise recompute_bytes"
        s.tell(
            f"recompute_layers {parts}", {a + "mode": "selective", a + "selective_ac_option": "op"}
        )
    elif share == 0:
        s.tell("recompute_layers", {a + "mode": "none"})
    elif every == 1:
        s.tell("recompute_layers", {a + "mode": "full"})
    else:
        s.tell("recompute_layers", {a + "mode": "selective", a + "selective_ac_option": str(every)})
    s.either("offload", None if s["offload"] else {}, "activations stay on the device")
    if not by_operator:
        shape.leave_parts(s, "parts of layers are recomputed by operator, in all layers")
    if share and abs(share - 1.0 / every) > 1e-9:
        s.leave(
            "recompute_layers",
            f"recomputed is one layer in {every}, the next share above {share:.3g}",
        )
    shape.recomputed_end(
        s, not shape.is_mixture(s), "checkpoints end once the backward pass has what it needs"
    )
    core = s["recompute_attention"]
    why = "the core of attention alone is not recomputed; kernels are fused"
    s.either("recompute_attention", {} if not core or share == 1 else None, why)
    s.either("flash", {} if s["flash"] else None, "attention runs in fused kernels")
    shape.buckets(s, 0.0, "buckets of gradients have one size, whatever their group")
    shape.copies(s, True, "sums over replicas run beside the backward pass")
    shape.launched(
        s,
        False,
        False,
        (
            "gradients are added up by kernels of their own, and one kernel does the products of "
            "all "
            "experts"
        ),
    )


def _precision(sheet: Sheet) -> None:
    s, words = sheet, sheet.job.precision.partition("-")[0].lower()
    s.settings |= {
        "training.mixed_precision_param": "bfloat16",
        "training.mixed_precision_reduce": "float32",
        "compile.enable": True,
    }
    recipes: dict[str, dict[str, Setting]] = {
        "fp8": {
            "model.converters": ["quantize.linear.float8"],
            "quantize.linear.float8.recipe_name": "tensorwise",
        },
        "mxfp8": {
            "model.converters": ["quantize.linear.mx"],
            "quantize.linear.mx.recipe_name": "mxfp8_cublas",
        },
    }
    if words == "fp8" and s["gather_bytes"] == 1:
        recipes["fp8"]["quantize.linear.float8.enable_fsdp_float8_all_gather"] = True
    narrow = s["operand_bytes"] < 2
    told = recipes.get(words) if narrow else {} if words == "bf16" else None
    s.either(
        "operand_bytes",
        told,
        f"products run in bfloat16, float8 or mxfp8, not in {words}",
    )
    current = s["scale_passes"] > 0 or words == "mxfp8"
    s.either(
        "scale_passes",
        {} if current or not narrow else None,
        "scales are those of the tensor itself, read before it is cast",
    )
    s.either(
        "wide_layers",
        {} if not s["wide_layers"] else None,
        "modules are kept in 16 bits by name (filter_fqns), not by share",
    )
    same = s["gather_bytes"] == 2 or (s["gather_bytes"] == 1 and words == "fp8")
    s.either(
        "gather_bytes", {} if same else None, "weights are gathered in 2 bytes, or in 1 with float8"
    )
    both = s["weight_bytes"] + s["optimizer_bytes"] == 12
    why = (
        "one 4-byte copy of the weights and two 4-byte moments are stored, sharded: 12 bytes per "
        "parameter in all"
    )
    s.either("weight_bytes optimizer_bytes", {} if both else None, why)
    s.either(
        "gradient_bytes", {} if s["gradient_bytes"] == 4 else None, "gradients are kept in 4 bytes"
    )
    same = s["reduce_bytes"] == 4
    s.either(
        "reduce_bytes",
        {} if same else None,
        "gradients are reduced in 4 bytes (mixed_precision_reduce knows no other)",
    )


def _overlap(sheet: Sheet) -> None:
    s, p = sheet, "parallelism."
    s.tell(
        "overlap_tp",
        {p + "enable_async_tensor_parallel": bool(s["overlap_tp"])} if s["tp"] > 1 else {},
    )
    s.either(
        "cp_balanced",
        {} if s["cp"] == 1 or s["cp_balanced"] else None,
        "sequences are dealt out first with last by default",
    )
    rotate: dict[str, Setting] = {
        p + "context_parallel_rotate_method": "alltoall" if s["overlap_cp"] else "allgather"
    }
    s.tell("overlap_cp", rotate if s["cp"] > 1 else {})
    s.either(
        "overlap_dp", {} if s["overlap_dp"] or s["dp"] == 1 else None, "FSDP always prefetches"
    )
    s.either(
        "overlap_pp",
        {} if s["overlap_pp"] or s["pp"] == 1 else None,
        "sends between stages always run beside compute",
    )


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
