"""This tree against an older commit by turns: rates, compile times, program sizes.

    make bench OLD=COMMIT
    python -m experiments.bench_against COMMIT [--rounds N]

The commit is laid out beside, in a folder of its own that is removed afterwards, and runs in the
same environment. A ratio is the middle one of the rounds'.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from experiments.bench_result import Result, show

NEEDS = "an older commit: COMMIT"

ROOT = Path(__file__).parents[1]
MODELS = ("llama-3-70b", "deepseek-v3")
TARGETS = {"plans": 1.3, "gradients": 1.5}
"""Rates over the old ones that are wanted [1]."""


class Tree:
    """A process that answers about one tree (`experiments.bench_rates`)."""

    def __init__(self, folder: Path):
        script = ROOT / "experiments" / "bench_rates.py"
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            env=os.environ | {"PYTHONPATH": str(folder)},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        said = self._answer()["tree"]
        if not Path(said).is_relative_to(folder):
            raise RuntimeError(f"expected the package of {folder}, got {said}")

    def ask(self, question: str) -> dict[str, Any]:
        """The answer to a question."""
        assert self.process.stdin is not None
        print(question, file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"bench: a tree ended with {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """No more questions."""
        self.process.communicate()


def laid_out(commit: str, folder: Path) -> None:
    """The files of a commit, in a folder.

    Raises:
      subprocess.CalledProcessError: there is no such commit.
    """
    archive = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as held:
        held.extractall(folder, filter="data")


def results(old: Tree, new: Tree, rounds: int) -> Iterator[Result]:
    """Numbers of the new tree, and ratios, in the order in which they are ready."""
    for name in MODELS:
        before, after = (tree.ask(f"size {name}")["equations"] for tree in (old, new))
        note = f"old: {before:,}"
        yield Result(f"equations of step and memory, {name}", after, "", 1200.0, note=note)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        before, after = old.ask("rates"), new.ask("rates")
        for title in TARGETS:
            found.setdefault(title, []).append(after[title] / before[title])
            found.setdefault(f"{title} now", []).append(after[title])
    for title, target in TARGETS.items():
        now = f"now {max(found[f'{title} now']):,.0f} a second on one thread"
        middle = statistics.median(found[title])
        yield Result(f"{title} a second over the old", middle, "×", target, True, now)
    for name in MODELS:
        before, after = old.ask(f"compile {name}"), new.ask(f"compile {name}")
        for title, bound in (("value", 2.0), ("gradient", 5.0)):
            was, now = (x[f"compile {title}"] for x in (before, after))
            cpu = after[f"compile {title}, CPU"]
            note = f"old: {was:.2f} s; {cpu:.2f} s of CPU; tracing {after[f'trace {title}']:.2f} s"
            yield Result(f"plain jit of {title}, {name}", now, "s", bound, note=note)


def main() -> None:
    """Entry point of `python -m experiments.bench_against`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="older commit, by any name that git knows")
    parser.add_argument("--rounds", type=int, default=5, help="turns of both trees")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        laid_out(options.commit, Path(folder).resolve())
        old, new = Tree(Path(folder).resolve()), Tree(ROOT)
        for result in results(old, new, options.rounds):
            print(show(result), flush=True)
        old.close()
        new.close()


if __name__ == "__main__":
    main()
