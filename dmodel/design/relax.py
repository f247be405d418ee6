"""Gradient search over the relaxed plan: degrees, micro-batch, recomputation and interleaving as continuous numbers.

The logarithms of dp, tp, cp and pp lie on a simplex, so their product is the device count by construction; micro-batch and
interleaving are shares, in the logarithm, of the room that the degrees leave them. ZeRO stages and sharding groups are few: each is an
arm, and all arms × starts run at once. Memory and the upper bounds of the degrees are kept by an augmented Lagrangian.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from dmodel.design.search import Problem
from dmodel.design.space import DEGREES, Space, divisors
from dmodel.plan import Plan
from dmodel.step import memory_use, step_time
from dmodel.sweep import quick_to_compile
from dmodel.types import Array

ROUNDS, STEPS, RATE = 6, 40, 0.15
"""Updates of the multipliers, Adam steps between them, and Adam's first learning rate."""

WEIGHT = 20.0
"""Curvature of the penalty, in relative step time per squared relative violation."""


class Arms(struct.PyTreeNode, kw_only=True):
    """Discrete choices, `[arm]` (or one per start `[n]`): ZeRO stage, regathering, experts' degree, and the log of the devices that a
    sharding group fills (infinite for all of dp)."""

    zero: Array
    reshard: Array
    ep: Array
    log_domain: Array


class Relaxed(struct.PyTreeNode, kw_only=True):
    """Relaxed plans after the search, best first.

    Attributes:
      plan: leaves `[n]`, continuous. step_time_s: [s]. violation: largest relative excess over a limit (0.01 = 1 % too much memory) [1].
      arm: which of the arms.
    """

    plan: Plan
    step_time_s: Array
    violation: Array
    arms: Arms


def arms(space: Space) -> Arms:
    """Every combination of ZeRO stage, regathering, sharding domain and expert degree that the space offers."""
    kinds = [(float(z), 1.0, np.inf) for z in space.choices.zero if z < 3]
    if 3 in space.choices.zero:
        domains = [np.inf, *(np.log(d) for d in space.domains if d > 1 and space.choices.hsdp)]
        kinds += [(3.0, reshard, domain) for domain in domains for reshard in (1.0, 0.0)]
    experts = divisors(int(space.model.n_experts))
    zero, reshard, domain, ep = (np.asarray(x, dtype=float) for x in zip(*((*k, e) for k in kinds for e in experts), strict=True))
    return Arms(zero=zero, reshard=reshard, ep=ep, log_domain=domain)


def _relaxed_plan(z: jax.Array, arm: Arms, base: Plan, n_layers: Array, log_devices: Array, log_batch: Array) -> Plan:
    """Plan of unknowns `[8, *batch]`: four logits of the degrees, then micro-batch, full and selective recomputation, interleaving."""
    share = jax.nn.softmax(z[:4], 0) * log_devices
    logs: dict[str, jax.Array] = dict(zip(DEGREES, share, strict=True))
    before = [logs[name] for name in base.placement[: base.placement.index("dp")] if name != "ep"]
    log_ep = jnp.log(arm.ep)
    shard = jnp.clip(arm.log_domain - sum(before, start=jnp.zeros_like(log_ep)), log_ep, jnp.maximum(logs["dp"], log_ep))
    free = jax.nn.sigmoid(z[4:])
    interleave = free[3] * jnp.maximum(jnp.log(n_layers) - logs["pp"], 0.0) * float(base.schedule in ("1f1b", "interleaved"))
    one = jnp.ones_like(log_ep)
    return base.replace(
        **{name: jnp.exp(x) for name, x in logs.items()},
        ep=arm.ep,
        sp=one,
        zero=arm.zero,
        shard=jnp.exp(shard),
        reshard=arm.reshard,
        interleave=jnp.exp(interleave),
        micro_batch=jnp.exp(free[0] * jnp.maximum(log_batch - logs["dp"], 0.0)),
        global_batch=jnp.exp(log_batch) * one,
        recompute_layers=free[1],
        recompute_attention=free[2] * (1.0 - base.flash),
    )


