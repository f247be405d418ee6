"""What a search over plans may choose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

from dmodel import struct
from dmodel.errors import InputError
from dmodel.records import PLACEMENT, SCHEDULES
from dmodel.varying import Job

ALL_PLACEMENTS: tuple[tuple[str, ...], ...] = tuple(
    sorted(
        permutations(PLACEMENT),
        key=lambda order: (order != PLACEMENT, [PLACEMENT.index(name) for name in order]),
    )
)
"""Every order of the groups on the network, the default one first."""

DEGREES = ("tp", "cp", "pp", "ep")
"""Degrees that a search may choose beside dp."""

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


class Choices(struct.PyTreeNode, kw_only=True):
    """What the search may choose besides the degrees dp, tp, cp, pp and ep.

    Attributes:
      zero: ZeRO stages. shards: sharding groups (HSDP): "whole" = all of dp, "domains" = also those
        that fill a domain of a network level (ZeRO-3), "any" = every divisor of dp, in every stage.
      recompute: shares of a stage's layers recomputed in full, rounded to whole layers; None =
        every whole number of layers.
      schedules: of the pipeline; "interleaved" allows several chunks per stage; `records.RULES`
        says what the others ask for.
      micro_batch: "powers" of two, or "any" divisor of a rank's share of the batch.
      sp: sequence parallelism beside tp: 1, 0 or both; experts always have it. etp: also split
        experts over divisors of tp.
      degrees: which of tp, cp, pp and ep there are beside dp. uneven: whether stages may hold
        different numbers of layers (`dmodel.stages`).
      placements: orders of the groups on the network; empty = the base's own; `ALL_PLACEMENTS`.
      precisions: of the matmuls; empty = the base's and the system's own.
      stack: what the stack makes of each layout (`dmodel.varying`); None = the base's own with all.
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
    degrees: tuple[str, ...] = struct.field(pytree_node=False, default=DEGREES)
    uneven: bool = struct.field(pytree_node=False, default=True)
    placements: tuple[tuple[str, ...], ...] = struct.field(pytree_node=False, default=())
    precisions: tuple[PrecisionChoice, ...] = struct.field(pytree_node=False, default=())
    stack: Job | None = struct.field(pytree_node=False, default=None)


EVERYTHING = Choices(
    shards="any",
    recompute=None,
    schedules=tuple(name for name in SCHEDULES if name != "gpipe"),
    micro_batch="any",
    etp=True,
    placements=ALL_PLACEMENTS,
)
"""All that a plan can vary, precision aside: it takes the chip's peaks."""


def check_choices(choices: Choices) -> None:
    """Refuse choices that make no sense.

    Raises:
      InputError: with what was expected.
    """
    _check_offered("zero", choices.zero, (0, 1, 2, 3))
    _check_offered("shards", (choices.shards,), SHARDS)
    _check_offered("schedules", choices.schedules, SCHEDULES)
    _check_offered("micro_batch", (choices.micro_batch,), MICRO_BATCHES)
    _check_offered("sp", choices.sp, (0, 1))
    _check_offered("degrees", ("dp", *choices.degrees), ("dp", *DEGREES))
    if not _are_shares(choices.recompute):
        raise InputError(
            "choices: recompute: expected shares of the layers from 0 to 1, or None for all; "
            f"got {choices.recompute}"
        )
    if wrong := [order for order in choices.placements if sorted(order) != sorted(PLACEMENT)]:
        raise InputError(
            f"choices: placements: expected orders of {', '.join(PLACEMENT)}; got {wrong[0]}"
        )


def _check_offered(name: str, got: tuple, allowed: tuple) -> None:
    """Refuse a choice without options, or with one that there is not."""
    if not got or any(x not in allowed for x in got):
        raise InputError(
            f"choices: {name}: expected some of {', '.join(map(str, allowed))}; got {got}"
        )


def _are_shares(shares: Sequence[float] | None) -> bool:
    """Whether these are some shares, or None for all."""
    return shares is None or (len(shares) > 0 and all(0.0 <= share <= 1.0 for share in shares))
