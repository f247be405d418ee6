"""All valid integer plans of a device count: which values are valid, and how many plans there are.

Nothing is held: plans come block by block, one block for each way to split the devices
(`dmodel.design.rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product, starmap
from math import gcd, prod
from operator import mul
from typing import NamedTuple

import numpy as np

from dmodel import struct
from dmodel.design.choices import Choices, check_choices
from dmodel.design.runs import Run, runs
from dmodel.errors import InputError
from dmodel.records import Model, Plan, counts_of, ff_width, named_parts, value
from dmodel.stages import held, short_by
from dmodel.varying import meant


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

    runs: list[Run]
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
    found = []
    for tp, cp in _sequence_splits(space):
        for pp in divisors(space.n_devices // (tp * cp)):
            dp = space.n_devices // (tp * cp * pp)
            if _valid_pp(space, pp) and space.global_batch % dp == 0 and _runs(space, dp, pp):
                experts = _experts(space, dp, tp, cp)
                found += [Degrees(dp, tp, cp, pp, ep, etp) for ep, etp in experts]
    return found


def _sequence_splits(space: Space) -> Iterator[tuple[int, int]]:
    """Valid tp, and with each the valid cp."""
    seq_len = int(space.model.seq_len)
    for tp in divisors(space.n_devices):
        if not _valid_tp(space, tp):
            continue
        for cp in divisors(space.n_devices // tp) if "cp" in space.choices.degrees else (1,):
            if seq_len % cp == 0 and _sp(space, tp, cp):
                yield tp, cp


def _splits_heads(model: Model, tp: int) -> bool:
    """Whether tp divides the heads, and the KV heads or a multiple of them."""
    split, copied = ([int(n) for n in counts_of(model, mark)] for mark in ("SPLIT", "COPIED"))
    return not any(n % tp for n in split) and not any(n % tp and tp % n for n in copied)


def _experts(space: Space, dp: int, tp: int, cp: int) -> list[tuple[int, int]]:
    """(ep, etp) on the ranks of one stage."""
    groups = divisors(_n_experts(space) if "ep" in space.choices.degrees else 1)
    splits = product(groups, _expert_widths(space, tp))
    return [(ep, etp) for ep, etp in splits if (dp * tp * cp) % (ep * etp) == 0]


def _expert_widths(space: Space, tp: int) -> list[int]:
    """Ranks that may share one expert."""
    if not space.choices.etp or _n_experts(space) <= 1:
        return [1]
    return [t for t in divisors(tp) if int(ff_width(space.model)) % t == 0]


def _sp(space: Space, tp: int, cp: int) -> list[int]:
    """Sequence parallelism splits what cp leaves of the sequence; tokens of experts are always
    split."""
    if tp == 1:
        return [0]
    splits = int(space.model.seq_len) % (tp * cp) == 0
    allowed = (1,) if _n_experts(space) > 1 else space.choices.sp
    return [x for x in sorted(allowed, reverse=True) if splits or not x]


def options(space: Space, split: Degrees) -> Options:
    """What may be chosen with these degrees."""
    per_stage = _stages(int(space.model.n_layers), split.pp, space.choices.uneven)[0]
    return Options(
        runs=_runs(space, split.dp, split.pp),
        recompute=_recompute(space, per_stage),
        sharding=_shardings(space, split),
        sp=_sp_taken(space, split),
        placement=_orders(space, split),
        precision=list(range(max(len(space.choices.precisions), 1))),
    )


@lru_cache(maxsize=4096)
def _stages(layers: int, pp: int, uneven: bool) -> tuple[int, list[int]]:
    """Layers of the fullest stage, and the valid numbers of chunks per stage."""
    per_stage = int(held(layers, pp, 1).fullest)
    chunks = np.arange(1, per_stage + 1)
    valid = (short_by(layers, pp, chunks) == 0.0) & (uneven | (layers % (pp * chunks) == 0))
    return per_stage, chunks[valid].tolist()


def _valid_pp(space: Space, pp: int) -> bool:
    """Whether the layers lie on so many stages."""
    has = pp == 1 or "pp" in space.choices.degrees
    return has and 1 in _stages(int(space.model.n_layers), pp, space.choices.uneven)[1]


def _sp_taken(space: Space, split: Degrees) -> list[int]:
    """Valid sequence parallelism, as the stack takes it."""
    offered, job = _sp(space, split.tp, split.cp), space.choices.stack
    if job is None or not job.meanings:
        return offered
    layout = {**split._asdict(), "zero": 0.0, "shard": 1.0}
    return list(dict.fromkeys(int(meant(job, {**layout, "sp": x})["sp"]) for x in offered))


def _runs(space: Space, dp: int, pp: int) -> list[Run]:
    """(schedule, interleave, micro-batch) of pipelines on which the layers lie."""
    share = space.global_batch // dp
    chunks = _stages(int(space.model.n_layers), pp, space.choices.uneven)[1]
    batches = tuple(_micro_batches(space, share))
    return runs(space.choices.schedules, tuple(chunks), batches, share, pp)


def _micro_batches(space: Space, share: int) -> list[int]:
    """Sizes that divide a rank's share of the batch."""
    every = divisors(share)
    return [b for b in every if space.choices.micro_batch == "any" or b & (b - 1) == 0]


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
    """(zero, shard, reshard), as the stack takes them, each once."""
    offered, job = _shardings_offered(space, split), space.choices.stack
    if job is None or not job.meanings:
        return offered
    found: dict[tuple[int, int, int], None] = {}
    for zero, shard, reshard in offered:
        taken = meant(job, {**split._asdict(), "sp": 0.0, "zero": float(zero), "shard": shard})
        stage = int(taken["zero"])
        found[stage, int(taken["shard"]), reshard if stage == 3 else 1] = None
    return list(found)


