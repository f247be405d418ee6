"""Which offsets a row shares with which others: the groups of its accelerator, of its software, and
of the two together."""

from __future__ import annotations

from dmodel.catalog.chips import generation, known_as
from dmodel.catalog.loader import known_name
from dmodel.catalog.stack import stack as software

GROUPINGS = ("generation", "accelerator", "lineage", "stack", "variant", "port", "pair")
"""From the widest to the narrowest: generation of the chip, the chip; code base of the software,
the stack, a variant of it (what follows "/" in its name); the stack on chips of a generation (on
the chip, where its generation is not known), whose kernels and formats it has to be brought to;
chip and stack together. A member is a text; "" = no member, no offset."""


def family(stack: str) -> str:
    """The stack without its variant, as the catalog names it.

    >>> family("torchtitan/async-tp"), family("Megatron Bridge/26.02")
    ('torchtitan', 'megatron-bridge')
    """
    return software(stack).id if stack else ""


def members(accelerator: str | None, stack: str | None) -> dict[str, str]:
    """The member of every grouping for rows of an accelerator and stack.

    >>> members("H100-80GB", "llm-foundry/pure")["pair"]
    'H100-80GB llm-foundry'
    >>> members("GB200", "megatron-bridge/26.02")["port"]
    'blackwell megatron-bridge'
    """
    chip = _chip(accelerator) if accelerator else ""
    of_chip = generation(chip)
    none: dict[str, str] = dict.fromkeys(("lineage", "stack", "variant"), "")
    of_stack: dict[str, str] = dict(_of_stack(stack)) if stack else none
    name = of_stack["stack"]
    both = bool(chip and name)
    return {
        "generation": of_chip,
        "accelerator": chip,
        **of_stack,
        "port": f"{of_chip or chip} {name}" if both else "",
        "pair": f"{chip} {name}" if both else "",
    }


def _chip(accelerator: str) -> str:
    """The chip that is meant, or the one whose coefficients hold for it; as given if unknown."""
    main = known_name("chips", accelerator)
    return accelerator if main is None else known_as(main)


def _of_stack(name: str) -> dict[str, str]:
    """Members of the groupings that software alone decides."""
    found = software(name)
    variant = found.name if found.variant else ""
    return {"lineage": found.lineage, "stack": found.id, "variant": variant}
