"""What bounds a step: arithmetic, memory bandwidth, network bandwidth or latency; and where on two
axes one gives way to another.

The step time is homogeneous of degree 1 in seconds, so that elasticities to its rates and times are
shares that add up to one,
`−e(FLOP/s) − e(HBM byte/s) − Σ e(network byte/s) + Σ e(times) = 1`. The largest share names the
regime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dmodel.errors import InputError
from dmodel.sensitivity.case import Inputs, Point, base_name, inputs
from dmodel.sensitivity.gradient import elasticities_of, evaluate
from dmodel.smooth import SHARPNESS

REGIMES = ("compute", "memory", "bandwidth", "latency")
"""Arithmetic, memory bandwidth, network bandwidth, latencies and fixed times."""

MEMBERS = {
    "chip.flops_per_s": ("compute", -1.0),
    "chip.attention_flops_per_s": ("compute", -1.0),
    "chip.exponentials_per_s": ("compute", -1.0),
    "chip.hbm_bytes_per_s": ("memory", -1.0),
    "chip.host_bytes_per_s": ("bandwidth", -1.0),
    "chip.host_memory_bytes_per_s": ("memory", -1.0),
    "network.bytes_per_s": ("bandwidth", -1.0),
    "chip.kernel_latency_s": ("latency", 1.0),
    "network.latency_s": ("latency", 1.0),
    "coefficients.collective_start": ("latency", 1.0),
    "coefficients.collective_skew": ("latency", 1.0),
    "coefficients.overhead": ("latency", 1.0),
}
"""Regime that an elasticity belongs to, and its sign there."""

AXES = {
    "flops": ("chip.flops_per_s", "chip.attention_flops_per_s", "chip.exponentials_per_s"),
    "bandwidth": ("network.bytes_per_s",),
    "latency": (
        "chip.kernel_latency_s",
        "network.latency_s",
        "coefficients.collective_start",
        "coefficients.collective_skew",
    ),
    "memory": ("chip.hbm_bytes_per_s",),
    "devices": ("plan.dp", "plan.shard"),
    "batch": ("plan.global_batch",),
    "sequence": ("model.seq_len",),
}
"""Axes that move several inputs together, by a short name; `devices` are more data-parallel ranks
at the same global batch."""


class Axis(NamedTuple):
    """One axis of a map: its name, the input whose value stands on it, the places of all inputs
    that it scales, ascending values."""

    name: str
    shown: str
    places: tuple[int, ...]
    values: np.ndarray


class RegimeMap(NamedTuple):
    """Shares and regimes on a grid.

    Attributes:
      x, y: axes; at: the case's own values on them. shares: by `REGIMES`, `[4, y, x]`. step_time_s,
        headroom_bytes: `[y, x]`.
      boundaries: by pair of regimes, points (x, y) where both shares are equal and largest.
    """

    x: Axis
    y: Axis
    at: tuple[float, float]
    shares: np.ndarray
    step_time_s: np.ndarray
    headroom_bytes: np.ndarray
    boundaries: dict[tuple[str, str], np.ndarray]

    @property
    def regime(self) -> np.ndarray:
        """Number of the largest share, `[y, x]`."""
        return self.shares.argmax(0)


def shares_of(known: Inputs, elasticity: np.ndarray) -> np.ndarray:
    """Shares by `REGIMES`, `[4, case]`, of elasticities `[n, case]`."""
    found = np.zeros((len(REGIMES), elasticity.shape[1]))
    for i, name in enumerate(known.names):
        if base_name(name) in MEMBERS:
            regime, sign = MEMBERS[base_name(name)]
            found[REGIMES.index(regime)] += sign * elasticity[i]
    return found


def axis(
    known: Inputs,
    name: str,
    values: Sequence[float] | None = None,
    *,
    factor: float = 10.0,
    points: int = 33,
) -> Axis:
    """An axis by a name of `AXES`, of an input, or of an input of all levels
    (`network.bytes_per_s`).

    Args:
      values: its two ends in the unit of the input; None for the case's value divided and
        multiplied by `factor`, as far as plans go.
    """
    places = _places(known, name)
    if not places:
        known.index(name)
        raise InputError(f"axis {name!r}: expected a positive finite input; got {known[name]:g}")
    first = float(known.values[places[0]])
    low, high = _possible(known, name, first / factor, first * factor) if values is None else values
    if not 0.0 < low < high:
        raise InputError(
            f"axis {name!r}: expected two ends, 0 < low < high; got {low:g} and {high:g}"
        )
    return Axis(
        name=name,
        shown=known.names[places[0]],
        places=tuple(places),
        values=np.geomspace(low, high, points),
    )


def _places(known: Inputs, name: str) -> list[int]:
    """Positive inputs that an axis moves together."""
    bases = set(AXES.get(name, (name,)))
    if name == "devices" and float(known["plan.zero"]) == 0.0:
        bases -= {"plan.shard"}
    places = [i for i, n in enumerate(known.names) if bases & {n, base_name(n)}]
    return [i for i in places if 0.0 < known.values[i] < np.inf]


def _possible(known: Inputs, name: str, low: float, high: float) -> tuple[float, float]:
    """Ends within which every data-parallel rank has a micro-batch, and there are ranks for the
    experts."""
    if name in ("devices", *AXES["devices"]):
        least = known["plan.ep"] * known["plan.etp"] / (known["plan.tp"] * known["plan.cp"])
        return max(low, 1.0, least), min(
            high, known["plan.global_batch"] / known["plan.micro_batch"]
        )
    if name in ("batch", *AXES["batch"]):
        return max(low, known["plan.dp"] * known["plan.micro_batch"]), high
    return low, high


def _cases(known: Inputs, x: Axis, y: Axis, at_x: np.ndarray, at_y: np.ndarray) -> np.ndarray:
    """Cases `[n, point]` at points of the map; all inputs of an axis move by one factor."""
    cases = np.repeat(known.values[:, None], len(at_x), 1)
    for ax, at in ((x, at_x), (y, at_y)):
        cases[list(ax.places)] *= (at / known.values[ax.places[0]])[None]
    return cases


def _boundaries(
    known: Inputs, x: Axis, y: Axis, shares: np.ndarray, sharpness: float
) -> dict[tuple[str, str], np.ndarray]:
    """Points between neighbours of unlike regime where their two shares are equal: bisection along
    the grid's lines, all at once."""
    regime = shares.argmax(0)
    i, j = np.nonzero(regime[:, 1:] != regime[:, :-1])
    k, m = np.nonzero(regime[1:] != regime[:-1])
    low = np.log(np.stack([np.r_[x.values[j], x.values[m]], np.r_[y.values[i], y.values[k]]]))
    high = np.log(
        np.stack([np.r_[x.values[j + 1], x.values[m]], np.r_[y.values[i], y.values[k + 1]]])
    )
    a, b = np.r_[regime[i, j], regime[k, m]], np.r_[regime[i, j + 1], regime[k + 1, m]]
    if not len(a):
        return {}
    points = np.arange(len(a))
    for _ in range(12):
        middle = 0.5 * (low + high)
        _, found = elasticities_of(
            known, _cases(known, x, y, *np.exp(middle)), "step_time", sharpness
        )
        own = shares_of(known, found)
        first = own[a, points] >= own[b, points]
        low, high = np.where(first, middle, low), np.where(first, high, middle)
    at, pairs = np.exp(0.5 * (low + high)), np.sort(np.stack([a, b]), 0)
    kinds = sorted(set(zip(*pairs.tolist(), strict=True)))
    return {(REGIMES[p], REGIMES[q]): at[:, (pairs[0] == p) & (pairs[1] == q)] for p, q in kinds}


