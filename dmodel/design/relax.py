"""Gradient search over the relaxed plan: every choice of a plan as a continuous number.

The logarithms of dp, tp, cp and pp lie on a simplex, so their product is the device count by
construction; micro-batch, interleaving and the experts' degrees are shares, in the logarithm, of
the room that the degrees leave them; recomputation, sequence parallelism and the schedule are
mixtures. ZeRO stages, sharding groups and precisions are few: each combination is an arm, and all
arms × starts run at
once. Limits are kept by an augmented Lagrangian. What pulls degrees to whole plans grows sharper as
the search goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dmodel import run, struct
from dmodel.adam import Adam, annealed
from dmodel.design.choices import PrecisionChoice
from dmodel.design.constraints import uses
from dmodel.design.judge import Problem, as_draft, draft_memory, drawn, shared
from dmodel.design.rows import decided, order_numbers, precisions
from dmodel.design.space import Space, degrees, divisors, placements
from dmodel.once import together
from dmodel.placement import PAIRS
from dmodel.recorded import Recorded
from dmodel.records import MIXED, RULES, Cluster, Plan, value
from dmodel.step import step_time
from dmodel.types import Array

ROUNDS, STEPS, RATE = 6, 40, 0.15
"""Updates of the multipliers, Adam steps between them, and Adam's first learning rate."""

WEIGHT = 20.0
"""Curvature of the penalty, in relative merit per squared relative violation."""

PULL = (0.0, 0.0, 0.0, 1e-3, 4e-3, 1.6e-2)
"""Pull towards divisors of the device count in each round, in relative merit per squared
logarithmic distance: none first, then sharper."""

SLOTS = 64
"""Divisors that the pull knows of: those of larger sets are thinned out. One number, so that one
program serves all device counts."""

N_LIMITS = 13
"""Limits on a relaxed plan (`_judged`)."""

DEGREES = ("dp", "tp", "cp", "pp")
FREE = (
    "micro_batch",
    "recompute_layers",
    "recompute_attention",
    "interleave",
    "ep",
    "etp",
    "sp",
    *sorted(MIXED, key=lambda n: not RULES[MIXED[n]].fill),
)
"""Unknowns: four logits of the degrees, then one of each of these."""


class Arms(struct.PyTreeNode, kw_only=True):
    """Discrete choices, `[arm]` (or one per start `[n]`): ZeRO stage, regathering, the log of the
    devices that a sharding group fills (infinite for all of dp), code of the precision, and leaves
    that precision and stack decide."""

    zero: Array
    reshard: Array
    log_domain: Array
    precision: Array
    numbers: Mapping[str, Array]


class Relaxed(struct.PyTreeNode, kw_only=True):
    """Relaxed plans after the search, best first.

    Attributes:
      plan: drafts, leaves `[n]`, continuous. merit: seconds, dollars or joules of a step.
        violation: largest relative excess over a limit (0.01 =
        1 % too much memory) [1]. arms: of each plan.
    """

    plan: Plan
    merit: Array
    violation: Array
    arms: Arms


def arms(space: Space, system: Cluster) -> Arms:
    """Every combination of ZeRO stage, regathering, sharding domain and precision that the space
    offers."""
    offered = precisions(space, system)
    zero, reshard, domain, code = np.asarray(
        [(*k, float(c)) for k, c in product(_kinds(space), range(len(offered)))]
    ).T
    numbers = {
        n: np.asarray([float(getattr(offered[int(c)], n)) for c in code])
        for n in PrecisionChoice._fields[1:]
    }
    numbers |= decided(space, _typical(space, zero))
    return Arms(zero=zero, reshard=reshard, log_domain=domain, precision=code, numbers=numbers)


def _kinds(space: Space) -> list[tuple[float, float, float]]:
    """ZeRO stage, regathering and sharding domain."""
    found = [(float(z), 1.0, np.inf) for z in space.choices.zero if z < 3]
    if 3 not in space.choices.zero:
        return found
    inner = () if space.choices.shards == "whole" else (d for d in space.domains if d > 1)
    domains = [np.inf, *map(np.log, inner)]
    return found + [(3.0, reshard, domain) for domain in domains for reshard in (1.0, 0.0)]


