"""Large tables: time and memory of `fit` and `evaluate` by rows and by configurations.

Synthetic rows repeat configurations of the published table, some with larger batches, at their
measured times: with noise, rows that a host held up, and a drift from release to release. Each
command runs in a process of its own, which tells processor time and the largest memory that it
held.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibration.fleets.keys import KEYS
from calibration.traces import Row, published
from dmodel.report import style
from experiments import study

NOISE, HELD_UP, SLOWER, DRIFT = 0.02, 0.01, 1.5, 0.004
"""Scatter of ln t among repeats, share of rows that take `SLOWER` times as long, and what a release
adds to ln t."""

RELEASES, DAYS = 10, 300
"""Of the synthetic rows."""

CHUNK = 1 << 17
"""Rows that are written at once."""

GIB = 2**30


class Job(NamedTuple):
    """A command on a table of so many rows and configurations."""

    command: str
    rows: int
    configurations: int


JOBS = (
    Job("evaluate", 1_800, 1_800),
    Job("evaluate", 1_000_000, 1_800),
    Job("fit", 5_000, 5_000),
    Job("fit", 1_000_000, 5_000),
)
QUICK = (Job("evaluate", 100, 100), Job("evaluate", 10_000, 100), Job("fit", 10_000, 20))

STACKS = ("megatron-bridge", "nemo", "torchtitan", "llm-foundry")
"""Of the quick run."""


def configurations(count: int) -> list[Row]:
    """Different configurations: rows of the published table, then the same with larger batches,
    whose steps take longer in proportion."""
    found: dict[tuple[str, ...], Row] = {}
    for times in range(1, 100):
        for row in published().rows:
            batch, time = row.number("global_batch"), row.number("step_time_s")
            if batch and time:
                cells = row.cells | {
                    "global_batch": f"{times * batch:g}",
                    "step_time_s": repr(times * time),
                    "tokens_per_s_per_accel": "",
                }
                other = row._replace(cells=cells)
                found.setdefault(tuple(other.text(key) for key in KEYS), other)
            if len(found) == count:
                return list(found.values())
    raise ValueError(f"{count} configurations: the table has {len(found)}")


def write_rows(path: Path, rows: int, different: int, seed: int = 0) -> None:
    """A Parquet file of rows that repeat so many configurations, each once at least."""
    import pyarrow as pa
    from pyarrow import parquet

    known = configurations(different)
    columns = published().columns
    texts = {name: pa.array([row.cells.get(name, "") for row in known]) for name in columns}
    times = np.log([float(row.cells["step_time_s"]) for row in known])
    rng, writer = np.random.default_rng(seed), None
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        place = np.arange(start, start + count)
        which = np.where(place < different, place, rng.integers(different, size=count))
        day = rng.integers(DAYS, size=count)
        release = day * RELEASES // DAYS
        moved = NOISE * rng.standard_normal(count) + DRIFT * release
        moved += np.log(SLOWER) * (rng.random(count) < HELD_UP)
        moved *= rows > different  # one row of each has the published time
        dates = np.datetime64("2026-01-01") + day
        new = {
            "step_time_s": pa.array(np.exp(times[which] + moved)),
            "date": pa.array(dates.astype(str)),
            "release": pa.array(np.char.add("r", release.astype(str))),
        }
        table = pa.table({name: texts[name].take(pa.array(which)) for name in columns} | new)
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def measured(job: Job, folder: Path) -> study.Line:
    """A command in a process of its own."""
    table, out = folder / f"{job.rows}.{job.configurations}.parquet", folder / "profile.json"
    if not table.exists():
        write_rows(table, job.rows, job.configurations)
    words = [job.command, str(table), "--json", *(["--out", str(out)] * (job.command == "fit"))]
    code = "import sys; sys.argv[0] = 'dmodel'; from experiments.fleet import child; child()"
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


def child() -> None:
    """Run the command of this process, then tell its processor time and peak on standard error."""
    from dmodel.cli import main

    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {"cpu_s": used.ru_utime + used.ru_stime, "peak_gib": used.ru_maxrss * 1024 / GIB}
    sys.stderr.write("\n" + json.dumps(told) + "\n")
    sys.stderr.flush()
    os._exit(int(code or 0)) if code else None


def main() -> None:
    a = study.options(__doc__ or "")
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for job in QUICK if a.quick else JOBS:
            lines.append(measured(job, Path(folder)))
            study.say(json.dumps(lines[-1]))
    study.deliver("fleet", lines, _figure(lines), a)


def _figure(lines: list[study.Line]):
    """Processor time and peak memory of each command."""
    names = [f"{x['command']}\n{x['rows']:,} rows\n{x['configurations']:,} config." for x in lines]
    figure, axes = style.subplots(1, 2)
    for axis, key, label in zip(
        axes, ("cpu_s", "peak_gib"), ("processor time [s]", "peak memory [GiB]"), strict=True
    ):
        axis.bar(names, [x[key] for x in lines], color=style.BLUE)
        axis.set_ylabel(label)
        axis.tick_params(axis="x", labelsize=7)
    return figure


if __name__ == "__main__":
    main()
