"""All valid integer plans of a device count, lazily: one block of rows for each factorization of it into dp · tp · cp · pp.

A row is one plan, a column one of `COLUMNS`. The order of rows is fixed, the plainest choices first: it decides between equal plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from flax import struct

from dmodel.plan import Plan
from dmodel.types import InputError
from dmodel.workload import Transformer

COLUMNS = ("dp", "tp", "cp", "pp", "ep", "zero", "shard", "reshard", "micro_batch", "recompute_layers", "recompute_attention", "interleave")
DEGREES = COLUMNS[:4]
SHARDING = ("zero", "shard", "reshard")
INDEX = {name: i for i, name in enumerate(COLUMNS)}


class Choices(struct.PyTreeNode, kw_only=True):
    """What the search may choose besides the degrees and the micro-batch.

    Attributes:
      zero: ZeRO stages. hsdp: also shard ZeRO-3 inside one domain of each network level and replicate across them.
      recompute: shares of a stage's layers recomputed in full, rounded to whole layers.
      interleave: also interleave stages (schedules "1f1b" and "interleaved").
    """

    zero: tuple[int, ...] = struct.field(pytree_node=False, default=(0, 1, 3))
    hsdp: bool = struct.field(pytree_node=False, default=True)
    recompute: tuple[float, ...] = struct.field(pytree_node=False, default=(0.0, 0.25, 0.5, 0.75, 1.0))
    interleave: bool = struct.field(pytree_node=False, default=True)


class Space(struct.PyTreeNode, kw_only=True):
    """The problem that plans solve, all static.

    Attributes:
      model: numbers of the transformer that divisibility asks about. base: what all plans share (precision, overlap, placement, schedule).
      n_devices: product of the degrees. global_batch: [sequence]. domains: devices of one domain of each bounded network level.
      choices: what may vary.
    """

    model: Transformer
    base: Plan
    n_devices: int = struct.field(pytree_node=False)
    global_batch: int = struct.field(pytree_node=False)
    domains: tuple[int, ...] = struct.field(pytree_node=False, default=())
    choices: Choices = struct.field(pytree_node=False, default=Choices())


def divisors(n: int) -> list[int]:
    """Divisors of n, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d < n]


