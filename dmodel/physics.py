"""Where profiles of the model differ: one replaceable object, and the records that the step is
added up from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dmodel import struct
from dmodel.blocks.part import Passes
from dmodel.coefficients import Coefficients
from dmodel.cost.memory import Memory
from dmodel.once import once
from dmodel.types import Array, each, stack


@once
def _stacked(products: Passes, core: Passes) -> jax.Array:
    """Two kinds of work, pass by pass, as one array."""
    return stack(*products, *core).reshape(2, 2, *jnp.shape(products.forward))


class LayerWork(struct.PyTreeNode, kw_only=True):
    """Device time of one layer and micro-batch [s]: products and the attention core, pass by pass;
    what streams in both; what is done again, and of it products and the core; the head, and of it
    its product; all of the forward pass, and of the backward one, with what it does again. slowed:
    of products and core, over that at the full clock [1]. stacked: `hot`, where it is known."""

    matmul: Passes
    attention: Passes
    elementwise: Array
    recompute: Array
    redone: Array = 0.0
    head: Array
    logits: Array = 0.0
    forward: Array
    backward: Array
    slowed: Array = 1.0
    stacked: jax.Array | None = None

    def at_clock(self, slowed: Array) -> LayerWork:
        """The same work where products and the attention core take `slowed` times as long [1]; what
        streams does not notice."""
        more, hot = slowed - 1.0, self.hot
        forward, backward = jnp.unstack(each(more) * hot.sum(0))
        redone = more * self.redone
        return self.replace(
            matmul=Passes(slowed * self.matmul.forward, slowed * self.matmul.backward),
            attention=Passes(slowed * self.attention.forward, slowed * self.attention.backward),
            recompute=self.recompute + redone,
            redone=self.redone + redone,
            head=self.head + more * self.logits,
            logits=slowed * self.logits,
            forward=self.forward + forward,
            backward=self.backward + backward + redone,
            slowed=slowed,
            stacked=each(each(slowed)) * hot,
        )

    @property
    def hot(self) -> jax.Array:
        """Products and core, pass by pass [s]: `[kind, pass, *batch]`."""
        return _stacked(self.matmul, self.attention) if self.stacked is None else self.stacked

    @property
    def busy(self) -> Array:
        """Both passes [s]."""
        return self.forward + self.backward


class Communication(struct.PyTreeNode, kw_only=True):
    """Exposed and hidden communication [s]: tp, cp, ep and fsdp per layer and micro-batch; pp and
    `ends` (tensor
    parallelism of embedding and head) per micro-batch; dp and `once` per step."""

    tp: Array
    cp: Array
    ep: Array
    fsdp: Array
    fsdp_first: Array
    hidden_layer: Array
    ends: Array = 0.0
    dp: Array = 0.0
    pp: Array = 0.0
    once: Array = 0.0
    hidden_step: Array = 0.0


class Costs(struct.PyTreeNode, kw_only=True):
    """What a step is added up from: work, communication, a layer's two passes with the messages in
    them [s], what launching adds to a layer [s] and the forward pass' share of it [1], pipeline
    stages, layers of the fullest stage, of them those beyond the mean stage, and how many fewer the
    one with the head holds, ranks that take turns with the head [count], micro-batches, idle
    slots [micro-batch], the update, and what waits for hosts in a step [s]; what of the head of a
    micro-batch passes while the device waits for its host, on the stage that has it and, of the
    share that all stages carry alike, on the fullest one [s]; 1 where a step is a sum of parts,
    without overhead or stragglers (`Software.composed`)."""

    work: LayerWork
    communication: Communication
    forward: Array = 0.0
    backward: Array = 0.0
    launch: Array = 0.0
    launched_forward: Array = 0.0
    hidden_head: Array = 0.0
    hidden_even: Array = 0.0
    composed: Array = 0.0
    stages: Array = 1.0
    layers: Array
    excess: Array = 0.0
    displaced: Array = 0.0
    heads: Array = 1.0
    micro_batches: Array
    idle_slots: Array
    optimizer: Array
    offload: Array = 0.0

    @property
    def windows(self) -> Passes:
        """How long the passes of a stage and micro-batch last, for messages per step to hide in
        [s]: those of the layers of the fullest stage, and what the stage with the head waits for
        its host beyond what of the head passes meanwhile, where kernels are launched:
        `ℓ forward + φ w` and `ℓ backward + (1 − φ) w`, `w = (ℓ − displaced) launch − hidden`.

        That stage waits least: so windows grow with launches by no more than the step does, and a
        slower host makes no step faster. Shared out by launches, and not by the time of the passes,
        `w` leaves no pass for the other where the device gets faster.
        """
        waits = (self.layers - self.displaced) * self.launch - self.hidden_head
        first = self.launched_forward * waits
        return Passes(
            self.layers * self.forward + first, self.layers * self.backward + (waits - first)
        )


class Physics(NamedTuple):
    """Where profiles of the model differ, and all they differ in: `step_time` is the same sum of
    whatever these return.

    Attributes:
      align: `(system, plan, others…)` → the first two, with all leaves of one rank, that of any of
        the others too.
      costs: `(system, model, plan, coefficients, sharpness)` → `Costs`.
      memory: `(model, plan)`, and a footprint where one is given → bytes of the fullest device by
        purpose.

    A profile may bring its own records for model and plan: the step asks the plan for its
    `devices`, and nothing else.
    """

    align: Callable[..., tuple[Any, Any]]
    costs: Callable[[Any, Any, Any, Coefficients, float], Costs]
    memory: Callable[..., Memory]
