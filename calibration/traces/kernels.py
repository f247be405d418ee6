"""Which kernels a stack has, of fused attention and of the loss, and what they cost: facts about
software, each with its source."""

from __future__ import annotations

from typing import NamedTuple

from calibration.traces.recipes import XLA
from dmodel.profiles.groupings import members


class Rates(NamedTuple):
    """Rates of kernels of fused attention over those of others, forward and backward [1], named as
    in a plan."""

    attention_rate: float
    attention_backward_rate: float


NEWEST = Rates(1.0, 1.0)

IN_TRITON = ("llm-foundry",)
"""Beginnings of stacks whose attention is FlashAttention in Triton, of 2022: what the script behind
LLM Foundry's tables asks for (`attn_impl` of `submit_benchmarks.py`, `triton` until late in 2023;
its `sweep.sh` leaves it so). The tables tell too: from sequences of 512 to those of 32,768 tokens a
step of its model with 1.3 billion parameters grows by what 96 TFLOP/s take on A100 and 173 on H100,
where FlashAttention-2 comes to 63 to 73 % of 312 and to 335 (Dao 2023)."""

TRITON = Rates(1.0 / 1.4, 1.0 / 2.0)
"""Rates of those kernels over FlashAttention-2's, which is around 1.3 to 1.5 times as fast forward
and twice backward (Dao 2023, arXiv 2307.08691, section 4.1). The tables tell here too: where a
layer is recomputed, its forward pass runs once more, and LLM Foundry's recomputed rows with long
sequences were 6 % too slow beside its others as long as both passes had one rate."""

FLASH_2 = ("fsdp", "fms-fsdp", "torchtitan")
"""Beginnings of stacks that run FlashAttention-2 on Hopper: PyTorch's
`scaled_dot_product_attention` as it was when their tables were made, from 2024 to the middle of
2025 (torchtitan asks for that kernel first, and for cuDNN's on Blackwell alone: `_init_backend` of
its `models/attention.py`).

Two more have it on H100, and count as the chip's newest all the same, because rows that no fit had
seen say so: nanotron (its package), whose sweep, of one length of sequence, is 21 % off as a whole
without this and 26 % with, and NeMo's launcher (`NVTE_FUSED_ATTN: 0` in its `config.yaml`), 4.7 %
from other stacks without and 8.6 with. What else is slow there is not known; attention's rate
stands in for it."""

FLASH_2_ON_HOPPER = Rates(1.0 / 1.73, 1.0 / 1.62)
"""Rates of FlashAttention-2 on Hopper, without the instructions that came with it, over those of
kernels which have them (FlashAttention-3, cuDNN 9): these are 1.5 to 2.0 times as fast forward and
1.5 to 1.75 times backward (Shah et al. 2024, arXiv 2407.08608, section 4.1); the geometric middle
of both."""


NOTED = "FlashAttention-2"
"""How notes name those kernels (NVIDIA's recipes for NeMo 24.05, and for some models 24.09, set
`NVTE_FUSED_ATTN=0`)."""


def attention_rates(
    stack: str, accelerator: str, fused: bool, note: str = ""
) -> tuple[Rates, list[str]]:
    """`Software.attention_rate` and `Software.attention_backward_rate` of a stack on a chip, or by
    a note, and how they are known, in words (none where they are 1: the newest kernels)."""
    name, hopper = stack.lower(), members(accelerator, None)["generation"] == "hopper"
    before = FLASH_2_ON_HOPPER if hopper else NEWEST
    rates, which = NEWEST, ""
    if fused and name.startswith(IN_TRITON):
        rates, which = (
            Rates(*(x * y for x, y in zip(TRITON, before, strict=True))),
            "FlashAttention in Triton",
        )
    elif fused and (name.startswith(FLASH_2) or NOTED in note):
        rates, which = before, "FlashAttention-2"
    if rates == NEWEST:
        return rates, []
    shares = " and ".join(f"{rate:.2g}" for rate in rates)
    return rates, [
        (
            f"{which}, at {shares} of the forward and backward rates of the chip's newest "
            "kernels, as "
            "the stack had it"
        )
    ]


LOSS_OF_PRODUCT = ("llm-foundry",)
"""Beginnings of stacks whose loss reads the 16-bit product of the logits as it is: LLM Foundry's
models take it by a kernel that casts as it reads (`loss_fn` fused_crossentropy of its
`modeling_mpt.py`, flash-attn's, not in place)."""


def logit_bytes(stack: str, precision: str) -> float:
    """`Precision.logit_bytes` of a stack: an fp32 copy that the loss is taken of, and its gradient.

    Of `LOSS_OF_PRODUCT` the 16-bit product and its gradient. XLA fuses the cast with what reads it
    and writes the gradient where the product was, once nothing else reads that: 2 bytes. Google's
    recipes for Llama 3.1 on TPU v6e, which fill the device, would need 0.7 to 1.05 times its memory
    so, 1.0 to 1.4 with both, and with an fp32 copy logits alone 39 of 32 GiB (8B on 64 chips).
    Products of fp32 models, and of the programs of `dmodel collect`, are fp32.
    """
    name = stack.lower()
    if precision == "fp32" or name.startswith("dmodel-collect"):
        return 8.0
    return 2.0 if name.startswith(XLA) else 4.0 if name.startswith(LOSS_OF_PRODUCT) else 8.0
