"""Columns that describe one configuration: the words of a question, in files, shell and API alike.

A trace file adds columns of what was measured (`calibration.traces.schema`).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "int8", "fp32")

NEARLY = 1e-3
"""Relative distance from an integer that counts as rounding of a published figure."""

LARGEST, SMALLEST, MOST = 1e9, 1e-9, 1e18
"""Largest count, and the range of other numbers: beyond it a cell is a slip."""

MACHINES, CONTEXT, DEEP, WIDE = 1e7, 1e8, 1e5, 1e7
"""Largest number of devices, tokens of a sequence, layers, and width or vocabulary: each some
ten times what anybody has built or announced, or more."""


class Column(NamedTuple):
    """One column.

    Attributes:
      name: as in a header. kind: "text", "integer" or "real". unit: SI or a count.
      meaning: for people. required: a file's header must have it.
      least: smallest value allowed (None = any positive number, for numbers).
      allowed: the only values allowed, or () when any will do. most: largest count allowed.
    """

    name: str
    kind: str
    unit: str
    meaning: str
    required: bool = False
    least: float | None = None
    allowed: tuple[str, ...] = ()
    most: float = LARGEST


def text(name: str, meaning: str, allowed: tuple[str, ...] = (), required: bool = False) -> Column:
    """A column of words."""
    return Column(name, "text", "", meaning, required, None, allowed)


def count(
    name: str,
    meaning: str,
    required: bool = False,
    least: float = 1.0,
    unit: str = "count",
    most: float = LARGEST,
) -> Column:
    """A column of whole numbers."""
    return Column(name, "integer", unit, meaning, required, least, (), most)


def switch(name: str, meaning: str) -> Column:
    """A column of 0 and 1."""
    return Column(name, "integer", "0/1", meaning, False, 0.0, ("0", "1"))


def real(name: str, unit: str, meaning: str) -> Column:
    """A column of positive numbers."""
    return Column(name, "real", unit, meaning)


CONFIGURATION: tuple[Column, ...] = (
    text("stack", "software that ran it, with its variant; blank = source"),
    text("model", "name of the model; of the catalog, blank columns of the shape are its own"),
    real("n_params", "count", "total parameters"),
    count("n_layers", "layers", most=DEEP),
    count("d_model", "width", most=WIDE),
    count("d_ff", "width of the MLP, of one expert for MoE"),
    switch(
        "gated_mlp",
        "1 = three matrices (SwiGLU), 0 = two; n_params decides where it contradicts one and fits "
        "the other",
    ),
    count("n_heads", "attention heads"),
    count("n_kv_heads", "key/value heads; blank = n_heads"),
    count(
        "head_dim",
        "size of one head; blank = the catalog's for a model that it knows, else d_model / n_heads",
    ),
    count("vocab", "vocabulary", most=WIDE),
    count("n_experts", "experts of one layer; blank or 0 = dense", least=0.0),
    count("top_k", "experts that each token visits; blank or 0 = dense", least=0.0),
    count("seq_len", "tokens per sequence", unit="token", most=CONTEXT),
    text("accelerator", "e.g. H100-80GB, A100-80GB, GB200, TPU-v5p", required=True),
    count("n_accel", "devices in the run", True, most=MACHINES),
    count(
        "accel_per_node",
        "devices per host; caps a blank domain_size where the fast domain is the host",
    ),
    count("domain_size", "devices in the fast scale-up domain, the innermost network level"),
    text("precision", "of the matmuls; a variant may follow a dash (fp8-rowwise)", PRECISIONS),
    text("attention", "fused kernels or not", ("flash", "none")),
    text(
        "recompute",
        "activations computed again in the backward pass",
        ("none", "selective", "full"),
    ),
    count("dp", "data-parallel ranks, sharded or not; dp·tp·pp·cp = n_accel"),
    Column(
        "zero_stage", "integer", "stage", "ZeRO stage; 3 = FSDP", False, 0.0, ("0", "1", "2", "3")
    ),
    count(
        "shard",
        "ranks over which ZeRO shards, a divisor of dp (HSDP when below it); blank = dp; an "
        "addition to the common format",
    ),
    count("tp", "tensor-parallel degree"),
    switch("sp", "1 = sequence parallelism beside tp"),
    count("pp", "pipeline stages"),
    count("interleave", "model chunks per pipeline stage"),
    text(
        "stage_layers",
        "layers of each pipeline stage, first to last, blanks between; blank = as the stack does; "
        "an addition",
    ),
    count("cp", "context-parallel degree"),
    count("ep", "expert-parallel degree, ranks of dp·tp·cp that hold different experts"),
    count(
        "etp",
        "tensor-parallel degree inside an expert; blank = 1; an addition to the common format",
    ),
    count("micro_batch", "sequences per data-parallel rank and micro-batch", unit="sequence"),
    count("global_batch", "sequences per step", True, unit="sequence"),
)
"""Columns that say what is run. Blank = open: the stack's facts, the catalog or a rule fill it."""

BY_NAME: dict[str, Column] = {column.name: column for column in CONFIGURATION}


@lru_cache(maxsize=1 << 14)
def parse_number(column: Column, cell: str) -> float:
    """The number in a cell that is not blank.

    Near-integers (within `NEARLY`) of integer columns are rounded: some sources publish batch /
    devices in floating point.

    Raises:
      ValueError: text, NaN, infinity, too small, not an integer or not an allowed value; the
        message is the reason.
    """
    value = _finite(column.name, cell)
    if column.least is None and value <= 0.0:
        raise ValueError(f"{column.name}: expected a positive number, got {_short(cell)}")
    value = (_whole if column.kind == "integer" else _ordinary)(column, value, cell)
    _check_allowed(column, value, cell)
    return value


def _finite(name: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise ValueError(f"{name}: expected a plain number, got {_short(cell)!r}") from None
    if not math.isfinite(value):
        raise ValueError(
            f"{name}: expected a finite number, got {_short(cell)!r} (leave the cell blank where "
            "it is unknown)"
        )
    return value


def _ordinary(column: Column, value: float, cell: str) -> float:
    if not SMALLEST <= value <= MOST:
        raise ValueError(
            f"{column.name}: expected a number from {SMALLEST:g} to {MOST:g}, got {_short(cell)}"
        )
    return value


def _check_allowed(column: Column, value: float, cell: str) -> None:
    """Refuse values below the least one of a column, or that are none of its few."""
    if column.least is not None and value < column.least:
        raise ValueError(f"{column.name}: expected {column.least:g} or more, got {_short(cell)}")
    if column.allowed and f"{value:g}" not in column.allowed:
        raise ValueError(
            f"{column.name}: expected {' or '.join(column.allowed)}, got {_short(cell)}"
        )


def _whole(column: Column, value: float, cell: str) -> float:
    if value > column.most:
        raise ValueError(f"{column.name}: expected at most {column.most:g}, got {_short(cell)}")
    nearest = float(round(value))
    if abs(value - nearest) > NEARLY * max(nearest, 1.0):
        raise ValueError(f"{column.name}: expected an integer, got {_short(cell)}")
    return nearest


def _short(cell: str) -> str:
    return cell if len(cell) < 30 else cell[:30] + "…"


def base_precision(label: str) -> str:
    """The precision without its variant: `fp8-blockwise128` → `fp8`."""
    return label.partition("-")[0].lower()
