"""Functions that are traced once for records of one shape, however often a program calls them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.core import Tracer

R = TypeVar("R")


@jax.tree_util.register_static
class _Constant(NamedTuple):
    """A number of Python in an answer: part of the structure, not of the program."""

    value: float


def traced_once(function: Callable[..., R]) -> Callable[..., R]:
    """Mark a pure function of records: under a transformation of JAX it is one call of one inner
    program, shared by all calls with records of the same shapes.

    Numbers of Python in the answer stay such, so that what is 0 by the kind of model is left out.
    Of records that are all at hand the function is called as it is.
    """

    def held(records: tuple) -> Any:
        return jax.tree.map(
            lambda x: _Constant(x) if isinstance(x, float) else x, function(*records)
        )

    inner = jax.jit(held)

    @wraps(function)
    def called(*records: Any, **named: Any) -> R:
        records = jax.tree.map(lambda x: np.float64(x) if isinstance(x, float) else x, records)
        if named or not any(isinstance(x, Tracer) for x in jax.tree.leaves(records)):
            return function(*records, **named)
        return jax.tree.map(
            lambda x: x.value if isinstance(x, _Constant) else x,
            inner(records),
            is_leaf=lambda x: isinstance(x, _Constant),
        )

    return called
