"""Sizes of a model under the words that launchers of plain decoders share."""

from __future__ import annotations

from typing import Any

from dmodel.blocks import ALL, Attention, Dense, Experts, Latent
from dmodel.records import NONE, OF_MODEL, Model, having

PLAIN = (Attention, Latent)
"""Mixers that launchers of decoders build."""

UNUSUAL = {"output_gate": 0.0, "own_keys": 1.0, "own_values": 1.0, "chunk": ALL}
"""Sizes of mixers that such launchers have no words for, and what they have."""

NAMED = {
    **dict.fromkeys(("n_heads", "head_dim"), 1.0),
    **dict.fromkeys(("n_experts", "top_k", "imbalance"), 1.0),
    **dict.fromkeys(("gated_mlp", "expert_biases", "expert_rank"), 0.0),
    **dict.fromkeys(("kv_rank", "q_rank", "rope_dim", "qk_extra"), 0.0),
}
"""Sizes of parts by name, and their values where no part has them."""


COUNTED = ("small", "learned_positions")
"""Sizes that launchers are not told as such."""


def sizes(model: Model) -> dict[str, Any]:
    """Sizes by name.

    Beside those of parts: `window` of the layers that have one, `windowed` their share;
    `n_dense_layers` of a mixture that have no experts, `d_ff_dense` their width; `n_shared_experts`
    experts' widths that every token passes; `hybrid` 1 where layers are of other kinds than
    launchers of decoders build.
    """
    found = {name: getattr(model, name) for name in OF_MODEL if name not in COUNTED}
    found |= {name: _first(model, name, otherwise) for name, otherwise in NAMED.items()}
    found |= {"n_kv_heads": _first(model, "n_kv_heads", found["n_heads"]), "d_ff": _width(model)}
    found |= _windows(model) | _leading(model)
    shared = _first(model, "shared_ff", 0.0)
    found["n_shared_experts"] = float(shared) / float(found["d_ff"])
    return found | {"hybrid": float(_is_hybrid(model))}


def _first(model: Model, name: str, otherwise: Any) -> Any:
    """A size of the first part that has it; where others differ, the model is `hybrid`."""
    there = having(model, name)
    return getattr(there[0], name) if there else otherwise


def _width(model: Model) -> Any:
    """Width of a routed expert, else of the MLP."""
    routed = having(model, "n_experts")
    return routed[0].d_ff if routed else _first(model, "d_ff", 1.0)


def _windows(model: Model) -> dict[str, float]:
    """The window that layers have, and the share of those that have it."""
    own = [float(x.window) for x in model.mixers if isinstance(x, Attention) and x.window < ALL]
    shares = (
        float(block.layers / model.n_layers)
        for block in model.blocks
        if float(getattr(block.mixer, "window", ALL)) < ALL
    )
    return {"window": own[0] if own else 1.0, "windowed": sum(shares)}


def _leading(model: Model) -> dict[str, float]:
    """Dense layers of a mixture, and their width."""
    wide = [float(feed.d_ff) for feed in model.feeds if isinstance(feed, Dense)]
    mixture = any(isinstance(feed, Experts) for feed in model.feeds)
    dense = (float(block.layers) for block in model.blocks if isinstance(block.feed, Dense))
    count = round(sum(dense), 9) if mixture else 0.0
    return {"n_dense_layers": count, "d_ff_dense": wide[0] if count else 0.0}


def _is_hybrid(model: Model) -> bool:
    """Whether layers are of other kinds than launchers of plain decoders build."""
    lacking = any(NONE in pair for pair in model.pairs)
    odd = any(type(mixer) not in PLAIN for mixer in model.mixers)
    odd |= any(not isinstance(feed, Dense | Experts) for feed in model.feeds)
    unusual = any(map(_is_unusual, model.mixers))
    heads = {_heads(mixer) for mixer in model.mixers if type(mixer) in PLAIN}
    several = len({type(feed) for feed in model.feeds}) < len(model.feeds)
    return lacking or odd or unusual or len(heads) > 1 or several


def _is_unusual(mixer: Any) -> bool:
    """Whether a mixer has sizes that launchers have no words for."""
    return any(float(getattr(mixer, name, usual)) != usual for name, usual in UNUSUAL.items())


def _heads(mixer: Any) -> tuple[float, ...]:
    """Heads of a mixer, and their width."""
    names = ("n_heads", "n_kv_heads", "head_dim")
    return tuple(float(getattr(mixer, name, 0.0)) for name in names)
