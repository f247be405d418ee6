"""Which offsets a row shares with which others: the groups of its accelerator, of its software, and
of the two together."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dmodel.catalog.chips import generation, known_as, maker
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


def of_new_maker(
    known: Mapping[str, Collection[str]], accelerator: str, stack: str
) -> tuple[str, ...]:
    """Groupings whose widths say too little of a chip: all of hardware where no known chip is of
    its maker; those of software on chips where the stack is known on other makers' only.

    Args:
      known: members by grouping. accelerator, stack: "" = not said.

    >>> known = {"accelerator": ["H100-80GB", "MI300X"], "port": ["hopper nemo", "cdna megatron"]}
    >>> of_new_maker(known, "MI355X", "nemo"), of_new_maker(known, "TPU-v5p", "maxtext")
    (('port', 'pair'), ('generation', 'accelerator', 'port', 'pair'))
    """
    makers = {maker(name) for name in known["accelerator"]} - {""}
    if not (accelerator and makers):
        return ()
    mine, software = maker(accelerator), family(stack)
    if mine not in makers:
        return "generation", "accelerator", "port", "pair"
    ports = (name.rpartition(" ") for name in known["port"])
    with_stack = {maker(on) for on, _, name in ports if name == software} - {""}
    return ("port", "pair") if with_stack and mine not in with_stack else ()


def _chip(accelerator: str) -> str:
    """The chip that is meant, or the one whose coefficients hold for it; as given if unknown."""
    main = known_name("chips", accelerator)
    return accelerator if main is None else known_as(main)


def _of_stack(name: str) -> dict[str, str]:
    """Members of the groupings that software alone decides."""
    found = software(name)
    variant = found.name if found.variant else ""
    return {"lineage": found.lineage, "stack": found.id, "variant": variant}
