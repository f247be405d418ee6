"""How a row shards its state over data-parallel ranks, and what it sends to reduce gradients."""

from __future__ import annotations

import re
from typing import NamedTuple

from calibration.traces import recipes
from calibration.traces.layout import Layout
from calibration.traces.schema import base_precision
from calibration.traces.table import Row
from dmodel.records import BUCKET_GRADIENTS_PER_RANK

MEGATRON_FAMILY = (
    "megatron",
    "nemo",
    "mlperf",
    "mt-nlg",
    "nanotron",
    "ultrascale",
    "megascale",
    "flagscale",
)
"""Beginnings of stack names that train as Megatron-LM does: gradients accumulated, and by default
reduced, in fp32."""

FP32_FAMILY = (*MEGATRON_FAMILY, "dmodel-collect")
"""Those that reduce gradients in fp32 up to ZeRO 2."""

NANOTRON = ("nanotron", "ultrascale")
"""Stacks of nanotron. Under ZeRO-1 its trainer takes no DDP: it sums fp32 gradients by all-reduce
once the backward pass is over (its `Trainer._init_model` and `sync_gradients_across_dp`, 2024), two
reduce-scatters of bytes, and gathers the parameters after the update."""

_PODS = re.compile(r"of (\d+) chips, data parallel between pods")
"""Notes of MaxText's table: weights are sharded over the chips of a pod and copied between pods."""

_HYBRID = re.compile(r"fsdp_ici=(\d+)|shard=(\d+)|FSDP in node\((\d+)\)|DP=\d+,FSDP=(\d+)")

FP32_SHARDED = ("torchtitan", "kempnerforge", "automodel")
"""Stacks on PyTorch's fully_shard that reduce gradients in fp32 at every stage, as their
configurations have it by default."""


class Reduction(NamedTuple):
    """nbytes: per gradient element on the wire [byte]. overlap: 1 where messages of data
    parallelism may hide. assumed: said in words. held: per gradient element in memory. gathered:
    per parameter on the wire. optimizer: of states per parameter. weights: per parameter beside
    these [byte]."""

    nbytes: float
    overlap: float
    assumed: tuple[str, ...]
    held: float = 4.0
    gathered: float = 2.0
    optimizer: float = 12.0
    weights: float = 2.0


GROWN = "messages of gradients grow with their group, as Megatron-Core's do"


def bucket_per_rank(stack: str, nbytes: float) -> float:
    """Least bytes for each rank in a message of gradients [byte]: those of Megatron's code base,
    but for stacks `recipes.OF_2021`; other stacks have buckets of one size.

    Limits: the optimizer of NeMo 1 and of NVIDIA's MLPerf scripts up to 4.0 (apex) has buckets of
    100 MB whatever the group. NCCL sends messages so small over so many ranks in lines, whose hops
    take a third of those that `net_latency_outer` stands for. Taken to grow, MLPerf 3.1's runs get
    0.3 % longer from 4,096 to 8,192 GPUs, where they measured 0.8 (`docs/coefficients.md`).

    Args:
      nbytes: per gradient element on the wire.
    """
    return BUCKET_GRADIENTS_PER_RANK * nbytes if recipes.fuses_sums(stack) else 0.0


class Sharding(NamedTuple):
    """zero: stage. shard: ranks that share one copy [count]. hides: whether the sum over copies
    does."""

    zero: float
    shard: float
    reduction: Reduction
    hides: bool
    assumed: tuple[str, ...]


