"""Gradient search over sizes and a relaxed plan together: many starts at once, augmented
Lagrangian, sharpness annealed.

The unknowns are the logarithms of all sizes, kept in their bounds by projection, and eight numbers
of the plan: shares of the logarithm of the device count for dp, tp, cp and pp, so that their
product is the device count by construction, and shares of what is left for micro-batch,
recomputation and interleaving. ZeRO stages are arms. Expert parallelism is a share of what data
parallelism and the experts allow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dmodel import struct
from dmodel.codesign.limits import Goal, excess, merit
from dmodel.codesign.outcome import NAMES, Outcome, World, outcome
from dmodel.codesign.unknowns import Unknowns
from dmodel.records import Plan, value
from dmodel.smooth import SHARPNESS
from dmodel.sweep import quick_to_compile
from dmodel.types import Array

LATENTS = 9
"""Four shares of the devices; micro-batch, full and selective recomputation, interleaving, experts.
"""

ANNEAL = (2.0, SHARPNESS)
"""Sharpness of the first half of the search and of the second, which is that of the fitted
coefficients."""

ROUNDS, STEPS, RATE, WEIGHT = 4, 40, 0.12, 10.0
"""Of each half: updates of the multipliers, Adam steps between them; Adam's first rate; curvature
of the penalty."""


class Arms(struct.PyTreeNode, kw_only=True):
    """One per start `[n]`: ZeRO stage, and whether parameters are gathered again."""

    zero: Array
    reshard: Array


class Search(struct.PyTreeNode, kw_only=True):
    """Where starts ended, best first: sizes `[name, n]` (logarithms), plan `[n]`, merit `[n]`,
    violation `[n]` (largest scaled excess, 0 where all limits are kept), multipliers `[limit, n]`,
    outcome `[…, n]`."""

    x: np.ndarray
    plan: Plan
    merit: np.ndarray
    violation: np.ndarray
    outcome: Outcome
    gradients: int


def named(x: jax.Array, names: tuple[str, ...]) -> dict[str, jax.Array]:
    """Logarithms `[name, *batch]` as values by name."""
    return {name: jnp.exp(x[i]) for i, name in enumerate(names)}


def relaxed_plan(
    z: jax.Array, x: dict[str, jax.Array], arm: Arms, base: Plan, n_experts: Array
) -> Plan:
    """Plan of latents `[LATENTS, *batch]` for sizes."""
    share = jax.nn.softmax(z[:4], 0) * jnp.log(x["devices"])[None]
    dp, tp, cp, pp = jnp.unstack(share)
    free = jax.nn.sigmoid(z[4:])
    chunks = float(base.layout.schedule in ("1f1b", "interleaved"))
    staged = jnp.maximum(jnp.log(x["n_layers"]) - pp, 0.0)
    sharded = jnp.clip(jnp.asarray(arm.zero), 0.0, 1.0)
    return base.having(
        dp=jnp.exp(dp),
        tp=jnp.exp(tp),
        cp=jnp.exp(cp),
        pp=jnp.exp(pp),
        ep=jnp.exp(free[4] * jnp.minimum(dp, jnp.log(n_experts))),
        sp=jnp.ones_like(dp),
        zero=arm.zero,
        shard=jnp.exp(dp * sharded),
        reshard=arm.reshard,
        # a pipeline of one stage has no chunks
        interleave=jnp.exp(chunks * free[3] * jnp.minimum(staged, 2.0 * pp)),
        micro_batch=jnp.exp(free[0] * jnp.maximum(jnp.log(x["global_batch"]) - dp, 0.0)),
        global_batch=x["global_batch"],
        recompute_layers=free[1],
        recompute_attention=free[2] * (1.0 - base.software.flash),
        schedule="interleaved" if base.layout.schedule == "1f1b" else base.layout.schedule,
    )


N_STRUCTURE = 4


def structure(plan: Plan, x: dict[str, jax.Array], world: World) -> jax.Array:
    """Logarithmic excess of degrees over what they split, `[4, *batch]`: heads, layers, sequence,
    batch."""
    heads = world.fixed.head_share * x["d_model"] / x["head_dim"]
    over = [
        plan.layout.tp / heads,
        plan.layout.pp / x["n_layers"],
        plan.layout.cp / world.fixed.model.seq_len,
        plan.layout.dp / x["global_batch"],
    ]
    return jnp.log(jnp.stack(jnp.broadcast_arrays(*over)))


def aggregated(
    x: dict[str, jax.Array], plan: Plan, world: World, at: Goal, sharpness: float
) -> Outcome:
    """Outcome over the samples of the coefficients: quantities are their mean, or a quantile; the
    rest is of the first sample."""
    many = jax.vmap(lambda c: outcome(x, plan, world, c, sharpness))(world.coefficients)
    q = many.quantities
    if q.shape[0] == 1:
        return jax.tree.map(lambda leaf: leaf[0], many)
    # a larger model FLOP count is better, but it is the same in all samples
    chosen = jnp.where(
        at.quantile < 0.0,
        q.mean(0),
        jnp.quantile(q, jnp.clip(jnp.asarray(at.quantile), 0.0, 1.0), axis=0),
    )
    return jax.tree.map(lambda leaf: leaf[0], many).replace(quantities=chosen)


class _State(struct.PyTreeNode, kw_only=True):
    """What the search carries: unknowns `[name + LATENTS, n]`, Adam's moments, multipliers `[limit,
    n]`, steps done, and what is known of the unknowns before the last update: relaxed plan, outcome
    and excess."""

    u: jax.Array
    moments: optax.OptState
    multipliers: jax.Array
    count: jax.Array


def _judged(
    u: jax.Array,
    arm: Arms,
    world: World,
    at: Goal,
    base: Plan,
    names: tuple[str, ...],
    sharpness: float,
) -> tuple:
    """Plan, outcome and excess over all limits of unknowns."""
    x = named(u[: len(names)], names)
    plan = relaxed_plan(u[len(names) :], x, arm, base, value(world.fixed.model, "n_experts", 1.0))
    found = aggregated(x, plan, world, at, sharpness)
    return plan, found, jnp.concatenate([excess(found.quantities, at), structure(plan, x, world)])


def _descend(
    state: _State,
    arm: Arms,
    bounds: tuple,
    world: World,
    at: Goal,
    base: Plan,
    names: tuple,
    sharpness: float,
    steps: int,
):
    """Adam on the augmented Lagrangian; returns the state, and plan, outcome and excess where it
    ended (the last step stands still)."""
    n_x, (low, high) = len(names), bounds
    moving = jnp.concatenate([(high > low).astype(state.u.dtype), jnp.ones((LATENTS, 1))])
    optimizer = optax.scale_by_adam()

    def lagrangian(u: jax.Array, multipliers: jax.Array) -> tuple:
        seen = _judged(u, arm, world, at, base, names, sharpness)
        penalty = (jnp.maximum(multipliers + WEIGHT * seen[2], 0.0) ** 2).sum(0) / (2.0 * WEIGHT)
        return (merit(seen[1].quantities, at) + penalty).sum(), seen

    def step(carry: tuple, i: jax.Array) -> tuple[tuple, None]:
        state, _ = carry
        slopes, seen = jax.grad(lagrangian, has_aux=True)(state.u, state.multipliers)
        # optax raises a float to its integer count of steps
        with jax.numpy_dtype_promotion("standard"):
            updates, moments = optimizer.update(slopes * moving, state.moments)
        # cosine over both halves, so that the last rounds settle
        rate = RATE * (
            0.05 + 0.475 * (1.0 + jnp.cos(jnp.pi * state.count / (2.0 * ROUNDS * STEPS)))
        )
        u = state.u - jnp.where(i < steps - 1, rate, 0.0) * jnp.asarray(updates)
        u = jnp.concatenate([jnp.clip(u[:n_x], low, high), u[n_x:]])
        count = state.count + 1.0
        raised = jnp.maximum(state.multipliers + WEIGHT * seen[2], 0.0)
        multipliers = jnp.where(count % STEPS == 0.0, raised, state.multipliers)
        return (_State(u=u, moments=moments, multipliers=multipliers, count=count), seen), None

    shapes = jax.eval_shape(lambda u: _judged(u, arm, world, at, base, names, sharpness), state.u)
    empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    (state, seen), _ = jax.lax.scan(step, (state, empty), jnp.arange(steps))
    return state, seen


@cache
def _compiled() -> Callable:
    return jax.jit(
        _descend,
        static_argnames=("names", "sharpness", "steps"),
        compiler_options=quick_to_compile(),
    )


def starts(unknowns: Unknowns, n: int, seed: int) -> np.ndarray:
    """Starting unknowns `[name + LATENTS, n]`: sizes uniform between their bounds, degrees uniform
    on the simplex of logarithms."""
    random = np.random.default_rng(seed)
    sizes = random.uniform(
        unknowns.low[:, None], unknowns.high[:, None] + 1e-300, (len(unknowns.names), n)
    )
    shares = np.log(random.dirichlet(np.full(4, 0.5), n).T + 1e-2)
    return np.concatenate([sizes, shares, random.normal(-1.0, 1.0, (LATENTS - 4, n))])


def relax(
    unknowns: Unknowns,
    world: World,
    at: Goal,
    base: Plan,
    zero: tuple[int, ...] = (0, 1, 3),
    *,
    n_starts: int = 16,
    seed: int = 0,
    anneal: tuple[float, ...] = ANNEAL,
) -> Search:
    """Search sizes and relaxed plans by gradient.

    Args:
      zero: ZeRO stages, each an arm. n_starts: for each of them. seed: of the starts; the answer is
        the same for the same seed.
      anneal: sharpness of each part of the search.

    Returns:
      All ends, those that keep the limits (to 1 %) first, then by merit.
    """
    kinds = [(float(z), 1.0) for z in zero] + ([(3.0, 0.0)] if 3 in zero else [])
    n = n_starts * len(kinds)
    arm = Arms(
        zero=jnp.array([k[0] for k in kinds] * n_starts),
        reshard=jnp.array([k[1] for k in kinds] * n_starts),
    )
    floats = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=float), (world, at, base))
    bounds = jnp.asarray(unknowns.low)[:, None], jnp.asarray(unknowns.high)[:, None]
    u = jnp.asarray(starts(unknowns, n, seed))
    moments, n_limits = optax.scale_by_adam().init(u), len(NAMES) + N_STRUCTURE
    state = _State(u=u, moments=moments, multipliers=jnp.zeros((n_limits, n)), count=jnp.zeros(()))
    seen: tuple = ()
    for sharpness in anneal:
        state, seen = _compiled()(
            state,
            arm,
            bounds,
            *floats,
            unknowns.names,
            sharpness,
            2 * ROUNDS * STEPS // len(anneal),
        )
    (plan, found, over), u = seen, state.u
    values = np.asarray(merit(found.quantities, at))
    violation = np.maximum(np.asarray(over).max(0), 0.0)
    order = np.lexsort((np.where(violation > 0.01, violation, values), violation > 0.01))
    plan = jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (n,)), plan)
    pick = lambda leaf: np.asarray(leaf)[..., order]  # noqa: E731
    return Search(
        x=pick(u)[: len(unknowns.names)],
        plan=jax.tree.map(pick, plan),
        merit=values[order],
        violation=violation[order],
        outcome=jax.tree.map(
            lambda leaf: pick(jnp.broadcast_to(jnp.asarray(leaf), (*jnp.shape(leaf)[:-1], n))),
            found,
        ),
        gradients=2 * ROUNDS * STEPS * n * int(np.shape(jax.tree.leaves(world.coefficients)[0])[0]),
    )
