"""How the accuracy study divides measured rows: which a base has not seen, which are fitted from
it, which are judged, and the goals."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from calibration.traces import Cases
from calibration.traces.published import PUBLISHED
from calibration.traces.split import split
from dmodel.records import value

Rows = Callable[[Cases], np.ndarray]
"""Chooses rows: cases → `[row]` bool."""


class Goal(NamedTuple):
    """Errors to stay below [%], the worst seed's mean at most twice the mean's; for choosing regret
    [%] and the share of pairs in order."""

    median: float | None = None
    mean: float | None = None
    regret: float | None = None
    order: float | None = None


class Division(NamedTuple):
    """Rows to fit and rows to judge, `[row]` bool each."""

    fitted: np.ndarray
    judged: np.ndarray


class Protocol(NamedTuple):
    """One protocol.

    Attributes:
      target: its rows. hidden: rows that the base has not seen (those of further files never are in
        it).
      divide: (cases, target's rows, seed) → divisions; their judged rows together are one seed's
        answer.
      goal: of the whole. parts: rows that are judged apart, with their own goals. random: seeds
        differ.
      family: the base stands at the family of the target's stacks, not at the mean of all stacks.
      memory: peaks of memory are fitted and judged, not times, without a base.
    """

    target: Rows
    hidden: Rows
    divide: Callable[[Cases, np.ndarray, int], list[Division]]
    goal: Goal = Goal()
    parts: dict[str, tuple[Rows, Goal]] = {}  # noqa: RUF012
    random: bool = True
    family: bool = False
    memory: bool = False


NEMO = (
    "megatron-bridge",
    "nemo-launcher",
    "nemo-launcher-a100",
    "nemo-longseq",
    "nemo-docs",
    "dgxc-nemo",
    "megatron-lm-llama",
    "megatron-lm-h100-weak",
    "mlperf-train-v4.0",
    "mlperf-train-v5.0",
    "gpu-recipes",
)
MAXTEXT = (
    "maxtext-readme",
    "maxtext-a3",
    "maxtext-custom",
    "jax-toolbox-maxtext",
    "dgxc-maxtext",
    "tpu-recipes",
    "gpu-recipes",
)
VTRAIN = ("vtrain-single", "vtrain-multi")
SC21 = ("megatron-sc21-t1", "megatron-sc21-t2", "mt-nlg-530b")
FAMILIES = (NEMO, MAXTEXT, VTRAIN, SC21, ("llm-foundry",), ("jax-toolbox-pax", "dgxc-pax"))
"""Sources of one family of software."""


def sources(*names: str) -> Rows:
    """The rows of some sources."""
    return lambda cases: np.isin(cases.labels.source, names)


def both(*rules: Rows) -> Rows:
    """Rows that all rules choose."""
    return lambda cases: np.all([rule(cases) for rule in rules], 0)


def without(rule: Rows) -> Rows:
    """Rows that a rule does not choose."""
    return lambda cases: ~rule(cases)


def unflagged(cases: Cases) -> np.ndarray:
    """Rows that are not slow for reasons that nobody lists."""
    return np.char.find(cases.labels.flag.astype(str), "slow-unexplained") < 0


def chip(name: str) -> Rows:
    """Rows on an accelerator."""
    return lambda cases: cases.labels.accelerator == name


def dense(cases: Cases) -> np.ndarray:
    """Rows of models without experts."""
    return np.asarray(value(cases.model, "n_experts", 1.0)) <= 1.0


def sparse(cases: Cases) -> np.ndarray:
    """Rows of models with experts."""
    return ~dense(cases)


def with_peak(cases: Cases) -> np.ndarray:
    """Rows with a measured peak of memory, without adapters."""
    return np.isfinite(cases.labels.peak_memory_bytes) & (
        np.char.find(cases.labels.flag.astype(str), "lora") < 0
    )


def shipped(cases: Cases) -> np.ndarray:
    """Rows of the published table."""
    return cases.labels.file == str(PUBLISHED)


def _some(mask: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    chosen = np.zeros(len(mask), bool)
    chosen[rng.permutation(np.flatnonzero(mask))[:count]] = True
    return chosen


def few(count: int, cells: bool = False) -> Callable[[Cases, np.ndarray, int], list[Division]]:
    """A few random rows; with `cells` they come from a random half of the groups, and the rows of
    the other half are judged."""

    def divide(cases: Cases, target: np.ndarray, seed: int) -> list[Division]:
        rng = np.random.default_rng(seed)
        if not cells:
            drawn = _some(target, count, rng)
            return [Division(drawn, target & ~drawn)]
        groups = np.unique(cases.labels.group[target])
        open_to_draw = np.isin(
            cases.labels.group, rng.permutation(groups)[: (len(groups) + 1) // 2]
        )
        return [Division(_some(target & open_to_draw, count, rng), target & ~open_to_draw)]

    return divide


def half(cases: Cases, target: np.ndarray, seed: int) -> list[Division]:
    """A random half of the rows."""
    return few(int(target.sum()) // 2)(cases, target, seed)


def folds(count: int = 5) -> Callable[[Cases, np.ndarray, int], list[Division]]:
    """Cross-validation: every group is in one of some parts, and each part is judged by a fit of
    the others."""

    def divide(cases: Cases, target: np.ndarray, seed: int) -> list[Division]:
        groups = np.random.default_rng(seed).permutation(np.unique(cases.labels.group[target]))
        parts = [target & np.isin(cases.labels.group, groups[k::count]) for k in range(count)]
        return [Division(target & ~part, part) for part in parts if part.any()]

    return divide


def apart(fitted: Rows, judged: Rows) -> Callable[[Cases, np.ndarray, int], list[Division]]:
    """Some rows of the target are fitted, others judged."""
    return lambda cases, target, seed: [Division(target & fitted(cases), target & judged(cases))]


def nobody(cases: Cases) -> np.ndarray:
    """No row."""
    return np.zeros(len(cases), bool)


def everybody(cases: Cases) -> np.ndarray:
    """All rows."""
    return np.ones(len(cases), bool)


def half_of_groups(cases: Cases) -> np.ndarray:
    """Half of the published rows of every source, by whole groups."""
    found, published = np.zeros(len(cases), bool), shipped(cases)
    found[published] = split(cases.take(published), 0.5)
    return found


def devices(least: float, most: float) -> Rows:
    """Rows on a number of devices."""
    return lambda cases: (cases.labels.n_accel >= least) & (cases.labels.n_accel <= most)


def width(least: float, most: float) -> Rows:
    """Rows of models of a width."""
    return lambda cases: (
        (np.asarray(cases.model.d_model) >= least) & (np.asarray(cases.model.d_model) <= most)
    )
