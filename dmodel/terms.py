"""The registry of terms of a step: what each counts, its formula, what hides it, its source."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dmodel import counts
from dmodel.cost import collectives
from dmodel.cost.pipeline import idle_slots
from dmodel.hosted import moved
from dmodel.messages import Messages, messages
from dmodel.placement import place
from dmodel.records import weight_copies
from dmodel.records.case import Case
from dmodel.smooth import SHARPNESS
from dmodel.tables import layer

PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def quantity(value: float, unit: str) -> str:
    """A number with its unit, in the prefix that people read: `1.23 TFLOP`, `4.5 ms`."""
    if unit in ("1", ""):
        return f"{value:.4g}"
    if unit == "s" and 0.0 < value < 1.0:
        return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
    scale, prefix = next(((s, p) for s, p in PREFIXES if value >= s), (1.0, ""))
    plain = unit in ("s", "layer", "micro-batch", "kernel", "device")
    return f"{value:.4g} {unit}" if plain else f"{value / scale:.4g} {prefix}{unit}"


class Amount(NamedTuple):
    """A quantity that a term depends on, per device and step: what, how much, its unit."""

    what: str
    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.what}: {quantity(self.value, self.unit)}"


class Term(NamedTuple):
    """One entry of the registry.

    Attributes:
      meaning: what the term counts. formula: how it follows from work and rates.
      coefficients: names of those that it reads. hides: what hides it, or "".
      source: of the formula. amounts: work of a case, per device and step.
    """

    meaning: str
    formula: str
    coefficients: tuple[str, ...]
    hides: str
    source: str
    amounts: Callable[[Case, float], list[Amount]]


def _passes(case: Case) -> float:
    """Passes of a stage's layers in a step: layers of the fullest stage times micro-batches."""
    return float(counts.stage_layers(case.model, case.plan) * case.plan.n_microbatches)


def _rate(work: float, seconds: float, peak: float, unit: str) -> list[Amount]:
    """What is reached of a peak rate."""
    if seconds <= 0.0:
        return []
    reached = work / seconds
    return [Amount("reached", reached, unit), Amount("share of the peak", reached / peak, "1")]


def _matmul(case: Case, seconds: float) -> list[Amount]:
    each = np.asarray(layer(case.model, case.plan).products.flops)[:-1].sum()
    work = float(each * (2.0 + case.model.trainable) * _passes(case))
    peak = float(case.cluster.chip.flops_per_s)
    return [
        Amount("products, forward and backward", work, "FLOP"),
        Amount("peak", peak, "FLOP/s"),
        *_rate(work, seconds, peak, "FLOP/s"),
    ]


def _attention(case: Case, seconds: float) -> list[Amount]:
    # backward: 2.5 times the forward products, as fused kernels compute scores again
    work = float(3.5 * counts.attention_flops(case.model, case.plan) * _passes(case))
    peak = float(case.cluster.chip.attention_flops_per_s)
    return [
        Amount("scores and sums, forward and backward", work, "FLOP"),
        Amount("peak in 16 bits", peak, "FLOP/s"),
        *_rate(work, seconds, peak, "FLOP/s"),
    ]


def _elementwise(case: Case, seconds: float) -> list[Amount]:
    of, peak = case.plan.software, float(case.cluster.chip.hbm_bytes_per_s)
    work = float(of.stream_ratio * layer(case.model, case.plan).streams.total * _passes(case))
    return [
        Amount("least traffic of kernels that stream", work, "byte"),
        Amount("memory bandwidth", peak, "byte/s"),
        *_rate(work, seconds, peak, "byte/s"),
    ]


def _recompute(case: Case, seconds: float) -> list[Amount]:
    layout = case.plan.layout
    return [
        Amount("share of the layers in full", float(layout.recompute_layers), "1"),
        Amount("attention core of the others", float(layout.recompute_attention), "1"),
        Amount("products of the others", float(layout.recompute_products), "1"),
        Amount("kernels that stream of the others", float(layout.recompute_elementwise), "1"),
    ]


