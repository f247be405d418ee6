"""Pytrees of arrays for compiled code: types, lengths, blocks of one shape, leaves end to end."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.types import Array

Tree = Any
"""A pytree of arrays."""


def packed(fixed: Tree) -> dict[str, np.ndarray]:
    """All leaves of a pytree end to end, by the name of their type: two hundred scalars take longer
    to hand over than to compute with."""
    leaves = [floating(x) for x in jax.tree.leaves(fixed)]
    of = {
        kind: [x.ravel() for x in leaves if x.dtype.name == kind]
        for kind in sorted({x.dtype.name for x in leaves})
    }
    return {kind: np.concatenate(values) for kind, values in of.items()}


def unpacked(shared: dict[str, jax.Array], kinds: Tree) -> Tree:
    """The pytree of `packed` again, with the shapes and types of `kinds`."""
    leaves, tree = jax.tree.flatten(kinds)
    sizes = {kind: [math.prod(x.shape) for x in leaves if x.dtype.name == kind] for kind in shared}
    parts = {kind: iter(jax.lax.split(values, sizes[kind])) for kind, values in shared.items()}
    return jax.tree.unflatten(tree, [next(parts[x.dtype.name]).reshape(x.shape) for x in leaves])


def floating(leaf: Array) -> np.ndarray:
    """A numpy array of a floating type; what is not gets JAX's default one."""
    array = np.asarray(leaf)
    return (
        array if np.issubdtype(array.dtype, np.floating) else array.astype(jnp.result_type(float))
    )


def length(leaves: list[np.ndarray]) -> int:
    """N of leaves `[N]` and scalars; 1 when all are scalars."""
    lengths = {x.shape for x in leaves if x.ndim}
    if len(lengths) > 1 or any(len(shape) > 1 for shape in lengths):
        raise ValueError(
            f"batch: expected leaves [N] of one length N, or scalars; got shapes {sorted(lengths)}"
        )
    return lengths.pop()[0] if lengths else 1


def padded(leaf: np.ndarray, start: int, stop: int, rows: int) -> np.ndarray:
    """Cases start..stop of a leaf, padded to `rows` with its last case, which is a valid one."""
    if leaf.ndim == 0:
        return np.full(rows, leaf)
    part = leaf[start:stop]
    return (
        part
        if stop - start == rows
        else np.concatenate([part, np.full(rows - (stop - start), part[-1])])
    )
