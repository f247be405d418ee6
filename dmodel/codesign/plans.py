"""Every valid plan at given sizes, judged by what a run under it would cost; tokens follow in
closed form, so they need no search.

For given sizes a run's time, rent and energy are proportional to its tokens. So a budget says how
many tokens a plan can train, a loss how many are needed, and the best plan is the one with the
least time, or energy, per token: no other quantity of a plan matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel import counts
from dmodel.codesign.lattice import model_of
from dmodel.codesign.laws import Laws, quality
from dmodel.codesign.limits import NO_LIMIT, Goal, excess, merit
from dmodel.codesign.outcome import (
    NAMES,
    Outcome,
    Step,
    World,
    outcome_of,
    parameters,
    unordered,
    whole_run,
)
from dmodel.codesign.unknowns import Unknowns, changed, device
from dmodel.design.choices import Choices
from dmodel.design.judge import Evaluation, Problem, evaluate
from dmodel.design.optimum import problem
from dmodel.design.rows import COLUMNS, all_rows, plans
from dmodel.design.search import LARGE, exact
from dmodel.design.space import count, splits
from dmodel.goodput import goodput
from dmodel.recorded import Recorded
from dmodel.records import Cluster, Model, Plan, counts_of, ff_width
from dmodel.types import Array

INFEASIBLE = 1e6
"""Merit of a design that breaks a limit, before its violation is added: worse than all that keep
them."""

SAMPLED = 32
"""Plans, best ones at the first sample, that are judged on all samples of the coefficients."""


class Design(NamedTuple):
    """Sizes with their best plan.

    Attributes:
      sizes: every size by name, with the tokens. plan: scalars. outcome: quantities and the like.
        merit: least is best; from 1e6 on where a limit is broken. violation: largest scaled excess,
        0 where all limits are kept.
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
    """Every valid plan `[n]` as rows of `stated`, its step, the tokens that it trains, its cost to
    compare by (least is best) and its largest excess over the limits that a plan decides; the model
    and the device. In a large space the best alone; `considered` are all.
    """

    stated: Problem
    rows: np.ndarray
    considered: int
    seen: Step
    tokens: np.ndarray
    cost: np.ndarray
    over: np.ndarray
    model: Model
    device: Any


def _needed(known: float, batch: float, flop: float, laws: Laws, target: float) -> float:
    """Least tokens that reach a loss, by bisection of their logarithm between e⁰ and e⁸⁰."""
    low, high = 0.0, 80.0
    for _ in range(70):
        middle = 0.5 * (low + high)
        tokens = np.exp(middle)
        reached = float(quality(known, tokens, batch, flop * tokens, laws).loss) <= target
        low, high = (low, middle) if reached else (middle, high)
    return float(np.exp(high))


def _about(model: Model, laws: Laws) -> dict[str, Any]:
    return {
        "known": parameters(model, laws),
        "flop": counts.model_flops_per_token(model, "6N+6Lhs"),
        "active": counts.active_parameters(model),
    }


def _run(
    system: Cluster,
    area: Array,
    model: Model,
    plan: Plan,
    seen: Step,
    tokens: Array,
    world: World,
) -> dict[str, Any]:
    found = whole_run(system, area, model, plan, seen, tokens, world)
    return {**vars(found), "quality": found.quality._asdict()}


CHANGED, ABOUT, RUN = Recorded(changed), Recorded(_about), Recorded(_run)


def step_of(found: Evaluation) -> Step:
    """What a run needs to know of a step."""
    return Step(
        step_time_s=found.step_time_s,
        memory_bytes=found.memory_bytes,
        watts=found.facility_watts,
    )


