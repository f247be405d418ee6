"""What the code base of Megatron does again by name (`recompute_modules`), and which layers its
recipes offload: facts about software, each with its source."""

from __future__ import annotations

import re
from collections.abc import Sequence

from calibration.traces.again import Again
from calibration.traces.recipes import BRIDGE, NEMO
from dmodel.catalog.loader import fold
from dmodel.profiles import family

MODULES = {
    "core_attn": {"attention": 1.0},
    "mla_up_proj": {"latents": 1.0},
    "mlp": {"dense": 1.0},
    "moe": {"experts": 1.0},
    "layernorm": {"norms": 1.0},
    "moe_act": {"activation": 1.0},
}
"""What Megatron-Core does again for names of `recompute_modules` (its `transformer_config.py`):
queries, keys and values from their latents; MLPs of dense layers; products of experts, whose
exchange of tokens is not counted again here; norms, and experts' activation. Of these two only what
they keep no more is counted: they cost 1 % of a step of Super (NVFP4 over MXFP8 on B300, where it
has them, to GB300, where neither has: 0.982 to 0.969), but 7 as `elementwise_traffic` of
Megatron-Bridge has what streams, and the fit of all rows loses 6 nats with them; 11 with the
rotation that comes with `mla_up_proj`, and 3 with casts of the products that are done again."""

STREAMED = ("layernorm", "moe_act")
"""Those of which only the bytes count."""

NOTED_MODULES = re.compile(r"\brecompute of modules (\w+(?:, \w+)*)")
"""How notes name them."""


def of_modules(names: Sequence[str], known: str, experts: float) -> Again:
    """What is done again for names of modules; of those not in `MODULES`, and of experts' where
    there are none, it is said that they are not counted. known: how, in words. experts: of a layer
    [count]."""
    there = {
        name: parts
        for name, parts in MODULES.items()
        if experts > 1.0 or not name.startswith("moe")
    }
    counted, others = ([name for name in names if (name in there) == yes] for yes in (True, False))
    parts = {part: value for name in counted for part, value in there[name].items()}
    said = [f"recompute blank: {', '.join(counted)}, {known}"] if counted else []
    if others:
        said.append(
            f"recompute of {', '.join(others)}, {known}: not counted; counted are "
            f"{', '.join(there)}"
        )
    return Again(**parts, said=tuple(said))


def modules(
    stack: str, model: str, accelerator: str, precision: str
) -> tuple[tuple[str, ...], float]:
    """Modules that Megatron-Bridge's recipes for pretraining recompute (`MODULES`), and layers of
    each stage that they recompute in full [count].

    By its `scripts/performance/configs` and `perf_recipes`, told apart by release through the
    layouts of its published tables: DeepSeek-V3 and Kimi K2 do products from latents again, and
    dense layers' MLPs on H100, but DeepSeek-V3 on GB300 none of these in 25.11, in bf16, and in
    MXFP8 from 26.06 on; Nemotron 3 Nano on H100, and Super there and in bf16 on B200, experts;
    norms and experts' activation these too, gpt-oss on H100, B200 and GB200, Super on B200 and in
    NVFP4 on B300, and Ultra; Llama 3 8B in 8 bits on H100 five layers from 26.02 on, 70B on B200 in
    25.09. Qwen3 and all others nothing. Two versions of a release differ for some that no table
    has.
    """
    name, chip, release = fold(model), accelerator.lower(), stack.partition("/")[2]
    hopper, late = chip.startswith("h"), release >= "26.06"
    if name.startswith("kimik2"):
        return (("mla_up_proj", "mlp") if hopper else ("mla_up_proj",)), 0.0
    if name.startswith("deepseekv3"):
        if chip == "gb300" and (
            precision == "bf16" or release == "25.11" or (late and precision == "mxfp8")
        ):
            return (), 0.0
        if chip == "gb200" and late and precision == "fp8":
            return ("mlp",), 0.0
        dense = hopper or (
            precision == "mxfp8"
            and ((chip == "gb200" and release == "25.09") or (chip == "b200" and late))
        )
        return (("mla_up_proj", "mlp") if dense else ("mla_up_proj",)), 0.0
    if name.startswith("nemotron3super") and precision == "bf16" and (hopper or chip == "b200"):
        return ("moe", "core_attn", *STREAMED), 0.0
    if name.startswith("nemotron3nano") and hopper:
        return (
            ("moe", "layernorm") if precision == "bf16" else ("moe", "core_attn", *STREAMED)
        ), 0.0
    streamed = name.startswith("nemotron3ultra") or (
        name.startswith("gptoss") and (hopper or chip in ("b200", "gb200"))
    )
    if streamed or (
        name.startswith("nemotron3super")
        and (chip == "b200" or (chip == "b300" and precision == "nvfp4"))
    ):
        return STREAMED, 0.0
    five = (name == "llama38b" and hopper and release >= "26.02") or (
        name == "llama370b" and chip == "b200" and release == "25.09"
    )
    return (), 5.0 if five and precision == "fp8" else 0.0


