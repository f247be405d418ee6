"""Time of work on one chip: matrix products, the attention core, streaming kernels, launches."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dmodel.blocks.part import WORD, Passes
from dmodel.coefficients import Coefficients
from dmodel.once import once
from dmodel.records import Chip, Plan
from dmodel.smooth import SHARPNESS, excess, maximum_of_two, ramp
from dmodel.tables import Matmuls
from dmodel.types import Array, each, stack, unstacked


def matmul_time(
    products: Matmuls,
    flops_per_s: Array,
    operand_bytes: Array,
    chip: Chip,
    coefficients: Coefficients,
    sharpness: float = SHARPNESS,
) -> jax.Array:
    """Time of forward matrix products [s], `[op, *batch]`: the larger of arithmetic and memory.

    `2 (M + m₀)(N + n₀)(K / peak + (2 / operand) k₀ / peak₁₆) / η` against `(operand · (MK + KN) + 2
    · MN) / (HBM · η_mem)`; m₀, n₀ and k₀ are half_rows, half_columns and half_inner: in 16 bits
    sizes at which a product has half of its rate. The first two are what the last wave of tiles
    leaves idle, the third what a tile takes before its first product and behind its last one,
    longer for operands of fewer bits: by single calls 1.7 times in 8 and 5.6 in 4 (six and four
    chips, `calibration/micro/data/fits.json`), here 2 and 3.6. The backward products permute M, N
    and K and are taken to cost the same each.

    Limits: arithmetic `2MNK/(peak η_max)` as all dimensions grow; memory-bound as one of them
    shrinks.

    Args:
      products: sizes and copies, `[op, *batch]`.
      flops_per_s: peak rate of each product's precision [FLOP/s], `[op, *batch]`. operand_bytes: of
        its operands [byte], likewise.

    A product of 8192 × 8192 × 8192 on an H100, 76 % of whose peak of 989 TFLOP/s it reaches at the
    full clock by the default coefficients:

    >>> from dmodel import catalog, coefficients
    >>> side = jnp.full(1, 8192.0)
    >>> products = Matmuls(rows=side, columns=side, inner=side, copies=jnp.ones(1))
    >>> chip = catalog.chip("H100-80GB")
    >>> seconds = matmul_time(products, chip.flops_per_s, 2.0, chip, coefficients.default())
    >>> (products.flops / seconds / 1e12).round().tolist()
    [751.0]
    """
    c = coefficients
    grouped = 1.0 - products.grouped * (1.0 - each(c.grouped_efficiency))
    rows, columns = (
        products.rows + each(c.matmul_half_rows),
        products.columns + each(c.matmul_half_columns),
    )
    tile = WORD / operand_bytes * each(c.matmul_half_inner / chip.attention_flops_per_s)
    arithmetic = (
        2.0
        * rows
        * columns
        * products.copies
        * (products.inner / flops_per_s + tile)
        / (grouped * each(c.matmul_efficiency))
    )
    left, right, written = products.elements
    memory = (operand_bytes * (left + right) + WORD * written) * each(_per_byte(chip, c))
    return maximum_of_two(arithmetic, memory, sharpness)


SOFTER = 0.5
"""Sharpness of the passage from products to exponentials in fused attention over that of other
maxima [1]."""


def attention_time(
    flops: Array,
    exponentials: Array,
    softmax_bytes: Array,
    chip: Chip,
    coefficients: Coefficients,
    sharpness: float = SHARPNESS,
) -> Array:
    """Time of the attention core [s]: the larger of arithmetic in 16 bits and exponentials, plus
    the traffic of the scores where they go through memory.

    `max_p(flops / peak16, c_exp · E / exponentials per second) / η_attn + c_softmax · bytes / (HBM
    · η_mem)`. Fused kernels exponentiate one block of scores while they multiply another (Shah et
    al. 2024, arXiv 2407.08608), but not all of it: p is half the sharpness.
    Single calls on B200 and GB200 with heads of 64, 128 and 256 scatter by 6.3 and 7.1 % about p =
    4, by 6.5 and 7.5 % about 2, by 7.3
    and 8.5 % about the sum.

    Limits: arithmetic for wide heads, exponentials for narrow ones; with 16 exponentials a clock
    and SM they meet at heads of 32 on A100, 64 on H100 and 128 on B200, forward; backward, which
    has 2.5 times the products and as many exponentials, at 0.4 of that.

    Args:
      flops, exponentials, softmax_bytes: of the pass [FLOP], [count], [byte].
    """
    products, powers, through = _core(flops, exponentials, softmax_bytes, chip, coefficients)
    slower = maximum_of_two(products, powers, max(SOFTER * sharpness, 2.0))
    return slower / coefficients.attention_efficiency + through


def _core(
    flops: Array,
    exponentials: Array,
    softmax_bytes: Array,
    chip: Chip,
    coefficients: Coefficients,
) -> tuple[Array, Array, Array]:
    """Products and exponentials of attention at their peak rates, and the traffic of its scores
    [s]."""
    c = coefficients
    return (
        flops / chip.attention_flops_per_s,
        c.attention_exponentials * exponentials / chip.exponentials_per_s,
        c.softmax_traffic * softmax_bytes * _per_byte(chip, c),
    )


def attention_passes(
    flops: Array,
    exponentials: Array,
    softmax_bytes: Array,
    flash: Array,
    chip: Chip,
    coefficients: Coefficients,
    sharpness: float = SHARPNESS,
    behind: Array = 1.0,
) -> Passes:
    """Time of both passes of the attention core [s]: backward with twice the products and traffic,
    fused 2.5 times the products (five instead of two, one of them the scores done again: Dao 2023)
    beside as many exponentials, at a rate of its own (`attention_backward`).

    Args:
      flops, exponentials, softmax_bytes: of the forward pass [FLOP], [count], [byte]. flash: 1
        where kernels are fused. behind: products and traffic of the backward pass over those of
        attention's [1].
    """
    c, again = coefficients, behind * (2.0 + 0.5 * flash)
    products, powers, through = _core(flops, exponentials, softmax_bytes, chip, c)
    passes = stack(products, again * products, powers)
    slower = maximum_of_two(passes[:2], passes[2:], max(SOFTER * sharpness, 2.0))
    forward, backward = unstacked(slower / each(c.attention_efficiency))
    rate = 1.0 + flash * (c.attention_backward - 1.0)
    return Passes(forward + through, rate * (backward + again * through))


NARROW_ATTENTION = 2.0
"""Peak rate of products of 8 bits over that of 16 [1]. With its exponentials as they are, fused
attention on H100 comes out 1.6 times as fast forward, as FlashAttention-3 is (Shah et al. 2024,
arXiv 2407.08608: 1.2 PFLOP/s for 0.74)."""


def narrowed(plan: Plan) -> Array:
    """Time of the products of attention over that in 16 bits [1]: `1 / NARROW_ATTENTION` where
    fused and `Precision.attention_bytes` is 1."""
    return 1.0 / (
        1.0
        + (NARROW_ATTENTION - 1.0)
        * plan.software.flash
        * ramp(2.0 - plan.precision.attention_bytes)
    )


def older_kernels(plan: Plan) -> Passes:
    """Time of both passes of attention over that by the newest fused kernels of the chip [1]: `1 /
    Software.attention_rate` forward and
    `1 / Software.attention_backward_rate` backward where fused, else 1."""
    software = plan.software
    rates = software.attention_rate, software.attention_backward_rate
    return Passes(*(1.0 + software.flash * (1.0 / rate - 1.0) for rate in rates))


UNALIGNED = 2.0
"""Times as long as a 16-bit product takes whose rows do not begin on 16 bytes [1]: on an A100
cuBLAS then has kernels of Turing alone, at half the rate (pegainfer-project/pegainfer, pull request
1046). In vTrain's composed rows, with a vocabulary of 50,257 over tp, a token's logits cost 1.9
times as much per width at tp 1 as at tp 2, where ranks hold 25,128 columns."""


def off_vectors(plan: Plan) -> Array:
    """Times as long as products of the logits take whose rows miss loads of 16 bytes [1]; see
    `UNALIGNED`."""
    return 1.0 + (UNALIGNED - 1.0) * plan.software.unpadded_vocab


def streaming_time(nbytes: Array, chip: Chip, coefficients: Coefficients) -> Array:
    """Time of memory-bound kernels [s]: `bytes / (HBM · η_mem)`."""
    return nbytes * _per_byte(chip, coefficients)


@once
def _per_byte(chip: Chip, coefficients: Coefficients) -> Array:
    """What a byte takes through memory [s]."""
    return 1.0 / (chip.hbm_bytes_per_s * coefficients.memory_efficiency)


class Starts(NamedTuple):
    """What starting the kernels of a layer takes [s]: `fill` on the device, which fills and drains
    with each, `host` to launch them."""

    fill: Array
    host: Array


def starts(
    kernels: Array, launches: Array, meetings: Array, chip: Chip, coefficients: Coefficients
) -> Starts:
    """What starting kernels takes [s]: `fill = kernels · c_fill · latency`, `host = (launches ·
    c_launch + meetings · c_rendezvous) · latency`.

    Args:
      kernels: that the device runs in turn [count]. launches: kernels that the host launches one by
        one [count].
      meetings: tensor-parallel collectives times their ranks that the host launches beside
        transfers of a pipeline between nodes [count]. In the published sweep of one stack (nanotron
        on H100) a layer and micro-batch with both takes no less than 8.3, 12.7, 21, 46 and 114 ms
        on 2, 4, 8, 16 and 32 ranks whatever its width, batch and stages, 4.5 ms without a pipeline
        or with all stages in a node; other stacks show nothing of the kind.
    """
    c = coefficients
    fill = kernels * c.kernel_fill * chip.kernel_latency_s
    return Starts(fill, (launches * c.launch + meetings * c.rendezvous) * chip.kernel_latency_s)


def launch_time(device_time: Array, started: Starts, sharpness: float = SHARPNESS) -> jax.Array:
    """What starting kernels adds to their work on the device [s]: filling and draining each, and
    waiting for a host that is slower.

    `fill + max_p(device + fill, host) − (device + fill)`.

    Limits: `fill` when kernels are long; `host − device` when they are short. The host runs ahead
    of the device by many layers, so the slower of the two decides for all of them together: p is
    twice the sharpness, the best of four on rows held out (docs/notes/coefficients.md).

    Args:
      device_time: that a layer keeps the device busy: work, what messages slow of it, and those
        that it does not hide [s].
    """
    return jnp.asarray(started.fill) + _waited(device_time, started, sharpness)


def hidden_head(
    head: Array, layers: Array, device_time: Array, started: Starts, sharpness: float = SHARPNESS
) -> jax.Array:
    """What of the head passes while the device would wait for the host of the layers beside it [s].

    `wait(ℓ (device + fill), ℓ host) − wait(ℓ (device + fill) + head, ℓ host)`, `wait(d, h) =
    max_p(d, h) − d`: the host launches the logits and the loss ahead of the device like all else,
    and while these run it gets ahead of the backward pass.

    Limits: 0 where the device decides; where the host does, all of the head up to `ℓ (host − device
    − fill)`. Mixtures hide nothing, as their hosts have to know what experts get, even where a
    compiler knows all shapes.

    Args:
      head: logits and loss of a micro-batch [s]. layers: ℓ on the device that has them.
        device_time, started: of one layer.
    """
    device, host = layers * (device_time + started.fill), layers * started.host
    whole, host = jnp.broadcast_arrays(device + head, host)
    beside = excess(whole, host, 2.0 * sharpness)
    return jnp.asarray(layers * _waited(device_time, started, sharpness) - beside)


@once
def _waited(device_time: Array, started: Starts, sharpness: float) -> jax.Array:
    """What a device waits for its host in a layer [s]: `max_p(device, host) − device`, at twice the
    sharpness (`launch_time`)."""
    device, host = jnp.broadcast_arrays(device_time + started.fill, started.host)
    return excess(device, host, 2.0 * sharpness)


def optimizer_time(
    parameters: Array, bytes_per_parameter: Array, chip: Chip, coefficients: Coefficients
) -> jax.Array:
    """Time of the optimizer step [s]: `c_optimizer · N · bytes / (HBM · η_mem)`.

    Args:
      parameters: N, updated by this device [count]. bytes_per_parameter: moved for each: the state
        read and written, the gradient read, the weight written [byte].
    """
    return jnp.asarray(
        coefficients.optimizer_traffic
        * streaming_time(parameters * bytes_per_parameter, chip, coefficients)
    )
