"""The one driver that evaluates, and differentiates, a function of many cases: fast, the same
whatever the threads, and to a last bit the same whatever the chunks.

A case function is written for `[*batch]` leaves with the batch **last** (`dmodel.step`). The driver
cuts a batch of any size N into blocks of one fixed shape, so a function is compiled once per static
structure and not once per N; inside a block, a loop over chunks keeps
every intermediate in the cache of a core; blocks are spread over threads, which run in parallel
because compiled code holds no lock. Where JAX has several devices, each takes a block of every
call (`dmodel.devices`).

On a CPU the gradient is compiled without XLA's newer emitters of fusions, with which it runs a
third slower: fusion copies cheap operations into every consumer, and reverse mode reuses every
intermediate. Versions of XLA that know no other emitters compile it without fusion. Multi-output
fusion, which is off by default, is another cure; a user may opt in before the process starts, and
the driver then leaves fusion as it is:

    XLA_FLAGS=--xla_backend_extra_options=xla_cpu_use_multi_output_fusion

Nothing here sets a flag or an environment variable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from threading import Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel import devices, struct
from dmodel.coefficients import Coefficients
from dmodel.flattened import floating, length, packed, padded, unpacked
from dmodel.once import together
from dmodel.records import Cluster, Model, Plan, flat
from dmodel.smooth import SHARPNESS
from dmodel.step import memory_use, step_time
from dmodel.types import Array

CHUNK, GRADIENT_CHUNK = 1024, 512
"""Cases that flow through the function at once [count]: their intermediates have to fit the
second-level cache of a core."""

BLOCK = 16384
"""Cases of one call of compiled code [count]: large beside the cost of a call, small beside the
batches that are worth a sweep."""

MULTI_OUTPUT_FUSION = "xla_cpu_use_multi_output_fusion"

Tree = Any
"""A pytree of arrays."""


def sweep(
    function: Callable[[Tree, Tree], Tree],
    batch: Tree,
    fixed: Tree = (),
    *,
    chunk: int = CHUNK,
    threads: int | None = None,
    quick: bool = False,
    once: bool = False,
) -> Tree:
    """Evaluate `function(batch, fixed)` for every case of a batch.

    Limits: compiled on the first call for each function and static structure; a batch of another
    size N does not compile again. A function made anew for every call (a lambda, a partial)
    compiles anew: define it once.

    Args:
      function: pure; takes leaves `[chunk]` and returns a pytree of leaves `[..., chunk]` or
        scalars.
      batch: pytree with leaves `[N]` or scalars; numbers that are not floating point become floats.
      fixed: pytree of what all cases share, any shapes.
      chunk: cases that flow through the function at once.
      threads: of compiled code; None for one per core.
      quick: compile in a fifth of the time what then takes two to three times as long: worth it
        below some hundred thousand cases in all.
      once: compile in half of the time what then takes a quarter longer: worth it below some
        million cases in all.

    Returns:
      The function's pytree with numpy leaves `[..., N]`.

    Raises:
      ValueError: leaves of different lengths, or an output without the batch as its last axis.
    """
    return _run(Block(function, None, chunk, quick=quick, once=once), batch, fixed, threads)


def gradients(
    function: Callable[[Tree, Tree], Any],
    batch: Tree,
    fixed: Tree = (),
    *,
    wrt: Sequence[str] | None = None,
    chunk: int = GRADIENT_CHUNK,
    threads: int | None = None,
    fused: bool | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Value of `function(batch, fixed)` and its derivative, case by case, by reverse mode.

    Only what is asked for is differentiated: six degrees of a plan cost two thirds of all its
    leaves.

    Args:
      function, batch, fixed, chunk, threads: as in `sweep`; the function returns one number per
        case, `[chunk]`.
      wrt: names of leaves of the batch ("tp") or of `fixed` ("coefficients.launch" where it is a
        dictionary of records); None for the whole batch. For a leaf of `fixed` with axes of its own
        the derivative has them in front.
      fused: whether XLA fuses operations as it does by default; None leaves it to the driver.

    Returns:
      value `[N]`, and the derivatives by name, `[..., N]` [unit of the value over that of the
      leaf].

    Raises:
      ValueError: unknown name in `wrt`, or as in `sweep`.
    """
    known = [*names(batch), *names(fixed)]
    wrt = tuple(names(batch)) if wrt is None else tuple(wrt)
    if unknown := [n for n in wrt if n not in known]:
        raise ValueError(
            f"wrt: no such leaf: {', '.join(unknown)}; expected some of {', '.join(known)}"
        )
    fused = _gradients_fuse() if fused is None else fused
    value, slopes = _run(Block(function, wrt, chunk, fused), batch, fixed, threads)
    return value, dict(zip(wrt, slopes, strict=True))


