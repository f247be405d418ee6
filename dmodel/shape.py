"""The shape of a question's model: its columns, what the catalog knows of that model, and what the
count of parameters decides."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dmodel.catalog.loader import known_name, table, unknown
from dmodel.catalog.models import from_shape, identify
from dmodel.counts import parameters
from dmodel.question import Assumption, Question
from dmodel.records import Model
from dmodel.types import InputError

FROM_MODEL = (
    "n_layers",
    "d_model",
    "d_ff",
    "gated_mlp",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "vocab",
    "n_experts",
    "top_k",
)
"""Columns of a shape that the catalog can fill."""

SIZES = ("n_layers", "d_model", "d_ff", "n_heads", "vocab")
"""Those without which a question has no shape."""

OF_DENSE = tuple(name for name in FROM_MODEL if name not in ("n_experts", "top_k"))
"""Those of a dense model."""

WRITTEN = ("n_layers", "d_model", "d_ff", "n_heads", "n_experts")
"""Columns by which a model is known for the one of that name in the catalog."""

OF_RUN = ("seq_len", "imbalance", "trainable", "n_mtp", "tied_embeddings", "causal")
OF_ADAPTERS = (
    "first_adapters",
    "first_adapted",
    "last_adapters",
    "last_adapted",
    "adapter_dropout",
)
PLAIN = {
    name: field.default
    for name, field in Model.__dataclass_fields__.items()
    if isinstance(field.default, float)
}
"""What a shape means where it does not say: untied, causal, dense, balanced, trained."""

UNWRITTEN = tuple(n for n in PLAIN if n not in (*FROM_MODEL, *OF_RUN, *OF_ADAPTERS))
"""Numbers of a model that no column holds."""

FAR, NEAR = 0.1, 0.03
"""Relative distance of the count of parameters from the published one that says no to a shape, and
one that says yes."""


@lru_cache(maxsize=512)
def catalog_shape(name: str) -> Mapping[str, float]:
    """Numbers of the catalog's model of a name, its count of parameters among them; empty without.

    Only names, or a hub's spelling: a table must not make this read files.
    """
    known = known_name("models", identify(name)[0]) if name else None
    if known is None:
        return {}
    found = from_shape(table("models")[known]["shape"])
    return numbers(found) | {"n_params": float(parameters(found))}


def numbers(model: Model) -> dict[str, float]:
    """A model's numbers by name."""
    return {name: float(getattr(model, name)) for name in Model.__dataclass_fields__}


def filled(question: Question, needed: Collection[str] = SIZES) -> dict[str, float]:
    """Open columns of a shape as the catalog has them for the question's model.

    None where no needed column is open, the catalog has no such model, or a column that is said
    contradicts it: of sizes and heads (a vocabulary may be padded), experts, or the count of
    parameters. Dense models leave the columns of experts open.
    """
    wanted = set(_open(question, FROM_MODEL)) & set(needed)
    known = catalog_shape(question.text("model")) if wanted else {}
    if not known or _contradicts(question, known):
        return {}
    names = FROM_MODEL if known["n_experts"] > 1.0 else OF_DENSE
    return {n: known[n] for n in _open(question, (*names, "seq_len"))}


def _open(question: Question, names: Sequence[str]) -> list[str]:
    """Those of some columns that the question leaves open."""
    return [name for name in names if name not in question.columns]


def _contradicts(question: Question, known: Mapping[str, float]) -> bool:
    """Whether a column says something else than the catalog."""
    said = [n for n in (*FROM_MODEL, "n_params") if n in question.columns]
    return any(_differs(n, float(question.columns[n]), known[n]) for n in said)


def completed(question: Question) -> tuple[Question, tuple[Assumption, ...]]:
    """The question with the open columns of its shape filled: by a shape of the caller's own, of
    which columns that are said count, else by the catalog (`filled`)."""
    if question.model is not None:
        known = numbers(question.model)
        own = {n: known[n] for n in (*FROM_MODEL, "seq_len") if n not in question.columns}
        return question._replace(columns={**question.columns, **own}), ()
    found = filled(question)
    if not found:
        return question, ()
    name = identify(question.text("model"))[0]
    text = f"shape blank: {', '.join(found)} as of {name} in the catalog"
    return question._replace(columns={**question.columns, **found}), (Assumption(text),)


def _differs(name: str, given: float, value: float) -> bool:
    """Whether a column says something else than the catalog."""
    if name == "n_params":
        return bool(given) and abs(given / value - 1.0) > FAR
    counted = max(given, 1.0) if name in ("n_experts", "top_k") else given
    return name != "vocab" and counted != value


