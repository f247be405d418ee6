"""The best layout at a given number of GPUs, exactly: every layout and every placement of the
study's space is priced or proven worse.

The search narrows down in stages. Stage 0 prices all candidates on a network of one level that has
the bandwidth of all levels together and the smallest latency. Stage k places the degrees on the
innermost k levels in every way, and pools the levels above in the same manner. A pooled network is
never slower than a placement on its levels: traffic adds up over them, and the slowest of them
takes at least the traffic of all over the bandwidth of all. A candidate is therefore dropped, with
all its placements, as soon as its pooled time exceeds that of some layout already found; the most
promising few of each problem are placed first, to have one early.

Many problems, of any width and cluster size, are searched at once; compiled code is shared by all
GPUs with the same number of levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from dmodel.errors import InputError
from dmodel.records import Cluster, Network
from dmodel.sweep import sweep
from dmodel.theory.laws import Run, flop_of
from dmodel.theory.layout import KINDS, LevelLayout
from dmodel.theory.price import Case, Degrees, best_way, pooled_time, way_times
from dmodel.theory.space import Candidates, Shape, candidates, level_sizes, splits
from dmodel.types import enable_float64

FIRST = 32
"""Candidates of each problem that are placed first."""

TOGETHER = 256
"""Problems of one batch, each of some two thousand candidates: what fits into memory whatever is
asked."""

CHUNK = 128
"""Candidates that flow through compiled code at once; each has some tens of placements."""

ROUNDING = 1e-12
"""Relative error of a time; a candidate is worse only beyond it."""

T = TypeVar("T")


class Problem(NamedTuple):
    """A run, by whole numbers as `laws.run` rounds them, on N GPUs."""

    run: Run
    n_gpus: int

    @property
    def shape(self) -> Shape:
        """What limits the degrees.

        Raises:
          InputError: a size or the number of GPUs is not a whole number from 1 on, layers from 2
            on.
        """
        sizes = {name: float(getattr(self.run, name)) for name in Shape._fields}
        for name, size in {**sizes, "n_gpus": self.n_gpus}.items():
            least = 2 if name == "layers" else 1  # activations move between layers
            if not (size >= least and size % 1 == 0):
                raise InputError(
                    f"{name}: expected a whole number from {least} on, got {size:g}; the "
                    "study's "
                    "space has whole degrees only"
                )
        return Shape(*(int(x) for x in sizes.values()))


class Best(NamedTuple):
    """The fastest layout of a problem.

    Attributes:
      run, n_gpus: the problem. train_time_s: of the whole run [s]. utilization: of the GPUs' peak.
      degrees: by level of the network, innermost first, `[K]` each.
      micro_batches: per pipeline. interleave: chunks per stage. zero_bubble: the schedule.
    """

    run: Run
    n_gpus: int
    train_time_s: float
    utilization: float
    degrees: Degrees
    micro_batches: int
    interleave: int
    zero_bubble: bool

    @property
    def layout(self) -> LevelLayout:
        """The same as `theory.training` takes it."""
        levels = {f"{kind}_levels": getattr(self.degrees, kind) for kind in KINDS}
        return LevelLayout(
            **levels,
            n_microbatches=float(self.micro_batches),
            interleave=float(self.interleave),
            zero_bubble=float(self.zero_bubble),
        )


class _Rows(NamedTuple):
    """Candidates of many problems `[n]`: which problem each is of, time of its products, bound of
    its training time [s], levels placed."""

    case: Case
    owner: np.ndarray
    matmul_s: np.ndarray
    bound_s: np.ndarray
    inner: tuple[Degrees, ...] = ()


class _Found(NamedTuple):
    """Candidates on their best placement: training time and the communication in it [s], which
    breaks ties."""

    rows: _Rows
    time_s: np.ndarray
    communication_s: np.ndarray


def no_layout(n_gpus: int) -> InputError:
    """Why a number of GPUs has no layout."""
    return InputError(
        f"{n_gpus} GPUs: no layout of the study's space; expected a product of degrees that "
        "divide the width, the layers, the experts and "
        "the batch; try a power of two times the number of experts"
    )


def best_layouts(
    problems: Sequence[Problem], gpu: Cluster, *, within_s: float | Sequence[float] = np.inf
) -> list[Best | InputError | None]:
    """The fastest layout of each problem, among those that take less than `within_s`.

    Args:
      problems: any mixture of runs and numbers of GPUs. gpu: as `gpus.gpu` makes it.
      within_s: training time that a layout has to stay below, one for all or one for each problem
        [s]; a tight one makes the search faster.

    Returns:
      One answer for each problem: the layout; None when there is none; why not when the study's
        space does not cover the problem.
    """
    enable_float64()
    answers: list[Best | InputError | None] = [None] * len(problems)
    limits = np.broadcast_to(np.asarray(within_s, float), len(problems))
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, p in enumerate(problems):
        try:
            if len(candidates(p.shape, p.n_gpus)):
                groups.setdefault(_inner_sizes(gpu.network, p.n_gpus), []).append(i)
        except InputError as refused:
            answers[i] = refused
    for sizes, members in groups.items():
        for some in (members[i : i + TOGETHER] for i in range(0, len(members), TOGETHER)):
            for i, found in zip(
                some, _solve([problems[i] for i in some], sizes, gpu, limits[some]), strict=True
            ):
                answers[i] = found
    return answers


def _inner_sizes(network: Network, n_gpus: int) -> tuple[int, ...]:
    """Sizes of all levels but the outermost; a network of one level gets an empty one inside."""
    bounded = tuple(int(s) for s in np.asarray(network.size)[:-1])
    return level_sizes(bounded, n_gpus)[:-1] or (1,)


def _solve(
    problems: list[Problem], sizes: tuple[int, ...], gpu: Cluster, within_s: np.ndarray
) -> list[Best | None]:
    """Search problems whose networks have the same inner levels."""
    rows = _bounded(_gather(problems), gpu)
    limit = within_s
    rows = _take(rows, np.flatnonzero(rows.bound_s < within_s[rows.owner]))
    rows = _take(rows, np.lexsort((rows.bound_s, rows.owner)))
    rank = np.arange(len(rows.owner)) - np.searchsorted(rows.owner, rows.owner)
    found = [_place(_take(rows, np.flatnonzero(rank < FIRST)), sizes, gpu, limit)]
    limit = _lowered(limit, found[0])
    rest = np.flatnonzero((rank >= FIRST) & ~_worse(rows.bound_s, limit[rows.owner]))
    found.append(_place(_take(rows, rest), sizes, gpu, limit))
    return _best_of_each(problems, _joined(found), gpu, within_s)


def _gather(problems: list[Problem]) -> _Rows:
    """Candidates of all problems as one batch."""
    spaces = [candidates(p.shape, p.n_gpus) for p in problems]
    owner = np.repeat(np.arange(len(problems)), [len(s) for s in spaces])
    runs = jax.tree.map(lambda *x: np.array(x, float)[owner], *(p.run for p in problems))
    layout = Candidates(*(np.concatenate(columns) for columns in zip(*spaces, strict=True)))
    unknown = np.zeros(len(owner))
    return _Rows(case=Case(run=runs, layout=layout), owner=owner, matmul_s=unknown, bound_s=unknown)


def _bounded(rows: _Rows, gpu: Cluster) -> _Rows:
    """Stage 0: time of the products, and of the run on a network of one level."""
    matmul_s, bound_s = sweep(pooled_time, rows.case, gpu.replace(network=_pooled(gpu.network, 0)))
    return rows._replace(matmul_s=matmul_s, bound_s=bound_s)


def _pooled(network: Network, kept: int) -> Network:
    """The innermost levels, and all others as one with their bandwidth together and the smallest
    latency."""
    # the empty level inside a network of one level is that level again
    above = min(kept, network.n_levels - 1)

    def joined(values: Any, pool: Callable[[np.ndarray], float]) -> np.ndarray:
        return np.append(values[:kept], pool(values[above:]))

    network = jax.tree.map(np.asarray, network)
    last = jax.tree.map(lambda x: joined(x, lambda upper: upper[-1]), network)
    return last.replace(
        bytes_per_s=joined(network.bytes_per_s, np.sum), latency_s=joined(network.latency_s, np.min)
    )


def _place(rows: _Rows, sizes: tuple[int, ...], gpu: Cluster, limit: np.ndarray) -> _Found:
    """Stages 1 to K − 1: place the degrees on one inner level after the other, dropping what is
    worse than `limit` of its problem."""

    def stage(level: int, function: Callable) -> tuple[Any, np.ndarray]:
        ways = splits(sizes[level], len(Degrees._fields))
        fixed = {"gpu": gpu.replace(network=_pooled(gpu.network, level + 1)), "ways": ways}
        return sweep(
            function,
            {"case": rows.case, "matmul_s": rows.matmul_s, "inner": rows.inner},
            fixed,
            chunk=CHUNK,
        ), ways

    for level in range(len(sizes) - 1):
        times, ways = stage(level, way_times)
        row, way = np.nonzero((np.isfinite(times) & ~_worse(times, limit[rows.owner])).T)
        rows = _on_level(_take(rows, row), ways, way)
    (time_s, communication_s, way), ways = stage(len(sizes) - 1, best_way)
    return _Found(_on_level(rows, ways, way.astype(int)), time_s, communication_s)


def _on_level(rows: _Rows, ways: np.ndarray, way: np.ndarray) -> _Rows:
    """The rows with one more level placed, each in its way."""
    return rows._replace(inner=(*rows.inner, Degrees(*ways[:, way])))


def _worse(times: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Whether times exceed a limit by more than their rounding."""
    return times > limit * (1.0 + ROUNDING)


