"""Shapes from a Hugging Face `config.json`: which key of which model type holds what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from dmodel.catalog.loader import nearest
from dmodel.types import InputError

Config = dict[str, Any]


class Format(NamedTuple):
    """Where a family of model types keeps its shape.

    Attributes:
      keys: attribute of a shape → key of the file, all required.
      gated: 1 = three MLP matrices. tied: what an absent `tie_word_embeddings` means.
      optional: as keys, but may be absent or null: then d_ff = 4 h, n_kv_heads = n_heads, head_dim
        = h / heads.
      experts: attribute → key, required, for mixtures of experts.
    """

    keys: dict[str, str]
    gated: int
    tied: int
    optional: dict[str, str]
    experts: dict[str, str] = {}


_BASE = {
    "n_layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "n_heads": "num_attention_heads",
    "vocab": "vocab_size",
    "seq_len": "max_position_embeddings",
}
_HEADS = {"n_kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
_GPT2_KEYS = {
    "n_layers": "n_layer",
    "d_model": "n_embd",
    "n_heads": "n_head",
    "vocab": "vocab_size",
    "seq_len": "n_positions",
}
_DENSE = Format(_BASE, 1, 0, _HEADS)
_TIED = Format(_BASE, 1, 1, _HEADS)
_LOCAL_EXPERTS = {"n_experts": "num_local_experts", "top_k": "num_experts_per_tok"}
_SHARED = {
    "n_experts": "n_routed_experts",
    "top_k": "num_experts_per_tok",
    "n_shared_experts": "n_shared_experts",
}
_LEADING = {"n_dense_layers": "first_k_dense_replace", "d_ff_dense": "intermediate_size"}
_DEEPSEEK = Format(
    {
        **_BASE,
        "d_ff": "moe_intermediate_size",
        "head_dim": "v_head_dim",
        "kv_rank": "kv_lora_rank",
        "rope_dim": "qk_rope_head_dim",
        "keys": "qk_nope_head_dim",
    },
    1,
    0,
    {"q_rank": "q_lora_rank", **_LEADING},
    _SHARED,
)
_WINDOW = {**_HEADS, "window": "sliding_window"}
_WINDOWED = Format(_BASE, 1, 0, _WINDOW)
_TIED_WINDOWED = Format(_BASE, 1, 1, _WINDOW)
_NEMOTRON_H = Format(
    {
        **_BASE,
        "mamba_heads": "mamba_num_heads",
        "mamba_width": "mamba_head_dim",
        "mamba_groups": "n_groups",
        "mamba_state": "ssm_state_size",
    },
    0,
    0,
    {
        "n_kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "n_experts": "n_routed_experts",
        "top_k": "num_experts_per_tok",
        "expert_ff": "moe_intermediate_size",
        "shared_ff": "moe_shared_expert_intermediate_size",
        "expert_rank": "moe_latent_size",
    },
)

FORMATS: dict[str, Format] = {
    "llama": _DENSE,
    "mistral": _WINDOWED,
    "qwen2": _WINDOWED,
    "qwen3": _WINDOWED,
    "gemma": _TIED,
    "gemma2": _TIED_WINDOWED,
    "gemma3_text": _TIED_WINDOWED,
    "mixtral": Format(_BASE, 1, 0, _WINDOW, _LOCAL_EXPERTS),
    "gpt_oss": Format(_BASE, 1, 0, _WINDOW, _LOCAL_EXPERTS),
    "qwen3_moe": Format(
        {**_BASE, "d_ff": "moe_intermediate_size"},
        1,
        0,
        _WINDOW,
        {"n_experts": "num_experts", "top_k": "num_experts_per_tok"},
    ),
    "glm4_moe": Format(
        {**_BASE, "d_ff": "moe_intermediate_size"}, 1, 0, {**_HEADS, **_LEADING}, _SHARED
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "nemotron_h": _NEMOTRON_H,
    "gpt2": Format(_GPT2_KEYS, 0, 1, {"d_ff": "n_inner"}),
    "gpt_neox": Format(_BASE, 0, 0, {}),
    "opt": Format({**_BASE, "d_ff": "ffn_dim"}, 0, 1, {}),
}
"""Model types that can be read."""

BIASED_EXPERTS = ("gpt_oss",)
"""Model types whose experts' products have biases."""

HYBRIDS = ("nemotron_h",)
"""Model types whose layers are of several kinds."""

MAY_BE_ZERO = ("n_shared_experts", "n_dense_layers")
"""Counts that may be 0."""

LARGEST = 10**9
"""No number of a shape is larger."""


