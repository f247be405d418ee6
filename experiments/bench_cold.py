"""What runs in a process of its own: compilation, the first search, rows of the table, commands of
the shell."""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibration.traces import published, to_cases
from dmodel.design import Choices, count, exact
from dmodel.sweep import (
    CHUNK,
    GRADIENT_CHUNK,
    MULTI_OUTPUT_FUSION,
    Block,
    gradients,
    lower,
    sweep,
    totals,
)
from experiments.bench_result import Result
from experiments.bench_start import JAX, SHELL, seconds
from experiments.bench_warm import CONTINUOUS, problem, random_plans, rates
from experiments.bench_warm import seconds as step_seconds
from experiments.counted import peak_memory
from experiments.search_cases import Case, stated

ROOT = Path(__file__).parents[1]
TRACES = ROOT / "calibration" / "traces" / "data" / "published.csv"


def compile_times() -> dict[str, float]:
    """Seconds of tracing and of compiling evaluation and gradient in this process, which has to be
    a new one."""
    plans, fixed = random_plans(8), problem()
    times = {}
    blocks = {
        "evaluation": Block(totals(), None, CHUNK),
        "gradient": Block(step_seconds, CONTINUOUS, GRADIENT_CHUNK, fused=False),
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


def rates_here() -> dict[str, float]:
    """Best rates of this process."""
    plans, fixed, size = random_plans(1 << 16), problem(), 1 << 16
    variants = {
        "evaluation": lambda: sweep(totals(), plans, fixed),
        "gradient": lambda: gradients(step_seconds, plans, fixed, wrt=CONTINUOUS),
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


class Speed(NamedTuple):
    """Exact search of GPT-3 175B on 512 A100s: valid plans, seconds of the first search in a
    process (with what compiles) and of the next; the same for the larger space, plans evaluated
    there, and the most memory that the process ever held [byte]."""

    plans: int
    first_s: float
    next_s: float
    all_plans: int
    all_first_s: float
    all_next_s: float
    all_checked: int
    memory_bytes: float


GPT_3 = Case("gpt-3-175b", 2048, "A100-DGX", 512, 3072)
USUAL = Choices(schedules=("1f1b", "interleaved", "zero-bubble"))
"""Choices under which it has about as many valid plans as published searches count."""


def speed() -> Speed:
    """Time the exact search in this process, which has to be a new one for the first times to mean
    anything."""
    p, larger = stated(GPT_3), stated(GPT_3._replace(batch=1536, everything=True))
    p = p.replace(space=p.space.replace(choices=USUAL))
    times, checked = [], 0
    for each in (p, p, larger, larger):
        begun = time.perf_counter()
        checked = exact(each, 5).evaluated
        times.append(time.perf_counter() - begun)
    return Speed(
        count(p.space), *times[:2], count(larger.space), *times[2:], checked, peak_memory()
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


PLAN = (
    "--system H100-DGX --devices 512 --model llama-3-70b --seq-len 8192 --global-batch 1024 "
    "--micro-batch 1 --tp 8 --pp 4"
)


SIZES = "--devices 64:1024 --global-batch free --loss 2.2 --budget-days 30 --objective cost"
JOB = "--devices 512 --model llama-3-70b --seq-len 8192 --global-batch 1024"
DGX = ("--system", "H100-DGX")
FIXED = "--system A100-DGX --devices 512 --model gpt-3-175b --seq-len 2048 --global-batch 1536"

FOLDER = "FOLDER"
"""What stands for a folder of its own in the arguments of a process."""


class Whole(NamedTuple):
    """A whole process: its arguments, and how many times the least process it is to take, first and
    again; `slow` where it takes that long that a quick bench leaves it out."""

    name: str
    arguments: tuple[str, ...]
    first: float | None
    again: float
    slow: bool = False


def example() -> str:
    """The example of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.partition("```python\n")[2].partition("```")[0]


def wholes() -> tuple[Whole, ...]:
    """What people start, each time anew."""
    return (
        Whole("dmodel predict of one plan", (*SHELL, "predict", *PLAN.split()), 3.5, 1.6),
        Whole("example of the README", ("-c", example()), 5.5, 2.5),
        Whole("dmodel predict of the table", (*SHELL, "predict", str(TRACES)), None, 3.0),
        Whole("dmodel evaluate", (*SHELL, "evaluate"), None, 3.0),
        Whole("dmodel design", (*SHELL, "design", *FIXED.split()), None, 3.5),
        Whole("dmodel design, sizes free", (*SHELL, "design", *DGX, *SIZES.split()), None, 8.0),
        Whole(
            "dmodel sensitivity --reoptimize",
            (*SHELL, "sensitivity", *DGX, *JOB.split(), "--reoptimize"),
            None,
            5.0,
        ),
        Whole("dmodel fit of twelve rows", _fit(f"{FOLDER}/{TWELVE}"), None, 3.0),
        Whole("dmodel fit of all shipped rows", _fit(str(TRACES)), None, 25.0, slow=True),
        Whole("dmodel demo", (*SHELL, "demo", "--out", f"{FOLDER}/out"), 30.0, 18.0, slow=True),
    )


TWELVE = "twelve.csv"
"""Rows of a stack that no profile knows, in the folder of a process."""


def _fit(table: str) -> tuple[str, ...]:
    return *SHELL, "fit", table, "--out", f"{FOLDER}/fitted.json"


def write_twelve(path: Path) -> None:
    """Twelve published rows of LLM Foundry on A100, spread over them, under a new name."""
    with TRACES.open(newline="", encoding="utf-8") as file:
        rows = [
            row | {"stack": "yours"}
            for row in csv.DictReader(file)
            if (row["stack"], row["accelerator"]) == ("llm-foundry", "A100-80GB")
        ]
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, list(rows[0]))
        out.writeheader()
        out.writerows(rows[:: len(rows) // 12][:12])


def process(arguments: tuple[str, ...], folder: str) -> float:
    """What a new process takes of processors [s]."""
    return seconds([a.replace(FOLDER, folder) for a in arguments], DMODEL_CACHE=folder)


def beside_nothing(rounds: int, slow: bool, only: Sequence[str] = ()) -> Iterator[Result]:
    """Whole processes over the least one with JAX, each in turn with it, by what they take of
    processors: the first with an empty folder of what is kept, and the middle one of the next.

    Args:
      slow: whether to run those that take long as well. only: what names contain, of those alone;
        none for all.
    """
    for whole in wholes():
        if (whole.slow and not slow) or not _is_wanted(whole.name, only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            write_twelve(Path(folder) / TWELVE)
            pairs = [
                (process(JAX, folder), process(whole.arguments, folder)) for _ in range(1 + rounds)
            ]
        first, *others = (took / nothing for nothing, took in pairs)
        again = statistics.median(others)
        note = f"{pairs[0][1]:.1f} s, then {pairs[1][1]:.1f} s"
        yield Result(f"{whole.name}, first", first, "T", whole.first, note=note)
        yield Result(f"{whole.name}, again", again, "T", whole.again, note=note)


def _is_wanted(name: str, only: Sequence[str]) -> bool:
    return not only or any(text in name for text in only)


def commands(quick: bool) -> Iterator[Result]:
    """The program from the shell."""
    yield shell("dmodel predict of one plan", 4.0, "predict", *PLAN.split())
    yield shell("dmodel theory --sweep of 31 widths", 10.0, "theory", "--sweep", "H100 SXM")


PARTS = {
    "compile": compile_times,
    "rates": rates_here,
    "rows": read_rows,
    "search": lambda: speed()._asdict(),
}
"""What a new process can be asked for (`child`)."""