def names(tree: Tree) -> list[str]:
    """Dotted names of the leaves of a pytree, in its order: "chip.flops_per_s"; those of a plan
    are flat: "plan.tp"."""
    return [
        flat(jax.tree_util.keystr(path, simple=True, separator="."))
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


class Totals(struct.PyTreeNode, kw_only=True):
    """What ranks a plan: step time [s] and the bytes of its fullest device [byte], `[N]`."""

    step_time_s: Array
    memory_bytes: Array


@lru_cache(maxsize=16)
def totals(sharpness: float = SHARPNESS) -> Callable[[Plan, dict[str, Tree]], Totals]:
    """The case function of `evaluate`: fixed is `{"system", "model", "coefficients"}`."""

    def function(plan: Plan, fixed: dict[str, Tree]) -> Totals:
        with together():
            time = step_time(
                fixed["system"], fixed["model"], plan, fixed["coefficients"], sharpness=sharpness
            )
            return Totals(
                step_time_s=time.total, memory_bytes=memory_use(fixed["model"], plan).total
            )

    return function


def evaluate(
    plans: Plan,
    system: Cluster,
    model: Model,
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
    return sweep(
        totals(sharpness),
        plans,
        {"system": system, "model": model, "coefficients": coefficients},
        threads=threads,
    )


class Block(NamedTuple):
    """What is compiled: a case function, what it is differentiated by (None: nothing), cases per
    chunk, whether XLA fuses, and whether it compiles for few cases, or for a single sweep."""

    function: Callable
    wrt: tuple[str, ...] | None
    chunk: int
    fused: bool = True
    quick: bool = False
    once: bool = False

    @property
    def rows(self) -> int:
        """Cases of one call: a whole number of chunks."""
        return self.chunk * max(BLOCK // self.chunk, 1)


def lower(block: Block, batch: Tree, fixed: Tree) -> jax.stages.Lowered:
    """Trace a block for leaves of these kinds; N does not matter. `.compile()` gives `run(batch,
    packed(fixed), n_chunks)`; of several devices, each has a block and its own number of chunks."""
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((block.rows,), floating(x).dtype), batch)
    kinds = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), floating(x).dtype), fixed)
    case = (
        block.function
        if block.wrt is None
        else partial(_value_and_slopes, block.function, block.wrt)
    )
    options = _compiler_options(block)

    def run(batch: Tree, shared: dict[str, jax.Array], n_chunks: jax.Array) -> Tree:
        return _loop(case, block.chunk, batch, unpacked(shared, kinds), n_chunks)

    shared, count = packed(fixed), devices.count()
    if count == 1:
        return jax.jit(run, compiler_options=options).lower(
            batch, shared, jax.ShapeDtypeStruct((), np.int32)
        )
    every = devices.over_devices(run, batch, shared)
    rows = (count * block.rows,)
    many = jax.tree.map(lambda x: jax.ShapeDtypeStruct(rows, x.dtype), batch)
    counts = jax.ShapeDtypeStruct((count,), np.int32)
    return jax.jit(every, compiler_options=options).lower(
        devices.kinds(many, True), devices.kinds(shared, False), devices.kinds(counts, True)
    )


def _compiler_options(block: Block) -> dict[str, Any] | None:
    """How a block is compiled."""
    if block.quick:
        return quick_to_compile()
    if not block.fused:
        by_older = _known({"xla_cpu_use_fusion_emitters": False})
        return by_older or {"xla_disable_hlo_passes": "fusion"}
    return for_many() if block.once else None


def for_many() -> dict[str, Any] | None:
    """Options for compiling what runs on up to some million cases: on a CPU, without the emitters
    of fusions and at the first level of optimization. It takes half of the usual time to compile,
    and the step of many plans runs a fifth slower."""
    quick = quick_to_compile()
    return None if quick is None else {**quick, "xla_backend_optimization_level": 1}


