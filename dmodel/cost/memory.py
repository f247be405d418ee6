"""Memory of one device: what the fullest pipeline stage must hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from dmodel import counts, struct
from dmodel.blocks.part import LAST, SUMMED
from dmodel.footprint import LEAST, Footprint
from dmodel.once import once
from dmodel.records import Model, Plan, ends_together, weight_copies
from dmodel.smooth import ramp
from dmodel.tables import layer, layer_keeps
from dmodel.types import Array, at_hand, each, larger, smaller


class Memory(struct.PyTreeNode, kw_only=True):
    """Bytes of one device by purpose."""

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array
    logits: Array
    buffers: Array

    @property
    def total(self) -> Array:
        """Sum of all."""
        return (
            self.weights
            + self.gradients
            + self.optimizer
            + self.activations
            + self.logits
            + self.buffers
        )


@once
def zero_share(zero: Array, stage: float) -> Array:
    """0 below the ZeRO stage, 1 from it on, linear in between: `clip(zero − stage + 1, 0, 1)`."""
    return ramp(zero - (stage - 1.0))


def sharded(parts: counts.Residents, plan: Plan) -> Array:
    """Parameters of one device when ZeRO shards all of them [count]: dense ones over `shard · cp`
    ranks, experts over those of the ranks beside tp that hold the same ones, `tp shard cp / (ep
    etp)`.

    Where a pipeline holds c copies of the weights (`records.weight_copies`), a device has c times
    as many parameters, and c times as many ranks hold each of them and share its state: of dense
    ones as much is left as of one copy.
    """
    layout, copies = plan.layout, weight_copies(plan.layout)
    ranks = layout.shard * layout.cp
    return parts.dense / ranks + copies * parts.experts / larger(
        copies * ranks * layout.tp / (layout.ep * layout.etp), 1.0
    )


def held(parts: counts.Residents, plan: Plan, stage: float) -> Array:
    """Parameters of one device whose state is sharded from a ZeRO stage on [count]: linear between
    all of them, in as many copies as a pipeline holds, and `sharded`."""
    share = zero_share(plan.layout.zero, stage)
    whole = weight_copies(plan.layout) * parts.total
    return (1.0 - share) * whole + share * sharded(parts, plan)


def stored_weights(parts: counts.Residents, plan: Plan) -> Array:
    """Bytes of the weights that one device stores [byte]: `Precision.weight_bytes` of each, sharded
    from ZeRO stage 3 on; of embedding and head `Precision.end_bytes`, where these differ.

    Limits: norms count as the layers' other weights; the 16-bit copy of the one weight at work,
    where weights are dequantized, is left out.
    """
    bits = plan.precision
    ends = parts.replace(layers=0.0 * parts.layers, experts=0.0 * parts.experts)
    where = np.where if at_hand(bits.end_bytes, bits.weight_bytes) else jnp.where
    more = where(bits.end_bytes > 0.0, bits.end_bytes - bits.weight_bytes, 0.0)
    return bits.weight_bytes * held(parts, plan, 3.0) + more * held(ends, plan, 3.0)


def device_weights(parts: counts.Residents, plan: Plan) -> Array:
    """Bytes of weights in a device's memory [byte]: what it stores, but for what waits in the
    host's. Of layers' weights `Precision.whole_bytes` are neither sharded nor do they wait."""
    software, whole = plan.software, plan.precision.whole_bytes
    layers = parts.replace(ends=0.0 * parts.ends)
    stored = stored_weights(parts, plan) - whole * held(layers, plan, 3.0)
    every = whole * weight_copies(plan.layout) * layers.total
    return (1.0 - software.offload_weights) * stored + every


def gathered_weights(parts: counts.Residents, plan: Plan, layers: Array) -> Array:
    """Weights that ZeRO-3 has gathered while layers compute [byte]: of a layer and of the next one,
    as a share of all, or all where they are kept after the forward pass; embedding and head whole,
    in their own bytes, where these are (`Software.whole_ends`). layers: of the device [count]."""
    layout, bits, ends = plan.layout, plan.precision, plan.software.whole_ends
    alive = 1.0 - layout.reshard * (1.0 - smaller(2.0 / layers, 1.0))
    where = np.where if at_hand(bits.end_bytes, bits.gather_bytes) else jnp.where
    own = where(bits.end_bytes > 0.0, bits.end_bytes, bits.gather_bytes)
    share = bits.gather_bytes * (parts.total - ends * parts.ends) * alive
    whole = ends * own * parts.ends
    return zero_share(layout.zero, 3.0) * weight_copies(layout) * (share + whole)


def layer_activation_bytes(model: Model, plan: Plan) -> Array:
    """Activations that one layer keeps for the backward pass, per device and micro-batch [byte].

    What `layer_keeps`, but for the share of modules that are done again (`Layout.recompute_bytes`);
    full recomputation keeps the input (`layer_input_bytes`), and where elementwise kernels are done
    again, what is left of results stays with it (`kept_result_bytes`).
    """
    layout = plan.layout
    entry = layer_input_bytes(model, plan)
    kept = (1.0 - layout.recompute_bytes) * layer_keeps(model, plan).total
    kept = kept + layout.recompute_elementwise * (entry + kept_result_bytes(model, plan) - kept)
    return kept + layout.recompute_layers * (entry - kept)


def layer_input_bytes(model: Model, plan: Plan) -> Array:
    """What a layer gets and is done again from, per micro-batch [byte]: `2 t h`, or that of all
    residual streams, split by sequence parallelism."""
    return counts.between_layers(model, plan) / counts.split_ranks(plan)


def kept_result_bytes(model: Model, plan: Plan) -> Array:
    """What a layer keeps beside its input where elementwise kernels are done again, per micro-batch
    [byte]: results of its products and of the core of attention, but for the shares that are done
    again too. Where recomputation ends early, nothing reads the last product's result, which is not
    kept either, unless a policy keeps it all the same (`Software.last_kept`). It may keep what
    ranks of ep sent each other too, to experts and back (`Software.exchange_kept`).
    """
    layout = plan.layout
    table = layer(model, plan)
    products, early = (
        table.products,
        (1.0 - plan.software.recompute_last) * (1.0 - plan.software.last_kept),
    )
    # of attention's output and of the MLP, ranks of tp keep what is left of the sum over them
    held = products.marked(SUMMED)
    results = products.elements[2] * (1.0 - held + held / each(counts.split_ranks(plan)))
    flops = products.flops[:-1].sum(0)
    read, done = (
        whole - early * products.of(rows, *LAST)
        for whole, rows in ((results[:-1].sum(0), results), (flops, products.flops))
    )
    again = smaller(layout.recompute_products * flops / done, 1.0)
    core = (1.0 - layout.recompute_attention) * table.returned
    sent = products.of(products.elements[0], "expert_up") + products.of(results, "expert_down")
    sent = plan.software.exchange_kept * smaller(ramp(layout.ep - 1.0), 1.0) * sent
    return counts.WORD * ((1.0 - again) * read + core + sent)


IN_TRANSIT = 2.0
"""Layers whose offloaded activations are on the device all the same [count]: one that is copied out
and one that is copied back in while others compute (assumed)."""


def on_device(layers: Array, plan: Plan) -> Array:
    """Layers' worth of kept activations in the device's memory [count]: `n − offload · max(n − 2,
    0)` of n."""
    return layers - plan.layout.offload * larger(layers - IN_TRANSIT, 0.0)


def gathered_bytes(model: Model, plan: Plan, in_flight: Array) -> Array:
    """Inputs of a layer's two column-parallel products that sequence parallelism gathered, `2 w t h
    (1 − 1/split)` per micro-batch at the width w of operands, of all micro-batches in flight but
    two [byte].

    They die after the product, but their memory is not used again before the device has run it:
    while the first stage fills the
    pipeline, the host is as many micro-batches ahead.
    """
    split = counts.split_ranks(plan)
    one = (
        2.0
        * larger(plan.precision.operand_bytes, 1.0)
        * counts.tokens(model, plan)
        * model.d_model
        * (1.0 - 1.0 / split)
    )
    return one * larger(in_flight - 2.0, 0.0)


def boundary_bytes(model: Model, plan: Plan, in_flight: Array) -> Array:
    """What a pipeline keeps of a stage's boundaries beside what its layers do [byte]; none where
    there is one stage.

    Copies of the stage's input for all micro-batches in flight, such as what came before it was
    cloned, and the result that was sent (`Software.boundary_copies`). Where each of a rank's chunks
    has buffers of its own to receive in, `2 v m` inputs: activations and gradients of every micro-
    batch of a step, of which those in flight are counted as layers' inputs, and the results sent
    take their place (`Software.boundary_buffers`).
    """
    software, layout = plan.software, plan.layout
    buffers = 2.0 * layout.interleave * plan.n_microbatches
    inputs = software.boundary_copies * in_flight + software.boundary_buffers * buffers
    return inputs * ramp(layout.pp - 1.0) * layer_input_bytes(model, plan)


MOMENTS = ("loss", "backward", "update")
"""When a device may be the fullest: at the loss, all activations of a micro-batch are kept and its
logits are alive; in the backward pass, a layer is at work beside what is kept, and the logits are
gone; at the update, activations are gone, and the optimizer has copies of its own."""


def moments(
    model: Model,
    plan: Plan,
    in_flight: Array,
    in_flight_last: Array = 1.0,
    footprint: Footprint = LEAST,
) -> dict[str, Memory]:
    """Bytes of a device by purpose at each of `MOMENTS`: at the loss of one of the last stage, else
    of the first.

    Weights, gradients and optimizer state of its parameters, sharded from ZeRO stage 3, 2 and 1 on
    over `shard · cp` ranks (experts over the ranks beside ep); activations of the schedule's
    micro-batches in flight, and one layer in full while it is recomputed, or the logits of one
    micro-batch; under ZeRO-3 the gathered weights of a layer and of the next one, or of all when
    they are kept after the forward pass. Of activations in the host's memory (`Layout.offload`)
    those of two layers are on the device. At the update nothing is gathered, and the optimizer
    takes `Precision.update_bytes` of every parameter beside its state. Where gradients are freed
    after the update, none is alive at the loss of a step's only micro-batch, and in its backward
    pass they take the place of what layers kept (`Software.freed_gradients`); what the stack holds
    beside them stays (`Precision.raw_gradient_bytes`).

    Where stages are not alike (`Layout.stage_excess`), the first one counts as the fullest, and the
    last one holds the states of as many layers. Where a schedule puts both ends on one rank, and
    that rank holds fewer layers for them, the fullest in the backward pass is another, without
    ends; it is the one with the ends at the loss.

    Args:
      in_flight, in_flight_last: micro-batches of a whole stage whose activations are alive at once
        on the first and on the last stage, from the schedule [count]. footprint: what the stack
        holds beyond the least; where it reports devices of the first stage alone, the moment of the
        loss is that of the backward pass.
    """
    layout, bits = plan.layout, plan.precision
    layers = counts.stage_layers(model, plan)
    alike = _states(model, plan, footprint, layers)
    inner, outer = _apart(model, plan, footprint, alike, layers)
    again = layout.recompute_layers * (1.0 - footprint.kept)
    more = footprint.activation * (1.0 + footprint.copies * (1.0 - 1.0 / layout.tp))
    layer = more * layer_activation_bytes(model, plan.having(recompute_layers=again))
    working = more * _at_work(model, plan)
    parts_again = larger(layout.recompute_elementwise, layout.recompute_bytes)
    recomputed = larger(
        larger(again, parts_again), layout.recompute_attention * (1.0 - plan.software.flash)
    )
    whole = plan.software.whole_logits
    logits = (
        bits.logit_bytes
        * footprint.logit
        * (1.0 + model.n_mtp)
        * counts.tokens(model, plan)
        * model.vocab
        * (whole + (1.0 - whole) / layout.tp)
    )
    first, final = (
        on_device(layers * in_flight, plan),
        on_device((layers - layout.head_displaces) * in_flight_last, plan),
    )
    ahead = footprint.gathered * layers * gathered_bytes(model, plan, in_flight)
    ahead = ahead + boundary_bytes(model, plan, in_flight)
    backward = first * layer + recomputed * working + ahead
    told = 1.0 - ramp(layout.pp - 1.0) * (1.0 - footprint.last_stage)
    only = 1.0 - ramp(plan.n_microbatches - 1.0)
    freed = plan.software.freed_gradients
    return {
        "loss": outer.during.replace(
            gradients=outer.during.gradients - only * freed * outer.summed,
            activations=backward + told * (smaller(first, final) * layer - backward),
            logits=told * logits,
        ),
        "backward": inner.during.replace(
            gradients=inner.during.gradients - only * smaller(freed * inner.summed, first * layer),
            activations=backward,
        ),
        "update": alike.at_update,
    }


def _at_work(model: Model, plan: Plan) -> Array:
    """What a layer has while it is at work in the backward pass [byte]: all that it keeps where
    nothing is done again, and where kernels are not fused, gradients inside its MLP, as many as it
    keeps there."""
    kept = layer_keeps(model, plan.having(recompute_attention=0.0))
    return kept.total + plan.software.eager * (kept.dense + kept.shared + kept.experts)


class _States(NamedTuple):
    """What a device holds apart from activations and logits.

    Attributes:
      during: in the passes, gathered weights among the buffers. at_update: there, what the update
        takes beside the state of the optimizer with it. summed: of the gradients those that add up.
    """

    during: Memory
    at_update: Memory
    summed: Array


def _apart(
    model: Model, plan: Plan, footprint: Footprint, alike: _States, layers: Array
) -> tuple[_States, _States]:
    """States of the rank that is the fullest in the backward pass and of the one with the head.
    alike: of a rank that is both."""
    together = ends_together(plan.layout)
    apart = together * ramp(plan.layout.head_displaces)
    fewer = layers - apart * plan.layout.head_displaces
    if isinstance(together, float) and together == 0.0:
        return alike, alike
    return (
        _states(model, plan, footprint, layers, 1.0 - apart),
        _states(model, plan, footprint, fewer),
    )


def _states(
    model: Model, plan: Plan, footprint: Footprint, layers: Array, ends: Array = 1.0
) -> _States:
    """What a device holds whatever the moment, less what waits in the host's memory [byte].

    Args:
      layers: that it holds [count]. ends: share of the stage's embedding and head.
    """
    layout, bits = plan.layout, plan.precision
    found, share = counts.residents(model, plan), layers * layout.pp / model.layers
    parts = found.replace(
        layers=share * found.layers, experts=share * found.experts, ends=ends * found.ends
    )
    copies = weight_copies(layout)
    several = ramp(plan.n_microbatches - 1.0)
    whole = (
        plan.software.accumulate
        * several
        * zero_share(layout.zero, 2.0)
        * (copies * parts.total - sharded(parts, plan))
    )
    trained, updated, software = model.trainable, held(parts, plan, 1.0), plan.software
    here = trained * (1.0 - software.offload_optimizer)
    stay = trained * (1.0 - software.offload_optimizer * software.host_sums)
    each, split = bits.gradient_bytes * footprint.gradient, held(parts, plan, 2.0)
    states = Memory(
        weights=device_weights(parts, plan),
        gradients=stay * (each * (split + whole) + bits.raw_gradient_bytes * split),
        optimizer=here * bits.optimizer_bytes * footprint.optimizer * updated,
        activations=0.0 * updated,
        logits=0.0 * updated,
        buffers=footprint.reserved + 0.0 * updated,
    )
    gathered = gathered_weights(parts, plan, layers)
    return _States(
        during=states.replace(buffers=states.buffers + gathered),
        at_update=states.replace(optimizer=states.optimizer + here * bits.update_bytes * updated),
        summed=stay * (each * (split + whole)),
    )


def fullest(found: Mapping[str, Memory]) -> Memory:
    """Of several moments the one at which most is held."""
    first, *others = found.values()
    for other in others:
        first = _fuller(first, other)
    return first


def _fuller(one: Memory, other: Memory) -> Memory:
    """The one that holds more in all; the first one where both hold as much."""
    a, b = one.total, other.total
    where = np.where if at_hand(a, b) else jnp.where
    return one.replace(
        **{name: where(b > a, vars(other)[name], x) for name, x in vars(one).items()}
    )


def out_of_memory_probability(needed: Array, available: Array, spread: Array) -> Array:
    """Probability that a device has too little memory [1]: `Φ( ln(needed / available) / spread )`,
    the need being log-normal about what is predicted, with the standard deviation of its logarithm.

    Limits: ½ when both are equal; 0 or 1 when they differ by many spreads.
    """
    if at_hand(needed, available, spread):
        # the answers of JAX where nothing is needed or there is nothing, without a warning
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithm = np.log(np.divide(needed, available))
        return 0.5 * _erfc(-logarithm / spread / np.sqrt(2.0))
    return ndtr(jnp.log(needed / available) / spread)


_erfc = np.vectorize(math.erfc, otypes=[float])
