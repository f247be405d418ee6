"""Matrix products M×K · K×N: shapes of real models and log-spaced ones, at each precision."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp

from calibration.collect.kinds.benchmark import Benchmark, column
from calibration.collect.machine import Machine
from calibration.collect.program import DTYPES, Program, item_bytes, random_array, sets
from dmodel.coefficients import Coefficients
from dmodel.cost.compute import matmul_time
from dmodel.errors import InputError
from dmodel.records import Cluster
from dmodel.tables import Matmuls
from dmodel.types import Array


class Matmul(NamedTuple):
    """One product: sizes [count], precision of the operands."""

    m: int
    n: int
    k: int
    dtype: str = "bf16"


RESULT = {"int8": "int32", "fp8": "bf16"}
"""Type of the result where it is not the operands'."""

Widths = tuple[int, int, int, int]
"""Width, MLP width, columns of QKV and vocabulary of a model."""

SMALL: Widths = (768, 3072, 768 + 2 * 768, 50257)
LARGE: list[Widths] = [
    (2048, 8192, 2048 + 2 * 512, 128256),
    (4096, 14336, 4096 + 2 * 1024, 128256),
    (8192, 28672, 8192 + 2 * 1024, 128256),
    (12288, 49152, 3 * 12288, 50257),
]
"""Those of GPT-2; of Llama 3.2 1B, Llama 3 8B and 70B, and GPT-3 175B."""


def from_models(models: list[Widths], rows: list[int]) -> list[tuple[int, int, int]]:
    """The products (M, N, K) of one layer and of the head: QKV, projection, up, down, logits."""
    found = []
    for (h, f, qkv, vocab), m in product(models, rows):
        found += [(m, qkv, h), (m, h, h), (m, f, h), (m, h, f), (m, vocab, h)]
    return found


def log_spaced(rows: list[int], widths: list[int]) -> list[tuple[int, int, int]]:
    """All M of `rows` with all N and K of `widths`."""
    return [(m, n, k) for m in rows for n in widths for k in widths]


def grid(machine: Machine) -> list[Matmul]:
    """Products worth measuring, within an eighth of the memory, and on a processor within a
    second."""
    if machine.is_cpu:
        shapes = from_models([SMALL], [64, 512]) + log_spaced([32, 256, 1024], [128, 512, 1024])
    else:
        shapes = from_models(LARGE, [2048, 8192]) + log_spaced(
            [16, 128, 1024, 8192], [256, 1024, 4096, 16384]
        )
    tasks = [
        Matmul(*shape, dtype) for dtype, shape in product(machine.precisions, dict.fromkeys(shapes))
    ]
    return [t for t in tasks if _fits(t, machine)]


def _fits(p: Matmul, machine: Machine) -> bool:
    most = 5e9 if machine.is_cpu else 1e16
    return _bytes(p) < machine.memory_bytes / 8 and 2.0 * p.m * p.n * p.k < most


def _bytes(p: Matmul) -> float:
    return (
        item_bytes(p.dtype) * (p.m * p.k + p.k * p.n)
        + item_bytes(RESULT.get(p.dtype, p.dtype)) * p.m * p.n
    )


def build(p: Matmul, machine: Machine) -> Program:
    """Random operands that rotate."""
    if p.dtype not in DTYPES or p.dtype == "int32":
        raise InputError(
            f"matmul: dtype: expected one of {', '.join(d for d in DTYPES if d != 'int32')}, "
            "got "
            f"{p.dtype!r}"
        )
    result = DTYPES[RESULT.get(p.dtype, p.dtype)]
    precision = {
        "tf32": jax.lax.DotAlgorithmPreset.TF32_TF32_F32,
        "fp32": jax.lax.Precision.HIGHEST,
    }.get(p.dtype)

    def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(a, b, precision=precision, preferred_element_type=result)

    n = sets(_bytes(p), machine)
    inputs = [
        (random_array((p.m, p.k), p.dtype, 2 * i), random_array((p.k, p.n), p.dtype, 2 * i + 1))
        for i in range(n)
    ]
    return Program(
        jax.jit(multiply), inputs, work={"flops": 2.0 * p.m * p.n * p.k, "bytes": _bytes(p)}
    )


def predict(ps: Sequence[Matmul], system: Cluster, c: Coefficients) -> Array:
    """The model's time of the product, plus what launching it takes [s]."""
    rows, columns, inner = (column(ps, name)[None] for name in ("m", "n", "k"))
    products = Matmuls(rows=rows, columns=columns, inner=inner, copies=jnp.ones_like(rows))
    operand = item_bytes(ps[0].dtype)
    rate = system.chip.flops_per_s * (
        c.low_precision_efficiency if operand < 2 else jnp.ones(len(ps))
    )
    return (
        matmul_time(products, jnp.asarray(rate)[None], float(operand), system.chip, c)[0]
        + c.launch * system.chip.kernel_latency_s
    )


BENCHMARK = Benchmark(Matmul, build, grid, predict)
