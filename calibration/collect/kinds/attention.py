"""The attention core, forward and backward, causal: fused kernels where the platform has them, and
through memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp

from calibration.collect.kinds.benchmark import Benchmark, column
from calibration.collect.machine import Machine
from calibration.collect.program import DTYPES, Program, item_bytes, random_array, sets
from calibration.collect.runner import Unavailable
from dmodel.coefficients import Coefficients
from dmodel.cost.compute import attention_passes
from dmodel.errors import InputError
from dmodel.records import Cluster
from dmodel.types import Array


class Attention(NamedTuple):
    """One causal attention core. direction: fwd or bwd (the gradient alone). kernel: flash (fused)
    or none (scores go through memory)."""

    batch: int
    seq_len: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dtype: str = "bf16"
    direction: str = "fwd"
    kernel: str = "none"


Core = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def grid(machine: Machine) -> list[Attention]:
    """Head sizes, sequence lengths and grouped heads of real models; scores within an eighth of the
    memory."""
    batches, heads, widths = SHAPES_OF_CPU if machine.is_cpu else SHAPES
    kinds = (("fp32", "none"), ("bf16", "none"))
    if not machine.is_cpu:
        kinds = (("bf16", "flash"), ("bf16", "none"))
    tasks = [
        Attention(*batch, *grouped, width, dtype, way, kernel)
        for (dtype, kernel), batch, grouped, width, way in product(
            kinds, batches, heads, widths, ("fwd", "bwd")
        )
    ]
    return [t for t in tasks if t.kernel == "flash" or _scores(t) < machine.memory_bytes / 8]


SHAPES_OF_CPU = (((1, 128), (1, 512)), ((4, 4), (8, 2)), (32, 64))
SHAPES = (((8, 1024), (4, 4096), (1, 16384)), ((32, 32), (32, 8)), (64, 128))
"""(batch, sequence length), (heads, heads of keys and values), width of a head."""


def _scores(p: Attention) -> float:
    """Bytes of the scores in fp32."""
    return 4.0 * p.batch * p.n_heads * p.seq_len**2


def _flops(p: Attention) -> float:
    """FLOPs of the causal half: two products forward; backward four, with the scores once more five
    when fused (Dao 2023)."""
    forward = 2.0 * p.batch * p.seq_len**2 * p.n_heads * p.head_dim
    return forward * (1.0 if p.direction == "fwd" else 2.5 if p.kernel == "flash" else 2.0)


def _core(p: Attention, machine: Machine) -> Core:
    """(q, k, v) → output, all `[batch, seq_len, heads, head_dim]`.

    Raises:
      Unavailable: no fused kernel on this platform.
    """
    if p.kernel == "none":
        return lambda q, k, v: jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation="xla"
        )
    if machine.platform == "gpu":
        return lambda q, k, v: jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation="cudnn"
        )
    if machine.platform == "tpu":
        return _tpu_kernel(p)
    raise Unavailable(f"no fused attention kernel on {machine.platform}")


def _tpu_kernel(p: Attention) -> Core:
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    def core(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        groups = p.n_heads // p.n_kv_heads
        heads_first = [
            jnp.swapaxes(x, 1, 2) for x in (q, jnp.repeat(k, groups, 2), jnp.repeat(v, groups, 2))
        ]
        return jnp.swapaxes(
            flash_attention(*heads_first, causal=True, sm_scale=p.head_dim**-0.5), 1, 2
        )

    return core


def build(p: Attention, machine: Machine) -> Program:
    """Random q, k and v that rotate; backward, with what the forward pass kept."""
    _check(p)
    core = _core(p, machine)
    heads = (p.n_heads, p.n_kv_heads, p.n_kv_heads)
    shapes = [(p.batch, p.seq_len, n, p.head_dim) for n in heads]
    kept = (
        item_bytes(p.dtype) * p.batch * p.seq_len * p.head_dim * (2 * p.n_heads + 2 * p.n_kv_heads)
    )
    inputs = [
        tuple(random_array(s, p.dtype, 4 * i + j) for j, s in enumerate(shapes))
        for i in range(sets(kept + _held(p), machine))
    ]
    work = {"flops": _flops(p), "bytes": float(kept)}
    if p.direction == "fwd":
        return Program(jax.jit(core), inputs, work=work)
    forward = jax.jit(lambda q, k, v: jax.vjp(core, q, k, v)[1])
    slope = random_array(shapes[0], p.dtype, 3).astype(DTYPES[p.dtype])
    return Program(
        jax.jit(lambda pull, g: pull(g)), [(forward(*x), slope) for x in inputs], work=work
    )


def _held(p: Attention) -> float:
    """Bytes of the scores that a backward pass reads."""
    return _scores(p) if p.kernel == "none" and p.direction == "bwd" else 0


WORDS = {
    "kernel": ("flash", "none"),
    "direction": ("fwd", "bwd"),
    "dtype": ("bf16", "fp16", "fp32"),
}


def _check(p: Attention) -> None:
    if any(getattr(p, name) not in allowed for name, allowed in WORDS.items()):
        raise InputError(
            "attention: expected kernel flash or none, direction fwd or bwd, dtype bf16, fp16 or "
            f"fp32; got {tuple(p)}"
        )
    if p.n_heads % p.n_kv_heads:
        raise InputError(
            f"attention: n_heads = {p.n_heads} is not a multiple of n_kv_heads = {p.n_kv_heads}"
        )


def predict(ps: Sequence[Attention], system: Cluster, c: Coefficients) -> Array:
    """The model's time of the core, forward; backward with 2.5 × the products when fused, else 2 ×
    [s]."""
    fused, forward = float(ps[0].kernel == "flash"), ps[0].direction == "fwd"
    scores, head = (
        column(ps, "batch") * column(ps, "n_heads") * column(ps, "seq_len") ** 2,
        column(ps, "head_dim"),
    )
    flops = 4.0 * scores * head * (1.0 - 0.5 * fused)
    passes = attention_passes(
        flops, fused * flops / (4.0 * head), 13.0 * scores * (1.0 - fused), fused, system.chip, c
    )
    return (
        passes.forward if forward else passes.backward
    ) + c.launch * system.chip.kernel_latency_s


BENCHMARK = Benchmark(Attention, build, grid, predict)
