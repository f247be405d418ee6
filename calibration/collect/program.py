"""A program to be measured: compiled apart, run with inputs that rotate, its cost and memory by the
compiler beside its time."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibration.collect.machine import Machine
from calibration.collect.profiler import profile
from calibration.collect.runner import Job, Unavailable
from calibration.collect.sensors import Sensors
from calibration.collect.timing import Settings, Timing, median, summary, timed

MOST_SETS = 256
"""Input sets that rotate, at most."""

REPEATS_SHARE = 0.3
"""Repeats may take at least this share of the time of compiling."""

IN_FLIGHT_BYTES = 2**31
"""Results that may wait in memory while calls are in flight [byte]."""

DTYPES = {
    "bf16": jnp.bfloat16,
    "fp16": jnp.float16,
    "fp32": jnp.float32,
    "tf32": jnp.float32,
    "fp8": jnp.float8_e4m3fn,
    "int8": jnp.int8,
    "int32": jnp.int32,
}
"""Array types by the names that traces use; tf32 is how fp32 is multiplied."""


class Program(NamedTuple):
    """Something to be measured.

    Attributes:
      function: jitted. inputs: argument lists, used in turn.
      state: when not None, the first argument, donated: `(state, …) → (state, result)`.
      work: what it does at least: flops, bytes, and so on, for one call; stored beside the time.
      shared: it runs on devices of several processes. waits: a call is timed until its result is
        there, else only until it returns.
    """

    function: Any
    inputs: Sequence[tuple[Any, ...]]
    state: Any = None
    work: Mapping[str, float] = {}
    shared: bool = False
    waits: bool = True


class Options(NamedTuple):
    """How to measure. settings: None for what suits the machine. device_time: ask the profiler as
    well."""

    settings: Settings | None = None
    device_time: bool = True


def item_bytes(dtype: str) -> int:
    """Bytes of one element."""
    return np.dtype(DTYPES[dtype]).itemsize


@lru_cache(maxsize=8)
def _noise(dtype: str) -> np.ndarray:
    """A million random numbers, twice over, none of them near 0."""
    drawn = np.random.default_rng(0).standard_normal(2**20, np.float32)
    drawn = np.where(np.abs(drawn) < 0.02, np.float32(0.5), drawn)
    if dtype.startswith("int"):
        drawn = np.clip(np.rint(drawn * 30), -127, 127) + (np.abs(drawn) < 1 / 60)
    return np.tile(drawn.astype(DTYPES[dtype]), 2)


def random_array(shape: Sequence[int], dtype: str, number: int, sharding: Any = None) -> jax.Array:
    """Random elements, none of them 0, other ones for every number; a million of them repeat, which
    no device can tell from more.

    Raises:
      Unavailable: this process's part of the array is more than the host has memory for.
    """
    _fits(
        math.prod(shape if sharding is None else sharding.shard_shape(tuple(shape)))
        * item_bytes(dtype),
        shape,
    )
    noise = _noise(dtype)
    period = len(noise) // 2
    start = 7919 * number % period

    def part(count: int) -> np.ndarray:
        whole = noise[start : start + period]
        return whole[:count] if count <= period else np.resize(whole, count)

    if sharding is None:
        return jax.device_put(part(math.prod(shape)).reshape(shape), jax.local_devices()[0])
    local = sharding.shard_shape(tuple(shape))
    return jax.make_array_from_callback(
        tuple(shape), sharding, lambda index: part(math.prod(local)).reshape(local)
    )


def _fits(nbytes: int, shape: Sequence[int]) -> None:
    """Raise unless the host can make an array: it would be killed for it, again and again whenever
    the collection goes on."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    if nbytes > limit:
        size = "×".join(map(str, shape))
        raise Unavailable(
            f"an input of {size} takes {nbytes / 1e9:.4g} GB, more than half of the host's "
            "memory "
            f"({limit / 1e9:.4g} GB)"
        )


