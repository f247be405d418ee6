"""How fast the model is, each number beside its target: rates, the gradient's price, compilation,
the fit and the shell.

Rates are warm and in float64, over random plans for 512 devices; each is the best of several rounds
in which all variants take turns, so that a busy machine slows them alike, and a ratio is the middle
one of the rounds' ratios. All that is cold runs in a process of its own.

    python -m experiments.bench [--json] [--quick] [--out DIR]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from calibration.traces import published, to_cases
from dmodel import catalog, coefficients
from dmodel.records import Plan
from dmodel.report import style
from dmodel.step import step_time
from dmodel.sweep import (
    CHUNK,
    GRADIENT_CHUNK,
    MULTI_OUTPUT_FUSION,
    Block,
    gradients,
    lower,
    names,
    sweep,
    totals,
)
from dmodel.theory.gpus import gpu
from dmodel.theory.study import sweep_widths
from dmodel.types import enable_float64
from experiments.search_cases import speed

ROOT = Path(__file__).parents[1]
TRACES = ROOT / "calibration" / "traces" / "data" / "published.csv"
CONTINUOUS = (
    "dp",
    "tp",
    "cp",
    "pp",
    "shard",
    "zero",
    "interleave",
    "micro_batch",
    "global_batch",
    "recompute_layers",
    "recompute_attention",
)
"""Leaves of the plan that a design by gradient moves."""


K = TypeVar("K", str, bool)


class Result(NamedTuple):
    """One line of the answer; `target` is a bound from below where `at_least`, else from above;
    None where there is none."""

    name: str
    value: float | None
    unit: str
    target: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def verdict(self) -> str:
        """Reached, missed, or nothing to say."""
        if self.target is None or self.value is None:
            return ""
        return (
            "reached"
            if (self.value >= self.target if self.at_least else self.value <= self.target)
            else "MISSED"
        )


def random_plans(n: int, seed: int = 0) -> Plan:
    """Plans of 512 devices with mixed degrees, ZeRO stages, batches and recomputation, leaves
    `[n]`."""
    draw = np.random.default_rng(seed)

    def pick(*values: float) -> np.ndarray:
        return draw.choice(np.array(values), n)

    tp, pp, cp = pick(1, 2, 4, 8), pick(1, 2, 4, 8), pick(1, 2)
    dp = 512.0 / (tp * pp * cp)
    plan = Plan.of(
        dp=dp,
        tp=tp,
        cp=cp,
        pp=pp,
        sp=pick(0, 1),
        zero=pick(0, 1, 2, 3),
        shard=np.minimum(dp, pick(8, 512)),
        reshard=pick(0, 1),
        interleave=pick(1, 2),
        micro_batch=pick(1, 2, 4),
        global_batch=pick(512, 1024, 2048),
        recompute_layers=draw.random(n),
        recompute_attention=draw.random(n),
        flash=pick(0, 1),
    )
    return jax.tree.map(lambda x: np.broadcast_to(np.asarray(x, float), (n,)), plan)


def problem() -> dict[str, Any]:
    """What all plans share: Llama-3-70B on H100, default coefficients."""
    return {
        "system": catalog.system("H100-DGX"),
        "model": catalog.transformer("llama-3-70b", seq_len=8192),
        "coefficients": coefficients.default(),
    }


def seconds(plan: Plan, fixed: dict[str, Any]) -> jax.Array:
    """Step time [s] as a case function: what the gradient differentiates."""
    return jax.numpy.asarray(
        step_time(fixed["system"], fixed["model"], plan, fixed["coefficients"]).total
    )


def all_leaves(plans: Plan, fixed: dict[str, Any]) -> tuple[str, ...]:
    """Every named number: plan, system, model and coefficients."""
    return (*names(plans), *names(fixed))


def rates(variants: dict[K, Callable[[], Any]], size: int, rounds: int) -> dict[K, list[float]]:
    """Evaluations per second of each variant in each round; the first, untimed, round compiles."""
    found: dict[K, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, run in variants.items():
            start = time.perf_counter()
            run()
            if turn:
                found[name].append(size / (time.perf_counter() - start))
    return found


def ratio(above: list[float], below: list[float]) -> float:
    """Middle one of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def throughput(size: int, rounds: int, cores: int) -> Iterator[Result]:
    """Rates of evaluation and gradient, and their ratios, in one run."""
    plans, fixed = random_plans(size), problem()
    every = all_leaves(plans, fixed)
    variants: dict[str, Callable[[], Any]] = {}
    for threads in sorted({1, cores}):
        variants |= {
            f"both {threads}": lambda t=threads: sweep(totals(), plans, fixed, threads=t),
            f"time {threads}": lambda t=threads: sweep(seconds, plans, fixed, threads=t),
            f"short {threads}": lambda t=threads: sweep(
                seconds, plans, fixed, chunk=CHUNK // 2, threads=t
            ),
            f"plan {threads}": lambda t=threads: gradients(
                seconds, plans, fixed, wrt=CONTINUOUS, threads=t
            ),
        }
    variants["all"] = lambda: gradients(seconds, plans, fixed, wrt=every, threads=cores)
    found = rates(variants, size, rounds)
    best = {name: max(values) for name, values in found.items()}
    where = f"batch {size:,}, {cores} threads"
    yield Result("step time and memory", best[f"both {cores}"], "plans/s", 2e6, True, where)
    yield Result(
        "value and gradient, continuous leaves of the plan",
        best[f"plan {cores}"],
        "plans/s",
        5e5,
        True,
        f"{len(CONTINUOUS)} leaves",
    )
    yield Result(
        "value and gradient, all named leaves", best["all"], "plans/s", note=f"{len(every)} leaves"
    )
    for threads in sorted({1, cores}):
        forward = [
            max(pair)
            for pair in zip(found[f"time {threads}"], found[f"short {threads}"], strict=True)
        ]
        price = ratio(forward, found[f"plan {threads}"])
        yield Result(
            "gradient over the fastest evaluation",
            price,
            "×",
            4.0,
            note=f"step time, threads: {threads}, A/B in one run",
        )
    if cores > 1:
        yield Result(
            "all threads over one, evaluation",
            ratio(found[f"both {cores}"], found["both 1"]),
            "×",
            note="A/B in one run",
        )
        yield Result(
            "all threads over one, gradient",
            ratio(found[f"plan {cores}"], found["plan 1"]),
            "×",
            note="A/B in one run",
        )


