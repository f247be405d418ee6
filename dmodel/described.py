"""What files of facts may speak of, and whether one of them does."""

from __future__ import annotations

import functools

from dmodel.catalog.checked import Vocabulary, problems
from dmodel.catalog.loader import table
from dmodel.catalog.stack import Stack, stack
from dmodel.columns import BY_NAME, PRECISIONS
from dmodel.errors import InputError
from dmodel.layouts import RULES
from dmodel.settings import ADAPTED, KNOWN, SETTINGS

FIRST = frozenset(
    {"zero", "shard", "micro_batch", "interleave", "sp", "system", "accel_per_node", "vocab"}
    | {"recompute", "attention"}
)
"""Names of the layout and the machine: facts about these come first, as others may ask for them."""


@functools.cache
def vocabulary() -> Vocabulary:
    """Names, words and rules of facts."""
    words = {name: word.allowed for name, word in SETTINGS.items() if word.allowed}
    words |= {name: BY_NAME[name].allowed for name in ("recompute", "attention")}
    words |= {"adapters": ADAPTED, "system": tuple(table("systems"))}
    sets = [name for name, one in SETTINGS.items() if one.kind != "quantity"]
    return Vocabulary((*sets, *sorted(FIRST - {*KNOWN})), words, tuple(RULES), PRECISIONS)


@functools.lru_cache(maxsize=1024)
def described(name: str) -> Stack:
    """The stack of a name, or of a user's file whose facts are checked.

    Raises:
      InputError: a file that cannot be read, or with facts that cannot be meant.
    """
    found = stack(name)
    wrong = problems(found.own, vocabulary(), [found.id]) if found.path else []
    if wrong:
        raise InputError("\n".join(f"{name}, {text}" for text in wrong))
    return found
