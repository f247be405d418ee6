"""The one driver that evaluates, and differentiates, a function of many cases: fast, and the same whatever the chunks and threads.

A case function is written for `[*batch]` leaves with the batch **last** (`dmodel.step`). The driver cuts a batch of any size N into blocks
of one fixed shape, so a function is compiled once per static structure and not once per N; inside a block, a loop over chunks keeps
every intermediate in the cache of a core; blocks are spread over threads, which run in parallel because compiled code holds no lock.

On a CPU the gradient is compiled without XLA's fusion pass: fusion copies cheap operations into every consumer, and reverse mode reuses
every intermediate, so that fused gradients repeat most of their arithmetic. XLA's multi-output fusion, which is off by default, cures the
same ill too. A user may opt in before the process starts, and the driver then leaves fusion on:

    XLA_FLAGS=--xla_backend_extra_options=xla_cpu_use_multi_output_fusion

Nothing here sets a flag or an environment variable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from dmodel.coefficients import Coefficients
from dmodel.hardware import System
from dmodel.plan import Plan
from dmodel.smooth import SHARPNESS
from dmodel.step import memory_use, step_time
from dmodel.types import Array
from dmodel.workload import Transformer

CHUNK, GRADIENT_CHUNK = 1024, 512
"""Cases that flow through the function at once [count]: their intermediates have to fit the second-level cache of a core."""

BLOCK = 16384
"""Cases of one call of compiled code [count]: large beside the cost of a call, small beside the batches that are worth a sweep."""

MULTI_OUTPUT_FUSION = "xla_cpu_use_multi_output_fusion"

Tree = Any
"""A pytree of arrays."""


def sweep(function: Callable[[Tree, Tree], Tree], batch: Tree, fixed: Tree = (), *, chunk: int = CHUNK, threads: int | None = None) -> Tree:
    """Evaluate `function(batch, fixed)` for every case of a batch.

    Limits: compiled on the first call for each function and static structure; a batch of another size N does not compile again. A function
    made anew for every call (a lambda, a partial) compiles anew: define it once.

    Args:
      function: pure; takes leaves `[chunk]` and returns a pytree of leaves `[..., chunk]` or scalars.
      batch: pytree with leaves `[N]` or scalars; numbers that are not floating point become floats.
      fixed: pytree of what all cases share, any shapes.
      chunk: cases that flow through the function at once.
      threads: of compiled code; None for one per core.

    Returns:
      The function's pytree with numpy leaves `[..., N]`.

    Raises:
      ValueError: leaves of different lengths, or an output without the batch as its last axis.
    """
    return _run(function, None, batch, fixed, chunk, threads)


def gradients(
    function: Callable[[Tree, Tree], Any],
    batch: Tree,
    fixed: Tree = (),
    *,
    wrt: Sequence[str] | None = None,
    chunk: int = GRADIENT_CHUNK,
    threads: int | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Value of `function(batch, fixed)` and its derivative, case by case, by reverse mode.

    Only what is asked for is differentiated: six degrees of a plan cost two thirds of all its leaves.

    Args:
      function, batch, fixed, chunk, threads: as in `sweep`; the function returns one number per case, `[chunk]`.
      wrt: names of leaves of the batch ("tp") or of `fixed` ("coefficients.launch" where it is a dictionary of records); None for the whole
        batch. For a leaf of `fixed` with axes of its own the derivative has them in front.

    Returns:
      value `[N]`, and the derivatives by name, `[..., N]` [unit of the value over that of the leaf].

    Raises:
      ValueError: unknown name in `wrt`, or as in `sweep`.
    """
    known = [*names(batch), *names(fixed)]
    wrt = tuple(names(batch)) if wrt is None else tuple(wrt)
    if unknown := [n for n in wrt if n not in known]:
        raise ValueError(f"wrt: no such leaf: {', '.join(unknown)}; expected some of {', '.join(known)}")
    value, slopes = _run(function, wrt, batch, fixed, chunk, threads)
    return value, dict(zip(wrt, slopes, strict=True))


