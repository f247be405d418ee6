"""Kernels bound by memory: streams, the elementwise work of a layer, and the optimizer's update."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from calibration.collect.kinds.benchmark import Benchmark, column
from calibration.collect.machine import Machine
from calibration.collect.program import DTYPES, Program, item_bytes, random_array, sets
from dmodel.coefficients import Coefficients
from dmodel.cost.compute import optimizer_time, streaming_time
from dmodel.errors import InputError
from dmodel.records import Cluster
from dmodel.types import Array


class Stream(NamedTuple):
    """One pass over arrays of `nbytes` each. operation: read (sum), write (fill), scale, add or
    triad."""

    operation: str
    nbytes: int
    dtype: str = "bf16"


STREAM_KERNELS: dict[str, tuple[Callable[..., jax.Array], int, int]] = {
    "read": (lambda s, x: jnp.sum(x, dtype=jnp.float32), 1, 0),
    "write": (lambda s, x: jnp.broadcast_to(s, x.shape), 0, 1),
    "scale": (lambda s, x: s * x, 1, 1),
    "add": (lambda s, x, y: x + y, 2, 1),
    "triad": (lambda s, x, y: x + s * y, 2, 1),
}
"""Kernel, arrays that it reads and arrays that it writes. The scalar s is an argument, so that
nothing is known to the compiler."""


def stream_grid(machine: Machine) -> list[Stream]:
    """Sizes from within the cache to far beyond it."""
    powers = (16, 20, 24, 26) if machine.is_cpu else (16, 20, 23, 26, 28, 30)
    sizes = [2**p for p in powers if 2**p < machine.memory_bytes / 16]
    dtype = "fp32" if machine.is_cpu else "bf16"
    return [Stream(op, size, dtype) for op, size in product(STREAM_KERNELS, sizes)]


def build_stream(p: Stream, machine: Machine) -> Program:
    """Arrays that rotate."""
    if p.operation not in STREAM_KERNELS or p.dtype not in ("bf16", "fp16", "fp32"):
        raise InputError(
            f"memory: expected operation {', '.join(STREAM_KERNELS)} and dtype bf16, fp16 or "
            f"fp32; got {tuple(p)}"
        )
    kernel, reads, writes = STREAM_KERNELS[p.operation]
    shape = (max(p.nbytes // item_bytes(p.dtype), 1),)
    scalar = jnp.asarray(1.5, DTYPES[p.dtype])
    arrays = max(reads, 1)
    inputs = [
        (scalar, *(random_array(shape, p.dtype, arrays * i + j) for j in range(arrays)))
        for i in range(sets((arrays + writes) * p.nbytes, machine))
    ]
    return Program(jax.jit(kernel), inputs, work={"bytes": float((reads + writes) * p.nbytes)})


def predict_stream(ps: Sequence[Stream], system: Cluster, c: Coefficients) -> Array:
    """Bytes over the rate that streams reach, plus a launch [s]."""
    _, reads, writes = STREAM_KERNELS[ps[0].operation]
    return (
        streaming_time((reads + writes) * column(ps, "nbytes"), system.chip, c)
        + c.launch * system.chip.kernel_latency_s
    )


class Elementwise(NamedTuple):
    """Elementwise work on `[rows, width]` activations. operation: one of `ELEMENTWISE_KERNELS`."""

    operation: str
    rows: int
    width: int
    dtype: str = "bf16"


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root-mean-square norm, counted in fp32 as usual."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(
        x.dtype
    ) * scale[None]


def _norm_gradient(x: jax.Array, g: jax.Array) -> jax.Array:
    return jax.vjp(lambda v: rms_norm(v, jnp.ones(v.shape[-1], v.dtype)), x)[1](g)[0]


def _rotate(x: jax.Array, table: jax.Array) -> jax.Array:
    """Rotary embedding with a table of cosines and sines."""
    half = x.shape[-1] // 2
    left, right, c, s = x[:, :half], x[:, half:], table[:, :half], table[:, half:]
    return jnp.concatenate([left * c - right * s, left * s + right * c], -1)


def _cross_entropy(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return jax.scipy.special.logsumexp(wide, -1) - wide[:, 0]


ELEMENTWISE_KERNELS: dict[str, tuple[Callable[..., jax.Array], int, float]] = {
    "norm": (lambda x: rms_norm(x, jnp.ones(x.shape[-1], x.dtype)), 1, 2.0),
    "norm_backward": (_norm_gradient, 2, 3.0),
    "residual": (lambda x, y: x + y, 2, 3.0),
    "swiglu": (lambda x, y: jax.nn.silu(x) * y, 2, 3.0),
    "gelu": (jax.nn.gelu, 1, 2.0),
    "softmax": (lambda x: jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype), 1, 2.0),
    "rotary": (_rotate, 2, 3.0),
    "cross_entropy": (_cross_entropy, 1, 1.0),
}
"""Kernel, arrays that it takes, and passes over `[rows, width]` that it cannot do without."""


def elementwise_grid(machine: Machine) -> list[Elementwise]:
    """Widths of real models, tokens of small and of large micro-batches."""
    shapes = (
        [(256, 512), (1024, 1024)]
        if machine.is_cpu
        else [(2048, 4096), (8192, 4096), (8192, 8192), (8192, 28672)]
    )
    dtypes = ("fp32", "bf16") if machine.is_cpu else ("bf16",)
    return [
        Elementwise(op, *shape, dtype)
        for dtype in dtypes
        for op in ELEMENTWISE_KERNELS
        for shape in shapes
    ]


def build_elementwise(p: Elementwise, machine: Machine) -> Program:
    """Activations that rotate."""
    if p.operation not in ELEMENTWISE_KERNELS or p.dtype not in ("bf16", "fp16", "fp32"):
        raise InputError(
            f"elementwise: expected operation {', '.join(ELEMENTWISE_KERNELS)}, dtype bf16, "
            "fp16 "
            f"or fp32; got {tuple(p)}"
        )
    kernel, arrays, passes = ELEMENTWISE_KERNELS[p.operation]
    nbytes = item_bytes(p.dtype) * p.rows * p.width
    shape = (p.rows, p.width)
    n = sets((arrays + 1) * nbytes, machine)
    inputs = [
        tuple(random_array(shape, p.dtype, arrays * i + j) for j in range(arrays)) for i in range(n)
    ]
    return Program(jax.jit(kernel), inputs, work={"bytes": passes * nbytes})


def predict_elementwise(ps: Sequence[Elementwise], system: Cluster, c: Coefficients) -> Array:
    """Bytes that it cannot do without, times the traffic of real kernels, over the rate; plus a
    launch [s]."""
    p = ps[0]
    nbytes = (
        ELEMENTWISE_KERNELS[p.operation][2]
        * item_bytes(p.dtype)
        * column(ps, "rows")
        * column(ps, "width")
    )
    return (
        c.elementwise_traffic * streaming_time(nbytes, system.chip, c)
        + c.launch * system.chip.kernel_latency_s
    )


class Update(NamedTuple):
    """One AdamW step on `parameters` fp32 numbers in `leaves` arrays of equal size."""

    parameters: int
    leaves: int = 8


UPDATE_BYTES = 28.0
"""Per parameter: parameter and two moments read and written, gradient read, in fp32."""


def update_grid(machine: Machine) -> list[Update]:
    """From one layer to as much as a device's memory allows."""
    sizes = (2**16, 2**20, 2**23) if machine.is_cpu else (2**20, 2**24, 2**27, 2**29, 2**30)
    return [Update(n) for n in sizes if 5 * 4 * n < machine.memory_bytes / 2]


