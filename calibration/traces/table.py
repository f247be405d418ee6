"""A table of traces in memory: the cells as they were written, each row with the file and line it
came from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from calibration.traces.schema import BY_NAME, NUMBERS, parse_number
from dmodel.catalog.loader import known_name
from dmodel.catalog.stack import stack
from dmodel.columns import CONFIGURATION
from dmodel.errors import InputError
from dmodel.question import Question
from dmodel.settings import parse


class Problem(NamedTuple):
    """What is to be said about one row. line: of the file, the header being line 1."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


FLAGS = {"lora": ("tuning", "lora"), "composed": ("composed", 1.0)}
"""Flags that say how a configuration ran, as settings."""


REFUSED, FLAGGED, NOTED = "refused", "flagged", "noted"
"""Severities of a finding: the row cannot be used, is hard to believe, or is read otherwise than
written."""

IMPLAUSIBLE = "implausible"
"""Flag of rows that are hard to believe."""


class Finding(NamedTuple):
    """Something wrong with a row (`calibration.plausible`).

    Attributes:
      kind: a word. severity: `REFUSED`, `FLAGGED` or `NOTED`.
      arithmetic: what contradicts what, with its numbers, in one line.
      advice: what would mend it; "" where nobody can tell.
    """

    kind: str
    severity: str
    arithmetic: str
    advice: str = ""

    def __str__(self) -> str:
        return "; ".join(filter(None, [self.arithmetic, self.advice]))


class _Line(NamedTuple):
    """What a row is made of."""

    file: str
    line: int
    cells: Mapping[str, str]
    filled: Mapping[str, str] = {}
    found: tuple[Finding, ...] = ()


class Row(_Line):
    """One line of a file. cells: column → text as written ("" = blank); cells of later additions
    stay. filled: blank columns of its shape → what the catalog has for its model. found: what is
    to be said of it as a whole. What it says is worked out once."""

    @cached_property
    def told(self) -> dict[str, str]:
        """Cells that are not blank, without surrounding blanks, and what fills others."""
        own = {name: text for name, cell in self.cells.items() if (text := cell.strip())}
        return {**self.filled, **own}

    def text(self, name: str) -> str:
        """A cell without surrounding blanks, filled where it is blank; "" when blank or when the
        table has no such column."""
        return self.told.get(name, "")

    def number(self, name: str) -> float | None:
        """A cell of a number column in its unit, or None when blank."""
        cell = self.text(name)
        return parse_number(BY_NAME[name], cell) if cell else None

    def known(self, name: str) -> float:
        """A number that must be there, as the reader makes sure for usable rows."""
        value = self.number(name)
        if value is None:
            raise InputError(
                f"{self.file}:{self.line}: {name} is blank; read the table with `read`, which "
                "sets such rows aside"
            )
        return value

    @cached_property
    def question(self) -> Question:
        """The question that a usable row asks: its cells, typed.

        Raises:
          InputError: as `settings`.
          ValueError: a cell that is not what its column holds.
        """
        columns: dict[str, float | str] = {}
        told = self.told
        for column in CONFIGURATION:
            if cell := told.get(column.name):
                columns[column.name] = cell if column.kind == "text" else parse_number(column, cell)
        columns |= {"stack": self.stack, "accelerator": self.accelerator}
        settings: dict[str, Any] = dict(FLAGS[flag] for flag in self.flags if flag in FLAGS)
        return Question(columns, {**settings, **self.settings}, where=f"{self.file}:{self.line}")

    @cached_property
    def stack(self) -> str:
        """Canonical name of the software, with its variant; its source when blank."""
        return stack(self.text("stack") or self.text("source") or "unknown").name

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """What the column `set` says.

        Raises:
          InputError: an unknown name, or a value that it does not take.
        """
        return parse(self.text("set"))

    @cached_property
    def accelerator(self) -> str:
        """The name of the chip in the catalog, by which coefficients are fitted, whichever is
        written; as written if it has none."""
        written = self.text("accelerator")
        return known_name("chips", written) or written

    @property
    def doubts(self) -> tuple[Finding, ...]:
        """Why the row is hard to believe."""
        return tuple(each for each in self.found if each.severity == FLAGGED)

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of the row, in the order written, and `IMPLAUSIBLE` where there are doubts."""
        return _words(self.flag)

    @property
    def flag(self) -> str:
        """The cell of flags, with `IMPLAUSIBLE` where there are doubts."""
        written = self.text("flag")
        new = self.doubts and IMPLAUSIBLE not in _words(written)
        return "; ".join(filter(None, [written, IMPLAUSIBLE])) if new else written

    @property
    def flag_reason(self) -> str:
        """Why the row is implausible: its doubts, else what the file says."""
        return "; ".join(map(str, self.doubts)) or self.text("flag_reason")


def _words(flag: str) -> tuple[str, ...]:
    """The words of a cell of flags."""
    return tuple(flag.replace(",", ";").replace(";", " ").split())


def without_doubt(flag: str) -> str:
    """A cell of flags without `IMPLAUSIBLE`; as written where it has no such word."""
    words = _words(flag)
    kept = [word for word in words if word != IMPLAUSIBLE]
    return flag if len(kept) == len(words) else "; ".join(kept)


HEADER = 1
"""Line of a file's header."""