def names(tree: Tree) -> list[str]:
    """Dotted names of the leaves of a pytree, in its order: "chip.flops_per_s"."""
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


class Totals(struct.PyTreeNode, kw_only=True):
    """What ranks a plan: step time [s] and the bytes of its fullest device [byte], `[N]`."""

    step_time_s: Array
    memory_bytes: Array


@lru_cache(maxsize=16)
def totals(sharpness: float = SHARPNESS) -> Callable[[Plan, dict[str, Tree]], Totals]:
    """The case function of `evaluate`: fixed is `{"system", "model", "coefficients"}`."""

    def function(plan: Plan, fixed: dict[str, Tree]) -> Totals:
        time = step_time(fixed["system"], fixed["model"], plan, fixed["coefficients"], sharpness=sharpness)
        return Totals(step_time_s=time.total, memory_bytes=memory_use(fixed["model"], plan).total)

    return function


def evaluate(
    plans: Plan,
    system: System,
    model: Transformer,
    coefficients: Coefficients,
    *,
    sharpness: float = SHARPNESS,
    threads: int | None = None,
) -> Totals:
    """Step time and memory of many plans `[N]` on one system.

    Args:
      plans: leaves `[N]` or scalars. sharpness: infinity is the hard model.
      system, model, coefficients: shared by all plans.
    """
    return sweep(totals(sharpness), plans, {"system": system, "model": model, "coefficients": coefficients}, threads=threads)