def fusion(size: int, rounds: int) -> Iterator[Result]:
    """What leaving XLA's fusion off gains for the gradient."""
    plans, fixed = random_plans(size), problem()
    variants = {
        fused: lambda f=fused: gradients(seconds, plans, fixed, wrt=CONTINUOUS, fused=f)
        for fused in (False, True)
    }
    found = rates(variants, size, rounds)
    yield Result(
        "gradient without fusion over with it",
        ratio(found[False], found[True]),
        "×",
        note="A/B in one run",
    )


def compile_times() -> dict[str, float]:
    """Seconds of tracing and of compiling evaluation and gradient in this process, which has to be
    a new one."""
    plans, fixed = random_plans(8), problem()
    times = {}
    blocks = {
        "evaluation": Block(totals(), None, CHUNK),
        "gradient": Block(seconds, CONTINUOUS, GRADIENT_CHUNK, fused=False),
    }
    for name, block in blocks.items():
        start = time.perf_counter()
        lowered = lower(block, plans, fixed)
        middle = time.perf_counter()
        lowered.compile()
        times |= {f"trace {name}": middle - start, f"compile {name}": time.perf_counter() - middle}
    return times


def child(part: str, **environment: str) -> dict[str, Any]:
    """Run a part of the bench in a new process and return what it prints as JSON."""
    command = [sys.executable, "-m", "experiments.bench", "--part", part]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"bench: part {part!r} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compilation() -> Iterator[Result]:
    """Compile times of a new process, without and with the persistent cache."""
    with tempfile.TemporaryDirectory() as folder:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        cold, warm = child("compile", **cache), child("compile", **cache)
    for name, target in (("evaluation", 1.5), ("gradient", 4.0)):
        yield Result(
            f"compile {name}",
            cold[f"compile {name}"],
            "s",
            target,
            note=f"tracing takes {cold[f'trace {name}']:.2f} s besides",
        )
        yield Result(f"compile {name} from the cache", warm[f"compile {name}"], "s", 0.2)


