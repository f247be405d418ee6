"""Where the compiled step knowingly departs from the model, and by how much: each cause with its
amount, program minus model.

Together with the model these account for what is compared; a difference that none of them names is
a fault of the one or the other.
"""

from __future__ import annotations

from typing import NamedTuple

from calibration.collect import expected
from calibration.collect.workload import WorkloadSpec, plan, shard_axes, transformer
from dmodel import counts
from dmodel.records import value
from dmodel.step import memory_moments
from dmodel.tables import parameter_groups

Key = tuple[str, str]


class Cause(NamedTuple):
    """One known difference: FLOPs or bytes of one device and step, program minus model."""

    reason: str
    amount: float


BUBBLE = "pipeline: idle slots compute and send on what nobody reads"
HALF_CORE = "selective recomputation: probabilities times values are not needed again"
ROUTER = (
    "experts: the router's products, done again in the backward pass, by all ranks of tensor "
    "without sequence parallelism"
)
BLOCKED = "blocked attention: all of the causal square, scores once more in the backward pass"
ENDS = "embedding and head are gathered once where they are used, not twice for each micro-batch"
WHOLE = "norms and router are whole on every rank of tensor"
STAGES = "embedding, last norm and head are held by all stages"
KEPT_KEYS = "full recomputation: gathered keys and values stay for the backward pass of their layer"
UNSPLIT = (
    "experts: without sequence parallelism ranks of tensor dispatch the whole sequence each and "
    "sum tokens"
)
MASKS = "no dropout: neither its masks nor a second copy of the probabilities"
TICKS = "pipeline: activations of idle slots are kept too"
SUMS = "gradients of one micro-batch stand beside the sum of those before it"
TWICE = (
    "loops in loops: activations of one micro-batch are held twice, in the inner loop's result "
    "and in the outer one's"
)
ANSWERS = (
    "experts: their answers are kept for the router's gradient; sequence parallelism splits them, "
    "and the inputs"
)
HANDED = "pipeline: embedded micro-batches and finished ones are held whole"
BATCH = "tokens, labels and counters"
TOGETHER = "the compiled program holds logits while a layer is recomputed"


def ticks(spec: WorkloadSpec) -> int:
    """How often a stage runs its layers in one step."""
    return spec.n_microbatches + spec.pipeline - 1


def _extra(spec: WorkloadSpec) -> float:
    """Idle slots over working ones."""
    return ticks(spec) / spec.n_microbatches - 1.0


def _tokens(spec: WorkloadSpec) -> float:
    return spec.micro_batch * spec.seq_len / spec.context


def _runs(spec: WorkloadSpec) -> float:
    """Layers of a stage times micro-batches."""
    return spec.n_layers / spec.pipeline * spec.n_microbatches


def flops(spec: WorkloadSpec) -> dict[str, list[Cause]]:
    """Known differences of `expected.flops`, by its fields."""
    s, t, model = spec, _tokens(spec), expected.flops(spec)
    one_core = float(counts.attention_flops(transformer(s), plan(s)))
    layers, core = [], []
    if s.n_experts > 1:
        own = t / s.tensor if s.sequence_parallel else t
        # the model has a rank's share of the tokens ask it, in each pass
        extra = 4.0 * own - (3.0 + float(plan(s).layout.recompute_layers)) * t / s.tensor
        layers.append(Cause(ROUTER, _runs(s) * 2.0 * extra * s.d_model * s.n_experts))
    if s.remat == "selective" and s.attention == "none":
        core.append(Cause(HALF_CORE, -_runs(s) * 0.5 * one_core))
    if s.attention == "flash":
        passes = 7.0 + 2.0 * (s.remat == "full")
        core.append(Cause(BLOCKED, _runs(s) * passes * one_core - model.core))
    return {
        "layers": _with_bubble(s, model.layers, layers),
        "core": _with_bubble(s, model.core, core),
        "head": [],
    }


def _with_bubble(spec: WorkloadSpec, amount: float, causes: list[Cause]) -> list[Cause]:
    """Causes, and last what idle slots of a pipeline add to the model's amount and to them."""
    if spec.pipeline == 1:
        return causes
    return [*causes, Cause(BUBBLE, _extra(spec) * (amount + sum(c.amount for c in causes)))]


class _Whole(NamedTuple):
    """Parameters of one device, ZeRO's shards put together [count]: one layer without experts, its
    experts, and the ends; and how much of
    a layer the model splits over tensor though it is whole."""

    layer: float
    experts: float
    embedding: float
    head: float
    unsplit: float