def _load(path: Path) -> Config:
    """The file's object, or an error that says why it is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such file; expected a catalog name or the path of a Hugging Face "
            "config.json"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: not JSON ({error}); expected a Hugging Face config.json"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if not isinstance(found, dict):
        raise InputError(
            f"{path}: expected a JSON object with the keys of a Hugging Face config.json, got "
            "a "
            f"{type(found).__name__}"
        )
    return found


def _text_part(config: Config) -> Config:
    """The language model of a multimodal configuration (Gemma 3), else the configuration itself."""
    inner = config.get("text_config")
    return (
        inner
        if str(config.get("model_type")) not in FORMATS and isinstance(inner, dict)
        else config
    )


def _format(config: Config, path: Path) -> Format:
    kind = config.get("model_type")
    if kind is None:
        raise InputError(
            f"{path}: the key 'model_type' is missing; expected one of: {', '.join(FORMATS)}"
        )
    if not isinstance(kind, str) or kind not in FORMATS:
        close = nearest(str(kind), list(FORMATS))
        hint = f" (nearest: {', '.join(close)})" if close else ""
        raise InputError(
            f"{path}: model_type {kind!r} is not supported{hint}; supported: {', '.join(FORMATS)}"
        )
    return FORMATS[kind]


def _count(config: Config, key: str, path: Path, least: int = 1) -> float:
    """A whole number of the file, ≥ `least`."""
    value = config[key]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= LARGEST or value != int(value):
        raise InputError(
            f"{path}: {key!r}: expected a whole number from {least} to {LARGEST:,}, got "
            f"{value!r:.40}"
        )
    return float(value)


def _derived(shape: dict[str, float], path: Path) -> dict[str, float]:
    """Fill what the file may leave out, and check that heads divide."""
    h, a = shape["d_model"], shape["n_heads"]
    shape.setdefault("d_ff", 4 * h)
    keys = shape.pop("keys", None)
    if keys is not None:
        shape["qk_extra"] = keys + shape["rope_dim"] - shape["head_dim"]
    shape.setdefault("n_kv_heads", a)
    if "head_dim" not in shape and h % a:
        raise InputError(
            f"{path}: the width {h:.0f} is not a multiple of the {a:.0f} heads; state 'head_dim'"
        )
    shape.setdefault("head_dim", h / a)
    if a % shape["n_kv_heads"]:
        raise InputError(
            f"{path}: the {a:.0f} heads are not a multiple of the {shape['n_kv_heads']:.0f} KV "
            "heads"
        )
    if shape.get("top_k", 1) > shape.get("n_experts", 1):
        raise InputError(
            f"{path}: top-k {shape['top_k']:.0f} exceeds the {shape['n_experts']:.0f} experts"
        )
    return shape


PATTERN = {"M": "mamba_share", "*": "attention_share", "-": "mlp_share", "E": "mlp_share"}
"""Letters of `hybrid_override_pattern` and what a layer of each holds."""


def _pattern(config: Config, layers: float, path: Path) -> str:
    """A letter for each layer of a hybrid."""
    pattern = config.get("hybrid_override_pattern")
    if not _is_pattern(pattern, layers):
        letters = ", ".join(repr(letter) for letter in PATTERN)
        raise InputError(
            f"{path}: 'hybrid_override_pattern': expected a letter of {letters} for each of the "
            f"{layers:.0f} layers, "
            f"got {pattern!r:.80}"
        )
    return str(pattern)


def _is_pattern(pattern: Any, layers: float) -> bool:
    """Whether something is one known letter for each layer."""
    return isinstance(pattern, str) and set(pattern) <= set(PATTERN) and len(pattern) == layers


def _share(pattern: str, name: str) -> float:
    """Share of the layers whose letter holds something."""
    of = [letter for letter, held in PATTERN.items() if held == name]
    return sum(pattern.count(letter) for letter in of) / len(pattern)


def _hybrid(shape: dict[str, float], config: Config, path: Path) -> dict[str, float]:
    """Shares of the kinds of layers of a hybrid, and its mixers and experts."""
    pattern = _pattern(config, shape["n_layers"], path)
    shape |= {name: _share(pattern, name) for name in PATTERN.values()}
    shape["mamba_inner"] = shape["mamba_heads"] * shape.pop("mamba_width")
    experts, shared = shape.pop("expert_ff", None), shape.pop("shared_ff", 0.0)
    if "E" not in pattern:
        return _without(shape, "n_experts", "top_k", "expert_rank")
    if experts is None or "n_experts" not in shape:
        raise InputError(
            f"{path}: a hybrid with experts needs the keys n_routed_experts, "
            "num_experts_per_tok "
            "and moe_intermediate_size"
        )
    found = shape | {"d_ff": experts, "n_shared_experts": shared / experts}
    if "-" not in pattern:
        return found
    # MLP layers between those with experts are dense ones, as wide as `intermediate_size`
    dense = shape["n_layers"] * pattern.count("-") / (pattern.count("-") + pattern.count("E"))
    return found | {"d_ff_dense": shape["d_ff"], "n_dense_layers": dense}


def _without(shape: dict[str, float], *names: str) -> dict[str, float]:
    """A shape without some of its numbers."""
    return {name: value for name, value in shape.items() if name not in names}


EVERY = {"gemma2": 2, "gpt_oss": 2, "gemma3_text": 6}
"""Model types of which one layer in so many sees all tokens, where the file does not name the kinds
of its layers (`layer_types` as transformers' `Gemma2Config`, `GptOssConfig` and `Gemma3TextConfig`
fill it in)."""

WRITTEN_EVERY = ("gemma3_text",)
"""Model types whose files may name that number, as `sliding_window_pattern`."""

SWITCHED = ("qwen2", "qwen3", "qwen3_moe")
"""Model types whose window is off unless `use_sliding_window` is true; then layers from
`max_window_layers` on have it (transformers' `Qwen2Config`, `Qwen3Config`, `Qwen3MoeConfig`)."""


def _windowed(config: Config, layers: float, path: Path) -> float:
    """Share of the layers that see a window: those that `layer_types` names so, else by what the
    model type does (all of Mistral's)."""
    kind, kinds = str(config["model_type"]), config.get("layer_types")
    if _switched_off(config, kind):
        return 0.0
    if isinstance(kinds, list) and kinds:
        return kinds.count("sliding_attention") / len(kinds)
    if kind in SWITCHED:
        before = _count_or(config, "max_window_layers", path, 0, 0.0)
        return max(layers - before, 0.0) / layers
    every = _every(config, kind, path)
    return (layers - layers // every) / layers if every else 1.0


def _switched_off(config: Config, kind: str) -> bool:
    """Whether the window of a model type waits for a switch that is not set."""
    return kind in SWITCHED and config.get("use_sliding_window") is not True


def _count_or(config: Config, key: str, path: Path, least: int, otherwise: float) -> float:
    """A whole number of the file, another one where it has none."""
    return otherwise if config.get(key) is None else _count(config, key, path, least)


def _every(config: Config, kind: str, path: Path) -> int:
    """One layer in how many sees all tokens; 0 = none does."""
    known = EVERY.get(kind, 0)
    if kind not in WRITTEN_EVERY:
        return known
    return int(_count_or(config, "sliding_window_pattern", path, 1, known))


def read(path: Path, seq_len: float | None = None) -> dict[str, float]:
    """Read the shape of a model from its `config.json`.

    Heads that predict further tokens are left out: whether a run trains them is the run's choice
    (`n_mtp`).

    Args:
      seq_len: sequence length [token] of the caller's own, where the file need not name one.

    Returns:
      Attributes of `Model` that the file fixes; without `seq_len`, that too: the longest
      sequence the file allows.

    Raises:
      InputError: no such file, not JSON, unsupported or missing model type, missing keys (all
        named), or a value that is no count.
    """
    config = _text_part(_load(path))
    fmt = _format(config, path)
    shape = _written(config, fmt, path, seq_len)
    tied = _tied(config, fmt, path)
    if config["model_type"] in HYBRIDS:
        shape = _hybrid(shape, config, path)
    if "window" in shape:
        windowed = _windowed(config, shape["n_layers"], path)
        shape = shape | {"windowed": windowed} if windowed else _without(shape, "window")
    if config["model_type"] in BIASED_EXPERTS:
        shape["expert_biases"] = 1.0
    return _derived(shape, path) | {"gated_mlp": float(fmt.gated), "tied_embeddings": tied}


def _written(config: Config, fmt: Format, path: Path, seq_len: float | None) -> dict[str, float]:
    """Numbers that stand in the file, all that are required among them."""
    required = fmt.keys | fmt.experts
    if seq_len is not None:
        required.pop("seq_len")
    _refuse_missing(config, fmt, list(required.values()), path)
    present = {name: key for name, key in fmt.optional.items() if config.get(key) is not None}
    return {
        name: _count(config, key, path, int(name not in MAY_BE_ZERO))
        for name, key in (required | present).items()
    }


def _refuse_missing(config: Config, fmt: Format, required: list[str], path: Path) -> None:
    """Refuse a file without one of its keys."""
    missing = [key for key in required if config.get(key) is None]
    if not missing:
        return
    longest = fmt.keys["seq_len"]
    hint = f"; {longest} is not needed with a sequence length of your own"
    raise InputError(
        f"{path}: model_type {config['model_type']!r} needs the missing keys: "
        f"{', '.join(missing)}{hint if longest in missing else ''}"
    )


def _tied(config: Config, fmt: Format, path: Path) -> float:
    """Whether the file says that embeddings are tied, else what its family means without."""
    tied = config.get("tie_word_embeddings")
    if tied is None:
        return float(fmt.tied)
    if not isinstance(tied, bool):
        raise InputError(f"{path}: 'tie_word_embeddings': expected true or false, got {tied!r:.40}")
    return float(tied)
