"""The study's sweep: for each width the smallest cluster that trains its model in time, where
scaling ends, and the largest run.

Erdil & Schneider-Joseph 2024 (arXiv 2411.01137); limits of time, sizes and thresholds of the
authors' code of 2024-10-23.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, cast

from dmodel.errors import InputError
from dmodel.goodput import Reliability, goodput
from dmodel.records import Cluster
from dmodel.theory import laws
from dmodel.theory.gpus import Gpu
from dmodel.theory.laws import Laws, Run
from dmodel.theory.search import Best, Problem, best_layouts

YEAR_S = 3.154e7
"""A year as the study counts it [s]."""

MONTH_S = YEAR_S / 12.0
"""A month as the study counts it [s]."""

DEADLINE_S = 0.25 * YEAR_S
"""Three months: a run finishes in less [s]."""

LINEAR = 0.8
"""Scaling is linear while utilization is above this share of its ceiling."""

NEGLIGIBLE = 1e-3
"""Utilization below which the study's sweep stops."""

DOUBLINGS = 60
"""Clusters of S · 2^i GPUs are tried for i below this."""

GROUP = 16
"""Widths that are searched together: the sweep ends at one of them, and those above it were
searched in vain."""


class SmallestCluster(NamedTuple):
    """The smallest cluster that trains a model in time.

    Attributes:
      run: the model and its training. best: layout on the smallest cluster, None when none is in
        time.
      problem: why the study's space does not say, None when it does.
    """

    run: Run
    best: Best | None
    problem: str | None = None


class Headline(NamedTuple):
    """What a sweep says: the run at which linear scaling ends and the largest one within the
    deadline; None when the sweep has none.

    The linear end is the first swept run with a utilization of at most 0.8 of the ceiling. It is as
    coarse as the widths are, and larger runs may be above the line again.
    """

    linear_end: Best | None
    largest: Best | None


def ceiling(gpu: Cluster) -> float:
    """The most that a GPU of the study utilizes of its peak."""
    return float(cast(Gpu, gpu.chip).sustained)


def training_s(deadline_s: float, n_gpus: int, reliability: Reliability | None) -> float:
    """What failures and checkpoints leave of the deadline on N GPUs: `deadline · goodput(N)`; all
    of it when none are counted [s]."""
    return (
        deadline_s
        if reliability is None
        else deadline_s * float(goodput(float(n_gpus), reliability))
    )


def cluster_sizes(
    run: Run, gpu: Cluster, deadline_s: float = DEADLINE_S, reliability: Reliability | None = None
) -> Iterator[tuple[int, float]]:
    """Clusters to try, ascending, and the time they have [s]: S · 2^i GPUs that could finish the
    arithmetic, `C / (time · rate) ≤ N`."""
    rate = float(gpu.chip.flops_per_s) * ceiling(gpu)
    for i in range(DOUBLINGS):
        n = int(run.experts) * 2**i
        time_s = training_s(deadline_s, n, reliability)
        if time_s > 0.0 and float(run.flop) / (time_s * rate) <= n:
            yield n, time_s


def smallest_clusters(
    runs: Sequence[Run],
    gpu: Cluster,
    *,
    deadline_s: float = DEADLINE_S,
    reliability: Reliability | None = None,
) -> list[SmallestCluster]:
    """For each run the smallest cluster of S · 2^i GPUs with a layout that takes less than the
    deadline.

    All runs are searched together: first one size of each, then the next 1, 2, 4, … sizes of those
    still without an answer.

    Args:
      runs: as `laws.run` makes them, rounded. gpu: of `gpus.gpu`.
      reliability: failures and checkpoints take their share of the deadline; None for the study's
        perfect machines. Training times and utilization are those of the time that trains.

    Returns:
      One `SmallestCluster` for each run.
    """
    found: dict[int, SmallestCluster] = {}
    untried = {i: cluster_sizes(run, gpu, deadline_s, reliability) for i, run in enumerate(runs)}
    for n in (1, *(2**i for i in range(DOUBLINGS))):
        tried = [(i, *size) for i, sizes in untried.items() for size in islice(sizes, n)]
        if not tried:
            break
        found = _fitting(runs, gpu, tried) | found
        untried = {i: sizes for i, sizes in untried.items() if i not in found}
    return [found.get(i, SmallestCluster(run, None)) for i, run in enumerate(runs)]


def _fitting(
    runs: Sequence[Run], gpu: Cluster, tried: Sequence[tuple[int, int, float]]
) -> dict[int, SmallestCluster]:
    """By run the first of the sizes tried that has an answer."""
    found: dict[int, SmallestCluster] = {}
    problems = [Problem(runs[i], size) for i, size, _ in tried]
    times = [time_s for *_, time_s in tried]
    for (i, *_), answer in zip(tried, best_layouts(problems, gpu, within_s=times), strict=True):
        if answer is not None:
            found.setdefault(i, _cluster(runs[i], answer))
    return found


def _cluster(run: Run, answer: Best | InputError) -> SmallestCluster:
    """A layout, or why there is none."""
    if isinstance(answer, InputError):
        return SmallestCluster(run, None, str(answer))
    return SmallestCluster(run, answer)


def sweep_widths(
    gpu: Cluster,
    *,
    sparse: bool = False,
    law: Laws = laws.STUDY,
    widths: Iterable[float] = laws.WIDTHS,
    deadline_s: float = DEADLINE_S,
    reliability: Reliability | None = None,
) -> list[SmallestCluster]:
    """The smallest cluster for one width after the other, until a model fits none or utilization is
    below 0.001.

    Args:
      gpu: of `gpus.gpu`. sparse: with experts. law: all laws, the batch among them. widths: in
        ascending order [element].
      deadline_s: of training [s]. reliability: of `smallest_clusters`.

    Returns:
      Clusters of the widths up to the end of the sweep; those of them that the study's space does
      not cover have a `problem` and no layout.
    """
    found: list[SmallestCluster] = []
    runs = (laws.run(float(width), sparse=sparse, laws=law) for width in widths)
    while group := list(islice(runs, GROUP)):
        for cluster in smallest_clusters(
            group, gpu, deadline_s=deadline_s, reliability=reliability
        ):
            if cluster.problem is None and (
                cluster.best is None or cluster.best.utilization < NEGLIGIBLE
            ):
                return found
            found.append(cluster)
    return found


def headline(clusters: Iterable[SmallestCluster], gpu: Cluster) -> Headline:
    """Where a sweep's linear scaling ends, and its largest run."""
    known = [c.best for c in clusters if c.best is not None]
    line = LINEAR * ceiling(gpu)
    return Headline(
        linear_end=next((b for b in known if b.utilization <= line), None),
        largest=max(known, key=lambda b: float(b.run.flop), default=None),
    )
