"""What the host and the launching of kernels cost: chains of empty kernels, and calls of an empty
program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from calibration.collect.kinds.benchmark import Benchmark, column
from calibration.collect.machine import Machine
from calibration.collect.program import Program, random_array
from dmodel.coefficients import Coefficients
from dmodel.records import Cluster
from dmodel.types import Array


class Launch(NamedTuple):
    """One program of `kernels` tiny dependent kernels: its slope in the kernels is the launch
    latency."""

    kernels: int


class Dispatch(NamedTuple):
    """One call of a tiny program with `arguments` arrays; waits: until its result is there, else
    until the call returns."""

    arguments: int
    waits: bool = True


def build_launch(p: Launch, machine: Machine) -> Program:
    """A chain of 8 × 8 products, which no compiler fuses into one kernel: barriers stand between
    them."""

    def chain(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(p.kernels):
            x = jax.lax.optimization_barrier(jnp.tanh(x @ w))
        return x

    inputs = [
        (random_array((8, 8), "fp32", 2 * i), random_array((8, 8), "fp32", 2 * i + 1))
        for i in range(4)
    ]
    return Program(jax.jit(chain), inputs, work={"kernels": float(p.kernels)})


def launch_grid(machine: Machine) -> list[Launch]:
    """Three lengths, for a slope and a check that it is one."""
    return [Launch(n) for n in ((4, 16, 64) if machine.is_cpu else (8, 64, 256))]


def build_dispatch(p: Dispatch, machine: Machine) -> Program:
    """A sum of one element of each argument."""

    def touch(*arrays: jax.Array) -> jax.Array:
        total = arrays[0]
        for array in arrays[1:]:
            total = total + array
        return total

    inputs = [
        tuple(random_array((8,), "fp32", 1000 * i + j) for j in range(p.arguments))
        for i in range(4)
    ]
    return Program(jax.jit(touch), inputs, waits=p.waits)


def dispatch_grid(machine: Machine) -> list[Dispatch]:
    """Few and many arguments."""
    return [Dispatch(n, waits) for n in (1, 16, 256) for waits in (True, False)]


def predict_launch(ps: Sequence[Launch], system: Cluster, c: Coefficients) -> Array:
    """Kernels times the time between them [s]."""
    return column(ps, "kernels") * c.launch * system.chip.kernel_latency_s


def predict_dispatch(ps: Sequence[Dispatch], system: Cluster, c: Coefficients) -> Array:
    """The model knows no call of the host, so measuring one tells it nothing: a constant [s]."""
    return 1e-5 + 0.0 * c.launch


LAUNCH = Benchmark(Launch, build_launch, launch_grid, predict_launch)
DISPATCH = Benchmark(Dispatch, build_dispatch, dispatch_grid, predict_dispatch)
