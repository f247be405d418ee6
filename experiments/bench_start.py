"""How soon the shell answers what needs no arithmetic, beside the start of JAX.

All commands take turns with JAX's start in one run; the first round, which reads files from the
disk, does not count.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from experiments.bench_result import Result

ROOT = Path(__file__).parents[1]
JAX = "import jax; jax.jit(lambda x: x + 1)(1.0)"
SHELL = "from dmodel.cli import main; main()"

SHARE = 0.3
"""Most that an answer may take of JAX's start [1]."""

JOB = "--system H100-DGX --devices 8 --model gpt-2 --global-batch 8"

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
    f"predict {JOB} --system H100-DGY": 2,
    f"predict {JOB} --model gpt-22": 2,
    f"predict {JOB} --stack nemoo": 2,
}
"""Commands, and the exit code of each."""


def seconds(code: str, words: str = "", expected: int = 0) -> float:
    """Wall time of a new process [s].

    Raises:
      RuntimeError: it ended otherwise than expected.
    """
    begun = time.perf_counter()
    command = [sys.executable, "-c", code, *words.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    took = time.perf_counter() - begun
    if done.returncode != expected:
        raise RuntimeError(f"bench: dmodel {words} ended with {done.returncode}:\n{done.stderr}")
    return took


def starts(rounds: int) -> Iterator[Result]:
    """JAX's start, and what the answers take of it."""
    found: dict[str, list[float]] = {name: [] for name in ("jax", *ANSWERS)}
    for turn in range(rounds + 1):
        took = {"jax": seconds(JAX)}
        took |= {words: seconds(SHELL, words, code) for words, code in ANSWERS.items()}
        for name, value in took.items() if turn else ():
            found[name].append(value)
    middle = {name: statistics.median(values) for name, values in found.items()}
    yield Result("start of JAX: import and one jit", middle["jax"], "s", note="new process")
    for words in ANSWERS:
        note = f"{middle[words]:.2f} s, middle of {rounds}"
        name = f"dmodel {words}".strip()
        yield Result(
            f"{name} over the start of JAX", middle[words] / middle["jax"], "×", SHARE, note=note
        )
