"""What one more device adds at a fixed plan: one degree grows with the devices, all else of the
plan stays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel import run, struct
from dmodel.coefficients import Coefficients
from dmodel.energy import Site, energy
from dmodel.errors import InputError
from dmodel.goodput import Reliability, goodput
from dmodel.records import Cluster, Model, Plan, leaf
from dmodel.smooth import SHARPNESS
from dmodel.step import step_time
from dmodel.sweep import quick_to_compile
from dmodel.topology import capacity, check_devices
from dmodel.types import Array

GROWING = ("dp", "tp", "cp", "pp")
"""Degrees that may grow with the devices."""

BATCHES = ("weak", "strong")
"""The global batch grows with the devices, or stays."""

CASES = 16
"""Scales of one call of compiled code [count]."""

LARGEST = 1e9
"""Devices beyond which no half return is looked for [count]."""


class Measures(struct.PyTreeNode, kw_only=True):
    """What a scale gives, `[N]`.

    Attributes:
      tokens_per_s: of all devices [token/s]. tokens_per_joule: of the facility [token/J].
      dollars_per_token: rent [dollar/token]. step_time_s: [s]. exposed_share: of the step that
      waits for communication [1]. device_watts: of one accelerator [W].
    """

    tokens_per_s: Array
    tokens_per_joule: Array
    dollars_per_token: Array
    step_time_s: Array
    exposed_share: Array
    device_watts: Array


class Returns(struct.PyTreeNode, kw_only=True):
    """Measures of scales and their derivative by the number of devices.

    Attributes:
      devices: `[N]` [count]. at: values. slope: ∂ / ∂ devices of each, per device.
    """

    devices: Array
    at: Measures
    slope: Measures

    @property
    def elasticity(self) -> Measures:
        """`∂ ln / ∂ ln devices` [1]: of the throughput, 1 where scaling is linear."""
        return jax.tree.map(lambda value, slope: slope * self.devices / value, self.at, self.slope)


class Growth(NamedTuple):
    """How a plan grows, all static: the degree that does, "weak" or "strong" batch, and the
    sharpness of the step's maxima."""

    along: str = "dp"
    batch: str = "weak"
    sharpness: float = SHARPNESS


def growth(along: str = "dp", batch: str = "weak", sharpness: float = SHARPNESS) -> Growth:
    """How a plan is to grow.

    Raises:
      InputError: unknown degree or batch.
    """
    if along not in GROWING:
        raise InputError(f"degree that grows: expected one of {', '.join(GROWING)}; got {along!r}")
    if batch not in BATCHES:
        raise InputError(f"batch: expected one of {', '.join(BATCHES)}; got {batch!r}")
    return Growth(along, batch, sharpness)


def scaled(plan: Plan, devices: Array, how: Growth) -> Plan:
    """The plan on another number of devices: one degree takes them all, `degree = devices / (the
    other degrees)`.

    A weak batch keeps the sequences per device, `B ∝ devices`; a strong one keeps B. Shards that
    span dp grow with it; smaller groups (HSDP) stay.

    Args:
      devices: [count], `[*batch]`; need not be whole.
    """
    layout = plan.layout
    factor = devices / plan.devices
    grown = plan.having(**{how.along: leaf(plan, how.along) * factor})
    if how.along == "dp":
        grown = grown.having(
            shard=jnp.where(jnp.asarray(layout.shard >= layout.dp), grown.layout.dp, layout.shard)
        )
    return grown.having(global_batch=plan.global_batch * factor) if how.batch == "weak" else grown


NEVER = Reliability(failures_per_device_s=0.0)
"""Devices that do not fail."""


def measures(
    system: Cluster,
    model: Model,
    plan: Plan,
    coefficients: Coefficients,
    *,
    site: Site | None = None,
    reliability: Reliability = NEVER,
    sharpness: float = SHARPNESS,
) -> Measures:
    """What a plan gives; failures take their share of throughput, and add it to energy and rent."""
    time = step_time(system, model, plan, coefficients, sharpness=sharpness)
    bill = energy(system, model, plan, time, coefficients, site)
    useful = goodput(plan.devices, reliability)
    return Measures(
        tokens_per_s=run.tokens_per_s(model, plan, time) * useful,
        tokens_per_joule=bill.tokens_per_joule * useful,
        dollars_per_token=bill.dollars_per_token / useful,
        step_time_s=time.total,
        exposed_share=run.exposed_share(time),
        device_watts=bill.device_watts,
    )


@lru_cache(maxsize=8)
def _compiled(how: Growth):
    """Values and slopes of scales `[CASES]`: one forward pass with its tangent, since each case
    depends on its own devices alone."""

    def function(devices: jax.Array, shared: dict) -> tuple[Measures, Measures]:
        def value(n: jax.Array) -> Measures:
            extra = {
                "site": shared["site"],
                "reliability": shared["reliability"],
                "sharpness": how.sharpness,
            }
            found = measures(
                shared["system"],
                shared["model"],
                scaled(shared["plan"], n, how),
                shared["coefficients"],
                **extra,
            )
            return jax.tree.map(lambda x: jnp.broadcast_to(x, n.shape), found)

        return jax.jvp(value, (devices,), (jnp.ones_like(devices),))

    return jax.jit(function, compiler_options=quick_to_compile())


def evaluate(devices: np.ndarray, how: Growth, shared: dict) -> Returns:
    """Any number of scales by calls of one shape."""
    parts = []
    for start in range(0, len(devices), CASES):
        some = devices[start : start + CASES]
        padded = np.concatenate([some, np.full(CASES - len(some), some[-1])])
        found = _compiled(how)(padded, shared)
        parts.append(found)
    at, slope = (
        jax.tree.map(lambda *xs: np.concatenate(xs)[: len(devices)], *side)
        for side in zip(*parts, strict=True)
    )
    return Returns(devices=devices, at=at, slope=slope)


