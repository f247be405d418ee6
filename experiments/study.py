"""What the studies share: arguments, rows, tables and figures on disk, tables of text."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.traces import Cases, concatenate, fingerprint, published, read, to_cases
from dmodel.errors import InputError
from dmodel.report import style
from dmodel.types import enable_float64

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = (style.BLUE, style.ORANGE, style.GREEN, style.VERMILLION, style.PURPLE, style.SKY)
"""Of lines, in order."""

Line = dict[str, Any]
"""One line of a table: cells by column."""


def plain_arguments(about: str) -> argparse.ArgumentParser:
    """The options that every study takes."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a small run that shows that the study works; its numbers mean little",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="folder of the tables and the figure"
    )
    return parser


def arguments(about: str) -> argparse.ArgumentParser:
    """The options of a study that fits measured rows."""
    parser = plain_arguments(about)
    parser.add_argument(
        "--traces",
        nargs="*",
        default=[],
        metavar="FILE",
        help="trace files to use beside the published table",
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many random draws")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse, and compute in 64 bits."""
    enable_float64()
    return parser.parse_args()


def options(about: str) -> argparse.Namespace:
    """What is asked of a study that has no options of its own; computes in 64 bits."""
    return parse(plain_arguments(about))


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


def containing(names: Iterable[str], texts: Sequence[str] | None, what: str) -> list[str]:
    """Names that contain one of the texts given to `--only`; all where none are given.

    Raises:
      InputError: a text is in no name.
    """
    known = list(names)
    for text in texts or ():
        if not any(text in name for name in known):
            raise InputError(f"--only: no {what} contains {text!r}; there are: {'; '.join(known)}")
    return [name for name in known if not texts or any(text in name for text in texts)]


def middle(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The middle of several summaries, key by key."""
    return {key: float(np.median([each[key] for each in found])) for key in found[0]}


def columns(lines: Sequence[Line]) -> list[str]:
    """Names of all columns, in the order in which they appear."""
    return list(dict.fromkeys(key for line in lines for key in line))


def write(path: Path, lines: Sequence[Line]) -> Path:
    """Lines as CSV, in full precision."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=columns(lines), restval="")
        writer.writeheader()
        writer.writerows(lines)
    return path


def keep(
    name: str, figure: Figure, tables: Mapping[str, Sequence[Line]], out: Path
) -> dict[str, str]:
    """Write the figure and the tables of a study, by the ends of their names; their paths."""
    out.mkdir(parents=True, exist_ok=True)
    written = {"figure": str(style.save_png(figure, out / f"{name}.png"))}
    for end, lines in tables.items():
        written[f"table{end}"] = str(write(out / f"{name}{end}.csv", lines))
    return written


def tell(document: Mapping[str, Any], as_json: bool, show: Callable[[], None]) -> None:
    """Print a document, or what people read."""
    if as_json:
        print(json.dumps(document, allow_nan=False))
    else:
        show()


def deliver(
    name: str,
    lines: Sequence[Line],
    figure: Figure,
    options: argparse.Namespace,
    *,
    shown: Sequence[Line] | None = None,
    digits: str = ".2f",
) -> None:
    """Write figure and table; print the lines, or what of them is `shown`, as a table or as
    JSON."""
    written = keep(name, figure, {"": lines}, options.out)
    told = list(lines if shown is None else shown)

    def show() -> None:
        print_lines(told, digits)
        print_paths(written)

    tell({"study": name, **written, "rows": told}, options.json, show)


def print_lines(lines: Sequence[Line], digits: str) -> None:
    """Lines in columns, numbers with so many digits."""
    keys = columns(lines)
    print_cells([keys, *([cell(line.get(key), digits) for key in keys] for line in lines)])


def cell(value: object, digits: str) -> str:
    """A value as text."""
    if value is None:
        return ""
    return format(value, digits) if isinstance(value, float) else str(value)


def print_cells(cells: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Rows of text in columns, some of them aligned to the right."""
    width = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        aligned = (
            text.rjust(w) if i in right else text.ljust(w)
            for i, (text, w) in enumerate(zip(row, width, strict=True))
        )
        print("  ".join(aligned).rstrip())


def print_paths(written: Mapping[str, str]) -> None:
    """Where everything lies."""
    print(*(f"{what}: {path}" for what, path in written.items()), sep="\n")


def run(main: Callable[[], None]) -> None:
    """Run a study; a user's mistake is a message, not a traceback."""
    try:
        main()
    except InputError as e:
        say(f"error: {e}")
        sys.exit(2)
