"""The tables of a step: rows of work, messages and residents of the mean layer, and of the head.

Every part of a layer adds rows (`dmodel.blocks`); a row of zero copies costs nothing. Counts are
per device, per layer and per micro-batch unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dmodel import struct
from dmodel.blocks.part import WORD, Kept, Passes, Site, Weights, Work, site, tokens
from dmodel.once import once
from dmodel.records import Model, Plan, ends_together
from dmodel.smooth import ramp
from dmodel.traced import traced_once
from dmodel.types import Array, at_hand, smaller, stack


class Matmuls(struct.PyTreeNode, kw_only=True):
    """Rows of forward matrix products, `[row, *batch]`.

    Attributes:
      rows, columns, inner: M, N and K of one product [count]. copies: how many of that size run
      [count]. grouped: 1 where several run as one grouped kernel. kinds: of each row (static).
    """

    rows: jax.Array
    columns: jax.Array
    inner: jax.Array
    copies: jax.Array
    grouped: Array = 0.0
    kinds: tuple[str, ...] = struct.field(pytree_node=False, default=())

    @property
    def flops(self) -> jax.Array:
        """2 M N K · copies [FLOP]."""
        return 2.0 * self.rows * self.columns * self.inner * self.copies

    @property
    def elements(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Elements of the left operand (M K), the right one (K N) and the result (M N), all copies
        [count]."""
        inner = self.inner * self.copies
        return self.rows * inner, self.columns * inner, self.rows * self.columns * self.copies

    def of(self, values: jax.Array | np.ndarray, *kinds: str) -> Array:
        """Sum of values `[row, *batch]` over rows of some kinds; 0 where there are none."""
        return summed(values[i] for i, kind in enumerate(self.kinds) if kind in kinds)

    def marked(self, kinds: Iterable[str]) -> np.ndarray:
        """1 for rows of some kinds, else 0, `[row, 1…]`, as many axes as rows have."""
        there = set(kinds)
        marks = np.array([float(kind in there) for kind in self.kinds])
        return marks.reshape(-1, *[1] * (jnp.ndim(self.rows) - 1))


class Cores(struct.PyTreeNode, kw_only=True):
    """Rows of what mixes tokens, `[row, *batch]`; as `blocks.part.Core`."""

    flops: jax.Array
    exponentials: jax.Array
    softmax_bytes: jax.Array
    stretch: jax.Array
    behind: jax.Array


class Layer(struct.PyTreeNode, kw_only=True):
    """The mean layer: sums over its parts of what `blocks.part.Work` says, each as often as the
    mean layer holds it.

    Attributes:
      products: rows, the head's last. cores: rows. rings: parts whose keys or states go round the
        ring of cp [count]. routed: share of the layers with routed experts. mixture: 1 where there
        are any; a float where no kind of layer has them. sent, visits, route: of such a layer.
    """

    products: Matmuls
    cores: Cores | None
    streams: Passes
    added: Array
    kernels: Array
    dense: Array
    looped: Array
    casts: Array
    mixed: Array
    passed: Array
    routed: Array
    mixture: Array
    rings: Array
    ring: Array
    returned: Array
    sent: Array
    visits: Array
    route: Array


def summed(values: Iterable[Array]) -> Array:
    """Sum of what is not the number 0; 0 of nothing."""
    first, *others = [x for x in values if not _is(x, 0.0)] or [0.0]
    return sum(others, start=first)


def times(weight: Array, value: Array) -> Array:
    """A product that leaves out factors of 1, and is 0 where a factor is the number 0."""
    if _is(weight, 0.0) or _is(value, 0.0):
        return 0.0
    return value if _is(weight, 1.0) else weight if _is(value, 1.0) else weight * value


def _is(value: Array, number: float) -> bool:
    return isinstance(value, float) and value == number


def _weighted(parts: Sequence[Any], weights: Sequence[Array], name: str) -> Array:
    """Sum of a field over parts, each as often as the mean layer holds it."""
    return summed(
        times(weight, getattr(part, name)) for part, weight in zip(parts, weights, strict=True)
    )


SUMS = (
    *("added", "kernels", "dense", "looped", "casts"),
    *("mixed", "passed", "ring", "returned"),
)
"""Fields of `blocks.part.Work` that add up over the parts of the mean layer."""


@once
@traced_once
def layer(model: Model, plan: Plan) -> Layer:
    """The mean layer of a model, and its head, by a plan."""
    at, weights = site(model, plan), model.weights
    works: list[Work] = [part.work(at) for part in model.parts]
    routed = [
        (work, w) for work, w in zip(works, weights, strict=True) if not _is(work.routed, 0.0)
    ]
    share = summed(w for _, w in routed)
    both = [
        summed(
            times(w, getattr(work.streams, side)) for work, w in zip(works, weights, strict=True)
        )
        for side in Passes._fields
    ]
    sums = {name: _weighted(works, weights, name) for name in SUMS}
    ringing = summed(w for work, w in zip(works, weights, strict=True) if not _is(work.ring, 0.0))
    return Layer(
        products=_products(works, weights, model, plan),
        cores=_cores(works, weights),
        streams=Passes(*both),
        **_with_adapters(sums, model, at),
        routed=share,
        mixture=_there(share),
        rings=ringing,
        **{name: _mean(routed, share, name) for name in ("sent", "visits", "route")},
    )


def _there(share: Array) -> Array:
    """1 where a share is above 0, without a slope."""
    if isinstance(share, float):
        return float(share > 0.0)
    return np.where(share > 0.0, 1.0, 0.0) if at_hand(share) else jnp.where(share > 0.0, 1.0, 0.0)