def _launch(case: Case, seconds: float) -> list[Amount]:
    return [
        Amount("passes of layers", _passes(case), "layer"),
        Amount("kernel latency of the chip", float(case.cluster.chip.kernel_latency_s), "s"),
        Amount("share launched by graphs", float(case.plan.software.graphed), "1"),
    ]


def _head(case: Case, seconds: float) -> list[Amount]:
    product = float(np.asarray(layer(case.model, case.plan).products.flops)[-1])
    work = 3.0 * product * float(case.plan.n_microbatches)
    return [
        Amount("logits, forward and backward", work, "FLOP"),
        Amount("bytes alive of a logit", float(case.plan.precision.logit_bytes), "byte"),
    ]


def _messages(case: Case) -> Messages:
    """Messages of the case as if nothing hid them."""
    groups = place(case.plan, case.cluster.network.size)
    net = collectives.fabric(case.cluster.network, case.coefficients, SHARPNESS, groups.all)
    parts = counts.residents(case.model, case.plan)
    return messages(case.model, case.plan, parts, groups, net, case.coefficients)


def _sent(total: float, seconds: float, *more: Amount) -> list[Amount]:
    """Time of messages, and what of it nothing hides."""
    hidden = max(total - seconds, 0.0)
    return [*more, Amount("sent, if nothing hid it", total, "s"), Amount("hidden", hidden, "s")]


def _group(case: Case, *names: str) -> list[Amount]:
    units = {"interleave": "1"}
    return [
        Amount(name, float(getattr(case.plan.layout, name)), units.get(name, "device"))
        for name in names
    ]


def _tensor(case: Case, seconds: float) -> list[Amount]:
    sent = _messages(case)
    total = float(sent.tp.total * _passes(case) + sent.ends * case.plan.n_microbatches)
    size = Amount("activation", float(counts.activation_bytes(case.model, case.plan)), "byte")
    return _sent(total, seconds, *_group(case, "tp"), size)


def _context(case: Case, seconds: float) -> list[Amount]:
    return _sent(float(_messages(case).cp.total * _passes(case)), seconds, *_group(case, "cp"))


def _expert(case: Case, seconds: float) -> list[Amount]:
    total = float(_messages(case).ep.total * _passes(case))
    return _sent(total, seconds, *_group(case, "ep", "etp"))


def _fsdp(case: Case, seconds: float) -> list[Amount]:
    sent = _messages(case)
    total = float((2.0 * sent.gather + sent.scatter) * _passes(case))
    bits = case.plan.precision
    return _sent(
        total,
        seconds,
        *_group(case, "dp", "shard"),
        Amount("a parameter gathered", float(bits.gather_bytes), "byte"),
        Amount("a gradient reduced", float(bits.reduce_bytes), "byte"),
    )


def _data(case: Case, seconds: float) -> list[Amount]:
    sent, bits = _messages(case), case.plan.precision
    total = float(sent.dp + sent.updated + sent.awaited)
    parts = counts.residents(case.model, case.plan)
    held = float(weight_copies(case.plan.layout) * parts.total)
    return _sent(
        total,
        seconds,
        *_group(case, "dp", "shard"),
        Amount("parameters of a device", held, "parameter"),
        Amount("a gradient reduced", float(bits.reduce_bytes), "byte"),
    )


def _transfer(case: Case, seconds: float) -> list[Amount]:
    total = float(_messages(case).pp * case.plan.n_microbatches)
    return _sent(total, seconds, *_group(case, "pp", "interleave"))


def _bubble(case: Case, seconds: float) -> list[Amount]:
    return [
        *_group(case, "pp"),
        Amount("model chunks of a stage", float(case.plan.layout.interleave), "1"),
        Amount("micro-batches", float(case.plan.n_microbatches), "micro-batch"),
        Amount("idle slots", float(idle_slots(case.plan)), "micro-batch"),
    ]


