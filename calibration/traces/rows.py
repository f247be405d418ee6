"""Rows as one batch of cases: records of the model, and what is known beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import numpy as np

from calibration.traces.reader import measured_time
from calibration.traces.table import Row, TraceTable, fingerprint
from dmodel import resolve, struct
from dmodel.catalog.chips import known_as
from dmodel.errors import InputError
from dmodel.left_blank import Rules
from dmodel.question import degrees
from dmodel.records import Cluster, Model, Plan
from dmodel.units import GIB


class Labels(NamedTuple):
    """What is known about each case besides numbers of the model, `[rows]` each.

    Attributes:
      step_time_s: measured [s]; NaN where there is none, which only `require_time=False` lets pass.
      peak_memory_bytes: measured highest use of a device; NaN where there is none.
      accelerator, stack, source, model, flag, precision: text; of a file's chip the accelerator
      that it is like. peak_kind: what the peak counts, "" = not said. n_accel: devices [count].
      file, line: where the row stands. fingerprint: of what defines the measurement. group: rows
      that must be held out together. repeats: measurements that it stands for [count]. variance: of
      ln t, by the scatter of these about their mean; 0 where that is not known
      (`calibration.fleets`). assumptions: tuple of short texts.
    """

    step_time_s: np.ndarray
    peak_memory_bytes: np.ndarray
    accelerator: np.ndarray
    stack: np.ndarray
    source: np.ndarray
    model: np.ndarray
    flag: np.ndarray
    precision: np.ndarray
    peak_kind: np.ndarray
    n_accel: np.ndarray
    file: np.ndarray
    line: np.ndarray
    fingerprint: np.ndarray
    group: np.ndarray
    repeats: np.ndarray
    variance: np.ndarray
    assumptions: np.ndarray


class Cases(struct.PyTreeNode, kw_only=True):
    """Rows as one batch of cases: leaves `[rows]`, of the network `[K, rows]`.

    Give `system`, `model` and `plan` to a compiled function, not the whole: the labels are text.
    """

    system: Cluster
    model: Model
    plan: Plan
    labels: Labels = struct.field(pytree_node=False)

    def __len__(self) -> int:
        return len(self.labels.line)

    @property
    def beside(self) -> np.ndarray:
        """1 where the measured peak may count more than tensors, 0 where it is of tensors alone
        `[row]`."""
        return np.where(self.labels.peak_kind == "allocated", 0.0, 1.0)

    def take(self, rows: np.ndarray) -> Cases:
        """The cases of a mask or of indices, labels included."""
        system, model, plan = jax.tree.map(
            lambda leaf: leaf[..., rows], (self.system, self.model, self.plan)
        )
        return Cases(
            system=system,
            model=model,
            plan=plan,
            labels=Labels(*(values[rows] for values in self.labels)),
        )


def to_cases(table: TraceTable, rule: Rules | None = None) -> Cases:
    """Turn every usable row into records.

    Args:
      table: usable rows become cases, in order.
      rule: for rows whose recomputation neither they nor their stack say, or one for each; by
        default `dmodel.left_blank.cheapest_that_fits`.
    Raises:
      InputError: no usable row.
    """
    if not table.rows:
        raise InputError(
            f"no usable row among {table.total}{_first_reason(table)}; expected at least one "
            "measured configuration"
        )
    found = resolve.assemble([row.question for row in table.rows], rule)
    labels = _labels(table.rows)
    texts = np.empty(len(table.rows), dtype=object)
    texts[:] = [tuple(map(str, each)) for each in found.assumptions]
    return Cases(
        system=found.system,
        model=found.model,
        plan=found.plan,
        labels=labels._replace(assumptions=texts),
    )


def _first_reason(table: TraceTable) -> str:
    return f" (the first problem: {table.problems[0]})" if table.problems else ""


NUMBERS: dict[str, Callable[[Row], float]] = {
    "step_time_s": lambda row: measured_time(row) or np.nan,
    "peak_memory_bytes": lambda row: GIB * (row.number("peak_memory_gib") or np.nan),
    "n_accel": lambda row: row.known("n_accel"),
    "line": lambda row: row.line,
    "repeats": lambda row: 1,
    "variance": lambda row: 0.0,
}
"""Labels that are numbers, each of a row."""

TEXTS: dict[str, Callable[[Row], str]] = {
    "accelerator": lambda row: known_as(row.accelerator),
    "stack": lambda row: row.stack,
    "source": lambda row: row.text("source") or row.stack,
    "model": lambda row: row.text("model"),
    "flag": lambda row: row.flag,
    "precision": lambda row: row.text("precision") or row.question.precision,
    "peak_kind": lambda row: row.text("peak_kind") or "",
    "file": lambda row: row.file,
    "fingerprint": fingerprint,
    "group": lambda row: group_of(row),
}
"""Labels that are text, each of a row."""


def _labels(rows: tuple[Row, ...]) -> Labels:
    """Names, places and groups of the rows; assumptions are added when all are known."""
    numbers = {name: np.array([of(row) for row in rows]) for name, of in NUMBERS.items()}
    texts = {name: _texts(of(row) for row in rows) for name, of in TEXTS.items()}
    return Labels(**numbers, **texts, assumptions=np.empty(len(rows), dtype=object))


def _texts(values: Iterable[str]) -> np.ndarray:
    return np.array(list(values), dtype=np.str_)


def group_of(row: Row) -> str:
    """Rows that tell about each other and so are held out together.

    (model, accelerator, devices); composed rows, which are sums of a cost per layer and
    micro-batch, by (d_model, tp, micro_batch). A
    blank model counts by its shape.
    """
    if "composed" in row.flags:
        at = degrees(row.question)
        cell = (row.known("d_model"), at.tp, at.micro_batch or 1.0)
        return "|".join(["composed", row.text("source"), *(f"{x:g}" for x in cell)])
    shape = "x".join(f"{row.known(n):g}" for n in ("n_layers", "d_model", "d_ff"))
    return "|".join(
        [row.text("model").lower() or shape, row.accelerator.lower(), f"{row.known('n_accel'):g}"]
    )
