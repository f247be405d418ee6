"""The shape of a row's transformer: its columns, what the catalog knows of that model, and what the
count of parameters decides."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

import numpy as np

from calibration.traces.adapters import Adapters, adapters
from calibration.traces.experts import busiest
from calibration.traces.layout import layout
from calibration.traces.recipes import composed, further_tokens, packed_window
from calibration.traces.schema import BY_NAME, parse_number
from calibration.traces.table import Row
from dmodel.catalog.loader import known_name
from dmodel.counts import parameters
from dmodel.records import Model

UNWRITTEN = (
    "n_shared_experts",
    "expert_biases",
    "expert_rank",
    "n_dense_layers",
    "d_ff_dense",
    "kv_rank",
    "q_rank",
    "rope_dim",
    "qk_extra",
    "window",
    "windowed",
    "attention_share",
    "mlp_share",
    "mamba_share",
    "mamba_inner",
    "mamba_heads",
    "mamba_groups",
    "mamba_state",
)
"""Attributes of a transformer that no column holds."""

WRITTEN = ("n_layers", "d_model", "d_ff", "n_heads", "n_experts")
"""Attributes by which a row's model is known for the one of that name in the catalog."""

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
"""Columns of a shape that the catalog can fill, as a table that names its models need not repeat
them."""

SIZES = ("n_layers", "d_model", "d_ff", "n_heads", "vocab")
"""Those without which a row has no shape."""


def from_catalog(cells: Mapping[str, str], needed: Collection[str] = SIZES) -> dict[str, str]:
    """Blank columns of a row's shape as the catalog has them for the model that the row names, as
    text; none where no needed one is blank, the catalog has no such model, or a cell says another:
    of sizes and heads (a vocabulary may be padded), experts, or the count of parameters. Dense
    models leave the columns of experts blank.
    """
    blank = [name for name in FROM_MODEL if not cells.get(name, "").strip()]
    known = _catalog_shape(cells.get("model", "").strip()) if set(blank) & set(needed) else {}
    written = [name for name in (*FROM_MODEL, "n_params") if cells.get(name, "").strip()]
    if not known or any(_differs(name, cells[name], known[name]) for name in written):
        return {}
    dense = known["n_experts"] <= 1.0
    return {
        name: f"{known[name]:.12g}"
        for name in blank
        if not (dense and name in ("n_experts", "top_k"))
    }


def completed(row: Row) -> Row:
    """The row with `from_catalog` of its cells."""
    return row._replace(filled=from_catalog(row.cells))


def _differs(name: str, cell: str, value: float) -> bool:
    """Whether a cell says something else than the catalog."""
    try:
        given = parse_number(BY_NAME[name], cell)
    except ValueError:
        return True
    if name == "n_params":
        return bool(given) and abs(given / value - 1.0) > FAR
    return (
        name != "vocab" and (max(given, 1.0) if name in ("n_experts", "top_k") else given) != value
    )


@lru_cache(maxsize=256)
def _catalog_shape(name: str) -> dict[str, float]:
    """Numbers of the catalog's model of a name, its parameters among them; none where it has no
    such model. Only names, or a hub's spelling: a table must not make this read files."""
    from dmodel import catalog

    known = known_name("models", name.rpartition("/")[2])
    if known is None:
        return {}
    found = catalog.transformer(known)
    shape = {field: float(getattr(found, field)) for field in (*UNWRITTEN, *FROM_MODEL)}
    return shape | {"n_params": float(parameters(found))}


def _named(row: Row, written: dict[str, float], assumed: list[str]) -> dict[str, float]:
    """What the catalog knows of the row's model besides its columns, when those agree with it;
    nothing otherwise."""
    known = _catalog_shape(row.text("model")) if row.text("model") else {}
    if not known or any(known[name] != written[name] for name in WRITTEN):
        return {}
    plain = Model.__dataclass_fields__
    found = {name: known[name] for name in UNWRITTEN if known[name] != plain[name].default}
    if found:
        assumed.append(
            f"of {row.text('model')} in the catalog: "
            + ", ".join(f"{name} {value:g}" for name, value in found.items())
        )
    if known["kv_rank"]:
        # columns hold the heads of latent attention in one way or another
        found |= {"n_kv_heads": known["n_kv_heads"], "head_dim": known["head_dim"]}
    elif not row.text("head_dim"):
        found["head_dim"] = known["head_dim"]
    return found


