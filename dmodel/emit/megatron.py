"""Flags of Megatron-LM.

Names and rules as in NVIDIA/Megatron-LM, `megatron/training/arguments.py` at commit
000c4ac24f61159c138b0975def722c65245983c (autumn 2025, core 0.15), read on 2026-11-21:
`_add_network_size_args`, `_add_training_args`, `_add_distributed_args`, `_add_moe_args`,
`_add_mla_args`, `_add_mixed_precision_args`, `_add_transformer_engine_args` and the checks of
`validate_args`; of `TransformerConfig.__post_init__` that key/value groups and heads are multiples
of tp, and what overlapping the exchange of experts needs.
"""

from __future__ import annotations

from dmodel.emit import megatron_memory, megatron_model, shape
from dmodel.emit.sheet import Setting, Sheet, where, whole

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


def write(sheet: Sheet) -> None:
    """Fill the sheet."""
    megatron_model.write(sheet)
    _degrees(sheet)
    megatron_model.write_experts(sheet)
    _sharding(sheet)
    shape.sharded_rounds(sheet, False, "sharded gradients are reduced after each micro-batch")
    megatron_memory.write(sheet)
    _overlap(sheet)
    shape.leave_what_no_launcher_knows(sheet)
    rules(sheet)


def _degrees(sheet: Sheet) -> None:
    s = sheet
    s.tell("dp")  # what the others leave of the processes
    s.tell(
        "tp cp pp sp",
        {
            "tensor-model-parallel-size": s["tp"],
            "pipeline-model-parallel-size": s["pp"],
            "context-parallel-size": s["cp"],
            "sequence-parallel": bool(s["sp"]) and s["tp"] > 1,
        },
    )
    s.tell(
        "micro_batch global_batch",
        {"micro-batch-size": s["micro_batch"], "global-batch-size": s["global_batch"]},
    )
    split = "in-pipeline-split"
    shape.lay_out(s, {f"account-for-embedding-{split}": True, f"account-for-loss-{split}": True})
    chunks: dict[str, Setting] = {"num-virtual-stages-per-pipeline-rank": s["interleave"]}
    s.tell("interleave", where(s["interleave"] > 1, chunks))
    schedule = s.values["schedule"]
    s.keeps(
        "schedule",
        s["pp"] == 1 or schedule in ("1f1b", "interleaved"),
        f"Megatron-LM runs 1F1B or interleaved 1F1B, not {schedule}",
    )
    s.either(
        "placement",
        ORDERS.get(tuple(s.values["placement"].split())),
        "ranks are ordered tp-cp-ep-dp-pp or, with --use-tp-pp-dp-mapping, tp-cp-ep-pp-dp",
    )


STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
"""ZeRO stage → what Megatron-FSDP shards."""


def _sharding(sheet: Sheet) -> None:
    copies, kept = _replicas(sheet), _keeps_weights(sheet)
    if kept and copies == 1 and _torch_can_shard(sheet):
        _torch_sharding(sheet)
        return
    sheet.tell("zero shard", _sharded(sheet["zero"], copies))
    sheet.keeps(
        "reshard",
        not kept,
        "Megatron-FSDP frees gathered weights after the forward pass; they are gathered again",
    )


def _replicas(sheet: Sheet) -> int:
    """Groups that hold the same shards."""
    sharded = sheet["zero"] and sheet["shard"] > 1
    return whole(sheet["dp"] / sheet["shard"], "dp / shard") if sharded else 1


def _keeps_weights(sheet: Sheet) -> bool:
    """Whether gathered weights are kept for the backward pass."""
    return sheet["zero"] == 3 and not sheet["reshard"]


def _torch_can_shard(sheet: Sheet) -> bool:
    return sheet["pp"] == 1 and sheet["ep"] == 1 and not sheet["tied_embeddings"]


def _torch_sharding(sheet: Sheet) -> None:
    """Of the two FSDPs only this one can keep weights after the forward pass."""
    settings: dict[str, Setting] = {
        "use-torch-fsdp2": True,
        "torch-fsdp2-no-reshard-after-forward": True,
        "no-gradient-accumulation-fusion": True,
        "ckpt-format": "torch_dist",
    }
    sheet.tell("zero shard reshard", settings)


