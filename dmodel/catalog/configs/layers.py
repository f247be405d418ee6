"""From a family's formulas and the keys of a file to a model's layers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from dmodel.blocks import KINDS
from dmodel.catalog.configs.families import Family, PartFormulas, Rules
from dmodel.catalog.configs.formula import worked_out
from dmodel.catalog.configs.source import Config
from dmodel.catalog.shapes import assembled
from dmodel.errors import InputError
from dmodel.records import Model

LARGEST = 10**9
"""No number of a file is larger."""

DEEPEST = 10**4
"""No model has more layers."""

MAY_BE_ZERO = ("tied_embeddings", "learned_positions")
MAY_BE_BELOW = ("small", "qk_extra")
"""Sizes that may be below zero."""


class MissingKey(Exception):
    """A formula asks for a key that the file does not have."""


class Layer(NamedTuple):
    """Names of the parts of a layer; "" where it has none."""

    mixer: str
    feed: str


class Scope:
    """Values of names in formulas: of a layer, then of the family, then of the file, then what an
    absent key means.

    Attributes:
      assumed: absent keys whose meaning is said, with it.
    """

    def __init__(
        self,
        keys: Config,
        written: Mapping[str, str],
        family: Family,
        rules: Rules,
        local: Mapping[str, Any] | None = None,
    ) -> None:
        self._keys, self._written, self._family, self._rules = keys, written, family, rules
        self._local = dict(local or {})
        self.assumed: dict[str, Any] = {}

    def of(self, i: int, layer: Layer | None = None) -> Scope:
        """The scope of one layer."""
        own = {"i": i} | ({} if layer is None else layer._asdict())
        inner = Scope(self._keys, self._written, self._family, self._rules, own)
        inner.assumed = self.assumed
        return inner

    def __call__(self, name: str) -> Any:
        """The value of a name.

        Raises:
          MissingKey: the file must have it. InputError: it has a value that cannot be meant.
        """
        if name in self._local:
            return self._local[name]
        if name in self._family.let:
            return self.value(self._family.let[name])
        if (value := self._keys.get(name)) is not None:
            return self._checked(name, value)
        if name in self._family.assumed:
            self.assumed[name] = self.value(self._family.assumed[name])
            return self.assumed[name]
        if name in self._family.defaults:
            return self.value(self._family.defaults[name])
        raise MissingKey(self._written.get(name, name))

    def words(self, text: str) -> str:
        """A text with values in the places of names in braces."""
        return re.sub(r"\{(\w+)\}", lambda found: f"{self(found[1])!s:.40}", text)

    def value(self, formula: Any) -> Any:
        """The value of a formula, or the number that stands in its place."""
        return worked_out(formula, self) if isinstance(formula, str) else formula

    def _checked(self, name: str, value: Any) -> Any:
        """A value of the file: a whole number where there must be one, else none that is negative
        or no whole number."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        needed = name in self._rules.positive and not isinstance(value, list)
        if name in self._rules.any_number or not (is_number or needed):
            return value
        least = int(needed)
        if not is_number or not _is_whole(value, least):
            raise InputError(
                f"{self._written.get(name, name)!r}: expected a whole number from {least} to "
                f"{LARGEST:,}, got {value!r:.40}"
            )
        return value


def _is_whole(value: Any, least: int) -> bool:
    """Whether a number is a whole one between bounds."""
    return least <= value <= LARGEST and value == int(value)


def model(family: Family, scope: Scope, seq_len: float | None) -> Model:
    """The model that a family's formulas make of a file.

    Args:
      seq_len: of the caller's own; None = the file's longest.
    Raises:
      MissingKey: a key that the file must have. InputError: values that cannot be meant.
    """
    sizes = {
        name: scope.value(formula)
        for name, formula in family.sizes.items()
        if not (name == "seq_len" and seq_len is not None)
    }
    sizes |= {} if seq_len is None else {"seq_len": seq_len}
    layers = [_layer(family, scope, i) for i in range(_depth(sizes.pop("layers")))]
    for name, size in sizes.items():
        _check(name, size, "model", "small")
    kinds, order = _kinds(family, scope, layers)
    blocks = [{"layers": order.count(k), **kind} for k, kind in enumerate(kinds)]
    further = _further(family, scope, layers, kinds)
    blocks += [{"layers": 0, **kind} for kind in kinds[len(blocks) :]]
    return assembled(sizes, blocks, tuple(order) if len(blocks) > 1 else (), further)


