"""Sizes on which plans are valid: whole layers, widths of whole heads that tensor parallelism splits, batches and device counts that
divide."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np

from dmodel.codesign.unknowns import Fixed, Unknowns, shaped
from dmodel.workload import Transformer

DISCRETE = ("head_dim", "d_model", "n_layers", "ff_ratio", "global_batch", "devices")
"""Sizes that are rounded, in this order: a width follows the head, the MLP the width."""

STEPS = {"n_layers": 4.0, "head_dim": 32.0, "heads": 8.0, "d_ff": 256.0}
"""Multiples: of layers (so that a pipeline splits them), of a head's width, of heads (so that a node's ranks split them), and of the
MLP."""

ODD = (1, 3, 5, 7)
"""Batches and device counts are one of these times a power of two."""

GOOD = np.array(sorted({float(f * 2**i) for f in ODD for i in range(40)}))


def rungs(name: str, sizes: Mapping[str, float], unknowns: Unknowns, at: Fixed) -> np.ndarray:
    """Valid values of one size between its bounds, ascending, given the sizes before it in `DISCRETE`; its value when it is not freed."""
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
        kv = float(at.model.n_kv_heads) if not float(at.own_heads) else 1.0
        return np.lcm(int(STEPS["heads"]), int(kv)) * sizes["head_dim"] / float(at.head_share)
    if name == "ff_ratio":
        return STEPS["d_ff"] / sizes["d_model"]
    return STEPS[name]


def rounded(values: Mapping[str, float], unknowns: Unknowns, at: Fixed, most: int) -> list[dict[str, float]]:
    """Valid sizes nearest to continuous ones in the logarithm, nearest first, at most `most`; each size is one of its two nearest
    values."""
    found = [dict(values)]
    for name in DISCRETE:
        found = [sizes | {name: x} for sizes in found for x in _nearest(values[name], rungs(name, sizes, unknowns, at))]
    return sorted(found, key=lambda sizes: sum(np.log(sizes[n] / values[n]) ** 2 for n in DISCRETE))[:most]


def _nearest(x: float, choices: np.ndarray) -> list[float]:
    return [float(c) for c in choices[np.argsort(np.abs(np.log(choices / x)), kind="stable")[:2]]]


def neighbours(sizes: Mapping[str, float], unknowns: Unknowns, at: Fixed) -> list[dict[str, float]]:
    """Valid sizes one rung away in one size, or in two that trade: depth against width, batch with devices."""
    free = [n for n in DISCRETE if unknowns.free[unknowns.index(n)]]
    moves = [{n: way} for n in free for way in (1, -1)]
    for a, b, sign in (("n_layers", "d_model", -1), ("global_batch", "devices", 1)):
        if a in free and b in free:
            moves += [{a: way, b: sign * way} for way in (1, -1)]
    found = []
    for move in moves:
        moved: dict[str, float] | None = dict(sizes)
        for name in DISCRETE:
            if moved is not None:
                moved = _moved(moved, name, move.get(name, 0), unknowns, at)
        if moved is not None and moved != sizes:
            found.append(moved)
    return found


def _moved(sizes: dict[str, float], name: str, way: int, unknowns: Unknowns, at: Fixed) -> dict[str, float] | None:
    """One size a rung on, or put back on its own rungs when those have changed; None beyond its bounds."""
    choices = rungs(name, sizes, unknowns, at)
    place = int(np.abs(np.log(choices / sizes[name])).argmin()) + way
    return sizes | {name: float(choices[place])} if 0 <= place < len(choices) else None


def points(values: Mapping[str, np.ndarray]) -> list[dict[str, float]]:
    """All combinations of values by name."""
    return [dict(zip(values, map(float, combination), strict=True)) for combination in product(*values.values())]


def model_of(sizes: Mapping[str, float], at: Fixed) -> Transformer:
    """The model of sizes, whole numbers where its shape is counted."""
    found = shaped({k: np.float64(v) for k, v in sizes.items()}, at)  # type: ignore[arg-type]
    whole = ("n_layers", "d_model", "d_ff", "n_heads", "n_kv_heads", "head_dim")
    return found.replace(**{n: np.float64(np.rint(getattr(found, n))) for n in whole})
