"""The sizes of a mean layer, as models were described before they were blocks, of a model's blocks:
names by which the oracle holds what was frozen to what there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dmodel.blocks import ALL, Attention, Dense, Experts, Latent, Mamba2
from dmodel.records import NONE, Model

Holds = Callable[[Any], Any]
"""Whether a layer's part is meant, by case."""


def _shares(model: Model) -> list[tuple[np.ndarray, Any, Any]]:
    """(share of the layers, mixer, feed) of every kind of layer."""
    return [
        (
            np.asarray(share, np.float64),
            None if i == NONE else model.mixers[i],
            None if j == NONE else model.feeds[j],
        )
        for (i, j), share in zip(model.pairs, model.shares, strict=True)
    ]


def _share(model: Model, side: int, holds: Holds) -> np.ndarray:
    """Share of the layers whose mixer (1), or feed (2), is meant [1]."""
    found = (kind[0] * holds(kind[side]) for kind in _shares(model) if kind[side] is not None)
    return sum(found, start=np.zeros(np.shape(model.n_layers)))


def _mean(model: Model, side: int, name: str, holds: Holds, otherwise: Any) -> np.ndarray:
    """Mean of a size over the layers that are meant."""
    kinds = [kind for kind in _shares(model) if hasattr(kind[side], name)]
    weights = [kind[0] * holds(kind[side]) for kind in kinds]
    whole = sum(weights, start=np.zeros(np.shape(model.n_layers)))
    total = sum(
        (w * getattr(kind[side], name) for w, kind in zip(weights, kinds, strict=True)),
        start=np.zeros_like(whole),
    )
    there = np.where(whole > 0.0, whole, 1.0)
    return np.where(whole > 0.0, total / there, otherwise)


def _is(*kinds: type) -> Holds:
    return lambda part: float(isinstance(part, kinds))


def _has_window(part: Any) -> Any:
    return np.asarray(getattr(part, "window", ALL)) < ALL


def _mixer(name: str, otherwise: float = 0.0) -> Callable[[Model], np.ndarray]:
    return lambda m: _mean(m, 1, name, _is(Attention, Latent, Mamba2), otherwise)


def _feed(name: str, otherwise: float = 0.0) -> Callable[[Model], np.ndarray]:
    return lambda m: _mean(m, 2, name, _is(Experts), otherwise)


def _kv_heads(m: Model) -> np.ndarray:
    """Heads of keys and values; of latents as many as of queries."""
    latent = _mean(m, 1, "n_heads", _is(Latent), 0.0)
    return _mean(m, 1, "n_kv_heads", _is(Attention), latent)


def _width(m: Model) -> np.ndarray:
    """Of an expert, else of an MLP."""
    return _feed("d_ff", _mean(m, 2, "d_ff", _is(Dense), 1.0))(m)


def _mixture(m: Model) -> np.ndarray:
    return _share(m, 2, _is(Experts)) > 0.0


def _windowed(m: Model) -> np.ndarray:
    """Share of the attention layers that have a window."""
    every = _share(m, 1, _is(Attention, Latent))
    return _share(m, 1, _has_window) / np.where(every > 0.0, every, 1.0)


SIZES: dict[str, Callable[[Model], np.ndarray]] = {
    "d_ff": _width,
    "gated_mlp": lambda m: _mean(m, 2, "gated_mlp", _is(Dense, Experts), 0.0),
    "n_heads": _mixer("n_heads"),
    "n_kv_heads": _kv_heads,
    "head_dim": _mixer("head_dim"),
    "n_experts": _feed("n_experts", 1.0),
    "top_k": _feed("top_k", 1.0),
    "imbalance": _feed("imbalance", 1.0),
    "expert_biases": _feed("expert_biases"),
    "expert_rank": _feed("expert_rank"),
    "n_shared_experts": lambda m: _feed("shared_ff")(m) / _width(m),
    "n_dense_layers": lambda m: m.n_layers * _share(m, 2, _is(Dense)) * _mixture(m),
    "d_ff_dense": lambda m: _mean(m, 2, "d_ff", _is(Dense), 0.0) * _mixture(m),
    "kv_rank": _mixer("kv_rank"),
    "q_rank": _mixer("q_rank"),
    "rope_dim": _mixer("rope_dim"),
    "qk_extra": _mixer("qk_extra"),
    "window": lambda m: _mean(m, 1, "window", _has_window, 1.0),
    "windowed": _windowed,
    "attention_share": lambda m: _share(m, 1, _is(Attention, Latent)),
    "mlp_share": lambda m: _share(m, 2, _is(Dense, Experts)),
    "mamba_share": lambda m: _share(m, 1, _is(Mamba2)),
    "mamba_inner": _mixer("mamba_inner"),
    "mamba_heads": _mixer("mamba_heads"),
    "mamba_groups": _mixer("mamba_groups"),
    "mamba_state": _mixer("mamba_state"),
}
"""Sizes that no record has by these names."""