class TraceTable(NamedTuple):
    """Rows of one or more files; `rows` and `aside` together are every row that was read.

    Attributes:
      columns: header, in order, unknown columns included (of several files: the union).
      rows: usable rows. aside: rows that cannot be used, each with one entry of `problems` in the
        same order.
      notes: mild things said about usable rows (uneven pipeline stages, rounded figures).
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    aside: tuple[Row, ...]
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]

    @property
    def misspelled(self) -> tuple[Problem, ...]:
        """Notes about the header: columns that are not read, though they resemble one of the
        format."""
        return tuple(note for note in self.notes if note.line == HEADER)

    @property
    def doubts(self) -> tuple[Problem, ...]:
        """Why usable rows are flagged `IMPLAUSIBLE`, each by its place."""
        doubted = (row for row in self.rows if IMPLAUSIBLE in row.flags)
        return tuple(Problem(row.file, row.line, row.flag_reason) for row in doubted)

    @property
    def total(self) -> int:
        """Rows read, usable or not."""
        return len(self.rows) + len(self.aside)

    def select(self, keep: Sequence[bool] | Callable[[Row], bool]) -> TraceTable:
        """The table with only some of its usable rows; what was set aside stays reported."""
        wanted = [keep(r) for r in self.rows] if callable(keep) else list(keep)
        return self._replace(rows=tuple(r for r, k in zip(self.rows, wanted, strict=True) if k))

    def with_findings(self, findings: Mapping[int, Finding]) -> TraceTable:
        """The table with more findings about some of its usable rows, by index: those that are
        refused are set aside."""
        rows = [
            row._replace(found=(*row.found, findings[i])) if i in findings else row
            for i, row in enumerate(self.rows)
        ]
        refused = [i for i, each in findings.items() if each.severity == REFUSED]
        reasons = (Problem(rows[i].file, rows[i].line, str(findings[i])) for i in refused)
        return self._replace(
            rows=tuple(row for i, row in enumerate(rows) if i not in refused),
            aside=(*self.aside, *(rows[i] for i in refused)),
            problems=(*self.problems, *reasons),
        )

    def with_flags(self) -> TraceTable:
        """The table with flags and their reasons as cells, where a row is implausible."""
        if not self.doubts:
            return self
        flags, reasons = ([getattr(r, n) for r in self.rows] for n in ("flag", "flag_reason"))
        return self.with_columns({"flag": flags, "flag_reason": reasons})

    def with_columns(self, values: Mapping[str, Sequence[object]]) -> TraceTable:
        """Add columns to the usable rows (blank for those set aside); existing columns of that name
        are replaced."""
        extra = {name: [_cell(v) for v in column] for name, column in values.items()}
        for name, column in extra.items():
            if len(column) != len(self.rows):
                raise ValueError(
                    f"with_columns: column {name!r} has {len(column)} values, the table has "
                    f"{len(self.rows)} usable rows"
                )
        rows = tuple(
            row._replace(cells={**row.cells, **{n: c[i] for n, c in extra.items()}})
            for i, row in enumerate(self.rows)
        )
        new = tuple(name for name in extra if name not in self.columns)
        return self._replace(columns=self.columns + new, rows=rows)


def _cell(value: object) -> str:
    """Text of a value; floats so that they read back equal."""
    number = hasattr(value, "dtype") or isinstance(value, float)
    return repr(float(value)) if number else str(value)  # type: ignore


_REPORTED = ("mfu_reported", "tflops_reported", "peak_memory_gib", "n_params")
_NAMES = ("source", "stack", "model", "accelerator", "precision", "attention", "recompute", "flag")
_DEFINING = tuple(sorted(set(NUMBERS) - set(_REPORTED) | set(_NAMES)))


def fingerprint(row: Row) -> str:
    """12 hexadecimal digits of the SHA-256 of what defines a measurement: configuration, stack,
    time.

    Not its file or line, nor its notes and settings, nor whether it is believed (`IMPLAUSIBLE`).
    Numbers count by value, so `64` and `64.0` are the same row, and so is a row that went through
    another file format.
    """
    own = {"accelerator": row.accelerator, "flag": without_doubt(row.text("flag"))}
    own |= {"stack": row.stack} if row.text("stack") else {}
    told = row.told | own
    parts = [_piece(name, told.get(name, "")) for name in _DEFINING]
    # a later column: rows without it keep the name that they had
    held = " ".join(row.text("stage_layers").split())
    parts += [f"stage_layers={held!r}"] if held else []
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


@lru_cache(maxsize=1 << 14)
def _piece(name: str, cell: str) -> str:
    """A cell as fingerprints have it: numbers by value."""
    value = parse_number(BY_NAME[name], cell) if cell and name in NUMBERS else cell
    return f"{name}={value!r}"
