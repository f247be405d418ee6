"""From rows to the records of the model: one batch of cases, with every assumption that fills a
blank written beside its row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import jax
import numpy as np
from flax import struct

from calibration.traces import shapes, sharding
from calibration.traces.again import Again, offloading, redone, stacked
from calibration.traces.checkpoints import end_of, of_row
from calibration.traces.experts import NARROW_CORE, dispatch, launches, narrow_attention
from calibration.traces.kernels import attention_rates, logit_bytes
from calibration.traces.layout import Layout, layout
from calibration.traces.modules import keeps_activations
from calibration.traces.reader import host_domain, measured_time, system_of
from calibration.traces.recipes import (
    accumulates,
    chunks,
    composed,
    further_tokens,
    fuses_sums,
    held_in_order,
    job,
    splits_activations,
    tensor,
    wide_layers,
)
from calibration.traces.schema import base_precision
from calibration.traces.stages import Stages, head_cost, held_by_stage, stages
from calibration.traces.submissions import Kept, kept
from calibration.traces.table import Row, TraceTable, fingerprint
from dmodel.records import Cluster, Model, Plan
from dmodel.types import GIB, Array, InputError

T = TypeVar("T")

OPERAND_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "mxfp8": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5,
}
"""Bytes of one matmul operand by precision."""

SCALE_READS = {"mxfp8": 1.0, "nvfp4": 2.0}
"""Times that a tensor is read again before its products: scales by blocks differ along rows and
along columns, so MXFP8 is quantized from 16 bits in either direction; NVFP4 also has a scale of the
whole tensor, from the tensor itself (Transformer Engine's recipes). Scales of whole 8-bit tensors
come with the kernel before them. Without them 8-bit rows of one stack are 7 % too slow beside those
of MXFP8, on every Blackwell chip; held out by group, errors of its dense rows fall from 7.8 to 5.6
% in the median."""


class Labels(NamedTuple):
    """What is known about each case besides numbers of the model, `[rows]` each.

    Attributes:
      step_time_s: measured [s]; NaN where there is none, which only `require_time=False` lets pass.
      peak_memory_bytes: measured highest use of a device; NaN where there is none.
      accelerator, stack, source, model, flag, precision: text. n_accel: devices [count].
      file, line: where the row stands. fingerprint: of what defines the measurement. group: rows
      that must be held out together. assumptions: tuple of short texts.
    """

    step_time_s: np.ndarray
    peak_memory_bytes: np.ndarray
    accelerator: np.ndarray
    stack: np.ndarray
    source: np.ndarray
    model: np.ndarray
    flag: np.ndarray
    precision: np.ndarray
    n_accel: np.ndarray
    file: np.ndarray
    line: np.ndarray
    fingerprint: np.ndarray
    group: np.ndarray
    assumptions: np.ndarray


class Cases(struct.PyTreeNode, kw_only=True):
    """Rows as one batch of cases: leaves `[rows]`, of the network `[K, rows]`.

    Give `system`, `model` and `plan` to a compiled function, not the whole: the labels are text.
    """

    system: Cluster
    model: Model
    plan: Plan
    labels: Labels = struct.field(pytree_node=False)

    def __len__(self) -> int:
        return len(self.labels.line)

    def take(self, rows: np.ndarray) -> Cases:
        """The cases of a mask or of indices, labels included."""
        system, model, plan = jax.tree.map(
            lambda leaf: leaf[..., rows], (self.system, self.model, self.plan)
        )
        return Cases(
            system=system,
            model=model,
            plan=plan,
            labels=Labels(*(values[rows] for values in self.labels)),
        )


AssumeRecompute = Callable[[Cases], tuple[Array, Array]]
"""Rule for a blank `recompute`: cases with none → `(recompute_layers, recompute_attention)`,
`[rows]` each."""


def to_cases(table: TraceTable, assume_recompute: AssumeRecompute | None = None) -> Cases:
    """Turn every usable row into records.

    Args:
      table: usable rows become cases, in order.
      assume_recompute: rule for rows whose recompute is blank; by default `cheapest_that_fits`.
    Raises:
      InputError: no usable row.
    """
    if not table.rows:
        raise InputError(
            f"no usable row among {table.total}{_first_reason(table)}; expected at least one "
            "measured configuration"
        )
    assumed: list[list[str]] = [[] for _ in table.rows]
    pairs = list(zip(table.rows, assumed, strict=True))
    model = shapes.settled(_stack([shapes.written(*pair) for pair in pairs]), pairs)
    plans, again = zip(*(_plan(*pair) for pair in pairs), strict=True)
    done = stacked(again)
    plan = redone(done, model, _stack(list(plans)))
    cases = Cases(system=_systems(pairs), model=model, plan=plan, labels=_labels(table.rows))
    cases = _fill_recompute(cases, pairs, assume_recompute or cheapest_that_fits, done)
    texts = np.empty(len(assumed), dtype=object)
    texts[:] = [tuple(each) for each in assumed]
    return cases.replace(labels=cases.labels._replace(assumptions=texts))


def _first_reason(table: TraceTable) -> str:
    return f" (the first problem: {table.problems[0]})" if table.problems else ""


def _stack(records: list[T]) -> T:
    """Records of numbers → one record of float64 arrays `[..., rows]`."""
    return jax.tree.map(
        lambda *leaves: np.stack([np.asarray(x, dtype=np.float64) for x in leaves], axis=-1),
        *records,
    )


def _systems(pairs: list[tuple[Row, list[str]]]) -> Cluster:
    """Chip and network of each row from the catalog; each different one is stacked once, then
    gathered."""
    systems = [system_of(row) for row, _ in pairs]
    for row, assumed in pairs:
        if not row.text("domain_size"):
            host = host_domain(row)
            held = (
                "the catalog's"
                if host is None
                else f"{host:g}, the devices of a host (accel_per_node), fewer than the catalog's"
            )
            assumed.append(f"domain_size blank: {held}")
        if not row.text("precision"):
            assumed.append("precision blank: bf16")
    unique = {id(system): system for system in systems}
    place = {key: i for i, key in enumerate(unique)}
    index = np.array([place[id(system)] for system in systems])
    return jax.tree.map(lambda leaf: leaf[..., index], _stack(list(unique.values())))


def _interleave(row: Row, stages: float, assumed: list[str]) -> float:
    """Model chunks per stage. Blank: as in the job's script (`recipes.job`), by the stack's recipes
    (`recipes.chunks`), else 1."""
    given = row.number("interleave")
    if given is not None:
        return given
    if known := job(row.stack, row.known("n_layers")):
        assumed.append(f"interleave blank: {known.chunks:g}, as in the script of the job")
        return known.chunks
    found = (
        chunks(row.stack, row.text("model"), row.known("n_layers") / stages, "lora" in row.flags)
        if stages > 1.0
        else None
    )
    assumed.append(
        "interleave blank: 1"
        if found is None
        else f"interleave blank: {found:g}, as the stack's recipes have it"
    )
    return found or 1.0


def _sequence_parallel(row: Row, tp: float, assumed: list[str]) -> float:
    """Sequence parallelism, 0 or 1. Blank: on where there is tensor parallelism."""
    if tp > 1.0 and splits_activations(row.stack):
        assumed.append("sp 1: tensor parallelism splits activations, the stack's axis rules")
        return 1.0
    given = row.number("sp")
    if given is None:
        given = float(tp > 1.0)
        assumed.append(f"sp blank: {given:g}")
    return given


def _plan(row: Row, assumed: list[str]) -> tuple[Plan, Again]:
    """Degrees, batch and precision of one row, and what it does again; a blank recompute is none
    until the rule decides."""
    degrees = layout(row)
    precision = base_precision(row.text("precision")) or "bf16"
    shards = sharding.sharding(row, degrees)
    if row.stack != (row.text("stack") or row.text("source") or row.stack):
        assumed.append(f"stack {row.stack}: the variant is the note's")
    assumed.extend((*degrees.assumed, *shards.assumed))
    if not row.text("attention"):
        assumed.append("attention blank: flash")
    interleave = _interleave(row, degrees.pp, assumed)
    laid = _stages(row, degrees.pp, interleave, assumed)
    parts = composed(row.stack, row.flags, degrees.tp)
    run = kept(row)
    again, last = (Again(), 1.0) if parts else of_row(row, run, assumed)
    assumed.extend(said for known in (run, parts) if known for said in known.said)
    rates, kernels = attention_rates(
        row.stack, row.accelerator, row.text("attention") != "none", row.text("note")
    )
    assumed.extend(kernels)
    in_order = held_in_order(row.stack)
    if in_order and degrees.cp > 1.0:
        assumed.append("cp: causal sequences held in order, all ranks wait for the last")
    found = Plan.of(
        dp=degrees.dp,
        tp=degrees.tp,
        cp=degrees.cp,
        pp=degrees.pp,
        **_experts(row, degrees, precision, run.graphed if run else 0.0, assumed),
        sp=_sequence_parallel(row, degrees.tp, assumed),
        zero=shards.zero,
        shard=shards.shard,
        accumulate=float(accumulates(row.stack)),
        interleave=interleave,
        stage_excess=laid.excess,
        head_displaces=laid.displaced,
        micro_batch=degrees.micro_batch,
        global_batch=row.known("global_batch"),
        cp_balanced=float(not in_order),
        recompute_last=last,
        fused_sums=float(fuses_sums(row.stack)),
        flash=float(row.text("attention") != "none"),
        unpadded_vocab=parts.unpadded if parts else 0.0,
        operand_bytes=OPERAND_BYTES[precision],
        attention_bytes=_attention_bytes(row, precision, run, assumed),
        **rates._asdict(),
        wide_layers=_wide_layers(row, precision, assumed),
        **_tensor(row, degrees.tp, parts is not None, assumed),
        overlap_dp=0.0 if parts else shards.reduction.overlap,
        overlap_pp=0.0 if parts else 1.0,
        composed=float(parts is not None),
        overlap_replica=float(shards.hides),
        scale_passes=_scale_reads(precision, assumed),
        weight_bytes=run.weight_bytes if run else shards.reduction.weights,
        optimizer_bytes=shards.reduction.optimizer,
        gradient_bytes=shards.reduction.held,
        gather_bytes=shards.reduction.gathered,
        logit_bytes=logit_bytes(row.stack, precision),
        reduce_bytes=shards.reduction.nbytes,
        bucket_per_rank=sharding.bucket_per_rank(row.stack, shards.reduction.nbytes),
    )
    return found, again


def _experts(
    row: Row, degrees: Layout, precision: str, graphed: float, assumed: list[str]
) -> dict[str, float]:
    """Degrees of the experts, how tokens reach them, and how kernels are launched, by graphs in any
    case where `graphed` is 1; see `experts.dispatch` and `experts.launches`."""
    ranks = degrees.dp * degrees.tp * degrees.cp
    if degrees.ep > ranks:
        assumed.append(f"ep {degrees.ep:g} counted as dp·tp·cp = {ranks:g}")
    etp = row.number("etp") or 1.0
    if not row.text("etp") and degrees.ep > 1.0 and degrees.tp > 1.0:
        assumed.append("etp blank: 1, experts are not split")
    job = row.stack, row.text("model"), row.accelerator, precision
    exchange = dispatch(*job, degrees.ep, row.text("note"))
    started = launches(*job, row.number("n_experts") or 1.0, degrees.ep, row.text("note"))
    assumed.extend((*exchange.said, *started.said))
    return {
        "ep": min(degrees.ep, ranks / etp),
        "etp": etp,
        "merge_copies": exchange.merge_copies,
        "route_bytes": exchange.route,
        "overlap_ep": exchange.overlap,
        "graphed": max(started.graphed, graphed),
        "looped_experts": started.looped,
        "fused_experts": started.fused,
        "split_rotary": started.rotary,
    }


def _stages(row: Row, pp: float, interleave: float, assumed: list[str]) -> Stages:
    """What the stages of a pipeline hold; see `stages.stages`."""
    name, layers = row.text("model"), row.known("n_layers")
    head = head_cost(row.known("d_model"), row.known("d_ff"), row.known("vocab"))
    heads = further_tokens(row.stack, name, row.text("note"))[0]
    found = stages(row.stack, name, layers, head, pp, interleave, heads, held_by_stage(row, pp))
    assumed.extend(found.said)
    return found


def _tensor(row: Row, tp: float, parts: bool, assumed: list[str]) -> dict[str, float]:
    """How messages of tensor parallelism go, by `recipes.tensor`; those of parts do not hide."""
    found = tensor(row.stack, row.text("model"), row.text("precision"))
    assumed.extend(found.said if tp > 1.0 else ())
    hides = 0.0 if parts else found.overlap_tp if tp > 1.0 else 1.0
    return {
        "narrow_gathers": found.narrow_gathers,
        "narrow_sums": found.narrow_sums,
        "overlap_tp": hides,
    }


def _wide_layers(row: Row, precision: str, assumed: list[str]) -> float:
    """See `recipes.wide_layers`."""
    kept = wide_layers(row.stack, row.text("model"), precision)
    if kept:
        assumed.append(f"{kept:g} layers in 16 bits: the stack's recipe")
    return kept / row.known("n_layers")


def _attention_bytes(row: Row, precision: str, run: Kept | None, assumed: list[str]) -> float:
    """Bytes of an operand of the attention core: by the run's configuration, by the stack's recipe
    (`experts.narrow_attention`), else 2."""
    if run:
        return run.attention_bytes
    names = row.stack, row.text("model"), row.accelerator, precision
    if row.text("attention") == "none" or not narrow_attention(
        *names, row.number("n_experts") or 1.0
    ):
        return 2.0
    assumed.append(NARROW_CORE)
    return 1.0


def _scale_reads(precision: str, assumed: list[str]) -> float:
    """See `SCALE_READS`."""
    reads = SCALE_READS.get(precision, 0.0)
    if reads:
        assumed.append(
            f"{precision}: a tensor is read {reads:g} more times to find its scales and "
            "quantize "
            "it in both directions"
        )
    return reads


def _fill_recompute(
    cases: Cases, pairs: list[tuple[Row, list[str]]], rule: AssumeRecompute, again: Again
) -> Cases:
    """Ask the rule for the rows whose recompute is blank; what of their bytes is offloaded
    (`again`) changes with it."""
    blank = np.array([not (row.text("recompute") or kept(row)) for row, _ in pairs])
    p = cases.plan
    blank &= (
        np.asarray(
            p.layout.recompute_layers
            + p.layout.recompute_attention
            + p.layout.recompute_products
            + p.layout.recompute_elementwise
        )
        == 0.0
    )
    blank &= np.asarray(p.layout.recompute_bytes) == 0.0
    settled = blank & [keeps_activations(row.stack) for row, _ in pairs]
    for i in np.flatnonzero(settled):
        pairs[i][1].append("recompute blank: none, as the stack's recipes have it")
    blank &= ~settled
    if not blank.any():
        return cases
    layers, attention = (
        np.broadcast_to(np.asarray(x, dtype=np.float64), blank.sum())
        for x in rule(cases.take(blank))
    )
    for i, full, part in zip(np.flatnonzero(blank), layers, attention, strict=True):
        name = {(1.0, 0.0): "full", (0.0, 1.0): "selective", (0.0, 0.0): "none"}.get(
            (full, part), f"{full:.2g} of the layers"
        )
        pairs[i][1].append(f"recompute blank: {name}, by the rule")
        if full > 0.0:
            pairs[i][1].extend(end_of(pairs[i][0])[1])
    new_layers, new_attention = (
        np.array(cases.plan.layout.recompute_layers),
        np.array(cases.plan.layout.recompute_attention),
    )
    new_layers[blank], new_attention[blank] = layers, attention
    plan = cases.plan.having(recompute_layers=new_layers, recompute_attention=new_attention)
    return cases.replace(plan=offloading(again, cases.model, plan))


def cheapest_that_fits(cases: Cases) -> tuple[np.ndarray, np.ndarray]:
    """Least recomputation whose memory fits the device: none, else selective, else in full for the
    smallest share of the layers that fits (all of them when even that does not). Memory is linear
    in the share, so the share is a division."""
    from dmodel.step import memory_use

    ones, zeros = np.ones(len(cases)), np.zeros(len(cases))

    def excess(layers: np.ndarray, attention: np.ndarray) -> np.ndarray:
        plan = cases.plan.having(recompute_layers=layers, recompute_attention=attention)
        return np.asarray(memory_use(cases.model, plan).total - cases.system.chip.hbm_bytes)

    none, selective, full = excess(zeros, zeros), excess(zeros, ones), excess(ones, zeros)
    share = np.clip(none / np.maximum(none - full, 1.0), 0.0, 1.0)
    return np.where((none <= 0.0) | (selective <= 0.0), 0.0, share), np.where(
        (none > 0.0) & (selective <= 0.0), 1.0, 0.0
    )


def never_recompute(cases: Cases) -> tuple[np.ndarray, np.ndarray]:
    """The rule that a blank means no recomputation."""
    return np.zeros(len(cases)), np.zeros(len(cases))


def _labels(rows: tuple[Row, ...]) -> Labels:
    """Names, places and groups of the rows; assumptions are added when all are known."""
    return Labels(
        step_time_s=np.array([measured_time(row) or np.nan for row in rows]),
        peak_memory_bytes=np.array(
            [GIB * (row.number("peak_memory_gib") or np.nan) for row in rows]
        ),
        accelerator=_texts(row.accelerator for row in rows),
        stack=_texts(row.stack for row in rows),
        source=_texts(row.text("source") or row.stack for row in rows),
        model=_texts(row.text("model") for row in rows),
        flag=_texts(row.text("flag") for row in rows),
        precision=_texts(row.text("precision") or "bf16" for row in rows),
        n_accel=np.array([row.number("n_accel") for row in rows]),
        file=_texts(row.file for row in rows),
        line=np.array([row.line for row in rows]),
        fingerprint=_texts(fingerprint(row) for row in rows),
        group=_texts(group_of(row) for row in rows),
        assumptions=np.empty(len(rows), dtype=object),
    )


def _texts(values: Iterable[str]) -> np.ndarray:
    return np.array(list(values), dtype=np.str_)


def group_of(row: Row) -> str:
    """Rows that tell about each other and so are held out together.

    (model, accelerator, devices); composed rows, which are sums of a cost per layer and
    micro-batch, by (d_model, tp, micro_batch). A
    blank model counts by its shape.
    """
    if "composed" in row.flags:
        degrees = layout(row)
        cell = (row.known("d_model"), degrees.tp, degrees.micro_batch)
        return "|".join(["composed", row.text("source"), *(f"{x:g}" for x in cell)])
    shape = "x".join(f"{row.known(n):g}" for n in ("n_layers", "d_model", "d_ff"))
    return "|".join(
        [row.text("model").lower() or shape, row.accelerator.lower(), f"{row.known('n_accel'):g}"]
    )