def fixed(
    system: Cluster,
    model: Model,
    plan: Plan,
    c: Coefficients,
    site: Site | None,
    reliability: Reliability | None,
) -> dict:
    """What all scales share, as float arrays, so that equal kinds are compiled once."""
    found = {"system": system, "model": model, "plan": plan, "coefficients": c}
    found |= {
        "site": Site() if site is None else site,
        "reliability": NEVER if reliability is None else reliability,
    }
    return jax.tree.map(lambda x: np.asarray(x, np.float64), found)


def checked_scales(devices: Sequence[float], system: Cluster) -> np.ndarray:
    """Scales as an ascending array, checked."""
    found = np.asarray(devices, np.float64).reshape(-1)
    if (
        not found.size
        or not (np.isfinite(found) & (found >= 1.0)).all()
        or (np.diff(found) <= 0.0).any()
    ):
        raise InputError(f"devices: expected ascending counts from 1 on; got {list(devices)!r}")
    check_devices(system.network, float(found[-1]))
    return found


def _check_batch(plan: Plan, how: Growth, largest: float) -> None:
    """A strong batch ends where a replica has less than one micro-batch."""
    grown = scaled(plan, np.float64(largest), how)
    if float(grown.n_microbatches) < 1.0 - 1e-9:
        most = (
            float(plan.global_batch)
            / float(plan.layout.micro_batch)
            * float(plan.devices)
            / float(plan.layout.dp)
        )
        raise InputError(
            f"strong scaling: {largest:,.0f} devices leave {float(grown.n_microbatches):.2f} "
            "micro-batches of a global batch of "
            f"{float(plan.global_batch):g}; the plan ends at {most:,.0f} devices. Use fewer, a "
            "larger batch or a smaller micro-batch"
        )


def marginal_returns(
    system: Cluster,
    model: Model,
    plan: Plan,
    coefficients: Coefficients,
    devices: Sequence[float],
    *,
    along: str = "dp",
    batch: str = "weak",
    site: Site | None = None,
    reliability: Reliability | None = None,
    sharpness: float = SHARPNESS,
) -> Returns:
    """What one more device adds to throughput, tokens per joule and dollars per token, at a fixed
    plan.

    Limits: where a group's size passes the edge of a network level the slope is the mean of its two
    sides.

    Args:
      plan: all of it stays but for the degree that grows, the batch, and shards over all of dp.
        devices: scales, ascending [count].
      along: the degree that grows, one of `GROWING`. batch: "weak" (grows with the devices) or
        "strong" (stays).
      site: host, cooling and tariff. reliability: None counts no failures.

    Raises:
      InputError: scales that are none, more devices than the network holds, a strong batch of less
        than a micro-batch per replica.
    """
    how = growth(along, batch, sharpness)
    scales = checked_scales(devices, system)
    _check_batch(plan, how, scales[-1])
    return evaluate(scales, how, fixed(system, model, plan, coefficients, site, reliability))


class HalfReturn(NamedTuple):
    """The scale at which one more device returns half of what the first did.

    Attributes:
      first, devices: scale of comparison and scale found; infinite when none is up to the limit
        [count].
      first_slope, slope: throughput that one more device adds at both [token/s].
    """

    first: float
    devices: float
    first_slope: float
    slope: float


def half_return(
    system: Cluster,
    model: Model,
    plan: Plan,
    coefficients: Coefficients,
    *,
    first: float | None = None,
    share: float = 0.5,
    largest: float = LARGEST,
    along: str = "dp",
    batch: str = "weak",
    site: Site | None = None,
    reliability: Reliability | None = None,
    sharpness: float = SHARPNESS,
) -> HalfReturn:
    """The smallest scale at which one more device adds no more than a share of the throughput that
    it adds at the first scale.

    Looked for on 48 scales up to the largest, then on 16 between the two around the crossing, four
    times over.

    Args:
      first: scale of comparison; the plan's own devices where None. share: of the return there.
        largest: scale at which to give up,
        or the last that the network holds.
      Others as in `marginal_returns`.

    Raises:
      InputError: a first scale that is none or larger than the network, a share that is not between
        0 and 1.
    """
    how = growth(along, batch, sharpness)
    if not 0.0 < share < 1.0:
        raise InputError(
            f"share of the first return: expected a number between 0 and 1; got {share!r}"
        )
    start = float(
        checked_scales([float(plan.devices) if first is None else float(first)], system)[0]
    )
    largest = min(largest, capacity(system.network))
    if batch == "strong" and along == "dp":
        _check_batch(plan, how, start)
        largest = min(
            largest,
            float(plan.global_batch)
            / float(plan.layout.micro_batch)
            * float(plan.devices)
            / float(plan.layout.dp),
        )
    shared = fixed(system, model, plan, coefficients, site, reliability)
    edges = np.geomspace(start, max(largest, start * 1.01), 3 * CASES)
    found = evaluate(edges, how, shared)
    at, added = edges, np.asarray(found.slope.tokens_per_s)
    most = float(added[0])
    for _ in range(4):
        below = np.flatnonzero(added <= share * most)
        if not below.size:
            return HalfReturn(start, float("inf"), most, float(added[-1]))
        i = max(int(below[0]), 1)
        at = np.linspace(at[i - 1], at[i], CASES)
        added = np.asarray(evaluate(at, how, shared).slope.tokens_per_s)
    i = int(np.flatnonzero(added <= share * most)[0])
    return HalfReturn(start, float(at[i]), most, float(added[i]))
