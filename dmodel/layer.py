"""What one layer, and the head, take on one device for a micro-batch, messages aside."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dmodel import counts, launching, traffic
from dmodel.blocks.part import LAST, ROUTED, WIDE, Passes
from dmodel.coefficients import Coefficients
from dmodel.cost import compute
from dmodel.cost.pipeline import meetings
from dmodel.physics import LayerWork
from dmodel.records import Chip, Model, Plan
from dmodel.smooth import excess, ramp
from dmodel.tables import Cores, Layer, Matmuls, layer
from dmodel.types import Array, added, each


class _Products(NamedTuple):
    """table: rows of products. times: of each, the head's last [s], `[row, *batch]`. casts: of what
    they read [s]."""

    table: Matmuls
    times: jax.Array
    casts: Array

    @property
    def matmul(self) -> jax.Array:
        """Of the layer's products [s]."""
        return self.times[:-1].sum(0)

    @property
    def last(self) -> Array:
        """Of those that return a layer's result, of an MLP and of experts [s]."""
        return self.table.of(self.times, *LAST)

    @property
    def dense(self) -> Array:
        """Of the layer's products but for those of experts [s]."""
        return self.matmul - self.table.of(self.times, *ROUTED)


def _products(
    table: Matmuls, model: Model, plan: Plan, chip: Chip, c: Coefficients, sharpness: float
) -> _Products:
    """Forward products, below 16 bits where the plan has them there.

    Below 8 bits products keep a further share of the peak: single ones in NVFP4 reach 0.59 to 0.78
    of what 16 bits do on Blackwell, those in 8 bits all of it (`calibration/micro/data/fits.json`).
    """
    bits = plan.precision
    # 0 at 8 bits, 1 at 4
    four = ramp(2.0 * (1.0 - bits.operand_bytes))
    narrow = bits.low_precision
    below = 1.0 - narrow * (
        1.0 - c.low_precision_efficiency * (1.0 - four * (1.0 - c.four_bit_efficiency))
    )
    low, wide = chip.flops_per_s * below, narrow * bits.wide_layers
    # times add up, so rates meet harmonically
    rate = low / (1.0 - wide + wide * low / chip.attention_flops_per_s)
    operand = bits.operand_bytes + wide * (counts.WORD - bits.operand_bytes)
    # router, logits and loss stay in 16 bits whatever the precision of the layers
    stays = table.marked(WIDE)
    rates, operands = (
        each(narrowed) + stays * (each(kept) - each(narrowed))
        for narrowed, kept in ((rate, chip.attention_flops_per_s), (operand, counts.WORD))
    )
    return _Products(
        table,
        compute.matmul_time(table, rates, operands, chip, c, sharpness),
        compute.streaming_time(c.cast_traffic * traffic.cast_bytes(table, model, plan), chip, c),
    )


def attention_passes(
    rows: Cores | None, plan: Plan, chip: Chip, c: Coefficients, sharpness: float
) -> Passes:
    """Both passes of what mixes tokens, by the stack's kernels."""
    if rows is None:
        nothing = jnp.zeros(jnp.shape(plan.layout.dp))
        return Passes(nothing, nothing)
    core = rows.flops * rows.stretch * each(compute.narrowed(plan))
    of_case, fitted = jax.tree.map(each, (chip, c))
    newest = compute.attention_passes(
        core,
        rows.exponentials,
        rows.softmax_bytes,
        each(plan.software.flash),
        of_case,
        fitted,
        sharpness,
        rows.behind,
    )
    older = compute.older_kernels(plan)
    forward, backward = map(added, newest)
    return Passes(older.forward * forward, older.backward * backward)


def _streaming(table: Layer, model: Model, plan: Plan, chip: Chip, c: Coefficients) -> Passes:
    """Both passes of what streams through memory, adapters with it; where a compiler fuses kernels
    it moves less (`Software.stream_ratio`)."""
    fused = c.elementwise_traffic * plan.software.stream_ratio
    passes = zip(table.streams, traffic.adapter_bytes(model, plan), strict=True)
    return Passes(
        *(compute.streaming_time(fused * least + all_of, chip, c) for least, all_of in passes)
    )


def _accumulation(
    products: _Products,
    model: Model,
    plan: Plan,
    parts: counts.Residents,
    chip: Chip,
    c: Coefficients,
    sharpness: float,
) -> Array:
    """Adding weight gradients to those held, once per micro-batch: read and written, and as much
    more as the stack's other elementwise kernels, where the sum is a kernel of its own; where
    products add to what is held (`Software.fused_sums`), what that takes beyond their arithmetic,
    of experts all but the 2 bytes that any product writes.

    Single calls take 1.4, 1.8 and 1.36 times as long beside sums of 512, 1,024 and 2,048 tokens, in
    16, 32 and 32 bits, as long as both would one after the other, 1.05 times beside 8,192 in 32
    (`calibration/torch_step/data/products.csv`).
    """
    moved, share = (
        2.0 * plan.precision.gradient_bytes,
        model.trainable * plan.layout.pp / model.layers,
    )
    others, experts = (
        compute.streaming_time(share * part, chip, c) for part in (parts.layers, parts.experts)
    )
    # inside the products their traffic hides behind the arithmetic, unless there is more of it;
    # that of experts, with few tokens each, does not, but for what any product writes
    fused = plan.software.fused_sums * ramp(2.0 - plan.layout.zero)
    hidden = excess(*jnp.broadcast_arrays(products.dense, moved * others), sharpness)
    more = excess(*jnp.broadcast_arrays(counts.WORD, moved), sharpness)
    return (1.0 - fused) * c.elementwise_traffic * moved * (others + experts) + fused * (
        hidden + more * experts
    )


