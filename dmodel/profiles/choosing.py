"""The shipped profile for a chip and a stack."""

from __future__ import annotations

from dmodel.profiles import shipped, store
from dmodel.profiles.record import Profile, default_profile

WIDEST = "generic"
"""The profile that knows an offset for every accelerator it has seen."""


def nearest(accelerator: str, stack: str = "") -> tuple[Profile, str]:
    """The shipped profile that fits an accelerator and stack best, and why.

    The one that was fitted on both; else on the accelerator and the stack's family (the name before
    "/" or "-"); else the generic one, which knows an offset for every accelerator it has seen.
    """
    if not shipped.files():
        return default_profile(), "no profile is shipped with this build: the prior"
    for name in _views_of(accelerator):
        if stack in shipped.known(name).stacks:
            return store.load(name), f"fitted on {accelerator} with {stack}"
    for name in _views_of(accelerator) if stack else ():
        if _family(stack) in map(_family, shipped.known(name).stacks):
            return store.load(name), f"fitted on {accelerator} with the family of {stack}"
    return store.load(WIDEST), _what_it_knows(accelerator, stack)


def _views_of(accelerator: str) -> list[str]:
    """Names of the profiles of few chips that were fitted on this one."""
    views = [name for name in shipped.files() if name not in (WIDEST, shipped.EVIDENCE)]
    return [name for name in views if accelerator in shipped.known(name).accelerators]


def _family(stack: str) -> str:
    """The part of a stack's name before "/" or "-"."""
    return stack.lower().replace("/", "-").split("-")[0]


def _what_it_knows(accelerator: str, stack: str) -> str:
    """Why the widest profile is the nearest."""
    all_known = shipped.known(WIDEST)
    asked = ((accelerator, all_known.accelerators), (stack, all_known.stacks))
    found = [name for name, names in asked if name and name in names]
    if found:
        return f"no closer one; generic knows {' and '.join(found)}"
    return f"no shipped profile knows {accelerator}{' or ' + stack if stack else ''}"
