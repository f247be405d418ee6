"""By searching the whole-numbered plans again: what an input does to the best of them, and where another one takes over.

A pool of good plans is followed along the input; where the best changes is found by cutting the interval. Every answer is checked by an
exact search at that point: a better plan joins the pool and the input is followed again, so a flip is one among all valid plans. No search
is needed as far as the pool is proven to suffice: a step time falls at most in proportion as one rate grows or one time shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.design import Choices, design
from dmodel.plan import Plan
from dmodel.sensitivity.case import Case, Inputs, inputs, kind, rebuild
from dmodel.smooth import SHARPNESS
from dmodel.step import memory_use, step_time
from dmodel.sweep import sweep
from dmodel.types import InputError

POOL, JOINING, GRID, ROUNDS = 256, 32, 24, 4
"""Plans of the first pool, plans that join from a further search, points along an input, and times that the interval of a flip is cut by as
many: to 2e-6 of the input."""

LIMIT = 2.0
"""Inputs are followed up to this factor, and down to one over it."""

SMALL = 0.1
"""Change of an input whose effect on the best plan is shown."""

EQUAL = 1e-9
"""Step times that differ relatively by less are equal: the plan stays."""


class Flip(NamedTuple):
    """Where another plan becomes the best: the input's factor and value there, the plan, and by how much its step is shorter at the end of
    the range than that of the plan it replaces [1]."""

    factor: float
    value: float
    plan: Plan
    gain: float


class Effect(NamedTuple):
    """What one input does to the best whole-numbered plan.

    Attributes:
      name, at: the input and its value. more, less: relative change of the step time of the best plan, searched again, for an input `SMALL`
        larger and smaller; None where nothing fits. kept_more: the same for the plan as it is. up, down: the nearest flip, or None within
        the range. checked: exact searches behind the flips.
    """

    name: str
    at: float
    more: float | None
    less: float | None
    kept_more: float
    up: Flip | None
    down: Flip | None
    checked: int


class Landscape(NamedTuple):
    """The best whole-numbered plan, its step time [s], how far behind the second best is [1], and effects by input."""

    best: Plan
    step_time_s: float
    runner_up: float
    considered: int
    effects: tuple[Effect, ...]


class _Search(NamedTuple):
    """What is searched: the case, its named inputs, devices, batch, what all plans share, what may vary."""

    case: Case
    known: Inputs
    n_devices: int
    global_batch: int
    base: Plan | None
    choices: Choices | None
    sharpness: float

    def exact(self, place: int, factor: float, top: int) -> Any:
        """The best plans with one input times a factor."""
        x = self.known.values.copy()
        x[place] *= factor
        moved = jax.tree.map(np.asarray, rebuild(x, self.known.tree, self.known.levels))
        return design(
            moved.system,
            moved.model,
            self.n_devices,
            self.global_batch,
            moved.coefficients,
            method="exact",
            top=top,
            base=self.base,
            choices=self.choices,
            footprint=moved.footprint,
            sharpness=self.sharpness,
        )


class _Pool:
    """Plans that are followed together; the first is the best of the case."""

    def __init__(self, search: _Search, plans: Sequence[Plan]):
        self.search, self.plans, self.known = search, [], set()
        self.groups: list[tuple[list[int], Plan]] = []
        self.reach = 1.0
        self.add(plans)

    def add(self, plans: Sequence[Plan]) -> None:
        """Take plans in, and stack all of one schedule and placement for the sweep."""
        for plan in plans:
            if _key(plan) not in self.known:
                self.known.add(_key(plan))
                self.plans.append(plan)
        kinds = [(_schedule(p), p.placement) for p in self.plans]
        self.groups = []
        for one in dict.fromkeys(kinds):
            mine = [i for i, k in enumerate(kinds) if k == one]
            same = [self.plans[i].replace(schedule=one[0]) for i in mine]
            self.groups.append((mine, jax.tree.map(lambda *leaves: np.array([float(x) for x in leaves]), *same)))

    def times(self, place: int, factors: np.ndarray) -> np.ndarray:
        """Step times `[factor, plan]`, infinite where a plan does not fit."""
        found = np.full((len(factors), len(self.plans)), np.inf)
        s, moves = self.search, np.zeros_like(self.search.known.values)
        moves[place] = 1.0
        judge = _judge(s.known.tree, s.known.levels, s.sharpness)
        for mine, stacked in self.groups:
            batch = {"plan": jax.tree.map(lambda x: np.tile(x, len(factors)), stacked), "factor": np.repeat(factors, len(mine))}
            out = sweep(judge, batch, {"x": s.known.values, "moves": moves})
            found[:, mine] = np.where(out["headroom"] >= 0.0, out["time"], np.inf).reshape(len(factors), len(mine))
        return found


def _key(plan: Plan) -> tuple:
    return (_schedule(plan), plan.placement, *(float(x) for x in jax.tree.leaves(plan)))


def _schedule(plan: Plan) -> str:
    """1F1B is the interleaved schedule of one chunk: one program for both."""
    return "interleaved" if plan.schedule == "1f1b" else plan.schedule


@lru_cache(maxsize=8)
def _judge(tree: Any, levels: int, sharpness: float) -> Callable:
    """The case function of the sweep: plans from the batch, inputs from the case, one of them times a factor."""

    def judge(batch: dict, fixed: dict) -> dict:
        x = fixed["x"][:, None] * (1.0 + fixed["moves"][:, None] * (batch["factor"][None] - 1.0))
        case = rebuild(x, tree, levels)
        time = step_time(case.system, case.model, batch["plan"], case.coefficients, sharpness=sharpness)
        used = memory_use(case.model, batch["plan"], footprint=case.footprint)
        return {"time": time.total, "headroom": jnp.asarray(case.system.chip.hbm_bytes - used.total)}

    return judge


def _flip(pool: _Pool, place: int, limit: float) -> tuple[Flip | None, int]:
    """The first factor between 1 and a limit at which another plan is better, and the number of exact searches that checked it."""
    name = pool.search.known.names[place]
    checked = 0
    while True:
        low, high, flips, last = 1.0, limit, True, np.empty(0)
        for round_ in range(ROUNDS):
            grid = np.geomspace(low, high, GRID + 1)
            times = pool.times(place, grid)
            worse = times[:, 0] > times.min(1) * (1.0 + EQUAL)
            flips = flips and bool(worse.any())
            if not flips:
                break
            if round_ == 0:
                last = times[-1]
            at = max(int(worse.argmax()), 1)
            low, high = float(grid[at - 1]), float(grid[at])
        reach = max(high, 1.0 / high)
        if kind(name) != "other" and reach <= pool.reach:
            break
        found = pool.search.exact(place, high, JOINING)
        checked += 1
        here = pool.times(place, np.array([high]))[0].min()
        if not found.exact or float(found.exact[0].step_time_s) >= here * (1.0 - EQUAL):
            break
        pool.add([c.plan for c in found.exact])
    if not flips:
        return None, checked
    here = pool.times(place, np.array([high]))[0]
    gain = 1.0 - float(last.min() / last[0]) if np.isfinite(last[0]) else 1.0
    return Flip(float(high), float(pool.search.known.values[place] * high), pool.plans[int(here.argmin())], gain), checked


def landscape(
    case: Case,
    names: Sequence[str],
    *,
    base: Plan | None = None,
    choices: Choices | None = None,
    limit: float = LIMIT,
    sharpness: float = SHARPNESS,
    level_names: Sequence[str] | None = None,
) -> Landscape:
    """What inputs of hardware, coefficients and workload do to the best whole-numbered plan, and where it flips.

    Limits: inputs that decide which plans are valid (heads, layers, batch, devices) only change in whole numbers, and are refused.

    Args:
      case: its plan says how many devices and which batch. names: of inputs.
      base, choices: of `design`. limit: factor to which inputs are followed, to both sides, at `GRID` points.

    Raises:
      InputError: no plan fits, or an input that cannot be followed.
    """
    known = inputs(case, level_names)
    places = [place_followed(known, name) for name in names]
    count = round(float(np.prod([float(getattr(case.plan, d)) for d in ("dp", "tp", "cp", "pp")])))
    s = _Search(case, known, count, round(float(case.plan.global_batch)), base, choices, sharpness)
    first = s.exact(0, 1.0, POOL)
    if not first.exact:
        raise InputError(f"no plan fits: {first.binding.message if first.binding else 'none is valid'}")
    pool = _Pool(s, [c.plan for c in first.exact])
    seconds = [float(c.step_time_s) for c in first.exact]
    pool.reach = seconds[-1] / seconds[0] if len(seconds) == POOL else np.inf
    effects = tuple(_effect(pool, place, limit) for place in places)
    return Landscape(first.exact[0].plan, seconds[0], seconds[min(1, len(seconds) - 1)] / seconds[0] - 1.0, first.considered, effects)


def _effect(pool: _Pool, place: int, limit: float) -> Effect:
    up, searches_up = _flip(pool, place, limit)
    down, searches_down = _flip(pool, place, 1.0 / limit)
    # after the flips, so that the plans that they found are among those compared
    now, more, less = pool.times(place, np.array([1.0, 1.0 + SMALL, 1.0 - SMALL]))

    def change(times: np.ndarray) -> float | None:
        return float(times.min() / now[0] - 1.0) if np.isfinite(times.min()) else None

    return Effect(
        name=pool.search.known.names[place],
        at=float(pool.search.known.values[place]),
        more=change(more),
        less=change(less),
        kept_more=float(more[0] / now[0] - 1.0),
        up=up,
        down=down,
        checked=searches_up + searches_down,
    )


WHOLE = frozenset(["model.n_heads", "model.n_kv_heads", "model.n_layers", "model.seq_len", "model.n_experts"])
"""Inputs that decide which plans are valid."""


def place_followed(known: Inputs, name: str) -> int:
    """Place of an input that can be followed; InputError for any other."""
    place = known.index(name)
    if name.startswith(("plan.", "run.")) or name in WHOLE or name.startswith("network.size"):
        raise InputError(
            f"{name} cannot be followed through the best plans: expected an input of the chip, the rates and times of the network, "
            "a coefficient or a width of the model; it decides which plans are valid, so search again for each value of it"
        )
    if not (np.isfinite(known.values[place]) and known.values[place] > 0.0):
        raise InputError(f"{name} cannot be followed: expected a positive finite value; got {known.values[place]:g}")
    return place
