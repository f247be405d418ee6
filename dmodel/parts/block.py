"""One block of work: what it computes, its name, and how a worker computes it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel import entries
from dmodel.errors import InputError
from dmodel.structures import PLAIN
from dmodel.types import enable_float64

Arrays = dict[str, np.ndarray]
"""What a block gives: arrays of float64 or int64 by name."""


class Part(NamedTuple):
    """What a block gave.

    Attributes:
      arrays: of it. seconds: that it took [s]. processor: kind of the one that computed it
        (`entries.processor`).
    """

    arrays: Arrays
    seconds: float
    processor: str


class Block:
    """Some seconds of work.

    Args:
      function: of a module, so that a worker finds it by name; gives `Arrays`.
      arguments: by name: plain values, arrays, records, and dictionaries and tuples of them.
      size: of the work, in units of its own [count].
    """

    def __init__(
        self, function: Callable[..., Arrays], arguments: Mapping[str, Any], size: int = 1
    ) -> None:
        self.function, self.arguments, self.size = function, dict(arguments), size

    @cached_property
    def name(self) -> str:
        """64 digits that stand for all that decides what the block gives, but for the kind of
        processor.

        Raises:
          InputError: the sources changed since the process began.
        """
        whole = hashlib.sha256()
        place = f"{self.function.__module__}.{self.function.__qualname__}"
        for text in (place, sources(self.function), jax.__version__, np.__version__):
            whole.update(f"{len(text)} {text}\n".encode())
        _add(whole, self.arguments)
        return whole.hexdigest()


def sources(function: Callable[..., Any]) -> str:
    """A sum over the sources that a function rests on: those of `dmodel`, and of its own package.

    Raises:
      InputError: they changed since the process began.
    """
    package = function.__module__.partition(".")[0]
    packages = [p for p in dict.fromkeys(("dmodel", package)) if (entries.ROOT / p).is_dir()]
    found = entries.sources(*packages)
    if not found:
        raise InputError(
            "the sources changed since this process began, so that blocks have no name; start again"
        )
    return found


def _add(whole: Any, value: Any) -> None:
    """Add a value to a sum, with its type, so that no other value adds the same."""
    if isinstance(value, PLAIN):
        whole.update(f"{type(value).__name__} {value!r}\n".encode())
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        whole.update(f"array {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
    elif isinstance(value, Mapping):
        whole.update(f"mapping {len(value)}\n".encode())
        for key in sorted(value):
            _add(whole, key)
            _add(whole, value[key])
    elif isinstance(value, tuple | list):
        whole.update(f"{type(value).__qualname__} {len(value)}\n".encode())
        for each in value:
            _add(whole, each)
    elif is_dataclass(value) and not isinstance(value, type):
        whole.update(f"{type(value).__module__}.{type(value).__qualname__}\n".encode())
        for field in fields(value):
            _add(whole, getattr(value, field.name))
    else:
        raise TypeError(f"{type(value).__name__}: no value of which a block can tell the name")


def computed(function: Callable[..., Arrays], arguments: dict[str, Any], made_of: str) -> Part:
    """What a block gives, on a worker.

    Args:
      made_of: `sources` of who asks.

    Raises:
      InputError: the worker runs other sources, or is one of several processes of JAX.
    """
    if sources(function) != made_of:
        raise InputError(
            "a worker runs other sources of dmodel than who asks; install the same version on all "
            "machines and start the workers again"
        )
    if jax.distributed.is_initialized():
        raise InputError(
            "this process is one of several of jax.distributed, which compute together; blocks are "
            "for processes of their own: start workers without it"
        )
    enable_float64()
    begun = time.perf_counter()
    arrays = {name: np.asarray(x) for name, x in function(**arguments).items()}
    return Part(arrays, time.perf_counter() - begun, entries.processor())
