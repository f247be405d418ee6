"""How tokens reach the experts of a stack, how the kernels of a layer are launched, and in what
bits attention runs beside fused experts: facts about software, each with its source.

Megatron-Bridge's recipes (`scripts/performance/configs`, 2025 to 2026) differ by model, chip,
precision and release.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from calibration.traces.recipes import BRIDGE, NEMO, XLA
from dmodel.catalog.loader import fold
from dmodel.launching import LOOP
from dmodel.profiles import family

DEEP_EP = ("automodel",)
"""Beginnings of stacks whose tables name DeepEP."""

LOOPED = (BRIDGE, *NEMO, "megatron-lm", "megatron-core")
"""Families of stacks whose grouped products go through the experts of a rank one after the other.
"""

NODES_OF_EIGHT = ("h100", "h800", "h200", "b200", "b300")
"""Chips whose nodes of eight are joined by a network, by the beginnings of their names."""


def fused_experts(stack: str, model: str, accelerator: str, precision: str) -> bool:
    """Whether one kernel does the products of all experts with their activation
    (`cutedsl_fused_grouped_mlp`).

    Megatron-Bridge in MXFP8: from 26.06 on on GB200 and GB300, but for Kimi K2, and for gpt-oss on
    B300; after 26.06 for all on B300, and for Qwen3 on B200 (its pull requests 3983, 4173, 4226 and
    4249 of before, 4458 and 4606 of after). Rows of 26.06 of Kimi K2, and of DeepSeek-V3 on B300,
    have the micro-batches of two sequences, and take the time, that they had without. The kernel
    had activations with a gate first; recipes since then fuse Nemotron's squared ReLU too (Ultra's
    for one), but rows of Nano and Super took no less with them.
    """
    name, chip, release = model.lower(), accelerator.lower(), stack.partition("/")[2]
    if (
        family(stack.lower()) != BRIDGE
        or precision != "mxfp8"
        or release < "26.06"
        or fold(name).startswith("nemotron")
    ):
        return False
    if release == "26.06":
        return (chip.startswith("gb") and not name.startswith("kimi")) or (
            chip == "b300" and name.startswith("gpt-oss")
        )
    return chip.startswith(("gb", "b300")) or (chip == "b200" and name.startswith("qwen3"))


def narrow_attention(
    stack: str, model: str, accelerator: str, precision: str, experts: float
) -> bool:
    """Whether the attention core runs in 8 bits (`fp8_dot_product_attention`).

    Megatron-Bridge switches it on in some of the recipes with fused experts, from 26.06 on: for
    Qwen3, for gpt-oss 120B but on B300, for DeepSeek-V3 but on GB200 (its pull requests 3983, 4173,
    4249, 4458 and 4606; `perf_recipes/*/common.py`). Those of Nemotron came after its tables
    (5620), Kimi K2's have none.
    """
    name, chip = model.lower(), accelerator.lower()
    if fold(name).startswith("deepseekv3"):
        named = chip != "gb200"
    elif name.startswith("gpt-oss"):
        named = chip != "b300" and "120b" in name
    else:
        named = name.startswith("qwen3")
    return named and experts > 1.0 and fused_experts(stack, model, accelerator, precision)


NARROW_CORE = "attention core in 8 bits: the stack's recipe"


class Dispatch(NamedTuple):
    """How tokens reach their experts. merge_copies: 1 where copies for the experts of one node
    travel as one. overlap: 1 where the exchange may hide behind the compute of another micro-batch.
    said: in words. route: `Software.route_bytes`."""

    merge_copies: float
    overlap: float
    said: tuple[str, ...]
    route: float = 0.0


def dispatch(
    stack: str, model: str, accelerator: str, precision: str, ep: float, note: str = ""
) -> Dispatch:
    """The dispatcher of a row.

    Megatron-Bridge: DeepEP or HybridEP, which send one copy to a node, but for Qwen3 235B on nodes
    of eight and for gpt-oss, which have NCCL's all-to-all unless their experts are fused. The
    exchange runs beside the compute of another micro-batch (`moe_a2a_overlap`) for Qwen3 235B on
    H100, for DeepSeek-V3 on H100 in 2025 and over 32 ranks on B200, and from 26.06 on in MXFP8 on
    chips that have fused grouped products; else nothing hides it.
    HybridEP, on GB200 and GB300 from 25.11 on and on B200 and B300 from 26.02 on, gathers a map of
    who visits whom, a byte for each token and expert (`allgather_routing_map`; DeepEP's pull
    request 716).
    NeMo AutoModel: DeepEP, by its table, and so where a note says "dispatcher DeepEP"; nothing
    hides it. Other stacks: all-to-all of every copy, which nothing hides, as Megatron-LM,
    torchtitan and PyTorch's own have it unless told otherwise; where XLA schedules messages they
    may hide.
    """
    if ep <= 1.0:
        return Dispatch(0.0, 1.0, ())
    if family(stack.lower()) != BRIDGE:
        scheduled = stack.lower().startswith(XLA)
        noted = "dispatcher DeepEP" in note
        merged = noted or stack.lower().startswith(DEEP_EP)
        said = (
            ()
            if scheduled
            else ("nothing hides the exchange of tokens: the default of PyTorch's stacks",)
        )
        text = (
            "copies of a token for the experts of one node travel as one: DeepEP, by the "
            f"{'note' if noted else 'table of the stack'}"
        )
        return Dispatch(float(merged), float(scheduled), (*said, text) if merged else said)
    name, chip, release = model.lower(), accelerator.lower(), stack.partition("/")[2]
    large_qwen = name.startswith("qwen3-235b")
    fused = fused_experts(stack, model, accelerator, precision)
    plain = not fused and (
        name.startswith("gpt-oss") or (large_qwen and chip.startswith(NODES_OF_EIGHT))
    )
    deepseek = name.startswith("deepseek") and (
        (chip == "b200" and ep == 32.0) or (chip.startswith("h100") and "" < release < "26")
    )
    beside = fused or (large_qwen and chip.startswith("h100")) or deepseek
    mapped = (
        not plain
        and chip.startswith(("gb", "b2", "b3"))
        and release >= ("25.11" if chip.startswith("gb") else "26.02")
    )
    said = (
        "experts: all-to-all of every copy"
        if plain
        else "copies of a token for the experts of one node travel as one",
        "the exchange of tokens runs beside another micro-batch"
        if beside
        else "nothing hides the exchange of tokens",
        *(["ranks gather a map of who visits whom before (HybridEP)"] if mapped else []),
    )
    return Dispatch(
        float(not plain),
        float(beside),
        tuple(f"{text}: the stack's recipe" for text in said),
        float(mapped),
    )


class Launches(NamedTuple):
    """graphed: share of a layer's kernels outside its experts that no program in Python launches.
    looped: 1 where the host launches the products of a rank's experts one after the other. fused: 1
    where their activation and its casts are part of the products. rotary: 1 where several kernels
    rotate queries and keys. said: in words."""

    graphed: float
    looped: float
    fused: float
    rotary: float
    said: tuple[str, ...]


PADDED = "kempnerforge"
"""Stack whose experts compute as many tokens each as the busiest one has (`grouped_expert_forward`
of its `kempnerforge/model/moe.py` when it measured them, in April 2026; ragged since)."""


def busiest(stack: str, experts: float, top_k: float) -> tuple[float, str]:
    """Load of the busiest expert over the mean, as far as others compute as much [1], and what is
    assumed of it.

    `PADDED` measured the first 20 steps of new routers, of which it does not say how uneven they
    were: from 1 to `experts / top_k`, one expert that every token visits, and the middle of both is
    taken. Its steps with 16 experts take 1.4 to 1.8 times as long as with 8.

    Limits: 1 for other stacks, whose loads are taken to be even, and for one expert.
    """
    if family(stack.lower()) != PADDED or experts <= 1.0:
        return 1.0, ""
    load = 0.5 * (1.0 + max(experts / top_k, 1.0))
    return (
        load,
        (
            f"experts compute as many tokens each as the busiest, assumed to have {load:g} times "
            "the "
            "mean: the stack pads them"
        ),
    )


GRAPHED = re.compile(r"CUDA graphs on|\bconfig_\w+_cg(_\w+)?\.sh")
"""How notes say that graphs launch whole layers: in words, or by the name of a configuration of
NVIDIA's for MLPerf (`LAYER_CUDA_GRAPH=1` in those of GPT-3 175B on 10,752 and 11,616 H100, round
4.0)."""

SUBMITTED = "mlperf-train-v5.1"
"""Stack whose runs of Llama 3.1, 405B and 8B, NVIDIA launches by a graph of the whole iteration
(`FULL_CUDA_GRAPH=1` and `MCORE_CUDA_GRAPH=1` of `config_common_cg.sh`, which their configurations
read; "Llama 3.1 405B" of its guide to CUDA graphs), and by
graphs of layers for 8B in 4 bits on 8 devices (`FULL_CUDA_GRAPH=0` there)."""


def launches(
    stack: str,
    model: str,
    accelerator: str,
    precision: str,
    experts: float,
    ep: float,
    note: str = "",
) -> Launches:
    """How kernels are launched. Where a note says so, by graphs of whole layers: NeMo's pad what
    their experts get.

    Megatron-Bridge, by its models' `workload_base_configs.py`: a graph of the whole iteration for
    Llama 3 8B on Blackwell (but NVFP4) and 70B in bf16 on B200, for Qwen3 on Blackwell in 25.09
    (235B on GB200 alone) and in MXFP8 from 26.06 on (`fused_experts`); graphs of attention, router
    and what comes before the dispatch from 26.02 on for gpt-oss on B300 and GB300, Qwen3 235B on
    GB200 and GB300, 30B on B200 (from 26.04 on), DeepSeek-V3 on GB200, B300, and B200 with 32 ranks
    of ep, and Nemotron 3 (but Ultra, and Super in MXFP8 on B200). MLPerf's runs of Llama 3.1 are
    launched by graphs too (`SUBMITTED`). XLA's programs are launched whole on a TPU, and kernel by
    kernel from C++ on a GPU, where one counts as `LOOP` of one from Python. Without a graph of the
    whole, Megatron's stacks go through the
    experts of a rank one after the other, as their products are Transformer Engine's GroupedLinear.
    Those stacks rotate gpt-oss in PyTorch's operations: YaRN scales its rotary embedding, which
    Transformer Engine's kernel does not (`rope_utils.py`, by a warning).
    """
    software, fused = family(stack.lower()), fused_experts(stack, model, accelerator, precision)
    name, chip, release = model.lower(), accelerator.lower(), stack.partition("/")[2]
    blackwells = ("b200", "b300", "gb200", "gb300")
    bridge, blackwell = software == BRIDGE, chip.startswith(blackwells)
    folded = fold(name)
    llama = (folded == "llama38b" and precision != "nvfp4") or (
        folded == "llama370b" and chip == "b200" and precision == "bf16"
    )
    early = release == "25.09" and (
        name.startswith("qwen3-30b") or (name.startswith("qwen3-235b") and chip == "gb200")
    )
    late = fused and experts > 1.0 and not (name.startswith("gpt-oss") and chip == "b300")
    noted = GRAPHED.search(note) is not None
    submitted = (
        software == SUBMITTED
        and folded.startswith("llama3.1")
        and not chip.startswith(("mi", "tpu"))
    )
    whole = noted or submitted or (bridge and blackwell and (llama or early or late))
    parts = {
        "gpt-oss": ("b300", "gb300"),
        "qwen3-235b": ("gb200", "gb300"),
        "deepseek": ("gb200", "b300"),
    }
    hybrid = (
        folded.startswith(("nemotron3nano", "nemotron35", "nemotron3super")) and chip in blackwells
    )
    hybrid &= not (folded.startswith("nemotron3super") and chip == "b200" and precision == "mxfp8")
    scoped = hybrid or any(name.startswith(n) and chip in chips for n, chips in parts.items())
    scoped |= chip == "b200" and (
        (name.startswith("deepseek") and ep == 32.0)
        or (name.startswith("qwen3-30b") and release >= "26.04")
    )
    compiled = stack.lower().startswith(XLA)
    graphed = (
        1.0 - LOOP * (not chip.startswith("tpu"))
        if compiled
        else float(whole or (bridge and release >= "26.02" and scoped))
    )
    looped = float(experts > 1.0 and software in LOOPED and not whole and not fused)
    rotary = float(name.startswith("gpt-oss") and software in LOOPED)
    captured = "whole layers: the note" if noted else "the whole iteration: the stack's recipe"
    captured = (
        "whole layers or the iteration: the configuration submitted" if submitted else captured
    )
    said = (
        *([f"CUDA graphs launch {captured}"] if whole else []),
        *(
            ["CUDA graphs launch a layer but for its experts: the stack's recipe"]
            if graphed and not whole and not compiled
            else []
        ),
        *(["kernels are launched by a compiled program, not from Python: XLA"] if compiled else []),
        *(
            [
                (
                    "products of experts, their activation and its casts are one kernel: the "
                    "stack's "
                    "recipe"
                )
            ]
            if fused and experts > 1.0
            else []
        ),
        *(
            ["products of experts are launched one by one: Transformer Engine's GroupedLinear"]
            if looped
            else []
        ),
        *(
            ["several kernels rotate queries and keys: none takes the scale of YaRN"]
            if rotary
            else []
        ),
    )
    return Launches(graphed, looped, float(fused and experts > 1.0), rotary, said)
