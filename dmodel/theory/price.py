"""What candidates of the search cost, as case functions of `dmodel.sweep`: on a pooled network, and
placed in every way on a level.

All of it is the step of `theory.profile`; here is only which layouts it is asked about. Placements
of a layout share its products, so those are priced once and handed on.
"""

from __future__ import annotations

from math import inf, prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dmodel import struct
from dmodel.coefficients import Coefficients
from dmodel.physics import Costs, Physics
from dmodel.records import Cluster
from dmodel.step import step_time
from dmodel.theory.laws import Run
from dmodel.theory.layout import KINDS, LevelLayout
from dmodel.theory.messages import messages
from dmodel.theory.profile import IDEAL, align, costs, layer_work, layer_work_of, memory, shard
from dmodel.theory.space import Candidates
from dmodel.theory.tiling import EXACT
from dmodel.types import Array, stack

TIE = 1.0 + 1e-14
"""Training times within this factor are equal: a compiler may round one value in two ways."""


class Degrees(NamedTuple):
    """Degrees of all kinds on one level of the network, or on all of them."""

    dp: Array
    tp_model: Array
    tp_ff: Array
    pp: Array
    ep: Array


class Case(struct.PyTreeNode, frozen=True, kw_only=True):
    """A run and a layout of the study's space, leaves `[*batch]`."""

    run: Run
    layout: Candidates


def layout_of(candidate: Candidates, levels: tuple[Degrees, ...]) -> LevelLayout:
    """A candidate with its degrees placed on the levels of a network, innermost first."""
    placed = {
        f"{kind}_levels": stack(*(getattr(level, kind) for level in levels)) for kind in KINDS
    }
    return LevelLayout(
        **placed,
        n_microbatches=candidate.micro_batches,
        interleave=candidate.interleave,
        zero_bubble=candidate.zero_bubble,
    )


def _train_time(system: Cluster, run: Run, layout: LevelLayout, matmul_s: Array) -> jax.Array:
    """Time of all steps of a run [s], given that of a layer's products."""

    def given(system: Any, run: Any, layout: Any, _: Coefficients, sharpness: float) -> Costs:
        return costs(system, run, layout, sharpness, EXACT, layer_work_of(matmul_s, layout))

    physics = Physics(align=align, costs=given, memory=memory)
    step = step_time(system, run, layout, IDEAL, sharpness=inf, physics=physics)  # type: ignore
    return jnp.asarray(run.dataset_tokens / run.batch_tokens * step.total)


def pooled_time(case: Case, system: Cluster) -> tuple[jax.Array, jax.Array]:
    """Time of a layer's products, per micro-batch, and of the whole run on a network of one level
    [s], `[batch]`."""
    layout = layout_of(case.layout, (Degrees(*case.layout[: len(KINDS)]),))
    matmul_s = jnp.asarray(
        layer_work(system, shard(case.run, layout), layout, EXACT, inf).matmul.total
    )
    return matmul_s, _train_time(system, case.run, layout, matmul_s)


def way_times(batch: dict[str, Any], fixed: dict[str, Any]) -> jax.Array:
    """Training time for every way to place a candidate on the next level, what is left lying on the
    one above, `[way, batch]` [s].

    A way that does not divide the candidate's degrees takes forever.

    Args:
      batch: `case`, `matmul_s` as `pooled_time` finds it, `inner`: the levels below, already
        placed, a tuple of `Degrees` `[batch]`.
      fixed: `gpu`: a system with two levels more than are placed. `ways`: of the next level,
        `[kind, way]`.
    """
    return _ways(batch, fixed)[0]


def best_way(
    batch: dict[str, Any], fixed: dict[str, Any]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Training time of the fastest of `way_times`, the communication in it, which breaks ties [s],
    and which one it is, `[batch]`."""
    times, system, run, layout = _ways(batch, fixed)
    system, layout = align(system, layout)
    sent = messages(system.network, run, layout, inf)
    flows = (
        run.dataset_tokens
        / run.batch_tokens
        * (sent.tensor.flow + sent.data.flow + sent.transfers.flow)
    )
    least = times.min(0)
    flows = jnp.where(times <= TIE * least[None], flows, inf)
    return least, flows.min(0), flows.argmin(0).astype(least.dtype)


def _ways(
    batch: dict[str, Any], fixed: dict[str, Any]
) -> tuple[jax.Array, Cluster, Run, LevelLayout]:
    """Times of all ways, and what they are the times of: leaves `[1, batch]`, degrees `[K, way,
    batch]`."""
    case, inner, matmul_s = jax.tree.map(
        lambda x: x[None], (batch["case"], batch["inner"], batch["matmul_s"])
    )
    way = Degrees(*(x[:, None] for x in fixed["ways"]))
    whole = Degrees(*case.layout[: len(KINDS)])
    placed = jax.tree.map(lambda *x: prod(x), *inner, way)
    # rounded, because a compiler may divide by multiplying with a reciprocal
    left = jax.tree.map(lambda x, y: jnp.round(x / y), whole, placed)
    layout = layout_of(case.layout, (*inner, way, left))
    divides = jnp.stack([x * y == z for x, y, z in zip(left, placed, whole, strict=True)]).all(0)
    times = jnp.where(divides, _train_time(fixed["gpu"], case.run, layout, matmul_s), inf)
    return times, fixed["gpu"], case.run, layout