def written(row: Row, assumed: list[str]) -> Model:
    """Shape of the transformer as its columns have it. Blank n_kv_heads: n_heads; head_dim: d_model
    / n_heads; gated_mlp: plain when
    d_ff = 4 d_model. What no column holds is the catalog's for a model that it knows by name and
    shape, and so is a blank head_dim: heads of gpt-oss and Qwen3 are wider than d_model / n_heads.
    """
    layers, width, ff, heads, vocab, seq = (
        row.known(n) for n in ("n_layers", "d_model", "d_ff", "n_heads", "vocab", "seq_len")
    )
    if row.filled:
        assumed.append(
            f"shape blank: {', '.join(row.filled)} as of {row.text('model')} in the catalog"
        )
    parts = composed(row.stack, row.flags, layout(row).tp)
    vocab = parts.vocab if parts else vocab
    experts = max(row.number("n_experts") or 1.0, 1.0)
    if not row.text("n_kv_heads"):
        assumed.append("n_kv_heads blank: n_heads")
    if not row.text("n_experts"):
        assumed.append("n_experts blank: no experts")
    gated = row.number("gated_mlp")
    if gated is None:
        gated = float(ff != 4.0 * width)
        assumed.append(f"gated_mlp blank: {gated:g}, from d_ff / d_model = {ff / width:.3g}")
    named = _named(
        row,
        {"n_layers": layers, "d_model": width, "d_ff": ff, "n_heads": heads, "n_experts": experts},
        assumed,
    )
    visited = _visited(row, experts, assumed)
    load, uneven = busiest(row.stack, experts, visited)
    if experts > 1.0:
        assumed.append(
            (uneven or "experts: balanced load")
            + ("" if named else ", no shared expert, all layers alike")
        )
    head_dim = named.pop("head_dim", row.number("head_dim") or width / heads)
    if not row.text("head_dim"):
        assumed.append(
            f"head_dim blank: {head_dim:g}, "
            + ("d_model / n_heads" if head_dim == width / heads else "the catalog's")
        )
    named["n_mtp"], further = further_tokens(row.stack, row.text("model"), row.text("note"))
    window, packed = packed_window(row.stack, row.text("model"), row.text("note"), row.flags)
    if 0.0 < window < seq and row.text("attention") != "none" and not named.get("windowed"):
        named |= {"window": window, "windowed": 1.0}
        assumed.append(packed)
    assumed.extend([further] if further else [])
    columns = {
        "n_kv_heads": row.number("n_kv_heads") or heads,
        "head_dim": head_dim,
        "n_experts": experts,
        "top_k": visited,
        "imbalance": load,
        "trainable": float("lora" not in row.flags),
    }
    shape = {
        "n_layers": layers,
        "d_model": width,
        "d_ff": ff,
        "gated_mlp": gated,
        "n_heads": heads,
        "vocab": vocab,
        "seq_len": seq,
    }
    return Model(
        **{**_PLAIN, **shape, **columns, **named, **_adapted(row, shape | columns, assumed)}
    )


def _adapted(row: Row, shape: dict[str, float], assumed: list[str]) -> dict[str, float]:
    """Adapters of a row that trains nothing else; none in MLPs of a mixture."""
    if shape["trainable"]:
        return {}
    heads, mlp = shape["head_dim"], shape["d_ff"] if shape["n_experts"] <= 1.0 else 0.0
    widths = {
        "queries": shape["n_heads"] * heads,
        "keys": shape["n_kv_heads"] * heads,
        "mlp": mlp,
        "gated": shape["gated_mlp"],
    }
    *numbers, said = adapters(row.stack, row.text("model"), row.text("note"), widths)
    assumed.append(said)
    return dict(zip(Adapters._fields, numbers, strict=False))


