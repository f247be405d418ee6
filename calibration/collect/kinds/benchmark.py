"""What a benchmark is: its parameters, how to build it, what is worth measuring, and what the model
says it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from calibration.collect.machine import Machine
from calibration.collect.program import Program
from dmodel.coefficients import Coefficients
from dmodel.records import Cluster
from dmodel.types import Array


class Benchmark(NamedTuple):
    """One kind of measurement.

    Attributes:
      parameters: record of its parameters (a NamedTuple class).
      build: parameters and machine → program; raises `runner.Unavailable`, or `InputError` for
        sizes that make no sense.
      grid: what is worth measuring on a machine, small sizes for a small one.
      predict: the model's time of one call [s], `[n]` for n parameter records that differ in
        numbers only; differentiable in the coefficients, whose leaves are `[n]` too. The system is
        at the precision of the parameters.
      shared: every process of a job takes part.
    """

    parameters: type
    build: Callable[[Any, Machine], Program]
    grid: Callable[[Machine], list[Any]]
    predict: Callable[[Sequence[Any], Cluster, Coefficients], Array]
    shared: bool = False


def column(records: Sequence[Any], name: str) -> jax.Array:
    """One number of many parameter records, `[n]`."""
    return jnp.asarray([float(getattr(record, name)) for record in records])
