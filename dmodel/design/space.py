"""All valid integer plans of a device count: what may vary, which values are valid, and how many
plans there are.

Nothing is held: plans come block by block, one block for each way to split the devices
(`dmodel.design.rows`).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations
from math import prod
from typing import NamedTuple

import numpy as np
from flax import struct

from dmodel.records import PLACEMENT, SCHEDULES, Model, Plan
from dmodel.stages import held, short_by
from dmodel.types import InputError

ALL_PLACEMENTS: tuple[tuple[str, ...], ...] = tuple(
    sorted(
        permutations(PLACEMENT),
        key=lambda order: (order != PLACEMENT, [PLACEMENT.index(name) for name in order]),
    )
)
"""Every order of the groups on the network, the default one first."""

STAGES = 4
"""ZeRO stages, 0 among them."""

SHARDS = ("whole", "domains", "any")
MICRO_BATCHES = ("powers", "any")


class PrecisionChoice(NamedTuple):
    """Matmul precision as a choice: its name, the chip's peak [FLOP/s], and the plan's numbers that
    go with it."""

    name: str
    flops_per_s: float
    operand_bytes: float = 2.0
    wide_layers: float = 0.0
    scale_passes: float = 0.0


class Kept(NamedTuple):
    """What a stack reduces gradients in, holds them in, gathers parameters in, keeps of the
    optimizer's state and of weights beside it under a ZeRO stage [byte], whether its buckets grow
    with their group, and what of the reduction may hide: the plan's numbers that go with the stage.
    """

    reduce_bytes: float
    gradient_bytes: float
    gather_bytes: float
    optimizer_bytes: float
    weight_bytes: float
    bucket_per_rank: float
    overlap_dp: float


class Laid(NamedTuple):
    """How a stack lays layers over pp stages of `interleave` chunks: the plan's numbers that go
    with the two (`dmodel.stages`)."""

    pp: int
    interleave: int
    stage_excess: float
    head_displaces: float


class Choices(struct.PyTreeNode, kw_only=True):
    """What the search may choose besides the degrees dp, tp, cp, pp and ep.

    Attributes:
      zero: ZeRO stages. shards: sharding groups (HSDP): "whole" = all of dp, "domains" = also those
        that fill a domain of a network level (ZeRO-3), "any" = every divisor of dp, in every stage.
      recompute: shares of a stage's layers recomputed in full, rounded to whole layers; None =
        every whole number of layers.
      schedules: of the pipeline; "interleaved" allows several chunks per stage, "zero-bubble" asks
        for 2 pp micro-batches.
      micro_batch: "powers" of two, or "any" divisor of a rank's share of the batch.
      sp: sequence parallelism beside tp: 1, 0 or both; experts always have it. etp: also split
        experts over divisors of tp.
      placements: orders of the groups on the network; empty = the base's own; `ALL_PLACEMENTS`.
      precisions: of the matmuls; empty = the base's and the system's own.
      kept: what goes with ZeRO stages 0 to 3, where a stack's recipe is for some of them alone;
        empty = the base's own with all.
      laid: stages that the stack lays out in its own way; others as `dmodel.stages.layout` has
        them.
    """

    zero: tuple[int, ...] = struct.field(pytree_node=False, default=(0, 1, 2, 3))
    shards: str = struct.field(pytree_node=False, default="domains")
    recompute: tuple[float, ...] | None = struct.field(
        pytree_node=False, default=(0.0, 0.25, 0.5, 0.75, 1.0)
    )
    schedules: tuple[str, ...] = struct.field(pytree_node=False, default=("1f1b", "interleaved"))
    micro_batch: str = struct.field(pytree_node=False, default="powers")
    sp: tuple[int, ...] = struct.field(pytree_node=False, default=(0, 1))
    etp: bool = struct.field(pytree_node=False, default=False)
    placements: tuple[tuple[str, ...], ...] = struct.field(pytree_node=False, default=())
    precisions: tuple[PrecisionChoice, ...] = struct.field(pytree_node=False, default=())
    kept: tuple[Kept, ...] = struct.field(pytree_node=False, default=())
    laid: tuple[Laid, ...] = struct.field(pytree_node=False, default=())


EVERYTHING = Choices(
    shards="any",
    recompute=None,
    schedules=("1f1b", "interleaved", "zero-bubble"),
    micro_batch="any",
    etp=True,
    placements=ALL_PLACEMENTS,
)
"""All that a plan can vary, precision aside: it takes the chip's peaks."""