def check(question: Question) -> None:
    """Refuse a question without a shape.

    Raises:
      InputError: a needed column is open and the catalog has no such model.
    """
    lacking = [n for n in (*SIZES, "seq_len") if n not in question.columns]
    if name := _unknown_name(question, lacking):
        raise InputError(unknown("models", name, "; the path of a config.json is accepted too"))
    if lacking:
        raise InputError(
            f"{', '.join(lacking)} open, and the catalog does not fill them for the model "
            f"{question.text('model')!r}; name a model of `dmodel catalog models`, a config.json, "
            "or say the shape"
        )


def _unknown_name(question: Question, lacking: Collection[str]) -> str:
    """A model's name that alone says the shape and that the catalog does not have; "" if not so."""
    name = question.text("model")
    alone = bool(name) and set(SIZES) <= set(lacking)
    return name if alone and not catalog_shape(name) else ""


def _own(question: Question) -> Mapping[str, float]:
    """What is known of the model besides its columns: a caller's own shape, else the catalog's
    where columns agree with it."""
    if question.model is not None:
        return numbers(question.model)
    known = catalog_shape(question.text("model"))
    return known if known and _is_same(question, known) else {}


def _is_same(question: Question, known: Mapping[str, float]) -> bool:
    """Whether all columns by which a model is known are as in the catalog."""
    sizes = [n for n in WRITTEN if n != "n_experts"]
    same = all(question.known(n) == known[n] for n in sizes)
    return same and _experts_of(question) == known["n_experts"]


def _experts_of(question: Question) -> float:
    """Experts of a layer, 1 of a dense model."""
    return max(question.number("n_experts") or 1.0, 1.0)


def model(
    question: Question, settings: Mapping[str, Any], said: list[Assumption]
) -> dict[str, float]:
    """Numbers of the model of a question whose columns are complete.

    Open n_kv_heads: n_heads. head_dim: the catalog's for a model that it knows by name and shape,
    else d_model / n_heads. gated_mlp: two matrices when d_ff = 4 d_model.

    Args:
      settings: what facts and the question set besides columns.
      said: assumptions, to be added to.
    """
    known = _own(question)
    shape = {n: question.known(n) for n in (*SIZES, "seq_len")}
    shape |= _heads(question, known, shape, said)
    shape["gated_mlp"] = _gated(question, shape, said)
    shape |= _experts(question, known, settings, said)
    shape |= _besides(question, known, said)
    shape["n_mtp"] = float(settings.get("n_mtp", 0.0))
    shape["trainable"] = float(question.tuning != "lora")
    shape |= _packed(question, settings, shape, said)
    if not shape["trainable"]:
        shape |= _adapters(settings, shape, said)
    # -1: left to the count of parameters
    shape["tied_embeddings"] = known.get("tied_embeddings", -1.0)
    return {**PLAIN, **shape}


def _heads(
    question: Question, known: Mapping[str, float], shape: Mapping[str, float], said: list
) -> dict[str, float]:
    heads, even = shape["n_heads"], shape["d_model"] / shape["n_heads"]
    if known.get("kv_rank"):
        # columns hold the heads of latent attention in one way or another
        found = {"n_kv_heads": known["n_kv_heads"], "head_dim": known["head_dim"]}
    else:
        own = known.get("head_dim", even)
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


def _experts(
    question: Question, known: Mapping[str, float], settings: Mapping[str, Any], said: list
) -> dict[str, float]:
    experts = max(question.number("n_experts") or 1.0, 1.0)
    if question.number("n_experts") is None:
        said.append(Assumption("n_experts blank: no experts"))
    load = float(settings.get("imbalance", 1.0)) * known.get("imbalance", 1.0)
    if experts > 1.0:
        even = f"busiest {load:g} times the mean" if load != 1.0 else "balanced load"
        alike = "" if known else ", no shared expert, all layers alike"
        said.append(Assumption(f"experts: {even}{alike}"))
    return {"n_experts": experts, "top_k": visited(question, said), "imbalance": load}


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
    known = numbers(question.model) if question.model is not None else catalog_shape(name)
    if known.get("n_experts") == experts:
        return known["top_k"], f"of {name} in the catalog"
    return 1.0, "each token visits one expert"


def _besides(question: Question, known: Mapping[str, float], said: list) -> dict[str, float]:
    """Numbers of the model that no column holds."""
    there = {n: known[n] for n in UNWRITTEN if n in known}
    found = {n: value for n, value in there.items() if value != PLAIN[n]}
    if found and question.model is None:
        said.append(_of_catalog(question, found))
    return found


