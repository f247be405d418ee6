"""What commands print: a JSON document or tables on stdout, messages on stderr, numbers with few
digits and their unit."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from dmodel.cli.table import folded, laid_out
from dmodel.errors import InputError
from dmodel.report.text import digits, gib, percent, seconds

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = [
    "Document",
    "deliver",
    "digits",
    "gib",
    "percent",
    "plain",
    "progress",
    "say",
    "seconds",
    "show_lines",
    "show_table",
    "stop",
]

Document = dict[str, Any]
"""What a command has to say, as plain data; `--json` prints it, people see it as tables."""

WIDTH = 140
"""Columns of a table that goes to a file or a pipe."""


def deliver(document: Document, as_json: bool, show: Callable[[Document], None]) -> None:
    """Print a document: as JSON, or as `show` lays it out for people."""
    document = plain(document)
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    else:
        show(document)


def plain(value: Any, where: str = "") -> Any:
    """The same value out of JSON's types: arrays as lists, numpy numbers as numbers.

    Raises:
      InputError: a number is not finite; `where` says which.
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v, f"{where}.{k}".lstrip(".")) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), where)
    if isinstance(value, float):
        _check_finite(value, where)
    return value


def _check_finite(value: float, where: str) -> None:
    """Refuse what JSON has no number for."""
    if not math.isfinite(value):
        raise InputError(
            f"{where or 'the answer'} is not a finite number ({value}): some input lies outside "
            "the range of the model"
        )


def check_apart(out: Path | None, *files: Path | None) -> None:
    """Refuse to write over what a command reads.

    Raises:
      InputError: `--out` is one of the files.
    """
    if any(_is_one_file(out, file) for file in files):
        raise InputError(
            f"--out {out}: is one of the files to read, which would be lost; name another one"
        )


def check_figure(figure: Path | None, file: Path | None = None) -> None:
    """Refuse a figure that cannot be one, before anything is computed.

    Args:
      file: what the command reads.
    Raises:
      InputError: no PNG, in no folder, or the file to read.
    """
    if figure is None:
        return
    if _is_one_file(figure, file):
        raise InputError(
            f"--figure {figure}: is the file to read, which would be lost; name another one"
        )
    if figure.suffix.lower() != ".png":
        raise InputError(f"--figure {figure}: expected the name of a PNG file")
    if not figure.parent.is_dir():
        raise InputError(f"--figure {figure}: no folder {figure.parent}; name one that exists")


def _is_one_file(one: Path | None, other: Path | None) -> bool:
    """Whether two paths are there, and lead to one file."""
    if one is None or other is None or not one.exists() or not other.exists():
        return False
    return one.samefile(other)


def stop(code: int) -> NoReturn:
    """End the command with an exit code: 0 done, 1 "no", 2 bad input."""
    raise typer.Exit(code)


def say(text: str) -> None:
    """A message for people on stderr."""
    sys.stderr.write(text + "\n")


def _width() -> int:
    """Columns of the terminal, or of what is none."""
    return shutil.get_terminal_size((WIDTH, 40)).columns if sys.stdout.isatty() else WIDTH


def show_table(
    title: str, header: Sequence[str], rows: Iterable[Sequence[object]], right: str = ""
) -> None:
    """Print a table; columns named in `right` are aligned to the right, all but the first by
    default."""
    sides = [name in right.split("|") if right else i > 0 for i, name in enumerate(header)]
    cells = [[str(cell) for cell in row] for row in rows]
    head, body = laid_out(header, cells, sides, _width())
    title_lines = folded(title, _width()) if title else []
    for line in (*map(_bold, title_lines), "", *map(_bold, head), *body, ""):
        sys.stdout.write(line + "\n")


def _bold(line: str) -> str:
    """A line as a heading, where a terminal shows it."""
    shown = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return f"\x1b[1m{line}\x1b[0m" if shown else line


def show_lines(*lines: str) -> None:
    """Print lines of text as they are; those that are wider than the terminal go on below."""
    for text in lines:
        for line in folded(text, _width()):
            sys.stdout.write(line + "\n")


def show_file(text: str) -> None:
    """Print the content of a file, which is never folded."""
    sys.stdout.write(text)


def progress() -> Progress:
    """A progress bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
