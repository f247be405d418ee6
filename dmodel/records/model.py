"""What is trained: an embedding, a head, and layers of a few kinds, each a mixer and a feed-forward
part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel import struct
from dmodel.errors import InputError
from dmodel.once import once
from dmodel.types import Array, at_hand

COUNTED = ("n_layers", "d_model", "vocab", "seq_len")
"""What every model has one of at least."""

NONE = -1
"""In the place of a mixer, or of a feed-forward part, of a layer without one."""


class Block(NamedTuple):
    """One kind of layer. mixer, feed: its parts, None where it has none. layers: how many there
    are [count]."""

    mixer: Any
    feed: Any
    layers: Array


class Model(struct.PyTreeNode, kw_only=True):
    """A decoder: embedding, layers, head. Kinds of layer are static; their sizes are leaves.

    Attributes:
      n_layers: L, layers [count].
      d_model: h, width of what goes from layer to layer [count].
      vocab: V, tokens of the vocabulary [count].
      seq_len: s, length of a sequence [token].
      learned_positions: 1 = a learned vector for each position of the sequence; 0 = none.
      tied_embeddings: 1 = input and output embeddings are one matrix; 0 = two.
      causal: 1 = a token sees those before it; 0 = all.
      n_mtp: heads that predict further tokens, each with layers and logits of its own [count].
      trainable: 1 = weights are trained; 0 = frozen (LoRA), without their gradients and optimizer.
      first_adapters: low-rank adapters beside products that read h, of a layer [count]; 0 = none.
      first_adapted: width of what those products return, all together [count]; 0 = none.
      last_adapters: low-rank adapters beside products that return h, of a layer [count]; 0 = none.
      last_adapted: width of what those products read, all together [count]; 0 = none.
      adapter_dropout: 1 = dropout before or behind adapters; 0 = none.
      small: parameters beside embeddings, head, positions and last norm [count]; 0 = none.
      shares: share of the layers that are of each kind [1].
      further: layers of each kind in a head of further tokens [count].
      mixers: the mixers that there are, records of `dmodel.blocks`.
      feeds: the feed-forward parts that there are, records of `dmodel.blocks`.
      pairs: mixer and feed-forward part of each kind by index, `NONE` for none (static).
      order: kind of each layer, first to last; () = evenly mixed (static).
    """

    CHOICES = frozenset(
        "learned_positions tied_embeddings causal trainable adapter_dropout shares further".split()
    )
    """Fields that are choices, not sizes: no derivative is asked for."""

    n_layers: Array
    d_model: Array
    vocab: Array
    seq_len: Array
    learned_positions: Array = 0.0
    tied_embeddings: Array = 0.0
    causal: Array = 1.0
    n_mtp: Array = 0.0
    trainable: Array = 1.0
    first_adapters: Array = 0.0
    first_adapted: Array = 0.0
    last_adapters: Array = 0.0
    last_adapted: Array = 0.0
    adapter_dropout: Array = 0.0
    small: Array = 0.0
    shares: tuple[Array, ...]
    further: tuple[Array, ...]
    mixers: tuple[Any, ...]
    feeds: tuple[Any, ...]
    pairs: tuple[tuple[int, int], ...] = struct.field(pytree_node=False)
    order: tuple[int, ...] = struct.field(pytree_node=False, default=())

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Kinds of layer with their counts, heads of further tokens not among them."""
        return tuple(
            Block(_at(self.mixers, i), _at(self.feeds, j), self.n_layers * share)
            for (i, j), share in zip(self.pairs, self.shares, strict=True)
        )

    @property
    def parts(self) -> tuple[Any, ...]:
        """Mixers, then feed-forward parts."""
        return (*self.mixers, *self.feeds)

    @property
    def layers(self) -> Array:
        """Layers, those in heads of further tokens included [count]."""
        return self.n_layers + self.n_mtp * _sum(self.further)

    @property
    def weights(self) -> tuple[Array, ...]:
        """How many of each part the mean layer holds [1], in the order of `parts`."""
        return _weights(self)


@once
def _weights(model: Model) -> tuple[Array, ...]:
    """As `Model.weights`; 1 of a part that every layer has, since shares add up to 1."""
    layers = model.layers
    kinds = [
        (model.n_layers * share + model.n_mtp * more) / layers
        for share, more in zip(model.shares, model.further, strict=True)
    ]
    found = []
    for side, there in ((0, model.mixers), (1, model.feeds)):
        for i in range(len(there)):
            own = [kinds[k] for k, pair in enumerate(model.pairs) if pair[side] == i]
            found.append(1.0 if len(own) == len(kinds) else _sum(own))
    return tuple(found)


