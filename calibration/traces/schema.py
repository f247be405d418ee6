"""The trace format: one row is one measured training configuration, one column one fact about it.
Blank = unknown.

`COLUMNS` is the single definition that the reader, the writer and the documentation use: what was
run (`dmodel.columns`), and what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from dmodel.columns import CONFIGURATION, Column, base_precision, parse_number, real, text

__all__ = ["BY_NAME", "COLUMNS", "Column", "base_precision", "parse_number"]

FLAGS = ("lora", "offload", "derived-from-tflops", "composed", "slow-unexplained", "implausible")

PEAK_KINDS = ("allocated", "reserved", "driver", "planned")
"""Kinds of peaks: bytes of tensors (PyTorch's `max_memory_allocated`); with blocks that its
allocator holds and nobody uses (`max_memory_reserved`); all that the driver counts (`nvidia-smi`),
the context and libraries' buffers among it; what XLA plans for a program (`memory_analysis`)."""

MEASURED: tuple[Column, ...] = (
    real(
        "step_time_s",
        "s",
        "the measured quantity; blank = global_batch·seq_len / (tokens_per_s_per_accel·n_accel)",
    ),
    real("tokens_per_s_per_accel", "token/s", "throughput of one device"),
    real("mfu_reported", "1", "as published; its convention differs by source, so never fitted to"),
    real(
        "tflops_reported",
        "TFLOP/s",
        "as published; its convention differs by source, so never fitted to",
    ),
    real("peak_memory_gib", "GiB", "highest use per device"),
    text(
        "peak_kind",
        "what the peak counts: tensors, also cached blocks, all on the device, or a plan",
        PEAK_KINDS,
    ),
)

PROVENANCE: tuple[Column, ...] = (
    text("source", "who published the figure"),
    text("url", "where the figure was published"),
    text("license", "licence under which the source publishes it"),
)

COLUMNS: tuple[Column, ...] = (
    PROVENANCE[0],
    CONFIGURATION[0],
    *PROVENANCE[1:],
    *CONFIGURATION[1:],
    *MEASURED,
    text(
        "set",
        "settings that no column has, `name=value` with `;` between (`dmodel catalog settings`)",
    ),
    text("flag", "one or more of " + ", ".join(FLAGS) + ", with `;` between"),
    text("flag_reason", "why a row is flagged implausible"),
    text("note", "caveats, for people"),
)

BY_NAME: dict[str, Column] = {column.name: column for column in COLUMNS}
REQUIRED: tuple[str, ...] = tuple(column.name for column in COLUMNS if column.required)
"""Columns that a header must have beside a model's name, or its shape."""

OF_WORDS = frozenset(c.name for c in COLUMNS if c.kind == "text" and c.allowed)
"""Columns whose words the format lists."""

NUMBERS: tuple[str, ...] = tuple(column.name for column in COLUMNS if column.kind != "text")
SHAPE = ("n_layers", "d_model", "d_ff", "n_heads", "vocab", "seq_len")
"""Columns without which a transformer has no shape; blank ones are the catalog's for a model that
it knows."""


def spelled(name: str, cell: str) -> str:
    """A cell of text with the words of the format as the format spells them, whatever their case:
    precisions, allowed words, flags. Other words, and cells of other columns, stay as they are.

    >>> spelled("attention", "Flash"), spelled("precision", "FP8-Blockwise128")
    ('flash', 'fp8-blockwise128')
    >>> spelled("flag", "LoRA; mine"), spelled("model", "A")
    ('lora; mine', 'A')
    """
    if name == "flag":
        return re.sub(
            r"[^\s;,]+",
            lambda word: word[0].lower() if word[0].lower() in FLAGS else word[0],
            cell,
        )
    if name not in OF_WORDS:
        return cell
    small = cell.lower()
    word = base_precision(small.strip()) if name == "precision" else small.strip()
    return small if word in BY_NAME[name].allowed else cell


def missing(header: Iterable[str], require_time: bool = True) -> list[str]:
    """Columns that a header lacks; one of step time and throughput will do, and a model's name in
    place of its shape."""
    present = set(header)
    needed = REQUIRED if "model" in present else (*REQUIRED, *SHAPE)
    lacking = [name for name in needed if name not in present]
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
    strange = [name for name in header if name and name not in BY_NAME]
    near = {name: _likely(name, absent) for name in strange}
    return {name: columns[0] for name, columns in near.items() if columns}


def _likely(name: str, absent: list[str]) -> list[str]:
    """Columns that a name may mean, the likeliest first."""
    begun = [c for c in absent if len(name) >= SHORT and c.startswith(name)]
    return get_close_matches(name, absent, 1, ALIKE) or begun


def markdown() -> str:
    """The format as a Markdown table, for the documentation."""
    lines = ["| column | kind | unit | required | meaning |", "| --- | --- | --- | --- | --- |"]
    for c in COLUMNS:
        meaning = c.meaning + (f" ({', '.join(c.allowed)})" if c.allowed else "")
        required = "yes" if c.required else ""
        lines.append(f"| {c.name} | {c.kind} | {c.unit} | {required} | {meaning} |")
    return "\n".join(lines)
