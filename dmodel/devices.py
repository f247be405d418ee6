"""A block of cases over all devices that JAX has: one mesh axis, the cases; nothing is exchanged.

Every device runs the program of a single one on its own cases, so that the numbers are the same. On
several hosts (`jax.distributed`) every process asks for the same batch and gets the whole answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Tree = Any

CASES = "cases"
"""Name of the mesh's axis."""


def count() -> int:
    """Devices of all hosts [count]."""
    return jax.device_count()


def hosts() -> int:
    """Processes that compute together [count]."""
    return jax.process_count()


@cache
def _mesh() -> Mesh:
    return Mesh(np.asarray(jax.devices()), (CASES,))


def _by_case(rank: int = 1) -> PartitionSpec:
    """Cut along the last of some axes."""
    return PartitionSpec(*[None] * (rank - 1), CASES)


def over_devices(run: Callable[..., Tree], batch: Tree, shared: Tree) -> Callable[..., Tree]:
    """A function of a block of every device's cases, from that of one device's.

    Args:
      run: of a batch `[rows]`, what is shared, and how many chunks of it count `[]`; gives leaves
        `[..., rows]`.
      batch, shared: shapes of one device's.

    Returns:
      A function of a batch `[device · rows]`, what is shared, and the chunks of each device
      `[device]`.
    """
    shapes = jax.eval_shape(run, batch, shared, jax.ShapeDtypeStruct((), np.int32))
    out = jax.tree.map(lambda x: _by_case(x.ndim), shapes)
    specs = (_by_case(), PartitionSpec(), _by_case())
    return jax.shard_map(
        lambda b, s, n: run(b, s, n[0]),
        mesh=_mesh(),
        in_specs=specs,
        out_specs=out,
        check_vma=False,
    )


def kinds(tree: Tree, by_case: bool) -> Tree:
    """Shapes of arrays with where they lie: cut by case, or whole on every device."""
    where = NamedSharding(_mesh(), _by_case() if by_case else PartitionSpec())
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree)


def _placed(tree: Tree, by_case: bool) -> Tree:
    """Numpy arrays on the devices, as `kinds` says."""
    where = NamedSharding(_mesh(), _by_case() if by_case else PartitionSpec())
    return jax.tree.map(
        lambda x: jax.make_array_from_callback(x.shape, where, lambda at, x=x: x[at]), tree
    )


def _gathered(leaf: jax.Array) -> np.ndarray:
    """A result as numpy has it, on every host whole."""
    if hosts() > 1:
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
    return np.asarray(leaf)


def caller(
    compiled: jax.stages.Compiled, shared: Tree, rows: int, chunk: int
) -> Callable[[Tree, int], Tree]:
    """What runs a compiled block on the first so many cases of a padded batch `[device · rows]`;
    gives numpy's arrays, whose further cases mean nothing.

    Args:
      shared: what all cases share. rows, chunk: cases of a device, and of a chunk [count].
    """
    devices = count()
    if devices == 1:
        here = jax.device_put(shared)
        return lambda part, n: jax.tree.map(
            np.asarray, compiled(part, here, np.int32(-(-n // chunk)))
        )
    there, first = _placed(shared, False), np.arange(devices) * rows

    def call(part: Tree, n: int) -> Tree:
        counts = -(-np.clip(n - first, 0, rows) // chunk)
        given = _placed((part, counts.astype(np.int32)), True)
        return jax.tree.map(_gathered, compiled(given[0], there, given[1]))

    return call
