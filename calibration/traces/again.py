"""What a layer does again in the backward pass and what of the rest waits in the host's memory, as
shares of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dmodel import counts
from dmodel.cost import memory
from dmodel.records import Model, Plan
from dmodel.types import Array


class Again(NamedTuple):
    """What is done again of a layer in the backward pass: 0, 1 or a share each, numbers or arrays
    of them.

    Attributes:
      layers: share of the layers that are done again in full; the rest is about the others.
        attention: the core.
      queries_values, keys: their products, or for latents what these come from. latents: products
        from latents. out: that of attention's output. into, gate, back: into MLPs and experts, the
        gate's, and out of them. dense, experts: all of that, in dense layers' MLPs alone, and in
        routed and shared experts.
      norms, activation: those before products, and that of experts: what they would keep is gone,
      the time they take again is not counted. narrow: not done again, but 1 where what MLPs keep
      for their activation is held in half the bytes.
      streams: kernels that stream. last_kept: 1 where the last product's result is kept though
        nothing reads it. inputs, others: what of a layer's input, and of all else that it keeps,
        waits in the host's memory. said: how it is known, in words.
    """

    layers: Array = 0.0
    attention: Array = 0.0
    queries_values: Array = 0.0
    keys: Array = 0.0
    latents: Array = 0.0
    out: Array = 0.0
    into: Array = 0.0
    gate: Array = 0.0
    back: Array = 0.0
    dense: Array = 0.0
    experts: Array = 0.0
    norms: Array = 0.0
    activation: Array = 0.0
    narrow: Array = 0.0
    streams: Array = 0.0
    last_kept: Array = 0.0
    inputs: Array = 0.0
    others: Array = 0.0
    said: tuple[str, ...] = ()

    @property
    def ends(self) -> bool:
        """Whether so much is done again that its end matters."""
        return bool(self.layers > 0.0 or self.streams > 0.0)


def stacked(parts: Sequence[Again]) -> Again:
    """What is done again in each of several rows, `[row]`."""
    found: dict[str, Any] = {
        name: np.array([getattr(part, name) for part in parts], float)
        for name in Again._fields
        if name != "said"
    }
    return Again(**found)


def redone(again: Again, model: Model, plan: Plan) -> Plan:
    """The plan with what is done again as shares: of the layers, of the core, of the FLOPs of
    products, and of what streams; and with what of the bytes kept is offloaded."""
    flops = np.asarray(counts.matmuls(model, plan).flops)[:-1]
    heads, groups = np.asarray(model.n_heads), np.asarray(model.n_kv_heads)
    keys = groups / np.maximum(heads + 2.0 * groups, 1.0)
    gate = np.asarray(model.gated_mlp) / (1.0 + np.asarray(model.gated_mlp))
    share, up, down = _dense_share(model), flops[3] + flops[5], flops[4] + flops[6]
    passed = share * again.dense + (1.0 - share) * again.experts
    products = (
        flops[0] * (keys * again.keys + (1.0 - keys) * again.queries_values)
        + flops[1] * again.latents
        + flops[2] * again.out
    )
    products = products + up * (gate * again.gate + (1.0 - gate) * again.into) + down * again.back
    products = products + passed * (flops[3] + flops[4]) + again.experts * (flops[5] + flops[6])
    done = plan.having(
        recompute_layers=again.layers,
        recompute_attention=again.attention,
        recompute_products=products / flops.sum(0),
        recompute_elementwise=again.streams,
        last_kept=again.last_kept,
    )
    return offloading(again, model, done.having(recompute_bytes=_forgotten(again, model, done)))


def _dense_share(model: Model) -> np.ndarray:
    """Share of the width of MLPs that every token passes that lies in dense layers, beside shared
    experts [1]; all without experts."""
    wide, shared = (
        model.n_dense_layers * model.d_ff_dense,
        (model.n_layers - model.n_dense_layers) * model.n_shared_experts * model.d_ff,
    )
    return np.where(np.asarray(model.n_experts) > 1.0, wide / np.maximum(wide + shared, 1.0), 1.0)


def _forgotten(again: Again, model: Model, plan: Plan) -> Array:
    """`Layout.recompute_bytes`: of modules that are done again, share of a layer's bytes [1].
    Queries, keys and values from latents, dense layers' MLPs, experts with the shared ones, outputs
    of norms, results of experts' activation; 0 where what streams is done again too, which
    `memory.kept_result_bytes` counts."""
    kept, dense = memory.layer_keeps(model, plan), _dense_share(model)
    latents = again.latents * (np.asarray(model.kv_rank) > 0.0)
    gone = (
        latents * kept.queries
        + (again.dense * dense + again.experts * (1.0 - dense)) * kept.dense
        + again.norms * kept.norms
    )
    gone = gone + 0.5 * again.narrow * (1.0 - again.dense) * kept.dense
    gone = (
        gone
        + again.experts * kept.experts
        + np.maximum(again.experts, again.activation) * kept.activated
    )
    return np.asarray((1.0 - again.streams) * gone / kept.total)


def offloading(again: Again, model: Model, plan: Plan) -> Plan:
    """The plan with what of the bytes that its layers keep is offloaded."""
    inputs, kept = (
        np.asarray(f(model, plan))
        for f in (memory.layer_input_bytes, memory.layer_activation_bytes)
    )
    return plan.having(offload=again.others + (again.inputs - again.others) * inputs / kept)