def _optimizer(case: Case, seconds: float) -> list[Amount]:
    bits = case.plan.precision
    return [
        Amount("states of a parameter", float(bits.optimizer_bytes), "byte"),
        Amount("memory bandwidth", float(case.cluster.chip.hbm_bytes_per_s), "byte/s"),
        *_group(case, "shard"),
    ]


def _offload(case: Case, seconds: float) -> list[Amount]:
    sent = moved(case.model, case.plan, counts.residents(case.model, case.plan))
    m, chip = float(case.plan.n_microbatches), case.cluster.chip
    come = float(m * (sent.kept + (1.0 + sent.again) * sent.weights) + sent.parameters)
    return [
        Amount("to the host", float(m * (sent.kept + sent.sums) + sent.gradients), "byte"),
        Amount("from the host", come, "byte"),
        Amount("link, one direction", float(chip.host_bytes_per_s), "byte/s"),
        Amount("host's memory, for a device", float(chip.host_memory_bytes_per_s), "byte/s"),
    ]


def _nothing(case: Case, seconds: float) -> list[Amount]:
    return [Amount("devices", float(case.plan.devices), "device")]


KORTHIKANTI = "Korthikanti et al. 2022, arXiv 2205.05198"
NARAYANAN = "Narayanan et al. 2021, arXiv 2104.04473"
HOCKNEY = "rings and trees over levels of the network: hops and bytes (Thakur et al. 2005)"

