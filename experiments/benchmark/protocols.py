"""What is asked: protocols with their frozen splits, which are data files, and how they were made.

A split file has a line for each row of a task: `id,task,train,judge`, the last two being the draws
in which the row is fitted or judged, with blanks between.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dmodel.errors import InputError
from dmodel.units import GIB
from experiments.benchmark.table import Table, table
from experiments.divisions import both, devices, few, nobody, sources, with_peak
from experiments.memory import SIZES

SPLITS = Path(__file__).parent / "splits"
HEADER = ("id", "task", "train", "judge")
SECONDS, BYTES, PROBABILITY = "seconds", "bytes", "probability"
"""What a tool answers with."""

DRAWS = 5
"""Draws of twelve rows."""

TWELVE = 12
"""Rows of a stack that a fit is given."""

FEWEST = 2
"""Rows with a peak that a source has at least where it is judged."""


class Task(NamedTuple):
    """One thing asked of one fit.

    Attributes:
      name: of the task. draw: 1, 2, …. train: rows of the target that may be used, by name, beside
        those that are not hidden. judge: rows that are judged.
    """

    name: str
    draw: int
    train: tuple[str, ...]
    judge: tuple[str, ...]


class Protocol(NamedTuple):
    """One protocol.

    Attributes:
      about: a sentence. answer: `seconds`, `bytes` or `probability`. hidden: rows that nothing may
        be fitted to (unless the task gives them), `[row]` bool of the rows of a task.
    """

    about: str
    answer: str
    hidden: Callable[[np.ndarray], np.ndarray]


FOLDS: dict[str, tuple[str, ...]] = {
    "nvidia": (
        "megatron-bridge",
        "nemo-launcher",
        "nemo-docs",
        "dgxc-nemo",
        "megatron-lm-llama",
        "mlperf-train-v4.0",
        "mlperf-train-v5.0",
    ),
    "vtrain": ("vtrain-single", "vtrain-multi"),
    "mixed": (
        "bigscience",
        "dlperf",
        "flagperf",
        "megascale",
        "zero-bubble",
        "maxtext-readme",
        "maxtext-a3",
        "jax-toolbox-pax",
        "jax-toolbox-maxtext",
        "dgxc-maxtext",
        "dgxc-pax",
        "tpu-recipes",
        "gpu-recipes",
    ),
    "others": (
        "automodel",
        "fms-fsdp",
        "internevo",
        "kempnerforge",
        "llm-foundry",
        "megatron-sc21-t1",
        "megatron-sc21-t2",
        "mt-nlg-530b",
        "torchtitan",
    ),
}
"""Sources of each fold; sources with a stack, or code of one, in common are in one."""

FEW = (
    "vtrain-single",
    "vtrain-multi",
    "llm-foundry",
    "nemo-launcher",
    "megatron-bridge",
    "bigscience",
    "internevo",
    "torchtitan",
)
"""Sources of which twelve rows are given."""

GROWING: dict[str, tuple[float, float]] = {
    "llm-foundry": (16, 64),
    "vtrain-multi": (256, 512),
    "dgxc-nemo": (128, 1024),
    "internevo": (64, 256),
}
"""Most devices of the rows that are given, and fewest of those that are judged."""


def of_fold(rows: np.ndarray) -> np.ndarray:
    """All rows of the fold that these are of."""
    fold = np.array([_fold_of(source) for source in table().cases.labels.source.tolist()])
    return np.isin(fold, fold[rows])


def of_stack(rows: np.ndarray) -> np.ndarray:
    """All rows of a source or a stack of these."""
    labels = table().cases.labels
    return np.isin(labels.source, labels.source[rows]) | np.isin(labels.stack, labels.stack[rows])


def _fold_of(source: str) -> str:
    return next(name for name, members in FOLDS.items() if source in members)


PROTOCOLS: dict[str, Protocol] = {
    "no-rows": Protocol(
        "step times, with no row of the source, of its stack, or of the rest of its fold",
        SECONDS,
        of_fold,
    ),
    "twelve": Protocol(
        "step times, with twelve rows of the source and nothing else of its fold", SECONDS, of_fold
    ),
    "larger-scale": Protocol(
        "step times on many devices, with the source's rows on few and nothing else of its fold",
        SECONDS,
        of_fold,
    ),
    "memory": Protocol(
        "peak memory of a device, with no row of the source or of its stack", BYTES, of_stack
    ),
    "fits": Protocol(
        "whether a job runs out of memory on a device of some size, asked of measured peaks; with "
        "no row of the source or of its stack",
        PROBABILITY,
        of_stack,
    ),
}

Line = dict[str, str]


@lru_cache(maxsize=8)
def split(name: str) -> tuple[Line, ...]:
    """The lines of a protocol's frozen split."""
    with (SPLITS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def protocol(name: str) -> Protocol:
    """A protocol by its name.

    Raises:
      InputError: there is none of that name.
    """
    if name not in PROTOCOLS:
        raise InputError(f"--protocol: {name!r} is none; choose from {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def tasks(name: str) -> list[Task]:
    """Every task and draw of a protocol."""
    trains: dict[tuple[str, int], list[str]] = {}
    judges: dict[tuple[str, int], list[str]] = {}
    for line in split(name):
        for column, found in (("train", trains), ("judge", judges)):
            for draw in line[column].split():
                found.setdefault((line["task"], int(draw)), []).append(line["id"])
    order = list(dict.fromkeys(task for task, _ in judges))
    return [
        Task(task, draw, tuple(trains.get((task, draw), ())), tuple(judges[task, draw]))
        for task, draw in sorted(judges, key=lambda key: (order.index(key[0]), key[1]))
    ]


def row_of(question: str) -> str:
    """The row that a question is about: its name without the size of a device."""
    return question.split("@")[0]


def size_of(question: str) -> float:
    """Memory of the device that a question about fitting names [byte]."""
    return float(question.split("@")[1]) * GIB


def usable(name: str, task: Task) -> np.ndarray:
    """Rows that a tool may be fitted to for a task, `[row]` bool: all that are not hidden, and
    those given."""
    known = table()
    own = known.mask(row_of(question) for question in (*task.train, *task.judge))
    return ~protocol(name).hidden(own) | known.mask(task.train)


# --- how the splits were made --------------------------------------------------------------------


def freeze(folder: Path = SPLITS) -> None:
    """Write the splits of the table as it is; a changed split is a new version of the benchmark."""
    folder.mkdir(exist_ok=True)
    known = table()
    made = {
        "no-rows": _whole_folds(known),
        "twelve": _twelve(known),
        "larger-scale": _growing(known),
        "memory": list(_peaks(known)),
    }
    made["fits"] = [
        (f"{name}@{size:g}", task, train, judge)
        for name, task, train, judge in made["memory"]
        for size in SIZES
    ]
    for name, lines in made.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(HEADER)
            writer.writerows(lines)


Frozen = tuple[str, str, str, str]


def _whole_folds(known: Table) -> list[Frozen]:
    pairs = zip(known.ids, known.cases.labels.source.tolist(), strict=True)
    return [(name, _fold_of(source), "", "1") for name, source in pairs]


def _twelve(known: Table) -> list[Frozen]:
    found = []
    for source in FEW:
        target = sources(source)(known.cases)
        divide = few(TWELVE, source == "vtrain-single")
        parts = [divide(known.cases, target, seed)[0] for seed in range(DRAWS)]
        found += _lines(known, source, [(p.fitted, p.judged) for p in parts])
    return found


def _growing(known: Table) -> list[Frozen]:
    found = []
    for source, (few_devices, many) in GROWING.items():
        of = sources(source)
        fitted = both(of, devices(1, few_devices))(known.cases)
        judged = both(of, devices(many, np.inf))(known.cases)
        found += _lines(known, source, [(fitted, judged)])
    return found


def _peaks(known: Table) -> Iterator[Frozen]:
    there = with_peak(known.cases)
    for source in np.unique(known.cases.labels.source[there]).tolist():
        judged = there & sources(source)(known.cases)
        if judged.sum() >= FEWEST:
            yield from _lines(known, source, [(nobody(known.cases), judged)])


Draw = tuple[np.ndarray, np.ndarray]


def _lines(known: Table, task: str, draws: Sequence[Draw]) -> list[Frozen]:
    """Lines of one task: fitted and judged rows of each draw."""

    def said(place: int, which: int) -> str:
        return " ".join(str(i + 1) for i, part in enumerate(draws) if part[which][place])

    lines = [(name, task, said(i, 0), said(i, 1)) for i, name in enumerate(known.ids)]
    return [line for line in lines if line[2] or line[3]]