def multi_output_fusion() -> Iterator[Result]:
    """Rates under the opt-in flag of XLA, in a process that has it set from the start, beside one
    that has not."""
    flag = f"--xla_backend_extra_options={MULTI_OUTPUT_FUSION}"
    plain, opted = (
        child("rates"),
        child("rates", XLA_FLAGS=f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()),
    )
    for name in plain:
        note = f"opt-in: XLA_FLAGS={flag}"
        yield Result(
            f"{name} with multi-output fusion over without",
            opted[name] / plain[name],
            "×",
            note=note,
        )


def _rates_here() -> dict[str, float]:
    plans, fixed, size = random_plans(1 << 16), problem(), 1 << 16
    variants = {
        "evaluation": lambda: sweep(totals(), plans, fixed),
        "gradient": lambda: gradients(seconds, plans, fixed, wrt=CONTINUOUS),
    }
    return {name: max(values) for name, values in rates(variants, size, 5).items()}


def shell(name: str, target: float, *arguments: str) -> Result:
    """Wall time of one command of the program, in a new process with an empty cache of compiled
    code."""
    code = "from dmodel.cli import main; main()"
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"DMODEL_CACHE": folder}
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        wall = time.perf_counter() - start
    if done.returncode:
        problems = done.stderr.strip().splitlines()
        return Result(
            name,
            None,
            "s",
            target,
            note=f"not available: {problems[-1] if problems else f'exit code {done.returncode}'}",
        )
    return Result(name, wall, "s", target, note="new process, empty cache")


def small_sweep(rounds: int) -> Iterator[Result]:
    """What a sweep costs that is too small to compute anything: handing over plans and what they
    share, and taking results back."""
    plans, fixed = random_plans(64), problem()
    found = rates({"small": lambda: sweep(totals(), plans, fixed)}, 1, rounds)["small"]
    yield Result("sweep of 64 plans", 1e3 / max(found), "ms", note="one call, compiled before")


def read_rows() -> dict[str, float]:
    """Seconds in which this process, which has to be a new one, makes cases of the published
    table."""
    begun = time.perf_counter()
    return {"rows": len(to_cases(published())), "first_s": time.perf_counter() - begun}


def table_of_rows() -> Iterator[Result]:
    """What every command on the published table waits for first."""
    with tempfile.TemporaryDirectory() as folder:
        found = child("rows", JAX_COMPILATION_CACHE_DIR=folder)
    yield Result(
        "published table as cases",
        found["first_s"],
        "s",
        note=f"{found['rows']:,} rows, new process, empty cache; imports apart",
    )


def theory_sweep(rounds: int, cores: int) -> Iterator[Result]:
    """The study's sweep: for each of 31 widths the smallest cluster of H100s, and the exact best
    layout on each size tried."""
    system = gpu("H100 SXM")
    found = rates({"sweep": lambda: sweep_widths(system)}, 1, rounds)["sweep"]
    yield Result(
        "theory: sweep of 31 widths, exact search",
        1.0 / max(found),
        "s",
        0.6,
        note=f"{cores} threads; the study's code took 12.6 s",
    )


def design_search() -> Iterator[Result]:
    """The exact search of GPT-3 175B on 512 A100s in a process of its own, with an empty cache of
    compiled code and with a full one."""
    with tempfile.TemporaryDirectory() as folder:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        cold, warm = (child("search", **cache) for _ in range(2))
    plans = f"{cold['plans']:,} plans, all checked"
    yield Result("design: exact search, cold", cold["first_s"], "s", 8.0, note=f"{plans}; compiles")
    yield Result("design: exact search, new process, full cache", warm["first_s"], "s", note=plans)
    yield Result(
        "design: exact search, warm", min(cold["next_s"], warm["next_s"]), "s", 2.0, note=plans
    )
    note = f"{cold['all_plans']:,} plans, {cold['all_checked']:,} checked"
    yield Result(
        "design: exact search of a space of 10⁸",
        cold["all_first_s"],
        "s",
        60.0,
        note=f"{note}; compiles",
    )
    yield Result(
        "design: memory of the searches",
        cold["memory_bytes"] / 2**30,
        "GiB",
        2.0,
        note="most of the process",
    )


