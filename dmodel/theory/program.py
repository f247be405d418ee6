"""The largest run as a program: maximize its compute over width, degrees and micro-batches, under
the deadline and the layout's limits.

Unknowns are logarithms, in which almost every limit is linear or convex; the laws are unrounded,
degrees and micro-batches real numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dmodel import struct
from dmodel.records import Cluster
from dmodel.theory import laws as scaling
from dmodel.theory.laws import Laws, Run
from dmodel.theory.layout import KINDS, LevelLayout
from dmodel.theory.pattern import CUT_RATIO, EP, PP, TP_FF, TP_MODEL, Arrays
from dmodel.theory.profile import Training, shard, training
from dmodel.theory.tiling import BLOCKS, UNROUNDED, WORD
from dmodel.types import Array

SHARPNESS = 1024.0
"""Of all maxima: 0.07 % above the hard one where two are equal."""

PLENTY = 1e30
"""Memory of a GPU that stands for no limit [byte]."""

LIMITS = (
    "deadline",
    "utilization",
    "micro-batches fill the pipeline",
    "stages have a layer",
    "tokens fill a tile",
    "d_model fills a tile",
    "d_ff fills a tile",
    "memory",
    "d_ff is cut at least as often",
    "d_ff is cut at most 16 times as often",
)
"""Limits that a start may violate."""

HELD = ("weights fit", "weights do not fit")
"""Limits of residence; limits of degrees follow, one for each kind and level."""


class Case(struct.PyTreeNode, frozen=True, kw_only=True):
    """What the frontier is a function of; every float leaf may be differentiated.

    Args:
      system: a `theory.gpu`. laws: constants of the laws. deadline_s: longest training [s].
      threshold: least utilization as a share of the GPU's ceiling (its sustained clock); 0 asks
        only that the run finishes.
      overlap_dp: 1 = data parallelism hides behind compute. sparse: with experts. Static.
    """

    system: Cluster
    laws: Laws
    deadline_s: Array
    threshold: Array = 0.0
    overlap_dp: Array = 0.0
    sparse: bool = struct.field(pytree_node=False, default=False)


class Point(NamedTuple):
    """A point of the program: the run, its layout, and what it takes."""

    run: Run
    layout: LevelLayout
    logs: jax.Array
    training: Training


def unknowns(n_levels: int) -> int:
    """ln d_model, ln m, and a logarithm for each kind and level."""
    return 2 + len(KINDS) * n_levels


def limit_names(n_levels: int) -> list[str]:
    """Names of all constraints, in their order."""
    return [
        *LIMITS,
        *HELD,
        *(f"{kind} at level {i} is at least 2" for kind in KINDS for i in range(n_levels)),
    ]


def soft_limits(n_levels: int) -> jax.Array:
    """1 for limits that a start may violate."""
    return jnp.concatenate([jnp.ones(len(LIMITS)), jnp.zeros(len(HELD) + len(KINDS) * n_levels)])


def log_degrees(z: jax.Array, pattern: Arrays, sizes: jax.Array, log_experts: Array) -> jax.Array:
    """Logarithms of the degrees `[kind, K]`: bounded levels are full, experts have their number,
    absent degrees are one."""
    x = z[2:].reshape(pattern.present.shape) * pattern.present
    logs = jnp.log(jnp.where(jnp.isfinite(sizes), sizes, 1.0))

    def fill(x: jax.Array) -> jax.Array:
        free = x * (1.0 - pattern.residual)
        return free + pattern.residual * (logs - free.sum(0))[None]

    filled = fill(x)
    others = filled[EP] * (1.0 - pattern.expert)
    return fill(filled.at[EP].set(others + pattern.expert * (log_experts - others.sum())))


def point(z: jax.Array, case: Case, pattern: Arrays) -> Point:
    """The run and layout of the unknowns, by the study's model without rounding."""
    run = scaling.run(jnp.exp(z[0]), sparse=case.sparse, laws=case.laws, rounding=False)
    run = jax.tree.map(jnp.asarray, run)
    logs = log_degrees(z, pattern, jnp.asarray(case.system.network.size), jnp.log(run.experts))
    degrees, one = jnp.exp(logs), jnp.ones(())
    piped = pattern.present[PP].max() * (1.0 - pattern.zero_bubble)
    layout = LevelLayout(
        **{f"{kind}_levels": degrees[i] for i, kind in enumerate(KINDS)},
        n_microbatches=jnp.exp(z[1]),
        interleave=jnp.where(piped > 0.0, run.layers / jnp.exp(logs[PP].sum()), one),
        zero_bubble=pattern.zero_bubble * one,
        overlap_tp=one,
        overlap_pp=one,
        overlap_dp=case.overlap_dp * one,
    )
    return Point(
        run, layout, logs, training(case.system, run, layout, rules=UNROUNDED, sharpness=SHARPNESS)
    )


def _residence(weights: jax.Array, case: Case, resident: Array) -> jax.Array:
    """Whether weights and gradients, twice `weights` bytes, stay in as many memories as the pattern
    says, and in no more `[2]`."""
    chip = case.system.chip
    shared = BLOCKS * chip.register_bytes  # type: ignore[attr-defined]
    cache = jnp.maximum(chip.l2_bytes, shared)  # type: ignore[attr-defined]
    rooms = jnp.sort(jnp.log(jnp.stack([cache, shared * chip.processors])))  # type: ignore
    used = jnp.log(2.0 * weights)
    room = jnp.where(resident > 1.0, rooms[0], rooms[1])
    beyond = jnp.where(resident > 0.0, rooms[0], rooms[1])
    return jnp.stack(
        [jnp.where(resident > 0.0, room - used, 1.0), jnp.where(resident > 1.0, 1.0, used - beyond)]
    )


def limits(at: Point, case: Case, pattern: Arrays) -> jax.Array:
    """All constraints, each ≥ 0 where it is kept and a logarithm, in the order of `limit_names`."""
    t, part = at.training, shard(at.run, at.layout, UNROUNDED)
    m, pp = jnp.log(at.layout.n_microbatches), at.logs[PP].sum()
    ceiling = case.system.chip.sustained  # type: ignore[attr-defined]
    ratio, piped, cut = (
        at.logs[TP_FF].sum() - at.logs[TP_MODEL].sum(),
        pattern.present[PP].max(),
        pattern.present[TP_MODEL : TP_FF + 1].max(),
    )
    soft = [
        jnp.log(case.deadline_s) - jnp.log(t.train_time_s),
        # without a threshold the utilization is far above it
        jnp.log(t.utilization) - jnp.log(jnp.maximum(case.threshold, 1e-30) * ceiling),
        m - pp - pattern.zero_bubble * jnp.log(2.0),
        jnp.where(piped > 0.0, jnp.log(part.layers), 1.0),
        *(
            jnp.log(size) - jnp.log(UNROUNDED.padding)
            for size in (part.tokens, part.d_model, part.d_ff)
        ),
        jnp.log(jnp.minimum(case.system.chip.hbm_bytes, PLENTY) * at.layout.devices)
        - jnp.log(t.mem_required_bytes),
        jnp.where(cut > 0.0, ratio, 1.0),
        jnp.where(cut > 0.0, jnp.log(CUT_RATIO) - ratio, 1.0),
    ]
    degrees = jnp.where(pattern.present > 0.0, at.logs - jnp.log(2.0), 1.0)
    held = _residence(jnp.asarray(WORD * part.d_model * part.d_ff), case, pattern.resident)
    return jnp.concatenate([jnp.stack(jnp.broadcast_arrays(*soft)), held, degrees.ravel()])