def _typical(space: Space, zero: np.ndarray) -> dict[str, np.ndarray]:
    """Layouts by whose classes the stack's leaves are taken: tensor parallelism, experts apart, and
    all the rest data-parallel; rounded plans have their own."""
    one, experts = np.ones_like(zero), float(value(space.model, "n_experts", 1.0))
    dp = one * max(space.n_devices // 2, 1)
    found = dict.fromkeys(("cp", "pp", "etp", "interleave", "micro_batch"), one)
    found |= {"tp": 2.0 * one, "sp": one, "dp": dp, "zero": zero, "shard": dp}
    return found | {"ep": one * min(max(experts, 1.0), 8.0)}


def _settings(z: jax.Array, arm: Arms, given: dict[str, Any]) -> dict[str, Array]:
    """Leaves of the plan of unknowns `[unknown, *batch]`."""
    model, base, allowed = given["model"], given["base"], given["allowed"]
    share = jax.nn.softmax(z[:4], 0) * given["log_devices"]
    logs: dict[str, jax.Array] = dict(zip(DEGREES, share, strict=True))
    free: dict[str, jax.Array] = dict(zip(FREE, jax.nn.sigmoid(z[4:]), strict=True))
    one = jnp.ones_like(share[0])
    log_etp = free["etp"] * logs["tp"] * allowed["etp"]
    ranks = logs["dp"] + logs["tp"] + logs["cp"] - log_etp
    log_ep = free["ep"] * jnp.minimum(jnp.log(value(model, "n_experts", 1.0)), ranks)
    order = given["order"]
    before = (
        order["tp_dp"] * logs["tp"]
        + order["cp_dp"] * logs["cp"]
        + (1.0 - order["dp_pp"]) * logs["pp"]
    )
    shard = jnp.clip(arm.log_domain - before, 0.0, logs["dp"])
    room = jnp.maximum(jnp.log(model.n_layers) - logs["pp"], 0.0)
    return {
        **{name: jnp.exp(x) for name, x in logs.items()},
        "ep": jnp.exp(log_ep),
        "etp": jnp.exp(log_etp),
        "sp": allowed["sp_least"] + (allowed["sp_most"] - allowed["sp_least"]) * free["sp"],
        "zero": arm.zero,
        "shard": jnp.exp(shard),
        "reshard": arm.reshard,
        "interleave": jnp.exp(free["interleave"] * room * allowed["interleave"]),
        "micro_batch": jnp.exp(
            free["micro_batch"] * jnp.maximum(jnp.log(given["global_batch"]) - logs["dp"], 0.0)
        ),
        "global_batch": given["global_batch"] * one,
        "recompute_layers": allowed["recompute"] * free["recompute_layers"],
        "recompute_attention": free["recompute_attention"] * (1.0 - base.software.flash),
        **_mix(free, allowed),
        **{name: value * one for name, value in order.items()},
        **{name: value for name, value in arm.numbers.items() if name != "flops_per_s"},
    }


def _judged(
    settings: Mapping[str, Array], arm: Arms, given: dict[str, Any], sharpness: float
) -> tuple[jax.Array, jax.Array]:
    """Merit of a plan, and logarithmic excess over each limit `[N_LIMITS, *batch]`, ≤ 0 where it is
    kept: those of `uses`; each degree against the largest that a valid plan has; the micro-batches
    that schedules ask for."""
    plan, model = as_draft(given["base"], settings), given["model"]
    system = given["system"].replace(
        chip=given["system"].chip.replace(flops_per_s=arm.numbers["flops_per_s"])
    )
    times = step_time(system, model, plan, given["coefficients"], sharpness=sharpness)
    watts = run.facility_watts(system, plan, times, given["coefficients"])
    found = uses(
        given["limits"],
        system,
        model,
        plan,
        times.total,
        draft_memory(model, plan, given["footprint"]).total,
        watts,
    )
    over = [jnp.maximum(jnp.asarray(u.amount) / u.limit, 1e-9) for u in found]
    over += [getattr(plan.layout, name) / most for name, most in given["most"].items()]
    over += [_filled(plan)]
    merit = times.total * (1.0 + given["energy"] * (watts - 1.0))
    return jnp.asarray(merit), jnp.log(jnp.stack(jnp.broadcast_arrays(*over)))


def _filled(plan: Plan) -> jax.Array:
    """Micro-batches that schedules ask for over those that there are, to the power of their shares;
    1 where none is asked for."""
    asked = [(drawn(plan).mix[n], RULES[name].fill) for n, name in MIXED.items()]
    logs = (
        share * jnp.log(fill * plan.layout.pp / plan.n_microbatches)
        for share, fill in asked
        if fill
    )
    return jnp.exp(sum(logs))


def _mix(free: Mapping[str, jax.Array], allowed: Mapping[str, Array]) -> dict[str, jax.Array]:
    """Share of each schedule of `MIXED`: of what those before leave, its own share, or all."""
    found, left = {}, 1.0
    for name in MIXED:
        found[name] = left * (
            allowed[f"{name}_least"] + (allowed[name] - allowed[f"{name}_least"]) * free[name]
        )
        left = left - found[name]
    return found


def _distance(settings: Mapping[str, Array], log_divisors: jax.Array) -> jax.Array:
    """Squared logarithmic distances of the degrees to the nearest divisors of the device count,
    summed."""
    logs = jnp.log(jnp.stack([settings[name] for name in DEGREES]))
    return ((logs[None] - log_divisors[:, None, None]) ** 2).min(0).sum(0)


def _slopes(
    given: dict[str, Any], here: tuple[jax.Array, jax.Array, Arms], *, sharpness: float
) -> dict[str, Any]:
    """Leaves of the plans, merits, excesses, and the slopes of the augmented Lagrangian of the
    merit's logarithm, for unknowns `[unknown, n]` and multipliers `[N_LIMITS, n]`."""
    z, multipliers, arm = here

    def lagrangian(z: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
        with together():
            settings = _settings(z, arm, given)
            merit, excess = _judged(settings, arm, given, sharpness)
        penalty = (jnp.maximum(multipliers + WEIGHT * excess, 0.0) ** 2).sum(0) / (2.0 * WEIGHT)
        pull = given["pull"] * _distance(settings, given["log_divisors"])
        found = {"settings": settings, "merit": merit, "excess": excess}
        return (jnp.log(merit) + penalty + pull).sum(), found

    slopes, found = jax.grad(lagrangian, has_aux=True)(z)
    return found | {"slopes": slopes}


LAGRANGIAN = Recorded(_slopes, any_rows=True, of_last=True)


def _descended(z: np.ndarray, arm: Arms, given: dict[str, Any], sharpness: float) -> dict[str, Any]:
    """Adam from all starts at once: what `_slopes` says of where they end."""
    adam, multipliers, found = Adam(z.shape), np.zeros((N_LIMITS, z.shape[1])), {}
    for pull in PULL:
        here = z, multipliers, arm
        at = LAGRANGIAN.varied(given | {"pull": pull}, like=here, sharpness=sharpness)
        for _ in range(STEPS):
            rate = annealed(RATE, adam.count, ROUNDS * STEPS)
            z = z - rate * adam.step(at((z, multipliers, arm))["slopes"])
        found = at((z, multipliers, arm))
        multipliers = np.maximum(multipliers + WEIGHT * found["excess"], 0.0)
    return found


def starts(n: int, seed: int) -> np.ndarray:
    """Starting unknowns `[unknown, n]`: degrees uniform on the simplex of logarithms, half of them
    near its faces; the rest in the middle."""
    random = np.random.default_rng(seed)
    shares = np.concatenate(
        [random.dirichlet(np.ones(4), n // 2), random.dirichlet(np.full(4, 0.3), n - n // 2)]
    ).T
    return np.concatenate(
        [
            np.log(shares + 1e-3),
            random.normal(-1.0, 1.5, (4, n)),
            random.normal(0.0, 1.5, (len(FREE) - 4, n)),
        ]
    )


def _allowed(schedules: Sequence[str]) -> dict[str, float]:
    """1 where a schedule of `MIXED` may have a share of a plan, and where it has all that others
    leave: the last one that is offered, where 1F1B is not."""
    mixed = [n for n, name in MIXED.items() if name in schedules]
    usual = len(mixed) < len(schedules)
    found = {n: float(n in mixed) for n in MIXED}
    found |= {f"{n}_least": float(not usual and n == mixed[-1]) for n in MIXED}
    return found


def _given(problem: Problem) -> dict[str, Any]:
    """Everything that the search takes besides starts and arms: numbers only, so that one program
    serves all problems."""
    space, choices = problem.space, problem.space.choices
    logs = np.log(np.asarray(divisors(space.n_devices), dtype=float))
    thinned = logs[np.linspace(0, len(logs) - 1, min(len(logs), SLOTS)).round().astype(int)]
    sparse = float(value(space.model, "n_experts", 1.0)) > 1.0
    largest = np.max(np.asarray(degrees(space), dtype=float), 0)
    return shared(problem) | {
        "limits": problem.limits,
        "most": dict(zip((*DEGREES, "ep"), largest[:5], strict=True)),
        "energy": float(problem.objective == "energy"),
        "order": dict(
            zip((f"{a}_{b}" for a, b in PAIRS), order_numbers(placements(space)[0]), strict=True)
        ),
        "log_devices": np.log(space.n_devices),
        "log_divisors": np.concatenate([thinned, np.full(SLOTS - len(thinned), thinned[-1])]),
        "allowed": {
            "etp": float(choices.etp and sparse),
            "sp_least": 1.0 if sparse else float(min(choices.sp)),
            "sp_most": 1.0 if sparse else float(max(choices.sp)),
            "interleave": float("interleaved" in choices.schedules),
            "recompute": 1.0 if choices.recompute is None else max(choices.recompute),
            **_allowed(choices.schedules),
        },
    }


def relax(problem: Problem, *, n_starts: int = 32, seed: int = 0) -> Relaxed:
    """Search the relaxed plans by gradient from many starts.

    Args:
      n_starts: for each arm. seed: of the starts; the answer is the same for the same seed.

    Returns:
      Relaxed plans, feasible ones (violation ≤ 1 %) first, then by merit.
    """
    spread = jax.tree.map(lambda x: np.tile(x, n_starts), arms(problem.space, problem.system))
    given = _given(problem)
    found = _descended(starts(len(spread.zero), seed), spread, given, problem.sharpness)
    merit, violation = found["merit"], np.maximum(np.expm1(found["excess"]).max(0), 0.0)
    order = np.lexsort((merit, violation > 0.01))
    plan = as_draft(given["base"], {name: x[order] for name, x in found["settings"].items()})
    spread = jax.tree.map(lambda x: x[order], spread)
    return Relaxed(plan=plan, merit=merit[order], violation=violation[order], arms=spread)
