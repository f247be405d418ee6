"""Time of a matrix product on a GPU whose memory has tiers: HBM, L2, shared memory of the
multiprocessors, registers.

Each tier works on tiles that fill the next smaller memory; what the tiles read and write flows
between the two, and the slowest flow, or the arithmetic, is the time. Products are `d1 × d2`
weights times b tokens: `A1 = w d1 b` bytes on one side, `A2 = w d2 b` on the other.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dmodel.smooth import maximum
from dmodel.theory.gpus import BLOCKS, Gpu
from dmodel.types import Array, stack

WORD = 2.0
"""Bytes of one element of weights, activations and gradients."""

ROUNDING = 1.0 - 2.0**-50
"""A compiler may divide by multiplying with the reciprocal: a whole quotient that comes out a hair
too large keeps its ceiling."""


class Rules(NamedTuple):
    """How a product is cut.

    Attributes:
      steps: whole tiles and padded sizes, as in the study; False gives their continuous
        counterparts, which agree where sizes are whole
        and memories are far from full, and have slopes.
      all_or_nothing: weights stay in a memory only when all of them and their gradients fit, as in
        the study; False lets the part stay
        that fits.
      padding: sizes are padded to multiples of this [element].
      registers_as_cache: all registers of a multiprocessor count as L2 when they are larger.
      exchange_both: every product, not only that of weight gradients, sends each side once it is
        cut, twice what its first part needs.
    """

    steps: bool = True
    all_or_nothing: bool = True
    padding: float = 8.0
    registers_as_cache: bool = True
    exchange_both: bool = False


EXACT = Rules()
"""The code of the study of 2024-10-23."""

UNROUNDED = Rules(steps=False)
"""The same with real division; one step is left, where weights begin to fit into a memory."""

RELAXED = Rules(steps=False, all_or_nothing=False)
"""The same without steps, as a search by gradient needs it."""

REVISION_3A871BE = Rules(padding=16.0, registers_as_cache=False, exchange_both=True)
"""A later revision of the study's code."""


class Product(NamedTuple):
    """A product `d1 × d2` of b tokens [element]; `gradient` 1 when it is the one that makes the
    weight gradient, else 0."""

    d1: Array
    d2: Array
    b: Array
    gradient: Array = 0.0

    @property
    def weights(self) -> Array:
        """w d1 d2 [byte]."""
        return WORD * self.d1 * self.d2

    @property
    def sides(self) -> tuple[Array, Array]:
        """A1, A2: activations of the two sides [byte]."""
        return WORD * self.d1 * self.b, WORD * self.d2 * self.b


class Traffic(NamedTuple):
    """Bytes of a product between a tier and the one above it, and among the units of the tier."""

    above: Array
    among: Array


def tiles(d1: Array, d2: Array, capacity: Array, rules: Rules = EXACT) -> tuple[Array, Array]:
    """Rows r and columns c of tiles that weights `d1 × d2` are cut into so that each fills
    `capacity` bytes: as square as they can be.

    `k = ceil(w d1 d2 / capacity)`, `r = min(max(sqrt(k d1 / d2), 1), k)`, `c = k / r`; both are
    real numbers.

    Limits: one tile when the weights fit; one row, or column, when the weights are narrower than a
    square tile.
    """
    whole = WORD * d1 * d2 / capacity
    k = jnp.ceil(whole * ROUNDING) if rules.steps else jnp.maximum(whole, 1.0)
    r = jnp.clip(jnp.sqrt(k * d1 / d2), 1.0, k)
    return r, k / r


def _streamed(weights: Array, room: Array, rules: Rules) -> Array:
    """Weights that pass by because they and their gradients do not fit into `room` bytes, or the
    part that does not."""
    if rules.all_or_nothing:
        return jnp.where(2.0 * weights <= room, 0.0, weights)
    return jnp.maximum(weights - 0.5 * room, 0.0)


def _once_cut(parts: Array, rules: Rules) -> Array:
    """The number of parts when there are several, 0 for one; linear between one and two when
    relaxed."""
    return (
        jnp.where(parts > 1.0, parts, 0.0)
        if rules.steps
        else parts * jnp.clip(parts - 1.0, 0.0, 1.0)
    )


