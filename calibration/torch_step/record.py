"""A case as the model's records."""

from __future__ import annotations

from calibration.torch_step.cases import Case
from dmodel.catalog.shapes import decoder
from dmodel.records import Model, Plan


def transformer(case: Case) -> Model:
    """Its shape; a case without layers has one here, whose time is not to be counted. Adapters: on
    all seven products of a layer."""
    c = case
    queries, keys = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    adapters = {
        "trainable": 0.0,
        "first_adapters": 5.0,
        "first_adapted": float(queries + 2 * keys + 2 * c.d_ff),
        "last_adapters": 2.0,
        "last_adapted": float(queries + c.d_ff),
    }
    return decoder(
        n_layers=float(max(c.n_layers, 1)),
        d_model=float(c.d_model),
        d_ff=float(c.d_ff),
        gated_mlp=float(c.style == "llama"),
        n_heads=float(c.n_heads),
        n_kv_heads=float(c.n_kv_heads),
        head_dim=float(c.head_dim),
        vocab=float(c.vocab),
        seq_len=float(c.seq_len),
        n_experts=float(max(c.n_experts, 1)),
        top_k=float(max(c.top_k, 1)),
        **(adapters if c.adapters else {}),
    )


def plan(case: Case) -> Plan:
    """How it runs: one device, weights, gradients and moments in bf16; one micro-batch, whose
    gradients add to nothing. PyTorch's own operations turn queries and keys, and its checkpoints
    end early."""
    c = case
    return Plan.of(
        micro_batch=float(c.micro_batch),
        dp=1.0,
        global_batch=float(c.micro_batch),
        flash=float(c.attention != "none"),
        recompute_layers=float(c.recompute),
        recompute_last=0.0,
        weight_bytes=2.0,
        gradient_bytes=2.0,
        optimizer_bytes=4.0,
        fused_sums=1.0,
        split_rotary=float(c.style == "llama" and not c.compiled),
    )
