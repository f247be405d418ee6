"""From relaxed layouts to those of the study's space: the nearest ones, then discrete moves judged
by the exact model.

A move takes a prime factor of one level from one kind of parallelism to another, exchanges a factor
of two kinds between two levels, or takes other micro-batches or the other schedule. The descent
ends where no move helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import permutations
from math import log, prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.records import Cluster
from dmodel.sweep import quick_to_compile
from dmodel.theory.laws import flop_of
from dmodel.theory.layout import KINDS, LevelLayout
from dmodel.theory.price import Degrees
from dmodel.theory.profile import training
from dmodel.theory.relax import Relaxed, relax
from dmodel.theory.search import Best, Problem, no_layout
from dmodel.theory.space import candidates, level_sizes, splits
from dmodel.types import enable_float64

ROUNDED, NEAREST, POLISHED = 24, 2, 8
"""Relaxed layouts that are rounded, layouts of the space taken for each, and those from which the
descent starts."""

ROWS = 2048
"""Layouts priced at once."""

Levels = tuple[tuple[int, ...], ...]
"""For each kind, its degree at every level."""


class Choice(NamedTuple):
    """Micro-batches, chunks per stage, and whether the schedule is zero-bubble."""

    micro_batches: int
    interleave: int
    zero_bubble: int


class Spot(NamedTuple):
    """A layout of the space."""

    levels: Levels
    choice: Choice


class Found(NamedTuple):
    """The best layout that the search by gradient found, with what it took: gradients of relaxed
    layouts, and layouts priced exactly."""

    best: Best
    gradients: int
    evaluated: int


class Space:
    """The space of one problem: which degrees it has, and with which choices."""

    def __init__(self, problem: Problem, gpu: Cluster):
        self.problem = problem
        self.sizes = level_sizes(
            tuple(int(s) for s in np.asarray(gpu.network.size)[:-1]), problem.n_gpus
        )
        rows = candidates(problem.shape, problem.n_gpus)
        if not len(rows):
            raise no_layout(problem.n_gpus)
        self.choices: dict[tuple[int, ...], list[Choice]] = {}
        for *degrees, m, interleave, zero_bubble in np.array(rows).T.astype(int).tolist():
            self.choices.setdefault(tuple(degrees), []).append(Choice(m, interleave, zero_bubble))
        self.degrees = np.array(list(self.choices), float)
        self.primes = [
            p for p in range(2, 64) if problem.n_gpus % p == 0 and all(p % q for q in range(2, p))
        ]

    def near(self, logs: np.ndarray, log_m: float, zero_bubble: float) -> Iterator[Spot]:
        """Layouts nearest to a relaxed one: its degrees, then their placement level by level, then
        its schedule and micro-batches."""
        distance = ((np.log(self.degrees) - logs.sum(1)) ** 2).sum(1)
        for i in np.argsort(distance, kind="stable")[:NEAREST]:
            totals = tuple(self.degrees[i].astype(int).tolist())
            levels = self._placed(totals, logs)
            choices = self.choices[totals]
            nearest = min(
                choices,
                key=lambda c: (abs(c.zero_bubble - zero_bubble), abs(log(c.micro_batches) - log_m)),
            )
            yield Spot(levels, nearest)

    def _placed(self, totals: tuple[int, ...], logs: np.ndarray) -> Levels:
        left, columns = np.array(totals, float), []
        for level, size in enumerate(self.sizes[:-1]):
            ways = splits(size, len(KINDS))
            ways = ways[:, ((left[:, None] / ways) % 1.0 == 0.0).all(0)]
            columns.append(ways[:, ((np.log(ways) - logs[:, level, None]) ** 2).sum(0).argmin()])
            left = left / columns[-1]
        return tuple(tuple(int(x) for x in row) for row in np.stack([*columns, left], 1))

    def moves(self, spot: Spot) -> list[Spot]:
        """Layouts one move away."""
        found = [
            Spot(spot.levels, c) for c in self.choices[_totals(spot.levels)] if c != spot.choice
        ]
        for p in self.primes:
            for a, b in permutations(range(len(KINDS)), 2):
                found += self._shifted(spot, p, a, b)
                found += self._exchanged(spot, p, a, b)
        return found

    def _shifted(self, spot: Spot, p: int, a: int, b: int) -> list[Spot]:
        """A factor p of one level goes from kind a to kind b, with every choice that there is
        then."""
        found = []
        for level, degree in enumerate(spot.levels[a]):
            if degree % p == 0:
                levels = _times(_times(spot.levels, a, level, 1, p), b, level, p, 1)
                found += [Spot(levels, c) for c in self.choices.get(_totals(levels), [])]
        return found

    def _exchanged(self, spot: Spot, p: int, a: int, b: int) -> list[Spot]:
        """A factor p of kind a moves a level out, one of kind b in; their products stay."""
        found = []
        for inner in range(len(self.sizes)):
            for outer in range(inner + 1, len(self.sizes)):
                if spot.levels[a][inner] % p == 0 and spot.levels[b][outer] % p == 0:
                    levels = _times(_times(spot.levels, a, inner, 1, p), a, outer, p, 1)
                    found.append(
                        Spot(_times(_times(levels, b, outer, 1, p), b, inner, p, 1), spot.choice)
                    )
        return found


def _totals(levels: Levels) -> tuple[int, ...]:
    return tuple(prod(row) for row in levels)


def _times(levels: Levels, kind: int, level: int, up: int, down: int) -> Levels:
    row = levels[kind]
    changed = (*row[:level], row[level] * up // down, *row[level + 1 :])
    return (*levels[:kind], changed, *levels[kind + 1 :])


@cache
def _compiled() -> Callable[..., jax.Array]:
    def time(run: object, layout: LevelLayout, system: Cluster) -> jax.Array:
        return training(system, run, layout).train_time_s  # type: ignore[arg-type]

    return jax.jit(time, compiler_options=quick_to_compile())


class _Judge:
    """Training times of layouts of many problems by the exact model; each is priced once."""

    def __init__(self, problems: Sequence[Problem], gpu: Cluster):
        self.problems = problems
        self.gpu = jax.tree.map(lambda x: jnp.asarray(x, float), gpu)
        self.known: list[dict[Spot, float]] = [{} for _ in problems]

    def price(self, asked: Sequence[tuple[int, Spot]]) -> None:
        """Price the layouts, given with the index of their problem, that are not known yet."""
        fresh = [(i, s) for i, s in dict.fromkeys(asked) if s not in self.known[i]]
        for first in range(0, len(fresh), ROWS):
            some = fresh[first : first + ROWS]
            for (i, spot), time in zip(some, self._times(some).tolist(), strict=False):
                self.known[i][spot] = time

    def _times(self, some: Sequence[tuple[int, Spot]]) -> np.ndarray:
        padded = [*some, *([some[-1]] * (ROWS - len(some)))]
        run = jax.tree.map(
            lambda *x: np.array(x, float), *(self.problems[i].run for i, _ in padded)
        )
        degrees = np.array([s.levels for _, s in padded], float).transpose(1, 2, 0)
        m, v, zero_bubble = np.array([s.choice for _, s in padded], float).T
        layout = LevelLayout(
            **{f"{kind}_levels": degrees[k] for k, kind in enumerate(KINDS)},
            n_microbatches=m,
            interleave=v,
            zero_bubble=zero_bubble,
        )
        return np.asarray(_compiled()(run, layout, self.gpu))


def _descend(judge: _Judge, spaces: Sequence[Space], spots: list[tuple[int, Spot]]) -> None:
    """Move every layout to its best neighbour until none is better; all problems at once."""
    active, seen = spots, set(spots)
    while active:
        around = [(i, spaces[i].moves(spot)) for i, spot in active]
        judge.price([(i, s) for i, some in around for s in some])
        moved = []
        for (i, spot), (_, some) in zip(active, around, strict=True):
            best = min(some, key=judge.known[i].__getitem__, default=spot)
            # two starts that meet go on as one
            if judge.known[i][best] < judge.known[i][spot] and (i, best) not in seen:
                moved.append((i, best))
        seen |= set(moved)
        active = list(dict.fromkeys(moved))


def round_layouts(problems: Sequence[Problem], gpu: Cluster, relaxed: Relaxed) -> list[Found]:
    """Relaxed layouts rounded to the study's space and improved by discrete moves; the best of each
    problem."""
    judge, spaces = _Judge(problems, gpu), [Space(p, gpu) for p in problems]
    near = [(i, spot) for i, space in enumerate(spaces) for spot in _near(space, relaxed, i)]
    judge.price(near)
    _descend(judge, spaces, _starts(judge, near))
    return [
        _found(problem, known, gpu, relaxed.gradients)
        for problem, known in zip(problems, judge.known, strict=True)
    ]


def _near(space: Space, relaxed: Relaxed, i: int) -> Iterator[Spot]:
    """Layouts of a problem near its relaxed ones."""
    logs, batches, bubbles = relaxed.logs, relaxed.log_microbatches, relaxed.zero_bubble
    for j in range(ROUNDED):
        yield from space.near(logs[i, j], batches[i, j], bubbles[i, j])


def _starts(judge: _Judge, near: Sequence[tuple[int, Spot]]) -> list[tuple[int, Spot]]:
    """The best of the priced layouts of each problem."""
    starts: list[tuple[int, Spot]] = []
    for i, known in enumerate(judge.known):
        mine = dict.fromkeys(s for k, s in near if k == i)
        starts += [(i, s) for s in sorted(mine, key=known.__getitem__)[:POLISHED]]
    return starts


def _found(problem: Problem, known: dict[Spot, float], gpu: Cluster, gradients: int) -> Found:
    spot = min(known, key=known.__getitem__)
    run, time = problem.run, known[spot]
    best = Best(
        run=run,
        n_gpus=problem.n_gpus,
        train_time_s=time,
        utilization=float(
            flop_of(run, run.dataset_tokens) / (gpu.chip.flops_per_s * problem.n_gpus * time)
        ),
        degrees=Degrees(*(np.array(row, float) for row in spot.levels)),
        micro_batches=spot.choice.micro_batches,
        interleave=spot.choice.interleave,
        zero_bubble=bool(spot.choice.zero_bubble),
    )
    return Found(best, gradients, len(known))


def layouts_by_gradient(
    problems: Sequence[Problem], gpu: Cluster, *, n_starts: int = 16, seed: int = 0
) -> list[Found]:
    """Good layouts by gradient: relaxed ones from many starts, rounded and polished.
    `search.best_layouts` gives the best, exactly.

    Args:
      problems: any mixture of runs and numbers of GPUs. gpu: as `gpus.gpu` makes it. n_starts: per
        problem and schedule.

    Raises:
      InputError: a problem without any layout, or one that the study's space does not cover.
    """
    enable_float64()
    return round_layouts(problems, gpu, relax(problems, gpu, n_starts=n_starts, seed=seed))