def _excess(problem: dict, plan: Plan) -> jax.Array:
    """Logarithmic excess over each limit `[6, *batch]`, ≤ 0 where it is kept: memory; tp, pp, cp, dp, ep against what they split."""
    model = problem["model"]
    used = memory_use(model, plan, footprint=problem["footprint"]).total
    over = [
        used / problem["system"].chip.hbm_bytes,
        plan.tp / model.n_heads,
        plan.pp / model.n_layers,
        plan.cp / model.seq_len,
        plan.dp / plan.global_batch,
        plan.ep / plan.dp,
    ]
    return jnp.log(jnp.stack(jnp.broadcast_arrays(*over)))


def _descend(z: jax.Array, arm: Arms, problem: dict, sharpness: float) -> tuple[Plan, jax.Array, jax.Array]:
    """Adam on the augmented Lagrangian of ln T, from all starts at once; returns the plans, their step times and their excesses."""
    model = problem["model"]

    def relaxed(z: jax.Array) -> Plan:
        return _relaxed_plan(z, arm, problem["base"], model.n_layers, problem["log_devices"], problem["log_batch"])

    def judged(z: jax.Array) -> tuple[Plan, jax.Array, jax.Array]:
        plan = relaxed(z)
        time = step_time(problem["system"], model, plan, problem["coefficients"], sharpness=sharpness).total
        return plan, jnp.asarray(time), _excess(problem, plan)

    def lagrangian(z: jax.Array, multipliers: jax.Array) -> jax.Array:
        _, time, excess = judged(z)
        return (jnp.log(time) + (jnp.maximum(multipliers + WEIGHT * excess, 0.0) ** 2).sum(0) / (2.0 * WEIGHT)).sum()

    # cosine over the whole search, so that the last rounds settle
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, ROUNDS * STEPS, alpha=0.05))

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        z, state, multipliers = carry
        slopes = jax.grad(lagrangian)(z, multipliers)
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to its integer count of steps
            updates, state = optimizer.update(slopes, state)
        return (optax.apply_updates(z, updates), state, multipliers), None

    def round_(carry: tuple, _: None) -> tuple[tuple, None]:
        z, state, multipliers = jax.lax.scan(step, carry, None, length=STEPS)[0]
        return (z, state, jnp.maximum(multipliers + WEIGHT * _excess(problem, relaxed(z)), 0.0)), None

    start = (z, optimizer.init(z), jnp.zeros((6, *z.shape[1:])))
    z = jax.lax.scan(round_, start, None, length=ROUNDS)[0][0]
    return judged(z)


@cache
def _compiled() -> Callable:
    return jax.jit(_descend, static_argnames="sharpness", compiler_options=quick_to_compile())


def starts(n: int, seed: int) -> np.ndarray:
    """Starting unknowns `[8, n]`: degrees uniform on the simplex of logarithms, half of them near its faces; the rest around the middle."""
    random = np.random.default_rng(seed)
    shares = np.concatenate([random.dirichlet(np.ones(4), n // 2), random.dirichlet(np.full(4, 0.3), n - n // 2)]).T
    return np.concatenate([np.log(shares + 1e-3), random.normal(-1.0, 1.5, (4, n))])


def relax(problem: Problem, *, n_starts: int = 32, seed: int = 0) -> Relaxed:
    """Search the relaxed plans by gradient from many starts.

    Args:
      n_starts: for each arm. seed: of the starts; the answer is the same for the same seed.

    Returns:
      Relaxed plans, feasible ones (violation ≤ 1 %) first, then by step time.
    """
    space = problem.space
    choice = arms(space)
    spread = jax.tree.map(lambda x: np.tile(x, n_starts), choice)
    size = len(spread.zero)
    as_floats = partial(jax.tree.map, lambda x: jnp.asarray(x, dtype=float))
    fixed = as_floats(
        {
            "system": problem.system,
            "model": space.model,
            "coefficients": problem.coefficients,
            "footprint": problem.footprint,
            "base": space.base,
            "log_devices": np.log(space.n_devices),
            "log_batch": np.log(space.global_batch),
        }
    )
    plan, time, excess = _compiled()(jnp.asarray(starts(size, seed)), as_floats(spread), fixed, problem.sharpness)
    time, violation = np.asarray(time), np.maximum(np.asarray(jnp.expm1(excess)).max(0), 0.0)
    order = np.lexsort((time, violation > 0.01))
    plan, spread = jax.tree.map(lambda x: np.asarray(x)[order] if np.ndim(x) else np.asarray(x), (plan, spread))
    return Relaxed(plan=plan, step_time_s=time[order], violation=violation[order], arms=spread)
