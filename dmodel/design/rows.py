"""Plans as rows of numbers, one column each: what searches hold, sort and evaluate.

A *group* of rows shares all columns but those of `INSIDE`: sharding and the share of recomputed
layers. Bounds are proven for whole groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import jax
import numpy as np

from dmodel.design.choices import PrecisionChoice
from dmodel.design.space import Degrees, Options, Space, Splits, degrees, options, placements
from dmodel.placement import PAIRS
from dmodel.records import LEAVES, MIXED, SCHEDULES, Cluster, Plan
from dmodel.varying import leaves, stages

COLUMNS = (
    "dp",
    "tp",
    "cp",
    "pp",
    "ep",
    "etp",
    "sp",
    "schedule",
    "interleave",
    "micro_batch",
    "placement",
    "precision",
    "recompute_attention",
    "recompute_layers",
    "zero",
    "shard",
    "reshard",
)
"""`schedule`, `placement` and `precision` are codes: places in `SCHEDULES` and in the space's
lists."""

INDEX = {name: i for i, name in enumerate(COLUMNS)}
SPLIT = [INDEX[name] for name in Degrees._fields]
INSIDE = ("recompute_layers", "zero", "shard", "reshard")
SHARDING = INSIDE[1:]

PLAINNESS = (
    "tp",
    "cp",
    "pp",
    "ep",
    "etp",
    "placement",
    "precision",
    "schedule",
    "interleave",
    "micro_batch",
    "recompute_attention",
    "recompute_layers",
    "zero",
    "-shard",
    "-reshard",
    "-sp",
)
"""What decides between plans of equal merit, most important first: the smaller value ("-": the
larger one) is the plainer."""

EMPTY = np.empty((0, len(COLUMNS)))


def _crossed(*parts: list) -> np.ndarray:
    """All combinations of rows of numbers, the last part running fastest, side by side."""
    arrays = [np.asarray(part, dtype=np.float64).reshape(len(part), -1) for part in parts]
    grids = np.meshgrid(*(np.arange(len(a)) for a in arrays), indexing="ij")
    return np.concatenate([a[g.ravel()] for a, g in zip(arrays, grids, strict=True)], 1)


def group_rows(split: Degrees, found: Options) -> np.ndarray:
    """One row for each group of these degrees; its `INSIDE` columns hold the plainest values."""
    core = sorted({attention for _, attention in found.recompute})
    first = [(a, 0.0 if a else found.recompute[0][0], *found.sharding[0]) for a in core]
    rows = _crossed(found.placement, found.precision, found.runs, found.sp, first)
    placement, precision, runs, sp, rest = np.split(rows, [1, 2, 5, 6], axis=1)
    split_columns = np.broadcast_to(np.asarray(split, dtype=np.float64), (len(rows), len(split)))
    return np.concatenate([split_columns, sp, runs, placement, precision, rest], 1)


def expanded(rows: np.ndarray, found: Options) -> np.ndarray:
    """All rows of groups that share their degrees: each group with every sharding and share of
    recomputed layers."""
    parts = []
    for attention in (0.0, 1.0):
        chosen = rows[rows[:, INDEX["recompute_attention"]] == attention]
        shares = [share for share, core in found.recompute if core == attention]
        if len(chosen) and shares:
            inside = _crossed(shares, found.sharding)
            repeated = np.repeat(chosen, len(inside), 0)
            repeated[:, [INDEX[name] for name in INSIDE]] = np.tile(inside, (len(chosen), 1))
            parts.append(repeated)
    return np.concatenate(parts) if parts else EMPTY


def by_degrees(rows: np.ndarray) -> Iterator[tuple[Degrees, np.ndarray]]:
    """Rows of each split of the devices, as places in the array."""
    if not len(rows):
        return
    _, first, of = np.unique(rows[:, SPLIT], axis=0, return_index=True, return_inverse=True)
    order = np.argsort(of.ravel(), kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(of.ravel()[order])) + 1):
        yield Degrees(*(int(x) for x in rows[places[0], SPLIT])), places


def joined(blocks: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Blocks joined, and cut where they are larger, to arrays of about `size` rows: what a sweep
    takes at once."""
    held: list[np.ndarray] = []
    for part in blocks:
        for start in range(0, len(part), size):
            held.append(part[start : start + size])
            if sum(map(len, held)) >= size:
                yield np.concatenate(held)
                held = []
    if held:
        yield np.concatenate(held)


