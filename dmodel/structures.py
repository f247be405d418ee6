"""Structures of records in words, and answers out of what words say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PLAIN = (str, int, float, bool, type(None))
"""What static fields may hold, or tuples of it."""


def told(tree: Any) -> str:
    """A pytree's structure in words that no other structure has.

    Raises:
      TypeError: a static field holds more than plain values.
    """
    data = tree.node_data()
    if data is None:
        return "*" if tree.num_leaves else "-"
    kind, static = data
    inner = ",".join(map(told, tree.children()))
    return f"{kind.__module__}.{kind.__qualname__} {plain(static)} ({inner})"


def plain(value: Any) -> str:
    """A static value in words that no other one has.

    Raises:
      TypeError: it is none of `PLAIN`.
    """
    if isinstance(value, tuple | list):
        return f"({','.join(map(plain, value))})"
    if not isinstance(value, PLAIN):
        raise TypeError(f"{type(value).__name__} is no plain value")
    return f"{type(value).__name__} {value!r}"


def nested(names: Sequence[Sequence[str]], leaves: Sequence[Any]) -> dict[str, Any]:
    """Nested dictionaries of leaves by the keys that lead there."""
    found: dict[str, Any] = {}
    for name, leaf in zip(names, leaves, strict=True):
        into = found
        for part in name[:-1]:
            into = into.setdefault(part, {})
        into[name[-1]] = leaf
    return found
