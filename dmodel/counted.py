"""What the published count of parameters decides of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dmodel.counts import parameters
from dmodel.question import Assumption, Question
from dmodel.records import Model, having, value

FAR, NEAR = 0.1, 0.03
"""Relative distance of the count of parameters from the published one that says no to a shape, and
one that says yes."""


def _infer_gated(model: Model, given: np.ndarray, said: Sequence[list]) -> Model:
    """The other `gated_mlp` where the published parameter count contradicts the one at hand and
    agrees with that one, tied or not: tables that read two matrices from `d_ff / d_model` make
    models a quarter smaller."""
    gated = np.broadcast_to(np.asarray(value(model, "gated_mlp", 1.0)), given.shape)
    if not having(model, "gated_mlp"):
        return model

    def gap(of: Model) -> np.ndarray:
        counts = [
            parameters(of.replace(tied_embeddings=np.full_like(given, tied))) for tied in (0.0, 1.0)
        ]
        off = np.abs(np.asarray(counts, dtype=np.float64) / given - 1.0)
        return np.min(off, axis=0)

    wrong = (gap(model) > FAR) & (gap(_with_gates(model, True)) < NEAR)
    for i in map(int, np.flatnonzero(wrong)):
        text = f"n_params says so, with {gated[i]:g} they would be over {FAR:.0%} off"
        said[i].append(Assumption(f"gated_mlp {1.0 - gated[i]:g}: {text}"))
    return _with_gates(model, wrong)


def _with_gates(model: Model, other: np.ndarray | bool) -> Model:
    """The model with a gate in its MLPs where there was none, and the other way round."""

    def turned(part: Any) -> Any:
        if "gated_mlp" not in part.__dataclass_fields__:
            return part
        return part.replace(gated_mlp=np.where(other, 1.0 - part.gated_mlp, part.gated_mlp))

    return model.replace(feeds=tuple(map(turned, model.feeds)))


def _infer_tied(model: Model, given: np.ndarray, said: Sequence[list]) -> Model:
    """Tied embeddings where the published parameter count is clearly (three times) nearer to the
    count with them; without a published count, as the catalog has it; else untied.

    Counts are rounded as published, so a near tie between the two says nothing.
    """
    none = np.zeros_like(given)
    given = np.nan_to_num(given)
    untied = np.asarray(parameters(model.replace(tied_embeddings=none)), dtype=np.float64)
    whole = untied - np.asarray(model.vocab * model.d_model)
    tied = (given > 0.0) & (3.0 * np.abs(given - whole) < np.abs(given - untied))
    known = np.asarray(model.tied_embeddings)
    open_ = (given <= 0.0) & (known >= 0.0)
    for i, texts in enumerate(said):
        by = "as of the catalog" if open_[i] else "n_params says so"
        is_tied = bool(known[i]) if open_[i] else bool(tied[i])
        texts.append(Assumption(f"embeddings tied: {by}" if is_tied else "embeddings not tied"))
    return model.replace(tied_embeddings=np.where(open_, known, tied).astype(np.float64))


def settled(model: Model, questions: Sequence[Question], said: Sequence[list]) -> Model:
    """Shapes `[n]` with what published counts of parameters decide: a third matrix of the MLP, tied
    embeddings. A count that still contradicts the shape is said."""
    given = np.array([q.number("n_params") or np.nan for q in questions])
    own = np.array([q.model is not None for q in questions])
    found = _infer_tied(_infer_gated(model, np.where(own, np.nan, given), said), given, said)
    tied = np.where(own, np.asarray(model.tied_embeddings), np.asarray(found.tied_embeddings))
    found = found.replace(tied_embeddings=tied)
    for i, count in enumerate(np.asarray(parameters(found), dtype=np.float64)):
        if abs(count / given[i] - 1.0) > FAR:
            text = f"is not the {count:.4g} of the shape's columns, which are used: check both"
            said[i].append(Assumption(f"n_params {given[i]:.4g} {text}"))
    return found
