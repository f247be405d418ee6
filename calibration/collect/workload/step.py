"""The training step as a user measures it: one compiled function from state and batch to the next
state and the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from calibration.collect.workload import mesh as meshes
from calibration.collect.workload.loss import embed, head_loss
from calibration.collect.workload.model import init_params, run_layers
from calibration.collect.workload.spec import AXES, WorkloadSpec, check
from dmodel.sweep import quick_to_compile

LEARNING_RATE = 1e-3


class State(NamedTuple):
    """Parameters and optimizer state in fp32, sharded."""

    params: Any
    optimizer: Any


class Batch(NamedTuple):
    """tokens, labels: `[m, rows, s]` int32."""

    tokens: jax.Array
    labels: jax.Array


def optimizer() -> optax.GradientTransformation:
    """AdamW with two moments in fp32."""
    return optax.adamw(LEARNING_RATE, b1=0.9, b2=0.95, weight_decay=0.1)


def local_loss(spec: WorkloadSpec, params: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    """This device's part of the mean loss of one micro-batch `[b, t]`: parts of all devices and
    micro-batches add up to it.

    Ranks of tensor compute the same loss, so each counts for `1 / tensor` of it.
    """
    x = run_layers(spec, params["layers"], embed(spec, params, tokens))
    return head_loss(spec, params, x, labels) * _share(spec)


def _share(spec: WorkloadSpec) -> float:
    return 1.0 / (spec.global_batch * spec.seq_len * spec.tensor)


def accumulated(spec: WorkloadSpec, params: Any, batch: Batch) -> tuple[jax.Array, Any]:
    """Loss and gradients of all micro-batches, one after the other."""
    slope = jax.value_and_grad(local_loss, argnums=1)
    if spec.n_microbatches == 1:
        return slope(spec, params, batch.tokens[0], batch.labels[0])

    def add(sums: Any, micro: Batch) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, slope(spec, params, *micro)), None

    zero = (jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, params))
    return lax.scan(add, zero, batch, unroll=spec.unroll)[0]


def pipelined_loss(spec: WorkloadSpec, params: Any, batch: Batch) -> jax.Array:
    """This device's part of the loss of all micro-batches, which pass the stages one behind the
    other (GPipe).

    At tick i stage k works on micro-batch i − k; before its first and after its last one it works
    on zeros or on what is left, and nobody reads that. The stages then share the micro-batches for
    the head, which would otherwise burden the last one.
    """
    s, stage = spec, meshes.index(spec, "pipeline")
    b, t = batch.tokens.shape[1:]
    vectors = embed(s, params, batch.tokens.reshape(-1, t))
    vectors = vectors.reshape(s.n_microbatches, b, *vectors.shape[1:])

    def tick(received: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
        first = lax.dynamic_index_in_dim(
            vectors, jnp.minimum(i, s.n_microbatches - 1), keepdims=False
        )
        x = run_layers(s, params["layers"], jnp.where(stage == 0, first, received))
        with jax.named_scope("transfer"):
            return meshes.to_next_stage(s, x), x

    ticks = jnp.arange(s.n_microbatches + s.pipeline - 1, dtype=jnp.int32)
    done = lax.scan(tick, jnp.zeros_like(vectors[0]), ticks, unroll=s.unroll)[1][s.pipeline - 1 :]
    share = s.n_microbatches // s.pipeline
    with jax.named_scope("hand_over"):
        finished = jnp.where(stage == s.pipeline - 1, done, jnp.zeros((), done.dtype))
        mine = lax.psum_scatter(finished, "pipeline", scatter_dimension=0, tiled=True)
    labels = lax.dynamic_slice_in_dim(batch.labels, stage * share, share, 0)

    def add(total: jax.Array, each: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + head_loss(s, params, *each), None

    return lax.scan(add, jnp.zeros((), jnp.float32), (mine, labels), unroll=s.unroll)[0] * _share(s)


def train(spec: WorkloadSpec, state: State, batch: Batch) -> tuple[State, jax.Array]:
    """One step on this device: gradients, their reduction, AdamW on the parameters that live here;
    and the mean loss."""
    if spec.pipeline > 1:
        part, gradients = jax.value_and_grad(pipelined_loss, argnums=1)(spec, state.params, batch)
    else:
        part, gradients = accumulated(spec, state.params, batch)
    gradients = meshes.reduce_gradients(spec, gradients)
    # optax raises a float to an integer count
    with jax.named_scope("optimizer"), jax.numpy_dtype_promotion("standard"):
        updates, following = optimizer().update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
    with jax.named_scope("loss"):
        return State(params, following), meshes.total(spec, part, AXES)


class Workload(NamedTuple):
    """A step ready to run.

    Attributes:
      spec, mesh: what runs where. state: as initialized; donated to `step`, so go on with what it
        returns.
      step: compiled on its first call, (state, batch) → (state, loss).
    """

    spec: WorkloadSpec
    mesh: Mesh
    state: State
    step: Callable[[State, Batch], tuple[State, jax.Array]]

    def batch(self, number: int = 0) -> Batch:
        """Random tokens, none of them 0, the same for the same number whatever the mesh."""
        s = self.spec
        drawn = np.random.default_rng(number).integers(
            1, s.vocab, (s.n_microbatches * s.micro_batch * s.data_ranks, s.seq_len + 1)
        )
        drawn = drawn.astype(np.int32).reshape(s.n_microbatches, -1, s.seq_len + 1)
        place = NamedSharding(self.mesh, meshes.batch_place())
        parts = (np.ascontiguousarray(part) for part in (drawn[..., :-1], drawn[..., 1:]))
        return Batch(
            *(jax.make_array_from_callback(part.shape, place, part.__getitem__) for part in parts)
        )

    def lower(self) -> jax.stages.Lowered:
        """The step before compilation; `.compile()` gives the program with its cost and memory
        analysis."""
        return _lower(self.spec, self.mesh, self.step)


def build(
    spec: WorkloadSpec,
    devices: Sequence[Any] | None = None,
    seed: int = 0,
    compiler_options: dict[str, Any] | None = None,
) -> Workload:
    """Make the state on its devices, and the step.

    Args:
      devices: as many as the axes multiply to; all of the process by default. compiler_options: of
        XLA, for the step.
    Raises:
      InputError: sizes that do not divide, or another number of devices.
    """
    check(spec)
    mesh = meshes.make_mesh(spec, jax.devices() if devices is None else devices)
    shardings = jax.tree.map(lambda p: NamedSharding(mesh, p), _state_places(spec))
    state = jax.jit(
        lambda: _initial(spec, seed), out_shardings=shardings, compiler_options=quick_to_compile()
    )()
    return Workload(spec, mesh, state, _compiled_step(spec, mesh, compiler_options))


def lower(spec: WorkloadSpec, devices: Sequence[Any] | None = None) -> jax.stages.Lowered:
    """The step before compilation without any state in memory: for analysis of what would not fit,
    or need not run."""
    check(spec)
    mesh = meshes.make_mesh(spec, jax.devices() if devices is None else devices)
    return _lower(spec, mesh, _compiled_step(spec, mesh))


def _compiled_step(
    spec: WorkloadSpec, mesh: Mesh, compiler_options: dict[str, Any] | None = None
) -> Any:
    places, place = _state_places(spec), meshes.batch_place()
    batch = Batch(tokens=place, labels=place)  # type: ignore[arg-type]
    step = jax.shard_map(
        lambda state, batch: train(spec, state, batch),
        mesh=mesh,
        in_specs=(places, batch),
        out_specs=(places, PartitionSpec()),
        # replication is this module's own business: see the rule of gradients in `mesh`
        check_vma=False,
    )
    return jax.jit(step, donate_argnums=0, compiler_options=compiler_options)


def _lower(spec: WorkloadSpec, mesh: Mesh, step: Any) -> jax.stages.Lowered:
    state = jax.tree.map(
        lambda x, p: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, p)),
        _state_shapes(spec),
        _state_places(spec),
    )
    shape = (spec.n_microbatches, spec.micro_batch * spec.data_ranks, spec.seq_len)
    part = jax.ShapeDtypeStruct(
        shape, jnp.int32, sharding=NamedSharding(mesh, meshes.batch_place())
    )
    return step.lower(state, Batch(part, part))  # type: ignore[arg-type]


def _initial(spec: WorkloadSpec, seed: int) -> State:
    params = init_params(spec, jax.random.key(seed))
    return State(params, optimizer().init(params))


def _state_shapes(spec: WorkloadSpec) -> State:
    return jax.eval_shape(lambda: _initial(spec, 0))


def _state_places(spec: WorkloadSpec) -> State:
    """Moments live where their parameters do; counters everywhere."""
    shapes = _state_shapes(spec)
    params = meshes.places(spec, shapes.params)
    moments = optax.tree.map_params(
        optimizer(),
        lambda _, place: place,
        shapes.optimizer,
        params,
        transform_non_params=lambda _: PartitionSpec(),
    )
    return State(params, moments)
