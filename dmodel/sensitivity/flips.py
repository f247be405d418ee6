"""By searching the whole-numbered plans again: what an input does to the best of them, and where
another one takes over.

A pool of good plans is followed along the input; where the best changes is found by cutting the
interval. Every answer is checked at that point against all plans that may be better there
(`dmodel.sensitivity.searched`): those that are join the pool and the input is followed again, so a
flip is one among all valid plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.blocks import KINDS
from dmodel.design import Choices
from dmodel.design.few import by_numpy
from dmodel.errors import InputError
from dmodel.once import together
from dmodel.recorded import Recorded
from dmodel.records import Plan
from dmodel.sensitivity.case import Inputs, Point, rebuild, scale
from dmodel.sensitivity.searched import CAPACITY, LIMIT, MARGIN, Searched, best_with, searched
from dmodel.smooth import SHARPNESS
from dmodel.step import memory_use, step_time
from dmodel.types import Array

GRIDS = (24, 12, 12, 12)
"""Points along an input, and then in the interval of a flip, which is cut to 2e-5 of the input."""

SMALL = 0.1
"""Change of an input whose effect on the best plan is shown."""

EQUAL = 1e-9
"""Step times that differ relatively by less are equal: the plan stays."""


class Flip(NamedTuple):
    """Where another plan becomes the best: the input's factor and value there, the plan, and by how
    much its step is shorter at the end of the range than that of the plan it replaces [1]."""

    factor: float
    value: float
    plan: Plan
    gain: float


class Effect(NamedTuple):
    """What one input does to the best whole-numbered plan.

    Attributes:
      name, at: the input and its value. more, less: relative change of the step time of the best
        plan, searched again, for an input `SMALL` larger and smaller; None where nothing fits.
        kept_more: the same for the plan as it is. up, down: the nearest flip, or None within the
        range. checked: times that all plans were asked for a better one.
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
    """The best whole-numbered plan, its step time [s], how far behind the second best is [1], and
    effects by input."""

    best: Plan
    step_time_s: float
    runner_up: float
    considered: int
    effects: tuple[Effect, ...]


class _Pool:
    """Plans that are followed together; the first is the best of the case."""

    def __init__(self, search: Searched, plans: Sequence[Plan]):
        self.search, self.plans, self.known = search, [], set()
        self.groups: list[tuple[list[int], Plan]] = []
        self.add(plans)

    def add(self, plans: Sequence[Plan]) -> None:
        """Take plans in, and stack all of one schedule and placement for the sweep."""
        for plan in plans:
            if _key(plan) not in self.known:
                self.known.add(_key(plan))
                self.plans.append(plan)
        kinds = [(_schedule(p), p.layout.placement) for p in self.plans]
        self.groups = []
        for one in dict.fromkeys(kinds):
            mine = [i for i, k in enumerate(kinds) if k == one]
            self.groups.append((mine, self._together(mine, one[0])))

    def _together(self, places: Sequence[int], schedule: str) -> Plan:
        """Some plans as one batch."""
        same = [self.plans[i].having(schedule=schedule) for i in places]
        return jax.tree.map(lambda *leaves: np.array([float(x) for x in leaves]), *same)

    def times(self, place: int, factors: np.ndarray, which: np.ndarray | None = None) -> np.ndarray:
        """Step times `[factor, plan]`, infinite where a plan does not fit, or is none of those
        that are asked about (`which`, `[plan]` of bool; None for all)."""
        found = np.full((len(factors), len(self.plans)), np.inf)
        for mine, stacked in self.groups:
            asked = [j for j, i in enumerate(mine) if which is None or which[i]]
            if asked:
                some = jax.tree.map(lambda x, asked=asked: x[asked], stacked)
                found[:, [mine[j] for j in asked]] = self._of(some, place, factors, len(asked))
        return found

    def _of(self, plans: Plan, place: int, factors: np.ndarray, count: int) -> np.ndarray:
        """Step times `[factor, plan]` of plans of one schedule and placement."""
        known = self.search.known
        moves = np.zeros_like(known.values)
        moves[place] = 1.0
        factor, plan = np.divmod(np.arange(count * len(factors)), count)
        batch = {"plan": jax.tree.map(lambda x: x[plan], plans), "factor": factors[factor]}
        like = jax.tree.unflatten(known.tree, [0.0] * known.tree.num_leaves)
        static = {"levels": known.levels, "sharpness": self.search.sharpness}
        found = by_numpy(TIMES, batch, (like, known.values, moves), len(plan), **static)
        fits = found["needed"] <= self.search.memory * found["has"]
        return np.where(fits, found["time"], np.inf).reshape(len(factors), count)


def _key(plan: Plan) -> tuple:
    return (_schedule(plan), plan.layout.placement, *(float(x) for x in jax.tree.leaves(plan)))


def _schedule(plan: Plan) -> str:
    """1F1B is the interleaved schedule of one chunk: one program for both."""
    return "interleaved" if plan.layout.schedule == "1f1b" else plan.layout.schedule


