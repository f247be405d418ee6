"""Flags of Megatron-LM for the model: shape, attention, experts."""

from __future__ import annotations

from dmodel.emit import shape
from dmodel.emit.sheet import Setting, Sheet, where, whole


def write(sheet: Sheet) -> None:
    """Tell the shape of the model."""
    s = sheet
    plain = {
        "num-layers": s["n_layers"],
        "hidden-size": s["d_model"],
        "num-attention-heads": s["n_heads"],
    }
    s.tell("n_layers d_model n_heads", plain)
    s.tell(
        "d_ff d_ff_dense gated_mlp",
        {"ffn-hidden-size": shape.dense_width(s), "swiglu": s["gated_mlp"] == 1},
    )
    groups: dict[str, Setting] = {
        "group-query-attention": True,
        "num-query-groups": s["n_kv_heads"],
    }
    s.tell("n_kv_heads", where(s["n_kv_heads"] != s["n_heads"], groups))
    s.tell("seq_len", {"seq-length": s["seq_len"], "max-position-embeddings": s["seq_len"]})
    s.tell("vocab", {"vocab-size": s["vocab"]})
    s.tell("tied_embeddings", {"untie-embeddings-and-output-weights": s["tied_embeddings"] == 0})
    if shape.is_latent(s):
        _latent(s)
    else:
        s.tell("kv_rank q_rank rope_dim head_dim", {"kv-channels": s["head_dim"]})
        shape.latent_only(s)
    _windows(s)
    s.tell("n_mtp", where(s["n_mtp"], {"mtp-num-layers": s["n_mtp"]}))


def _latent(sheet: Sheet) -> None:
    """Attention whose keys and values come from a latent."""
    s = sheet
    s.tell(
        "kv_rank q_rank rope_dim qk_extra head_dim",
        {
            "multi-latent-attention": True,
            "kv-lora-rank": s["kv_rank"],
            "qk-pos-emb-head-dim": s["rope_dim"],
            **where(s["q_rank"], {"q-lora-rank": s["q_rank"]}),
            "qk-head-dim": whole(s["head_dim"] + s["qk_extra"] - s["rope_dim"], "qk_extra"),
            "v-head-dim": s["head_dim"],
        },
    )


def _windows(sheet: Sheet) -> None:
    share, size = sheet["windowed"], sheet["window"]
    if share == 0:
        sheet.tell("windowed window")
        return
    every = 1.0 / (1.0 - share) if share < 1 else 0.0
    if abs(every - round(every)) > 1e-6:
        sheet.leave(
            "windowed",
            f"--window-attn-skip-freq takes one whole layer in N; {share:g} of the layers is "
            "no such share",
        )
    else:
        sheet.tell("windowed", where(every, {"window-attn-skip-freq": round(every)}))
    sheet.tell("window", {"window-size": f"{size - 1:g},0"})


EXPERTS = (
    "n_experts top_k n_shared_experts expert_rank n_dense_layers ep etp merge_copies overlap_ep"
)
"""Fields that a dense model has nothing to say of."""


def write_experts(sheet: Sheet) -> None:
    """Tell experts, and how tokens come to them."""
    s = sheet
    if shape.leave_without_experts(s, EXPERTS):
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
    s.tell("n_shared_experts", where(shared, {"moe-shared-expert-intermediate-size": shared}))
    s.tell("expert_rank", where(s["expert_rank"], {"moe-latent-size": s["expert_rank"]}))
    dense = s["n_dense_layers"]
    pattern = f"([0]*{dense:g}+[1]*{s['n_layers'] - dense:g})"
    s.tell("n_dense_layers", where(dense, {"moe-layer-freq": pattern}))
    s.tell(
        "ep etp", {"expert-model-parallel-size": s["ep"], "expert-tensor-parallel-size": s["etp"]}
    )
    merged: dict[str, Setting] = {"moe-token-dispatcher-type": "flex", "moe-enable-deepep": True}
    s.tell(
        "merge_copies", merged if s["merge_copies"] else {"moe-token-dispatcher-type": "alltoall"}
    )
    _overlap_experts(s)


def _overlap_experts(sheet: Sheet) -> None:
    """The exchange of tokens beside compute."""
    if not sheet["overlap_ep"] or sheet["ep"] == 1:
        sheet.tell("overlap_ep")
        return
    sheet.keeps(
        "overlap_ep",
        sheet["ep"] > 1 and _can_hide_exchange(sheet),
        "overlapping the exchange needs interleaved stages where pp > 1, no full "
        "recomputation and no MTP heads; it stays exposed",
        {"overlap-moe-expert-parallel-comm": True},
    )


def _can_hide_exchange(sheet: Sheet) -> bool:
    """Whether stages, recomputation and heads let the exchange run beside compute."""
    chunks = sheet["pp"] == 1 or sheet["interleave"] > 1
    return chunks and sheet["recompute_layers"] == 0 and not sheet["n_mtp"]