def quick_to_compile() -> dict[str, Any] | None:
    """Options for compiling what runs on few cases: on a CPU, without the optimization that takes
    most of the compile time."""
    if jax.default_backend() != "cpu":
        return None
    return _known({"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0})


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """Those options that this version of XLA knows."""
    return {k: v for k, v in options.items() if _has_option(k, v)}


@lru_cache
def _has_option(name: str, value: Any) -> bool:
    """Whether this version of XLA knows an option; they come and go (fusion emitters are not
    optional in jax 0.12)."""
    try:
        jax.jit(lambda: 0.0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError as e:
        if "No such compile option" in str(e):
            return False
        raise
    return True


def _gradients_fuse() -> bool:
    """Only a CPU suffers from gradients fused by default, and not under multi-output fusion."""
    return jax.default_backend() != "cpu" or MULTI_OUTPUT_FUSION in os.environ.get("XLA_FLAGS", "")


_COMPILED: dict[tuple, jax.stages.Compiled] = {}
_COMPILING = Lock()


def _compiled(block: Block, batch: Tree, fixed: Tree) -> jax.stages.Compiled:
    """The executable of a block, compiled once per process and static structure."""
    leaves, tree = jax.tree.flatten((batch, fixed))
    n_batch = len(jax.tree.leaves(batch))
    key = (
        block,
        block.rows,
        tree,
        *((x.dtype, x.shape if i >= n_batch else ()) for i, x in enumerate(leaves)),
    )
    with _COMPILING:  # so that threads that ask for one program compile it once
        if key not in _COMPILED:
            _COMPILED[key] = lower(block, batch, fixed).compile()
    return _COMPILED[key]


def _run(block: Block, batch: Tree, fixed: Tree, threads: int | None) -> Tree:
    """Cut a batch into blocks, run them on a pool of threads and join the results."""
    batch, fixed = jax.tree.map(floating, (batch, fixed))
    leaves, tree = jax.tree.flatten(batch)
    size, rows = length(leaves), block.rows * devices.count()
    compiled = _compiled(block, batch, fixed)
    call = devices.caller(compiled, packed(fixed), block.rows, block.chunk)
    shapes, out_tree = jax.tree.flatten(compiled.out_info)
    out = [np.empty((*x.shape[:-1], size), x.dtype) for x in shapes]

    def run(start: int) -> None:
        stop = min(start + rows, size)
        part = jax.tree.unflatten(tree, [padded(x, start, stop, rows) for x in leaves])
        for whole, found in zip(out, jax.tree.leaves(call(part, stop - start)), strict=True):
            whole[..., start:stop] = found[..., : stop - start]

    starts = range(0, size, rows)
    workers = min(threads or os.cpu_count() or 1, len(starts))
    workers = 1 if devices.hosts() > 1 else workers  # all hosts make their calls in one order
    if workers <= 1:
        for start in starts:
            run(start)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(run, starts))
    return jax.tree.unflatten(out_tree, out)


def _loop(
    case: Callable[[Tree, Tree], Tree], chunk: int, batch: Tree, fixed: Tree, n_chunks: jax.Array
) -> Tree:
    """Run a case function over the first chunks of a block, one after the other; the rest of the
    result is 0."""
    rows = jax.tree.leaves(batch)[0].shape[0]
    case = jax.jit(case, inline=True)  # so that it is traced once for the shapes and the body
    shapes = jax.eval_shape(
        case, jax.tree.map(lambda x: jax.ShapeDtypeStruct((chunk,), x.dtype), batch), fixed
    )

    def body(i: jax.Array, out: Tree) -> Tree:
        part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i * chunk, chunk), batch)
        result = jax.tree.map(partial(_with_batch, chunk=chunk), case(part, fixed))
        return jax.tree.map(
            lambda o, r: jax.lax.dynamic_update_slice_in_dim(o, r, i * chunk, axis=r.ndim - 1),
            out,
            result,
        )

    start = jax.tree.map(lambda x: jnp.zeros((*x.shape[:-1], rows), x.dtype), shapes)
    return jax.lax.fori_loop(0, n_chunks, body, start)


def _with_batch(output: Array, chunk: int) -> jax.Array:
    """An output with its batch axis: a scalar is the same for all cases."""
    value = jnp.asarray(output)
    if value.ndim == 0:
        return jnp.broadcast_to(value, (chunk,))
    if value.shape[-1] != chunk:
        raise ValueError(
            f"function: expected outputs [..., batch] with the batch last, here {chunk}; got "
            f"shape {value.shape}"
        )
    return value


def _value_and_slopes(
    function: Callable, wrt: tuple[str, ...], batch: Tree, fixed: Tree
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Value and derivative of each case, `[chunk]`: shared leaves get the batch axis, so that each
    case has its own slope."""
    leaves, tree = jax.tree.flatten((batch, fixed))
    chunk, n_batch = leaves[0].shape[0], len(jax.tree.leaves(batch))
    places = [[*names(batch), *names(fixed)].index(name) for name in wrt]

    def value(chosen: list[jax.Array]) -> jax.Array:
        used = leaves.copy()
        for place, leaf in zip(places, chosen, strict=True):
            used[place] = leaf
        return _with_batch(function(*jax.tree.unflatten(tree, used)), chunk)

    chosen = [
        leaves[i]
        if i < n_batch
        else jnp.broadcast_to(leaves[i][..., None], (*leaves[i].shape, chunk))
        for i in places
    ]
    out, pull = jax.vjp(value, chosen)
    return out, tuple(pull(jnp.ones_like(out))[0])
