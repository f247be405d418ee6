"""What a stack makes of plans at best, over all ways to shard them: what bounds take.

Leaves that facts decide by the ZeRO stage or the sharding group have, in a group of plans that
differ in these, the most favourable of their values.
"""

from __future__ import annotations

import numpy as np

from dmodel.design import rows as rows_
from dmodel.design.rows import INDEX
from dmodel.design.space import Degrees, Space, options
from dmodel.errors import InputError
from dmodel.records import Plan, leaf
from dmodel.varying import Job

SMALLER, LARGER = np.minimum, np.maximum

BETTER = {
    **dict.fromkeys(
        (
            "reduce_bytes",
            "gradient_bytes",
            "raw_gradient_bytes",
            "gather_bytes",
            "optimizer_bytes",
            "update_bytes",
            "weight_bytes",
            "whole_bytes",
            "whole_ends",
        ),
        SMALLER,
    ),
    **dict.fromkeys(("logit_bytes", "bucket_per_rank", "stream_ratio", "loss_ratio"), SMALLER),
    **dict.fromkeys(("freed_gradients", "overlap_dp", "overlap_replica"), LARGER),
}
"""Leaves that may differ with sharding, and which value takes no more time, energy or memory."""

FASTER = {
    **dict.fromkeys(("attention_bytes", "wide_layers", "scale_passes"), SMALLER),
    **dict.fromkeys(("attention_rate", "attention_backward_rate"), LARGER),
}
"""Leaves that arithmetic depends on, and which value takes no more time."""


def best_over_sharding(space: Space, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Leaves that the stack decides, of groups `[n]`: the best over the sharding of each.

    Raises:
      InputError: a leaf differs with sharding of which no direction is known.
    """
    job = space.choices.stack
    if job is None or not job.leaves:
        return {}
    whole, start = _sharded(rows, _ways(space, job, rows))
    found = {}
    for name, values in rows_.decided(space, whole).items():
        least, most = SMALLER.reduceat(values, start), LARGER.reduceat(values, start)
        if name not in BETTER and (least != most).any():
            raise InputError(_unknown(job, name))
        found[name] = least if BETTER.get(name) is SMALLER else most
    return found


def _unknown(job: Job, name: str) -> str:
    return (
        f"stack {job.question.stack.name}: facts let {name} differ with the ZeRO stage or the "
        f"sharding group, and no bound is known for that; only {', '.join(BETTER)} may"
    )


Ways = list[tuple[np.ndarray, np.ndarray]]
"""Places of rows, and ways to shard them `[way, 2]`: ZeRO stage and group."""


def _ways(space: Space, job: Job, rows: np.ndarray) -> Ways:
    """All that the space offers; none where facts do not ask for it."""
    if not {"zero", "shard", "replicas"} & {*job.tests, *job.exact}:
        return []
    return [(places, _offered(space, split)) for split, places in rows_.by_degrees(rows)]


def _offered(space: Space, split: Degrees) -> np.ndarray:
    pairs = dict.fromkeys((zero, shard) for zero, shard, _ in options(space, split).sharding)
    return np.array(list(pairs), float)


def _sharded(rows: np.ndarray, ways: Ways) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Every row with every way to shard it, as named columns, and where each row's begin."""
    count = np.ones(len(rows), int)
    for places, pairs in ways:
        count[places] = len(pairs)
    start = np.cumsum(count) - count
    repeated = np.repeat(rows, count, axis=0)
    for places, pairs in ways:
        at = start[places][:, None] + np.arange(len(pairs))
        repeated[at, INDEX["zero"]] = pairs[:, 0]
        repeated[at, INDEX["shard"]] = pairs[:, 1]
    names = (n for n in INDEX if n not in ("schedule", "placement", "precision"))
    return {n: repeated[:, INDEX[n]] for n in names}, start


def fastest(space: Space) -> Plan:
    """The base with leaves that arithmetic depends on as the stack has them at best."""
    job = space.choices.stack
    if job is None:
        return space.base
    names = [n for n in FASTER if n in job.leaves]
    best = {n: FASTER[n].reduce([float(leaf(space.base, n)), *job.values(n)]) for n in names}
    return space.base.having(**best)
