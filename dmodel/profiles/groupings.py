"""Which offsets a row shares with which others: the groups of its accelerator, of its software, and
of the two together."""

from __future__ import annotations

GROUPINGS = ("generation", "accelerator", "lineage", "stack", "variant", "port", "pair")
"""From the widest to the narrowest: generation of the chip, the chip; code base of the software,
the stack, a variant of it (what follows "/" in its name); the stack on chips of a generation (on
the chip, where its generation is not known), whose kernels and formats it has to be brought to;
chip and stack together. A member is a text; "" = no member, no offset."""

GENERATIONS = {
    "volta": ("v100",),
    "ampere": ("a100", "a800", "a10", "a30", "a40"),
    "hopper": ("h100", "h200", "h800", "h20", "gh200"),
    "ada": ("l40", "l4", "rtx4"),
    "blackwell": ("b200", "gb200", "b300", "gb300", "b100", "rtx5", "rtx-pro"),
    "cdna": ("mi",),
    "tpu": ("tpu",),
    "trainium": ("trn", "trainium"),
}
"""Accelerator names of one generation begin with one of these."""

LINEAGES = {
    "megatron": ("megatron", "nemo", "mt-nlg", "vtrain", "mlperf", "megascale", "flagscale"),
    "nanotron": ("nanotron", "ultrascale"),
    "maxtext": ("maxtext", "jax-toolbox-maxtext", "gpu-recipes"),
    "pax": ("jax-toolbox-pax", "pax"),
    "fsdp": ("llm-foundry", "fsdp", "torchtitan", "torchtune", "composer", "accelerate", "hf-"),
    "deepspeed": ("deepspeed",),
}
"""Stack names of one code base begin with one of these."""


def _first(name: str, table: dict[str, tuple[str, ...]]) -> str:
    return next((group for group, heads in table.items() if name.lower().startswith(heads)), "")


def family(stack: str) -> str:
    """The stack without its variant: what stands before "/".

    >>> family("torchtitan/async-tp")
    'torchtitan'
    """
    return stack.split("/", 1)[0]


def members(accelerator: str | None, stack: str | None) -> dict[str, str]:
    """The member of every grouping for rows of an accelerator and stack.

    >>> members("H100-80GB", "llm-foundry/pure")["pair"]
    'H100-80GB llm-foundry'
    >>> members("GB200", "megatron-bridge/26.02")["port"]
    'blackwell megatron-bridge'
    """
    chip, software = accelerator or "", stack or ""
    generation = _first(chip, GENERATIONS)
    lineage = _first(software, LINEAGES) or family(software)
    return {
        "generation": generation,
        "accelerator": chip,
        "lineage": lineage if software else "",
        "stack": family(software),
        "variant": software if "/" in software else "",
        "port": f"{generation or chip} {family(software)}" if chip and software else "",
        "pair": f"{chip} {family(software)}" if chip and software else "",
    }
