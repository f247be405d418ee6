"""What hides behind what: messages of a layer and of a step, kind by kind, against the work that
runs beside them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dmodel.coefficients import Coefficients
from dmodel.cost.overlap import exposed_time, lengthened, straggler_share
from dmodel.cost.pipeline import step_window
from dmodel.cost.power import wandering
from dmodel.messages import Messages
from dmodel.physics import Communication, LayerWork
from dmodel.records import Plan
from dmodel.types import Array, stack, trailing


def _hidden(
    cost: jax.Array, window: jax.Array, overlap: jax.Array, c: Coefficients, sharpness: float
) -> tuple[jax.Array, jax.Array]:
    """What of messages is exposed and what hides [s], kinds on axis 0; what hides makes its window
    longer (`overlap.lengthened`)."""
    exposed = exposed_time(
        cost, window, lengthened(overlap, trailing(stack(c.contention), overlap.ndim)), sharpness
    )
    return exposed, cost - exposed


def _both(
    passes: jax.Array, sent: jax.Array, hidden: jax.Array, slows: jax.Array | float = 0.0
) -> jax.Array:
    """Two passes with messages that both hide together [s], on axis 0: each with what it sends,
    less what hides in it, which is its share of `hidden` by its length; so each grows with either
    of them, and with the messages."""
    return passes + sent - (1.0 - slows) * hidden * passes / stack(passes.sum(0))


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
    software = plan.software
    tp, cp, products, core = (
        stack(*passes) for passes in (v.tp, v.cp, work.matmul, work.attention)
    )
    beside, ring = (
        stack(c.overlap_tp * software.overlap_tp),
        stack(c.overlap_cp * software.overlap_cp),
    )
    shards, slows = (
        stack(c.overlap_fsdp * software.overlap_dp),
        trailing(stack(c.contention), tp.ndim),
    )
    left, tp_hidden = _hidden(tp * beside, products, jnp.ones_like(beside), c, sharpness)
    waits = (1.0 - software.composed) * straggler_share(plan.layout.tp, wandering(work.slowed))
    tp_exposed = tp * (1.0 - beside) + left + stack(waits) * (products + core)
    cp_exposed, cp_hidden = _hidden(cp, core, ring, c, sharpness)
    passes = (
        stack(work.forward, work.backward)
        + tp_exposed
        + cp_exposed
        + slows * (tp_hidden + cp_hidden)
    )
    gathers, gathers_hidden = _hidden(
        stack(v.gather, v.gather * plan.layout.reshard + v.scatter), passes, shards, c, sharpness
    )
    passes = passes + gathers + slows * gathers_hidden
    ep, ep_hidden = _hidden(
        stack(v.ep.total),
        stack(passes.sum(0)),
        stack(c.overlap_ep * software.overlap_ep),
        c,
        sharpness,
    )
    forward, backward = jnp.unstack(_both(passes, stack(*v.ep), ep_hidden, slows))
    return (
        forward,
        backward,
        Communication(
            tp=tp_exposed.sum(0),
            cp=cp_exposed.sum(0),
            ep=ep[0],
            fsdp=gathers.sum(0),
            # the first gather has nothing to hide behind; the positive part above already holds
            # what of
            # it is exposed anyway
            fsdp_first=gathers_hidden[0],
            ends=v.ends,
            hidden_layer=(tp_hidden + cp_hidden + gathers_hidden).sum(0) + ep_hidden[0],
        ),
    )


def beside_step(
    v: Messages, forward: Array, backward: Array, plan: Plan, c: Coefficients, sharpness: float
) -> dict[str, Array]:
    """Messages of a step, and of a stage's micro-batch, split likewise: transfers of the pipeline
    hide in one micro-batch, which they do not slow; gradients reduced per step in the backward
    passes of the last micro-batches, updated parameters in the next step's first forward passes
    (`pipeline.step_window`), and in what transfers add to these. forward, backward: of all layers
    of a stage and micro-batch, as long as they take with the messages in them and with waiting for
    the host [s]."""
    software = plan.software
    pp = exposed_time(v.pp, forward + backward, c.overlap_pp * software.overlap_pp, sharpness)
    # as much is sent in either pass
    passes = _both(stack(backward, forward), stack(0.5 * v.pp), stack(v.pp - pp))
    windows = (
        stack(step_window(plan.layout.pp, plan.n_microbatches, plan.layout.interleave)) * passes
    )
    overlap = stack(c.overlap_dp * software.overlap_dp, c.overlap_gather * software.overlap_dp)
    exposed, hidden = _hidden(stack(v.dp, v.updated), windows, overlap, c, sharpness)
    return {"dp": exposed.sum(0) + v.awaited, "pp": pp, "hidden_step": hidden.sum(0)}