def _whole(spec: WorkloadSpec) -> _Whole:
    s, n = spec, parameter_groups(transformer(spec)).layer
    norms = 2.0 * s.d_model + (s.d_model * s.n_experts if s.n_experts > 1 else 0.0)
    table = s.vocab * s.d_model / s.tensor
    return _Whole(
        layer=(float(n.split) - norms + float(n.shared)) / s.tensor + norms,
        experts=float(n.routed) / s.tensor / s.expert if s.n_experts > 1 else 0.0,
        embedding=table,
        head=table + s.d_model,
        unsplit=norms * (1.0 - 1.0 / s.tensor),
    )


def _group_share(spec: WorkloadSpec, name: str) -> float:
    """(n − 1)/n of the ranks over which ZeRO-3 splits a parameter."""
    n = spec.size(shard_axes(spec, name))
    return (n - 1.0) / n


def _fsdp(spec: WorkloadSpec, passes: float, width: float) -> list[Cause]:
    """Gathers (two passes) or scatters (one) of the parameters of a device, each `width` bytes."""
    s, p = spec, _whole(spec)
    stages, share = s.n_layers / s.pipeline, width * _group_share(s, "norm")
    experts = width * _group_share(s, "expert_up") * p.experts
    lone = s.pipeline == 1
    modelled = passes * s.n_microbatches * float(counts.residents(transformer(s), plan(s)).ends)
    ends = p.embedding * (s.n_microbatches if lone else 1) + p.head * s.n_microbatches / s.pipeline
    idle = passes * (s.pipeline - 1.0) * stages
    return [
        Cause(ENDS if lone else STAGES + "; " + ENDS, share * (ends - modelled)),
        Cause(WHOLE, share * passes * ticks(s) * stages * p.unsplit),
        Cause(BUBBLE, idle * (share * (p.layer - p.unsplit) + experts)),
    ]


def _data(spec: WorkloadSpec) -> list[Cause]:
    """Sums of gradients, fp32 (under ZeRO-3 of the shards, which model and program reduce
    alike)."""
    s, p = spec, _whole(spec)
    group = s.data if s.zero == 3 else s.data * s.expert * s.context
    shards = s.size(shard_axes(s, "norm"))
    share = 4.0 * 2.0 * (group - 1.0) / group / shards
    modelled = float(counts.residents(transformer(s), plan(s)).ends)
    return [
        Cause(STAGES if s.pipeline > 1 else WHOLE, share * (p.embedding + p.head - modelled)),
        Cause(WHOLE, share * s.n_layers / s.pipeline * p.unsplit),
    ]


def _tensor(spec: WorkloadSpec, kind: str) -> list[Cause]:
    """Tensor parallelism: sums of tokens t h, or a gather and a scatter in place of each.

    The model sums twice a layer and direction, again under full recomputation, and twice for
    embedding and head; experts gather visits.
    """
    s, split = spec, spec.sequence_parallel
    if (kind == "all-reduce") == split and s.n_experts == 1:
        return []
    one = (1.0 if split else 2.0) * (s.tensor - 1.0) / s.tensor * _tokens(s) * s.d_model * _word(s)
    found: list[Cause] = []
    if s.n_experts > 1:
        layers, found = _tensor_of_experts(s, kind, one)
    else:
        # recomputation gathers for the last product of a layer, but does not sum after it
        layers = one * (4.0 + float(s.remat == "full") * (1.0 + float(kind == "all-gather")))
    if s.pipeline > 1:
        found.append(Cause(BUBBLE, _extra(s) * layers * _runs(s)))
        found.append(Cause(STAGES, one * s.n_microbatches / (s.pipeline if split else 1)))
    return found


def _tensor_of_experts(spec: WorkloadSpec, kind: str, one: float) -> tuple[float, list[Cause]]:
    """What tensor parallelism sends for a layer with experts, and why it is not what the model
    says; one: bytes of one sum, gather or scatter of tokens."""
    again = float(spec.remat == "full")
    if spec.sequence_parallel:
        return one * (2.0 + again) + expected.routed_bytes(spec) / 2.0 / _runs(spec), []
    if kind == "all-reduce":
        return one * (4.0 + again), [Cause(UNSPLIT, 2.0 * one * _runs(spec))]
    return 0.0, [Cause(UNSPLIT, -expected.routed_bytes(spec) / 2.0)]


def _word(spec: WorkloadSpec) -> float:
    """Bytes of an element of the matmuls."""
    return 4.0 if spec.precision == "fp32" else 2.0


def wire_bytes(spec: WorkloadSpec) -> dict[Key, list[Cause]]:
    """Known differences of `expected.wire_bytes`, by axis and kind."""
    found = {
        (axis, kind): _of_axis(spec, axis, kind, amount)
        for (axis, kind), amount in expected.wire_bytes(spec).items()
    }
    return {key: [c for c in causes if c.amount] for key, causes in found.items()}