TERMS: dict[str, Term] = {
    "matmul": Term(
        "products of the layers, forward and backward",
        "FLOPs / (peak · efficiency · m/(m + m½) · n/(n + n½) · k/(k + k½)), over all products",
        (
            "matmul_efficiency",
            "matmul_half_rows",
            "matmul_half_columns",
            "matmul_half_inner",
            "low_precision_efficiency",
            "grouped_efficiency",
            "power_demand",
        ),
        "",
        "roofline with half sizes; power limits the clock",
        _matmul,
    ),
    "attention": Term(
        "the core of attention: scores, softmax, weighted sums",
        "the larger of FLOPs / (peak · efficiency) and exponentials / rate, and traffic without "
        "fusion",
        ("attention_efficiency", "attention_exponentials", "attention_backward"),
        "",
        "Dao 2023, arXiv 2307.08691; Shah et al. 2024, arXiv 2407.08608",
        _attention,
    ),
    "elementwise": Term(
        "kernels that stream through memory: norms, activations, additions, casts",
        "(least traffic · factor + casts) / (bandwidth · efficiency)",
        ("elementwise_traffic", "cast_traffic", "memory_efficiency"),
        "",
        KORTHIKANTI,
        _elementwise,
    ),
    "recompute": Term(
        "forward work that is done again in the backward pass",
        "shares of the layer's forward time",
        (),
        "",
        f"Chen et al. 2016, arXiv 1604.06174; {KORTHIKANTI}",
        _recompute,
    ),
    "launch": Term(
        "waiting for the host to launch kernels, beyond what runs meanwhile",
        "the larger of device time and kernels · launch · latency, less device time",
        ("launch", "kernel_fill"),
        "CUDA graphs and compiled programs (`graphed`)",
        "host-bound execution of small kernels",
        _launch,
    ),
    "head": Term(
        "logits and loss, as far as they lengthen the slowest stage",
        "FLOPs / rate + traffic of logits / bandwidth, on the last stage",
        ("loss_traffic", "head_balance"),
        "the balance of stages",
        NARAYANAN,
        _head,
    ),
    "tensor_parallel": Term(
        "messages of tensor parallelism that no work hides",
        "4 collectives a layer and micro-batch of 2 t h bytes; less what hides",
        ("overlap_tp", "net_efficiency_inner", "net_latency_inner", "collective_skew"),
        "products of the same pass (`overlap_tp`)",
        f"Shoeybi et al. 2019, arXiv 1909.08053; {KORTHIKANTI}; {HOCKNEY}",
        _tensor,
    ),
    "context_parallel": Term(
        "keys and values on their way round the ring",
        "a ring of K and V forward, and of their gradients backward; less what hides",
        ("overlap_cp", "net_efficiency_inner", "net_efficiency_outer"),
        "the core of attention (`overlap_cp`)",
        f"Liu et al. 2023, arXiv 2310.01889; {HOCKNEY}",
        _context,
    ),
    "expert_parallel": Term(
        "tokens on their way to experts and back",
        "4 exchanges a layer and micro-batch of top_k · t h · 2 bytes; less what hides",
        ("overlap_ep", "net_efficiency_outer", "net_latency_outer"),
        "another micro-batch, where the stack schedules it so (`overlap_ep`)",
        f"Lepikhin et al. 2020, arXiv 2006.16668; {HOCKNEY}",
        _expert,
    ),
    "fsdp": Term(
        "weights gathered and gradients scattered with every micro-batch (ZeRO 2 and 3)",
        "gathers forward and backward and a scatter of each layer; less what hides",
        ("overlap_gather", "overlap_fsdp", "net_efficiency_inner", "net_efficiency_outer"),
        "the layer that is computed meanwhile",
        f"Rajbhandari et al. 2020, arXiv 1910.02054; Zhao et al. 2023, arXiv 2304.11277; {HOCKNEY}",
        _fsdp,
    ),
    "data_parallel": Term(
        "gradients reduced and parameters gathered once a step",
        "all-reduce, or reduce-scatter and all-gather, in buckets; less what hides",
        ("overlap_dp", "net_efficiency_outer", "net_latency_outer", "bucket"),
        "the last micro-batch's backward pass and the next forward pass (`overlap_dp`)",
        f"Li et al. 2020, arXiv 2006.15704; {HOCKNEY}",
        _data,
    ),
    "pipeline_transfer": Term(
        "activations between stages of the pipeline",
        "2 t h bytes each way for every chunk and micro-batch; less what hides",
        ("overlap_pp", "net_efficiency_outer", "net_latency_outer"),
        "other micro-batches (`overlap_pp`)",
        NARAYANAN,
        _transfer,
    ),
    "bubble": Term(
        "idle slots of the pipeline",
        "(pp − 1) / v slots of a micro-batch's time for 1F1B and interleaving, "
        "⅔ (pp / 2 − 1) for DualPipe, ⅓ (pp − 1) for DualPipeV",
        ("bubble",),
        "more micro-batches, or more chunks of a stage",
        NARAYANAN,
        _bubble,
    ),
    "optimizer": Term(
        "the update of the parameters on the device",
        "(2 · states + gradient + weight) bytes of each parameter that it updates / bandwidth",
        ("optimizer_traffic", "memory_efficiency"),
        "",
        "Rajbhandari et al. 2020, arXiv 1910.02054",
        _optimizer,
    ),
    "offload": Term(
        "copies to and from the host that nothing hides, and the host's update",
        "bytes / (0.82 · link), less the pass or the update beside it; update: host_update · "
        "parameters · (2 · states + gradient + weight) / bandwidth of the host's memory",
        (),
        "passes and the host's update (`overlap_offload`)",
        "Ren et al. 2021, arXiv 2101.06840; Rajbhandari et al. 2021, arXiv 2104.07857",
        _offload,
    ),
    "contention": Term(
        "compute slowed by communication beside it",
        "share of what hides that lengthens its window",
        ("contention",),
        "",
        "channels of collectives hold processors of the device",
        _nothing,
    ),
    "straggler": Term(
        "waiting for the slowest device",
        "step · jitter · x / √(1 + x), x = 2 ln devices",
        ("straggler",),
        "",
        "largest of many normal times, `σ √(2 ln n)` for large n",
        _nothing,
    ),
    "overhead": Term(
        "fixed time of a step",
        "a constant",
        ("overhead",),
        "",
        "data loading, logging, synchronization",
        _nothing,
    ),
}
"""Terms of a step in the order of the breakdown."""
