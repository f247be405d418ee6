"""A matrix product and an all-reduce that do not need each other: alone, and in one program, where
they may overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from calibration.collect.kinds import collectives, matmul
from calibration.collect.kinds.benchmark import Benchmark
from calibration.collect.kinds.collectives import AXES, Collective, buffer, group_mesh, over_groups
from calibration.collect.machine import Machine
from calibration.collect.program import Program, random_array
from dmodel.coefficients import Coefficients
from dmodel.errors import InputError
from dmodel.records import Cluster
from dmodel.types import Array


class Overlap(NamedTuple):
    """A product of side × side matrices on every device and an all-reduce of nbytes. part: matmul,
    collective or both."""

    side: int
    nbytes: int
    devices: int
    part: str = "both"
    dtype: str = "bf16"


PARTS = ("matmul", "collective", "both")


def grid(machine: Machine) -> list[Overlap]:
    """Products shorter than, as long as and longer than the all-reduce."""
    if machine.n_devices < 2:
        return []
    sides, size, dtype = (
        ((128, 256, 512), 2**20, "fp32") if machine.is_cpu else ((2048, 4096, 8192), 2**26, "bf16")
    )
    return [Overlap(side, size, machine.n_devices, part, dtype) for side in sides for part in PARTS]


def build(p: Overlap, machine: Machine) -> Program:
    """Two independent pieces of work in one program."""
    if p.part not in PARTS:
        raise InputError(f"overlap: part: expected one of {', '.join(PARTS)}, got {p.part!r}")
    mesh = group_mesh(p.devices, "inner", machine)
    message = _message(p)
    place = NamedSharding(mesh, PartitionSpec(AXES))
    shape = (p.side * mesh.devices.size, p.side)

    def work(a: jax.Array, b: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        product = (a @ b,) if p.part != "collective" else ()
        reduced = (lax.psum(x, "group"),) if p.part != "matmul" else ()
        return product + reduced

    inputs = [
        (
            random_array(shape, p.dtype, 2 * i, place),
            random_array(shape, p.dtype, 2 * i + 1, place),
            buffer(message, mesh, i),
        )
        for i in range(2)
    ]
    work_done = {
        "flops": 2.0 * p.side**3 * (p.part != "collective"),
        "bytes": float(p.nbytes) * (p.part != "matmul"),
    }
    return Program(
        jax.jit(over_groups(mesh, work)), inputs, work=work_done, shared=machine.hosts > 1
    )


def _message(p: Overlap) -> Collective:
    return Collective("all_reduce", p.nbytes, p.devices, "inner", p.dtype)


def predict(ps: Sequence[Overlap], system: Cluster, c: Coefficients) -> Array:
    """The longer of the two when both run, and of the shorter what does not hide [s]."""
    part = ps[0].part
    product = jnp.asarray(
        matmul.predict([matmul.Matmul(p.side, p.side, p.side, p.dtype) for p in ps], system, c)
    )
    message = jnp.asarray(collectives.predict([_message(p) for p in ps], system, c))
    if part != "both":
        return product if part == "matmul" else message
    return jnp.maximum(product, message) + (1.0 - c.overlap_dp) * jnp.minimum(product, message)


BENCHMARK = Benchmark(Overlap, build, grid, predict, shared=True)
