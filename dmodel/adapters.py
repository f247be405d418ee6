"""Low-rank adapters of a question's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dmodel.question import Assumption


def adapters(
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
