"""What the studies share: arguments, rows, and tables on disk."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibration.traces import Cases, concatenate, fingerprint, published, read, to_cases
from dmodel.types import InputError, enable_float64


def arguments(about: str) -> argparse.ArgumentParser:
    """The options that every study takes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--traces",
        nargs="*",
        default=[],
        metavar="FILE",
        help="trace files to use beside the published table",
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many random draws")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a small run that shows that the study works; its numbers mean little",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="folder of the table and the figure"
    )
    return parser


def rows(files: Sequence[str]) -> Cases:
    """The published table and any further files as cases.

    Raises:
      InputError: a file cannot be used, or holds rows of the published table: judged beside their
        own copies, they would be known.
    """
    enable_float64()
    if not files:
        return to_cases(published())
    further = read(list(files))
    known = {fingerprint(row) for row in published().rows}
    if again := [row for row in further.rows if fingerprint(row) in known]:
        said = (
            f"{again[0].file}:{again[0].line}: this row is in the published table, which is "
            f"always read ({len(again)} such rows)"
        )
        raise InputError(f"{said}; leave them out of --traces")
    return to_cases(concatenate([published(), further]))


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def summary(errors: np.ndarray) -> dict[str, float]:
    """Median, mean and 90th percentile of |predicted / measured − 1| [%]."""
    return {
        "median": 100 * float(np.median(errors)),
        "mean": 100 * float(errors.mean()),
        "p90": 100 * float(np.quantile(errors, 0.9)),
    }


def write(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    """Lines as CSV, in full precision."""
    keys = list(dict.fromkeys(key for line in lines for key in line))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=keys, restval="")
        writer.writeheader()
        writer.writerows(lines)
    return path


def deliver(name: str, lines: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Write the table as CSV and print it, or print it as JSON."""
    options.out.mkdir(parents=True, exist_ok=True)
    path = write(options.out / f"{name}.csv", lines)
    if options.json:
        print(json.dumps({"study": name, "table": str(path), "rows": lines}, allow_nan=False))
        return
    keys = list(dict.fromkeys(key for line in lines for key in line))
    width = {key: max(len(key), *(len(_cell(line.get(key, ""))) for line in lines)) for key in keys}
    for cells in ({key: key for key in keys}, *lines):
        print("  ".join(_cell(cells.get(key, "")).ljust(width[key]) for key in keys))
    print(f"table: {path}")


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else "" if value is None else str(value)


def run(main: Any) -> None:
    """Run a study; a user's mistake is a message, not a traceback."""
    try:
        main()
    except InputError as e:
        say(f"error: {e}")
        sys.exit(2)
