"""What a stack does to each of many layouts of one job: leaves that facts decide by the layout.

A search looks at hundreds of thousands of layouts. Facts ask few things of one, so layouts fall
into few classes, and each class is resolved once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dmodel import layouts
from dmodel.catalog.facts import Fact, Rule
from dmodel.catalog.stack import consequences
from dmodel.question import Degrees, Question, words
from dmodel.resolve import FIRST, LEAVES, Software, software
from dmodel.catalog.facts import Applied
from dmodel.records import Model

OF_LAYOUT = ("dp", "tp", "pp", "cp", "ep", "zero", "replicas", "interleave", "micro_batch")
"""What facts may ask about a layout beside the job, in the order of the columns of a class."""

INPUTS = {
    "share_of_stage": ("pp",),
    "one_layer_chunks": ("pp",),
    "at_most_dp": ("dp",),
    "whole_words_a_rank": ("tp",),
    "words_a_rank_not_of_8": ("tp",),
}
"""What of a layout a rule of `dmodel.layouts` depends on."""


class Job(NamedTuple):
    """A job whose layout is open, as facts see it.

    Attributes:
      question: its words, shape complete. known: words of it with all devices data-parallel.
      asked: places in `OF_LAYOUT` of what its stack's facts ask. facts: those that may hold.
    """

    question: Question
    known: Mapping[str, Any]
    asked: tuple[tuple[str, Any], ...]
    exact: tuple[str, ...]


def job(question: Question, chip: str) -> Job:
    """A job ready for `leaves`.

    Args:
      question: its shape complete (`shape.completed`), columns of the layout open.
    """
    devices = question.known("n_accel")
    at = Degrees(devices, 1.0, 1.0, 1.0, 1.0, 1.0, ())
    known = words(question, at, chip)
    facts = _possible((*question.stack.facts, *consequences()))
    tests = [
        (n, test) for f in facts for n, test in f.tests if n in OF_LAYOUT or n == "stage_layers"
    ]
    rules = {v.name for f in facts for v in f.sets.values() if isinstance(v, Rule)}
    exact = {name for rule in rules for name in INPUTS.get(rule, ())}
    return Job(question, known, tuple(tests), tuple(sorted(exact)))


def _possible(facts: Sequence[Fact]) -> list[Fact]:
    """Facts about everything but the layout and the machine."""
    return [f for f in facts if not FIRST & {*f.sets, *f.means}]


def _classes(of: Job, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Places of one layout of each class, and the class of every layout."""
    n = len(columns["dp"])
    outcomes = [columns[name] for name in of.exact]
    for name, test in of.asked:
        values, place = np.unique(columns[name], return_inverse=True)
        outcomes.append(np.array([test(float(v)) for v in values], float)[place.ravel()])
    if not outcomes:
        return np.zeros(1, int), np.zeros(n, int)
    _, first, kind = np.unique(
        np.stack(outcomes, 1), axis=0, return_index=True, return_inverse=True
    )
    return first, kind.ravel()


def _columns(of: Job, found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What facts may ask, of every layout `[n]`."""
    dp, zero = np.asarray(found["dp"], float), np.asarray(found["zero"], float)
    ones = np.ones_like(dp)
    shard = np.where(zero > 0.0, np.maximum(found.get("shard", dp), 1.0), 1.0)
    columns = {
        n: np.asarray(found.get(n, ones), float) * ones for n in OF_LAYOUT if n != "replicas"
    }
    columns["replicas"] = dp / shard
    columns["stage_layers"] = float(of.known["n_layers"]) / columns["pp"]
    return columns


def leaves(of: Job, found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Leaves that facts decide, of every layout `[n]`.

    Args:
      found: degrees and sharding by name `[n]` (`OF_LAYOUT`; shard in place of replicas).
    """
    columns = _columns(of, found)
    first, kind = _classes(of, columns)
    every = [decided(of, {n: float(c[i]) for n, c in columns.items()}) for i in first]
    values = [LEAVES | {n: float(v) for n, v in e.values.items() if n in LEAVES} for e in every]
    return {n: np.array([v[n] for v in values])[kind] for n in LEAVES}


def decided(of: Job, layout: Mapping[str, float]) -> Software:
    """What facts make of one layout."""
    return software(of.question, {**of.known, **layout}, Applied({}, ()))


def stages(of: Job, model: Model, pp: np.ndarray, interleave: np.ndarray) -> dict[str, np.ndarray]:
    """How layers lie on the stages of pipelines `[n]`: `Layout.stage_excess`, `head_displaces`."""
    way = str(decided(of, {}).values.get("stages", "counted"))
    pairs = np.stack([np.asarray(pp, float), np.asarray(interleave, float)], 1)
    unique, kind = np.unique(pairs, axis=0, return_inverse=True)
    sizes = [
        float(x) for x in (model.n_layers, model.d_model, model.d_ff, model.vocab, model.n_mtp)
    ]
    held = np.array([_held(way, sizes, *pair) for pair in unique])[kind.ravel()]
    return {"stage_excess": held[:, 0], "head_displaces": held[:, 1]}


def _held(way: str, sizes: Sequence[float], pp: float, interleave: float) -> tuple[float, float]:
    layers, width, ff, vocab, n_mtp = sizes
    if pp <= 1.0:
        return 0.0, 0.0
    of = layouts.Pipeline(layers, layouts.head_cost(width, ff, vocab), pp, interleave, n_mtp)
    found = layouts.stages(way, of)
    return found.fullest - (layers + n_mtp) / pp, found.fullest - found.last