def sets(nbytes: float, machine: Machine) -> int:
    """Input sets that together are twice the last-level cache, so that no call finds its inputs
    there; within a quarter of the memory.

    nbytes: of one set.
    """
    wanted = int(2 * machine.cache_bytes // max(nbytes, 1)) + 2
    fitting = int(machine.memory_bytes // 4 // max(nbytes, 1))
    return max(1, min(wanted, MOST_SETS, fitting))


def settings_for(machine: Machine, compile_s: float) -> Settings:
    """How long to repeat: processors of a host are noisy and slow, so less is asked of them; what
    took long to compile is worth more."""
    found = (
        Settings(precision=0.02, longest_s=0.6, warmup_s=0.02, sample_s=5e-4)
        if machine.is_cpu
        else Settings()
    )
    return found._replace(longest_s=max(found.longest_s, REPEATS_SHARE * compile_s))


def measured(program: Program, machine: Machine, options: Options, job: Job) -> dict[str, Any]:
    """Compile, time and profile a program: what is stored of it besides its name."""
    compiled, cost = compiled_apart(program)
    run = _Run(compiled, program)
    sensors = Sensors(0 if machine.platform == "gpu" else None)
    sensors.read()
    agree = job.agree if program.shared else lambda value: value
    timing = timed(
        run.call,
        jax.block_until_ready if program.waits else lambda result: None,
        options.settings or settings_for(machine, cost["compile_s"]),
        in_flight=_in_flight(machine, cost),
        agree=agree,
        between=sensors.read,
    )
    sensors.read()
    nbytes = sum(x.nbytes for x in jax.tree.leaves(program.inputs[0]))
    return {
        "time": summary(timing),
        "compile": cost,
        "work": dict(program.work),
        "rotation": {
            "sets": len(program.inputs),
            "bytes": nbytes,
            "beyond_cache": len(program.inputs) * nbytes > machine.cache_bytes,
        },
        "device_time": _device_time(run, timing, options, agree),
        "sensors": sensors.summary(),
        "host_load": round(os.getloadavg()[0], 2),
    }


class _Run:
    """Calls of a compiled program, its inputs in turn and its state carried along."""

    def __init__(self, compiled: Callable[..., Any], program: Program):
        self.compiled, self.inputs, self.state, self.carries = (
            compiled,
            program.inputs,
            program.state,
            program.state is not None,
        )

    def call(self, number: int) -> Any:
        arguments = self.inputs[number % len(self.inputs)]
        if not self.carries:
            return self.compiled(*arguments)
        self.state, result = self.compiled(self.state, *arguments)
        return self.state, result


def compiled_apart(program: Program) -> tuple[Any, dict[str, Any]]:
    """The compiled program, how long that took, and what the compiler says of its cost and
    memory."""
    arguments = program.inputs[0] if program.state is None else (program.state, *program.inputs[0])
    began = time.perf_counter()
    lowered = program.function.lower(*arguments)
    middle = time.perf_counter()
    compiled = lowered.compile()
    ended = time.perf_counter()
    cost = {"trace_s": round(middle - began, 6), "compile_s": round(ended - middle, 6)}
    return compiled, cost | {"cost": _cost(compiled), "memory": _memory(compiled)}


def _cost(compiled: Any) -> dict[str, Any]:
    """The compiler's count of one call, per device; some backends have none."""
    try:
        found = compiled.cost_analysis()
    except (NotImplementedError, RuntimeError) as error:
        return {"unavailable": f"{type(error).__name__}: {error}"[:300]}
    one: Any = found[0] if isinstance(found, list | tuple) and found else found
    counts = {new: float(one[old]) for old, new in COSTS.items() if one and old in one}
    return counts or {"unavailable": "the backend counts nothing"}


COSTS = {"flops": "flops", "bytes accessed": "bytes", "transcendentals": "transcendentals"}
"""The compiler's names of what it counts, and those of the records."""


def _memory(compiled: Any) -> dict[str, Any]:
    """The compiler's memory of one device [byte]; some backends say nothing."""
    try:
        found = compiled.memory_analysis()
    except (NotImplementedError, RuntimeError) as error:
        return {"unavailable": f"{type(error).__name__}: {error}"[:300]}
    names = ("argument", "output", "temp", "alias", "generated_code")
    sizes = {f"{name}_bytes": int(getattr(found, f"{name}_size_in_bytes", 0)) for name in names}
    peak = getattr(found, "peak_memory_in_bytes", None)
    return (
        sizes | ({"peak_bytes": int(peak)} if peak else {})
        if found is not None
        else {"unavailable": "the backend says nothing"}
    )


def _in_flight(machine: Machine, cost: Mapping[str, Any]) -> int:
    """Calls that may be started before one is waited for: one on a CPU, whose devices share their
    threads with the host."""
    if machine.is_cpu:
        return 1
    return max(1, min(64, IN_FLIGHT_BYTES // max(cost["memory"].get("output_bytes", 1), 1)))


def _device_time(
    run: _Run, timing: Timing, options: Options, agree: Callable[[int], int]
) -> dict[str, Any]:
    """Device time of a call by the profiler, over a few calls."""
    if not options.device_time:
        return {"unavailable": "not asked for"}
    calls = agree(max(1, min(10, int(0.2 / median(timing.samples)))))

    def some() -> None:
        for i in range(calls):
            jax.block_until_ready(run.call(i))

    return profile(some, calls)