def commands(quick: bool) -> Iterator[Result]:
    """The program from the shell."""
    plan = (
        "--system H100-DGX --devices 512 --model llama-3-70b --seq-len 8192 --global-batch 1024 "
        "--micro-batch 1 --tp 8 --pp 4"
    )
    yield shell("dmodel predict of one plan", 4.0, "predict", *plan.split())
    yield shell("dmodel theory --sweep of 31 widths", 10.0, "theory", "--sweep", "H100 SXM")
    if not quick:
        with tempfile.TemporaryDirectory() as folder:
            yield shell(
                "dmodel fit of all shipped traces",
                60.0,
                "fit",
                str(TRACES),
                "--out",
                str(Path(folder) / "fitted.json"),
            )


def results(quick: bool) -> Iterator[Result]:
    """All numbers, in the order in which they are ready."""
    cores = os.cpu_count() or 1
    yield from compilation()
    yield from throughput(1 << (16 if quick else 17), 3 if quick else 9, cores)
    if not quick:
        yield from (r for r in throughput(1_000_000, 3, cores) if r.target)
        yield from fusion(1 << 16, 5)
        yield from multi_output_fusion()
    yield from small_sweep(5 if quick else 15)
    yield from theory_sweep(3 if quick else 9, cores)
    if not quick:
        yield from design_search()
    yield from table_of_rows()
    yield from commands(quick)


def show(result: Result) -> str:
    """One line of text."""
    value = (
        "–"
        if result.value is None
        else f"{result.value:,.0f}"
        if result.value > 1e4
        else f"{result.value:.2f}"
    )
    bound = (
        "" if result.target is None else f"{'≥' if result.at_least else '≤'} {result.target:,.10g}"
    )
    return (
        f"{result.name:<52} {value:>11} {result.unit:<8} {bound:>12}  {result.verdict:<8} "
        f"{result.note}"
    ).rstrip()


def keep(found: list[Result], folder: Path) -> None:
    """Write the numbers as a table, and those that have a target as a figure."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "bench.csv").open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow([*Result._fields, "verdict"])
        out.writerows([*r, r.verdict] for r in found)
    style.save_png(_figure([r for r in found if r.target and r.value]), folder / "bench.png")


def _figure(found: list[Result]) -> Figure:
    """How many times better than its target each number is, on a logarithmic axis."""
    figure = style.new_figure(8.0, 0.32 * len(found) + 1.0)
    axes = figure.subplots()
    better = [r.value / r.target if r.at_least else r.target / r.value for r in found]  # type: ignore
    places = range(len(found))[::-1]
    axes.barh(
        places,
        [b - 1.0 for b in better],
        left=1.0,
        color=[style.BLUE if b >= 1.0 else style.VERMILLION for b in better],
        height=0.6,
    )
    axes.set_yticks(places, [r.name for r in found])
    axes.set(xscale="log", xlabel="times better than the target (1 = just reached)")
    axes.set_xlim(
        min(0.5, min(better, default=1.0) / 1.3), max(2.0, max(better, default=1.0) * 2.2)
    )
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.axvline(1.0, color=style.GREY, linewidth=0.8)
    for place, r, b in zip(places, found, better, strict=True):
        value = f"{r.value:,.0f}" if r.value > 1e4 else f"{r.value:.3g}"  # type: ignore[operator]
        axes.annotate(
            f"{value} {r.unit}",
            (max(b, 1.0), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    return figure


def main() -> None:
    """Entry point of `python -m experiments.bench`."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench",
        description="Speed of the model, each number beside its target.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    parser.add_argument(
        "--quick", action="store_true", help="smaller batches, fewer rounds, no fit: about a minute"
    )
    parser.add_argument(
        "--part", choices=["compile", "rates", "rows", "search"], help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="folder of the table and the figure"
    )
    options = parser.parse_args()
    enable_float64()
    if options.part:
        parts = {
            "compile": compile_times,
            "rates": _rates_here,
            "rows": read_rows,
            "search": lambda: speed()._asdict(),
        }
        print(json.dumps(parts[options.part]()))
        return
    found = []
    for result in results(options.quick):
        found.append(result)
        if not options.json:
            print(show(result), flush=True)
    keep(found, options.out)
    if options.json:
        print(
            json.dumps(
                [r._asdict() | {"verdict": r.verdict} for r in found], indent=2, ensure_ascii=False
            )
        )


if __name__ == "__main__":
    main()