def _shardings_offered(space: Space, split: Degrees) -> list[tuple[int, int, int]]:
    """One without ZeRO, and every stage over all of dp or some of it."""
    if split.dp * split.cp == 1:
        return _of_one_rank(space)
    groups = (split.dp, *_shards(space, split))
    partial = groups if space.choices.shards == "any" else groups[:1]
    every = [(0, 1, 1), *_of_stages(groups, partial)]
    return [each for each in every if each[0] in space.choices.zero]


def _of_stages(groups: Sequence[int], partial: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """All ZeRO stages: 1 and 2 over some groups, 3 over all."""
    yield from ((stage, s, 1) for stage, s in product((1, 2), partial))
    yield from ((3, s, reshard) for s, reshard in product(groups, (1, 0)))


def _of_one_rank(space: Space) -> list[tuple[int, int, int]]:
    """Where there is nothing to shard over: stage 1 where the stack does something else with it."""
    job, zero = space.choices.stack, space.choices.zero
    apart = job is not None and 1 in zero and job.tells_apart("zero", 0.0, 1.0)
    found = [(0, 1, 1)] if 0 in zero else []
    return found + ([(1, 1, 1)] if apart else []) or [(0, 1, 1)]


def _shards(space: Space, split: Degrees) -> list[int]:
    """Sharding groups below dp: they divide it, and experts are whole in them."""
    inner = [
        s for s in divisors(split.dp)[1:-1] if s * split.cp * split.tp % (split.ep * split.etp) == 0
    ]
    if space.choices.shards == "any":
        return inner[::-1]
    sizes = _domain_sizes(space, split) if space.choices.shards == "domains" else set()
    return [s for s in inner if s in sizes]


def _domain_sizes(space: Space, split: Degrees) -> set[int]:
    """Ranks of dp that fill a domain of the network, with what lies inside of them."""
    sizes: set[int] = set()
    for order in placements(space):
        stride = prod(getattr(split, name) for name in order[: order.index("dp")] if name != "ep")
        sizes |= {size // stride for size in space.domains if size % stride == 0}
    return sizes


def _orders(space: Space, split: Degrees) -> list[int]:
    """Codes of the orders that differ: a group of one rank has no place, and `ep` matters against
    dp where there are experts to spread."""
    found: dict[tuple, int] = {}
    for code, order in enumerate(placements(space)):
        groups = tuple(name for name in order if name != "ep" and getattr(split, name) > 1)
        near = split.ep > 1 and order.index("ep") < order.index("dp")
        found.setdefault((groups, near), code)
    return list(found.values())


Splits = list[tuple[Degrees, Options]]
"""Valid degrees of a space, each with its options."""


def splits(space: Space) -> Splits:
    """All valid degrees, and what may be chosen with each."""
    return [(split, options(space, split)) for split in degrees(space)]


def count(space: Space, known: Splits | None = None) -> int:
    """How many valid plans there are, exactly; none of them is made. known: the space's `splits`,
    where they are made already."""
    return sum(found.plans for _, found in (splits(space) if known is None else known))


def count_groups(space: Space) -> int:
    """How many groups of plans there are (`Options.groups`)."""
    return sum(options(space, split).groups for split in degrees(space))


def neighbouring_counts(space: Space, at_most: int = 2) -> list[int]:
    """Device counts nearest to the asked one for which a valid plan exists: products of one allowed
    degree of each kind."""
    n = space.n_devices
    counts = _counts_below(space, 2 * n + 1024)
    near = sorted(counts - {n}, key=lambda count: (abs(count - n), count))
    if len(near) < 64:
        near = [c for c in near if degrees(space.replace(n_devices=c))]
    return near[:at_most]


def _counts_below(space: Space, limit: int) -> set[int]:
    """Products of one allowed degree of each kind, below a limit."""
    sequence = divisors(int(space.model.seq_len)) if "cp" in space.choices.degrees else (1,)
    heads = gcd(*(int(n) for n in counts_of(space.model, "SPLIT"))) or space.n_devices
    counts = {tp for tp in divisors(heads) if _valid_tp(space, tp)}
    for parts in (_stage_counts(space), divisors(space.global_batch), sequence):
        # one device is always a valid count, so that far ones are not the nearest
        counts = {n for n in starmap(mul, product(parts, counts)) if n < limit}
    return counts


WHOLE = ("n_heads", "n_kv_heads", "n_experts")
"""Whole numbers of parts that degrees divide."""


def _n_experts(space: Space) -> int:
    """Experts of a layer; 1 without [count]."""
    return int(value(space.model, "n_experts", 1.0))


def _valid_tp(space: Space, tp: int) -> bool:
    has = tp == 1 or "tp" in space.choices.degrees
    return has and _splits_heads(space.model, tp) and bool(_sp(space, tp, 1))


def _stage_counts(space: Space) -> list[int]:
    """Stages on which the layers can lie."""
    return [pp for pp in range(1, int(space.model.n_layers) + 1) if _valid_pp(space, pp)]


def check(space: Space) -> None:
    """Raise InputError where the numbers of the problem, or the choices, make no sense."""
    model = space.model
    whole = {name: float(getattr(model, name)) for name in ("n_layers", "seq_len")}
    for title, part in named_parts(model).items():
        counted = [n for n in part.COUNTED if n in WHOLE]
        whole |= {f"{title}: {n}": float(getattr(part, n)) for n in counted}
    whole |= {"devices": float(space.n_devices), "global batch": float(space.global_batch)}
    for name, size in whole.items():
        if not (size >= 1.0 and size == int(size)):
            raise InputError(
                f"{name}: expected a whole number from 1 on; got {size:g}. Correct it in the "
                "model or the arguments."
            )
    check_choices(space.choices)