class Space(struct.PyTreeNode, kw_only=True):
    """The problem that plans solve, all static.

    Attributes:
      model: numbers of the transformer that divisibility asks about. base: what all plans share
      (kernels, overlap, bytes per parameter). n_devices: product of the degrees. global_batch:
      [sequence]. domains: devices of one domain of each bounded network level.
      choices: what may vary.
    """

    model: Model
    base: Plan
    n_devices: int = struct.field(pytree_node=False)
    global_batch: int = struct.field(pytree_node=False)
    domains: tuple[int, ...] = struct.field(pytree_node=False, default=())
    choices: Choices = struct.field(pytree_node=False, default=Choices())


class Degrees(NamedTuple):
    """One way to split the devices: dp · tp · cp · pp is their number, ep · etp a part of dp · tp ·
    cp."""

    dp: int
    tp: int
    cp: int
    pp: int
    ep: int
    etp: int


class Options(NamedTuple):
    """Values of everything else that are valid with some degrees.

    Attributes:
      runs: (schedule, interleave, micro-batch), codes of `SCHEDULES`. recompute: (share of layers,
        attention core alone).
      sharding: (zero, shard, reshard). sp, placement, precision: values, and codes of the space's
        lists.
    """

    runs: list[tuple[int, int, int]]
    recompute: list[tuple[float, float]]
    sharding: list[tuple[int, int, int]]
    sp: list[int]
    placement: list[int]
    precision: list[int]

    @property
    def plans(self) -> int:
        """How many plans there are of these degrees."""
        return prod(len(x) for x in self)

    @property
    def groups(self) -> int:
        """Groups of plans that differ in sharding and the share of recomputed layers only."""
        return (
            self.plans
            // (len(self.sharding) * len(self.recompute))
            * len({core for _, core in self.recompute})
        )


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    """Divisors of n, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return (*small, *(n // d for d in reversed(small) if d * d < n))


def placements(space: Space) -> tuple[tuple[str, ...], ...]:
    """Orders that the space allows."""
    return space.choices.placements or (space.base.layout.placement,)


def degrees(space: Space) -> list[Degrees]:
    """All valid splits, the plainest first: tp divides the heads and fits the KV heads, pp the
    layers (or nearly, `dmodel.stages`), cp the sequence, dp the batch; ep the experts, etp their
    width and tp, and ep · etp the ranks of a stage."""
    m = space.model
    heads, kv, layers, seq = (int(x) for x in (m.n_heads, m.n_kv_heads, m.n_layers, m.seq_len))
    found = []
    for tp in divisors(space.n_devices):
        if heads % tp or (kv % tp and tp % kv) or not _sp(space, tp, 1):
            continue
        for cp in divisors(space.n_devices // tp):
            if seq % cp or not _sp(space, tp, cp):
                continue
            for pp in divisors(space.n_devices // (tp * cp)):
                dp = space.n_devices // (tp * cp * pp)
                if not short_by(layers, pp, 1) and space.global_batch % dp == 0:
                    found += [
                        Degrees(dp, tp, cp, pp, ep, etp) for ep, etp in _experts(space, dp, tp, cp)
                    ]
    return found


def _experts(space: Space, dp: int, tp: int, cp: int) -> list[tuple[int, int]]:
    """(ep, etp) on the ranks of one stage."""
    experts, width = int(space.model.n_experts), int(space.model.d_ff)
    splits = (
        [t for t in divisors(tp) if width % t == 0] if space.choices.etp and experts > 1 else [1]
    )
    return [
        (ep, etp) for ep in divisors(experts) for etp in splits if (dp * tp * cp) % (ep * etp) == 0
    ]


def _sp(space: Space, tp: int, cp: int) -> list[int]:
    """Sequence parallelism splits what cp leaves of the sequence; tokens of experts are always
    split."""
    if tp == 1:
        return [0]
    splits = int(space.model.seq_len) % (tp * cp) == 0
    allowed = (1,) if float(space.model.n_experts) > 1.0 else space.choices.sp
    return [x for x in sorted(allowed, reverse=True) if splits or not x]


def options(space: Space, split: Degrees) -> Options:
    """What may be chosen with these degrees."""
    layers = int(space.model.n_layers)
    per_stage = int(held(layers, split.pp, 1).fullest)
    chunks = np.arange(1, per_stage + 1)
    return Options(
        runs=_runs(space, split, chunks[short_by(layers, split.pp, chunks) == 0.0].tolist()),
        recompute=_recompute(space, per_stage),
        sharding=_shardings(space, split),
        sp=_sp(space, split.tp, split.cp),
        placement=_orders(space, split),
        precision=list(range(max(len(space.choices.precisions), 1))),
    )


def _runs(space: Space, split: Degrees, chunks: list[int]) -> list[tuple[int, int, int]]:
    """(schedule, interleave, micro-batch): stages come in so many chunks, which take micro-batches
    in groups of pp."""
    share, pp = space.global_batch // split.dp, split.pp
    batches = [b for b in divisors(share) if space.choices.micro_batch == "any" or b & (b - 1) == 0]
    code = {name: SCHEDULES.index(name) for name in space.choices.schedules}
    plain = code.get("1f1b", code.get("interleaved", SCHEDULES.index("1f1b")))
    if pp == 1:
        return [(SCHEDULES.index("1f1b"), 1, b) for b in batches]
    found = [
        (plain if name == "interleaved" else c, 1, b)
        for name, c in code.items()
        if name in ("gpipe", "1f1b")
        for b in batches
    ]
    if "zero-bubble" in code:
        found += [(code["zero-bubble"], 1, b) for b in batches if share // b >= 2 * pp]
    if "interleaved" in code:
        chunks = chunks[0 if "1f1b" not in code else 1 :]
        found += [
            (code["interleaved"], v, b)
            for v in chunks
            for b in batches
            if v == 1 or share // b % pp == 0
        ]
    return found


def _recompute(space: Space, per_stage: int) -> list[tuple[float, float]]:
    """Whole layers recomputed in full; the attention core alone ("selective") where it is not
    fused: fused kernels keep no scores."""
    shares = space.choices.recompute
    layers = (
        range(per_stage + 1)
        if shares is None
        else sorted({int(np.rint(r * per_stage)) for r in shares})
    )
    found = [(k / per_stage, 0.0) for k in layers]
    return found if float(space.base.software.flash) else [*found[:1], (0.0, 1.0), *found[1:]]


def _shardings(space: Space, split: Degrees) -> list[tuple[int, int, int]]:
    """(zero, shard, reshard); one without ZeRO where there is nothing to shard over, and one more
    where a stack keeps less with it."""
    zero = space.choices.zero
    found = [(0, 1, 1)] if 0 in zero else []
    if split.dp * split.cp == 1:
        return [*found, *([(1, 1, 1)] if space.choices.kept and 1 in zero else [])] or [(0, 1, 1)]
    groups = (split.dp, *_shards(space, split))
    found += [
        (stage, s, 1)
        for stage in (1, 2)
        if stage in zero
        for s in (groups if space.choices.shards == "any" else groups[:1])
    ]
    return found + [(3, s, reshard) for s in groups for reshard in (1, 0) if 3 in zero]


def _shards(space: Space, split: Degrees) -> list[int]:
    """Sharding groups below dp: they divide it, and experts are whole in them."""
    inner = [
        s for s in divisors(split.dp)[1:-1] if s * split.cp * split.tp % (split.ep * split.etp) == 0
    ]
    if space.choices.shards != "domains":
        return inner[::-1] if space.choices.shards == "any" else []
    sizes = set()
    for order in placements(space):
        stride = prod(getattr(split, name) for name in order[: order.index("dp")] if name != "ep")
        sizes |= {size // stride for size in space.domains if size % stride == 0}
    return [s for s in inner if s in sizes]


def _orders(space: Space, split: Degrees) -> list[int]:
    """Codes of the orders that differ: a group of one rank has no place, and `ep` matters against
    dp where there are experts to spread."""
    found: dict[tuple, int] = {}
    for code, order in enumerate(placements(space)):
        groups = tuple(name for name in order if name != "ep" and getattr(split, name) > 1)
        near = split.ep > 1 and order.index("ep") < order.index("dp")
        found.setdefault((groups, near), code)
    return list(found.values())


def count(space: Space) -> int:
    """How many valid plans there are, exactly; none of them is made."""
    return sum(options(space, split).plans for split in degrees(space))


def count_groups(space: Space) -> int:
    """How many groups of plans there are (`Options.groups`)."""
    return sum(options(space, split).groups for split in degrees(space))


def neighbouring_counts(space: Space, at_most: int = 2) -> list[int]:
    """Device counts nearest to the asked one for which a valid plan exists: products of one allowed
    degree of each kind."""
    n, m = space.n_devices, space.model
    heads, kv, layers, seq = (int(x) for x in (m.n_heads, m.n_kv_heads, m.n_layers, m.seq_len))
    stages = [pp for pp in range(1, layers + 1) if not short_by(layers, pp, 1)]
    counts = {tp for tp in divisors(heads) if not (kv % tp and tp % kv) and _sp(space, tp, 1)}
    for parts in (stages, divisors(space.global_batch), divisors(seq)):
        # one device is always a valid count, so far ones are not the nearest: without them the set
        # stays small
        counts = {count * d for d in parts for count in counts if count * d < 2 * n + 1024}
    near = sorted(counts - {n}, key=lambda count: (abs(count - n), count))
    return (
        [c for c in near if degrees(space.replace(n_devices=c))][:at_most]
        if len(near) < 64
        else near[:at_most]
    )


def check(space: Space) -> None:
    """Raise InputError where the numbers of the problem, or the choices, make no sense."""
    m, choices = space.model, space.choices
    whole = {
        name: float(getattr(m, name))
        for name in ("n_heads", "n_kv_heads", "n_layers", "seq_len", "n_experts")
    }
    whole |= {"devices": float(space.n_devices), "global batch": float(space.global_batch)}
    for name, value in whole.items():
        if not (value >= 1.0 and value == int(value)):
            raise InputError(
                f"{name}: expected a whole number from 1 on; got {value:g}. Correct it in the "
                "model or the arguments."
            )
    offered: tuple[tuple[str, tuple, tuple], ...] = (
        ("zero", choices.zero, (0, 1, 2, 3)),
        ("shards", (choices.shards,), SHARDS),
        ("schedules", choices.schedules, SCHEDULES),
        ("micro_batch", (choices.micro_batch,), MICRO_BATCHES),
        ("sp", choices.sp, (0, 1)),
    )
    for name, got, allowed in offered:
        if not got or any(x not in allowed for x in got):
            raise InputError(
                f"choices: {name}: expected some of {', '.join(map(str, allowed))}; got {got}"
            )
    if choices.recompute is not None and (
        not choices.recompute or not all(0.0 <= r <= 1.0 for r in choices.recompute)
    ):
        raise InputError(
            "choices: recompute: expected shares of the layers from 0 to 1, or None for all; "
            "got "
            f"{choices.recompute}"
        )
    if len(choices.kept) not in (0, STAGES):
        raise InputError(
            "choices: kept: expected one for each ZeRO stage from 0 to 3, or none; got "
            f"{len(choices.kept)}"
        )
    if wrong := [order for order in choices.placements if sorted(order) != sorted(PLACEMENT)]:
        raise InputError(
            f"choices: placements: expected orders of {', '.join(PLACEMENT)}; got {wrong[0]}"
        )
