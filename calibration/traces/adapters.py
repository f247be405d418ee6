"""Low-rank adapters of fine-tuning rows (flag `lora`): which products have one, by a row's note or
the recipe of its stack."""

from __future__ import annotations

import re
from typing import NamedTuple

from calibration.traces.recipes import AUTOMODEL, BRIDGE, NEMO
from dmodel.catalog.loader import fold
from dmodel.profiles import family

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""All linear modules of a layer as Hugging Face has them, each product alone."""

MEGATRON = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""Those of Megatron-Core, attention's two first."""

MODULES = (*ALL, *MEGATRON)
"""Names of modules that a note may say, Hugging Face's and Megatron-Core's."""

NOTED = re.compile(r"\badapters on (\w+(?:, \w+)*)")
"""How notes name them."""

NOTED_DROPOUT = re.compile(r"\badapter dropout\b")

PEFT = ("q_proj", "v_proj")
"""What Hugging Face's PEFT adapts of a Llama where it is not told
(`TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING`)."""


class Adapters(NamedTuple):
    """What of a layer has an adapter: `first_adapters`, `first_adapted`, `last_adapters`,
    `last_adapted`, `adapter_dropout` of `dmodel.records.Model`, and how that is known, in
    words."""

    first_adapters: float
    first_adapted: float
    last_adapters: float
    last_adapted: float
    adapter_dropout: float
    said: str


def recipe(stack: str, model: str) -> tuple[tuple[str, ...], bool, str]:
    """Modules with an adapter by the recipe of a stack, whether there is dropout before it, and how
    that is known.

    MLPerf's benchmark: attention's two, rank 16, dropout 0.1 before
    (`conf/megatron_gpt_peft_tuning_config.yaml` of NVIDIA's submission to 4.0, AMD's to 5.1). NeMo:
    `linear_qkv`, no dropout (`conf/peft/llama/squad.yaml` of its launcher, rank 32;
    `performance_mode` of NeMo 2's `llama3_70b.py`, which NVIDIA's recipes for DGX Cloud run, rank
    16); Megatron-Bridge the same from 26.02 on (its pull request 2181, February 2026), all four
    before. AutoModel: every linear module, rank 16 (its benchmark configurations), dropout for
    Llama 3 8B alone. FlagPerf's `llama2_7b_finetune`: `q_proj` and `v_proj`, with dropout. Pax adds
    adapters to the weights before a product (praxis' `lora_layers.py`), which is not counted.
    """
    name = stack.lower()
    said = "the stack's recipe"
    if name.startswith("mlperf"):
        return MEGATRON[:2], True, said
    if family(name) in (BRIDGE, *NEMO):
        early = family(name) == BRIDGE and "" < name.partition("/")[2] < "26.02"
        return MEGATRON if early else MEGATRON[:1], False, said
    if family(name) == AUTOMODEL:
        return ALL, fold(model).startswith("llama38b"), said
    if "pax" in name:
        return (), False, said
    return (
        PEFT,
        name == "pytorch/llama-recipes",
        said if name == "pytorch/llama-recipes" else "assumed, PEFT's own",
    )


def adapters(stack: str, model: str, note: str, widths: dict[str, float]) -> Adapters:
    """Adapters of a fine-tuning row; a note decides, else the recipe.

    Args:
      widths: of queries of all heads, of keys (and values alike), and of the MLP, and `gated`, 1
        where it has a gate.
    """
    modules, dropout, said = recipe(stack, model)
    if noted := NOTED.search(note):
        modules, dropout, said = (
            tuple(noted[1].split(", ")),
            bool(NOTED_DROPOUT.search(note)),
            "the note",
        )
    queries, keys, mlp, up = widths["queries"], widths["keys"], widths["mlp"], 1.0 + widths["gated"]
    first = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "linear_qkv": queries + 2.0 * keys}
    first |= {"up_proj": mlp, "linear_fc1": up * mlp} | ({"gate_proj": mlp} if up > 1.0 else {})
    last = {"o_proj": queries, "linear_proj": queries, "down_proj": mlp, "linear_fc2": mlp}
    read, returned = (
        [widths_of[name] for name in modules if name in widths_of] for widths_of in (first, last)
    )
    unknown = [name for name in modules if name not in MODULES]
    counted = (
        f"adapters on {', '.join(modules) or 'nothing'}{' with dropout' if dropout else ''}: {said}"
    )
    if unknown:
        counted += f"; not counted: {', '.join(unknown)} (known are {', '.join(MODULES)})"
    return Adapters(
        float(len(read)), sum(read), float(len(returned)), sum(returned), float(dropout), counted
    )
