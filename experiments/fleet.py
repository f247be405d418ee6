"""Large tables: time and memory of `fit` and `evaluate` by rows and by configurations.

Synthetic rows repeat configurations of the published table, some with larger batches, at their
measured times: with noise, rows that a host held up, and a drift from release to release. Each
command runs in a process of its own, which tells processor time and the largest memory that it
held.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from calibration.fleets.keys import KEYS
from calibration.traces import Row, published
from calibration.traces.reader import measured_time
from dmodel.report import style
from experiments import study

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure

NOISE, HELD_UP, SLOWER, DRIFT = 0.02, 0.01, 1.5, 0.004
"""Scatter of ln t among repeats, share of rows that take `SLOWER` times as long, and what a release
adds to ln t."""

RELEASES, DAYS = 10, 300
"""Of the synthetic rows."""

CHUNK = 1 << 17
"""Rows that are written at once."""


class Job(NamedTuple):
    """A command on a table of so many rows and configurations."""

    command: str
    rows: int
    configurations: int


JOBS = (
    Job("evaluate", 1_800, 1_800),
    Job("evaluate", 1_000_000, 1_800),
    Job("fit", 2_500, 2_500),
    Job("fit", 500_000, 2_500),
    Job("fit", 5_000, 5_000),
    Job("fit", 1_000_000, 5_000),
)
QUICK = (Job("evaluate", 100, 100), Job("evaluate", 10_000, 100), Job("fit", 10_000, 20))


def configurations(count: int) -> list[Row]:
    """Different configurations: rows of the published table, then the same with larger batches,
    whose steps take longer in proportion."""
    found: dict[tuple[str, ...], Row] = {}
    larger = (_larger(row, times) for times in range(1, 100) for row in published().rows)
    for row in larger:
        found.setdefault(tuple(row.text(key) for key in KEYS), row)
        if len(found) == count:
            return list(found.values())
    raise ValueError(f"{count} configurations: the table has {len(found)}")


def _larger(row: Row, times: int) -> Row:
    """A row with so many times the batch, whose steps take as many times as long."""
    cells = {
        "global_batch": f"{times * row.known('global_batch'):g}",
        "step_time_s": repr(times * (measured_time(row) or 0.0)),
        "tokens_per_s_per_accel": "",
    }
    return row._replace(cells={**row.cells, **cells})


def write_rows(path: Path, rows: int, different: int, seed: int = 0) -> None:
    """A Parquet file of rows that repeat so many configurations, each once at least."""
    import pyarrow as pa
    from pyarrow import parquet

    known = pa.Table.from_pylist([dict(row.cells) for row in configurations(different)])
    times = np.log(known["step_time_s"].cast(pa.float64()).to_numpy())
    rng = np.random.default_rng(seed)
    first = _measured(known, times, np.arange(different), rng, rows > different)
    with parquet.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for start in range(different, rows, CHUNK):
            which = rng.integers(different, size=min(CHUNK, rows - start))
            writer.write_table(_measured(known, times, which, rng, True))


def _measured(
    known: pa.Table, times: np.ndarray, which: np.ndarray, rng: np.random.Generator, noisy: bool
) -> pa.Table:
    """Rows of some configurations, measured some day; times: their published ln t."""
    import pyarrow as pa

    day = rng.integers(DAYS, size=len(which))
    release = day * RELEASES // DAYS
    moved = NOISE * rng.standard_normal(len(which)) + DRIFT * release
    moved += np.log(SLOWER) * (rng.random(len(which)) < HELD_UP)
    dates = np.datetime64("2026-01-01") + day
    rows = known.drop_columns(["step_time_s"]).take(pa.array(which))
    rows = rows.append_column("step_time_s", pa.array(np.exp(times[which] + noisy * moved)))
    rows = rows.append_column("date", pa.array(dates.astype(str)))
    return rows.append_column("release", pa.array(np.char.add("r", release.astype(str))))


def measured(job: Job, folder: Path) -> study.Line:
    """A command in a process of its own."""
    table, out = folder / f"{job.rows}.{job.configurations}.parquet", folder / "profile.json"
    if not table.exists():
        write_rows(table, job.rows, job.configurations)
    words = [job.command, str(table), "--json", *(["--out", str(out)] * (job.command == "fit"))]
    code = "import sys; sys.argv[0] = 'dmodel'; from experiments.counted import child; child()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"fleet: {' '.join(words)} ended with {done.returncode}: {done.stderr}")
    told = json.loads(done.stderr.splitlines()[-1])
    found = json.loads(done.stdout)
    return {
        "command": job.command,
        "rows": job.rows,
        "configurations": job.configurations,
        "rows_used": found["rows_used"],
        "cpu_s": told["cpu_s"],
        "peak_gib": told["peak_gib"],
    }


def main() -> None:
    a = study.options(__doc__ or "")
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for job in QUICK if a.quick else JOBS:
            lines.append(measured(job, Path(folder)))
            study.say(json.dumps(lines[-1]))
    study.deliver("fleet", lines, _figure(lines), a)


def _figure(lines: list[study.Line]) -> Figure:
    """Processor time and peak memory of each command."""
    figure = style.new_figure(9.0, 3.4)
    names = [f"{x['command']}\n{x['rows']:,} rows\n{x['configurations']:,} config." for x in lines]
    titles = {"cpu_s": "Processor time [s]", "peak_gib": "Peak memory [GiB]"}
    for axes, (key, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        axes.bar(names, [x[key] for x in lines], color=style.BLUE)
        axes.set_title(title)
        axes.tick_params(axis="x", labelsize=7)
    return figure


if __name__ == "__main__":
    main()