def _sharded(stage: float, copies: int) -> dict[str, Setting]:
    """Settings of what is sharded, in so many copies."""
    replicas = where(copies > 1, {"num-distributed-optimizer-instances": copies})
    if not stage:
        return {}
    if stage < 2:
        return {"use-distributed-optimizer": True, **replicas}
    return {
        "use-megatron-fsdp": True,
        "no-gradient-accumulation-fusion": True,
        "ckpt-format": "fsdp_dtensor",
        "data-parallel-sharding-strategy": STRATEGIES[int(stage)],
        "use-distributed-optimizer": True,
        **replicas,
    }


def _overlap(sheet: Sheet) -> None:
    s = sheet
    _overlap_tensor(s)
    shape.balanced(s, "sequences are always dealt out, first chunk with last")
    s.keeps(
        "overlap_cp",
        s["cp"] == 1 or s["overlap_cp"],
        "the ring (--cp-comm-type p2p) always hides what it can",
        where(s["cp"] > 1, {"cp-comm-type": "p2p"}),
    )
    if "use-torch-fsdp2" in s.settings:
        s.keeps("overlap_dp", s["overlap_dp"], "FSDP always prefetches")
    else:
        _overlap_data(s)
    _overlap_pipeline(s)


def _overlap_tensor(sheet: Sheet) -> None:
    if sheet["tp"] == 1 or not sheet["overlap_tp"]:
        sheet.tell("overlap_tp")
        return
    sheet.keeps(
        "overlap_tp",
        sheet["sp"] and sheet["n_experts"] == 1,
        "--tp-comm-overlap needs --sequence-parallel and no experts; the exchange stays exposed",
        {"tp-comm-overlap": True},
    )


def _overlap_data(sheet: Sheet) -> None:
    s = sheet
    reduce: dict[str, Setting] = {
        "overlap-grad-reduce": True,
        **where(s["zero"], {"overlap-param-gather": True}),
    }
    s.tell("overlap_dp", where(s["overlap_dp"] and s["dp"] * s["cp"] > 1, reduce))


def _overlap_pipeline(sheet: Sheet) -> None:
    s = sheet
    if s["pp"] == 1:
        s.tell("overlap_pp")
    elif s["interleave"] > 1:
        s.tell("overlap_pp", where(not s["overlap_pp"], {"no-overlap-p2p-communication": True}))
    else:
        s.keeps(
            "overlap_pp",
            not s["overlap_pp"],
            "without interleaving, activations between stages are not sent behind compute",
        )


def rules(sheet: Sheet) -> None:
    """What `validate_args` and `TransformerConfig` refuse."""
    s = sheet
    shape.common_rules(s)
    _sequence_rules(s)
    shape.interleaving_rule(s)
    if s["interleave"] > 1:
        s.rule(
            s["pp"] > (1 if s["overlap_pp"] else 2),
            "interleaving needs pp > 1, and pp > 2 without overlapped sends",
        )
    if s["zero"] and s["shard"] > 1:
        s.divides(s["dp"], s["shard"], "dp is a multiple of the sharding group")
    _expert_rules(s)


def _sequence_rules(sheet: Sheet) -> None:
    s = sheet
    shape.context_rule(s)
    if s["sp"] and s["tp"] > 1:
        s.divides(
            s["seq_len"] / s["cp"],
            s["tp"],
            "tokens of a context-parallel rank are a multiple of tp, with sequence parallelism",
        )


def _expert_rules(sheet: Sheet) -> None:
    s = sheet
    half = s.job.precision == "fp16"
    s.rule(not (half and s["ep"] > 1), "expert parallelism is not offered in fp16")
    apart = s["pp"] > 1 and s["ep"] * s["etp"] not in (1, s["tp"] * s["cp"])
    s.rule(
        not (s.settings.get("use-tp-pp-dp-mapping") and apart),
        "with tp-pp-dp mapping, experts have as many data-parallel ranks as the rest: ep · etp "
        "= tp · cp",
    )
