"""What commands print: a JSON document or tables on stdout, messages on stderr, numbers with few
digits and their unit."""

from __future__ import annotations

import json
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import typer

from dmodel.errors import InputError
from dmodel.report.text import digits, gib, percent, seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

__all__ = [
    "Document",
    "console",
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


def console() -> Console:
    """Where tables go: stdout, as wide as the terminal, or `WIDTH` when it is none."""
    from rich.console import Console

    return Console(width=_width(), highlight=False, soft_wrap=False)


def _width() -> int:
    """Columns of the terminal, or of what is none."""
    return shutil.get_terminal_size((WIDTH, 40)).columns if sys.stdout.isatty() else WIDTH


def show_table(
    title: str, header: Sequence[str], rows: Iterable[Sequence[object]], right: str = ""
) -> None:
    """Print a table; columns named in `right` are aligned to the right, all but the first by
    default."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(header):
        table.add_column(Text(name), justify=_side(i, name, right), no_wrap=i == 0)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    if title:
        # rich would fold a title to the width of its table
        console().print(Text(title, style="bold"))
    console().print(table)


def _side(place: int, name: str, right: str) -> Literal["left", "right"]:
    """Side to which a column is aligned."""
    is_right = name in right.split("|") if right else place > 0
    return "right" if is_right else "left"


def show_lines(*lines: str) -> None:
    """Print lines of text as they are; those that are wider than the terminal go on below."""
    width = _width()
    for line in (part for text in lines for part in text.split("\n")):
        sys.stdout.write("\n".join(_folded(line, width)) + "\n")


def _folded(line: str, width: int) -> list[str]:
    """A line in parts that fit."""
    if len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, break_on_hyphens=False)


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
