"""The shape of a question's model: its columns, and what the catalog knows of that model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from dmodel.adapters import adapters
from dmodel.blocks import ALL, KINDS
from dmodel.catalog.model_names import identify
from dmodel.catalog.shapes import decoder, written
from dmodel.named_shape import (
    FROM_MODEL,
    SIZES,
    WRITTEN,
    catalog_model,
    catalog_shape,
    columns_of,
)
from dmodel.question import Assumption, Pairs, Question, picked
from dmodel.records import OF_MODEL, Block, Model, having, sized, value

OF_PARTS = tuple(
    dict.fromkeys(
        n for kind in KINDS.values() for n in kind.__dataclass_fields__ if n not in FROM_MODEL
    )
)
"""Sizes of parts that no column holds."""


def _own(question: Question) -> Model | None:
    """The model that is known besides its columns: a caller's own, else the catalog's where columns
    agree with it."""
    if question.model is not None:
        return question.model
    known = catalog_model(question.text("model"))
    return known if known is not None and _is_same(question, columns_of(known)) else None


def _is_same(question: Question, known: Mapping[str, float]) -> bool:
    """Whether all columns by which a model is known are as in the catalog."""
    sizes = [n for n in WRITTEN if n != "n_experts"]
    same = all(question.known(n) == known[n] for n in sizes)
    return same and _experts_of(question) == known["n_experts"]


def _experts_of(question: Question) -> float:
    """Experts of a layer, 1 of a dense model."""
    return max(question.number("n_experts") or 1.0, 1.0)


DECIDE = (*FROM_MODEL, "seq_len", "model", "attention")
"""Columns that decide a model."""

SET = ("imbalance", "n_mtp", "packed_window", "adapters", "adapter_dropout")
"""Settings that decide it, whoever says them."""

SET_BY_QUESTION = ("tuning", *OF_PARTS)
"""Those that do where the question itself says them."""


def model(question: Question, settings: Mapping[str, Any], said: list[Assumption]) -> Model:
    """The model of a question whose columns are complete, float64 scalars.

    Open n_kv_heads: n_heads. head_dim: the catalog's for a model that it knows by name and shape,
    else d_model / n_heads. gated_mlp: two matrices when d_ff = 4 d_model. Embeddings of -1 are left
    to the count of parameters (`settled`).

    Args:
      settings: what facts and the question set besides columns.
      said: assumptions, to be added to.
    """
    by_facts, own = picked(settings, SET), picked(question.settings, SET_BY_QUESTION)
    if question.model is not None:
        asked = question._replace(settings=dict(own))
        found, texts = _model(asked, dict(by_facts))
    else:
        found, texts = _model_of(picked(question.columns, DECIDE), own, by_facts)
    said.extend(texts)
    return found


@lru_cache(maxsize=2048)
def _model_of(columns: Pairs, own: Pairs, settings: Pairs) -> tuple[Model, tuple[Assumption, ...]]:
    """The model that some columns and settings decide: many rows of a table share one."""
    return _model(Question(dict(columns), dict(own)), dict(settings))


def _model(question: Question, settings: Mapping[str, Any]) -> tuple[Model, tuple[Assumption, ...]]:
    """As `model`, of a question that says no more than what decides a model; with what fills its
    blanks."""
    said: list[Assumption] = []
    known = _own(question)
    shape = {n: question.known(n) for n in (*SIZES, "seq_len")}
    shape |= _heads(question, known, shape, said)
    shape["gated_mlp"] = _gated(question, shape, said)
    shape |= _experts(question, known, said)
    load = shape.pop("imbalance") * float(settings.get("imbalance", 1.0))
    found = decoder(**shape) if known is None else _as_columns(known, shape)
    if known is not None and question.model is None:
        said.extend(_of_catalog(question, known))
    if having(found, "imbalance"):
        _say_load(load, known, said)
        found = sized(found, imbalance=load)
    found = _packed(question, settings, found, said)
    tied = float(known.tied_embeddings) if known is not None else -1.0
    found = found.replace(
        n_mtp=float(settings.get("n_mtp", 0.0)),
        trainable=float(question.tuning != "lora"),
        tied_embeddings=tied,
    )
    if not found.trainable:
        found = found.replace(**adapters(settings, shape, said))
    own = {n: float(x) for n, x in question.settings.items() if n in OF_PARTS}
    return jax.tree.map(np.float64, sized(found, **own)), tuple(said)


def _as_columns(known: Model, shape: Mapping[str, float]) -> Model:
    """A model with what columns say otherwise; those of an MLP say it of routed experts where there
    are any. Layers of other counts have no order."""
    now = columns_of(known)
    changed = {n: x for n, x in shape.items() if n in now and x != now[n]}
    if "n_layers" in changed:
        known = known.replace(order=())
    if "d_ff" in changed:
        known = _of_width(known, changed.pop("d_ff"))
    there = {n: x for n, x in changed.items() if n in OF_MODEL or having(known, n)}
    return sized(known, **there)


def _of_width(model: Model, width: float) -> Model:
    """A model with routed experts of a width, or without them with an MLP."""
    if not having(model, "n_experts"):
        return sized(model, d_ff=width) if having(model, "d_ff") else model
    feeds = (f.replace(d_ff=width) if hasattr(f, "n_experts") else f for f in model.feeds)
    return model.replace(feeds=tuple(feeds))


def _heads(
    question: Question, known: Model | None, shape: Mapping[str, float], said: list
) -> dict[str, float]:
    heads, even = shape["n_heads"], shape["d_model"] / shape["n_heads"]
    own = even if known is None else columns_of(known)["head_dim"]
    if known is not None and having(known, "kv_rank"):
        # columns hold the heads of latent attention in one way or another
        found = {"n_kv_heads": heads, "head_dim": own}
    else:
        found = {
            "n_kv_heads": question.number("n_kv_heads") or heads,
            "head_dim": question.number("head_dim") or own,
        }
    if question.number("n_kv_heads") is None:
        said.append(Assumption("n_kv_heads blank: n_heads"))
    if question.number("head_dim") is None:
        whose = "d_model / n_heads" if found["head_dim"] == even else "the catalog's"
        said.append(Assumption(f"head_dim blank: {found['head_dim']:g}, {whose}"))
    return found


def _gated(question: Question, shape: Mapping[str, float], said: list) -> float:
    given = question.number("gated_mlp")
    if given is not None:
        return given
    found = float(shape["d_ff"] != 4.0 * shape["d_model"])
    ratio = shape["d_ff"] / shape["d_model"]
    said.append(Assumption(f"gated_mlp blank: {found:g}, from d_ff / d_model = {ratio:.3g}"))
    return found


def _experts(question: Question, known: Model | None, said: list) -> dict[str, float]:
    experts = max(question.number("n_experts") or 1.0, 1.0)
    if question.number("n_experts") is None:
        said.append(Assumption("n_experts blank: no experts"))
    load = 1.0 if known is None else float(value(known, "imbalance", 1.0))
    return {"n_experts": experts, "top_k": visited(question, said), "imbalance": load}


def _say_load(load: float, known: Model | None, said: list) -> None:
    even = f"busiest {load:g} times the mean" if load != 1.0 else "balanced load"
    alike = "" if known is not None else ", no shared expert, all layers alike"
    said.append(Assumption(f"experts: {even}{alike}"))


def visited(question: Question, said: list[Assumption]) -> float:
    """Experts that each token visits. Open or 0 in a mixture: the catalog's for a model of that
    name with as many experts, else 1."""
    given, experts = question.number("top_k"), _experts_of(question)
    if given or experts <= 1.0:
        return given or 1.0
    found, whose = _visited_in_catalog(question, experts)
    said.append(Assumption(f"top_k {'blank' if given is None else '0'}: {found:g}, {whose}"))
    return found


def _visited_in_catalog(question: Question, experts: float) -> tuple[float, str]:
    """Experts that each token visits as the catalog has it, else 1; and whose number that is."""
    name = identify(question.text("model"))[0]
    own = question.model
    known = columns_of(own) if own is not None else catalog_shape(name)
    if known.get("n_experts") == experts:
        return known["top_k"], f"of {name} in the catalog"
    return 1.0, "each token visits one expert"


def _of_catalog(question: Question, known: Model) -> list[Assumption]:
    """What no column says of a model that the catalog knows: its kinds of layers, and sizes that a
    plain decoder does not have."""
    parts = [_more_of(part) for part in known.parts]
    if not any(parts) and len(known.pairs) == 1:
        return []
    kinds = ", ".join(block_text(block) for block in known.blocks if block.layers)
    return [Assumption(f"of {identify(question.text('model'))[0]} in the catalog: {kinds}")]


def _more_of(part: Any) -> list[str]:
    """Sizes of a part that no column holds, and that are not as when nothing is said."""
    return [n for n in written(part) if n not in (*FROM_MODEL, "kind", "small")]


def block_text(block: Block) -> str:
    """A kind of layer for people: "58 layers of latent (kv_rank 512) and experts"."""
    texts = []
    for part in filter(None, block[:2]):
        sizes = written(part)
        more = ", ".join(f"{n} {sizes[n]:g}" for n in _more_of(part))
        texts.append(part.KIND + (f" ({more})" if more else ""))
    return f"{float(block.layers):g} layers of {' and '.join(texts) or 'nothing'}"


def _packed(question: Question, settings: Mapping[str, Any], found: Model, said: list) -> Model:
    """A causal window that stands for sequences packed of documents, which attention does not
    leave."""
    window = float(settings.get("packed_window", 0.0))
    packs = 0.0 < window < float(found.seq_len) and question.fused_attention
    limited = any(float(part.window) < ALL for part in having(found, "window"))
    if not packs or limited or not having(found, "window"):
        return found
    text = "sequences are packed of documents, attention costs what a window of "
    said.append(Assumption(f"{text}{window:g} tokens would"))
    return sized(found, window=window)
