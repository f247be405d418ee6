"""Layouts of the study by gradient: degrees at every level, micro-batches and placement as
continuous numbers, from many starts.

At each level the logarithms of the degrees lie on a simplex, so that they fill it by construction;
experts take their number, spread over the levels, and the other kinds share the rest. Interleaved
and zero-bubble schedules are two arms, searched side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import gcd
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dmodel import struct
from dmodel.records import Cluster
from dmodel.smooth import ramp
from dmodel.sweep import quick_to_compile
from dmodel.theory.laws import Run
from dmodel.theory.layout import KINDS, LevelLayout
from dmodel.theory.pattern import CUT_RATIO, DP, EP, PP, TP_FF, TP_MODEL
from dmodel.theory.profile import training
from dmodel.theory.search import Problem
from dmodel.theory.space import level_sizes
from dmodel.theory.tiling import RELAXED
from dmodel.types import Array

SHARPNESSES, STEPS, RATE = (4.0, 16.0, 64.0), 60, 0.15
"""Sharpness of the maxima from one round to the next; Adam steps of a round; the learning rate at
the start."""

TOGETHER = 16
"""Problems of one batch."""

WEIGHT = 20.0
"""Penalty of a limit, in relative training time per squared logarithmic excess."""


class Questions(struct.PyTreeNode, kw_only=True):
    """Problems side by side, leaves `[*batch]`: the run, logarithms of the levels' sizes `[K,
    *batch]` and of the experts' degree."""

    run: Run
    log_sizes: Array
    log_experts: Array


class Relaxed(NamedTuple):
    """Relaxed layouts of every problem, best first: logarithms of the degrees `[problem, start,
    kind, K]`, of the micro-batches and the training time `[problem, start]`, the schedule
    `[problem, start]`; gradients taken on the way, in points, per problem."""

    logs: np.ndarray
    log_microbatches: np.ndarray
    log_time: np.ndarray
    zero_bubble: np.ndarray
    gradients: int


def questions(problems: Sequence[Problem], gpu: Cluster) -> Questions:
    """Problems as arrays; leaves `[problem]`."""
    bounded = tuple(int(s) for s in np.asarray(gpu.network.size)[:-1])
    sizes = np.log(np.array([level_sizes(bounded, p.n_gpus) for p in problems], float)).T
    experts = np.log([float(gcd(p.n_gpus, int(p.run.experts))) for p in problems])
    run = jax.tree.map(lambda *x: np.array([float(v) for v in x]), *(p.run for p in problems))
    return Questions(run=run, log_sizes=sizes, log_experts=experts)


def _log_degrees(u: jax.Array, asked: Questions) -> jax.Array:
    """Logarithms of the degrees `[kind, K, *batch]` of unknowns `[5, K, *batch]`: shares of a
    level, and how much of the experts it has."""
    sizes = jnp.asarray(asked.log_sizes)
    left, experts = jnp.asarray(asked.log_experts), []
    for level in range(len(sizes)):
        beyond = sizes[level + 1 :].sum(0)
        low, high = jnp.clip(left - beyond, 0.0, sizes[level]), jnp.minimum(left, sizes[level])
        experts.append(low + jax.nn.sigmoid(u[EP, level]) * (high - low))
        left = left - experts[-1]
    taken = jnp.stack(experts)
    return jnp.concatenate([jax.nn.softmax(u[:EP], 0) * (sizes - taken)[None], taken[None]])


def relaxed_layout(
    u: jax.Array, asked: Questions, zero_bubble: Array
) -> tuple[LevelLayout, jax.Array, jax.Array]:
    """Layout of unknowns `[5 K + 1, *batch]`, logarithms of its degrees, and logarithmic excess
    over its limits `[limit, *batch]`."""
    n_levels, run = jnp.shape(asked.log_sizes)[0], asked.run
    logs = _log_degrees(u[:-1].reshape(len(KINDS), n_levels, *u.shape[1:]), asked)
    totals = logs.sum(1)
    least = totals[PP] + zero_bubble * jnp.log(2.0)
    room = jnp.log(run.batch_tokens / run.experts) - totals[DP] - least
    log_m = least + jax.nn.sigmoid(u[-1]) * jnp.maximum(room, 0.0)
    # chunks appear with the second stage
    chunks = (
        (1.0 - zero_bubble) * ramp(jnp.exp(totals[PP]) - 1.0) * (jnp.log(run.layers) - totals[PP])
    )
    ratio = totals[TP_FF] - totals[TP_MODEL]
    excess = jnp.stack(
        [
            totals[PP] - jnp.log(run.layers),
            -room,
            -ratio,
            ratio - jnp.log(CUT_RATIO),
            totals[TP_MODEL] - jnp.log(run.d_model),
        ]
    )
    layout = LevelLayout(
        **{f"{kind}_levels": jnp.exp(logs[i]) for i, kind in enumerate(KINDS)},
        n_microbatches=jnp.exp(log_m),
        interleave=jnp.exp(jnp.maximum(chunks, 0.0)),
        zero_bubble=zero_bubble,
    )
    return layout, logs, jnp.maximum(excess, 0.0)


def _round(
    u: jax.Array,
    asked: Questions,
    zero_bubble: jax.Array,
    system: Cluster,
    rate: jax.Array,
    sharpness: float,
) -> jax.Array:
    """Adam on ln T and the penalties, all starts at once."""

    def loss(u: jax.Array) -> jax.Array:
        layout, _, excess = relaxed_layout(u, asked, zero_bubble)
        time = training(system, asked.run, layout, rules=RELAXED, sharpness=sharpness).train_time_s
        return (jnp.log(time) + WEIGHT * (excess**2).sum(0)).sum()

    optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=rate)

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        u, state = carry
        # optax raises a float to its integer count of steps
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(jax.grad(loss)(u), state)
        return (optax.apply_updates(u, updates), state), None

    return jax.lax.scan(step, (u, optimizer.init(u)), None, length=STEPS)[0][0]


def _judged(
    u: jax.Array, asked: Questions, zero_bubble: jax.Array, system: Cluster
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Degrees, micro-batches and training time of relaxed layouts, in logarithms, penalties
    included."""
    layout, logs, excess = relaxed_layout(u, asked, zero_bubble)
    time = training(
        system, asked.run, layout, rules=RELAXED, sharpness=SHARPNESSES[-1]
    ).train_time_s
    return logs, jnp.log(layout.n_microbatches), jnp.log(time) + WEIGHT * (excess**2).sum(0)


@cache
def _compiled() -> tuple[Callable[..., jax.Array], Callable[..., tuple]]:
    fast = partial(jax.jit, compiler_options=quick_to_compile())
    return fast(_round, static_argnames="sharpness"), fast(_judged)


def _starts(n_levels: int, n_problems: int, n_starts: int, seed: int) -> np.ndarray:
    """Unknowns `[5 K + 1, problem, start]`: shares anywhere on the simplex, the same for all
    problems."""
    random = np.random.default_rng(seed)
    shares = np.log(random.dirichlet(np.full(EP, 0.7), (n_starts, n_levels)) + 1e-2).transpose(
        2, 1, 0
    )
    rest = random.normal(0.0, 1.5, (1, n_levels, n_starts))
    micro = random.normal(-3.0, 1.5, (1, n_starts))
    u = np.concatenate([np.concatenate([shares, rest]).reshape(-1, n_starts), micro])
    return np.repeat(u[:, None], n_problems, 1)


def relax(
    problems: Sequence[Problem], gpu: Cluster, *, n_starts: int = 16, seed: int = 0
) -> Relaxed:
    """Relaxed layouts of problems by gradient, each from many starts and with both schedules.

    Args:
      problems: any mixture of runs and numbers of GPUs. gpu: as `gpus.gpu` makes it.
      n_starts: per problem and schedule. seed: of the starts; the answer is the same for the same
        seed.
    """
    parts = [
        _relax(problems[i : i + TOGETHER], gpu, n_starts, seed)
        for i in range(0, len(problems), TOGETHER)
    ]
    each = 2 * n_starts * STEPS * len(SHARPNESSES)
    return Relaxed(*(np.concatenate(x) for x in zip(*parts, strict=True)), gradients=each)


def _relax(
    problems: Sequence[Problem], gpu: Cluster, n_starts: int, seed: int
) -> tuple[np.ndarray, ...]:
    """The same for at most `TOGETHER` problems; filled up, so that compiled code serves any
    number."""
    padded = [*problems, *([problems[-1]] * (TOGETHER - len(problems)))]
    asked = questions(padded, gpu)
    n, n_levels, each = len(padded), np.shape(asked.log_sizes)[0], 2 * n_starts
    schedule = np.tile(np.repeat([0.0, 1.0], n_starts), n)
    many = jax.tree.map(lambda x: jnp.asarray(np.repeat(x, each, -1)), asked)
    u = jnp.asarray(np.tile(_starts(n_levels, n, n_starts, seed), (1, 1, 2)).reshape(-1, n * each))
    descend, judge = _compiled()
    system = jax.tree.map(lambda x: jnp.asarray(x, float), gpu)
    for i, sharpness in enumerate(SHARPNESSES):
        u = descend(u, many, jnp.asarray(schedule), system, jnp.asarray(RATE / 2.0**i), sharpness)
    logs, *flat = (np.asarray(x) for x in judge(u, many, jnp.asarray(schedule), system))
    micro, time, schedule = (x.reshape(n, each) for x in (*flat, schedule))
    logs = logs.reshape(-1, n_levels, n, each).transpose(2, 3, 0, 1)
    order = np.argsort(time, 1, kind="stable")[: len(problems)]

    def sort(x: np.ndarray) -> np.ndarray:
        return np.take_along_axis(
            x[: len(problems)], order.reshape(*order.shape, *([1] * (x.ndim - 2))), 1
        )

    return sort(logs), sort(micro), sort(time), sort(schedule)