def _dequantized(
    model: Model, plan: Plan, parts: counts.Residents, chip: Chip, c: Coefficients
) -> Array:
    """Bringing the weights of a layer to 16 bits for the products of one pass [s]: each read as it
    is stored and written in 16 bits, times `Precision.dequantize` (Dettmers et al. 2023, arXiv
    2305.14314, equations 5 and 6)."""
    bits, share = plan.precision, plan.layout.pp / model.layers
    moved = (bits.weight_bytes + counts.WORD) * share * (parts.layers + parts.experts)
    return bits.dequantize * compute.streaming_time(moved, chip, c)


def layer_work(
    model: Model,
    plan: Plan,
    parts: counts.Residents,
    chip: Chip,
    c: Coefficients,
    sharpness: float,
) -> LayerWork:
    """Work of one layer, and of the head, per micro-batch on one device, at its full clock
    (`LayerWork.at_clock`).

    Backward products cost 2 × the forward ones (1 × when the weights are frozen), attention as
    `compute.attention_passes` has it, streaming as the parts of a layer have it (`blocks`).
    Full recomputation repeats the forward work of the layer, all but the last product and the
    addition of its result where it ends early (`Software.recompute_last`). Of layers that are not
    recomputed in full, shares of the products, of the core of attention and of what streams may be
    done again all the same.
    Weights held in fewer bits than products read are brought to 16 once in each pass, and again
    where products are done again.

    Limits: experts whose recomputation ends early still copy back what they return, add its biases
    and leave their latents once more.
    """
    layout, ends = plan.layout, 1.0 - plan.software.recompute_last
    table = layer(model, plan)
    products = _products(table.products, model, plan, chip, c, sharpness)
    matmul, casts = products.matmul, products.casts
    attention, streaming = (
        attention_passes(table.cores, plan, chip, c, sharpness),
        _streaming(table, model, plan, chip, c),
    )
    accumulation = _accumulation(products, model, plan, parts, chip, c, sharpness)
    brought = _dequantized(model, plan, parts, chip, c)
    behind = (1.0 + model.trainable) * matmul
    forward = matmul + attention.forward + streaming.forward + 0.5 * casts + brought
    backward = (
        behind + attention.backward + streaming.backward + accumulation + 0.5 * casts + brought
    )
    sums = c.elementwise_traffic * plan.software.stream_ratio * table.added
    added = ends * compute.streaming_time(sums, chip, c)
    spared = ends * products.last
    full, parts_again = layout.recompute_layers, 1.0 - layout.recompute_layers
    hot = layout.recompute_products * matmul + layout.recompute_attention * attention.forward
    some = hot + layout.recompute_elementwise * (streaming.forward - added)
    some = some + layout.recompute_products * brought
    again = full * (forward - spared - added) + parts_again * some
    logits = (2.0 + model.trainable) * (products.times[-1] * compute.off_vectors(plan))
    lost = plan.software.loss_ratio * traffic.loss_bytes(model, plan)
    loss = compute.streaming_time(c.loss_traffic * lost, chip, c)
    return LayerWork(
        matmul=Passes(matmul, behind),
        attention=attention,
        elementwise=streaming.total + accumulation + casts + 2.0 * brought,
        recompute=again,
        redone=full * (matmul + attention.forward - spared) + parts_again * hot,
        head=logits + loss,
        logits=logits,
        forward=forward,
        backward=backward + again,
    )


def starts(model: Model, plan: Plan, apart: Array, chip: Chip, c: Coefficients) -> compute.Starts:
    """What starting the kernels of a layer and micro-batch takes [s]: `compute.starts`.

    Kernels of the forward pass count `2 + trainable` times, and once more under full recomputation.
    Collectives are launched like any other kernel: where the host is slower than products and
    messages together, it hides both.

    Limits: a host that waits for the device (to count what experts get, to hold gathers back) does
    not run ahead like that; messages that come once per micro-batch or step are added as they are;
    launches and casts of parts of a layer that are done again are not counted.

    Args:
      apart: nodes that the stages of a pipeline lie in.
    """
    table = layer(model, plan)
    in_turn = (table.kernels + table.casts) * passes(model, plan)
    in_turn = in_turn + launching.dequantizations(table, plan)
    launched = launching.launches(table, plan, model.trainable)
    return compute.starts(in_turn, launched, meetings(plan, apart), chip, c)


def passes(model: Model, plan: Plan) -> Array:
    """How often the kernels of a layer's forward pass are started (`launching.passes`) [1]."""
    return launching.passes(plan, model.trainable)
