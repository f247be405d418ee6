"""Kinds of mixers and of feed-forward parts, a file each; `KINDS` is found by name.

A new kind is a record in a file here: its sizes, and what it adds to the tables of a step.
"""

from __future__ import annotations

import importlib
import pkgutil

from dmodel.blocks.attention import ALL, Attention
from dmodel.blocks.dense import Dense
from dmodel.blocks.experts import Experts
from dmodel.blocks.latent import Latent
from dmodel.blocks.linear import Linear
from dmodel.blocks.mamba import Mamba2
from dmodel.blocks.part import Part
from dmodel.blocks.sparse import Sparse


def _kinds() -> dict[str, type]:
    """Records of all modules of this package that have a `KIND`, by that."""
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(__path__):
        held = vars(importlib.import_module(f"{__name__}.{module.name}"))
        own = (x for x in held.values() if isinstance(x, type) and x is not Part)
        found |= {x.KIND: x for x in own if "KIND" in vars(x)}
    return found


KINDS: dict[str, type] = _kinds()
"""Kinds of parts by name."""

__all__ = [
    "ALL",
    "KINDS",
    "Attention",
    "Dense",
    "Experts",
    "Latent",
    "Linear",
    "Mamba2",
    "Part",
    "Sparse",
]