def reduction(
    stack: str, zero: float, precision: str, model: str = "", note: str = "", trainable: float = 1.0
) -> Reduction:
    """How a stack reduces gradients: as its recipe says (`recipes.widths`), else by what is known
    of its code.

    Gradients are reduced in fp32 (4 bytes) by the Megatron family and the workload of this package
    up to stage 2, and by `FP32_SHARDED`, unless they train in fp16, whose gradients are reduced as
    they are; elsewhere in 2 bytes. nanotron under ZeRO-1: see `NANOTRON`.
    """
    name, single = stack.lower(), base_precision(precision) == "fp32"
    weights = 4.0 if single else 0.0 if recipes.shards_master(stack, zero, trainable) else 2.0
    alone = (
        ("weights are sharded as the optimizer's master copy, cast as they are gathered",)
        if not weights
        else ()
    )
    known = None if single else recipes.widths(stack, precision.lower(), zero, model, note)
    if known is not None:
        sent = (
            f"gradients held and reduced in {known.reduced:g} bytes, parameters gathered in "
            f"{known.gathered:g}"
        )
        text = f"{sent}, states of the optimizer in {known.optimizer:g}: the stack's recipe"
        return Reduction(
            known.reduced, 1.0, (text, *alone), known.held, known.gathered, known.optimizer, weights
        )
    wide = single or name.startswith(FP32_SHARDED) or (name.startswith(FP32_FAMILY) and zero <= 2.0)
    nbytes = 4.0 if wide and precision.lower() != "fp16" else 2.0
    said = (
        f"gradients reduced in {nbytes:g} bytes",
        *alone,
        *(("fp32: parameters without a 16-bit copy",) if single else ()),
    )
    found = Reduction(
        nbytes,
        1.0,
        said,
        gathered=4.0 if single else 2.0,
        optimizer=8.0 if single else 12.0,
        weights=weights,
    )
    if zero == 1.0 and name.startswith(NANOTRON):
        after = (
            "nanotron under ZeRO-1: gradients summed by all-reduce after the backward pass, "
            "nothing hidden"
        )
        return found._replace(nbytes=2.0 * nbytes, overlap=0.0, assumed=(*said, after))
    return found


def sharding(row: Row, degrees: Layout) -> Sharding:
    """ZeRO stage (blank: 1), sharding group (blank: all of dp, or what the note says under ZeRO-3)
    and the reduction of gradients."""
    assumed = []
    zero = row.number("zero_stage")
    if zero is None:
        zero = 1.0
        assumed.append("zero_stage blank: 1")
    if recipes.reduces_once(row.stack, zero):
        zero = 1.0
        assumed.append(recipes.ONCE)
    hybrid = min(recipes.hybrid_shards(row.stack, row.text("model")), degrees.dp)
    if hybrid:
        zero = 3.0
        assumed.append(f"zero_stage 3 over {hybrid:g} ranks: the stack's recipe")
    shard = hybrid or _shard(row, zero, degrees.dp, assumed)
    awaited = recipes.awaits_replicas(row.stack) and shard < degrees.dp
    if awaited:
        assumed.append(recipes.AWAITED)
    trained = float("lora" not in row.flags)
    found = reduction(
        row.stack,
        zero,
        row.text("precision") or "bf16",
        row.text("model"),
        row.text("note"),
        trained,
    )
    if recipes.reduces_after(row.stack, row.known("n_layers")):
        found = found._replace(overlap=0.0, assumed=(*found.assumed, recipes.AFTER))
    elif zero <= 2.0 and degrees.dp > 1.0 and bucket_per_rank(row.stack, found.nbytes):
        found = found._replace(assumed=(*found.assumed, GROWN))
    return Sharding(zero, shard, found, not awaited, (*assumed, *found.assumed))


def _shard(row: Row, zero: float, dp: float, assumed: list[str]) -> float:
    """Ranks of one sharding group: written (the reader lets only divisors of dp pass), else from a
    note about hybrid sharding, else dp."""
    written = row.number("shard")
    if zero == 0.0:
        assumed.extend(
            [f"shard {written:g} not used: ZeRO stage 0 shards nothing"]
            if written and written > 1.0
            else []
        )
        return 1.0
    devices = row.known("n_accel")
    if written is not None:
        return written
    found = _HYBRID.search(row.text("note")) if zero == 3.0 else None
    pods = _PODS.search(row.text("note")) if zero == 3.0 else None
    size = (
        float(next(g for g in found.groups() if g))
        if found
        else max(float(pods[1]) * dp / devices, 1.0)
        if pods
        else dp
    )
    if size < dp and dp % size == 0.0:
        assumed.append(f"shard blank: {size:g}, from the note")
        return size
    if dp > 1.0:
        assumed.append(f"shard blank: {dp:g}, all ranks of dp")
    return dp