def _at(parts: Sequence[Any], index: int) -> Any:
    return None if index == NONE else parts[index]


def _sum(values: Sequence[Array]) -> Array:
    """Sum of one value or more."""
    first, *others = values
    return sum(others, start=first)


def named_parts(model: Model) -> dict[str, Any]:
    """Parts by name: their kind, with a number from the second one of a kind on."""
    found: dict[str, Any] = {}
    for part in model.parts:
        same = sum(type(other) is type(part) for other in found.values())
        found[part.KIND + (f"_{same + 1}" if same else "")] = part
    return found


def having(model: Model, name: str) -> list[Any]:
    """Parts that have a field of a name."""
    return [part for part in model.parts if name in part.__dataclass_fields__]


def value(model: Model, name: str, otherwise: Array = 0.0) -> Array:
    """A size by its name: of the model, else of the part that has it. Where several parts do, the
    mean over the layers that have it; where none does, `otherwise`."""
    if name in Model.__dataclass_fields__:
        return getattr(model, name)
    return _mean(
        [
            (weight, getattr(part, name))
            for part, weight in zip(model.parts, model.weights, strict=True)
            if name in part.__dataclass_fields__
        ],
        otherwise,
    )


def _mean(pairs: Sequence[tuple[Array, Array]], otherwise: Array) -> Array:
    """Mean of sizes by weights; `otherwise` where these are 0."""
    if not pairs:
        return otherwise
    if len(pairs) == 1 and isinstance(pairs[0][0], float):
        return pairs[0][1]
    whole = _sum([weight for weight, _ in pairs])
    at = np if at_hand(*(x for pair in pairs for x in pair), otherwise) else jnp
    there = at.where(whole > 0.0, whole, 1.0)
    mean = _sum([weight * size for weight, size in pairs]) / there
    return at.where(whole > 0.0, mean, otherwise)


def ff_width(model: Model) -> Array:
    """Width of one routed expert, else of the MLP, else 1; of several the mean [count]."""
    weighted = list(zip(model.parts, model.weights, strict=True))
    routed, plain = (
        [
            (weight, part.d_ff)
            for part, weight in weighted
            if "d_ff" in part.__dataclass_fields__
            and ("n_experts" in part.__dataclass_fields__) == experts
        ]
        for experts in (True, False)
    )
    return _mean(routed, _mean(plain, 1.0))


def counts_of(model: Model, mark: str) -> list[Array]:
    """Sizes that a mark of `blocks.part.Part` names, `SPLIT` or `COPIED`, of all parts [count]."""
    return [getattr(part, name) for part in model.parts for name in getattr(part, mark)]


def sized(model: Model, **sizes: Array) -> Model:
    """The model with other sizes by name, those of parts in all parts that have them.

    Raises:
      InputError: neither the model nor a part of it has one of that name.
    """
    own = {n: x for n, x in sizes.items() if n in Model.__dataclass_fields__}
    inner = {n: x for n, x in sizes.items() if n not in own}
    if missing := [n for n in inner if not having(model, n)]:
        there = sorted({n for part in model.parts for n in part.__dataclass_fields__})
        raise InputError(
            f"{', '.join(missing)}: no part of this model has it; its parts have {', '.join(there)}"
        )

    def changed(part: Any) -> Any:
        return part.replace(**{n: x for n, x in inner.items() if n in part.__dataclass_fields__})

    return model.replace(
        mixers=tuple(map(changed, model.mixers)), feeds=tuple(map(changed, model.feeds)), **own
    )


def stacked(models: Sequence[Model]) -> Model:
    """Models as one batch, leaves `[n]`: of kinds that a case does not have, it has no layers.

    Sizes of a part that a case does not have are those of the first case that has it.
    """
    if len({jax.tree.structure(model.replace(order=())) for model in models}) == 1:
        found = jax.tree.map(lambda *xs: np.array(xs, np.float64), *_without_order(models))
        return found.replace(order=_shared({model.order for model in models}))
    slots = [_slots(model) for model in models]
    mixers, feeds = (tuple(dict.fromkeys(chain(*side))) for side in zip(*slots, strict=True))
    named = [_named_pairs(model, *each) for model, each in zip(models, slots, strict=True)]
    pairs = tuple(dict.fromkeys(chain(*named)))
    return Model(
        **_own_sizes(models),
        shares=tuple(_of_kind(models, named, pair, "shares") for pair in pairs),
        further=tuple(_of_kind(models, named, pair, "further") for pair in pairs),
        mixers=tuple(_filled(models, slots, 0, slot) for slot in mixers),
        feeds=tuple(_filled(models, slots, 1, slot) for slot in feeds),
        pairs=tuple((_place(mixers, i), _place(feeds, j)) for i, j in pairs),
    )


