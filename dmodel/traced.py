"""Functions that are traced once for records of one shape, however often a program calls them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

R = TypeVar("R")


def traced_once(function: Callable[..., R]) -> Callable[..., R]:
    """Mark a pure function of records: under a transformation of JAX it is one call of one inner
    program, shared by all calls with records of the same shapes.

    Numbers of Python in the answer stay such, so that what is 0 by the kind of model is left out.
    Of records that are all at hand the function is called as it is.
    """
    constants: dict[Any, tuple[Any, list[Any]]] = {}

    def arrays(kind: Any, records: tuple) -> list[Any]:
        leaves, tree = jax.tree.flatten(function(*records))
        constants[kind] = tree, [x if isinstance(x, float) else None for x in leaves]
        return [x for x in leaves if not isinstance(x, float)]

    inner = jax.jit(arrays, static_argnums=0)

    @wraps(function)
    def called(*records: Any, **named: Any) -> R:
        records = jax.tree.map(lambda x: np.float64(x) if isinstance(x, float) else x, records)
        leaves, tree = jax.tree.flatten(records)
        if named or not any(isinstance(x, Tracer) for x in leaves):
            return function(*records, **named)
        kind = tree, tuple((jnp.shape(x), jnp.result_type(x)) for x in leaves)
        found = iter(inner(kind, records))
        if kind not in constants:  # JAX had a program for these records that was not made here
            return function(*records)
        structure, held = constants[kind]
        filled = [next(found) if x is None else x for x in held]
        return jax.tree.unflatten(structure, filled)

    return called
