"""The decoder, as trainers in PyTorch write theirs: weights, gradients and moments in bf16, logits
and loss in fp32."""

from __future__ import annotations

import importlib
from typing import Any

from calibration.torch_step.cases import Case

torch: Any = importlib.import_module("torch")
nn, F = torch.nn, torch.nn.functional


class Linear(nn.Module):
    """A product, with a low-rank adapter beside it where the case has them: `x W + (x A) B`."""

    def __init__(self, case: Case, given: int, returned: int):
        super().__init__()
        self.frozen = nn.Linear(given, returned, bias=case.style == "gpt")
        self.down = nn.Linear(given, case.adapters, bias=False) if case.adapters else None
        self.up = nn.Linear(case.adapters, returned, bias=False) if case.adapters else None
        if case.adapters:
            self.frozen.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        """`[…, given]` → `[…, returned]`."""
        y = self.frozen(x)
        return y if self.down is None or self.up is None else y + 2.0 * self.up(self.down(x))


def _norm(case: Case) -> Any:
    return (
        nn.RMSNorm(case.d_model, eps=1e-5) if case.style == "llama" else nn.LayerNorm(case.d_model)
    )


class Attention(nn.Module):
    """Causal self-attention with grouped queries."""

    def __init__(self, case: Case):
        super().__init__()
        self.case = case
        self.q = Linear(case, case.d_model, case.n_heads * case.head_dim)
        self.k = Linear(case, case.d_model, case.n_kv_heads * case.head_dim)
        self.v = Linear(case, case.d_model, case.n_kv_heads * case.head_dim)
        self.out = Linear(case, case.n_heads * case.head_dim, case.d_model)

    def forward(self, x: Any, table: Any) -> Any:
        """`[b, s, h]` → `[b, s, h]`; table: cosines and sines `[2, s, e]` of the rotary
        embedding."""
        b, s, _ = x.shape
        q, k, v = (
            p(x).view(b, s, -1, self.case.head_dim).transpose(1, 2)
            for p in (self.q, self.k, self.v)
        )
        if self.case.style == "llama":
            q, k = (_rotated(y, table) for y in (q, k))
        return self.out(self._core(q, k, v).transpose(1, 2).reshape(b, s, -1))

    def _core(self, q: Any, k: Any, v: Any) -> Any:
        c = self.case
        if c.attention == "none":
            scores = (q @ k.transpose(-1, -2)) * c.head_dim**-0.5
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            shares = scores.masked_fill(hidden, -10000.0).float().softmax(-1).to(q.dtype)
            return F.dropout(shares, c.dropout, self.training) @ v
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=c.n_kv_heads != c.n_heads
        )


def _rotated(x: Any, table: Any) -> Any:
    left, right = x.chunk(2, -1)
    return x * table[0] + torch.cat((-right, left), -1) * table[1]


class Mlp(nn.Module):
    """SwiGLU with three products, or GELU with two."""

    def __init__(self, case: Case):
        super().__init__()
        self.up = Linear(case, case.d_model, case.d_ff)
        self.gate = Linear(case, case.d_model, case.d_ff) if case.style == "llama" else None
        self.down = Linear(case, case.d_ff, case.d_model)

    def forward(self, x: Any) -> Any:
        """`[b, s, h]` → `[b, s, h]`."""
        return self.down(
            F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        )


class Experts(nn.Module):
    """Routed SwiGLU experts by grouped products: tokens sorted by expert, weighted sums of what
    they return."""

    def __init__(self, case: Case):
        super().__init__()
        self.case = case
        e, h, f = case.n_experts, case.d_model, case.d_ff
        self.router = nn.Linear(h, e, bias=False)
        self.up, self.gate = (nn.Parameter(torch.randn(e, h, f) * h**-0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(e, f, h) * f**-0.5)

    def forward(self, x: Any) -> Any:
        """`[b, s, h]` → `[b, s, h]`."""
        flat = x.reshape(-1, x.shape[-1])
        shares, chosen = self.router(flat).float().softmax(-1).topk(self.case.top_k, -1)
        order = chosen.flatten().argsort(stable=True)
        # not bincount, for which the host waits
        ends = (
            torch.histc(chosen.flatten().float(), self.case.n_experts, 0, self.case.n_experts)
            .cumsum(0)
            .to(torch.int32)
        )
        given = flat[order // self.case.top_k]
        inner = F.silu(torch._grouped_mm(given, self.gate, offs=ends)) * torch._grouped_mm(
            given, self.up, offs=ends
        )
        returned = torch._grouped_mm(inner, self.down, offs=ends) * shares.flatten()[order].to(
            x.dtype
        ).unsqueeze(-1)
        return torch.zeros_like(flat).index_add(0, order // self.case.top_k, returned).view_as(x)


class Layer(nn.Module):
    """Norm, attention, residual; norm, MLP or experts, residual."""

    def __init__(self, case: Case):
        super().__init__()
        self.dropout = case.dropout
        self.before, self.between = _norm(case), _norm(case)
        self.attention = Attention(case)
        self.mlp = Experts(case) if case.n_experts else Mlp(case)

    def forward(self, x: Any, table: Any) -> Any:
        """`[b, s, h]` → `[b, s, h]`."""
        x = x + F.dropout(self.attention(self.before(x), table), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.between(x)), self.dropout, self.training)


class Decoder(nn.Module):
    """Embedding, layers, norm, logits, loss."""

    def __init__(self, case: Case):
        super().__init__()
        self.case = case
        self.embedding = nn.Embedding(case.vocab, case.d_model)
        self.positions = nn.Embedding(case.seq_len, case.d_model) if case.style == "gpt" else None
        self.layers = nn.ModuleList(Layer(case) for _ in range(case.n_layers))
        self.last, self.head = _norm(case), nn.Linear(case.d_model, case.vocab, bias=False)
        self.loss = torch.compile(_loss) if case.compiled else _loss
        if case.compiled:
            for layer in self.layers:
                layer.compile()
        if case.adapters:
            self._freeze()

    def _freeze(self) -> None:
        """Leave training to what layers hold besides their norms."""
        norms = [norm for layer in self.layers for norm in (layer.before, layer.between)]
        for part in (self.embedding, self.last, self.head, *norms):
            part.requires_grad_(False)

    def forward(self, tokens: Any, labels: Any, table: Any) -> Any:
        """Mean loss of `[b, s]` tokens."""
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight
        for layer in self.layers:
            again = torch.utils.checkpoint.checkpoint
            x = (
                again(layer, x, table, use_reentrant=False)
                if self.case.recompute
                else layer(x, table)
            )
        return self.loss(self.head(self.last(x)), labels)


def _loss(logits: Any, labels: Any) -> Any:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def table(case: Case, device: str) -> Any:
    """Cosines and sines of the rotary embedding, `[2, s, e]`."""
    rates = 500000.0 ** (
        -torch.arange(0, case.head_dim, 2, device=device, dtype=torch.float32) / case.head_dim
    )
    angles = torch.arange(case.seq_len, device=device, dtype=torch.float32)[:, None] * rates.repeat(
        2
    )
    return torch.stack((angles.cos(), angles.sin())).to(torch.bfloat16)
