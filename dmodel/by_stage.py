"""Memory of every stage of a pipeline: what of the layers each holds, and how many micro-batches it
has in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from dmodel.cost import pipeline
from dmodel.cost.memory import Memory, fullest, moments
from dmodel.footprint import LEAST, Footprint
from dmodel.records import RULES, Model, Plan, Rules
from dmodel.stages import last_rank, on_ranks
from dmodel.types import Array

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


def _kinds(model: Model, chunks: Sequence[float], pp: int, fold: str) -> np.ndarray:
    """Layers of each kind on every stage `[pp, kind]`; mixed evenly where their order is not
    known."""
    held = np.outer(chunks, [float(x) for x in model.shares])
    if len(model.order) == round(float(model.n_layers)):
        ends = np.concatenate([[0.0], np.cumsum(np.asarray(chunks, float))]).round().astype(int)
        order = np.asarray(model.order)
        own = (order[ends[k] : ends[k + 1]] for k in range(len(chunks)))
        held = np.array([np.bincount(kinds, minlength=len(model.pairs)) for kinds in own])
    return on_ranks(held, pp, fold)


def in_flight(plan: Plan, pp: int) -> np.ndarray:
    """Micro-batches of a whole stage whose activations are alive at once on every stage `[pp]`,
    between the first one's and the last one's in even steps, and no more than there are."""
    layout = plan.layout
    free = plan.replace(global_batch=MANY * layout.dp * layout.micro_batch)
    ends = float(pipeline.in_flight(free)), float(pipeline.in_flight_last(free))
    return np.minimum(np.linspace(*ends, pp), float(plan.n_microbatches))


def _stage_model(model: Model, kinds: np.ndarray, further: Array) -> Model:
    """The layers of a stage as a model, with one table of words; that of the last stage is the
    head's. further: heads of further tokens that it has."""
    layers = max(float(kinds.sum()), 1e-9)
    return model.replace(
        n_layers=layers,
        shares=tuple(kinds / layers),
        n_mtp=further,
        tied_embeddings=1.0,
    )


def _ends(rank: int, pp: int, chunks: int, rules: Rules) -> tuple[bool, bool]:
    """Whether a rank has the first chunk, and the last one; of two copies both ends have both."""
    last = last_rank(chunks, pp, rules.fold)
    if rules.copies > 1:
        return rank in (0, last), rank in (0, last)
    return rank == 0, rank == last


def stages(
    model: Model, plan: Plan, chunks: Sequence[float], footprint: Footprint = LEAST
) -> list[Stage]:
    """Memory of every stage, first to last.

    Args:
      model, plan: scalars. chunks: layers of every model chunk in order, which lie on stages as the
        schedule has them. footprint: what the stack holds beyond the least.

    Limits: the embedding is on the first stage and the head on the last, whatever the stack does.
    """
    pp = round(float(plan.layout.pp))
    alone = plan.having(pp=1.0, stage_excess=0.0, head_displaces=0.0)
    rules, found = RULES[plan.layout.schedule], []
    held = _kinds(model, chunks, pp, rules.fold)
    for i, (kinds, alive) in enumerate(zip(held, in_flight(plan, pp), strict=True)):
        first, last = _ends(i, pp, len(chunks), rules)
        own = _stage_model(model, kinds, model.n_mtp / rules.copies if last else 0.0)
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
