"""How soon the shell answers what needs no arithmetic, beside the start of JAX.

All commands take turns with JAX's start in one run; the first round, which reads files from the
disk, does not count. Seconds are of processors, which other jobs of the machine change little.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.bench_result import Result

ROOT = Path(__file__).parents[1]
JAX = ("-c", "import jax; jax.jit(lambda x: x + 1)(1.0)")
"""The least that a process with JAX does: what whole processes are compared with."""

SHELL = ("-c", "from dmodel.cli import main; main()")

SHARE = 0.3
"""Most that an answer may take of JAX's start [1]."""

SMALL = "--system H100-DGX --devices 8 --model gpt-2 --global-batch 8"

ANSWERS = {
    "": 2,
    "--help": 0,
    "predict --help": 0,
    "--version": 0,
    "catalog": 0,
    "catalog chips": 0,
    "catalog models": 0,
    "catalog chips h100": 0,
    "catalog models gpt-2": 0,
    "conquer": 2,
    "predict --typo": 2,
    "catalog chips H101": 2,
    "predict --devices many": 2,
    f"predict {SMALL} --system H100-DGY": 2,
    f"predict {SMALL} --model gpt-22": 2,
    f"predict {SMALL} --stack nemoo": 2,
}
"""Commands, and the exit code of each."""


def processors() -> float:
    """What the processes that this one started, and that have ended, took of processors [s]."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds(command: Sequence[str], expected: int = 0, **environment: str) -> float:
    """What a new Python takes of processors [s]; its modules have bytecode, as installed ones do.

    Raises:
      RuntimeError: it ended otherwise than expected.
    """
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before = processors()
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
    )
    if done.returncode != expected:
        said = f"bench: {' '.join(command)} ended with {done.returncode}"
        raise RuntimeError(f"{said}:\n{done.stderr}")
    return processors() - before


def starts(rounds: int) -> Iterator[Result]:
    """JAX's start, and what the answers take of it."""
    found: dict[str, list[float]] = {name: [] for name in ("jax", *ANSWERS)}
    for turn in range(rounds + 1):
        took = {"jax": seconds(JAX)}
        took |= {words: seconds((*SHELL, *words.split()), code) for words, code in ANSWERS.items()}
        for name, value in took.items() if turn else ():
            found[name].append(value)
    middle = {name: statistics.median(values) for name, values in found.items()}
    yield Result("start of JAX: import and one jit", middle["jax"], "s", note="T, of processors")
    for words in ANSWERS:
        note = f"{middle[words]:.2f} s, middle of {rounds}"
        name = f"dmodel {words}".strip()
        yield Result(f"{name}, again", middle[words] / middle["jax"], "T", SHARE, note=note)
