"""The trace format: one row is one measured training configuration, one column one fact about it.
Blank = unknown.

`COLUMNS` is the single definition that the reader, the writer and the documentation use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import NamedTuple

PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "int8", "fp32")
FLAGS = ("lora", "offload", "derived-from-tflops", "composed", "slow-unexplained")


class Column(NamedTuple):
    """One column of the format.

    Attributes:
      name: as in the header. kind: "text", "integer" or "real". unit: SI or a count. meaning: for
        people.
      required: the header must have it. least: smallest value allowed (`None` = any positive
        number, for numbers).
      allowed: the only values allowed, or () when any will do.
    """

    name: str
    kind: str
    unit: str
    meaning: str
    required: bool = False
    least: float | None = None
    allowed: tuple[str, ...] = ()


def _text(name: str, meaning: str, allowed: tuple[str, ...] = (), required: bool = False) -> Column:
    return Column(name, "text", "", meaning, required, None, allowed)


def _count(
    name: str, meaning: str, required: bool = False, least: float = 1.0, unit: str = "count"
) -> Column:
    return Column(name, "integer", unit, meaning, required, least)


def _switch(name: str, meaning: str) -> Column:
    return Column(name, "integer", "0/1", meaning, False, 0.0, ("0", "1"))


def _real(name: str, unit: str, meaning: str) -> Column:
    return Column(name, "real", unit, meaning)


COLUMNS: tuple[Column, ...] = (
    _text("source", "who published the figure"),
    _text("stack", "software that ran it, with its variant; blank = source"),
    _text("url", "where the figure was published"),
    _text("license", "licence under which the source publishes it"),
    _text("model", "name of the model"),
    _real("n_params", "count", "total parameters"),
    _count("n_layers", "layers", True),
    _count("d_model", "width", True),
    _count("d_ff", "width of the MLP, of one expert for MoE", True),
    _switch(
        "gated_mlp",
        (
            "1 = three matrices (SwiGLU), 0 = two; n_params decides where it contradicts one and "
            "fits "
            "the other"
        ),
    ),
    _count("n_heads", "attention heads", True),
    _count("n_kv_heads", "key/value heads; blank = n_heads"),
    _count(
        "head_dim",
        "size of one head; blank = the catalog's for a model that it knows, else d_model / n_heads",
    ),
    _count("vocab", "vocabulary", True),
    _count("n_experts", "experts of one layer; blank or 0 = dense", least=0.0),
    _count("top_k", "experts that each token visits; blank or 0 = dense", least=0.0),
    _count("seq_len", "tokens per sequence", True, unit="token"),
    _text("accelerator", "e.g. H100-80GB, A100-80GB, GB200, TPU-v5p", required=True),
    _count("n_accel", "devices in the run", True),
    _count(
        "accel_per_node",
        "devices per host; caps a blank domain_size where the fast domain is the host",
    ),
    _count("domain_size", "devices in the fast scale-up domain, the innermost network level"),
    _text(
        "precision", "of the matmuls; a variant may follow a dash (fp8-blockwise128)", PRECISIONS
    ),
    _text("attention", "fused kernels or not", ("flash", "none")),
    _text(
        "recompute",
        "activations computed again in the backward pass",
        ("none", "selective", "full"),
    ),
    _count("dp", "data-parallel ranks, sharded or not; dp·tp·pp·cp = n_accel"),
    Column(
        "zero_stage", "integer", "stage", "ZeRO stage; 3 = FSDP", False, 0.0, ("0", "1", "2", "3")
    ),
    _count(
        "shard",
        (
            "ranks over which ZeRO shards, a divisor of dp (HSDP when below it); blank = dp; an "
            "addition to the common format"
        ),
    ),
    _count("tp", "tensor-parallel degree"),
    _switch("sp", "1 = sequence parallelism beside tp"),
    _count("pp", "pipeline stages"),
    _count("interleave", "model chunks per pipeline stage"),
    _text(
        "stage_layers",
        (
            "layers of each pipeline stage, first to last, blanks between; blank = as the stack "
            "does; "
            "an addition"
        ),
    ),
    _count("cp", "context-parallel degree"),
    _count("ep", "expert-parallel degree, ranks of dp·tp·cp that hold different experts"),
    _count(
        "etp",
        "tensor-parallel degree inside an expert; blank = 1; an addition to the common format",
    ),
    _count("micro_batch", "sequences per data-parallel rank and micro-batch", unit="sequence"),
    _count("global_batch", "sequences per step", True, unit="sequence"),
    _real(
        "step_time_s",
        "s",
        "the measured quantity; blank = global_batch·seq_len / (tokens_per_s_per_accel·n_accel)",
    ),
    _real("tokens_per_s_per_accel", "token/s", "throughput of one device"),
    _real(
        "mfu_reported", "1", "as published; its convention differs by source, so never fitted to"
    ),
    _real(
        "tflops_reported",
        "TFLOP/s",
        "as published; its convention differs by source, so never fitted to",
    ),
    _real("peak_memory_gib", "GiB", "highest use per device"),
    _text("flag", "one or more of " + ", ".join(FLAGS) + ", with `;` between"),
    _text("note", "caveats, and settings without a column in words that docs/data.md lists"),
)

BY_NAME: dict[str, Column] = {column.name: column for column in COLUMNS}
NUMBERS: tuple[str, ...] = tuple(column.name for column in COLUMNS if column.kind != "text")
REQUIRED: tuple[str, ...] = tuple(column.name for column in COLUMNS if column.required)
SHAPE = ("n_layers", "d_model", "d_ff", "n_heads", "vocab", "seq_len")
"""Cells without which a transformer has no shape; but for seq_len, blank ones are the catalog's for
a model that it knows."""
NEARLY = 1e-3
"""Relative distance from an integer that counts as rounding of a published figure."""
LARGEST, SMALLEST, MOST = 1e9, 1e-9, 1e18
"""Largest count, and the range of the other numbers: beyond it a cell is a slip, and arithmetic
with it could overflow."""


def parse_number(column: Column, text: str) -> float:
    """The number in a cell that is not blank.

    Near-integers (within `NEARLY`) of integer columns are rounded: some sources publish batch /
    devices in floating point.

    Raises:
      ValueError: text, NaN, infinity, too small, not an integer or not an allowed value; the
        message is the reason.
    """
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{column.name}: expected a plain number, got {text!r}") from None
    if not math.isfinite(value):
        raise ValueError(
            f"{column.name}: expected a finite number, got {text!r} (leave the cell blank "
            "where "
            "it is unknown)"
        )
    if column.least is None and value <= 0.0:
        raise ValueError(f"{column.name}: expected a positive number, got {text}")
    if column.kind == "integer":
        value = _whole(column, value, text)
    elif not SMALLEST <= value <= MOST:
        raise ValueError(
            f"{column.name}: expected a number from {SMALLEST:g} to {MOST:g}, got {_short(text)}"
        )
    if column.least is not None and value < column.least:
        raise ValueError(f"{column.name}: expected {column.least:g} or more, got {text}")
    if column.allowed and f"{value:g}" not in column.allowed:
        raise ValueError(f"{column.name}: expected {' or '.join(column.allowed)}, got {text}")
    return value


def _whole(column: Column, value: float, text: str) -> float:
    if value > LARGEST:
        raise ValueError(f"{column.name}: expected at most {LARGEST:g}, got {_short(text)}")
    nearest = float(round(value))
    if abs(value - nearest) > NEARLY * max(nearest, 1.0):
        raise ValueError(f"{column.name}: expected an integer, got {text}")
    return nearest


def _short(text: str) -> str:
    return text if len(text) < 30 else text[:30] + "…"


def base_precision(text: str) -> str:
    """The precision without its variant: `fp8-blockwise128` → `fp8`."""
    return text.partition("-")[0].lower()


def spelled(name: str, text: str) -> str:
    """A cell of text with the words of the format as the format spells them, whatever their case:
    precisions, allowed words, flags. Other words, and cells of other columns, stay as they are.

    >>> spelled("attention", "Flash"), spelled("precision", "FP8-Blockwise128"), spelled("flag", "LoRA; mine"), spelled("model", "A")
    ('flash', 'fp8-blockwise128', 'lora; mine', 'A')
    """
    if name == "flag":
        return re.sub(
            r"[^\s;,]+", lambda word: word[0].lower() if word[0].lower() in FLAGS else word[0], text
        )
    column, small = BY_NAME.get(name), text.lower()
    word = base_precision(small.strip()) if name == "precision" else small.strip()
    return small if column and column.kind == "text" and word in column.allowed else text


def missing(header: Iterable[str], require_time: bool = True) -> list[str]:
    """Columns that a header lacks; one of step time and throughput will do."""
    present = set(header)
    lacking = [name for name in REQUIRED if name not in present]
    if require_time and not present & {"step_time_s", "tokens_per_s_per_accel"}:
        lacking.append("step_time_s (or tokens_per_s_per_accel)")
    return lacking


ALIKE = 0.6
"""Likeness of two names of columns (`difflib`) from which one is taken for the other misspelled:
`attn` and `attention` have 0.62."""


SHORT = 4
"""Letters of a name that may stand for a longer one that begins with it."""


def misspelled(header: Iterable[str]) -> dict[str, str]:
    """Columns that the format has not got, each with the one that it resembles and that the header
    lacks.

    >>> misspelled(["model", "microbatch", "recomputation", "site"])
    {'microbatch': 'micro_batch', 'recomputation': 'recompute'}
    """
    header = list(header)
    absent = [c.name for c in COLUMNS if c.name not in header]
    known, found = {c.name for c in COLUMNS}, {}
    for name in header:
        near = get_close_matches(name, absent, 1, ALIKE) or [
            c for c in absent if len(name) >= SHORT and c.startswith(name)
        ]
        if name and name not in known and near:
            found[name] = near[0]
    return found


def markdown() -> str:
    """The format as a Markdown table, for the documentation."""
    lines = ["| column | kind | unit | required | meaning |", "| --- | --- | --- | --- | --- |"]
    for c in COLUMNS:
        meaning = c.meaning + (f" ({', '.join(c.allowed)})" if c.allowed else "")
        lines.append(
            f"| {c.name} | {c.kind} | {c.unit} | {'yes' if c.required else ''} | {meaning} |"
        )
    return "\n".join(lines)