MIXTURE = 2.0
"""Experts, at least, of all models whose modules `modules` names [count]."""


def by_modules(
    stack: str, model: str, accelerator: str, precision: str, layers: float
) -> Again | None:
    """What Megatron-Bridge's recipe for a job does again (`modules`); None for other stacks and
    where that is nothing.

    Args:
      layers: of a stage [count].
    """
    if family(stack.lower()) != BRIDGE:
        return None
    names, full = modules(stack, model, accelerator, precision)
    if full:
        return Again(
            min(full / layers, 1.0),
            said=(f"recompute blank: {full:g} layers of each stage, as the stack's recipe has it",),
        )
    return of_modules(names, "as the stack's recipe has it", MIXTURE) if names else None


def keeps_activations(stack: str) -> bool:
    """Whether recipes of a stack recompute no layers where a table does not say.

    Those of Megatron-Bridge keep activations, or recompute the parts of a layer that `modules` has;
    with FSDP they move those of some layers to the host (`HOSTED`) while others compute, which
    takes no time here. NeMo's launcher leaves `activations_checkpoint_granularity` empty in every
    configuration behind its tables (selective for GPT-3 20B, a hundredth of its step), and the
    tables of NeMo 2 go on with the same jobs at the same times.
    """
    return family(stack.lower()) in (BRIDGE, *NEMO)


HOSTED = {
    ("llama370b", "gb300", "bf16"): 30.0 / 80.0,
    ("llama370b", "gb300", "fp8"): 20.0 / 80.0,
    ("llama370b", "gb200", "bf16"): 20.0 / 80.0,
    ("llama370b", "gb200", "fp8"): 40.0 / 80.0,
    ("llama370b", "b200", "fp8"): 5.0 / 80.0,
    ("llama31405b", "gb300", "bf16"): 40.0 / 126.0,
    ("llama31405b", "gb300", "fp8"): 10.0 / 126.0,
    ("llama31405b", "gb200", "fp8"): 95.0 / 126.0,
}
"""By model, chip and precision, share of the layers whose activations Megatron-Bridge's recipes
with FSDP keep in the host's memory (`cpu_offloading_num_layers` of its
`scripts/performance/configs/llama`; of the last one later versions have 92)."""


def layers_in_host_memory(
    stack: str, model: str, accelerator: str, precision: str, zero: float, pp: float = 1.0
) -> float:
    """Share of the layers whose activations a recipe keeps in the host's memory (`HOSTED`), with
    FSDP (ZeRO 3) alone; Megatron-Core offloads beside no pipeline."""
    told = family(stack.lower()) == BRIDGE and zero == 3.0 and pp == 1.0
    return (
        HOSTED.get((fold(model).replace(".", ""), accelerator.lower(), precision), 0.0)
        if told
        else 0.0
    )
