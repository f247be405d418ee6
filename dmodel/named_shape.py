"""What the catalog knows of the model that a question names: columns of its shape, and those that
the question leaves open filled with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache

from dmodel.catalog.loader import known_name, table, unknown
from dmodel.catalog.model_names import cut, identify
from dmodel.catalog.models import shortened
from dmodel.catalog.shapes import model_of
from dmodel.counted import FAR
from dmodel.counts import parameters
from dmodel.errors import InputError
from dmodel.question import Assumption, Question
from dmodel.records import OF_MODEL, Model, having

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

USUAL = 4.0
"""Width of an MLP over d_model where nothing is said (Vaswani et al. 2017, arXiv 1706.03762)."""


@lru_cache(maxsize=512)
def catalog_model(name: str) -> Model | None:
    """The catalog's model of a name; None where it has none.

    Only names, or a hub's spelling: a table must not make this read files.
    """
    known = known_name("models", identify(name)[0]) if name else None
    if known is None:
        return None
    return shortened(model_of(table("models")[known]["shape"]), cut(name)[1])


def catalog_shape(name: str) -> Mapping[str, float]:
    """Columns of the catalog's model of a name, its count of parameters among them; empty
    without."""
    return _columns_of_name(name)


@lru_cache(maxsize=512)
def _columns_of_name(name: str) -> Mapping[str, float]:
    found = catalog_model(name)
    if found is None:
        return {}
    return columns_of(found) | {"n_params": float(parameters(found))}


def name_of(model: Model, name: str) -> str:
    """A name, where the catalog's model of that name has the sizes of a model; else "".

    A vocabulary may be padded.

    >>> from dmodel import catalog
    >>> eight = catalog.transformer("llama-3-8b")
    >>> name_of(eight, "llama-3-8b"), name_of(eight, "llama-3-70b")
    ('llama-3-8b', '')
    """
    known, found = catalog_shape(name), columns_of(model)
    same = known and all(found[n] == known[n] for n in FROM_MODEL if n != "vocab")
    return name if same else ""


def columns_of(model: Model) -> dict[str, float]:
    """What the columns of a shape say of a model: of parts that differ, of the one that most layers
    have; of an MLP that of routed experts where there are any."""
    found = {n: _most(model, n) for n in _WITHOUT}
    if not having(model, "n_kv_heads"):
        found["n_kv_heads"] = found["n_heads"]
    return found | {"d_ff": _width(model)}


def _most(model: Model, name: str) -> float:
    """A size of the model, or of the part that most layers have of those that have it."""
    if name in OF_MODEL:
        return float(getattr(model, name))
    pairs = [
        (float(weight), float(getattr(part, name)))
        for part, weight in zip(model.parts, model.weights, strict=True)
        if name in part.__dataclass_fields__
    ]
    return max(pairs, key=lambda pair: pair[0])[1] if pairs else _WITHOUT[name]


def _width(model: Model) -> float:
    """Width of routed experts, else of most MLPs."""
    routed = [feed for feed in model.feeds if "n_experts" in feed.__dataclass_fields__]
    return float(routed[0].d_ff) if routed else _most(model, "d_ff")


_WITHOUT = {name: 1.0 for name in (*FROM_MODEL, "seq_len")} | {"gated_mlp": 0.0}
"""Columns of a shape, and their values for a model without the part that has them; heads are
`value`'s."""


def filled(question: Question, needed: Collection[str] = SIZES) -> dict[str, float]:
    """Open columns of a shape as the catalog has them for the question's model.

    None where no needed column is open, the catalog has no such model, or a column that is said
    contradicts it: of sizes and heads (a vocabulary may be padded), experts, or the count of
    parameters. Dense models leave the columns of experts open.
    """
    wanted = set(_open(question, FROM_MODEL)) & set(needed)
    known = catalog_shape(question.text("model")) if wanted else {}
    if not known or _contradicts(question, known, *FROM_MODEL, "n_params"):
        return {}
    names = FROM_MODEL if known["n_experts"] > 1.0 else OF_DENSE
    return {n: known[n] for n in _open(question, (*names, "seq_len"))}


def _open(question: Question, names: Sequence[str]) -> list[str]:
    """Those of some columns that the question leaves open."""
    return [name for name in names if name not in question.columns]


def _contradicts(question: Question, known: Mapping[str, float], *names: str) -> bool:
    """Whether one of some columns says something else than the catalog."""
    said = [n for n in names if n in question.columns]
    return any(_differs(n, float(question.columns[n]), known[n]) for n in said)


def completed(question: Question) -> tuple[Question, tuple[Assumption, ...]]:
    """The question with the open columns of its shape filled: by a shape of the caller's own, of
    which columns that are said count, else by the catalog (`filled`, `varied`), else an open width
    of the MLP by the model's."""
    if question.model is not None:
        known = columns_of(question.model)
        own = {n: known[n] for n in _open(question, (*FROM_MODEL, "seq_len"))}
        said = tuple(Assumption(text, about=("model",)) for text in question.notes)
        return question._replace(columns={**question.columns, **own}), said
    for fill, text in FILLED_BY.items():
        if found := fill(question):
            name = identify(question.text("model"))[0]
            said = Assumption(f"shape blank: {', '.join(found)} {text.format(name)}")
            own = catalog_model(name) if fill is varied else None
            return question._replace(columns={**question.columns, **found}, model=own), (said,)
    return question, ()


def varied(question: Question) -> dict[str, float]:
    """Open columns of a shape as the catalog has them for a model of which sizes are said
    otherwise: one with fewer layers, other heads, another width of the MLP.

    A model of another width has its width of the MLP over d_model and its size of heads. None where
    no column is open or the count of parameters is another model's.
    """
    known = catalog_shape(question.text("model"))
    if not known or not _open(question, SIZES) or _contradicts(question, known, "n_params"):
        return {}
    whole = _in_proportion(known, float(question.columns.get("d_model", known["d_model"])))
    names = FROM_MODEL if known["n_experts"] > 1.0 else OF_DENSE
    found = {n: whole[n] for n in _open(question, (*names, "seq_len"))}
    return found if all(map(float.is_integer, found.values())) else {}


def _in_proportion(known: Mapping[str, float], width: float) -> dict[str, float]:
    """Columns of a model with another d_model, and so its sizes that grow with it."""
    scale = width / known["d_model"]
    return {**known, **{n: scale * known[n] for n in ("d_ff", "n_heads", "n_kv_heads")}}


def _usual_width(question: Question) -> dict[str, float]:
    """The width of the MLP where it alone of the sizes is open."""
    alone = _open(question, SIZES) == ["d_ff"]
    return {"d_ff": USUAL * float(question.columns["d_model"])} if alone else {}


FILLED_BY: dict[Callable[[Question], dict[str, float]], str] = {
    filled: "as of {} in the catalog",
    varied: "as of {} in the catalog, scaled to the sizes given",
    _usual_width: f"{USUAL:g} d_model",
}
"""What fills the open columns of a shape, the first that can, and whose they then are."""


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
