"""Time of one matrix product: the step model's form, and what a single call adds to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibration.micro.fitting import Form
from calibration.micro.reader import MicroTable
from calibration.micro.schema import precision
from dmodel import catalog
from dmodel.coefficients import Spec
from dmodel.counts import WORD
from dmodel.smooth import maximum
from dmodel.types import Array, stack

OPERAND_BYTES = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8-blockwise128": 1.0,
    "mxfp8": 1.0 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "int8": 1.0,
}
"""Bytes of an operand's element with its share of the block scales."""

CAST = ("fp8", "mxfp8", "nvfp4", "int8")
"""Precisions whose measured times include casting the left operand from 16 bits; block-scaled fp8
is published without."""

SPECS: dict[str, Spec] = {
    "efficiency": Spec(
        "1", "share of the peak rate that a large product reaches", "share", 0.75, 0.7, "hardware"
    ),
    "half_rows": Spec(
        "1", "rows that a product costs beyond its own", "positive", 40.0, 1.0, "hardware"
    ),
    "half_columns": Spec(
        "1", "columns that a product costs beyond its own", "positive", 40.0, 1.0, "hardware"
    ),
    "half_area": Spec(
        "1",
        "elements of the result that a product costs beyond its own",
        "positive",
        2e5,
        1.0,
        "hardware",
    ),
    "half_inner": Spec(
        "1", "inner size that it costs beyond its own", "positive", 150.0, 1.0, "hardware"
    ),
    "memory_efficiency": Spec(
        "1", "share of the memory bandwidth that it reaches", "share", 0.75, 0.7, "hardware"
    ),
    "launch": Spec(
        "s", "time of the smallest product, casts included", "positive", 4e-6, 1.0, "software"
    ),
    "cast_traffic": Spec(
        "1",
        "memory traffic of casting the left operand over its count",
        "positive",
        1.5,
        0.7,
        "software",
    ),
}


class Cases(NamedTuple):
    """Products `[row]`: sizes of each copy, copies, bytes of an operand element, bytes to cast one
    of the left, the chip's two rates."""

    rows: Array
    columns: Array
    inner: Array
    copies: Array
    operand_bytes: Array
    cast_bytes: Array
    flops_per_s: Array
    hbm_bytes_per_s: Array


def cases(table: MicroTable) -> Cases:
    """The rows of a table as records."""
    dtypes = [precision(d) for d in table.texts("dtype")]
    chips = list(map(catalog.chip, table.chips(), dtypes))
    copies = np.nan_to_num(table.numbers("groups"), nan=1.0)
    return Cases(
        rows=table.numbers("m") / copies,
        columns=table.numbers("n"),
        inner=table.numbers("k"),
        copies=copies,
        operand_bytes=np.array([OPERAND_BYTES[d] for d in dtypes]),
        cast_bytes=np.array([WORD + OPERAND_BYTES[d] if d in CAST else 0.0 for d in dtypes]),
        flops_per_s=np.array([c.flops_per_s for c in chips], float),
        hbm_bytes_per_s=np.array([c.hbm_bytes_per_s for c in chips], float),
    )


def time(c: Mapping[str, Array], x: Cases) -> jax.Array:
    """Time of each call [s], `[row]`.

    `launch + max_p(2 ((M + m₀)(N + n₀) + A₀)(K + k₀) · copies / (peak η), bytes / (HBM η_mem)) +
    c_cast · cast bytes / (HBM η_mem)`

    With A₀ = launch = c_cast = 0 it is `dmodel.cost.compute.matmul_time` in 16 bits. A₀ is what the
    tiles of the last wave leave idle: a result smaller than the chip's multiprocessors times a tile
    cannot fill it, whatever its shape. k₀ is what a tile takes before its first product and behind
    its last one.

    Limits: `2MNK / (peak η)` as all sizes grow; memory-bound, or A₀-bound, as M and N shrink;
    launch as all do.
    """
    filled = (x.rows + c["half_rows"]) * (x.columns + c["half_columns"]) + c["half_area"]
    arithmetic = (
        2.0 * filled * (x.inner + c["half_inner"]) * x.copies / (x.flops_per_s * c["efficiency"])
    )
    memory_rate = x.hbm_bytes_per_s * c["memory_efficiency"]
    operands = x.copies * (x.rows * x.inner + x.inner * x.columns)
    memory = (x.operand_bytes * operands + WORD * x.copies * x.rows * x.columns) / memory_rate
    cast = c["cast_traffic"] * x.copies * x.rows * x.inner * x.cast_bytes / memory_rate
    return c["launch"] + maximum(stack(arithmetic, memory)) + jnp.asarray(cast)


FORM = Form("matmul", SPECS, time)
