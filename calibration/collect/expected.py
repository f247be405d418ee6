"""What the model says of a training step, asked for one quantity at a time: FLOPs, bytes on the
wire, bytes in memory.

Bytes on the wire come from `step_time` itself, on a network of 1 byte/s without latency and with
nothing overlapped: there a second is a byte. The model counts activations in 16 bits; in fp32 each
of their bytes counts twice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibration.collect.workload import WorkloadSpec, plan, transformer
from dmodel import counts
from dmodel.blocks.part import LAST
from dmodel.breakdown import Breakdown
from dmodel.coefficients import default
from dmodel.footprint import RESERVED_BYTES
from dmodel.records import Chip, Cluster, Network, Plan
from dmodel.step import memory_use, step_time
from dmodel.tables import layer
from dmodel.types import enable_float64

HARD = float("inf")
UNIT = Cluster(
    chip=Chip(
        flops_per_s=1.0,
        attention_flops_per_s=1.0,
        exponentials_per_s=1.0,
        hbm_bytes=1.0,
        hbm_bytes_per_s=1.0,
        kernel_latency_s=0.0,
        idle_watts=0.0,
        peak_watts=0.0,
        price_per_s=0.0,
    ),
    network=Network(
        size=np.array([1.0, np.inf]),
        bytes_per_s=np.ones(2),
        latency_s=np.zeros(2),
        torus_axes=np.array([2.0, 1.0]),
        in_network_reduction=np.zeros(2),
    ),
)
"""One level at 1 byte/s, between slices of one device each: their rings take what they hand on, and
nothing for what a rank keeps."""


class Flops(NamedTuple):
    """FLOPs of one device and step: products of the layers, attention core, head; forward, backward
    and what is done again."""

    layers: float
    core: float
    head: float


def words(spec: WorkloadSpec) -> float:
    """Bytes of an activation element over those of the model."""
    return (4.0 if spec.precision == "fp32" else 2.0) / counts.WORD


def flops(spec: WorkloadSpec) -> Flops:
    """FLOPs by `dmodel.counts`, backward twice the forward; full recomputation adds a forward pass
    (without its last product, where the plan says so), selective the core (unfused).

    The head counts as shared out over the stages: its work of one device on average.
    """
    enable_float64()
    model, layout = transformer(spec), plan(spec)
    products = layer(model, layout).products
    each = np.asarray(products.flops)
    passes = 3.0 + layout.layout.recompute_layers
    core_passes = passes + layout.layout.recompute_attention
    layers = model.n_layers / layout.layout.pp * layout.n_microbatches
    core = float(counts.attention_flops(model, layout))
    left_out = (
        layout.layout.recompute_layers
        * (1.0 - layout.software.recompute_last)
        * products.of(each, *LAST)
    )
    return Flops(
        layers=float(layers * (passes * each[:-1].sum() - left_out)),
        core=float(layers * core_passes * core),
        head=float(3.0 * layout.n_microbatches / layout.layout.pp * each[-1]),
    )


def _seconds(spec: WorkloadSpec, layout: Plan) -> Breakdown:
    one = default().replace(
        net_efficiency_outer=1.0,
        net_efficiency_tp_outer=1.0,
        net_contention=0.0,
        net_latency_outer=0.0,
        collective_start=0.0,
        collective_skew=0.0,
        power_demand=0.0,
    )
    shown = layout.having(
        overlap_tp=0.0, overlap_cp=0.0, overlap_ep=0.0, overlap_dp=0.0, overlap_pp=0.0
    )
    return step_time(UNIT, transformer(spec), shown, one, sharpness=HARD)


def wire_bytes(spec: WorkloadSpec) -> dict[tuple[str, str], float]:
    """Bytes that one device sends in one step, by axis and kind of collective; what the model does
    not send is left out.

    Gathers and scatters of ZeRO are told apart by asking again with gradients, or weights, of no
    bytes.
    """
    enable_float64()
    layout, wide = plan(spec), words(spec)
    sent = _seconds(spec, layout)
    gathered, scattered = (
        _seconds(spec, layout.having(reduce_bytes=0.0)),
        _seconds(spec, layout.having(gather_bytes=0.0)),
    )
    routed = routed_bytes(spec)
    tensor = wide * float(sent.tensor_parallel) - routed
    # where recomputation ends before the last product, it gathers for it, but does not scatter
    # after it
    ends_early = float(layout.layout.recompute_layers * (1.0 - layout.software.recompute_last))
    lone = (
        ends_early
        * (1.0 - 1.0 / spec.tensor)
        * wide
        * counts.WORD
        * float(counts.tokens(transformer(spec), layout))
        * spec.d_model
    )
    lone *= spec.n_layers / spec.pipeline * spec.n_microbatches
    gathers, scatters = (
        (routed + (tensor + part if spec.sequence_parallel else 0.0)) / 2.0
        for part in (lone, -lone)
    )
    again = float(layout.layout.recompute_layers + layout.layout.recompute_attention)
    context = wide * float(sent.context_parallel) / (3.0 + again)
    found = {
        ("tensor", "all-reduce"): 0.0 if spec.sequence_parallel else tensor,
        ("tensor", "all-gather"): gathers,
        ("tensor", "reduce-scatter"): scatters,
        # the ring passes keys and values once each way, and again when recomputed; their gradients
        # once
        ("context", "all-gather"): context * (2.0 + again),
        ("context", "reduce-scatter"): context,
        ("expert", "all-to-all"): wide * float(sent.expert_parallel),
        ("fsdp", "all-gather"): float(gathered.fsdp),
        ("fsdp", "reduce-scatter"): float(scattered.fsdp),
        ("data", "all-reduce"): float(sent.data_parallel),
        ("pipeline", "collective-permute"): wide * float(sent.pipeline_transfer),
    }
    return {key: value for key, value in found.items() if value > 0.0}


def routed_bytes(spec: WorkloadSpec) -> float:
    """Bytes of the model's gathers and scatters of tokens among the ranks that split an expert,
    dispatch and combine, each way."""
    model, layout, n = transformer(spec), plan(spec), spec.tensor
    if spec.n_experts == 1 or n == 1:
        return 0.0
    one = (n - 1.0) / n * words(spec) * float(layer(model, layout).sent)
    return (
        (4.0 + 2.0 * float(layout.layout.recompute_layers))
        * one
        * spec.n_layers
        / spec.pipeline
        * spec.n_microbatches
    )


def memory_bytes(spec: WorkloadSpec) -> dict[str, float]:
    """Bytes of the fullest device by purpose, without what the model reserves for the driver and
    fragmentation.

    Logits are 8 bytes in either precision: in fp32 the loss is taken of the product itself, and its
    gradient has 4.
    """
    enable_float64()
    found = memory_use(transformer(spec), plan(spec))
    return {
        "weights": float(found.weights),
        "optimizer": float(found.optimizer),
        "gradients": float(found.gradients),
        "gathered weights": float(found.buffers) - RESERVED_BYTES,
        "activations": words(spec) * float(found.activations),
        "logits": float(found.logits),
    }