def _run(function: Callable, wrt: tuple[str, ...] | None, batch: Tree, fixed: Tree, chunk: int, threads: int | None) -> Tree:
    """Cut a batch into blocks, run them on a pool of threads and join the results."""
    leaves, tree = jax.tree.flatten(jax.tree.map(_floating, batch))
    fixed = jax.tree.map(_floating, fixed)
    size = _length(leaves)
    rows = chunk * max(BLOCK // chunk, 1)
    block_shapes = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct((rows,), x.dtype) for x in leaves])
    fixed_shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), fixed)
    compiled = compile_block(function, wrt, chunk, block_shapes, fixed_shapes)
    shared = jax.device_put(fixed)
    out_leaves, out_tree = jax.tree.flatten(compiled.out_info)
    out = [np.empty((*x.shape[:-1], size), x.dtype) for x in out_leaves]

    def run(start: int) -> None:
        stop = min(start + rows, size)
        block = jax.tree.unflatten(tree, [_block(x, start, stop, rows) for x in leaves])
        results = jax.tree.leaves(compiled(block, shared, np.int32(-(-(stop - start) // chunk))))
        for whole, part in zip(out, results, strict=True):
            whole[..., start:stop] = np.asarray(part)[..., : stop - start]

    starts = range(0, size, rows)
    workers = min(threads or os.cpu_count() or 1, len(starts))
    if workers <= 1:
        for start in starts:
            run(start)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(run, starts))
    return jax.tree.unflatten(out_tree, out)


def _floating(leaf: Array) -> np.ndarray:
    """A numpy array of a floating type; what is not gets JAX's default one."""
    array = np.asarray(leaf)
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(jnp.result_type(float))


def _length(leaves: list[np.ndarray]) -> int:
    """N of leaves `[N]` and scalars; 1 when all are scalars."""
    lengths = {x.shape for x in leaves if x.ndim}
    if len(lengths) > 1 or any(len(shape) > 1 for shape in lengths):
        raise ValueError(f"batch: expected leaves [N] of one length N, or scalars; got shapes {sorted(lengths)}")
    return lengths.pop()[0] if lengths else 1


def _block(leaf: np.ndarray, start: int, stop: int, rows: int) -> np.ndarray:
    """Cases start..stop of a leaf, padded to `rows` with its last case, which is a valid one."""
    if leaf.ndim == 0:
        return np.full(rows, leaf)
    part = leaf[start:stop]
    return part if stop - start == rows else np.concatenate([part, np.full(rows - (stop - start), part[-1])])


@lru_cache(maxsize=64)
def _jitted(function: Callable, wrt: tuple[str, ...] | None, chunk: int) -> Callable:
    """The compiled form of a block: `block(batch, fixed, n_chunks)`, gradients without fusion on a CPU."""
    case = function if wrt is None else partial(_value_and_slopes, function, wrt)
    unfused = wrt is not None and jax.default_backend() == "cpu" and MULTI_OUTPUT_FUSION not in os.environ.get("XLA_FLAGS", "")
    return jax.jit(partial(_loop, case, chunk), compiler_options={"xla_disable_hlo_passes": "fusion"} if unfused else None)


_EXECUTABLES: dict[tuple, jax.stages.Compiled] = {}


def compile_block(function: Callable, wrt: tuple[str, ...] | None, chunk: int, batch: Tree, fixed: Tree) -> jax.stages.Compiled:
    """The executable of one block of leaves with these shapes, compiled once per process; wrt None evaluates, else it differentiates."""
    leaves, tree = jax.tree.flatten((batch, fixed))
    key = (function, wrt, chunk, tree, *((x.shape, x.dtype) for x in leaves))
    if key not in _EXECUTABLES:
        count = jax.ShapeDtypeStruct((), np.int32)
        _EXECUTABLES[key] = _jitted(function, wrt, chunk).lower(batch, fixed, count).compile()
    return _EXECUTABLES[key]


def _loop(case: Callable[[Tree, Tree], Tree], chunk: int, batch: Tree, fixed: Tree, n_chunks: jax.Array) -> Tree:
    """Run a case function over the first chunks of a block, one after the other; the rest of the result is 0."""
    rows = jax.tree.leaves(batch)[0].shape[0]
    shapes = jax.eval_shape(case, jax.tree.map(lambda x: jax.ShapeDtypeStruct((chunk,), x.dtype), batch), fixed)

    def body(i: jax.Array, out: Tree) -> Tree:
        part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i * chunk, chunk), batch)
        result = jax.tree.map(partial(_with_batch, chunk=chunk), case(part, fixed))
        return jax.tree.map(lambda o, r: jax.lax.dynamic_update_slice_in_dim(o, r, i * chunk, axis=r.ndim - 1), out, result)

    start = jax.tree.map(lambda x: jnp.zeros((*x.shape[:-1], rows), x.dtype), shapes)
    return jax.lax.fori_loop(0, n_chunks, body, start)


def _with_batch(output: Array, chunk: int) -> jax.Array:
    """An output with its batch axis: a scalar is the same for all cases."""
    value = jnp.asarray(output)
    if value.ndim == 0:
        return jnp.broadcast_to(value, (chunk,))
    if value.shape[-1] != chunk:
        raise ValueError(f"function: expected outputs [..., batch] with the batch last, here {chunk}; got shape {value.shape}")
    return value


def _value_and_slopes(function: Callable, wrt: tuple[str, ...], batch: Tree, fixed: Tree) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Value and derivative of each case, `[chunk]`: shared leaves get the batch axis, so that each case has its own slope."""
    leaves, tree = jax.tree.flatten((batch, fixed))
    chunk, n_batch = leaves[0].shape[0], len(jax.tree.leaves(batch))
    places = [[*names(batch), *names(fixed)].index(name) for name in wrt]

    def value(chosen: list[jax.Array]) -> jax.Array:
        used = leaves.copy()
        for place, leaf in zip(places, chosen, strict=True):
            used[place] = leaf
        return _with_batch(function(*jax.tree.unflatten(tree, used)), chunk)

    chosen = [leaves[i] if i < n_batch else jnp.broadcast_to(leaves[i][..., None], (*leaves[i].shape, chunk)) for i in places]
    out, pull = jax.vjp(value, chosen)
    return out, tuple(pull(jnp.ones_like(out))[0])
