"""The mesh, where each parameter lives on it, and the collectives; every one of them is nothing on
an axis of one rank.

Everything runs inside one `shard_map` over all axes, so that each collective is written down here
and no compiler has to guess it. Gradients follow one rule: the loss is a **sum over devices** of
local parts, so the transpose of every collective is its own
(sum ↔ sum, gather ↔ scatter, exchange ↔ exchange back), and the gradient of a parameter is the sum
over the ranks that hold it alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import mesh_utils
from jax.sharding import Mesh, PartitionSpec

from calibration.collect.workload.spec import AXES, WorkloadSpec
from dmodel.errors import InputError

BATCH_AXES = ("data", "fsdp", "expert")

DENSE_SHARDS, EXPERT_SHARDS = ("fsdp", "expert", "context"), ("fsdp", "context")
"""Axes over which ZeRO-3 splits what all experts share, and the experts themselves, whose ranks
hold different ones."""

PLACES: dict[str, tuple[str | None, ...]] = {
    "embedding": ("tensor", "shard"),
    "head": ("tensor", "shard"),
    "norm": ("shard",),
    "query": ("shard", "tensor", None),
    "key": ("shard", "tensor", None),
    "value": ("shard", "tensor", None),
    "projection": ("tensor", None, "shard"),
    "router": ("shard", None),
    "up": ("shard", "tensor"),
    "gate": ("shard", "tensor"),
    "down": ("tensor", "shard"),
    "expert_up": ("expert", "shard", "tensor"),
    "expert_gate": ("expert", "shard", "tensor"),
    "expert_down": ("expert", "tensor", "shard"),
}
"""What splits each dimension of a parameter, by the last part of its name; "shard" = the axes of
ZeRO-3."""


def make_mesh(spec: WorkloadSpec, devices: Sequence[Any]) -> Mesh:
    """The mesh of a spec on some devices, neighbours on the innermost axis.

    Raises:
      InputError: not as many devices as the axes multiply to.
    """
    sizes = [spec.size(axis) for axis in AXES]
    if len(devices) != spec.devices:
        axes = (
            " · ".join(f"{a} {n}" for a, n in zip(AXES, sizes, strict=True) if n > 1)
            or "one device"
        )
        raise InputError(f"the step needs {spec.devices} devices ({axes}), got {len(devices)}")
    return Mesh(mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True), AXES)


def shard_axes(spec: WorkloadSpec, name: str) -> tuple[str, ...]:
    """Axes of more than one rank over which ZeRO-3 splits a parameter."""
    axes = EXPERT_SHARDS if name.startswith("expert_") else DENSE_SHARDS
    return tuple(a for a in axes if spec.zero == 3 and spec.size(a) > 1)


def place(spec: WorkloadSpec, path: tuple[Any, ...]) -> PartitionSpec:
    """Where the parameter at a path of the tree lives; those of layers have a leading axis of
    layers, split over the stages."""
    name = _name(path)
    entries = [(shard_axes(spec, name) or None) if p == "shard" else p for p in PLACES[name]]
    return PartitionSpec(*(("pipeline", *entries) if path[0].key == "layers" else entries))


def _name(path: tuple[Any, ...]) -> str:
    return path[-1].key


def places(spec: WorkloadSpec, params: Any) -> Any:
    """`place` of every parameter."""
    return jax.tree.map_with_path(lambda path, _: place(spec, path), params)


def gather(spec: WorkloadSpec, params: Any, dtype: Any, beside: jax.Array) -> Any:
    """Parameters of one layer (or of one end) as the matmuls need them: cast, then whole over the
    axes of ZeRO-3.

    Args:
      beside: what they will meet; the barrier keeps a compiler from gathering early, for all
        micro-batches, and holding what came.
    """

    def whole(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
        name = _name(path)
        axes, x = shard_axes(spec, name), x.astype(dtype)
        return lax.all_gather(x, axes, axis=PLACES[name].index("shard"), tiled=True) if axes else x

    with jax.named_scope("weights"):
        if spec.zero == 3:
            params = _after(params, beside)
        return jax.tree.map_with_path(whole, params)


@jax.custom_jvp
def _after(params: Any, beside: jax.Array) -> Any:
    """The parameters, not before `beside` is there."""
    return lax.optimization_barrier((params, beside))[0]


@_after.defjvp
def _after_jvp(primals: tuple[Any, jax.Array], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return _after(*primals), tangents[0]


def reduce_gradients(spec: WorkloadSpec, gradients: Any) -> Any:
    """Sum each gradient over the axes on which its parameter is not split: those ranks hold it
    alike."""

    def reduced(path: tuple[Any, ...], g: jax.Array) -> jax.Array:
        split = {
            a
            for entry in place(spec, path)
            if entry
            for a in ((entry,) if isinstance(entry, str) else entry)
        }
        axes = tuple(a for a in AXES if a not in split and spec.size(a) > 1)
        return lax.psum(g, axes) if axes else g

    with jax.named_scope("gradients"):
        return jax.tree.map_with_path(reduced, gradients)


def index(spec: WorkloadSpec, axis: str) -> jax.Array:
    """This device's rank on an axis; int32."""
    return (
        lax.axis_index(axis).astype(jnp.int32) if spec.size(axis) > 1 else jnp.zeros((), jnp.int32)
    )


