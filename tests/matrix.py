"""The core tests under every Python that is supported, with the oldest and the newest packages that
pyproject.toml allows.

Each has an environment of its own in `.cache/matrix`. Interpreters that this machine has not got
are named, not fetched.

    python -m tests.matrix [--python 3.12 …] [--packages oldest|newest …]

Exit code 1 where something fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".cache" / "matrix"

CORE = ("types", "smooth", "step", "resolve", "recorded", "start")
"""Tests that are run: of the model, its gradients, questions in words, and the start of the shell.
"""

PACKAGES = ("oldest", "newest")
SHOWN = ("jax", "jaxlib", "numpy", "flax", "optax", "scipy", "typer")
"""Packages whose versions the table has."""


class Outcome(NamedTuple):
    """What became of an environment. versions: of `SHOWN`. said: the last line of the tests, or why
    there are none."""

    python: str
    packages: str
    good: bool
    versions: tuple[str, ...]
    said: str


def project() -> dict:
    """What pyproject.toml says of the project."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def supported() -> list[str]:
    """Versions of Python by the classifiers, such as "3.12"."""
    said = " ".join(project()["classifiers"])
    return re.findall(r"Python :: (3\.\d+)", said)


def direct() -> list[str]:
    """What the model and the shell need, each with its lower bound."""
    found = project()
    return [*found["dependencies"], *found["optional-dependencies"]["cli"]]


def interpreter(version: str) -> str | None:
    """Path of a Python of a version; None where there is none that runs."""
    name = shutil.which(f"python{version}")
    if name is None:
        return None
    # a manager of versions asks by this name for one that is not the default
    own = {**os.environ, "PYENV_VERSION": version}
    code = "import ensurepip, sys, venv; print(sys.executable)"
    done = subprocess.run([name, "-c", code], env=own, capture_output=True, text=True)
    return done.stdout.strip() or None


def installs(python: str, packages: str) -> list[str]:
    """The command that installs the package and its tests' needs into an environment."""
    wanted = ["-e", f"{ROOT}[cli]", "pytest>=8.3"]
    uv = shutil.which("uv")
    if uv is not None:
        way = "lowest-direct" if packages == "oldest" else "highest"
        command = [uv, "pip", "install", "--quiet", "--python", python, "--resolution", way]
        return [*command, "--no-build-package", "numpy", *wanted]
    exact = [line.replace(">=", "==") for line in direct()] if packages == "oldest" else []
    command = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--prefer-binary"]
    return [*command, "--only-binary", "numpy,scipy,pyarrow", *wanted, *exact]


def run(command: list[str], **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a program of an environment from the checkout's root."""
    own = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")} | settings
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True)


def versions(python: str) -> tuple[str, ...]:
    """Versions of `SHOWN` in an environment."""
    code = "import sys; from importlib.metadata import version\nprint(*map(version, sys.argv[1:]))"
    return tuple(run([python, "-c", code, *SHOWN]).stdout.split())


def tried(version: str, packages: str) -> Outcome:
    """Build an environment and run the tests in it."""
    base = interpreter(version)
    if base is None:
        return Outcome(version, packages, True, (), "not found on this machine: not tried")
    folder = PLACE / f"{version}-{packages}"
    python = str(folder / "bin" / "python")
    for command in ([base, "-m", "venv", "--clear", str(folder)], installs(python, packages)):
        done = run(command)
        if done.returncode:
            return Outcome(version, packages, False, (), last_line(done.stderr))
    tests = [f"tests/test_{name}.py" for name in CORE]
    # warnings of other versions' packages are theirs
    command = [python, "-m", "pytest", *tests, "-m", "not slow", "-W", "default", "--tb=short"]
    done = run(command)
    log = PLACE / f"{version}-{packages}.log"
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    said = last_line(done.stdout) + (f" ({log})" if done.returncode else "")
    return Outcome(version, packages, done.returncode == 0, versions(python), said)


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "said nothing")


def rows(outcomes: list[Outcome]) -> Iterator[tuple[str, ...]]:
    """The table: its heading, and a row for each environment."""
    yield ("Python", "packages", *SHOWN, "", "tests")
    for one in outcomes:
        known = one.versions or ("",) * len(SHOWN)
        yield (one.python, one.packages, *known, "ok" if one.good else "FAILED", one.said)


def main() -> int:
    """Try what the options name, and print the table."""
    known = argparse.ArgumentParser(description="Core tests under supported versions.")
    known.add_argument("--python", nargs="+", choices=supported(), default=supported())
    known.add_argument("--packages", nargs="+", choices=PACKAGES, default=PACKAGES)
    asked = known.parse_args()
    outcomes = []
    for version in asked.python:
        for packages in asked.packages:
            outcomes.append(tried(version, packages))
            print(f"{version} {packages}: {outcomes[-1].said}", file=sys.stderr, flush=True)
    table = list(rows(outcomes))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    return 0 if all(one.good for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