def _of_catalog(question: Question, found: Mapping[str, float]) -> Assumption:
    """That numbers are the catalog's."""
    shown = ", ".join(f"{name} {value:g}" for name, value in found.items())
    return Assumption(f"of {identify(question.text('model'))[0]} in the catalog: {shown}")


def _packed(
    question: Question, settings: Mapping[str, Any], shape: Mapping[str, float], said: list
) -> dict[str, float]:
    """A causal window that stands for sequences packed of documents, which attention does not
    leave."""
    window = float(settings.get("packed_window", 0.0))
    packs = 0.0 < window < shape["seq_len"] and question.fused_attention
    if not packs or shape.get("windowed"):
        return {}
    text = "sequences are packed of documents, attention costs what a window of "
    said.append(Assumption(f"{text}{window:g} tokens would"))
    return {"window": window, "windowed": 1.0}


FIRST, LAST = ("q_proj", "k_proj", "v_proj", "linear_qkv"), ("o_proj", "linear_proj")
"""Modules of attention with an adapter beside what reads the width, and beside what returns it."""


def _adapters(
    settings: Mapping[str, Any], shape: Mapping[str, float], said: list
) -> dict[str, float]:
    """Low-rank adapters beside products (LoRA, Hu et al. 2021); none in MLPs of a mixture.

    Modules as Hugging Face and Megatron-Core name them; others are named as not counted.
    """
    first, last = _adapted_widths(shape)
    names = [n for n in settings.get("adapters", ()) if n != "nothing"]
    read, returned = ([of[n] for n in names if n in of] for of in (first, last))
    said.append(Assumption(_adapters_in_words(names, (*first, "gate_proj", *last))))
    return {
        "first_adapters": float(len(read)),
        "first_adapted": sum(read),
        "last_adapters": float(len(returned)),
        "last_adapted": sum(returned),
        "adapter_dropout": float(settings.get("adapter_dropout", 0.0)),
    }


def _adapted_widths(shape: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Widths beside the model's of modules that read it, and of those that return it."""
    queries, keys = (shape[n] * shape["head_dim"] for n in ("n_heads", "n_kv_heads"))
    mlp = shape["d_ff"] if shape["n_experts"] <= 1.0 else 0.0
    up = 1.0 + shape["gated_mlp"]
    first = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "linear_qkv": queries + 2.0 * keys}
    first |= {"up_proj": mlp, "linear_fc1": up * mlp} | ({"gate_proj": mlp} if up > 1.0 else {})
    last = {"o_proj": queries, "linear_proj": queries, "down_proj": mlp, "linear_fc2": mlp}
    return first, last


def _adapters_in_words(names: Sequence[str], known: Sequence[str]) -> str:
    """Which adapters there are, and which of them are not counted."""
    text = f"adapters on {', '.join(names) or 'nothing'}"
    if unknown := [name for name in names if name not in known]:
        every = ", ".join(dict.fromkeys(known))
        text += f"; not counted: {', '.join(unknown)} (known are {every})"
    return text


def _infer_gated(model: Model, given: np.ndarray, said: Sequence[list]) -> Model:
    """The other `gated_mlp` where the published parameter count contradicts the one at hand and
    agrees with that one, tied or not: tables that read two matrices from `d_ff / d_model` make
    models a quarter smaller."""
    gated = np.asarray(model.gated_mlp)

    def gap(of: np.ndarray) -> np.ndarray:
        counts = [
            parameters(model.replace(gated_mlp=of, tied_embeddings=np.full_like(given, tied)))
            for tied in (0.0, 1.0)
        ]
        off = np.abs(np.asarray(counts, dtype=np.float64) / given - 1.0)
        return np.min(off, axis=0)

    wrong = (gap(gated) > FAR) & (gap(1.0 - gated) < NEAR)
    for i in map(int, np.flatnonzero(wrong)):
        text = f"n_params says so, with {gated[i]:g} they would be over {FAR:.0%} off"
        said[i].append(Assumption(f"gated_mlp {1.0 - gated[i]:g}: {text}"))
    return model.replace(gated_mlp=np.where(wrong, 1.0 - gated, gated))


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
    found = _infer_tied(_infer_gated(model, given, said), given, said)
    kept = {
        name: np.where(own, np.asarray(getattr(model, name)), np.asarray(getattr(found, name)))
        for name in ("gated_mlp", "tied_embeddings")
    }
    found = found.replace(**kept)
    for i, count in enumerate(np.asarray(parameters(found), dtype=np.float64)):
        if abs(count / given[i] - 1.0) > FAR:
            text = f"is not the {count:.4g} of the shape's columns, which are used: check both"
            said[i].append(Assumption(f"n_params {given[i]:.4g} {text}"))
    return found
