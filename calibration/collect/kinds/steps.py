"""Whole training steps of the workload that comes with the package."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calibration.collect import workload
from calibration.collect.kinds.benchmark import Benchmark
from calibration.collect.machine import Machine
from calibration.collect.program import Program
from calibration.collect.runner import Unavailable
from calibration.collect.workload import WorkloadSpec
from calibration.collect.workload.spec import check
from dmodel.coefficients import Coefficients
from dmodel.errors import InputError
from dmodel.records import Cluster
from dmodel.step import memory_use, step_time
from dmodel.types import Array

LARGEST_SHARE = 0.7
"""Of a device's memory that a step may take by the model's count; the count leaves out what
compilers keep besides."""


def grid(machine: Machine) -> list[WorkloadSpec]:
    """Widths, depths, sequence lengths, batches, recomputation and layouts that fit the machine."""
    shapes = _shapes(_small() if machine.is_cpu else _large(), machine.is_cpu)
    first, *layouts = _layouts(machine.n_devices)
    # every shape on the first layout, every layout with the first few shapes
    specs = [shape._replace(**first) for shape in shapes]
    specs += [shape._replace(**layout) for layout, shape in product(layouts, shapes[:3])]
    return [s for s in dict.fromkeys(map(_divided, specs)) if _possible(s, machine)]


def _small() -> WorkloadSpec:
    return WorkloadSpec(
        2,
        128,
        512,
        n_heads=4,
        n_kv_heads=4,
        head_dim=32,
        vocab=512,
        seq_len=128,
        micro_batch=2,
        precision="fp32",
    )


def _large() -> WorkloadSpec:
    return WorkloadSpec(
        4,
        2048,
        8192,
        n_heads=16,
        n_kv_heads=16,
        head_dim=128,
        vocab=32000,
        seq_len=2048,
        micro_batch=2,
        attention="flash",
    )


def _shapes(base: WorkloadSpec, small: bool) -> list[WorkloadSpec]:
    """The base and what changes one or two things of it."""
    b = base
    wider = [_width(b, factor) for factor in ((0.5, 2) if small else (0.5, 2, 4))]
    deeper = _with(b, "n_layers", b.n_layers * 2, b.n_layers * 4)
    mixed = [_with(w._replace(n_layers=b.n_layers * 2), "micro_batch", 1, 4) for w in wider]
    other = "bf16" if b.precision == "fp32" else "fp32"
    return [
        b,
        *wider,
        *deeper,
        *_with(b, "seq_len", b.seq_len // 2, b.seq_len * 2, b.seq_len * 4),
        *_with(b, "micro_batch", 1, 4, 8),
        *_with(b, "n_microbatches", 2, 4),
        *_with(b, "remat", "selective", "full"),
        b._replace(gated=False),
        b._replace(n_kv_heads=b.n_kv_heads // 4),
        b._replace(vocab=b.vocab * 4),
        b._replace(attention="none"),
        *chain.from_iterable(mixed),
        b._replace(n_experts=8, top_k=2, d_ff=b.d_ff // 2),
        *(s._replace(precision=other) for s in (b, *wider, *deeper[:1])),
    ]


def _with(base: WorkloadSpec, name: str, *values: Any) -> list[WorkloadSpec]:
    """The base with each of some values of a field."""
    return [base._replace(**{name: value}) for value in values]


def _width(b: WorkloadSpec, factor: float) -> WorkloadSpec:
    """The base with other widths and as many heads as they hold."""
    heads = max(int(b.n_heads * factor), 1)
    return b._replace(
        d_model=int(b.d_model * factor), d_ff=int(b.d_ff * factor), n_heads=heads, n_kv_heads=heads
    )


def _layouts(n: int) -> list[dict[str, int | bool]]:
    """Ways to use n devices: data, fsdp, tensor (plain and sequence-parallel), pipeline, context,
    and pairs of them."""
    if n == 1:
        return [{}]
    found: list[dict[str, int | bool]] = [
        {"data": n},
        {"fsdp": n, "zero": 3},
        {"pipeline": n, "n_microbatches": 2 * n},
    ]
    if n <= 8:
        found += [{"tensor": n}, {"tensor": n, "sequence_parallel": True}, {"context": n}]
    for part in (2, 4):
        if n % part == 0 and n > part:
            rest = n // part
            found += [{"data": rest, "tensor": part}, {"fsdp": rest, "zero": 3, "tensor": part}]
            found += [{"data": rest, "pipeline": part, "n_microbatches": 2 * part}]
    return found


def _divided(s: WorkloadSpec) -> WorkloadSpec:
    """Layers and heads enough for the layout."""
    layers = -(-s.n_layers // s.pipeline) * s.pipeline
    if s.n_kv_heads % s.tensor == 0:
        return s._replace(n_layers=layers)
    heads = -(-s.n_heads // s.tensor) * s.tensor
    return s._replace(n_layers=layers, n_heads=heads, n_kv_heads=heads)


def _possible(s: WorkloadSpec, machine: Machine) -> bool:
    """Whether the step can be built and its memory, by the model, fits."""
    if s.devices != machine.n_devices:
        return False
    try:
        check(s)
    except InputError:
        return False
    use = memory_use(workload.transformer(s), workload.plan(s))
    return float(np.asarray(use.total)) < LARGEST_SHARE * machine.memory_bytes


def build(p: WorkloadSpec, machine: Machine) -> Program:
    """The step with its state carried along, and two batches in turn."""
    if p.devices > machine.n_devices or (machine.hosts > 1 and p.devices != machine.n_devices):
        raise Unavailable(
            f"the step needs {p.devices} devices, of which the job has {machine.n_devices}"
        )
    built = workload.build(p, jax.devices()[: p.devices])
    tokens = p.global_batch * p.seq_len
    return Program(
        built.step,
        [(built.batch(0),), (built.batch(1),)],
        built.state,
        work={"tokens": float(tokens)},
        shared=machine.hosts > 1,
    )


def predict(ps: Sequence[WorkloadSpec], system: Cluster, c: Coefficients) -> Array:
    """The model's step time [s]."""
    records = [(workload.transformer(p), workload.plan(p)) for p in ps]
    model, plan = jax.tree.map(lambda *leaves: jnp.asarray([float(x) for x in leaves]), *records)
    return step_time(system, model, plan, c).total


BENCHMARK = Benchmark(WorkloadSpec, build, grid, predict, shared=True)