def _lowered(limit: np.ndarray, found: _Found) -> np.ndarray:
    """The limit of each problem, or the best time found where that is less."""
    limit = limit.copy()
    np.minimum.at(limit, found.rows.owner, found.time_s)
    return limit


def _take(tree: T, rows: np.ndarray) -> T:
    """Some rows of a tree of arrays `[n]`."""
    return jax.tree.map(lambda x: x[rows], tree)


def _joined(found: list[_Found]) -> _Found:
    """Several results as one."""
    return jax.tree.map(lambda *x: np.concatenate(x), *found)


def _best_of_each(
    problems: list[Problem], found: _Found, gpu: Cluster, within_s: np.ndarray
) -> list[Best | None]:
    """The fastest row of each problem, ties to the one with less communication."""
    order = np.lexsort((found.communication_s, found.time_s, found.rows.owner))
    owner = found.rows.owner[order]
    first = np.searchsorted(owner, np.arange(len(problems)))
    answers: list[Best | None] = []
    for i, p in enumerate(problems):
        at = first[i]
        known = at < len(order) and owner[at] == i and found.time_s[order[at]] < within_s[i]
        answers.append(_answer(p, _take(found, order[at : at + 1]), gpu) if known else None)
    return answers


def _answer(problem: Problem, found: _Found, gpu: Cluster) -> Best:
    """One row as the answer to its problem."""
    run, n = problem
    levels = found.rows.inner[-gpu.network.n_levels + 1 :] if gpu.network.n_levels > 1 else ()
    layout = found.rows.case.layout
    outer = Degrees(*layout[: len(Degrees._fields)])
    for level in levels:
        outer = Degrees(*(x / y for x, y in zip(outer, level, strict=True)))
    time_s = float(found.time_s[0])
    flop = flop_of(run, run.dataset_tokens)
    return Best(
        run=run,
        n_gpus=n,
        train_time_s=time_s,
        utilization=float(flop / (gpu.chip.flops_per_s * n * time_s)),
        degrees=Degrees(*(np.concatenate(x) for x in zip(*levels, outer, strict=True))),
        micro_batches=int(layout.micro_batches[0]),
        interleave=int(layout.interleave[0]),
        zero_bubble=bool(layout.zero_bubble[0]),
    )
