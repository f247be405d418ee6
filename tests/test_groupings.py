"""Groups of rows: what the catalog says of a chip and a stack, as a table of beginnings had it."""

from __future__ import annotations

import csv

import pytest

from calibration.traces.published import PUBLISHED
from dmodel.catalog.chips import trait
from dmodel.catalog.loader import table
from dmodel.catalog.stack import names
from dmodel.coefficients import NAMES
from dmodel.profiles import default_profile, family, load, members
from dmodel.profiles import names as profiles

CHIPS = {
    "volta": ("v100",),
    "turing": ("t4",),
    "ampere": ("a100", "a800", "a10", "a30", "a40", "rtx-a", "rtx-3"),
    "hopper": ("h100", "h200", "h800", "h20", "gh200"),
    "ada": ("l20", "l40", "l4", "rtx-4", "rtx-6"),
    "blackwell": ("b200", "gb200", "b300", "gb300", "b100", "gb10", "rtx-5", "rtx-pro"),
    "rubin": ("rubin",),
    "cdna": ("mi",),
    "tpu": ("tpu",),
    "trainium": ("trn", "trainium"),
    "gaudi": ("gaudi",),
    "ascend": ("ascend",),
    "xe-hpc": ("pvc",),
}
"""Beginnings of chips' names by generation."""

STACKS = {
    "megatron": ("megatron", "nemo", "mt-nlg", "vtrain", "mlperf", "megascale", "flagscale")
    + ("primus", "slime", "pai-megatron", "gpt-neox"),
    "nanotron": ("nanotron", "ultrascale", "picotron"),
    "maxtext": ("maxtext", "jax-toolbox-maxtext", "gpu-recipes"),
    "pax": ("jax-toolbox-pax", "pax"),
    "fsdp": ("llm-foundry", "fsdp", "torchtitan", "torchtune", "composer", "accelerate", "hf-")
    + ("huggingface", "trl", "peft", "axolotl", "llama-factory", "unsloth", "ms-swift")
    + ("fms-acceleration", "te", "litgpt", "olmo", "transformers", "fastchat", "open-instruct")
    + ("open-r1", "alignment-handbook", "lingua", "verl"),
    "deepspeed": ("deepspeed", "bmtrain", "openrlhf", "xtuner"),
    "neuronx": ("neuronx", "optimum-neuron"),
    "habana": ("habana", "optimum-habana"),
    "pytorch": ("pytorch", "nanogpt", "nanochat"),
}
"""Beginnings of stacks' names by code base."""


def first(name: str, groups: dict[str, tuple[str, ...]]) -> str:
    return next((group for group, heads in groups.items() if name.lower().startswith(heads)), "")


def expected(chip: str, stack: str) -> dict[str, str]:
    """Members by beginnings of names."""
    generation, base = first(chip, CHIPS), stack.split("/")[0]
    return {
        "generation": generation,
        "accelerator": chip,
        "lineage": first(stack, STACKS) or base,
        "stack": base,
        "variant": stack if "/" in stack else "",
        "port": f"{generation or chip} {base}" if chip and stack else "",
        "pair": f"{chip} {base}" if chip and stack else "",
    }


def asked() -> list[str]:
    """Stacks of the published table, of the shipped profiles and of the catalog."""
    with PUBLISHED.open(encoding="utf-8") as lines:
        found = {row["stack"] for row in csv.DictReader(lines)}
    for name in profiles():
        profile = load(name)
        found |= {*profile.own, *profile.stacks, *profile.offsets["stack"]}
        found |= {*profile.offsets["variant"]}
    return sorted({*found, *names()} - {""})


@pytest.mark.parametrize("chip", ["", *table("chips")])
def test_members_are_those_of_the_beginnings_of_names(chip: str) -> None:
    for stack in ("", *asked()):
        assert members(chip, stack) == expected(chip, stack)
    assert members(chip or None, None) == expected(chip, "")


def test_spellings_share_their_members() -> None:
    assert members("h100", "Megatron Bridge/26.02") == members("H100-80GB", "megatron-bridge/26.02")
    assert family("NeMo_Launcher/23.11") == "nemo-launcher"


def test_what_nobody_describes_stands_for_itself() -> None:
    found = members("H101", "Mine/v2")
    assert found == {
        "generation": "",
        "accelerator": "H101",
        "lineage": "Mine",
        "stack": "Mine",
        "variant": "Mine/v2",
        "port": "H101 Mine",
        "pair": "H101 Mine",
    }


def test_a_chip_without_rows_begins_where_its_single_operations_are() -> None:
    """Of its generation and stack all else stays; a chip with rows keeps what was fitted."""
    profile, place = load("generic"), NAMES.index("matmul_efficiency")
    for chip in ("PVC-1550", "H20-96GB"):
        told = trait(chip, "matmul_efficiency")
        assert told and chip not in profile.accelerators
        found = profile.coefficients_for(chip).matmul_efficiency
        assert float(found) == pytest.approx(told)
        own = profile.unconstrained(chip, "llm-foundry") - profile.unconstrained(chip)
        assert own[place] == pytest.approx(profile.offsets["stack"]["llm-foundry"][place], abs=0.5)
    assert "MI300X" in profile.accelerators
    assert float(profile.coefficients_for("MI300X").matmul_efficiency) != pytest.approx(
        trait("MI300X", "matmul_efficiency")
    )
    plain = default_profile()
    assert float(plain.coefficients_for("A30").matmul_efficiency) == pytest.approx(0.78)
