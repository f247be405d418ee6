"""What hides behind what: messages of a layer and of a step, kind by kind, against the work that
runs beside them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dmodel.coefficients import Coefficients
from dmodel.cost.overlap import exposed_time, lengthened, straggler_share
from dmodel.cost.pipeline import hiding_window
from dmodel.cost.power import wandering
from dmodel.messages import Messages
from dmodel.once import once
from dmodel.physics import Communication, LayerWork
from dmodel.records import Plan
from dmodel.types import Array, each, stack


@once
def _shares(plan: Plan, c: Coefficients) -> jax.Array:
    """Shares of a window that hide messages beside it, the longer for what hides (`lengthened`): of
    products, of the core, of passes for shards, of both for experts, of a step for gradients and
    for parameters, `[6, *batch]` [1]."""
    software = plan.software
    overlap = stack(
        1.0,
        c.overlap_cp * software.overlap_cp,
        c.overlap_fsdp * software.overlap_dp,
        c.overlap_ep * software.overlap_ep,
        c.overlap_dp * software.overlap_dp,
        c.overlap_gather * software.overlap_dp,
    )
    return lengthened(overlap, each(c.contention))


class _Sent(NamedTuple):
    """What a layer sends, pass by pass on the axis before the batch [s].

    Attributes:
      beside: what may hide of tensor and of context parallelism, `[kind, pass, *batch]`. never:
        what does not of the first. gathers: of weights, with scatters behind. experts: exchanges of
        tokens.
      slowed, slowed_gathers: what the passes would take longer if all of tensor and context
        parallelism hid, and of gathers. total: of all but experts, `[*batch]`.
    """

    beside: jax.Array
    never: jax.Array
    gathers: jax.Array
    experts: jax.Array
    slowed: jax.Array
    slowed_gathers: jax.Array
    total: jax.Array


@once
def _sent(v: Messages, plan: Plan, c: Coefficients) -> _Sent:
    """Messages as `beside_layer` hides them: the same at every clock."""
    may = c.overlap_tp * plan.software.overlap_tp
    tp, gathers = stack(*v.tp), stack(v.gather, v.gather * plan.layout.reshard + v.scatter)
    beside = jnp.stack(jnp.broadcast_arrays(tp * each(may), stack(*v.cp)))
    both = beside.sum(0)
    return _Sent(
        beside=beside,
        never=tp * each(1.0 - may),
        gathers=gathers,
        experts=stack(*v.ep),
        slowed=each(c.contention) * both,
        slowed_gathers=each(c.contention) * gathers,
        total=(both + gathers).sum(0),
    )


class _Hidden(NamedTuple):
    """A layer's messages but for experts', pass by pass [s]: the passes with them; what is exposed
    of tensor and context parallelism, `[kind, pass, *batch]`, and of gathers; what ranks wait for
    the slowest of them."""

    passes: jax.Array
    exposed: jax.Array
    gathers: jax.Array
    waits: jax.Array


def _hidden(sent: _Sent, work: LayerWork, plan: Plan, c: Coefficients, sharpness: float) -> _Hidden:
    """Tensor and context parallelism behind products and core, then gathers behind the passes."""
    shares, hot, kept = _shares(plan, c), work.hot, each(1.0 - c.contention)
    exposed = exposed_time(sent.beside, hot, shares[:2, None], sharpness)
    slowest = (1.0 - plan.software.composed) * wandering(work.slowed)
    waits = each(straggler_share(plan.layout.tp, slowest)) * hot.sum(0)
    fixed = sent.never + sent.slowed
    passes = stack(work.forward, work.backward) + fixed + kept * exposed.sum(0) + waits
    gathers = exposed_time(sent.gathers, passes, shares[2:3], sharpness)
    passes = passes + sent.slowed_gathers + kept * gathers
    return _Hidden(passes, exposed, gathers, waits)


def layer_seconds(
    v: Messages, work: LayerWork, plan: Plan, c: Coefficients, sharpness: float
) -> jax.Array:
    """How long the device takes for a layer and micro-batch with the messages in it [s]: the sum of
    both passes that `beside_layer` has."""
    sent = _sent(v, plan, c)
    both, experts = (
        _hidden(sent, work, plan, c, sharpness).passes.sum(0),
        sent.experts.sum(0),
    )
    ep = exposed_time(experts, both, _shares(plan, c)[3], sharpness)
    return both + experts - (1.0 - c.contention) * (experts - ep)


def _both(
    passes: jax.Array, both: jax.Array, sent: jax.Array, hidden: Array
) -> tuple[jax.Array, jax.Array]:
    """Two passes with messages that both hide together [s], on axis 0: each with what it sends,
    less what hides in it, which is its share of `hidden` by its length; so each grows with either
    of them, and with the messages. both: sum of the passes."""
    first, second = jnp.unstack(sent + each(1.0 - hidden / both) * passes)
    return first, second


def beside_layer(
    v: Messages, work: LayerWork, plan: Plan, c: Coefficients, sharpness: float
) -> tuple[Array, Array, Communication]:
    """How long the device takes for the two passes of a layer and micro-batch with the messages in
    them [s]; and messages split into what hides and what does not.

    A pass lasts as long as its work, what of its messages is exposed, and κ of what hides. Each
    kind hides in the pass as long as it lasts with those before it, so what of one is exposed hides
    the next, and no step gets longer by faster work or shorter messages: with T so far, C seconds
    of a kind and shares ω, `T + C − (1 − κ) min(C, ω T / (1 − κ ω))` grows with T and C. One after
    the other:

    1. Of tensor parallelism a share hides, behind the products of its pass: between a product and
      the next one that needs its sum there
       is nothing to run, so what hides is what Megatron-LM sends beside weight gradients, and what
       is sent in parts beside the product itself (user buffers). Where power decides the clock, its
       ranks wait besides for the slowest of them, whose products and core take longer
       (`power.wandering`). The ring of context parallelism hides behind the attention core.
       Whatever else is sent may hide wholly.
    2. Prefetched FSDP gathers hide in the forward pass, gathers and scatters in the backward pass
      of the layer computed meanwhile.
    3. Exchanges of tokens hide in both passes of another micro-batch, as Megatron-Core schedules it
       (`overlap_moe_expert_parallel_comm`; the products alone fit 14 nats worse), and as much for
       compilers, which fill a message with whatever does not wait for it.

    Limits: what is exposed of one kind hides the next one even where both go through the same
    network cards, as if they took turns.
    """
    sent = _sent(v, plan, c)
    found = _hidden(sent, work, plan, c, sharpness)
    both, experts = found.passes.sum(0), sent.experts.sum(0)
    ep = exposed_time(experts, both, _shares(plan, c)[3], sharpness)
    ep_hidden = experts - ep
    removed = jnp.asarray((1.0 - c.contention) * ep_hidden)
    forward, backward = _both(found.passes, both, sent.experts, removed)
    tp, cp = jnp.unstack(found.exposed.sum(1))
    fsdp = found.gathers.sum(0)
    return (
        forward,
        backward,
        Communication(
            tp=tp + (sent.never + found.waits).sum(0),
            cp=cp,
            ep=ep,
            fsdp=fsdp,
            # the first gather has nothing to hide behind; the positive part above already holds
            # what of it is exposed anyway
            fsdp_first=sent.gathers[0] - found.gathers[0],
            ends=v.ends,
            hidden_layer=sent.total - (tp + cp + fsdp) + ep_hidden,
        ),
    )


def beside_step(
    v: Messages, forward: Array, backward: Array, plan: Plan, c: Coefficients, sharpness: float
) -> dict[str, Array]:
    """Messages of a step, and of a stage's micro-batch, split likewise: transfers of the pipeline
    hide in one micro-batch, which they do not slow; gradients reduced per step in the backward
    passes of the last micro-batches, updated parameters in the next step's first forward passes
    (`pipeline.hiding_window`), and in what transfers add to these. forward, backward: of all layers
    of a stage and micro-batch, as long as they take with the messages in them and with waiting for
    the host [s]."""
    software = plan.software
    pp = exposed_time(v.pp, forward + backward, c.overlap_pp * software.overlap_pp, sharpness)
    # as much is sent in either pass
    passes = stack(backward, forward)
    window = each(hiding_window(plan))
    windows = window * stack(*_both(passes, passes.sum(0), each(0.5 * v.pp), v.pp - pp))
    sent = stack(v.dp, v.updated)
    exposed = exposed_time(sent, windows, _shares(plan, c)[4:], sharpness)
    dp = exposed.sum(0)
    return {"dp": dp + v.awaited, "pp": pp, "hidden_step": sent.sum(0) - dp}
