"""Memory of every stage of a pipeline: what of the layers each holds, and how many micro-batches it
has in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from dmodel.cost.memory import Memory, fullest, moments
from dmodel.cost.pipeline import SCHEDULES
from dmodel.footprint import LEAST, Footprint
from dmodel.records import Model, Plan

MANY = 1e12
"""Micro-batches that no schedule waits for [count]."""


class Stage(NamedTuple):
    """One stage. layers: that it holds, heads of further tokens not among them [count]. in_flight:
    micro-batches of it whose activations are alive at once [count]. moment: of
    `cost.memory.MOMENTS`, when a device of it is the fullest. memory: of a device then [byte]."""

    layers: float
    in_flight: float
    moment: str
    memory: Memory


def _kinds(model: Model, chunks: Sequence[float], pp: int) -> np.ndarray:
    """Layers of each kind on every stage `[pp, kind]`; mixed evenly where their order is not
    known."""
    held = np.zeros((pp, len(model.pairs)))
    ends = np.concatenate([[0.0], np.cumsum(np.asarray(chunks, float))])
    known = len(model.order) == round(float(model.n_layers))
    for k, count in enumerate(chunks):
        if known:
            own = np.asarray(model.order)[round(ends[k]) : round(ends[k + 1])]
            held[k % pp] += np.bincount(own, minlength=len(model.pairs))
        else:
            held[k % pp] += float(count) * np.array([float(x) for x in model.shares])
    return held


def in_flight(plan: Plan, pp: int) -> np.ndarray:
    """Micro-batches of a whole stage whose activations are alive at once on every stage `[pp]`,
    between the first one's and the last one's in even steps, and no more than there are."""
    schedule, m = SCHEDULES[plan.layout.schedule], float(plan.n_microbatches)
    at = float(plan.layout.pp), m, float(plan.layout.interleave)
    if plan.layout.schedule == "gpipe":
        return np.full(pp, float(schedule.in_flight(*at)))
    free = at[0], MANY, at[2]
    ends = float(schedule.in_flight(*free)), float(schedule.in_flight_last(*free))
    return np.minimum(np.linspace(*ends, pp), m)


def _stage_model(model: Model, kinds: np.ndarray, last: bool) -> Model:
    """The layers of a stage as a model, with one table of words; that of the last stage is the
    head's."""
    layers = max(float(kinds.sum()), 1e-9)
    return model.replace(
        n_layers=layers,
        shares=tuple(kinds / layers),
        n_mtp=model.n_mtp if last else 0.0,
        tied_embeddings=1.0,
    )


def stages(
    model: Model, plan: Plan, chunks: Sequence[float], footprint: Footprint = LEAST
) -> list[Stage]:
    """Memory of every stage, first to last.

    Args:
      model, plan: scalars. chunks: layers of every model chunk in order; chunk k lies on stage `k
        mod pp`. footprint: what the stack holds beyond the least.

    Limits: the embedding is on the first stage and the head on the last, whatever the stack does.
    """
    pp = round(float(plan.layout.pp))
    alone = plan.having(pp=1.0, stage_excess=0.0, head_displaces=0.0)
    found = []
    for i, (kinds, alive) in enumerate(
        zip(_kinds(model, chunks, pp), in_flight(plan, pp), strict=True)
    ):
        first, last = i == 0, i == pp - 1
        own = _stage_model(model, kinds, last)
        if not (first or last):
            own = own.replace(vocab=0.0)
        if not first:
            own = own.replace(small=0.0)
        if first and last:
            own = own.replace(tied_embeddings=model.tied_embeddings)
        each = moments(own, alone, alive, alive, footprint)
        if not last:
            del each["loss"]
        moment = max(each, key=lambda name: float(each[name].total))
        whole = jax.tree.map(float, fullest(each))
        found.append(Stage(float(kinds.sum()), float(alive), moment, whole))
    return found