def _mean(routed: Sequence[tuple[Work, Array]], share: Array, name: str) -> Array:
    """A number of layers with routed experts, the mean where they differ."""
    if not routed:
        return 0.0
    if len(routed) == 1:
        return getattr(routed[0][0], name)
    # as of a layer of the first kind where there is none
    none = 1.0 - _there(share)
    total = summed(times(w, getattr(work, name)) for work, w in routed)
    return (total + none * getattr(routed[0][0], name)) / (share + none)


def _with_adapters(sums: dict[str, Any], model: Model, at: Site) -> dict[str, Any]:
    """Kernels with those of adapters: 5 in a pass (2 products, scale, addition; 6 backward), 1 for
    dropout, under tp a collective, or 2 where one returns h."""
    all_of = model.first_adapters + model.last_adapters
    more = (5.0 + model.adapter_dropout + at.several) * all_of + at.several * model.last_adapters
    return sums | {"kernels": sums["kernels"] + more}


def _products(works: Sequence[Work], weights: Sequence[Array], model: Model, plan: Plan) -> Matmuls:
    """Rows of all parts, and the head's. A head of further tokens reads `2 h` into h before its
    logits: columns of the mean head's `(V + 2 h n / (1 + n)) / tp`."""
    rows = [
        (row, times(weight, row.copies))
        for work, weight in zip(works, weights, strict=True)
        for row in work.products
    ]
    tp, heads = plan.layout.tp, 1.0 + model.n_mtp
    logits = (model.vocab + 2.0 * model.d_model * model.n_mtp / heads) / tp
    found = columns(
        rows=(*(row.rows for row, _ in rows), tokens(model, plan)),
        columns=(*(row.columns for row, _ in rows), logits),
        inner=(*(row.inner for row, _ in rows), model.d_model),
        copies=(*(copies for _, copies in rows), heads),
        grouped=(*(row.grouped for row, _ in rows), 0.0),
    )
    return Matmuls(**found, kinds=(*(row.kind for row, _ in rows), "head"))


def columns(**values: Sequence[Array]) -> dict[str, Any]:
    """Columns of a table from the values of its rows, `[row, *batch]`, all of one rank; a column of
    the number 0 alone is 0."""
    ranks = max(jnp.ndim(x) for column in values.values() for x in column)
    return {name: _column(column, ranks) for name, column in values.items()}


def _column(values: Sequence[Array], ranks: int) -> Any:
    if all(_is(x, 0.0) for x in values):
        return 0.0
    found = stack(*values)
    return found.reshape(found.shape + (1,) * (ranks + 1 - found.ndim))


def _cores(works: Sequence[Work], weights: Sequence[Array]) -> Cores | None:
    """Rows of all parts; None where no part mixes tokens."""
    rows = [
        (row, weight) for work, weight in zip(works, weights, strict=True) for row in work.cores
    ]
    if not rows:
        return None
    weighted = ("flops", "exponentials", "softmax_bytes")
    return Cores(
        **columns(
            **{name: [times(w, getattr(row, name)) for row, w in rows] for name in weighted},
            **{name: [getattr(row, name) for row, _ in rows] for name in ("stretch", "behind")},
        )
    )


class Parameters(struct.PyTreeNode, kw_only=True):
    """Parameters of a model [count]: of the mean layer as `blocks.part.Weights` has them, of the
    input embedding, of the output head, and the layers that there are, those in heads of further
    tokens included."""

    layer: Weights
    embedding: Array
    head: Array
    layers: Array


@once
@traced_once
def parameter_groups(model: Model) -> Parameters:
    """Parameters by the place where they live.

    `embedding = V h`, `head = V h` unless tied, `+ h` (last norm), `+ s h` where positions are
    learned, what is small beside them, and a projection `2 h → h` with three norms for each head of
    further tokens.
    """
    h, weights = model.d_model, model.weights
    parts = [part.parameters(h) for part in model.parts]
    further = (2.0 * h * h + 3.0 * h) * model.n_mtp
    beside = (1.0 + model.learned_positions * model.seq_len) * h + model.small
    return Parameters(
        layer=Weights(*(_weighted(parts, weights, name) for name in Weights._fields)),
        embedding=model.vocab * h,
        head=model.vocab * h * (1.0 - model.tied_embeddings) + beside + further,
        layers=model.layers,
    )


@once
@traced_once
def layer_keeps(model: Model, plan: Plan) -> Kept:
    """Activations that the mean layer keeps where nothing but the core of attention is done again
    [byte].

    Adapters keep what they read, of h once for the mixer and once for the MLP, or after dropout
    each its own with a mask of a byte.
    """
    at, weights = site(model, plan), model.weights
    kept = [part.keeps(at) for part in model.parts]
    sums = {name: _weighted(kept, weights, name) for name in Kept._fields}
    return Kept(**sums)._replace(adapters=at.t * _read_by_adapters(model, plan))


def _read_by_adapters(model: Model, plan: Plan) -> Array:
    """Bytes of a token that adapters keep; gathered, where sequence parallelism splits h."""
    places = summed(model.weights)
    shared, own = (
        n * model.d_model + model.last_adapted / plan.layout.tp
        for n in (smaller(model.first_adapters, places), model.first_adapters)
    )
    dropped = model.adapter_dropout
    return (1.0 - dropped) * WORD * shared + dropped * (WORD + 1.0) * own


def ends_of(plan: Plan) -> Array:
    """1 where embedding and head are on one rank, 0 where on two."""
    alone = ramp(2.0 - plan.layout.pp)
    return alone + (1.0 - alone) * ends_together(plan.layout)
