"""What one more device adds where the plan is the best of every scale.

The best valid plan of each scale is found by exact search; by the envelope theorem the slope of the
best value is that of the plan that is best there, held fixed, since what is chosen best contributes
nothing to first order. Where the best plan changes the value has no slope but two: such jumps are
named.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import jax
import numpy as np

from dmodel.coefficients import Coefficients
from dmodel.design import Choices, design
from dmodel.energy import Site
from dmodel.errors import InputError, NoPlanFits
from dmodel.footprint import Footprint
from dmodel.goodput import Reliability
from dmodel.records import Cluster, Model, Plan, leaf
from dmodel.returns.fixed import CASES, Growth, Returns, checked_scales, evaluate, fixed, growth
from dmodel.smooth import SHARPNESS

SHOWN = (
    "tp",
    "cp",
    "pp",
    "ep",
    "etp",
    "zero",
    "shard",
    "reshard",
    "micro_batch",
    "sp",
    "recompute_layers",
    "recompute_attention",
    "interleave",
)
"""Numbers of a plan whose change is named: all that is chosen but dp, which takes the devices that
come."""


class Jump(NamedTuple):
    """A change of the best plan between two scales.

    Attributes:
      devices: where both plans, grown from their scale, are equally fast; None when one is faster
        at both ends [count].
      changed: attribute → (before, after). slope_before, slope_after: throughput that one more
        device adds there [token/s].
    """

    devices: float | None
    changed: dict[str, tuple]
    slope_before: float
    slope_after: float

    def __str__(self) -> str:
        """`near 192 devices: tp 1 → 2`."""
        where = "" if self.devices is None else f"near {self.devices:,.0f} devices: "
        words = {
            name: [x if isinstance(x, str) else f"{x:g}" for x in pair]
            for name, pair in self.changed.items()
        }
        return where + ", ".join(f"{name} {a} → {b}" for name, (a, b) in words.items())


class BestReturns(NamedTuple):
    """Returns at the best plan of every scale: its plans, and the jumps between neighbouring
    scales. Scales where nothing fits are left
    out of `returns` and named in `infeasible`."""

    returns: Returns
    plans: tuple[Plan, ...]
    jumps: tuple[Jump, ...]
    infeasible: tuple[int, ...]


def best_returns(
    system: Cluster,
    model: Model,
    coefficients: Coefficients,
    devices: Sequence[int],
    sequences: float,
    *,
    batch: str = "weak",
    base: Plan | None = None,
    choices: Choices | None = None,
    footprint: Footprint | None = None,
    site: Site | None = None,
    reliability: Reliability | None = None,
    sharpness: float = SHARPNESS,
) -> BestReturns:
    """What one more device adds where the plan is chosen anew at every scale, by exact search; dp
    takes the device that is added.

    `dV*/dn = ∂V/∂n` at the best plan (envelope theorem): exact between jumps, where the best choice
    stays; at a jump see its two slopes.

    Args:
      devices: scales, ascending whole numbers [count]. sequences: of the global batch per device
        ("weak"), or in all ("strong").
      base, choices, footprint: of the search, as in `design`. site, reliability: as in
        `marginal_returns`.

    Raises:
      InputError: as `design`, and devices or a batch that are no whole number. NoPlanFits: on none
        of the scales.
    """
    how = growth("dp", batch, sharpness)
    scales = [_whole(float(n)) for n in checked_scales(devices, system)]
    plans, infeasible = {}, []
    shared = {"base": base, "choices": choices, "footprint": footprint, "sharpness": sharpness}
    for n in scales:
        sized = _global_batch(n, sequences, batch)
        exact = {"method": "exact", "top": 1, **shared}
        found = design(system, model, n, sized, coefficients, **exact)  # type: ignore
        if found.exact:
            plans[n] = _one_schedule(found.exact[0].plan)
        else:
            infeasible.append(n)
    if not plans:
        raise NoPlanFits(
            f"no plan fits on any of the scales {scales}; use more devices, devices with more "
            "memory or a smaller model"
        )
    shared_by = {
        n: fixed(system, model, plan, coefficients, site, reliability) for n, plan in plans.items()
    }
    each = [evaluate(np.asarray([float(n)]), how, shared_by[n]) for n in plans]
    kept = list(plans)
    jumps = [
        _jump(a, b, plans, shared_by, how)
        for a, b in zip(kept, kept[1:], strict=False)
        if _changed(plans[a], plans[b])
    ]
    returns = jax.tree.map(lambda *xs: np.concatenate(xs), *each)
    return BestReturns(returns, tuple(plans.values()), tuple(jumps), tuple(infeasible))


def _whole(devices: float) -> int:
    """A scale at which plans can be searched [count]."""
    if devices != round(devices):
        raise InputError(
            f"devices: expected whole numbers, since plans are searched on them; got {devices:g}"
        )
    return round(devices)


def _global_batch(n: int, sequences: float, batch: str) -> int:
    """The global batch of a scale [sequence]."""
    found = sequences * n if batch == "weak" else sequences
    if not 1.0 <= found < inf or abs(found - round(found)) > 1e-9 * found:
        raise InputError(
            f"batch: {sequences!r} sequences on {n} devices make {found:g}; expected a whole "
            "number of sequences from 1 on"
        )
    return round(found)


def _one_schedule(plan: Plan) -> Plan:
    """1F1B as interleaving of one chunk, which it is: plans of both then share what is compiled."""
    return plan.having(schedule="interleaved") if plan.layout.schedule == "1f1b" else plan


def _changed(before: Plan, after: Plan) -> dict[str, tuple]:
    """What differs between two plans beside dp, and shards that span it."""
    found: dict[str, tuple] = {
        name: (float(leaf(before, name)), float(leaf(after, name))) for name in SHOWN
    }
    if all(float(p.layout.shard) >= float(p.layout.dp) for p in (before, after)):
        del found["shard"]
    found |= {
        "schedule": (before.layout.schedule, after.layout.schedule),
        "placement": tuple(" ".join(p.layout.placement) for p in (before, after)),
    }
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def _jump(a: int, b: int, plans: dict[int, Plan], shared: dict[int, dict], how: Growth) -> Jump:
    """Where the plan of scale b overtakes that of scale a, both grown to what lies between; whether
    they fit there is not asked."""
    scales, at = np.linspace(float(a), float(b), CASES), None
    for _ in range(3):
        ahead = np.log(_rate(scales, how, shared[b]) / _rate(scales, how, shared[a]))
        rising = np.flatnonzero((ahead[:-1] < 0.0) & (ahead[1:] >= 0.0))
        if not rising.size:
            break
        i = int(rising[-1])
        scales = np.linspace(scales[i], scales[i + 1], CASES)
        at = float(scales[-1])
    where = np.asarray([float(b) if at is None else at])
    slopes = (evaluate(where, how, shared[n]).slope for n in (a, b))
    before, after = (float(each.tokens_per_s[0]) for each in slopes)  # type: ignore
    return Jump(at, _changed(plans[a], plans[b]), before, after)


def _rate(scales: np.ndarray, how: Growth, shared: dict) -> np.ndarray:
    """Throughput of one plan grown to several scales [token/s]."""
    return np.asarray(evaluate(scales, how, shared).at.tokens_per_s)