def build_update(p: Update, machine: Machine) -> Program:
    """Parameters and moments are carried along; gradients rotate."""
    size = math.ceil(p.parameters / p.leaves)
    rule = optax.adamw(1e-4, b1=0.9, b2=0.95, weight_decay=0.1)
    parameters = [random_array((size,), "fp32", i) for i in range(p.leaves)]
    state = (parameters, jax.jit(rule.init)(parameters))

    def step(state: Any, gradients: Any) -> tuple[Any, jax.Array]:
        parameters, moments = state
        updates, moments = rule.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), moments), gradients[0][:1]

    n = min(sets(4.0 * p.parameters, machine), 2)
    inputs = [
        ([random_array((size,), "fp32", 100 * i + j + 50) for j in range(p.leaves)],)
        for i in range(n)
    ]
    return Program(
        jax.jit(step, donate_argnums=0),
        inputs,
        state,
        work={"bytes": UPDATE_BYTES * size * p.leaves},
    )


def predict_update(ps: Sequence[Update], system: Cluster, c: Coefficients) -> Array:
    """The model's optimizer step, plus a launch for each array [s]."""
    launches = column(ps, "leaves") * c.launch * system.chip.kernel_latency_s
    return optimizer_time(column(ps, "parameters"), UPDATE_BYTES, system.chip, c) + launches


STREAMS = Benchmark(Stream, build_stream, stream_grid, predict_stream)
ELEMENTWISE = Benchmark(Elementwise, build_elementwise, elementwise_grid, predict_elementwise)
OPTIMIZER = Benchmark(Update, build_update, update_grid, predict_update)