def _own_sizes(models: Sequence[Model]) -> dict[str, Any]:
    """Sizes of models that are none of their layers', `[n]` each."""
    return {n: np.array([getattr(model, n) for model in models], np.float64) for n in OF_MODEL}


INSIDE = ("shares", "further", "mixers", "feeds", "pairs", "order")
"""Fields that are made of kinds of layers."""

OF_MODEL = tuple(name for name in Model.__dataclass_fields__ if name not in INSIDE)
"""Sizes of a model that are none of its layers'."""

Slot = tuple[type, int]
"""A part's kind, and the how manieth of that kind it is."""


def _without_order(models: Sequence[Model]) -> Iterator[Model]:
    return (model.replace(order=()) for model in models)


def _shared(orders: set[tuple[int, ...]]) -> tuple[int, ...]:
    return orders.pop() if len(orders) == 1 else ()


def _slots(model: Model) -> tuple[list[Slot], list[Slot]]:
    """Slots of a model's mixers, and of its feed-forward parts."""

    def of(parts: Sequence[Any]) -> list[Slot]:
        kinds = [type(part) for part in parts]
        return [(kind, kinds[:i].count(kind)) for i, kind in enumerate(kinds)]

    return of(model.mixers), of(model.feeds)


def _named_pairs(
    model: Model, mixers: Sequence[Slot], feeds: Sequence[Slot]
) -> list[tuple[Slot | None, Slot | None]]:
    """Slots of both parts of each kind of layer."""
    return [(_slot(mixers, i), _slot(feeds, j)) for i, j in model.pairs]


def _slot(slots: Sequence[Slot], index: int) -> Slot | None:
    return None if index == NONE else slots[index]


def _place(slots: Sequence[Slot], slot: Slot | None) -> int:
    return NONE if slot is None else slots.index(slot)


def _of_kind(models: Sequence[Model], named: Sequence, pair: tuple, field: str) -> np.ndarray:
    """A number of one kind of layer in each case, `[n]`; 0 where it has none."""
    return np.array(
        [
            sum(float(x) for p, x in zip(own, getattr(model, field), strict=True) if p == pair)
            for model, own in zip(models, named, strict=True)
        ]
    )


def _filled(models: Sequence[Model], slots: Sequence, side: int, slot: Slot) -> Any:
    """One part of all cases, leaves `[n]`."""
    own = [
        _at((m.mixers, m.feeds)[side], each[side].index(slot) if slot in each[side] else NONE)
        for m, each in zip(models, slots, strict=True)
    ]
    spare = next(part for part in own if part is not None)
    return jax.tree.map(
        lambda *xs: np.array(xs, np.float64), *(spare if part is None else part for part in own)
    )


def trimmed(model: Model) -> Model:
    """A model of plain numbers, or of arrays of these, without the kinds of which it has no layer,
    nor their parts."""
    kinds = zip(model.shares, model.further, strict=True)
    used = [k for k, both in enumerate(kinds) if any(np.any(x) for x in both)]
    if len(used) == len(model.pairs):
        return model
    sides = list(zip(*(model.pairs[k] for k in used), strict=True))
    mixers, feeds = ([i for i in dict.fromkeys(side) if i != NONE] for side in sides)
    return model.replace(
        shares=_picked(model.shares, used),
        further=_picked(model.further, used),
        mixers=_picked(model.mixers, mixers),
        feeds=_picked(model.feeds, feeds),
        pairs=tuple(zip(_renumbered(sides[0], mixers), _renumbered(sides[1], feeds), strict=True)),
        order=tuple(used.index(k) for k in model.order),
    )


def _picked(values: Sequence[Any], places: Sequence[int]) -> tuple[Any, ...]:
    return tuple(values[i] for i in places)


def _renumbered(indices: Sequence[int], kept: Sequence[int]) -> Iterator[int]:
    """Indices of parts among those that are kept."""
    return (NONE if i == NONE else kept.index(i) for i in indices)


def check_counts(model: Model) -> None:
    """Refuse a model of plain numbers without something that it must have; arrays are taken as they
    are.

    Raises:
      InputError: one of `COUNTED`, or of the sizes that a part must have, is below 1, or no number.
    """
    sizes = [("", name, getattr(model, name)) for name in COUNTED]
    for title, part in named_parts(model).items():
        sizes += [(f"{title}: ", name, getattr(part, name)) for name in part.COUNTED]
    for where, name, size in sizes:
        if isinstance(size, int | float) and not size >= 1.0:
            raise InputError(f"model: {where}{name}: expected a number from 1 on; got {size!r}")
