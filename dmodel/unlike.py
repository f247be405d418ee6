"""Pipelines of unlike layers: what each kind of layer takes, and which stage has the most to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dmodel.blocks.part import Work, site
from dmodel.records import Model, Plan
from dmodel.types import Array


class Kinds(NamedTuple):
    """Layers of a model in order, and what they take.

    Attributes:
      order: kind of each layer. costs: of one layer of each kind over that of the mean layer [1].
      further: of the layers of a head of further tokens together [layer].
    """

    order: tuple[int, ...]
    costs: tuple[float, ...]
    further: float


ALONE = Plan.of(dp=1.0, global_batch=1.0)
"""One sequence on one device."""


def _flops(work: Work) -> Array:
    """Forward products and cores of a part [FLOP]."""
    products = sum(2.0 * p.rows * p.columns * p.inner * p.copies for p in work.products)
    return products + sum(core.flops for core in work.cores)


def flops_of_kinds(model: Model) -> list[Array]:
    """FLOPs of the forward pass of a layer of each kind, at the model's sequence length."""
    at = site(model, ALONE)
    mixers, feeds = (
        [_flops(part.work(at)) for part in parts] for parts in (model.mixers, model.feeds)
    )
    return [
        sum(flops[index] for flops, index in zip((mixers, feeds), pair, strict=True) if index >= 0)
        for pair in model.pairs
    ]


def kinds_of(model: Model) -> Kinds | None:
    """Kinds of a model of plain numbers by the FLOPs of their forward pass at its sequence length;
    None where layers are alike, or their order is not known."""
    if len(model.pairs) == 1 or len(model.order) != round(float(model.n_layers)):
        return None
    found = [float(flops) for flops in flops_of_kinds(model)]
    shares, further = (np.array([float(x) for x in own]) for own in (model.shares, model.further))
    costs = np.array(found) / (shares @ found)
    own = float(model.n_mtp) * float(further @ costs)
    return Kinds(model.order, tuple(costs.tolist()), own)


def loads(kinds: Kinds, chunks: Sequence[float]) -> np.ndarray:
    """What every chunk takes, in mean layers; layers go to chunks in order, heads of further tokens
    to the last one.

    >>> loads(Kinds((0, 0, 1, 1), (0.5, 1.5), 0.0), (1, 1, 1, 1)).tolist()
    [0.5, 0.5, 1.5, 1.5]
    """
    ends = np.concatenate([[0], np.cumsum(np.asarray(chunks, float))]).round().astype(int)
    taken = np.concatenate([[0.0], np.cumsum(np.array(kinds.costs)[list(kinds.order)])])
    each = np.diff(taken[ends])
    each[-1] += kinds.further
    return each
