"""How soon the shell answers, beside the start of JAX: what needs no arithmetic, and the searches.

All commands take turns with JAX's start in one run; the first round, which reads files from the
disk, and of the searches fills an empty cache, does not count.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
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


SIZES = "--devices 64:1024 --global-batch free --loss 2.2 --budget-days 30 --objective cost"
JOB = "--devices 512 --model llama-3-70b --seq-len 8192 --global-batch 1024"
SEARCHES = {
    f"design --system H100-DGX {SIZES}": 8.0,
    f"sensitivity --system H100-DGX {JOB} --reoptimize": 5.0,
    "design --system A100-DGX --devices 512 --model gpt-3-175b --seq-len 2048 "
    "--global-batch 1536": 3.5,
}
"""Commands, and the most that each may take of JAX's start once it has run on a machine [1]."""


def seconds(code: str, words: str = "", expected: int = 0, **environment: str) -> float:
    """Wall time of a new process [s].

    Raises:
      RuntimeError: it ended otherwise than expected.
    """
    begun = time.perf_counter()
    command = [sys.executable, "-c", code, *words.split()]
    env = os.environ | environment
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
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


def searches(rounds: int) -> Iterator[Result]:
    """What the searches take of JAX's start: the first time with an empty cache, and again."""
    found: dict[str, list[float]] = {name: [] for name in ("jax", *SEARCHES)}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds + 1):
            found["jax"].append(seconds(JAX))
            for words in SEARCHES:
                found[words].append(seconds(SHELL, words, DMODEL_CACHE=folder))
    first, *others = found["jax"]
    start = statistics.median(others)
    for words, target in SEARCHES.items():
        cold, *warm = found[words]
        middle = statistics.median(warm)
        note = f"{middle:.2f} s, middle of {rounds}; nothing kept: {cold / first:.1f} ×"
        yield Result(
            f"dmodel {words}, again, over the start", middle / start, "×", target, note=note
        )
