"""What an importer gives back: rows, what could not be read and where, and what a person needs to
know about the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from calibration.micro.schema import COLLECTIVE
from calibration.traces.schema import BY_NAME, Column, base_precision, parse_number, spelled

PROFILE_COLUMNS = ("compute_s", "communication_s", "exposed_communication_s", "idle_s")
"""Additions to the format of traces where a profile tells them: seconds of one step and device."""

TRACES, COLLECTIVES = "traces", "collectives"
"""Kinds of tables that files turn into."""

_COLLECTIVE = {column.name: column for column in COLLECTIVE.columns}
_PROFILE = {name: Column(name, "real", "s", "", least=0.0) for name in PROFILE_COLUMNS}

MOST_TROUBLES = 1000
"""Places of one file that are named; a file with more is no log of this format, and the rest is
counted."""


LONGEST_TEXT = 1000
"""Characters of a text cell; the rest is cut off."""


class Trouble(NamedTuple):
    """What could not be read. place: "line 7" or "byte 1234"."""

    file: str
    place: str
    reason: str

    def __str__(self) -> str:
        place = self.place.removeprefix("line ")
        return (
            f"{self.file}:{place}: {self.reason}"
            if place.isdigit()
            else f"{self.file}: {self.place}: {self.reason}"
        )


class Result:
    """Rows of one file, filled while it is read.

    Attributes:
      file: its name. table: "traces" or "collectives". rows: (line it begins on, cells by column).
      troubles: what was left out. details: more than fits into cells, for the JSON document.
    """

    def __init__(self, file: str, table: str = TRACES):
        self.file = file
        self.table = table
        self.rows: list[tuple[int, dict[str, str]]] = []
        self.troubles: list[Trouble] = []
        self.unnamed = 0
        self.details: dict[str, Any] = {}

    def trouble(self, place: str, reason: str) -> None:
        """Note something that could not be read."""
        if len(self.troubles) < MOST_TROUBLES:
            self.troubles.append(Trouble(self.file, place, reason))
        else:
            self.unnamed += 1

    def bad_line(self, line: int, reason: str) -> None:
        """Note a line that could not be read."""
        self.trouble(f"line {line}", reason)

    def add(self, line: int, cells: Mapping[str, Any]) -> None:
        """Take a row; cells that their column does not allow are left blank, and named."""
        row = {}
        for name, value in cells.items():
            text, why = cell(name, value, self.table)
            if why:
                self.bad_line(line, f"{why}; left blank")
            elif text:
                row[name] = text
        self.rows.append((line, row))


def column(name: str, table: str) -> Column | None:
    """The column of a table, None when it has no such one."""
    if table == COLLECTIVES:
        return _COLLECTIVE.get(name)
    return BY_NAME.get(name) or _PROFILE.get(name)


def cell(name: str, value: Any, table: str = TRACES) -> tuple[str, str]:
    """Text of a value in a column, and what is wrong with it ("" when nothing is); None and "" are
    blank.

    >>> cell("n_layers", 32.0), cell("n_layers", 1.5)
    (('32', ''), ('', "n_layers: expected an integer, got '1.5'"))
    """
    text = _text(value)
    kind = column(name, table)
    if not text or kind is None:
        return text, "" if kind or not text else f"{name}: no such column"
    if name in PROFILE_COLUMNS and number(text) == 0.0:
        return "0", ""
    if kind.kind != "text":
        try:
            parsed = parse_number(kind, text)
        except ValueError as error:
            return "", _quoted(str(error), text)
        return (f"{parsed:.0f}" if kind.kind == "integer" else text), ""
    text = spelled(name, text) if table == TRACES else text
    known = base_precision(text) if name == "precision" else text
    if kind.allowed and name != "flag" and known not in kind.allowed:
        return "", f"{name}: expected one of {', '.join(kind.allowed)}, got {text[:60]!r}"
    return text, ""


def _quoted(message: str, text: str) -> str:
    head, _, tail = message.rpartition("got " + text)
    return f"{head}got {text!r}{tail}" if head and len(text) < 40 else message


def _text(value: Any) -> str:
    """Numbers with up to six figures behind the largest, text in one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.9g}"
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"


def number(text: Any) -> float | None:
    """A finite number out of a text that may have commas between thousands; None when it is none.

    >>> number("10,050"), number("1.249e+03"), number("nan"), number("None")
    (10050.0, 1249.0, None, None)
    """
    if isinstance(text, bool) or text is None:
        return None
    try:
        value = (
            float(str(text).strip().replace(",", "").replace("_", ""))
            if not isinstance(text, int | float)
            else float(text)
        )
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def count(text: Any) -> int | None:
    """A positive whole number, None when it is none."""
    value = number(text)
    return (
        int(value) if value is not None and 1.0 <= value <= 1e15 and value == int(value) else None
    )


def noted_in_host_memory(some: int | None, layers: int | None) -> list[str]:
    """The note that activations of some layers wait in the host's memory, as rows are read by it
    (`checkpoints.OF_LAYERS`).

    >>> noted_in_host_memory(40, 80), noted_in_host_memory(None, 80)
    (['activations of 40 of 80 layers kept in host memory'], [])
    """
    of = f" of {layers}" if layers else ""
    return [f"activations of {some}{of} layers kept in host memory"] if some else []


def truth(text: Any) -> bool | None:
    """Whether a text says true or false; None when it says neither."""
    return {"true": True, "1": True, "false": False, "0": False, "none": False, "null": False}.get(
        str(text).strip().lower()
    )
