"""A problem as it is stated: what is free, what holds, what is made best, what may not be
exceeded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from dmodel.codesign.bill import BILL, Bill, Shares
from dmodel.codesign.laws import Laws, laws
from dmodel.codesign.limits import Goal, Limits, goal
from dmodel.codesign.outcome import NAMES, World
from dmodel.codesign.plans import Planner
from dmodel.codesign.unknowns import ABSOLUTE, CHIP, Unknowns, catalog_values, fixed, unknowns
from dmodel.coefficients import Coefficients
from dmodel.design.choices import Choices
from dmodel.errors import InputError
from dmodel.footprint import LEAST, Footprint
from dmodel.goodput import Reliability
from dmodel.records import Cluster, Model, Plan
from dmodel.topology import capacity, check_devices
from dmodel.types import enable_float64, number

PLAIN = Choices(zero=(0, 1, 3), sp=(1,))
"""What plans may vary where nothing is said: sizes vary too, and every size asks for its own
search."""


class Question(NamedTuple):
    """A stated problem: what `codesign` searches and what the other functions of the package ask
    again about.

    unknowns: names and bounds. world: all that is not chosen. at: objective and limits. base,
    choices: of plans.
    """

    unknowns: Unknowns
    world: World
    at: Goal
    base: Plan
    choices: Choices
    objective: str

    @property
    def same_loss(self) -> bool:
        """Whether runs to the same loss are compared, not runs of the same tokens."""
        return bool(self.at.weight[NAMES.index("waste")])

    def planner(self, threads: int | None = None) -> Planner:
        """A new exact search of plans for sizes."""
        return Planner(self.unknowns, self.world, self.at, self.base, self.choices, threads=threads)


DEFAULT_TOKENS = 1e12
"""Tokens from which a search starts that none is told [token]."""


def question(
    system: Cluster,
    model: Model,
    coefficients: Coefficients,
    *,
    objective: str,
    limits: Limits,
    free: Sequence[str],
    devices: float,
    global_batch: float,
    tokens: float | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    law: Laws | None = None,
    bill: Bill = BILL,
    base: Plan | None = None,
    choices: Choices | None = None,
    footprint: Footprint = LEAST,
    reliability: Reliability | None = None,
    quantile: float | None = None,
) -> Question:
    """State a problem; see `codesign` for the arguments.

    Where the batch is free and no loss is to be reached, the objective is that of runs to the same
    loss: nothing else holds a batch back whose tokens bring little.

    Raises:
      InputError: an argument that makes no sense, with what was expected.
    """
    enable_float64()
    counted = DEFAULT_TOKENS if tokens is None else tokens
    _refuse_small({"devices": devices, "global batch": global_batch, "tokens": counted})
    values = catalog_values(system, model, global_batch, counted, devices)
    # no more devices than the fabric joins
    most = {
        "devices": (ABSOLUTE["devices"][0], min(ABSOLUTE["devices"][1], capacity(system.network)))
    }
    sought = unknowns(values, free, most | dict(bounds or {}))
    check_devices(
        system.network, np.floor(np.exp(sought.high[sought.index("devices")]) * (1.0 + 1e-9))
    )
    free_batch = _is_free(sought, "global_batch")
    same_loss = free_batch and limits.loss is None and objective != "loss"
    at = goal(objective, limits, quantile, same_loss=same_loss)
    by_law = tokens is None and not _is_free(sought, "tokens")
    _refuse_undecided(objective, by_law, sought)
    spread = jax.tree.map(lambda leaf: np.atleast_1d(np.asarray(leaf, dtype=float)), coefficients)
    world = World(
        fixed=fixed(system, model, _billed(bill, sought)),
        coefficients=spread,
        laws=law or laws(),
        footprint=footprint,
        reliability=reliability,
        law_tokens=float(by_law),
    )
    base = Plan.of(dp=1.0, global_batch=1.0) if base is None else base.alike()
    return Question(sought, world, at, base, choices or PLAIN, objective)


def _refuse_small(counts: Mapping[str, float]) -> None:
    """Refuse counts below 1 or without end."""
    for name, value in counts.items():
        if not 1.0 <= number(value) < np.inf:
            raise InputError(f"{name}: expected a number from 1 on; got {value!r}")


def _is_free(sought: Unknowns, name: str) -> bool:
    """Whether a size is sought."""
    return bool(sought.free[sought.index(name)])


def _refuse_undecided(objective: str, by_law: bool, sought: Unknowns) -> None:
    """Refuse an objective that no freed size decides."""
    if objective in ("loss", "largest") and by_law and not _is_free(sought, "d_model"):
        raise InputError(
            f"objective {objective!r}: nothing that decides it is freed; free tokens or shape"
        )


def _billed(bill: Bill, sought: Unknowns) -> Bill:
    """The bill for what is freed alone: what is given costs what the catalog's device costs."""
    free = [n for n, f in zip(sought.names, sought.free, strict=True) if f]
    innermost = "bytes_per_s[0]"
    further = [n for n in free if n != innermost]
    part = {name: float(name in free) for name in CHIP}
    part["inner"] = float(innermost in free)
    part["outer"] = float(_any_begins(further, "bytes_per_s"))
    part["latency"] = float(_any_begins(free, "latency_s"))

    def of(shares: Shares) -> Shares:
        return shares.replace(**{name: getattr(shares, name) * x for name, x in part.items()})

    return bill.replace(price=of(bill.price), area=of(bill.area), watts=of(bill.watts))


def _any_begins(names: Sequence[str], start: str) -> bool:
    return any(name.startswith(start) for name in names)