def total(spec: WorkloadSpec, x: jax.Array, axes: str | tuple[str, ...]) -> jax.Array:
    """Sum over the ranks of some axes."""
    live = tuple(a for a in ((axes,) if isinstance(axes, str) else axes) if spec.size(a) > 1)
    return lax.psum(x, live) if live else x


def enter_tensor(spec: WorkloadSpec, x: jax.Array) -> jax.Array:
    """Before products that split their columns: the whole sequence `[b, t, h]`, when the sequence
    is split between products."""
    split = spec.sequence_parallel and spec.tensor > 1
    return lax.all_gather(x, "tensor", axis=1, tiled=True) if split else x


def leave_tensor(spec: WorkloadSpec, x: jax.Array) -> jax.Array:
    """After products that split their rows: partial sums `[b, t, h]` summed, and split over the
    sequence where that is asked."""
    if spec.sequence_parallel and spec.tensor > 1:
        return lax.psum_scatter(x, "tensor", scatter_dimension=1, tiled=True)
    return total(spec, x, "tensor")


def gather_sequence(spec: WorkloadSpec, x: jax.Array) -> jax.Array:
    """Keys and values of the whole sequence, `[b, t, …]` → `[b, s, …]`."""
    return lax.all_gather(x, "context", axis=1, tiled=True) if spec.context > 1 else x


def gather_visits(spec: WorkloadSpec, x: jax.Array) -> jax.Array:
    """Visits `[local experts, places, h]` of all ranks that split an expert, when the sequence is
    split over them."""
    split = spec.sequence_parallel and spec.tensor > 1
    return lax.all_gather(x, "tensor", axis=1, tiled=True) if split else x


def scatter_visits(spec: WorkloadSpec, x: jax.Array) -> jax.Array:
    """The way back of `gather_visits`: partial sums of an expert's columns, summed."""
    split = spec.sequence_parallel and spec.tensor > 1
    return lax.psum_scatter(x, "tensor", scatter_dimension=1, tiled=True) if split else x


def to_experts(spec: WorkloadSpec, x: jax.Array) -> jax.Array:
    """Dispatch `[experts, places, …]` of all experts to the ranks that hold them: `[local experts,
    places of all ranks, …]`."""
    return (
        lax.all_to_all(x, "expert", split_axis=0, concat_axis=1, tiled=True)
        if spec.expert > 1
        else x
    )


def from_experts(spec: WorkloadSpec, x: jax.Array) -> jax.Array:
    """The inverse of `to_experts`."""
    return (
        lax.all_to_all(x, "expert", split_axis=1, concat_axis=0, tiled=True)
        if spec.expert > 1
        else x
    )


def to_next_stage(spec: WorkloadSpec, x: jax.Array) -> jax.Array:
    """Hand on to the next stage; the first one receives zeros."""
    return lax.ppermute(x, "pipeline", [(i, i + 1) for i in range(spec.pipeline - 1)])


def batch_place() -> PartitionSpec:
    """Tokens `[m, rows, s]`: rows over the data ranks, the sequence over context."""
    return PartitionSpec(None, BATCH_AXES, "context")


def groups_on(mesh: Mesh, axes: tuple[str, ...]) -> frozenset[frozenset[int]]:
    """Sets of devices, by position in the mesh, that a collective over some axes joins."""
    ids = np.arange(mesh.devices.size).reshape(mesh.devices.shape)
    at = [mesh.axis_names.index(a) for a in axes]
    rest = [i for i in range(ids.ndim) if i not in at]
    rows = ids.transpose(*rest, *at).reshape(-1, math.prod(ids.shape[i] for i in at))
    return frozenset(frozenset(row) for row in rows.tolist())
