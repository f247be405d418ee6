"""Records that JAX takes apart: frozen dataclasses whose fields are leaves, but for static ones."""

from __future__ import annotations

import dataclasses
from typing import Any, Self, dataclass_transform

import jax


def field(*, pytree_node: bool = True, **how: Any) -> Any:
    """A field of a record, as `dataclasses.field` has it; with `pytree_node=False` a static one."""
    return dataclasses.field(metadata={"pytree_node": pytree_node}, **how)


@dataclass_transform(field_specifiers=(field, dataclasses.field))
class PyTreeNode:
    """What records derive from; `flax.struct.PyTreeNode` without the rest of flax, which takes
    longer to import than a step to compute."""

    def __init_subclass__(cls, **how: Any) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(**{"frozen": True, **how})(cls)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        inner = [f.name for f in fields if f.metadata.get("pytree_node", True)]
        static = [f.name for f in fields if f.name not in inner]
        jax.tree_util.register_dataclass(cls, inner, static)

    def replace(self, **changes: Any) -> Self:
        """The record with other values of some fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]
