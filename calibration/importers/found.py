"""What an importer gives back: rows, what could not be read and where, and what a person needs to
know about the rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from calibration.collect.machine import accelerator_name
from calibration.micro.schema import COLLECTIVE
from calibration.traces.schema import BY_NAME, Column, base_precision, parse_number, spelled
from dmodel.settings import text_of

if TYPE_CHECKING:
    from calibration.importers.steps import Step

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
      rates: of each row what makes a step time once its batch is known: `samples_per_s`,
      `tokens_per_s`, of all devices. steps: of each row, every step that was logged, warm-up
      included; () where none is told by itself.
      troubles: what was left out. details: more than fits into cells, for the JSON document.
      hints: column → what the file lets guess of it, as it is to be typed, and why.
    """

    def __init__(self, file: str, table: str = TRACES):
        self.file = file
        self.table = table
        self.rows: list[tuple[int, dict[str, str]]] = []
        self.rates: list[Mapping[str, float]] = []
        self.steps: list[tuple[Step, ...]] = []
        self.troubles: list[Trouble] = []
        self.unnamed = 0
        self.details: dict[str, Any] = {}
        self.hints: dict[str, str] = {}

    def trouble(self, place: str, reason: str) -> None:
        """Note something that could not be read."""
        if len(self.troubles) < MOST_TROUBLES:
            self.troubles.append(Trouble(self.file, place, reason))
        else:
            self.unnamed += 1

    def bad_line(self, line: int, reason: str) -> None:
        """Note a line that could not be read."""
        self.trouble(f"line {line}", reason)

    def add(
        self,
        line: int,
        cells: Mapping[str, Any],
        rates: Mapping[str, float | None] = {},
        steps: tuple[Step, ...] = (),
    ) -> None:
        """Take a row; cells that their column does not allow are left blank, and named."""
        row = {}
        for name, value in cells.items():
            text, why = cell(name, value, self.table)
            if why:
                self.bad_line(line, f"{why}; left blank")
            elif text:
                row[name] = text
        self.rows.append((line, row))
        self.rates.append(nonzero(**rates))
        self.steps.append(steps)


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
    if not text:
        return "", ""
    kind = column(name, table)
    if kind is None:
        return text, f"{name}: no such column"
    if name in PROFILE_COLUMNS and number(text) == 0.0:
        return "0", ""
    if kind.kind != "text":
        return _number_cell(kind, text)
    return _text_cell(kind, spelled(name, text) if table == TRACES else text)


def _number_cell(kind: Column, text: str) -> tuple[str, str]:
    """Text of a number in its column, and what is wrong with it."""
    try:
        parsed = parse_number(kind, text)
    except ValueError as error:
        return "", _quoted(str(error), text)
    return (f"{parsed:.0f}" if kind.kind == "integer" else text), ""


def _text_cell(kind: Column, text: str) -> tuple[str, str]:
    """A word in its column, and what is wrong with it."""
    if not kind.allowed or kind.name == "flag":
        return text, ""
    known = base_precision(text) if kind.name == "precision" else text
    if known in kind.allowed:
        return text, ""
    return "", f"{kind.name}: expected one of {', '.join(kind.allowed)}, got {text[:60]!r}"


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
    if not isinstance(text, int | float):
        text = str(text).strip().replace(",", "").replace("_", "")
    try:
        value = float(text)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def count(text: Any) -> int | None:
    """A positive whole number, None when it is none."""
    value = number(text)
    if value is None or not 1.0 <= value <= 1e15 or value != int(value):
        return None
    return int(value)


def counted(values: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """What the first of some names that holds a positive whole number says; None when none does.

    >>> counted({"seq_len": "0", "length": "512"}, ("seq_len", "length"))
    512
    """
    return next((n for name in names if (n := count(values.get(name)))), None)


def nonzero(**figures: float | None) -> dict[str, float]:
    """Those of some figures that a log tells; nothing and 0 are left out.

    >>> nonzero(tflops=412.0, tokens=None)
    {'tflops': 412.0}
    """
    return {name: value for name, value in figures.items() if value}


def accelerator_of(kinds: Iterable[str]) -> str | None:
    """The catalog's name of devices; None where they are of several kinds, or of none it has."""
    names = {accelerator_name(kind, "gpu") for kind in kinds}
    return next((name for name, known in names if known), None) if len(names) == 1 else None


def of_some_layers(some: int) -> str:
    """The remark that some layers of each stage are recomputed, for which there is no word."""
    return f"recomputes {some} layers of each stage in full: left blank"


def in_host_memory(some: int | None, layers: int | None) -> tuple[str, list[str]]:
    """Cell of `set` and remark for activations of some layers that wait in the host's memory.

    >>> in_host_memory(40, 80), in_host_memory(None, 80)
    (('offload=0.5', ['activations of 40 of 80 layers kept in host memory']), ('', []))
    """
    if not some:
        return "", []
    if not layers:
        return "", [f"activations of {some} layers kept in host memory: not read, of how many?"]
    said = f"activations of {some} of {layers} layers kept in host memory"
    return text_of({"offload": min(some / layers, 1.0)}), [said]


def truth(text: Any) -> bool | None:
    """Whether a text says true or false; None when it says neither."""
    return {"true": True, "1": True, "false": False, "0": False, "none": False, "null": False}.get(
        str(text).strip().lower()
    )


def switch(text: Any) -> int | None:
    """1 where a text says true, 0 where it says anything else; None where nothing is said."""
    return None if text is None else int(truth(text) or False)
