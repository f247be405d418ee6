"""Scalars: SI inside (byte, FLOP, second, watt, joule, dollar), float64, vendor units
converted once at load.

Every number of a record is an `Array`: a scalar, or an array whose **last** axis is a batch of
cases. Formulas are
written for one case and hold for both, because cases only ever meet element by element.
"""

from __future__ import annotations

from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

Array = jax.Array | np.ndarray | float


def enable_float64() -> None:
    """Switch JAX to float64, which every figure of this package assumes; safe to call again."""
    jax.config.update("jax_enable_x64", True)


def at_hand(*values: Array) -> bool:
    """Whether all values are Python's or numpy's. What tables of rows need is computed by numpy
    then: JAX would compile every operation anew for every number of rows, which takes longer than
    reading them."""
    return all(isinstance(v, np.ndarray | np.generic | int | float) for v in values)


def library(*values: Array) -> Any:
    """What computes with values: numpy where all are at hand, else `jax.numpy`."""
    return np if at_hand(*values) else jnp


def taken(value: Array) -> Array:
    """A value as numpy has it where JAX has computed it; what JAX is still to compute as it is."""
    known = isinstance(value, jax.Array) and not isinstance(value, Tracer)
    return np.asarray(value) if known else value


def larger(a: Array, b: Array) -> Array:
    """The larger of two, element by element; by numpy where both are at hand."""
    return np.maximum(a, b) if at_hand(a, b) else jnp.maximum(a, b)


def smaller(a: Array, b: Array) -> Array:
    """The smaller of two, likewise."""
    return np.minimum(a, b) if at_hand(a, b) else jnp.minimum(a, b)


def modulo(a: Array, b: Array) -> Array:
    """What is left over of a after whole parts of b, likewise."""
    return np.mod(a, b) if at_hand(a, b) else jnp.mod(a, b)


@overload
def stack(*values: jax.Array) -> jax.Array: ...
@overload
def stack(*values: Array) -> Any: ...
def stack(*values: Array) -> Any:
    """Stack the same quantity of several operations on a new axis 0, the batch staying last; by
    numpy where all are at hand.

    Shapes broadcast first, so scalars and batches mix.
    """
    if at_hand(*values):
        return np.stack(np.broadcast_arrays(*values))
    return jnp.stack(jnp.broadcast_arrays(*(jnp.asarray(v) for v in values)))


def unstacked(values: Array) -> tuple[Any, ...]:
    """The values along axis 0, by numpy where they are at hand."""
    return tuple(np.asarray(values)) if at_hand(values) else jnp.unstack(jnp.asarray(values))


def added(values: Array) -> Any:
    """The sum along axis 0, by numpy where it is at hand."""
    return (np.asarray(values) if at_hand(values) else jnp.asarray(values)).sum(0)


def each(value: Array) -> Any:
    """Let a case's value meet stacked operations: `[*batch]` becomes `[1, *batch]`; a scalar stays
    one. By numpy where it is at hand."""
    value = np.asarray(value) if at_hand(value) else jnp.asarray(value)
    return value if value.ndim == 0 else value[None]


def per_level(values: Array) -> jax.Array:
    """Give a per-level array `[level, *batch]` a singleton axis of operations: `[level, 1,
    *batch]`."""
    return jnp.asarray(values)[:, None]


def trailing(values: Array, rank: int) -> jax.Array:
    """Append singleton axes until the array has `rank` axes, so that `[level]` meets `[level,
    *batch]`."""
    values = jnp.asarray(values)
    return values.reshape(values.shape + (1,) * (rank - values.ndim))


def number(value: object) -> float:
    """The number that an argument is; NaN for words, blanks and truth values, which no check of a
    range lets pass.

    >>> number(64), number("64")
    (64.0, nan)
    """
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if (
        isinstance(value, str | bytes | bytearray | memoryview | bool)
        or value is None
        or kind in tuple("bSUc")
    ):
        return float("nan")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return float("nan")
