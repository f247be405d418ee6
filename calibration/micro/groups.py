"""What is fitted together: rows of one chip and precision, of a chip and its attention kernels, of
a chip's inner network, of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from calibration.micro import attention, collectives, matmul
from calibration.micro.fitting import Form, Problem, halves, problem
from calibration.micro.reader import MicroTable
from calibration.micro.schema import precision

FEWEST = 8
"""Rows below which a group is not fitted."""


class Group(NamedTuple):
    """Rows that share coefficients. kind: of operation; chip, variant: precision, kernels or
    network; table: its rows."""

    kind: str
    chip: str
    variant: str
    table: MicroTable

    @property
    def label(self) -> str:
        """One word for tables and figures."""
        return f"{self.kind} {self.chip} {self.variant}"


def variants(table: MicroTable) -> np.ndarray:
    """What, beside the chip, rows must share to be fitted together, `[row]`."""
    if table.kind == "matmul":
        return np.array([precision(d) for d in table.texts("dtype")])
    if table.kind == "attention":
        # the path of a source ends in its software and version
        return np.array(["/".join(source.split("/")[-2:]) for source in table.texts("source")])
    return _networks(table)


def _networks(table: MicroTable) -> np.ndarray:
    """The network between nodes, or that there is one domain only, `[row]`."""
    named = np.array([row.text("system") or "default fabric" for row in table.rows], str)
    across = np.asarray(collectives.cases(table).outer) > 1.0
    return np.where(across, np.char.add("across nodes, ", named), "one domain")


def groups(table: MicroTable) -> Iterator[Group]:
    """The groups of a table that have enough rows, in the order of chip and variant."""
    chips, kinds = table.chips(), variants(table)
    for chip, variant in sorted(set(zip(chips.tolist(), kinds.tolist(), strict=True))):
        mine = (chips == chip) & (kinds == variant)
        if mine.sum() >= FEWEST:
            yield Group(table.kind, chip, variant, table.select(mine))


SIZES = {
    "matmul": ("m", "n", "k", "groups"),
    "attention": ("causal", "batch", "seq_len", "n_heads", "n_kv_heads", "head_dim"),
    "collective": ("collective", "n_accel", "nodes", "message_bytes"),
}
"""Columns that make the shape of an operation."""


def half_of_shapes(table: MicroTable, seed: int) -> np.ndarray:
    """A random half of the shapes, `[row]` bool: rows that repeat a shape, in another release say,
    are on the same side."""
    shapes = np.array(
        ["|".join(row.text(name) for name in SIZES[table.kind]) for row in table.rows]
    )
    found, which = np.unique(shapes, return_inverse=True)
    return halves(len(found), seed)[which.reshape(-1)]


def form_of(kind: str) -> Form:
    """The law of a kind of operation."""
    return {"matmul": matmul.FORM, "attention": attention.FORM, "collective": collectives.FORM}[
        kind
    ]


def problem_of(group: Group, prior: dict[str, tuple[float, float]] | None = None) -> Problem:
    """The group's rows as a problem; see `calibration.micro.fitting.problem`."""
    cases = {"matmul": matmul.cases, "attention": attention.cases, "collective": collectives.cases}[
        group.kind
    ]
    return problem(form_of(group.kind), cases(group.table), group.table.seconds(), prior)
