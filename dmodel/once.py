"""Quantities that several formulas need, computed once: formulas stay functions of records, and a
step does not count its tokens ten times.

Repeated arithmetic is merged by a compiler, but not for free: it is traced and read first, and in
reverse mode each repetition has slopes of its own, which nothing merges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from jax.extend.core import get_opaque_trace_state

P = ParamSpec("P")
R = TypeVar("R")


class _Kept(NamedTuple):
    """An answer; the records that it is of, so that no others take over their identity; the
    transformation of JAX that it belongs to."""

    answer: Any
    records: tuple
    trace: Any


_KEPT: ContextVar[dict[tuple, _Kept] | None] = ContextVar("kept", default=None)


@contextmanager
def together() -> Iterator[None]:
    """Functions marked `once` that are called in here share their answers; what is kept is dropped
    at the end of the outermost one."""
    if _KEPT.get() is not None:
        yield
        return
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def once(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a pure function: within `together` it is computed once for the same records, the same by
    identity.

    Limits: outside `together`, and under another transformation of JAX, it is computed anew.
    """

    @wraps(function)
    def shared(*records: P.args, **named: P.kwargs) -> R:
        kept = _KEPT.get()
        if kept is None or named:
            return function(*records, **named)
        key = (function, *(x if isinstance(x, float) else id(x) for x in records))
        trace, found = get_opaque_trace_state(), kept.get(key)
        if found is None or found.trace != trace:
            found = kept[key] = _Kept(function(*records, **named), records, trace)
        return found.answer

    return shared
