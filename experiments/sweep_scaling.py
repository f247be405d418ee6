"""Do worker processes evaluate as fast as threads of one process?

Claim: two worker processes evaluate as many plans a second as two threads of one process, and
twice as many as one; eight workers whose blocks only wait are busy 90 % of the time.

A Monte Carlo sweep (Llama 3 8B on 64 H100, torchtitan, plans of its space × draws of the
coefficients) by each; parts are kept in a folder, programs are compiled before the clock starts.
Prints evaluations a second, the share of the time for which workers are busy, the sizes of the
parts, and what 10^12 evaluations would take at that rate of a core.
`python -m experiments.sweep_scaling [--evaluations N] [--workers N] [--quick] [--json]
[--out DIR]`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dmodel.api import Job, cluster, question
from dmodel.asked import ask
from dmodel.cli.compiled import keep_compiled_code
from dmodel.cli.spread import told_progress
from dmodel.montecarlo import Sweep, Swept, of_space, sweep_of, swept
from dmodel.montecarlo.cut import blocks
from dmodel.parts import Arrays, Block, Folder, opened, parts
from dmodel.report import style
from experiments.study import Line, deliver, parse, plain_arguments, run, say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JOB, SITE, STACK = ("llama-3-8b", 8192, 256), ("H100-DGX", 64), "torchtitan"

FITTING = 0.5
"""Share of the plans that fit, about, so that about as many evaluations are done as asked [1]."""

PAIRS = 3_000_000
"""Evaluations of a block, about ten seconds of a core [count]."""

PLANNED, CORES = 1e12, 1000
"""Evaluations of a sweep that is planned, and cores for it [count]."""

DOLLARS = {"on_demand": 0.34 / 8.0, "spot": 0.18 / 8.0}
"""Price of a virtual core and hour [$]: c5.2xlarge, which has eight, in the example of Amazon EC2
Auto Scaling's guide, "weights spot price per unit hour" (read on 29 November 2026)."""

WAITING, BLOCKS, WAIT_S = 8, 10, 2.0
"""Workers of the run whose blocks wait, blocks for each, and how long each waits [s]."""


def waiting_block(*, number: int, seconds: float) -> Arrays:
    """A block that waits."""
    time.sleep(seconds)
    return {"number": np.array(number)}


def busy(workers: int, each: int, seconds: float) -> Line:
    """For which share of the time workers are at a block, of so many each, that waits."""
    with opened(workers) as executor, tempfile.TemporaryDirectory() as place:
        begun = [Block(waiting_block, {"number": -i, "seconds": 1.0}) for i in range(4 * workers)]
        list(parts(begun, executor))  # all of them have started
        every = [
            Block(waiting_block, {"number": i, "seconds": seconds}) for i in range(workers * each)
        ]
        clock = time.perf_counter()
        list(parts(every, executor, Folder(Path(place), say)))
        took = time.perf_counter() - clock
    return {"by": f"{workers} waiting workers", "seconds": took, "busy": each * seconds / took}


def problem(evaluations: float) -> Sweep:
    """The sweep of about so many evaluations."""
    asked = ask(question(Job(*JOB), cluster(*SITE), stack=STACK))
    plans = of_space(asked)
    draws = max(round(evaluations / plans.count / FITTING), 1)
    return sweep_of(asked, plans, draws, pairs=PAIRS)


def timed(name: str, sweep: Sweep, workers: int, executor: Executor) -> tuple[Line, Swept]:
    """A line of a run by an executor, and its answer."""
    list(parts(islice(blocks(sweep._replace(seed=1)), 2 * workers), executor))  # programs are there
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(Path(place), say)
        clock, used = time.perf_counter(), time.process_time()
        told = told_progress(name, sweep.size, "evaluations")
        (found,) = swept([sweep], executor=executor, folder=folder, progress=told)
        took, used = time.perf_counter() - clock, time.process_time() - used
        sizes = [path.stat().st_size for path in Path(place).glob("*.parquet")]
    line = {
        "by": name,
        "evaluations": found.evaluations,
        "seconds": took,
        "per_second": found.evaluations / took,
        # of this process alone: what others computed is not in it
        "per_processor_second": found.evaluations / used if name.endswith("process") else None,
        "blocks": len(sizes),
        "kilobytes_of_a_part": float(np.mean(sizes)) / 1e3,
    }
    return line, found


def planned(known: Line) -> Line:
    """What `PLANNED` evaluations take at the rate of a line: hours, money and bytes of parts."""
    hours = PLANNED / known["per_processor_second"] / 3600.0
    parts_of = PLANNED / known["evaluations"] * known["blocks"]
    return {
        "by": f"{PLANNED:.0e} evaluations, at {known['per_processor_second']:,.0f}/s of a core",
        "core_hours": hours,
        f"minutes_of_{CORES}_cores": 60.0 * hours / CORES,
        **{f"dollars_{name}": price * hours for name, price in DOLLARS.items()},
        "parts": parts_of,
        "gigabytes_of_parts": parts_of * known["kilobytes_of_a_part"] / 1e6,
    }


def draw(lines: list[Line]) -> Figure:
    """Evaluations a second of threads and of processes."""
    figure = style.new_figure(5.0, 2.4)
    axes = figure.subplots()
    known = [line for line in lines if "per_second" in line]
    axes.barh([line["by"] for line in known], [line["per_second"] for line in known])
    axes.set(xlabel="evaluations a second", title="Monte Carlo sweep, parts kept")
    axes.invert_yaxis()
    return figure


def main() -> None:
    """Both runs, and the one that waits."""
    options = _options()
    keep_compiled_code()
    lines = [busy(WAITING, BLOCKS, 0.5 if options.quick else WAIT_S)]
    say(f"busy {lines[0]['busy']:.3f} of the time")
    sweep = problem(2e6 if options.quick else options.evaluations)
    n = options.workers
    with ThreadPoolExecutor(n) as executor:
        one, usual = timed(f"{n} threads of one process", sweep, n, executor)
    with opened(n) as executor:
        assert executor is not None
        other, found = timed(f"{n} processes", sweep, n, executor)
    with opened(1) as executor:
        assert executor is not None
        alone, _ = timed("1 worker", problem(sweep.size / n * FITTING), 1, executor)
    other["over_threads"] = other["per_second"] / one["per_second"]
    other["over_one_times_workers"] = other["per_second"] / (n * alone["per_second"])
    other["same_bits"] = repr(usual._replace(sweep=sweep)) == repr(found._replace(sweep=sweep))
    lines += [one, alone, other, planned(one)]
    deliver("sweep_scaling", lines, draw(lines), options, digits=".4g")


def _options() -> argparse.Namespace:
    parser = plain_arguments(__doc__ or "")
    parser.add_argument("--evaluations", type=float, default=1e8, help="about so many")
    parser.add_argument("--workers", type=int, default=2, help="threads, and processes")
    return parse(parser)


if __name__ == "__main__":
    run(main)
