"""What a device waits for its host: copies over their link that nothing hides, and the update of
states in the host's memory.

Ren et al. 2021, arXiv 2101.06840 (ZeRO-Offload): gradients leave for the host while the backward
pass runs, the host updates, parameters come back while it does. Rajbhandari et al. 2021, arXiv
2104.07857 (ZeRO-Infinity), and PyTorch's FSDP: weights wait there too, and come for each pass.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dmodel import counts
from dmodel.blocks.part import Passes
from dmodel.cost import memory
from dmodel.cost.host import copy_time, update_time
from dmodel.records import Chip, Model, Plan
from dmodel.smooth import positive
from dmodel.types import Array, larger


class Moved(NamedTuple):
    """Bytes between a device and its host [byte].

    Attributes:
      kept: activations of a micro-batch, out in the forward pass and in in the backward one.
      weights: in for a pass of a micro-batch. again: share of them that comes for the backward
        pass too [1]. sums: gradients out with each micro-batch.
      gradients: out once a step. parameters: in once a step, after the update.
    """

    kept: Array
    weights: Array
    again: Array
    sums: Array
    gradients: Array
    parameters: Array


def moved(model: Model, plan: Plan, parts: counts.Residents) -> Moved:
    """What one device and its host exchange.

    Of a stage's activations all but those in transit (`memory.on_device`). Gradients leave in the
    bytes in which they were reduced where the host sums them (`Software.host_sums`), else once as
    they are stored; parameters come back but for those that wait in the host's memory anyway.
    """
    bits, software = plan.precision, plan.software
    layers = counts.stage_layers(model, plan)
    updated = model.trainable * software.offload_optimizer * memory.held(parts, plan, 1.0)
    kept = layers - memory.on_device(layers, plan)
    # where the master weights are the only ones, what a gather needs of them
    stored, gathered = (
        memory.stored_weights(parts, plan),
        bits.gather_bytes * memory.held(parts, plan, 3.0),
    )
    return Moved(
        kept=kept * memory.layer_activation_bytes(model, plan),
        weights=software.offload_weights * larger(stored, gathered),
        again=plan.layout.reshard,
        sums=software.host_sums * bits.reduce_bytes * updated,
        gradients=(1.0 - software.host_sums) * bits.gradient_bytes * updated,
        parameters=(1.0 - software.offload_weights) * bits.weight_bytes * updated,
    )


def waiting(
    model: Model, plan: Plan, parts: counts.Residents, windows: Passes, chip: Chip
) -> jax.Array:
    """What a device waits for its host in a step [s].

    `m [(max(in, out) − ω window)₊, forward and backward] + (gradients − ω window)₊ + update +
    (parameters − ω update)₊`: both directions of the link run at once, copies of a micro-batch
    beside its passes, those of gradients beside the last backward pass, those of parameters beside
    the update, where the stack lets them (ω, `Software.overlap_offload`). Positive parts are hard:
    what fits into its window costs nothing.

    Limits: 0 where nothing is offloaded; the copies themselves where nothing overlaps. Windows are
    those of a whole stage, so that layers may wait for each other's copies; copies do not slow
    messages that share the link.

    Args:
      windows: how long the passes of a stage and micro-batch last [s].
    """
    overlap = plan.software.overlap_offload
    found = moved(model, plan, parts)
    forward = larger(found.weights, found.kept)
    backward = larger(found.again * found.weights + found.kept, found.sums)
    passes = _exposed(forward, windows.forward, overlap, chip)
    passes = passes + _exposed(backward, windows.backward, overlap, chip)
    leaving = _exposed(found.gradients, windows.backward, overlap, chip)
    shared = model.trainable * plan.software.offload_optimizer
    update = update_time(shared * memory.held(parts, plan, 1.0), plan, chip)
    back = _exposed(found.parameters, update, overlap, chip)
    return jnp.asarray(plan.n_microbatches * passes + leaving + update + back)


def _exposed(nbytes: Array, window: Array, overlap: Array, chip: Chip) -> jax.Array:
    """Time of a copy beyond what of it a window hides [s]."""
    return positive(jnp.asarray(copy_time(nbytes, chip) - overlap * window))