def _block_parts(split: Degrees, found: Options, size: int) -> Iterator[np.ndarray]:
    """All rows of some degrees in parts of about `size`, so that none is too large to hold."""
    groups = group_rows(split, found)
    step = max(size // max(len(found.sharding) * len(found.recompute), 1), 1)
    return (expanded(groups[i : i + step], found) for i in range(0, len(groups), step))


def batches(space: Space, size: int = 1 << 17, known: Splits | None = None) -> Iterator[np.ndarray]:
    """All rows of the space, lazily, in arrays of about `size` rows.

    Args:
      known: the space's `splits`, where they are made already.
    """
    each = ((s, options(space, s)) for s in degrees(space)) if known is None else known
    return joined(
        (part for split, found in each for part in _block_parts(split, found, size)), size
    )


def groups(space: Space, size: int = 1 << 16) -> Iterator[np.ndarray]:
    """One row for each group of the space, lazily, in arrays of about `size` rows."""
    return joined((group_rows(split, options(space, split)) for split in degrees(space)), size)


def plainest_first(rows: np.ndarray, merits: np.ndarray) -> np.ndarray:
    """Places of the rows, by merit, and by plainness where merits are equal: the same whatever
    order the rows come in."""
    keys = [
        rows[:, INDEX[name.lstrip("-")]] * (-1.0 if name[0] == "-" else 1.0) for name in PLAINNESS
    ]
    return np.lexsort((*keys[::-1], merits))


def precisions(space: Space, system: Cluster) -> list[PrecisionChoice]:
    """Precisions that codes stand for."""
    if space.choices.precisions:
        return list(space.choices.precisions)
    b = space.base
    numbers = (
        system.chip.flops_per_s,
        b.precision.operand_bytes,
        b.precision.wide_layers,
        b.precision.scale_passes,
    )
    return [PrecisionChoice("given", *(float(x) for x in numbers))]


def order_numbers(order: tuple[str, ...]) -> list[float]:
    """An order of the groups as the numbers of `placement.Ordered`."""
    return [float(order.index(inner) < order.index(outer)) for inner, outer in PAIRS]


def numbers(space: Space, system: Cluster, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Rows as named arrays `[n]` with codes resolved, what the stack makes of each, and what stages
    hold: what the compiled functions take (`dmodel.design.judge`)."""
    codes = ("schedule", "placement", "precision")
    found = {n: np.ascontiguousarray(rows[:, INDEX[n]]) for n in COLUMNS if n not in codes}
    code = {name: rows[:, INDEX[name]].astype(int) for name in codes}
    for name, schedule in MIXED.items():
        found[name] = (code["schedule"] == SCHEDULES.index(schedule)) * 1.0
    orders = np.asarray([order_numbers(order) for order in placements(space)])[code["placement"]]
    for i, (inner, outer) in enumerate(PAIRS):
        found[f"{inner}_{outer}"] = np.ascontiguousarray(orders[:, i])
    offered = precisions(space, system)
    for name in PrecisionChoice._fields[1:]:
        found[name] = np.asarray([float(getattr(p, name)) for p in offered])[code["precision"]]
    return found | decided(space, found) | _stages(space, found, code["schedule"])


def decided(space: Space, found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Leaves that the stack decides by the layout, `[n]`; those of precisions that the search
    chooses are theirs."""
    job = space.choices.stack
    if job is None:
        return {}
    sizes = {"devices": float(space.n_devices), "seq_len": float(space.model.seq_len)}
    chosen = PrecisionChoice._fields if space.choices.precisions else ()
    return {n: x for n, x in leaves(job, {**found, **sizes}).items() if n not in chosen}


def _stages(
    space: Space, found: Mapping[str, np.ndarray], schedule: np.ndarray
) -> dict[str, np.ndarray]:
    """How layers lie on stages: as the stack lays them, else as `dmodel.layouts.counted` does."""
    return stages(space.choices.stack, space.model, found["pp"], found["interleave"], schedule)


def plans(space: Space, system: Cluster, rows: np.ndarray) -> list[Plan]:
    """Rows as plans with scalar leaves, codes as names."""
    found = numbers(space, system, rows)
    fields = [*(name for name in found if name in LEAVES), "global_batch"]
    found["global_batch"] = np.full(len(rows), float(space.global_batch))
    base = jax.tree.map(lambda x: np.asarray(x, dtype=float), space.base)
    return [
        base.having(
            **{name: found[name][i] for name in fields if name not in ("schedule", "placement")},
            schedule=_schedule(SCHEDULES[int(row[INDEX["schedule"]])], row[INDEX["interleave"]]),
            placement=placements(space)[int(row[INDEX["placement"]])],
        )
        for i, row in enumerate(rows)
    ]


def all_rows(space: Space, known: Splits | None = None) -> np.ndarray:
    """All rows at once, as of `batches`: for spaces that are known to be small."""
    return np.concatenate([EMPTY, *batches(space, known=known)])


def _schedule(name: str, interleave: float) -> str:
    """One chunk per stage is 1F1B, whatever it is called."""
    return "1f1b" if name == "interleaved" and interleave == 1.0 else name
