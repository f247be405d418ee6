"""A step as seconds by cause, and how it is added up from the costs of its parts."""

from __future__ import annotations

import jax.numpy as jnp

from dmodel import struct
from dmodel.coefficients import Coefficients
from dmodel.cost.overlap import straggler_share
from dmodel.physics import Costs
from dmodel.smooth import excess, inverse
from dmodel.types import Array

IN_LAYERS = ("tensor_parallel", "context_parallel", "expert_parallel", "fsdp")
"""Communication that the layers of a pass wait for."""

MESSAGES = (*IN_LAYERS, "data_parallel", "pipeline_transfer")
"""All communication of a step."""

TERMS = (
    "matmul",
    "attention",
    "elementwise",
    "recompute",
    "launch",
    "head",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "fsdp",
    "data_parallel",
    "pipeline_transfer",
    "bubble",
    "optimizer",
    "offload",
    "contention",
    "straggler",
    "overhead",
)


class Breakdown(struct.PyTreeNode, kw_only=True):
    """Seconds of one training step by term; `total` is their exact sum.

    Attributes:
      matmul, attention, elementwise: forward and backward work of the layers. recompute: forward
        work done again. launch: what kernel launches add to the work and messages of the layers.
        head: logits and loss, as far as they lengthen the slowest stage. Where it would wait for
        its host meanwhile, launch is reduced by that time.
      tensor_parallel, context_parallel, expert_parallel, fsdp, data_parallel, pipeline_transfer:
        exposed communication. Where the host is the bottleneck, a layer's communication runs while
        the device waits: it is counted here, and launch is reduced by it.
      bubble: idle pipeline slots. optimizer: the update on the device. offload: copies to and from
        the host that nothing hides, and its update. contention: compute slowed by overlapped
        communication.
      straggler: waiting for the slowest device. overhead: fixed time per step.

    Terms outside a profile's physics are 0.
    """

    matmul: Array
    attention: Array
    elementwise: Array
    recompute: Array
    launch: Array
    head: Array
    tensor_parallel: Array
    context_parallel: Array
    expert_parallel: Array
    fsdp: Array
    data_parallel: Array
    pipeline_transfer: Array
    bubble: Array
    optimizer: Array
    offload: Array
    contention: Array
    straggler: Array
    overhead: Array

    @property
    def total(self) -> Array:
        """Step time [s]."""
        return sum((getattr(self, name) for name in TERMS[1:]), start=self.matmul)

    @property
    def exposed_communication(self) -> Array:
        """Communication that no work hides [s]."""
        return sum((getattr(self, name) for name in MESSAGES[1:]), start=self.tensor_parallel)


class Head(struct.PyTreeNode, kw_only=True):
    """What the head of a micro-batch takes [s].

    Attributes:
      slowest: on the slowest stage, beyond the layers that its stage has fewer.
      spread: on every stage alike.
      passed: what of it passes while the device would wait for its host.
      others: what all other stages carry of it less than the slowest, as idle time.
    """

    slowest: Array
    spread: Array
    passed: Array
    others: Array


def _head(
    costs: Costs, whole: Array, fewer: Array, each_other: Array, c: Coefficients, sharpness: float
) -> Head:
    """The head beside layers that take `whole` each [s]; fewer: layers that the other stages hold
    less than the fullest; each_other: 1 over the number of these stages."""
    # the LM head lengthens the last stage alone, unless the stack spreads a share of it: of that
    # every stage carries 1/pp
    spread = costs.work.head * c.head_balance / costs.stages - costs.hidden_even
    beyond = costs.hidden_head - costs.hidden_even
    # where its stage holds fewer layers, the head lengthens the slowest stage only by what it takes
    # beyond them
    displaced, last = jnp.broadcast_arrays(
        costs.displaced * whole, costs.work.head * (1.0 - c.head_balance) / costs.heads - beyond
    )
    slowest = excess(displaced, last, sharpness)
    # what of the head passes while its stage waits counts as head in place of launch, as far as
    # that stage is the slowest
    share = jnp.where(displaced > 0.0, slowest / jnp.where(last > 0.0, last, 1.0), 1.0)
    # where the others hold fewer layers than the slowest one, less of the head's share passes
    # beside them, too
    less = costs.hidden_even * (fewer - costs.displaced * each_other) / costs.layers
    return Head(
        slowest=slowest,
        spread=spread,
        passed=beyond * share + costs.hidden_even,
        others=spread + less + (last - slowest) * each_other,
    )


def _each_other(stages: Array) -> Array:
    """1 over the stages beside the slowest one [1]; 1 where there is none."""
    return inverse(jnp.where(stages > 1.0, stages - 1.0, 1.0))


def added_up(costs: Costs, devices: Array, c: Coefficients, sharpness: float) -> Breakdown:
    """The step: `m ℓ (layer) + m (head + transfer) + bubble + once per step`, times `1 +
    straggler`; see `step.step_time`.

    Args:
      devices: of the run [count].
    """
    work, comm = costs.work, costs.communication
    m, layers = costs.micro_batches, costs.layers
    times = m * layers
    products, core = work.matmul.total, work.attention.total
    layer = (
        products
        + core
        + work.elementwise
        + work.recompute
        + costs.launch
        + comm.tp
        + comm.cp
        + comm.ep
        + comm.fsdp
    )
    whole = layer + c.contention * comm.hidden_layer
    # while the pipeline fills and drains, the slowest stage waits for the others: mean layers, and
    # what of the head is theirs
    each_other = _each_other(costs.stages)
    fewer = costs.excess * (1.0 + each_other)
    head = _head(costs, whole, fewer, each_other, c, sharpness)
    idle = (layers - fewer) * whole + comm.pp + head.others
    partial = Breakdown(
        matmul=times * products,
        attention=times * core,
        elementwise=times * work.elementwise,
        recompute=times * work.recompute,
        launch=times * costs.launch - m * head.passed,
        head=m * (head.slowest + head.spread + head.passed),
        tensor_parallel=times * comm.tp + m * comm.ends,
        context_parallel=times * comm.cp,
        expert_parallel=times * comm.ep,
        fsdp=times * comm.fsdp + m * comm.fsdp_first,
        data_parallel=comm.dp,
        pipeline_transfer=m * comm.pp,
        bubble=c.bubble * costs.idle_slots * idle,
        optimizer=costs.optimizer,
        offload=jnp.zeros_like(idle) + costs.offload,
        contention=c.contention * (times * comm.hidden_layer + comm.hidden_step),
        straggler=jnp.zeros_like(idle),
        overhead=jnp.zeros_like(idle),
    )
    run = 1.0 - costs.composed
    late = run * straggler_share(devices, c.straggler) * partial.total
    return partial.replace(
        straggler=late, overhead=jnp.zeros_like(idle) + run * c.overhead + comm.once
    )
