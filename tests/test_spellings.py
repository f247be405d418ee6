"""However a model, a chip or a stack is spelled, it is one thing with one answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from dmodel.catalog.loader import table
from dmodel.catalog.model_names import identify
from dmodel.catalog.models import transformer
from dmodel.catalog.stack import files, names
from dmodel.question import Question
from dmodel.resolve import Cases, assemble

ASKED: dict[str, float | str] = {
    "model": "llama-3-8b",
    "accelerator": "H100-80GB",
    "stack": "megatron-bridge/26.02",
    "n_accel": 16.0,
    "seq_len": 2048.0,
    "global_batch": 64.0,
}


def spelled(name: str) -> Iterator[str]:
    """A name as people write it."""
    yield from (name, name.upper(), name.lower(), name.replace("-", " "), name.replace("-", "_"))


def of_models() -> list[tuple[str, str]]:
    """(id, spelling) of every model, those of a hub among them."""
    found = []
    for name, entry in table("models").items():
        for each in (name, *entry["aliases"]):
            hubs = (f"org/{each.title()}", f"org/{each}-hf")
            found += [(name, spelling) for spelling in (*spelled(each), *hubs)]
    return found


def of_chips() -> list[tuple[str, str]]:
    """(id, spelling) of every chip, makers before it among them."""
    found = []
    for name, entry in table("chips").items():
        for each in (name, *entry["aliases"]):
            found += [(name, spelling) for spelling in (*spelled(each), f"NVIDIA {each}")]
    return found


def of_stacks() -> list[tuple[str, str]]:
    """(id, spelling) of every stack."""
    found = [(name, spelling) for name in names() for spelling in spelled(name)]
    for file in files().values():
        found += [(file.id, s) for alias in file.aliases for s in spelled(alias)]
    return [(f"{name}/26.06", f"{spelling}/26.06") for name, spelling in found]


def rate(chip: str) -> str:
    """A precision that a chip has."""
    return next(iter(table("chips")[chip]["flops_per_s"]))


def questions(column: str, pairs: list[tuple[str, str]], of: int) -> list[Question]:
    """A question by the id (0) or the spelling (1) of each pair."""
    found = []
    for pair in pairs:
        columns = {**ASKED, column: pair[of]}
        columns["precision"] = rate(pair[0]) if column == "accelerator" else "bf16"
        found.append(Question(columns))
    return found


def answered(column: str, pairs: list[tuple[str, str]], of: int) -> Cases:
    return assemble(questions(column, pairs, of))


def different(one: Any, other: Any) -> np.ndarray:
    """Which cases have a number that is not the same."""
    gaps = jax.tree.map(
        lambda a, b: ~np.isclose(a, b, rtol=0.0, atol=0.0, equal_nan=True), one, other
    )
    return np.any([np.atleast_2d(gap).any(0) for gap in jax.tree.leaves(gaps)], axis=0)


@pytest.mark.parametrize(
    ("column", "pairs"),
    [("model", of_models()), ("accelerator", of_chips()), ("stack", of_stacks())],
    ids=["models", "chips", "stacks"],
)
def test_every_spelling_has_one_answer(column: str, pairs: list[tuple[str, str]]) -> None:
    """Of all numbers of system, model and plan, and of the assumptions word for word."""
    one, other = (answered(column, pairs, of) for of in (0, 1))
    records = ((each.system, each.model, each.plan) for each in (one, other))
    wrong = different(*records)
    wrong |= np.array([a != b for a, b in zip(one.assumptions, other.assumptions, strict=True)])
    assert [pair for pair, is_wrong in zip(pairs, wrong, strict=True) if is_wrong] == []


@pytest.mark.parametrize(
    ("spelling", "found"),
    [
        ("qwen3-30b-a3b", ("qwen-3-30b-a3b", "none")),
        ("Qwen/Qwen3-30B-A3B-Instruct", ("qwen-3-30b-a3b", "none")),
        ("deepseek-ai/DeepSeek-V3", ("deepseek-v3", "none")),
        ("Llama 3 70B LoRA", ("llama-3-70b", "lora")),
        ("llama_3_70b_sft", ("llama-3-70b", "sft")),
        ("mistralai/Mistral-7B-v0.1", ("mistral-7b", "none")),
        ("Our_Own 7B", ("our-own-7b", "none")),
    ],
)
def test_models_are_known_by_what_hubs_call_them(spelling: str, found: tuple[str, str]) -> None:
    assert identify(spelling) == found


@pytest.mark.parametrize(
    ("name", "main", "layers"),
    [
        ("llama4-scout-2layers", "llama-4-scout", 2.0),
        ("DeepSeek-V3_4_Layers", "deepseek-v3", 4.0),
        ("llama-3-8b", "llama-3-8b", 32.0),
    ],
)
def test_a_name_may_say_to_how_many_layers_a_model_is_cut(name, main, layers):
    whole, cut = transformer(main, 2048.0), transformer(name, 2048.0)
    assert identify(name)[0] == main and float(cut.n_layers) == layers
    assert cut.shares == whole.shares and cut.mixers == whole.mixers
    asked = Question({**ASKED, "model": name}, {})
    assert float(assemble([asked]).model.n_layers[0]) == layers
