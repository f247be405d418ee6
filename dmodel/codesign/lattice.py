"""Sizes on which plans are valid: whole layers, widths of whole heads that tensor parallelism
splits, batches and device counts that divide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dmodel.codesign.unknowns import Fixed, Unknowns, shaped
from dmodel.records import Model, value

DISCRETE = ("head_dim", "d_model", "n_layers", "ff_ratio", "global_batch", "devices")
"""Sizes that are rounded, in this order: a width follows the head, the MLP the width."""

COUNTS = ("global_batch", "devices")

TWICE = ((np.inf, np.inf), (-np.inf, -np.inf))

STEPS = {"n_layers": 4.0, "head_dim": 32.0, "heads": 8.0, "d_ff": 256.0}
"""Multiples: of layers (so that a pipeline splits them), of a head's width, of heads (so that a
node's ranks split them), and of the
MLP."""

ODD = (1, 3, 5, 7)
"""Batches and device counts are one of these times a power of two."""

GOOD = np.array(sorted({float(f * 2**i) for f in ODD for i in range(40)}))


def rungs(name: str, sizes: Mapping[str, float], unknowns: Unknowns, at: Fixed) -> np.ndarray:
    """Valid values of one size between its bounds, ascending, given the sizes before it in
    `DISCRETE`; its value when it is not freed."""
    i = unknowns.index(name)
    if not unknowns.free[i]:
        return np.array([sizes[name]])
    low, high = np.exp(unknowns.low[i]) * (1.0 - 1e-9), np.exp(unknowns.high[i]) * (1.0 + 1e-9)
    if name in ("global_batch", "devices"):
        found = GOOD[(low <= GOOD) & (high >= GOOD)]
    else:
        step = _step(name, sizes, at)
        found = step * np.arange(np.ceil(low / step), np.floor(high / step) + 1.0)
    # bounds closer than a rung: the lower one itself, which the search then finds invalid or not
    return found if len(found) else np.array([np.exp(unknowns.low[i])])


def _step(name: str, sizes: Mapping[str, float], at: Fixed) -> float:
    if name == "d_model":
        kv = float(value(at.model, "n_kv_heads", 1.0)) if not float(at.own_heads) else 1.0
        return np.lcm(int(STEPS["heads"]), int(kv)) * sizes["head_dim"] / float(at.head_share)
    if name == "ff_ratio":
        return STEPS["d_ff"] / sizes["d_model"]
    return STEPS[name]


def rounded(
    values: Mapping[str, float], unknowns: Unknowns, at: Fixed, most: int
) -> list[dict[str, float]]:
    """Valid sizes nearest to continuous ones in the logarithm, nearest first: `most` of all that
    the two nearest values of each size (and the nearest power of two for batch and devices) make,
    and as many of those whose batch and devices are powers of two: those split."""
    found = [dict(values)]
    for name in DISCRETE:
        found = [
            sizes | {name: x}
            for sizes in found
            for x in _nearest(name, values[name], rungs(name, sizes, unknowns, at))
        ]
    found.sort(key=lambda sizes: sum(np.log(sizes[n] / values[n]) ** 2 for n in DISCRETE))
    even = list(filter(_splits_evenly, found))
    return list({tuple(sizes.values()): sizes for sizes in (*found[:most], *even[:most])}.values())


def _splits_evenly(sizes: Mapping[str, float]) -> bool:
    """Whether batch and devices are powers of two."""
    return all(_is_power(sizes[n]) for n in COUNTS)


def _is_power(x: float) -> bool:
    return float(np.log2(x)).is_integer()


def _nearest(name: str, x: float, choices: np.ndarray) -> list[float]:
    order = choices[np.argsort(np.abs(np.log(choices / x)), kind="stable")]
    powers = [c for c in order if _is_power(c)] if name in COUNTS else []
    return list(dict.fromkeys([*map(float, order[:2]), *map(float, powers[:1])]))


FURTHER = {
    "n_layers": (2, -2),
    "d_model": (2, -2),
    "global_batch": (np.inf, -np.inf),
    "devices": (np.inf, -np.inf),
}
"""Moves of one size beyond the next rung."""

TRADES = (
    ("n_layers", "d_model", ((1, -1), (-1, 1))),
    ("global_batch", "devices", ((1, 1), (-1, -1), *TWICE)),
)
"""Moves of two sizes at once."""


def neighbours(sizes: Mapping[str, float], unknowns: Unknowns, at: Fixed) -> list[dict[str, float]]:
    """Valid sizes near: one size a rung on (depth and width also two, batch and devices also to the
    next power of two), or two sizes that trade: depth against width, batch with devices."""
    free = [n for n in DISCRETE if unknowns.free[unknowns.index(n)]]
    found = {}
    for move in _moves(free):
        moved = _all_moved(sizes, move, unknowns, at)
        if moved is not None and moved != sizes:
            found[tuple(moved.values())] = moved
    return list(found.values())


def _moves(free: list[str]) -> list[dict[str, float]]:
    """Moves of one or two sizes that are free."""
    moves: list[dict[str, float]] = [{n: way} for n in free for way in (1, -1, *FURTHER.get(n, ()))]
    for a, b, ways in TRADES:
        if {a, b} <= set(free):
            moves += [{a: first, b: second} for first, second in ways]
    return moves


def _all_moved(
    sizes: Mapping[str, float], move: Mapping[str, float], unknowns: Unknowns, at: Fixed
) -> dict[str, float] | None:
    """Sizes after a move, in the order in which they follow each other; None where none is
    valid."""
    moved: dict[str, float] | None = dict(sizes)
    for name in DISCRETE:
        if moved is None:
            return None
        moved = _moved(moved, name, move.get(name, 0), unknowns, at)
    return moved


def _moved(
    sizes: dict[str, float], name: str, way: float, unknowns: Unknowns, at: Fixed
) -> dict[str, float] | None:
    """One size some rungs on (infinite: to the next power of two), or put back on its own rungs
    when those have changed; None beyond its bounds."""
    choices = rungs(name, sizes, unknowns, at)
    place = int(np.abs(np.log(choices / sizes[name])).argmin())
    chosen = _next_power(choices, place, way) if np.isinf(way) else place + int(way)
    if chosen is None or not 0 <= chosen < len(choices):
        return None
    return sizes | {name: float(choices[chosen])}


def _next_power(choices: np.ndarray, place: int, way: float) -> int | None:
    """Place of the next power of two; None beyond the last."""
    beyond = [i for i, c in enumerate(choices) if _is_power(c) and (i - place) * way > 0.0]
    return min(beyond, key=lambda i: abs(i - place), default=None)


COUNTED = ("d_ff", "n_heads", "n_kv_heads", "head_dim")
"""Sizes of parts that are whole numbers."""


def model_of(sizes: Mapping[str, float], at: Fixed) -> Model:
    """The model of sizes, whole numbers where its shape is counted."""
    found = shaped({k: np.float64(v) for k, v in sizes.items()}, at)  # type: ignore[arg-type]
    return found.replace(
        n_layers=np.float64(np.rint(found.n_layers)),
        d_model=np.float64(np.rint(found.d_model)),
        mixers=tuple(_whole(part) for part in found.mixers),
        feeds=tuple(_whole(part) for part in found.feeds),
    )


def _whole(part: Any) -> Any:
    """A part whose counted sizes are whole numbers."""
    there = (name for name in COUNTED if hasattr(part, name))
    return part.replace(**{name: np.float64(np.rint(getattr(part, name))) for name in there})
