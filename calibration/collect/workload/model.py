"""The decoder transformer in Flax: modules that see one device's share; with an unsharded spec they
are the whole model.

Residual layers of RMSNorm, grouped-query attention with rotary positions, and a gated or plain MLP
or routed experts. Tensors that the backward pass reads carry names, from which `policy` chooses
what to keep.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from calibration.collect.workload import mesh
from calibration.collect.workload.attention import attend
from calibration.collect.workload.experts import combine, dispatch
from calibration.collect.workload.spec import WorkloadSpec

KEPT = (
    "norm",
    "query",
    "key",
    "value",
    "mixed",
    "residual",
    "gate",
    "up",
    "activation",
    "expert_in",
    "expert_out",
)
"""What products and elementwise functions of a layer read again in the backward pass."""


def policy(spec: WorkloadSpec) -> Any:
    """What the backward pass finds in memory besides the input of each layer; gathered parameters
    never are, they are gathered again."""
    if spec.remat == "full":
        return jax.checkpoint_policies.nothing_saveable
    scores = ("scores",) if spec.remat == "none" and spec.attention == "none" else ()
    return jax.checkpoint_policies.save_only_these_names(*KEPT, *scores)


def dtype_of(spec: WorkloadSpec) -> Any:
    """The type of activations and matmul operands."""
    return jnp.bfloat16 if spec.precision == "bf16" else jnp.float32


def _normal(fan_in: int) -> Any:
    return nn.initializers.normal(fan_in**-0.5, jnp.float32)


class Norm(nn.Module):
    """RMSNorm in fp32."""

    spec: WorkloadSpec

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("norm", nn.initializers.ones, (self.spec.d_model,), jnp.float32)
        wide = x.astype(jnp.float32)
        unit = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
        return checkpoint_name(
            (unit * scale.astype(jnp.float32)[None, None, :]).astype(x.dtype), "norm"
        )


def rotate(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rotary embedding of `[b, t, heads, e]` at positions `[t]` (Su et al. 2021), in fp32."""
    half = x.shape[-1] // 2
    frequency = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = (positions.astype(jnp.float32)[:, None] * frequency[None, :])[None, :, None, :]
    first, second = jnp.split(x.astype(jnp.float32), 2, -1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(
        x.dtype
    )


class Attention(nn.Module):
    """Causal grouped-query attention on this rank's heads and tokens."""

    spec: WorkloadSpec

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        s = self.spec
        h, e, a, g = s.d_model, s.head_dim, s.n_heads // s.tensor, s.n_kv_heads // s.tensor
        weight = {
            n: self.param(n, _normal(h), (h, k, e), jnp.float32)
            for n, k in (("query", a), ("key", g), ("value", g))
        }
        projection = self.param("projection", _normal(s.n_heads * e), (a, e, h), jnp.float32)
        x = mesh.enter_tensor(s, x)
        q, k, v = (jnp.einsum("bth,hae->btae", x, w) for w in weight.values())
        first = mesh.index(s, "context") * x.shape[1]
        positions = first + jnp.arange(x.shape[1], dtype=jnp.int32)
        q, k = (
            checkpoint_name(rotate(q, positions), "query"),
            checkpoint_name(rotate(k, positions), "key"),
        )
        mixed = attend(s, q, k, checkpoint_name(v, "value"), positions)
        return mesh.leave_tensor(
            s, jnp.einsum("btae,aeh->bth", checkpoint_name(mixed, "mixed"), projection)
        )


def _activate(spec: WorkloadSpec, up: jax.Array, gate: jax.Array | None) -> jax.Array:
    up = checkpoint_name(up, "up")
    bent = jax.nn.gelu(up) if gate is None else jax.nn.silu(checkpoint_name(gate, "gate")) * up
    return checkpoint_name(bent, "activation")


class MLP(nn.Module):
    """SwiGLU, or GELU with two matrices, on this rank's columns."""

    spec: WorkloadSpec

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        s = self.spec
        h, f = s.d_model, s.d_ff // s.tensor
        up = self.param("up", _normal(h), (h, f), jnp.float32)
        gate = self.param("gate", _normal(h), (h, f), jnp.float32) if s.gated else None
        down = self.param("down", _normal(s.d_ff), (f, h), jnp.float32)
        x = mesh.enter_tensor(s, x)
        bent = _activate(s, x @ up, None if gate is None else x @ gate)
        return mesh.leave_tensor(s, bent @ down)


class Experts(nn.Module):
    """Routed experts (top-k, places by capacity), those of this rank; their columns are split as an
    MLP's are."""

    spec: WorkloadSpec

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        s = self.spec
        h, f, local = s.d_model, s.d_ff // s.tensor, s.n_experts // s.expert
        router = self.param("router", _normal(h), (h, s.n_experts), jnp.float32)
        up = self.param("expert_up", _normal(h), (local, h, f), jnp.float32)
        gate = (
            self.param("expert_gate", _normal(h), (local, h, f), jnp.float32) if s.gated else None
        )
        down = self.param("expert_down", _normal(s.d_ff), (local, f, h), jnp.float32)
        # split over the sequence, ranks of tensor share the tokens out and gather visits; else each
        # dispatches them all
        sent, routes = dispatch(s, x, router)
        inner = mesh.gather_visits(s, checkpoint_name(mesh.to_experts(s, sent), "expert_in"))
        bent = _activate(
            s,
            jnp.einsum("eph,ehf->epf", inner, up),
            None if gate is None else jnp.einsum("eph,ehf->epf", inner, gate),
        )
        back = mesh.from_experts(s, mesh.scatter_visits(s, jnp.einsum("epf,efh->eph", bent, down)))
        home = combine(checkpoint_name(back, "expert_out"), routes, x)
        return home if s.sequence_parallel else mesh.leave_tensor(s, home)


class Layer(nn.Module):
    """x + attention(norm x), then + MLP(norm x)."""

    spec: WorkloadSpec

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        s = self.spec
        with jax.named_scope("attention"):
            x = checkpoint_name(
                x + Attention(s, name="attention")(Norm(s, name="before_attention")(x)), "residual"
            )
        with jax.named_scope("mlp"):
            inner = MLP(s, name="mlp") if s.n_experts == 1 else Experts(s, name="mlp")
            return x + inner(Norm(s, name="before_mlp")(x))


def init_params(spec: WorkloadSpec, key: jax.Array) -> Any:
    """All parameters in fp32, unsharded: `layers` with a leading axis of layers, `embedding`,
    `ends` (last norm and head)."""
    whole = spec.on_one_device()
    one, *keys = jax.random.split(key, spec.n_layers + 3)
    x = jnp.zeros((1, spec.expert_group if spec.n_experts > 1 else 2, spec.d_model), jnp.float32)
    layers = jax.vmap(lambda k: Layer(whole).init(k, x)["params"])(jnp.stack(keys[: spec.n_layers]))
    table = nn.initializers.normal(spec.d_model**-0.5, jnp.float32)
    ends = {"norm": jnp.ones(spec.d_model, jnp.float32)}
    shape = (spec.vocab, spec.d_model)
    if not spec.tied:
        ends["head"] = table(keys[-2], shape, jnp.float32)
    return {
        "layers": layers,
        "embedding": {"embedding": table(one, shape, jnp.float32)},
        "ends": ends,
    }


def run_layers(spec: WorkloadSpec, layers: Any, x: jax.Array) -> jax.Array:
    """All layers of this stage, one after the other, by a scan over their parameters; each is
    gathered when its turn comes."""
    layer = Layer(spec)

    def one(x: jax.Array, params: Any) -> tuple[jax.Array, None]:
        whole = mesh.gather(spec, params, dtype_of(spec), x)
        return layer.apply({"params": whole}, x), None  # type: ignore[return-value]

    # inside a scan the forward and backward loops are apart anyway: nothing to keep common
    # subexpressions from
    kept = jax.checkpoint(one, policy=policy(spec), prevent_cse=spec.unroll)
    with jax.named_scope("layers"):
        return lax.scan(kept, x, layers, unroll=spec.unroll)[0]
