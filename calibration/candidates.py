"""Runs that could be measured next: other plans of the jobs in a table of traces, what they cost,
and the list for `dmodel collect`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np

from calibration.collect.tasks import make
from calibration.collect.workload.spec import check, from_row
from calibration.traces import Row, TraceTable, fingerprint
from calibration.traces.reader import measured_time, problems
from dmodel.errors import InputError
from dmodel.question import degrees
from dmodel.recomputation import CHOICES
from dmodel.settings import text_of

MEASURED = (
    "step_time_s",
    "tokens_per_s_per_accel",
    "mfu_reported",
    "tflops_reported",
    "peak_memory_gib",
    "flag",
    "note",
    "url",
    "license",
)
"""Cells that belong to a measurement, not to what is run."""

MICRO_BATCHES = (1, 2, 4, 8, 16)

RECOMPUTE = ("none", "full")

STEPS, STARTUP_S = 20, 120.0
"""Steps of one measurement, and what starting a job takes [s]: scheduling, loading, compiling and
warming up."""


class Asked(NamedTuple):
    """What one measurement takes. steps: of the run. startup_s: before the first one [s]."""

    steps: int = STEPS
    startup_s: float = STARTUP_S


def cost_s(step_time_s: np.ndarray, devices: np.ndarray, asked: Asked) -> np.ndarray:
    """Device-seconds of measuring runs: `devices · (startup + steps · step time)`."""
    return devices * (asked.startup_s + asked.steps * step_time_s)


def untimed(table: TraceTable) -> np.ndarray:
    """True for rows without a measured time: the user's own candidates, `[row]`."""
    return np.array([measured_time(row) is None for row in table.rows], bool)


def _powers(n: int) -> list[int]:
    """Powers of two that divide n."""
    return [2**k for k in range(n.bit_length()) if n % 2**k == 0]


def _others(row: Row) -> Iterator[Row]:
    """Other plans of a row's job: model, chip, software, devices and batch stay."""
    at, devices = degrees(row.question), int(row.known("n_accel"))
    rest = int(at.cp)
    if devices % rest:
        return
    recomputes = tuple(dict.fromkeys((row.text("recompute"), *RECOMPUTE)))
    for tp, pp in product(_powers(devices // rest), repeat=2):
        whole = pp > 1 and row.number("zero_stage") == 3.0  # parameters, which stages do not share
        if devices % (tp * pp * rest) or whole:
            continue
        dp = devices // (tp * pp * rest)
        for micro_batch, recompute in product(MICRO_BATCHES, recomputes):
            changed = {"dp": dp, "tp": tp, "pp": pp, "micro_batch": micro_batch}
            yield _changed(row, changed, recompute)


def _changed(row: Row, degrees: dict[str, int], recompute: str) -> Row:
    """A row with other degrees, unmeasured."""
    cells = {name: "" if name in MEASURED else cell for name, cell in row.cells.items()}
    cells |= {name: str(value) for name, value in degrees.items()}
    cells |= {"recompute": recompute, "shard": "", "set": _settings(row, recompute)}
    if degrees["pp"] == 1 and "interleave" in cells:
        cells["interleave"] = "1"
    return row._replace(cells=cells)


def _settings(row: Row, recompute: str) -> str:
    """The row's `set`, without what says otherwise than the word for recomputation."""
    if recompute == row.text("recompute"):
        return row.text("set")
    said = {n: v for n, v in row.settings.items() if n not in ("recompute_policy", *CHOICES)}
    return text_of(said)


def other_plans(table: TraceTable, most: int, seed: int = 0) -> TraceTable:
    """Other plans of the jobs in a table, each once, without those that were measured; of more than
    `most` a random choice.

    Tensor and pipeline degrees are powers of two, the micro-batch one of 1 to 16, activations kept
    or recomputed; sizes that do not divide are left out, as the reader would. Whether they fit in
    memory is for the model to say.
    """
    seen = {_plan_of(row) for row in table.rows}
    rows: list[Row] = []
    for other in chain.from_iterable(map(_others, table.rows)):
        key = _plan_of(other)
        if key not in seen and not problems(other, require_time=False):
            seen.add(key)
            rows.append(other)
    chosen = np.sort(np.random.default_rng(seed).permutation(len(rows))[:most])
    return table._replace(rows=tuple(rows[i] for i in chosen), aside=(), problems=(), notes=())


def _plan_of(row: Row) -> str:
    """Name of what is run, however it was written and whatever came out."""
    at = degrees(row.question)
    cells = {name: cell for name, cell in row.cells.items() if name not in MEASURED}
    filled = {name: f"{getattr(at, name):g}" for name in ("dp", "tp", "pp", "cp", "ep")}
    filled["micro_batch"] = f"{at.micro_batch or 1.0:g}"
    return fingerprint(
        row._replace(
            cells={**cells, **filled, "shard": "", "interleave": cells.get("interleave") or "1"}
        )
    )


def tasks(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Runs as tasks of `dmodel collect --plan`, and those that its own training step cannot make,
    with the reason."""
    able, unable = [], []
    for i, row in enumerate(rows):
        try:
            task = make("steps", check(from_row({**row.cells, **row.filled})))
            able.append({"kind": task.kind, **task.parameters})
        except InputError as error:
            unable.append({"run": i, "reason": str(error)})
    return able, unable
