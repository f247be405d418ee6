"""Collectives over groups of devices: all-gather, reduce-scatter, all-reduce, all-to-all, permute,
over sizes and axes of the mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from calibration.collect.kinds.benchmark import Benchmark, column
from calibration.collect.machine import Machine
from calibration.collect.program import Program, item_bytes, random_array, sets
from calibration.collect.runner import Unavailable
from dmodel.coefficients import Coefficients
from dmodel.cost import collectives as cost
from dmodel.errors import InputError
from dmodel.records import Cluster
from dmodel.types import Array

AXES = ("other", "group")


class Collective(NamedTuple):
    """One collective in groups of `devices`, all groups of the machine at once.

    nbytes: as nccl-tests count: the buffer of a rank; of an all-gather its result, of a
    reduce-scatter its input.
    spacing: inner (neighbours form a group) or outer (a group takes every n-th device).
    """

    collective: str
    nbytes: int
    devices: int
    spacing: str = "inner"
    dtype: str = "bf16"


def _exchange(x: jax.Array) -> jax.Array:
    return lax.all_to_all(x, "group", split_axis=0, concat_axis=0, tiled=True)


def _shift(x: jax.Array) -> jax.Array:
    size = lax.axis_size("group")
    return lax.ppermute(x, "group", [(i, (i + 1) % size) for i in range(size)])


OPERATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "all_gather": lambda x: lax.all_gather(x, "group", tiled=True),
    "reduce_scatter": lambda x: lax.psum_scatter(x, "group", tiled=True),
    "all_reduce": lambda x: lax.psum(x, "group"),
    "all_to_all": _exchange,
    "permute": _shift,
}
"""What a device does with its flat buffer."""


def grid(machine: Machine) -> list[Collective]:
    """All operations, group sizes that divide the devices, both spacings, sizes from latency-bound
    to bandwidth-bound."""
    sizes = [2**p for p in ((10, 16, 20, 22) if machine.is_cpu else range(10, 31, 2))]
    dtype = "fp32" if machine.is_cpu else "bf16"
    return [
        Collective(op, size, devices, spacing, dtype)
        for op, (devices, spacing), size in product(OPERATIONS, _places(machine.n_devices), sizes)
    ]


def _places(n: int) -> list[tuple[int, str]]:
    """(devices, spacing) of groups of n devices: powers of two that divide them, close by or
    spread; and all of them."""
    groups = [g for g in range(2, n) if n % g == 0 and g & (g - 1) == 0]
    return [*product(groups, ("inner", "outer")), *([(n, "inner")] if n > 1 else [])]


def group_mesh(devices: int, spacing: str, machine: Machine) -> Mesh:
    """All devices as groups: axis "group" within them, "other" across.

    Raises:
      Unavailable: the machine cannot be divided into such groups. InputError: unknown spacing.
    """
    if spacing not in ("inner", "outer"):
        raise InputError(f"spacing: expected inner or outer, got {spacing!r}")
    if machine.n_devices % devices or devices < 2:
        raise Unavailable(f"{machine.n_devices} devices cannot be divided into groups of {devices}")
    every = np.array(sorted(jax.devices(), key=lambda d: (d.process_index, d.id)))
    grouped = every.reshape(-1, devices) if spacing == "inner" else every.reshape(devices, -1).T
    return Mesh(grouped, AXES)


def over_groups(mesh: Mesh, function: Callable[..., Any]) -> Any:
    """`function` of each device's flat buffers, as a function of arrays `[devices · elements]`."""
    spec = PartitionSpec(AXES)
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


def buffer(p: Collective, mesh: Mesh, number: int) -> jax.Array:
    """A random buffer on every device."""
    count = _elements(p) // (p.devices if p.collective == "all_gather" else 1)
    return random_array(
        (count * mesh.devices.size,), p.dtype, number, NamedSharding(mesh, PartitionSpec(AXES))
    )


def _elements(p: Collective) -> int:
    """Elements of the buffer, rounded up to a multiple of the group."""
    return -(-p.nbytes // (item_bytes(p.dtype) * p.devices)) * p.devices


def build(p: Collective, machine: Machine) -> Program:
    """Buffers that rotate."""
    if p.collective not in OPERATIONS or p.dtype not in ("bf16", "fp16", "fp32"):
        raise InputError(
            f"collectives: expected {', '.join(OPERATIONS)} in bf16, fp16 or fp32; got "
            f"{p.collective!r} in {p.dtype!r}"
        )
    mesh = group_mesh(p.devices, p.spacing, machine)
    function = jax.jit(over_groups(mesh, OPERATIONS[p.collective]))
    inputs = [(buffer(p, mesh, i),) for i in range(min(sets(2 * p.nbytes, machine), 8))]
    nodes = len({d.process_index for d in mesh.devices[0]})
    work = {"bytes": float(_elements(p) * item_bytes(p.dtype)), "nodes": float(nodes)}
    return Program(function, inputs, work=work, shared=machine.hosts > 1)


def members(devices: jax.Array, spacing: str, levels: int, inside: Array) -> jax.Array:
    """Members of a group on each level of the network, `[K, 1, n]`: neighbours fill the innermost
    level first, spread ones skip it.

    inside: members of a domain of the innermost level.
    """
    inner = (
        jnp.minimum(devices, jnp.asarray(inside)) if spacing == "inner" else jnp.ones_like(devices)
    )
    return jnp.stack([inner, devices / inner, *[jnp.ones_like(devices)] * (levels - 2)])[:, None]


def predict(ps: Sequence[Collective], system: Cluster, c: Coefficients) -> Array:
    """The model's time of the collective [s]; spread groups are taken to lie outside the innermost
    level."""
    size = np.asarray(system.network.size)
    network = jax.tree.map(lambda x: jnp.asarray(x)[:, None], system.network)
    group = members(column(ps, "devices"), ps[0].spacing, len(size), size[0])
    times: dict[str, Callable[..., Array]] = {
        "all_gather": cost.gather_time,
        "reduce_scatter": cost.gather_time,
        "all_reduce": cost.all_reduce_time,
        "all_to_all": cost.all_to_all_time,
        "permute": cost.point_to_point_time,
    }
    time = times[ps[0].collective](column(ps, "nbytes")[None], group, cost.fabric(network, c))
    return jnp.asarray(time)[0] + c.launch * system.chip.kernel_latency_s


BENCHMARK = Benchmark(Collective, build, grid, predict, shared=True)
