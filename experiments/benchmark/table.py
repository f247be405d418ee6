"""Rows of the published table under names that stay: what a tool is told of each, and what was
measured."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from calibration.traces import Cases, published, to_cases
from calibration.traces.schema import MEASURED
from calibration.traces.table import Row
from dmodel.columns import CONFIGURATION
from dmodel.counts import active_parameters, parameters
from dmodel.records import named_parts, value
from dmodel.types import enable_float64

Inputs = dict[str, str]
"""Cells of a question by column."""

DIGITS = 12
"""Hexadecimal digits of a name."""

DEFINING = tuple(c.name for c in (*CONFIGURATION, *MEASURED) if c.name != "peak_kind")
"""Columns that make a row's name: layout and measurement."""

SLOW = "slow-unexplained"
"""Flag of rows that something slows which they do not say; nobody is asked about them."""

FULL, SELECTIVE, NONE = "full", "selective", "none"
"""What is recomputed."""

COUNTS = (
    "n_layers",
    "d_model",
    "vocab",
    "seq_len",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "n_experts",
    "top_k",
    "d_ff",
    "gated_mlp",
    "shared_ff",
)
"""Sizes of a model that stand in a question, where its layers have them."""

DEGREES = ("dp", "tp", "pp", "cp", "ep", "etp", "shard", "interleave", "micro_batch", "sp")
"""Degrees of a layout that stand in a question."""


def row_id(cells: dict[str, str]) -> str:
    """Name of a row: a hash of its layout and measured columns. Numbers count by value, and blank
    cells not at all, so that a later column renames no row.

    >>> row_id({"model": "a", "tp": "8"}) == row_id({"model": " a", "tp": "8.0", "note": "x"})
    True
    """
    said = ((name, _plain(cells.get(name, ""))) for name in DEFINING)
    text = "\n".join(f"{name}={cell}" for name, cell in said if cell)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _plain(cell: str) -> str:
    cell = cell.strip()
    try:
        return repr(float(cell))
    except ValueError:
        return cell


class Table(NamedTuple):
    """The rows that are asked about, once each.

    Attributes:
      ids: names `[row]`. cases: their records. rows: as they are written.
    """

    ids: tuple[str, ...]
    cases: Cases
    rows: tuple[Row, ...]

    @property
    def place(self) -> dict[str, int]:
        """Place of each row by its name."""
        return {name: i for i, name in enumerate(self.ids)}

    def mask(self, ids: Iterable[str]) -> np.ndarray:
        """Rows of these names, `[row]` bool."""
        return np.isin(np.array(self.ids), list(ids))


@lru_cache(maxsize=1)
def table() -> Table:
    """Usable rows of the published table that are not slow for reasons that nobody lists; of two
    alike the first."""
    enable_float64()
    whole = published()
    first: dict[str, Row] = {}
    for row in whole.rows:
        if SLOW not in row.flags:
            first.setdefault(row_id(dict(row.cells)), row)
    kept = tuple(first.values())
    return Table(tuple(first), to_cases(whole._replace(rows=kept)), kept)


@lru_cache(maxsize=1)
def inputs() -> dict[str, Inputs]:
    """What a tool is told of every row, by name: cells of `COLUMNS`, blank where nothing is known
    or nothing of the kind is there. No measured value is among them."""
    known = table()
    columns = _columns(known)
    return {
        name: {column: cells[i] for column, cells in columns.items()}
        for i, name in enumerate(known.ids)
    }


def _columns(known: Table) -> dict[str, list[str]]:
    """Cells of all rows by column."""
    cases, rows = known.cases, known.rows
    model, layout, chip = cases.model, cases.plan.layout, cases.system.chip
    count, labels = len(rows), cases.labels
    columns: dict[str, list[str]] = {
        "id": list(known.ids),
        "stack": labels.stack.tolist(),
        "model": labels.model.tolist(),
        "blocks": _blocks(known),
        "adapters": _numbers(np.asarray(model.trainable) == 0.0, count),
        "n_params": _numbers(parameters(model), count),
        "active_params": _numbers(active_parameters(model), count),
    }
    columns |= {name: _numbers(value(model, name, 0.0), count) for name in COUNTS}
    columns["accelerator"] = labels.accelerator.tolist()
    columns["n_accel"] = _numbers(labels.n_accel, count)
    columns["accel_per_node"] = [row.text("accel_per_node") for row in rows]
    sizes, rates = (np.asarray(getattr(cases.system.network, n)) for n in ("size", "bytes_per_s"))
    columns["domain_size"] = _numbers(sizes[0], count)
    columns["precision"] = labels.precision.tolist()
    columns["operand_bytes"] = _numbers(cases.plan.precision.operand_bytes, count)
    columns["flash"] = _numbers(cases.plan.software.flash, count)
    columns["recompute"] = _recompute(known)
    columns["zero_stage"] = _numbers(layout.zero, count)
    columns |= {name: _numbers(getattr(layout, name), count) for name in DEGREES}
    columns["global_batch"] = _numbers(cases.plan.global_batch, count)
    columns["flops_per_s"] = _numbers(chip.flops_per_s, count)
    columns["memory_bytes"] = _numbers(chip.hbm_bytes, count)
    columns["memory_bytes_per_s"] = _numbers(chip.hbm_bytes_per_s, count)
    columns["fast_bytes_per_s"] = _numbers(rates[0], count)
    columns["slow_bytes_per_s"] = _numbers(rates[1], count)
    return columns


def _numbers(values: object, count: int) -> list[str]:
    """Numbers as cells, whole ones without a point."""
    return [format(x, ".12g") for x in np.broadcast_to(np.asarray(values, float), count).tolist()]


def _blocks(known: Table) -> list[str]:
    """Kinds of parts that each model's layers have, with blanks between."""
    model, count = known.cases.model, len(known.ids)
    there = {
        name: np.broadcast_to(np.asarray(weight), count) > 0.0
        for name, weight in zip(named_parts(model), model.weights, strict=True)
    }
    return [" ".join(name for name, mask in there.items() if mask[i]) for i in range(count)]


def _recompute(known: Table) -> list[str]:
    """What is recomputed: what a row says, else what its plan does for the greater part."""
    layout = known.cases.plan.layout
    whole = np.asarray(layout.recompute_layers) >= 0.5
    some = (np.asarray(layout.recompute_attention) > 0.0) | (
        np.asarray(layout.recompute_products) > 0.0
    )
    found = np.where(whole, FULL, np.where(some, SELECTIVE, NONE)).tolist()
    return [row.text("recompute") or word for row, word in zip(known.rows, found, strict=True)]


def measured(known: Table) -> dict[str, dict[str, float]]:
    """Step times [s] and peaks [byte] by name; NaN where there is none."""
    labels = known.cases.labels
    return {
        "seconds": dict(zip(known.ids, labels.step_time_s.tolist(), strict=True)),
        "bytes": dict(zip(known.ids, labels.peak_memory_bytes.tolist(), strict=True)),
    }
