"""The micro-benchmark formats: one row is one timed operation; three kinds of files, told apart by
their columns.

A cell is read by the rules of the trace format. A row needs the size of its operation and its time;
the time may be given as a rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from calibration.traces.schema import Column

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Kinds that the model has; files may hold others, which are set aside."""

PASSES = ("fwd",)
"""Passes that the attention form covers."""


class Kind(NamedTuple):
    """One kind of file.

    Attributes:
      name: of the kind. columns: that it may have, in order.
      rate: column that gives the time when `time_us` is blank: size of the operation over rate.
    """

    name: str
    columns: tuple[Column, ...]
    rate: str

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that a header must have; one of time and rate comes on top."""
        return tuple(c.name for c in self.columns if c.required)


def _text(name: str, meaning: str, required: bool = False) -> Column:
    return Column(name, "text", "", meaning, required)


def _count(name: str, meaning: str, required: bool = True) -> Column:
    return Column(name, "integer", "count", meaning, required, 1.0)


_SOURCE = _text("source", "where the figure was published", True)
_LICENSE = _text("license", "licence under which the source publishes it")
_CHIP = _text("accelerator", "chip of the catalog, e.g. H100-80GB", True)
_TIME = Column("time_us", "real", "us", "time of one call")

MATMUL = Kind(
    "matmul",
    (
        _SOURCE,
        _LICENSE,
        _CHIP,
        _text(
            "dtype",
            (
                "precision of the operands; times of those in `matmul.CAST` include casting the "
                "left "
                "one"
            ),
            True,
        ),
        _count("m", "rows of the left matrix: tokens"),
        _count("n", "columns of the right matrix"),
        _count("k", "inner dimension"),
        _count(
            "groups", "equal products in one call, m being their rows together; blank = 1", False
        ),
        Column("tflops", "real", "TFLOP/s", "2 m n k / time"),
        _TIME,
    ),
    "tflops",
)

ATTENTION = Kind(
    "attention",
    (
        _SOURCE,
        _LICENSE,
        _CHIP,
        _text("dtype", "precision of the operands", True),
        _text("pass", "fwd", True),
        Column(
            "causal",
            "integer",
            "0/1",
            "1 = each token sees only those before it",
            True,
            0.0,
            ("0", "1"),
        ),
        _count("batch", "sequences"),
        _count("seq_len", "tokens of one sequence"),
        _count("n_heads", "query heads"),
        _count("n_kv_heads", "key and value heads"),
        _count("head_dim", "size of one head"),
        Column("tflops_causal", "real", "TFLOP/s", "causal half of 4 b a s² e, over time"),
        _TIME,
    ),
    "tflops_causal",
)

COLLECTIVE = Kind(
    "collective",
    (
        _SOURCE,
        _LICENSE,
        _text("collective", "all_reduce, all_gather, reduce_scatter or all_to_all", True),
        _CHIP,
        _text("link", "wires, switches and software, as the source names them"),
        _text(
            "system",
            "system of the catalog whose network carries it; blank = the accelerator's default",
        ),
        _count("n_accel", "ranks"),
        _count("nodes", "hosts that they span"),
        Column(
            "message_bytes",
            "real",
            "byte",
            "of the whole: what a rank holds after an all-gather, before the others",
            True,
        ),
        Column("algbw_GBs", "real", "GB/s", "message over time"),
        Column(
            "busbw_GBs", "real", "GB/s", "algbw times the share of the message that a ring sends"
        ),
        _TIME,
    ),
    "algbw_GBs",
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in (MATMUL, ATTENTION, COLLECTIVE)}

_TELLING = {"matmul": "k", "attention": "head_dim", "collective": "message_bytes"}


def kind_of(header: Iterable[str]) -> Kind | None:
    """The kind of a file by its header; None when it is none of them."""
    present = set(header)
    return next((KINDS[name] for name, column in _TELLING.items() if column in present), None)


def precision(dtype: str) -> str:
    """A dtype of a file as the catalog's precision: block scales of 1 × 128 and 128 × 128 are
    `fp8-blockwise128`.

    >>> precision("fp8-1x128/128x128"), precision("bf16")
    ('fp8-blockwise128', 'bf16')
    """
    return "fp8-blockwise128" if dtype.lower() == "fp8-1x128/128x128" else dtype.lower()
