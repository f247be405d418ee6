"""Settings of MaxText for the model: shape, attention, experts."""

from __future__ import annotations

from dmodel.emit import shape
from dmodel.emit.sheet import Setting, Sheet, where, whole


def write(sheet: Sheet) -> None:
    """Tell the shape of the model."""
    s = sheet
    s.tell(
        "n_layers d_model n_heads n_kv_heads head_dim vocab seq_len",
        {
            "base_num_decoder_layers": s["n_layers"],
            "base_emb_dim": s["d_model"],
            "base_num_query_heads": s["n_heads"],
            "base_num_kv_heads": s["n_kv_heads"],
            "head_dim": s["head_dim"],
            "vocab_size": s["vocab"],
            "max_target_length": s["seq_len"],
        },
    )
    words = ["silu", "linear"] if s["gated_mlp"] else ["gelu"]
    s.tell(
        "d_ff d_ff_dense gated_mlp",
        {"base_mlp_dim": shape.dense_width(s), "mlp_activations": words},
    )
    s.tell("tied_embeddings", {"logits_via_embedding": bool(s["tied_embeddings"])})
    _experts(s)
    _attention(s)
    s.tell("n_mtp", where(s["n_mtp"], {"mtp_num_layers": s["n_mtp"]}))


def _experts(sheet: Sheet) -> None:
    s = sheet
    experts: dict[str, Setting] = {
        "num_experts": s["n_experts"],
        "num_experts_per_tok": s["top_k"],
        "base_moe_mlp_dim": s["d_ff"],
        "shared_experts": s["n_shared_experts"],
        "first_num_dense_layers": s["n_dense_layers"],
    }
    s.tell("n_experts top_k n_shared_experts n_dense_layers", where(shape.is_mixture(s), experts))
    why = "experts read tokens at the width of the model"
    s.keeps("expert_rank", s["expert_rank"] == 0, why)


def _attention(sheet: Sheet) -> None:
    s = sheet
    if shape.is_latent(s):
        latent: dict[str, Setting] = {
            "attention_type": "mla",
            "q_lora_rank": s["q_rank"],
            "kv_lora_rank": s["kv_rank"],
            "qk_nope_head_dim": whole(s["head_dim"] + s["qk_extra"] - s["rope_dim"], "qk_extra"),
            "qk_rope_head_dim": s["rope_dim"],
            "v_head_dim": s["head_dim"],
        }
        s.tell("kv_rank q_rank rope_dim qk_extra", latent)
    else:
        s.tell("kv_rank q_rank rope_dim")
        shape.latent_only(s)
    local: dict[str, Setting] = {
        "attention_type": "local_sliding",
        "sliding_window_size": s["window"],
    }
    s.keeps(
        "window windowed",
        s["windowed"] in (0, 1),
        "which layers are windowed is part of decoder_block, not a share",
        where(s["windowed"], local),
    )