def _recorded(
    fixed: tuple[Point, jax.Array, jax.Array], batch: dict, *, levels: int, sharpness: float
) -> dict[str, Array]:
    """Step times of plans, and the memory that they need and a device has, where one of the inputs
    is a factor times itself.

    Args:
      fixed: any case of the structure, inputs `[n]`, and 1 for the one that moves `[n]`.
      batch: "plan" and "factor" of each row.
    """
    like, x, moves = fixed
    moved = x[:, None] * (1.0 + moves[:, None] * (batch["factor"][None] - 1.0))
    case = rebuild(moved, jax.tree.structure(like), levels)
    with together():
        time = step_time(
            case.system, case.model, batch["plan"], case.coefficients, sharpness=sharpness
        )
        used = memory_use(case.model, batch["plan"], footprint=case.footprint)
    return {
        "time": time.total,
        "needed": used.total,
        "has": jnp.asarray(case.system.chip.hbm_bytes) + 0.0 * used.total,
    }


TIMES = Recorded(_recorded, any_rows=True, of_last=True)


def _contenders(name: str, ends: np.ndarray) -> np.ndarray | None:
    """Plans that may be better than the first one between two factors, by their step times at both,
    `[2, plan]`; None where an input may lengthen a step and shorten it."""
    if name != CAPACITY and scale(name) == "other":
        return None
    which = ends.min(0) <= ends[:, 0].max() * (1.0 + MARGIN)
    which[0] = True
    return which


def _flip(pool: _Pool, place: int, limit: float) -> tuple[Flip | None, int]:
    """The first factor between 1 and a limit at which another plan is better, and how often all
    plans were asked for a better one."""
    checked = 0
    while True:
        low, high, flips, last, which = 1.0, limit, True, np.empty(0), None
        for round_, points in enumerate(GRIDS):
            grid = np.geomspace(low, high, points + 1)
            times = pool.times(place, grid, which)
            worse = times[:, 0] > times.min(1) * (1.0 + EQUAL)
            flips = flips and bool(worse.any())
            if not flips:
                break
            if round_ == 0:
                last = times[-1]
            at = max(int(worse.argmax()), 1)
            low, high = float(grid[at - 1]), float(grid[at])
            which = _contenders(pool.search.known.names[place], times[[at - 1, at]])
        here = float(pool.times(place, np.array([high]))[0].min())
        found = best_with(pool.search, place, high, here)
        checked += 1
        if not found.plans or float(found.seconds[0]) >= here * (1.0 - EQUAL):
            break
        pool.add(found.plans)
    if not flips:
        return None, checked
    here = pool.times(place, np.array([high]))[0]
    gain = 1.0 - float(last.min() / last[0]) if np.isfinite(last[0]) else 1.0
    return Flip(
        float(high),
        float(pool.search.known.values[place] * high),
        pool.plans[int(here.argmin())],
        gain,
    ), checked


def landscape(
    case: Point,
    names: Sequence[str],
    *,
    base: Plan | None = None,
    choices: Choices | None = None,
    known: Searched | None = None,
    memory: float = 1.0,
    limit: float = LIMIT,
    sharpness: float = SHARPNESS,
    level_names: Sequence[str] | None = None,
) -> Landscape:
    """What inputs of hardware, coefficients and workload do to the best whole-numbered plan, and
    where it flips.

    Limits: inputs that decide which plans are valid (heads, layers, batch, devices) only change in
    whole numbers, and are refused.

    Args:
      case: its plan says how many devices and which batch. names: of inputs.
      base, choices: of `design`. known: the plans of the case, where they were searched already;
        None to search them.
      memory: share of a device's memory that plans may need [1], where none is known.
      limit: factor to which inputs are followed, to both sides.

    Raises:
      NoPlanFits: none does. InputError: an input that cannot be followed.
    """
    s = (
        known
        if known is not None
        else searched(
            case,
            base=base,
            choices=choices,
            memory=memory,
            sharpness=sharpness,
            level_names=level_names,
        )
    )
    places = [place_followed(s.known, name) for name in names]
    pool, seconds = _Pool(s, s.best.plans), s.best.seconds.tolist()
    effects = tuple(_effect(pool, place, limit) for place in places)
    return Landscape(
        s.best.plans[0],
        seconds[0],
        seconds[min(1, len(seconds) - 1)] / seconds[0] - 1.0,
        s.considered,
        effects,
    )


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


WHOLE = frozenset(
    field
    for kind in KINDS.values()
    for field in ("n_layers", "seq_len", "n_experts", *kind.SPLIT, *kind.COPIED)
)
"""Sizes of a model that decide which plans are valid."""


def _is_whole(name: str) -> bool:
    """Whether an input of the model decides which plans are valid."""
    return name.startswith("model.") and name.rsplit(".", 1)[-1] in WHOLE


def place_followed(known: Inputs, name: str) -> int:
    """Place of an input that can be followed; InputError for any other."""
    place = known.index(name)
    if name.startswith(("plan.", "run.")) or _is_whole(name) or name.startswith("network.size"):
        raise InputError(
            f"{name} cannot be followed through the best plans: expected an input of the chip, "
            "the rates and times of the network, "
            "a coefficient or a width of the model; it decides which plans are valid, so search "
            "again for each value of it"
        )
    if not (np.isfinite(known.values[place]) and known.values[place] > 0.0):
        raise InputError(
            f"{name} cannot be followed: expected a positive finite value; got "
            f"{known.values[place]:g}"
        )
    return place