def regime_map(
    case: Point,
    x: str = "devices",
    y: str = "bandwidth",
    *,
    x_ends: Sequence[float] | None = None,
    y_ends: Sequence[float] | None = None,
    factor: float = 10.0,
    points: int = 33,
    sharpness: float = SHARPNESS,
    level_names: Sequence[str] | None = None,
) -> RegimeMap:
    """Shares of the step time over two axes, everything else, the plan too, as in the case.

    Limits: everything is compute-bound as FLOP/s → 0, bandwidth-bound as the network's byte/s → 0,
    latency-bound as all rates grow.

    Args:
      x, y: names of `AXES` or of inputs. x_ends, y_ends: in the unit of the (first) input; None for
      `factor` to both sides of the case. points: to a side of the grid.
    """
    known = inputs(case, level_names)
    if x == y:
        raise InputError(f"axes: expected two different ones; got {x!r} twice")
    horizontal, vertical = (
        axis(known, name, ends, factor=factor, points=points)
        for name, ends in ((x, x_ends), (y, y_ends))
    )
    if both := set(horizontal.places) & set(vertical.places):
        raise InputError(
            f"axes {x} and {y}: expected different inputs; both move {known.names[min(both)]}"
        )
    at_y, at_x = (a.ravel() for a in np.meshgrid(vertical.values, horizontal.values, indexing="ij"))
    cases = _cases(known, horizontal, vertical, at_x, at_y)
    seconds, found = elasticities_of(known, cases, "step_time", sharpness)
    memory, _ = evaluate(known, cases, "memory", sharpness)
    shape = (points, points)
    shares = shares_of(known, found).reshape(len(REGIMES), *shape)
    return RegimeMap(
        x=horizontal,
        y=vertical,
        at=(float(known.values[horizontal.places[0]]), float(known.values[vertical.places[0]])),
        shares=shares,
        step_time_s=seconds.reshape(shape),
        headroom_bytes=(cases[known.index("chip.hbm_bytes")] - memory).reshape(shape),
        boundaries=_boundaries(known, horizontal, vertical, shares, sharpness),
    )
