"""Search over plans for the studies of hardware scaling: every valid plan of several scales in one
sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from dmodel.coefficients import Coefficients
from dmodel.records import Cluster, Model, Plan, value
from dmodel.sweep import evaluate
from experiments.scaling import kernels


class Choice(NamedTuple):
    """What a search over plans may vary: degrees, ZeRO stages, sharding inside a group of some
    devices, recomputed share of the layers."""

    tp: tuple[int, ...] = (1, 2, 4, 8, 16)
    pp: tuple[int, ...] = (1, 2, 4, 8, 16)
    cp: tuple[int, ...] = (1,)
    zero: tuple[int, ...] = (1, 3)
    groups: tuple[int, ...] = (8, 64, 512)
    recompute: tuple[float, ...] = (0.0, 1.0)


COLUMNS = (
    "dp",
    "tp",
    "pp",
    "cp",
    "zero",
    "shard",
    "reshard",
    "micro_batch",
    "recompute_layers",
    "global_batch",
)
"""What a plan of the search says of itself, in order."""


def every_plan(
    model: Model,
    devices: float,
    global_batch: float,
    choice: Choice = Choice(),  # noqa: B008
) -> dict[str, np.ndarray]:
    """All valid plans on a number of devices, as columns `[n]`: whole degrees that divide heads,
    layers, sequence, devices and batch, micro-batches that are powers of two; ZeRO-3 with weights
    kept or gathered again, over all of dp or inside groups of devices."""
    rows: list[tuple[float, ...]] = []
    for tp, pp, cp in product(choice.tp, choice.pp, choice.cp):
        dp = devices / (tp * pp * cp)
        share = global_batch / dp
        if share < 1 or any((dp % 1, share % 1, *_rest(model, tp, pp, cp))):
            continue
        each = product(sharding(choice, dp, tp * cp), micro_batches(share, pp), choice.recompute)
        rows += [(dp, tp, pp, cp, *s, b, r, global_batch) for s, b, r in each]
    found = np.array(rows, float).reshape(-1, len(COLUMNS)).T
    return dict(zip(COLUMNS, found, strict=True))


def _rest(model: Model, tp: int, pp: int, cp: int) -> tuple[float, ...]:
    """What degrees leave over of what they divide."""
    whole = (float(np.asarray(x)) for x in (value(model, "n_heads"), model.n_layers, model.seq_len))
    return tuple(x % degree for x, degree in zip(whole, (tp, pp, cp), strict=True))


def sharding(choice: Choice, dp: float, ranks: int) -> list[tuple[float, float, float]]:
    """ZeRO stage, devices that share a copy, and whether weights are gathered again; `ranks` share
    a weight already."""
    found = [(float(zero), dp, 1.0) for zero in choice.zero if zero < 3]
    if 3 not in choice.zero:
        return found
    inside = [g / ranks for g in choice.groups if g % ranks == 0 and 1 < g / ranks < dp]
    return found + [(3.0, size, again) for size in (dp, *inside) for again in (0.0, 1.0)]


def micro_batches(share: float, pp: int) -> list[float]:
    """Powers of two that divide a rank's share of the batch into whole rounds of the stages."""
    powers = [2.0**i for i in range(int(share).bit_length())]
    return [b for b in powers if share % b == 0 and (share / b) % pp == 0]


class Searched(NamedTuple):
    """Plans as columns `[n]`, their step times [s], and whether each fits into `FITS` of the
    memory."""

    columns: dict[str, np.ndarray]
    step_time_s: np.ndarray
    fits: np.ndarray

    @property
    def devices(self) -> np.ndarray:
        """Devices of every plan [count]."""
        c = self.columns
        return c["dp"] * c["tp"] * c["pp"] * c["cp"]

    def best(self, where: np.ndarray) -> int | None:
        """The fastest plan that fits, of some `[n]` bool."""
        allowed = np.flatnonzero(where & self.fits)
        return int(allowed[np.argmin(self.step_time_s[allowed])]) if len(allowed) else None

    def plan(self, rows: Sequence[int]) -> Plan:
        """Rows as a plan with leaves `[rows]`."""
        return as_plan({name: values[list(rows)] for name, values in self.columns.items()})


FITS = 0.9
"""Share of a device's memory that a plan may need by the model's count, which is the least."""


def as_plan(columns: Mapping[str, np.ndarray]) -> Plan:
    """Columns as a plan of PyTorch's FSDP on H100 (its kernels of attention); sequence parallelism
    comes with tensor parallelism."""
    plain = Plan.of(dp=1.0, global_batch=1.0, schedule="interleaved", **kernels())
    return plain.having(**columns, sp=(columns["tp"] > 1.0) * 1.0)


def search(
    system: Cluster, model: Model, c: Coefficients, parts: Sequence[dict[str, np.ndarray]]
) -> Searched:
    """Evaluate plans of several scales in one sweep."""
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    found = evaluate(as_plan(columns), system, model, c)
    return Searched(
        columns,
        np.asarray(found.step_time_s),
        np.asarray(found.memory_bytes) <= FITS * float(system.chip.hbm_bytes),
    )  # type: ignore[arg-type]