def degrees(space: Space) -> list[tuple[int, ...]]:
    """All valid (dp, tp, cp, pp, ep): tp divides the heads and fits the KV heads, pp the layers, cp the sequence, dp the batch; ep divides
    dp and the experts."""
    m = space.model
    heads, kv, layers, seq, experts = (int(x) for x in (m.n_heads, m.n_kv_heads, m.n_layers, m.seq_len, m.n_experts))
    found = []
    for tp in divisors(space.n_devices):
        if heads % tp or (kv % tp and tp % kv):
            continue
        for cp in divisors(space.n_devices // tp):
            for pp in divisors(space.n_devices // (tp * cp)):
                dp = space.n_devices // (tp * cp * pp)
                if seq % cp == 0 and layers % pp == 0 and space.global_batch % dp == 0:
                    found += [(dp, tp, cp, pp, ep) for ep in divisors(experts) if dp % ep == 0]
    return found


def shardings(space: Space, group: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(zero, shard, reshard) for the degrees; one without ZeRO where there is nothing to shard over."""
    dp, tp, cp, pp, ep = group
    found = [(0, 1, 1)] if 0 in space.choices.zero else []
    if dp * cp == 1:
        return found or [(0, 1, 1)]
    found += [(stage, dp, 1) for stage in space.choices.zero if stage in (1, 2)]
    if 3 in space.choices.zero:
        found += [(3, shard, reshard) for shard in (dp, *hsdp_shards(space, group)) for reshard in (1, 0)]
    return found


def hsdp_shards(space: Space, group: tuple[int, ...]) -> list[int]:
    """Sizes of sharding groups that just fill one domain of a network level, below dp."""
    if not space.choices.hsdp:
        return []
    degree: dict[str, int] = dict(zip((*DEGREES, "ep"), group, strict=True))
    dp, ep = degree["dp"], degree["ep"]
    before = space.base.placement[: space.base.placement.index("dp")]
    stride = int(np.prod([degree[name] for name in before if name != "ep"]))
    sizes = {size // stride for size in space.domains if size % stride == 0}
    return sorted(s for s in sizes if 1 < s < dp and dp % s == 0 and s % ep == 0)


def block(space: Space, group: tuple[int, ...]) -> np.ndarray:
    """All rows of one (dp, tp, cp, pp, ep), `[rows, columns]`: sharding × micro-batch × recomputation × interleaving."""
    dp, _, _, pp, _ = group
    share = space.global_batch // dp
    batches = [2**i for i in range(share.bit_length()) if share % 2**i == 0]
    per_stage = int(space.model.n_layers) // pp
    layers = sorted({int(np.rint(r * per_stage)) for r in space.choices.recompute})
    recompute = [(k / per_stage, 0.0) for k in layers]
    if not float(space.base.flash):
        recompute.insert(1, (0.0, 1.0))  # "selective": the attention core alone
    chunks = divisors(per_stage) if pp > 1 and space.choices.interleave and space.base.schedule in ("1f1b", "interleaved") else [1]
    rows = [
        (*group, *sharding, b, *again, v)
        for v, b, again, sharding in product(chunks, batches, recompute, shardings(space, group))
        if v == 1 or (share // b) % pp == 0
    ]
    return np.asarray(rows, dtype=np.float64).reshape(-1, len(COLUMNS))


def blocks(space: Space) -> Iterator[np.ndarray]:
    """All rows, one array for each group of degrees; nothing is held."""
    return (block(space, group) for group in degrees(space))


def batches(space: Space, rows: int = 1 << 17) -> Iterator[np.ndarray]:
    """All rows in arrays of at least `rows`, save the last: what a sweep takes at once."""
    held: list[np.ndarray] = []
    for part in blocks(space):
        held.append(part)
        if sum(map(len, held)) >= rows:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


def plans(space: Space, rows: np.ndarray) -> Plan:
    """Rows `[n, columns]` as a Plan with leaves `[n]`; sequence parallelism comes with tensor parallelism."""
    columns = {name: np.ascontiguousarray(rows[:, i]) for name, i in INDEX.items()}
    schedule = "interleaved" if space.base.schedule == "1f1b" else space.base.schedule
    return space.base.replace(
        **columns, sp=(columns["tp"] > 1.0) * 1.0, global_batch=np.full(len(rows), float(space.global_batch)), schedule=schedule
    )


def neighbouring_counts(space: Space, at_most: int = 2) -> list[int]:
    """Device counts nearest to the asked one for which a valid plan exists: products of one allowed degree of each kind."""
    n, m = space.n_devices, space.model
    heads, kv, layers, seq = (int(x) for x in (m.n_heads, m.n_kv_heads, m.n_layers, m.seq_len))
    counts = {tp for tp in divisors(heads) if not (kv % tp and tp % kv)}
    for whole in (layers, space.global_batch, seq):
        # one device is always a valid count, so far ones are not the nearest: without them the set stays small
        counts = {count * d for d in divisors(whole) for count in counts if count * d < 2 * n + 1024}
    return sorted(counts - {n}, key=lambda count: (abs(count - n), count))[:at_most]


def check(space: Space) -> None:
    """Raise InputError where the numbers of the problem make no sense."""
    m = space.model
    whole = {name: float(getattr(m, name)) for name in ("n_heads", "n_kv_heads", "n_layers", "seq_len", "n_experts")}
    whole |= {"devices": float(space.n_devices), "global batch": float(space.global_batch)}
    for name, value in whole.items():
        if not (value >= 1.0 and value == int(value)):
            raise InputError(f"{name}: expected a whole number from 1 on; got {value:g}. Correct it in the model or the arguments.")