class Planner:
    """Finds the best plan for sizes, and remembers it; counts the plans that it evaluates."""

    def __init__(
        self,
        unknowns: Unknowns,
        world: World,
        at: Goal,
        base: Plan,
        choices: Choices,
        *,
        threads: int | None = None,
    ):
        self.unknowns, self.at, self.base, self.choices, self.threads = (
            unknowns,
            at,
            base,
            choices,
            threads,
        )
        self.world = jax.tree.map(lambda leaf: np.asarray(leaf, dtype=float), world)
        self.unordered = unordered(self.world)
        self.limit, self.weight = (
            dict(zip(NAMES, map(float, np.asarray(x)), strict=True)) for x in (at.limit, at.weight)
        )
        self.evaluations = 0
        self.found: dict[tuple, Design] = {}
        self._rows: dict[tuple, np.ndarray] = {}

    def __call__(self, sizes: Mapping[str, float]) -> Design:
        """The best plan for the sizes; tokens are what the goal makes of them where they are
        freed."""
        key = tuple(round(float(np.log(x)), 12) for name, x in sizes.items() if name != "tokens")
        if key not in self.found:
            self.found[key] = self.search(dict(sizes))
        return self.found[key]

    def search(self, sizes: dict[str, float]) -> Design:
        """The same without remembering it."""
        ranked = self.ranked(sizes)
        if ranked is None:
            return Design(sizes, None, None, 2.0 * INFEASIBLE, np.inf, 0, 0)
        fits = ranked.over <= 1e-9
        order = np.argsort(
            np.where(fits, ranked.cost, np.abs(ranked.cost).max() + ranked.over), kind="stable"
        )
        best, tokens = int(order[0]), ranked.tokens
        seen = jax.tree.map(lambda leaf: leaf[best], ranked.seen)
        if self.samples > 1:
            best, seen, tokens = self._over_samples(ranked, sizes, order[:SAMPLED])
        plan = plans(ranked.stated.space, ranked.stated.system, ranked.rows[best][None])[0]
        return self._design(
            sizes | {"tokens": float(tokens[best])}, plan, seen, ranked, int(fits.sum())
        )

    def ranked(self, sizes: dict[str, float]) -> Ranked | None:
        """Every valid plan for the sizes under the first sample of the coefficients; None when
        there is none."""
        model = model_of(sizes, self.world.fixed)
        fixed = self.world.fixed
        equipment = device(CHANGED(_floats(sizes), self.unordered.fixed), fixed)
        stated = self.stated(sizes, model, equipment.system)
        rows, considered = self._candidates(stated)
        if not len(rows):
            return None
        seen = self.seen(stated, rows)
        return Ranked(
            stated,
            rows,
            considered,
            seen,
            *self._costs(seen, sizes, model, equipment.system, len(rows)),
            model,
            equipment,
        )

    def _candidates(self, stated: Problem) -> tuple[np.ndarray, int]:
        """All valid plans; in a large space the best ones, found by proven bounds; and how many
        there are."""
        space, m = stated.space, stated.space.model
        whole = (
            space.n_devices,
            space.global_batch,
            *map(float, (*counts_of(m, "SPLIT"), *counts_of(m, "COPIED"), m.n_layers, ff_width(m))),
        )
        if whole not in self._rows:
            known = splits(space)
            total = count(space, known)
            if total > LARGE:
                stated = stated.replace(
                    objective="energy" if self.weight["joules"] > 0.0 else "time"
                )
                found = exact(stated, SAMPLED, threads=self.threads)
                self.evaluations += found.evaluated
                near = np.empty((0, len(COLUMNS))) if found.closest is None else found.closest[None]
                return (found.rows if len(found.rows) else near), total
            if sum(map(len, self._rows.values())) > LARGE:
                self._rows.clear()
            self._rows[whole] = all_rows(space, known)
        return self._rows[whole], len(self._rows[whole])

    def stated(
        self, sizes: Mapping[str, float], model: Model, system: Any, sample: int = 0
    ) -> Problem:
        """The search for a plan at these sizes, under one sample of the coefficients."""
        c = jax.tree.map(lambda leaf: leaf[sample], self.world.coefficients)
        n, batch = (int(np.rint(sizes[name])) for name in ("devices", "global_batch"))
        system = jax.tree.map(lambda leaf: np.asarray(leaf, dtype=float), system)
        return problem(
            system,
            model,
            n,
            batch,
            c,
            base=self.base,
            choices=self.choices,
            footprint=self.world.footprint,
        )

    @property
    def samples(self) -> int:
        """Samples of the coefficients."""
        return int(np.shape(jax.tree.leaves(self.world.coefficients)[0])[0])

    def seen(self, stated: Problem, rows: np.ndarray) -> Step:
        """Steps of plans."""
        self.evaluations += len(rows)
        return step_of(evaluate(stated, rows, threads=self.threads))

    def _over_samples(
        self, ranked: Ranked, sizes: dict, kept: np.ndarray
    ) -> tuple[int, Step, np.ndarray]:
        """The best of the plans that lead at the first sample, by the mean or the quantile over all
        samples: its row, step, and tokens."""
        model, system, q = ranked.model, ranked.device.system, float(self.at.quantile)
        each = (
            self.seen(self.stated(sizes, model, system, s), ranked.rows[kept])
            for s in range(self.samples)
        )

        def over(*leaves: Any) -> np.ndarray:
            table = np.stack([np.asarray(leaf) for leaf in leaves])
            return table.mean(0) if q < 0.0 else np.quantile(table, q, axis=0)

        steady = jax.tree.map(over, *each)
        tokens, cost, excessive = self._costs(steady, sizes, model, system, len(kept))
        best = int(np.where(excessive <= 1e-9, cost, np.abs(cost).max() + excessive).argmin())
        whole = ranked.tokens.copy()
        whole[kept] = tokens
        return int(kept[best]), jax.tree.map(lambda leaf: leaf[best], steady), whole

    def tokens_of(
        self, seen: Step, sizes: dict, model: Model, system: Any, n: int
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Seconds, dollars and joules per token of each plan, and the tokens that it trains
        `[n]`."""
        share = (
            1.0
            if self.world.reliability is None
            else float(goodput(sizes["devices"], self.world.reliability))
        )
        second = np.asarray(seen.step_time_s) / (
            sizes["global_batch"] * float(model.seq_len) * share
        )
        rates = {
            "seconds": second,
            "dollars": second * sizes["devices"] * float(system.chip.price_per_s),
            "joules": second * seen.watts,
        }
        return rates, self._tokens(sizes, model, rates, n)

    def about(self, model: Model) -> tuple[float, ...]:
        """Effective parameters, model FLOP per token, active parameters."""
        found = ABOUT(model.replace(order=()), self.world.laws)
        return tuple(float(found[name]) for name in ("known", "flop", "active"))

    def _costs(
        self, seen: Step, sizes: dict, model: Model, system: Any, n: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, cost and excess of `Ranked`."""
        rates, tokens = self.tokens_of(seen, sizes, model, system, n)
        used = np.asarray(seen.memory_bytes) / float(system.chip.hbm_bytes)
        over = [np.log(tokens * rate / self.limit[name]) for name, rate in rates.items()]
        over += [
            np.log(used / self.limit["memory"]),
            np.log(np.asarray(seen.watts) / self.limit["watts"]),
        ]
        by = {"joules": rates["joules"], "memory": used, "watts": np.asarray(seen.watts)}
        cost = next((by[name] for name in by if self.weight[name] > 0.0), rates["seconds"])
        return (
            tokens,
            -tokens if self._most and self._free_tokens else cost,
            np.maximum(np.max(over, 0), 0.0),
        )

    @property
    def _most(self) -> bool:
        """Whether the goal asks for as many tokens as can be, not as few."""
        return self.weight["loss"] > 0.0 or self.weight["flop"] < 0.0

    @property
    def _free_tokens(self) -> bool:
        return bool(self.unknowns.free[self.unknowns.index("tokens")]) and not float(
            self.world.law_tokens
        )

    def _tokens(self, sizes: dict, model: Model, rates: dict, n: int) -> np.ndarray:
        """Tokens of each plan `[n]`: given, by the data law, all that the budgets pay for, or as
        few as the loss needs."""
        known, flop, active = self.about(model)
        if float(self.world.law_tokens):
            law = self.world.laws.data
            return np.full(n, float(law.ratio) * active ** float(law.exponent))
        if not self._free_tokens:
            return np.full(n, sizes["tokens"])
        i = self.unknowns.index("tokens")
        low, high = np.exp(self.unknowns.low[i]), np.exp(self.unknowns.high[i])
        if self._most:
            paid = np.min(
                [
                    self.limit[name] / rate
                    for name, rate in rates.items()
                    if self.limit[name] < NO_LIMIT
                ]
                or [np.full(n, high)],
                0,
            )
            # a hair less, so that rounding does not break the budget
            return np.clip(paid * (1.0 - 1e-12), low, min(high, self.limit["tokens"]))
        batch = sizes["global_batch"] * float(model.seq_len)
        needed = _needed(known, batch, flop, self.world.laws, self.limit["loss"])
        return np.full(n, np.clip(needed, low, high))

    def _design(self, sizes: dict, plan: Plan, seen: Step, ranked: Ranked, fitting: int) -> Design:
        """Judge the chosen plan by all limits."""
        system, area = ranked.device
        # names do not matter here, and one record serves all
        same = plan.having(schedule="1f1b", placement=())
        model = ranked.model.replace(order=())
        found = outcome_of(RUN(system, area, model, same, seen, sizes["tokens"], self.unordered))
        violation = float(np.maximum(np.asarray(excess(found.quantities, self.at)).max(), 0.0))
        value = (
            float(merit(found.quantities, self.at)) if violation <= 1e-9 else INFEASIBLE + violation
        )
        return Design(sizes, plan, found, value, violation, fitting, ranked.considered)


def _floats(sizes: Mapping[str, float]) -> dict[str, np.float64]:
    return {name: np.float64(x) for name, x in sizes.items()}
