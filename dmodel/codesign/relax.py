"""Gradient search over sizes and a relaxed plan together: many starts at once, augmented
Lagrangian, sharpness annealed.

The unknowns are the logarithms of all sizes, kept in their bounds by projection, and eight numbers
of the plan: shares of the logarithm of the device count for dp, tp, cp and pp, so that their
product is the device count by construction, and shares of what is left for micro-batch,
recomputation and interleaving. ZeRO stages are arms. Expert parallelism is a share of what data
parallelism and the experts allow.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dmodel import struct
from dmodel.adam import Adam, annealed
from dmodel.codesign.limits import Goal, excess, merit
from dmodel.codesign.outcome import NAMES, Outcome, World, outcome, unordered
from dmodel.codesign.unknowns import Unknowns
from dmodel.once import together
from dmodel.recorded import Recorded
from dmodel.records import Plan, value
from dmodel.smooth import SHARPNESS
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

TOTAL = 2 * ROUNDS * STEPS
"""Steps of the whole search [count]."""


class Arms(struct.PyTreeNode, kw_only=True):
    """One per start `[n]`: ZeRO stage, and whether parameters are gathered again."""

    zero: Array
    reshard: Array


class Search(struct.PyTreeNode, kw_only=True):
    """Where starts ended, best first: sizes `[name, n]` (logarithms), merit `[n]`, violation `[n]`
    (largest scaled excess, 0 where all limits are kept), quantities `[quantity, n]`; gradients that
    were taken [count]."""

    x: np.ndarray
    merit: np.ndarray
    violation: np.ndarray
    quantities: np.ndarray
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
    if np.shape(jax.tree.leaves(world.coefficients)[0])[0] == 1:
        only = jax.tree.map(lambda leaf: leaf[0], world.coefficients)
        return outcome(x, plan, world, only, sharpness)
    many = jax.vmap(lambda c: outcome(x, plan, world, c, sharpness))(world.coefficients)
    q = many.quantities
    # a larger model FLOP count is better, but it is the same in all samples
    chosen = jnp.where(
        at.quantile < 0.0,
        q.mean(0),
        jnp.quantile(q, jnp.clip(jnp.asarray(at.quantile), 0.0, 1.0), axis=0),
    )
    return jax.tree.map(lambda leaf: leaf[0], many).replace(quantities=chosen)


def _slopes(
    names: tuple[str, ...],
    sharpness: float,
    fixed: tuple[Arms, World, Goal, Plan],
    u: jax.Array,
    multipliers: jax.Array,
) -> dict[str, jax.Array]:
    """Quantities and excess over all limits of unknowns, and the slopes of the augmented
    Lagrangian."""
    arm, world, at, base = fixed
    experts = value(world.fixed.model, "n_experts", 1.0)

    def lagrangian(u: jax.Array) -> tuple:
        x = named(u[: len(names)], names)
        plan = relaxed_plan(u[len(names) :], x, arm, base, experts)
        with together():
            found = aggregated(x, plan, world, at, sharpness).quantities
        over = jnp.concatenate([excess(found, at), structure(plan, x, world)])
        penalty = (jnp.maximum(multipliers + WEIGHT * over, 0.0) ** 2).sum(0) / (2.0 * WEIGHT)
        return (merit(found, at) + penalty).sum(), (found, over)

    slopes, (found, over) = jax.grad(lagrangian, has_aux=True)(u)
    return {"slopes": slopes, "quantities": found, "over": over}


def _recorded(
    arm: Arms,
    world: World,
    at: Goal,
    base: Plan,
    here: tuple[jax.Array, jax.Array],
    *,
    names: tuple[str, ...],
    sharpness: float,
) -> dict[str, jax.Array]:
    return _slopes(names, sharpness, (arm, world, at, base), *here)


LAGRANGIAN = Recorded(_recorded)


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
    n, n_x = n_starts * len(kinds), len(unknowns.names)
    arm = Arms(
        zero=np.tile([k[0] for k in kinds], n_starts),
        reshard=np.tile([k[1] for k in kinds], n_starts),
    )
    u, multipliers = starts(unknowns, n, seed), np.zeros((len(NAMES) + N_STRUCTURE, n))
    moving = np.concatenate([unknowns.free.astype(float), np.ones(LATENTS)])[:, None]
    low, high = unknowns.low[:, None], unknowns.high[:, None]
    adam, seen = Adam(u.shape), {}
    each = TOTAL // len(anneal)
    for sharpness in anneal:
        judge = LAGRANGIAN.varied(
            arm,
            unordered(world),
            at,
            base,
            like=(u, multipliers),
            names=unknowns.names,
            sharpness=sharpness,
        )
        for i in range(each):
            seen = judge((u, multipliers))
            rate = annealed(RATE, adam.count, TOTAL)
            direction = adam.step(seen["slopes"] * moving)
            if i < each - 1:
                u = u - rate * direction
                u[:n_x] = np.clip(u[:n_x], low, high)
            if adam.count % STEPS == 0:
                multipliers = np.maximum(multipliers + WEIGHT * seen["over"], 0.0)
    samples = int(np.shape(jax.tree.leaves(world.coefficients)[0])[0])
    return _sorted(u[:n_x], seen, at, each * len(anneal) * n * samples)


def _sorted(x: np.ndarray, seen: dict[str, np.ndarray], at: Goal, gradients: int) -> Search:
    """Ends, those that keep the limits first, then by merit."""
    values = np.asarray(merit(seen["quantities"], at))
    violation = np.maximum(seen["over"].max(0), 0.0)
    order = np.lexsort((np.where(violation > 0.01, violation, values), violation > 0.01))
    return Search(
        x=x[:, order],
        merit=values[order],
        violation=violation[order],
        quantities=seen["quantities"][:, order],
        gradients=gradients,
    )
