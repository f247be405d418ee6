"""What is measured: shapes, batches and settings of one device's training step."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """One training step on one device (counts).

    Attributes:
      name: unique. style: "llama" (RMSNorm, rotary positions, SwiGLU, no biases) or "gpt"
      (LayerNorm, learned positions, GELU, biases). n_layers, d_model, d_ff, n_heads, n_kv_heads,
      head_dim, vocab, seq_len, micro_batch: shape and batch.
      attention: "flash" (FlashAttention-2 of PyTorch), "cudnn" (fused, of cuDNN) or "none" (scores
      through memory, softmax in fp32). compiled: each layer and the loss by torch.compile.
      recompute: every layer again in the backward pass.
      adapters: rank of low-rank adapters on every product of a layer, whose weights are frozen; 0 =
        none, all is trained.
      dropout: on attention's and the MLP's results, and on probabilities where attention is "none".
      n_experts, top_k: of every layer, by grouped products; 0 = dense.
    """

    name: str
    style: str = "llama"
    n_layers: int = 4
    d_model: int = 4096
    d_ff: int = 14336
    n_heads: int = 32
    n_kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 128256
    seq_len: int = 8192
    micro_batch: int = 1
    attention: str = "cudnn"
    compiled: bool = False
    recompute: bool = False
    adapters: int = 0
    dropout: float = 0.0
    n_experts: int = 0
    top_k: int = 0


LLAMA = Case("llama-3-8b")
GPT = Case(
    "gpt-1b",
    style="gpt",
    n_layers=8,
    d_model=2048,
    d_ff=8192,
    n_heads=16,
    n_kv_heads=16,
    vocab=50304,
    seq_len=2048,
    micro_batch=4,
    attention="flash",
)
SMALL = Case(
    "gpt-2",
    style="gpt",
    n_layers=12,
    d_model=768,
    d_ff=3072,
    n_heads=12,
    n_kv_heads=12,
    head_dim=64,
    vocab=50304,
    seq_len=1024,
    attention="flash",
)
WIDE = Case("llama-3-70b", n_layers=2, d_model=8192, d_ff=28672, n_heads=64, vocab=32000)
MIXTRAL = Case(
    "mixtral", n_layers=2, vocab=32000, seq_len=4096, micro_batch=2, n_experts=8, top_k=2
)
FINE = Case(
    "qwen3-30b-a3b",
    n_layers=4,
    d_model=2048,
    d_ff=768,
    n_kv_heads=4,
    vocab=32000,
    seq_len=4096,
    micro_batch=2,
    n_experts=128,
    top_k=8,
)


def _of(case: Case, what: str, **changes: object) -> Case:
    """The case with other settings, named after them."""
    return case._replace(name=f"{case.name}/{what}", **changes)  # type: ignore[arg-type]


def cases() -> list[Case]:
    """In the order in which they tell most: one thing changed at a time from a few bases, and each
    base without layers, whose difference from the base is what the layers take."""
    lengths = [(512, 16), (2048, 4), (16384, 1)]
    eager = [
        LLAMA,
        _of(LLAMA, "no-layers", n_layers=0),
        _of(LLAMA, "adapters", adapters=16),
        _of(LLAMA, "recompute", recompute=True),
        *(_of(LLAMA, f"s{s}", seq_len=s, micro_batch=b) for s, b in lengths),
        GPT,
        _of(GPT, "no-layers", n_layers=0),
        WIDE,
        _of(WIDE, "no-layers", n_layers=0),
        MIXTRAL,
        FINE,
        _of(FINE, "no-layers", n_layers=0, n_experts=0, top_k=0),
    ]
    more = [
        _of(LLAMA, "flash", attention="flash"),
        _of(GPT, "dropout", dropout=0.1),
        _of(GPT, "unfused", attention="none"),
        _of(GPT, "unfused-dropout", attention="none", dropout=0.1),
        *(_of(SMALL, f"b{b}", micro_batch=b) for b in (1, 4, 16)),
        _of(SMALL, "no-layers-b4", micro_batch=4, n_layers=0),
        _of(LLAMA, "t2048", seq_len=2048),
        _of(LLAMA, "t512", seq_len=512),
        _of(LLAMA, "adapters-s2048", adapters=16, seq_len=2048, micro_batch=4),
        _of(LLAMA, "s32768", seq_len=32768, recompute=True, n_layers=2, vocab=32000),
        _of(WIDE, "t2048", seq_len=2048),
        _of(GPT, "b1", micro_batch=1),
        _of(GPT, "b16", micro_batch=16),
        _of(MIXTRAL, "t2048", micro_batch=1, seq_len=2048),
        _of(MIXTRAL, "no-layers", n_layers=0, n_experts=0, top_k=0),
    ]
    compiled = [
        _of(LLAMA, "compiled", compiled=True),
        _of(LLAMA, "compiled-no-layers", compiled=True, n_layers=0),
        _of(LLAMA, "compiled-s2048", compiled=True, seq_len=2048, micro_batch=4),
        _of(GPT, "compiled", compiled=True),
        _of(LLAMA, "compiled-recompute", compiled=True, recompute=True),
        _of(SMALL, "compiled-b4", micro_batch=4, compiled=True),
        _of(LLAMA, "compiled-adapters", compiled=True, adapters=16),
    ]
    return eager + more + compiled
