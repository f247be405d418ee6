"""The variant of a stack that a note names where the stack's column does not: what pools rows of
one release, and what recipes go by."""

from __future__ import annotations

import re

RELEASED = ("megatron-bridge", "nemo")
"""Stacks whose tables are published by release, and whose recipes differ by it."""

REVISED = ("jax-toolbox-pax",)
"""Stacks whose figures stand in revisions of one page, with Transformer Engine ("TE") and without.
"""

_RELEASE = re.compile(r"\brelease[= ](\d\d\.\d\d)(?!\d)")
_REVISION = re.compile(r"\brevision[= ]([0-9a-f]{7,40})\b")
_ENGINE = re.compile(r"\bprecision_label=TE\b")


def variant(stack: str, note: str) -> str:
    """The stack with the variant that its note names, as it is where it names one itself, or the
    note none.

    `megatron-bridge` of "release=26.06.01" is `megatron-bridge/26.06`; `jax-toolbox-pax` of
    "precision_label=TE BF16; … revision 62799732" is `jax-toolbox-pax/62799732-te`.
    """
    release, revision = _RELEASE.search(note), _REVISION.search(note)
    if stack.lower() in RELEASED and release:
        return f"{stack}/{release[1]}"
    if stack.lower() in REVISED and revision:
        return f"{stack}/{revision[1]}{'-te' if _ENGINE.search(note) else ''}"
    return stack