def _of_axis(spec: WorkloadSpec, axis: str, kind: str, amount: float) -> list[Cause]:
    """Known differences of one axis and kind, of which the model sends some amount."""
    if axis == "tensor":
        return _tensor(spec, kind)
    if axis == "fsdp":
        return _fsdp(spec, 2.0 if kind == "all-gather" else 1.0, _word(spec))
    if axis == "data":
        return _data(spec)
    own: list[Cause] = []
    if axis == "context":
        own = _context(spec, kind, amount)
    elif axis == "expert":
        own = _expert(spec, amount)
    return _with_bubble(spec, amount, own)


def _context(spec: WorkloadSpec, kind: str, amount: float) -> list[Cause]:
    kept = kind == "all-gather" and spec.remat == "full"
    return [Cause(KEPT_KEYS, -amount / 3.0)] if kept else []


def _expert(spec: WorkloadSpec, amount: float) -> list[Cause]:
    if spec.tensor == 1 or spec.sequence_parallel:
        return []
    return [Cause(UNSPLIT, (spec.tensor - 1.0) * amount)]


def _activations(spec: WorkloadSpec) -> list[Cause]:
    """Known differences in what is kept for the backward pass: of all layers of a stage and all
    micro-batches that are alive."""
    s, t, words = spec, _tokens(spec), expected.words(spec)
    split = s.tensor if s.sequence_parallel else 1
    layers = _layers_kept(s)
    masks = 2.0 * words * t * s.d_model / split + _scores(s, t, words)
    causes = [Cause(MASKS, -layers * masks)]
    if s.n_experts > 1:
        visits = s.top_k * float(value(transformer(s), "imbalance"))
        # inputs and answers, in place of the model's inputs on every rank of tensor
        causes.append(
            Cause(ANSWERS, layers * 2.0 * words * t * s.d_model * visits * (2.0 / split - 1.0))
        )
    if s.pipeline > 1:
        of_stage = expected.memory_bytes(s)["activations"] + sum(c.amount for c in causes)
        vector = 2.0 * words * t * s.d_model / split
        causes += [
            Cause(TICKS, _extra(s) * of_stage),
            Cause(TWICE, of_stage / s.n_microbatches),
            Cause(HANDED, vector * (s.n_microbatches + ticks(s))),
        ]
    return causes


def _layers_kept(spec: WorkloadSpec) -> float:
    """Layers times micro-batches whose activations are kept; of full recomputation the model counts
    one whole layer, in which the differences matter."""
    if spec.remat == "full":
        return 1.0
    alive = spec.n_microbatches if spec.pipeline > 1 else 1
    return spec.n_layers / spec.pipeline * alive


def _scores(spec: WorkloadSpec, t: float, words: float) -> float:
    """Bytes of a second copy of the probabilities and of their masks, where scores are written."""
    if spec.attention != "none" or spec.remat == "selective":
        return 0.0
    return (5.0 * words - 4.0) * t * spec.seq_len * spec.n_heads / spec.tensor


def _at_other_moments(spec: WorkloadSpec) -> float:
    """What the fullest of the moments of the loss and of the backward pass does not hold of the
    other one: logits, or a layer at work."""
    at = memory_moments(transformer(spec), plan(spec))
    working = at["backward"].activations - at["loss"].activations
    return min(float(at["loss"].logits), expected.words(spec) * float(working))


def memory_bytes(spec: WorkloadSpec) -> list[Cause]:
    """Known differences of the sum of `expected.memory_bytes`; what XLA's buffers hold besides
    stays unnamed."""
    s, p, layout = spec, _whole(spec), plan(spec)
    shards = s.size(shard_axes(s, "norm"))
    state = float(
        layout.precision.weight_bytes
        + layout.precision.optimizer_bytes
        + layout.precision.gradient_bytes
    )
    ends = (p.embedding + p.head - float(counts.residents(transformer(s), layout).ends)) / shards
    causes = [
        *_activations(s),
        Cause(TOGETHER, _at_other_moments(s)),
        Cause(BATCH, 2.0 * 4.0 * _tokens(s) * s.n_microbatches),
        Cause(STAGES if s.pipeline > 1 else WHOLE, state * ends),
        Cause(WHOLE, state * s.n_layers / s.pipeline * p.unsplit / shards),
    ]
    if s.n_microbatches > 1:
        causes.append(Cause(SUMS, expected.memory_bytes(s)["gradients"]))
    return [c for c in causes if c.amount]