def _visited(row: Row, experts: float, assumed: list[str]) -> float:
    """Experts that each token visits. Blank or 0 in a mixture: the catalog's for a model of that
    name with as many experts, else 1."""
    given = row.number("top_k")
    if given or experts <= 1.0:
        return given or 1.0
    known = _catalog_shape(row.text("model")) if row.text("model") else {}
    found = known["top_k"] if known.get("n_experts") == experts else 1.0
    whose = (
        f"of {row.text('model')} in the catalog"
        if known.get("n_experts") == experts
        else "each token visits one expert"
    )
    assumed.append(f"top_k {'blank' if given is None else '0'}: {found:g}, {whose}")
    return found


_PLAIN = {
    name: field.default
    for name, field in Model.__dataclass_fields__.items()
    if isinstance(field.default, float)
}


FAR, NEAR = 0.1, 0.03
"""Relative distance of the count of parameters from the published one that says no to a shape, and
one that says yes."""


def _infer_gated(model: Model, pairs: list[tuple[Row, list[str]]]) -> Model:
    """The other `gated_mlp` where the published parameter count contradicts the row's and agrees
    with that one, tied or not.

    MaxText's own models have three matrices in the MLP, and tables that read two from `d_ff /
    d_model` make them a quarter smaller.
    """
    given = np.array([row.number("n_params") or np.nan for row, _ in pairs])
    gated = np.asarray(model.gated_mlp)

    def gap(of: np.ndarray) -> np.ndarray:
        counts = [
            parameters(model.replace(gated_mlp=of, tied_embeddings=np.full_like(given, tied)))
            for tied in (0.0, 1.0)
        ]
        return np.min(np.abs(np.asarray(counts, dtype=np.float64) / given - 1.0), axis=0)

    wrong = (gap(gated) > FAR) & (gap(1.0 - gated) < NEAR)
    for is_wrong, g, (_, assumed) in zip(wrong, gated, pairs, strict=True):
        if is_wrong:
            assumed.append(
                f"gated_mlp {1.0 - g:g}: n_params says so, with {g:g} they would be over "
                f"{FAR:.0%} off"
            )
    return model.replace(gated_mlp=np.where(wrong, 1.0 - gated, gated))


def _infer_tied(model: Model, pairs: list[tuple[Row, list[str]]]) -> Model:
    """Tied embeddings where the published parameter count is clearly (three times) nearer to the
    count with them; else untied.

    Counts are rounded as published, so a near tie between the two says nothing.
    """
    given = np.array([row.number("n_params") or 0.0 for row, _ in pairs])
    untied = np.asarray(
        parameters(model.replace(tied_embeddings=np.zeros_like(given))), dtype=np.float64
    )
    gap = np.abs(given - untied), np.abs(given - (untied - np.asarray(model.vocab * model.d_model)))
    tied = (given > 0.0) & (3.0 * gap[1] < gap[0])
    for is_tied, (_, assumed) in zip(tied, pairs, strict=True):
        assumed.append("embeddings tied: n_params says so" if is_tied else "embeddings not tied")
    return model.replace(tied_embeddings=tied.astype(np.float64))


def settled(model: Model, pairs: list[tuple[Row, list[str]]]) -> Model:
    """Shapes `[row]` with what the published counts of parameters decide: a third matrix of the
    MLP, tied embeddings. A count that still contradicts the shape is said."""
    model = _infer_tied(_infer_gated(model, pairs), pairs)
    for count, (row, assumed) in zip(
        np.asarray(parameters(model), dtype=np.float64), pairs, strict=True
    ):
        given = row.number("n_params")
        if given and abs(count / given - 1.0) > FAR:
            assumed.append(
                f"n_params {given:.4g} is not the {count:.4g} of the shape's columns, which "
                "are "
                "used: check both"
            )
    return model