def _depth(layers: Any) -> int:
    if not isinstance(layers, int | float) or not 1 <= layers <= DEEPEST:
        raise InputError(
            f"'num_hidden_layers': expected a whole number from 1 to {DEEPEST:,}, got "
            f"{layers!r:.40}"
        )
    return int(layers)


def _layer(family: Family, scope: Scope, i: int) -> Layer:
    """Names of the parts of one layer."""
    mixer = scope.of(i).value(family.mixer)
    return Layer(mixer, scope.of(i, Layer(mixer, "")).value(family.feed))


def _kinds(
    family: Family, scope: Scope, layers: list[Layer]
) -> tuple[list[dict[str, Any]], list[int]]:
    """Blocks without their numbers of layers, and the block of each layer."""
    kinds: list[dict[str, Any]] = []
    order: list[int] = []
    for i, layer in enumerate(layers):
        block = _block(family, scope.of(i, layer), layer, i)
        if block not in kinds:
            kinds.append(block)
        order.append(kinds.index(block))
    return kinds, order


def _block(family: Family, scope: Scope, layer: Layer, i: int) -> dict[str, Any]:
    """Mixer and feed-forward part of one layer."""
    found = {}
    for side, name, known in (
        ("mixer", layer.mixer, family.mixers),
        ("feed", layer.feed, family.feeds),
    ):
        if name == "":
            continue
        if not isinstance(name, str) or name not in known:
            raise InputError(
                f"layer {i}: {name!r:.40} is no {side} that is read here; expected one of: "
                f"{', '.join(known)}"
            )
        found[side] = _part(known[name], scope, f"layer {i}, {name}")
    return found


def _part(part: PartFormulas, scope: Scope, where: str) -> dict[str, Any]:
    """A part's kind and its sizes; those that are None are as when nothing is said."""
    may_be_zero = part.sizes.keys() - {*KINDS[part.kind].COUNTED}
    sizes = {}
    for name, formula in part.sizes.items():
        size = scope.value(formula)
        if size is not None:
            _check(name, size, where, *may_be_zero)
            sizes[name] = size
    _check_heads(sizes, where)
    return {"kind": part.kind} | {n: _plain(size) for n, size in sizes.items()}


def _plain(size: Any) -> int | float:
    return int(size) if size == int(size) else float(size)


def _check(name: str, size: Any, where: str, *may_be_zero: str) -> None:
    """Refuse a size that is no whole number, or too small."""
    least = 0 if name in (*may_be_zero, *MAY_BE_ZERO) else 1
    number = isinstance(size, int | float) and abs(size) <= LARGEST**2 and size == math.floor(size)
    if not number or (size < least and name not in MAY_BE_BELOW):
        raise InputError(f"{where}: {name}: expected a whole number from {least}, got {size!r:.40}")


def _check_heads(sizes: dict[str, Any], where: str) -> None:
    """Refuse heads that do not divide, and more experts for a token than there are."""
    heads, shared = sizes.get("n_heads"), sizes.get("n_kv_heads")
    if heads and shared and heads % shared:
        raise InputError(
            f"{where}: the {heads:g} heads are not a multiple of the {shared:g} KV heads"
        )
    top, experts = sizes.get("top_k"), sizes.get("n_experts")
    if top and experts and top > experts:
        raise InputError(f"{where}: top-k {top:g} exceeds the {experts:g} experts")


def _further(
    family: Family, scope: Scope, layers: list[Layer], kinds: list[dict[str, Any]]
) -> list[int]:
    """Blocks of a head of further tokens; those that no layer is are added to the kinds."""
    last = scope.of(len(layers) - 1, layers[-1])
    said = last.value(family.further) if family.further else None
    found = []
    for names in said or [layers[-1]]:
        layer = Layer(*names)
        at = len(layers) if said else len(layers) - 1
        block = _block(family, scope.of(at, layer), layer, at)
        if block not in kinds:
            kinds.append(block)
        found.append(kinds.index(block))
    return found
