"""Every valid plan at given sizes, judged by what a run under it would cost; tokens follow in closed form, so they need no search.

For given sizes a run's time, rent and energy are proportional to its tokens. So a budget says how many tokens a plan can train, a loss how
many are needed, and the best plan is the one with the least time, or energy, per token: no other quantity of a plan matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel import counts
from dmodel.codesign.lattice import model_of
from dmodel.codesign.laws import Laws, quality
from dmodel.codesign.limits import NO_LIMIT, Goal, excess, merit
from dmodel.codesign.outcome import NAMES, Outcome, Step, World, parameters, step, whole_run
from dmodel.codesign.unknowns import Unknowns, equipped
from dmodel.design import rows as design_rows
from dmodel.design.optimum import problem
from dmodel.design.space import Choices
from dmodel.goodput import goodput
from dmodel.plan import Plan
from dmodel.smooth import SHARPNESS
from dmodel.sweep import sweep
from dmodel.workload import Transformer

INFEASIBLE = 1e6
"""Merit of a design that breaks a limit, before its violation is added: worse than all that keep them."""

SAMPLED = 32
"""Plans, best ones at the first sample, that are judged on all samples of the coefficients."""


class Design(NamedTuple):
    """Sizes with their best plan.

    Attributes:
      sizes: every size by name, with the tokens. plan: scalars. outcome: quantities and the like. merit: least is best; from 1e6 on where a
        limit is broken. violation: largest scaled excess, 0 where all limits are kept.
      fitting, considered: valid plans that keep the limits, and all of them.
    """

    sizes: dict[str, float]
    plan: Plan | None
    outcome: Outcome | None
    merit: float
    violation: float
    fitting: int
    considered: int


class Ranked(NamedTuple):
    """Every valid plan `[n]`, its step, the tokens that it trains, its cost to compare by (least is best) and its largest excess over the
    limits that a plan decides; the model and the device."""

    plans: Plan
    seen: Step
    tokens: np.ndarray
    cost: np.ndarray
    over: np.ndarray
    model: Transformer
    device: Any


def steps(plan: Plan, fixed: dict[str, Any]) -> Step:
    """The case function of the exact search: one model and system, many plans."""
    return step(fixed["system"], fixed["model"], plan, fixed["coefficients"], fixed["footprint"], SHARPNESS)


def _needed(known: jax.Array, batch: jax.Array, flop: jax.Array, laws: Laws, target: jax.Array) -> jax.Array:
    """Least tokens that reach a loss, by bisection of their logarithm between e⁰ and e⁸⁰."""

    def halve(_: int, ends: tuple) -> tuple:
        low, high = ends
        middle = 0.5 * (low + high)
        tokens = jnp.exp(middle)
        reached = quality(known, tokens, batch, flop * tokens, laws).loss <= target
        return jnp.where(reached, low, middle), jnp.where(reached, middle, high)

    return jnp.exp(jax.lax.fori_loop(0, 70, halve, (jnp.zeros_like(known), jnp.full_like(known, 80.0)))[1])


@cache
def _compiled() -> dict[str, Any]:
    def device(x: dict, world: World) -> Any:
        return equipped(x, world.fixed)

    def about(model: Transformer, world: World) -> tuple:
        return parameters(model, world.laws), counts.model_flops_per_token(model, "6N+6Lhs"), counts.active_parameters(model)

    return {"device": jax.jit(device), "about": jax.jit(about), "needed": jax.jit(_needed), "run": jax.jit(whole_run)}


class Planner:
    """Finds the best plan for sizes, and remembers it; counts the plans that it evaluates."""

    def __init__(self, unknowns: Unknowns, world: World, at: Goal, base: Plan, choices: Choices, *, threads: int | None = None):
        self.unknowns, self.at, self.base, self.choices, self.threads = unknowns, at, base, choices, threads
        self.world = jax.tree.map(lambda leaf: np.asarray(leaf, dtype=float), world)
        self.evaluations = 0
        self.found: dict[tuple, Design] = {}
        self._rows: dict[tuple, np.ndarray] = {}

    def __call__(self, sizes: Mapping[str, float]) -> Design:
        """The best plan for the sizes; tokens are what the goal makes of them where they are freed."""
        key = tuple(round(float(np.log(x)), 12) for name, x in sizes.items() if name != "tokens")
        if key not in self.found:
            self.found[key] = self.search(dict(sizes))
        return self.found[key]

    def search(self, sizes: dict[str, float]) -> Design:
        """The same without remembering it."""
        ranked = self.ranked(sizes)
        if ranked is None:
            return Design(sizes, None, None, 2.0 * INFEASIBLE, np.inf, 0, 0)
        plans, seen, tokens, cost, over, model, device = ranked
        fits = over <= 1e-9
        best = int(np.where(fits, cost, np.inf).argmin()) if fits.any() else int(over.argmin())
        if self.samples > 1:
            best, seen, tokens = self._over_samples(plans, seen, np.where(fits, cost, INFEASIBLE + over), sizes, model, device.system)
        pick = jax.tree.map(lambda leaf: np.asarray(leaf)[best] if np.ndim(leaf) else np.asarray(leaf, dtype=float), (plans, seen))
        return self._design(sizes | {"tokens": float(tokens[best])}, *pick, model, device, int(fits.sum()), len(fits))

    def ranked(self, sizes: dict[str, float]) -> Ranked | None:
        """Every valid plan for the sizes under the first sample of the coefficients; None when there is none."""
        model = model_of(sizes, self.world.fixed)
        plans = self._plans(model, sizes)
        if plans is None:
            return None
        device = _compiled()["device"](_floats(sizes), self.world)
        seen = self._seen(plans, device.system, model)
        return Ranked(plans, seen, *self._ranked(seen, sizes, model, device.system, len(plans.dp)), model, device)  # type: ignore[arg-type]

    @property
    def samples(self) -> int:
        """Samples of the coefficients."""
        return int(np.shape(jax.tree.leaves(self.world.coefficients)[0])[0])

    def _plans(self, model: Transformer, sizes: Mapping[str, float]) -> Plan | None:
        """Every valid plan, leaves `[n]`."""
        whole = tuple(int(np.rint(x)) for x in (sizes["devices"], sizes["global_batch"], model.n_heads, model.n_kv_heads, model.n_layers))
        first = jax.tree.map(lambda leaf: leaf[0], self.world.coefficients)
        stated = problem(self.world.fixed.system, model, whole[0], whole[1], first, base=self.base, choices=self.choices)
        if whole not in self._rows:
            if len(self._rows) > 4096:
                self._rows.clear()
            self._rows[whole] = design_rows.all_rows(stated.space)
        rows = self._rows[whole]
        return design_rows.plan_batch(stated.space, stated.system, rows) if len(rows) else None

    def _seen(self, plans: Plan, system: Any, model: Transformer, sample: int = 0) -> Step:
        """Steps of plans under one sample of the coefficients."""
        c = jax.tree.map(lambda leaf: leaf[sample], self.world.coefficients)
        fixed = {"system": system, "model": model, "coefficients": c, "footprint": self.world.footprint}
        self.evaluations += len(plans.dp)  # type: ignore[arg-type]
        return sweep(steps, plans, fixed, threads=self.threads)

    def _over_samples(self, plans: Plan, seen: Step, order: np.ndarray, sizes: dict, model: Transformer, system: Any) -> tuple:
        """The best of the plans that lead at the first sample, by the mean or the quantile over all samples; index, steps and tokens."""
        kept = np.argsort(order, kind="stable")[:SAMPLED]
        few = jax.tree.map(lambda leaf: np.asarray(leaf)[kept] if np.ndim(leaf) else leaf, plans)
        many = [self._seen(few, system, model, s) for s in range(1, self.samples)]
        q = float(self.at.quantile)

        def over(first: Any, *rest: Any) -> np.ndarray:
            table = np.stack([np.asarray(first)[kept], *map(np.asarray, rest)])
            return table.mean(0) if q < 0.0 else np.quantile(table, q, axis=0)

        steady = jax.tree.map(over, seen, *many)
        tokens, cost, excessive = self._ranked(steady, sizes, model, system, len(kept))
        merits = np.where(excessive <= 1e-9, cost, INFEASIBLE + excessive)
        best = int(merits.argmin())
        whole = jax.tree.map(lambda leaf: np.asarray(leaf).copy(), seen)
        for name in ("step_time_s", "memory_bytes", "watts", "mfu"):
            getattr(whole, name)[kept[best]] = getattr(steady, name)[best]
        spread = np.zeros(len(order))
        spread[kept[best]] = tokens[best]
        return int(kept[best]), whole, spread

    def tokens_of(self, seen: Step, sizes: dict, model: Transformer, system: Any, n: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Seconds, dollars and joules per token of each plan, and the tokens that it trains `[n]`."""
        share = 1.0 if self.world.reliability is None else float(goodput(sizes["devices"], self.world.reliability))
        second = np.asarray(seen.step_time_s) / (sizes["global_batch"] * float(model.seq_len) * share)
        rates = {"seconds": second, "dollars": second * sizes["devices"] * float(system.chip.price_per_s), "joules": second * seen.watts}
        return rates, self._tokens(sizes, model, rates, n)

    def about(self, model: Transformer) -> tuple[float, ...]:
        """Effective parameters, model FLOP per token, active parameters."""
        return tuple(float(x) for x in _compiled()["about"](model, self.world))

    def _ranked(self, seen: Step, sizes: dict, model: Transformer, system: Any, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, cost and excess of `Ranked`."""
        limit, weight = self._limits()
        rates, tokens = self.tokens_of(seen, sizes, model, system, n)
        used = np.asarray(seen.memory_bytes) / float(system.chip.hbm_bytes)
        over = [np.log(tokens * rate / limit[name]) for name, rate in rates.items()]
        over += [np.log(used / limit["memory"]), np.log(seen.watts / limit["watts"])]
        by = {"joules": rates["joules"], "memory": used, "watts": np.asarray(seen.watts)}
        cost = next((by[name] for name in by if weight[name] > 0.0), rates["seconds"])
        return tokens, -tokens if self._most and self._free_tokens else cost, np.maximum(np.max(over, 0), 0.0)

    def _limits(self) -> tuple[dict[str, float], dict[str, float]]:
        """Limits and weights by name."""
        return tuple(dict(zip(NAMES, np.asarray(x), strict=True)) for x in (self.at.limit, self.at.weight))  # type: ignore[return-value]

    @property
    def _most(self) -> bool:
        """Whether the goal asks for as many tokens as can be, not as few."""
        weight = self._limits()[1]
        return weight["loss"] > 0.0 or weight["flop"] < 0.0

    @property
    def _free_tokens(self) -> bool:
        return bool(self.unknowns.free[self.unknowns.index("tokens")]) and not float(self.world.law_tokens)

    def _tokens(self, sizes: dict, model: Transformer, rates: dict, n: int) -> np.ndarray:
        """Tokens of each plan `[n]`: given, by the data law, all that the budgets pay for, or as few as the loss needs."""
        known, flop, active = self.about(model)
        limit, _ = self._limits()
        if float(self.world.law_tokens):
            law = self.world.laws.data
            return np.full(n, float(law.ratio) * active ** float(law.exponent))
        if not self._free_tokens:
            return np.full(n, sizes["tokens"])
        i = self.unknowns.index("tokens")
        low, high = np.exp(self.unknowns.low[i]), np.exp(self.unknowns.high[i])
        if self._most:
            paid = np.min([limit[name] / rate for name, rate in rates.items() if limit[name] < NO_LIMIT] or [np.full(n, high)], 0)
            # a hair less, so that rounding does not break the budget
            return np.clip(paid * (1.0 - 1e-12), low, min(high, limit["tokens"]))
        batch = sizes["global_batch"] * float(model.seq_len)
        needed = float(_compiled()["needed"](*_scalars(known, batch, flop), self.world.laws, *_scalars(limit["loss"])))
        return np.full(n, np.clip(needed, low, high))

    def _design(self, sizes: dict, plan: Plan, seen: Step, model: Transformer, device: Any, fitting: int, considered: int) -> Design:
        """Judge the chosen plan by all limits."""
        tokens = jnp.asarray(sizes["tokens"])
        plan = plan.replace(schedule="1f1b" if plan.schedule == "interleaved" and plan.interleave == 1.0 else plan.schedule)
        same = jax.tree.map(jnp.asarray, plan.replace(schedule="1f1b"))
        found = _compiled()["run"](device.system, device.area_mm2, model, same, seen, tokens, self.world)
        found = jax.tree.map(np.asarray, found)
        over = np.asarray(excess(found.quantities, self.at))
        violation = float(np.maximum(over.max(), 0.0))
        value = float(merit(found.quantities, self.at)) if violation <= 1e-9 else INFEASIBLE + violation
        return Design(sizes, plan, found, value, violation, fitting, considered)


def _floats(sizes: Mapping[str, float]) -> dict[str, np.float64]:
    return {name: np.float64(x) for name, x in sizes.items()}


def _scalars(*values: float) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(x, dtype=float) for x in values)
