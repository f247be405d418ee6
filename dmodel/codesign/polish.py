"""From continuous sizes to valid ones: the nearest rungs with every plan, descent rung by rung,
hardware again by its exact local
optimum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dmodel.codesign.lattice import DISCRETE, neighbours, rounded
from dmodel.codesign.local import Local, solve
from dmodel.codesign.plans import INFEASIBLE, Design, Planner
from dmodel.codesign.relax import Search

POINTS, ROUNDED, ROUNDS = 3, 4, 3
"""Continuous points that are rounded, valid sizes taken of each, and rounds of hardware against
plan."""


class Polished(NamedTuple):
    """best: sizes with their best plan. local: optimum of what stays continuous there, None when
    nothing does. neighbours: valid sizes one rung away, all checked with all their plans; none is
    better. evaluations: of the local optima."""

    best: Design
    local: Local | None
    neighbours: int
    evaluations: int


def distinct(found: Search, most: int) -> list[int]:
    """Indices of ends that differ by more than a tenth in some size, best first."""
    kept: list[int] = []
    for i in range(found.x.shape[1]):
        if len(kept) < most and all(
            np.abs(found.x[:, i] - found.x[:, j]).max() > 0.1 for j in kept
        ):
            kept.append(i)
    return kept


def descend(planner: Planner, best: Design) -> tuple[Design, int]:
    """Move to the first better neighbour until none is, those in the direction that helped last
    first; also how many the last one has."""
    way = np.zeros(len(DISCRETE))
    while True:
        around = neighbours(best.sizes, planner.unknowns, planner.world.fixed)
        steps = [np.array([np.log(s[n] / best.sizes[n]) for n in DISCRETE]) for s in around]
        order = np.argsort([-float(step @ way) for step in steps], kind="stable")
        better = next((i for i in order if planner(around[i]).merit < best.merit - 1e-12), None)
        if better is None:
            return best, len(around)
        best, way = planner(around[better]), steps[better]


def continuous(planner: Planner, best: Design) -> tuple[Design, Local | None]:
    """Optimum of the sizes that stay continuous (hardware, tokens), the discrete ones and the plan
    held; then every plan again."""
    unknowns = planner.unknowns
    hardware = np.array(
        [
            f and n not in (*DISCRETE, "tokens")
            for n, f in zip(unknowns.names, unknowns.free, strict=True)
        ]
    )
    if not hardware.any() or best.plan is None:
        return best, None
    at = np.log([best.sizes[n] for n in unknowns.names])
    stays = hardware | (np.array(unknowns.names) == "tokens") & unknowns.free
    bounds = unknowns.replace(
        low=np.where(stays, unknowns.low, at), high=np.where(stays, unknowns.high, at)
    )
    found = solve(at, best.plan, bounds, planner.world, planner.at)
    moved = planner(unknowns.values(found.x) | {n: best.sizes[n] for n in DISCRETE})
    return (moved if moved.merit < best.merit else best), found


def polish(planner: Planner, found: Search) -> Polished:
    """The best valid design near the ends of a gradient search."""
    near = [
        sizes
        for i in distinct(found, POINTS)
        for sizes in rounded(
            _inside(planner, found.x[:, i]), planner.unknowns, planner.world.fixed, ROUNDED
        )
    ]
    best = min(map(planner, near), key=lambda design: design.merit)
    evaluations, local, around = 0, None, 0
    for _ in range(ROUNDS):
        before = best.merit
        best, around = descend(planner, best)
        best, local = continuous(planner, best)
        evaluations += 0 if local is None else local.evaluations
        if local is None or best.merit > before - 1e-7:
            break
    if local is not None:
        best, around = descend(planner, best)
    return Polished(best=best, local=local, neighbours=around, evaluations=evaluations)


def _inside(planner: Planner, x: np.ndarray) -> Mapping[str, float]:
    return planner.unknowns.values(np.clip(x, planner.unknowns.low, planner.unknowns.high))


def feasible(design: Design) -> bool:
    """Whether a design keeps all limits."""
    return design.merit < INFEASIBLE