def traffic(
    p: Product, capacity: Array, units: Array, distributed: Array, rules: Rules = EXACT
) -> Traffic:
    """Bytes that a product moves to and from `units` memories of `capacity` bytes each.

    With r × c tiles, A2 is read once for each row and A1 is read and written for each column: `W +
    r A2 + (2c − 1) A1`, and for the
    weight gradient `2W + r A2 + c A1`; W = 0 when twice the weights fit. Distributed units cut as
    one memory and pass on among them what each of theirs, cut by itself, needs.

    Args:
      capacity: of one unit [byte]. units: that share the work. distributed: 1 when units read each
        other's memory, else 0.
    """
    (a1, a2), g = p.sides, p.gradient
    room = capacity * units
    r, c = tiles(p.d1, p.d2, capacity * (1.0 + distributed * (units - 1.0)), rules)
    streamed = (1.0 + g) * _streamed(p.weights, room, rules)
    above = streamed + r * a2 + (2.0 * c - 1.0 + g * (1.0 - c)) * a1
    rows, columns = tiles(p.d1, p.d2, capacity, rules)
    if rules.exchange_both:
        among = 2.0 * ((rows - 1.0) * a2 + (columns - 1.0) * a1)
    else:
        forward = 2.0 * (columns - 1.0)
        among = (
            _once_cut(rows, rules) * a2 + (forward + g * (_once_cut(columns, rules) - forward)) * a1
        )
    return Traffic(above=above, among=distributed * among)


def padded(size: Array, rules: Rules = EXACT) -> Array:
    """The size as the tensor cores see it: the next multiple of the padding; relaxed, no less than
    it."""
    return (
        jnp.ceil(size / rules.padding) * rules.padding
        if rules.steps
        else jnp.maximum(size, rules.padding)
    )


def flows(p: Product, gpu: Gpu, rules: Rules = EXACT) -> jax.Array:
    """Times of a product's flows when each had the GPU to itself [s], `[4, *batch]`: HBM, L2,
    shared memory, arithmetic.

    `G / HBM`, `(G + V) / L2`, `(V + X + R) / shared`, `2 d1 d2 b / rate` with G to L2, V to the
    multiprocessors, X among them, R to the registers.
    """
    registers = gpu.register_bytes
    cache = (
        jnp.maximum(gpu.l2_bytes, BLOCKS * registers) if rules.registers_as_cache else gpu.l2_bytes
    )
    to_cache = traffic(p, cache, 1.0, 0.0, rules).above
    to_units, among = traffic(
        p, BLOCKS * registers, gpu.processors, gpu.distributed_shared_memory, rules
    )
    to_registers = traffic(p, registers, BLOCKS * gpu.processors, 0.0, rules).above
    flop = 2.0 * padded(p.d1, rules) * padded(p.d2, rules) * padded(p.b, rules)
    return stack(
        to_cache / gpu.hbm_bytes_per_s,
        (to_cache + to_units) / gpu.l2_bytes_per_s,
        (to_units + among + to_registers) / gpu.shared_bytes_per_s,
        flop / (gpu.sustained * gpu.flops_per_s),
    )


def matmul_time(
    d1: Array,
    d2: Array,
    b: Array,
    gpu: Gpu,
    *,
    weight_gradient: Array = 0.0,
    rules: Rules = EXACT,
    sharpness: float = jnp.inf,
) -> jax.Array:
    """Time of one matrix product on one GPU [s]: its latency and the slowest of its flows.

    Limits: the latency, 4.5 µs on today's GPUs, when small; linear in a size while weights or
    activations flow; cubic, at the sustained rate, when all sizes are large.

    Args:
      d1, d2: sizes of the weights, b: tokens [element]. weight_gradient: 1 for the product that
        makes the weights' gradient.
      rules: of cutting; `RELAXED` has slopes. sharpness: of the maximum. Both static.

    Returns:
      `[*batch]`.

    >>> from dmodel.theory import gpu
    >>> a100 = gpu("A100 SXM").chip
    >>> [f"{matmul_time(d, d, d, a100) * 1e6:.1f} µs" for d in (64.0, 1024.0, 8192.0)]
    ['4.5 µs', '12.6 µs', '4152.2 µs']
    """
    return gpu.kernel_latency_s + maximum(
        flows(Product(d1, d2, b, weight_gradient), gpu, rules), sharpness
    )
