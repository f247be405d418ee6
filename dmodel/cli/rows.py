"""Trace files in the shell: what was set aside, predictions as columns, errors as documents and
tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dmodel.cli.output import Document, percent, say, show_table

if TYPE_CHECKING:
    from calibration.evaluate import Errors, Evaluation, Line
    from calibration.predict import Predictions
    from calibration.traces import Cases, TraceTable
    from dmodel.profiles import Profile

SAID = 10
"""Messages about single rows on stderr; the JSON document has all."""


def report_problems(table: TraceTable) -> None:
    """Say on stderr which columns look misspelled, and which rows are set aside, with file, line
    and reason."""
    for note in table.misspelled:
        say(f"warning: {note}")
    # where no row is left there is no document to look them up in
    most = SAID if table.rows else len(table.problems)
    for problem in table.problems[:most]:
        say(f"set aside: {problem}")
    if len(table.problems) > most:
        say(f"set aside: {len(table.problems) - most} rows more; --json lists all")
    if table.problems:
        say(f"{len(table.problems)} of {table.total} rows set aside, {len(table.rows)} used")


def faults(table: TraceTable) -> str:
    """What `--strict` does not let pass: rows that cannot be used, columns that look misspelled; ""
    without any."""
    if not table.problems and not table.misspelled:
        return ""
    return f"{len(table.problems)} unusable rows, {len(table.misspelled)} columns that are not read"


def say_profiles(names: Sequence[str], why: Sequence[str]) -> None:
    """Say on stderr which profile predicts how many rows, and why; of several reasons the most
    frequent."""
    for name, rows in Counter(names).most_common():
        (reason, _), *others = Counter(
            w for n, w in zip(names, why, strict=True) if n == name
        ).most_common()
        more = f" (and {len(others)} reasons like it)" if others else ""
        say(f"profile {name}: {rows} rows; {reason}{more}")


def predicted(
    table: TraceTable, cases: Cases, profile: str | None
) -> tuple[TraceTable, Cases, Predictions, dict[str, Any]]:
    """The table as far as its predictions are numbers, cases of its usable rows, their predictions,
    and the predictions as columns of a trace file."""
    from calibration.predict import predict
    from dmodel import profiles
    from dmodel.breakdown import TERMS

    found = predict(cases, None if profile is None else profiles.load(profile))
    table, cases, found = finite(table, cases, found)
    say_profiles(found.profile, found.reason)
    columns = {
        "predicted_step_time_s": found.step_time_s,
        **{f"{term}_s": getattr(found.breakdown, term) for term in TERMS},
        "memory_bytes_per_device": found.memory_bytes,
        "headroom_bytes": found.headroom_bytes,
        "oom_probability": found.oom_probability,
        "mfu": found.mfu,
        "profile": found.profile,
        **intervals(found),
    }
    return table, cases, found, columns


def finite(
    table: TraceTable, cases: Cases, found: Predictions
) -> tuple[TraceTable, Cases, Predictions]:
    """The same as far as predictions are numbers; which rows are set aside for it is said on
    stderr."""
    from calibration.predict import within_physics

    kept, cases, found = within_physics(table, cases, found)
    for problem in kept.problems[len(table.problems) :][:SAID]:
        say(f"set aside: {problem}")
    return kept, cases, found


def intervals(found: Predictions) -> dict[str, list[float | None]]:
    """Ends of the 90 % intervals of step time, MFU and memory as columns. None where the profile
    carries no covariance."""
    import numpy as np

    from dmodel.uncertainty import SIDE

    low, high = found.interval()
    memory = np.exp(SIDE * found.memory_spread)
    columns = {
        "predicted_step_time_s_low": low,
        "predicted_step_time_s_high": high,
        "mfu_low": found.mfu * found.step_time_s / high,
        "mfu_high": found.mfu * found.step_time_s / low,
        "memory_bytes_per_device_low": found.memory_bytes / memory,
        "memory_bytes_per_device_high": found.memory_bytes * memory,
    }
    return {
        name: [None if np.isnan(x) else float(x) for x in values]
        for name, values in columns.items()
    }


def errors_document(evaluation: Evaluation) -> list[Document]:
    """Errors by source, the overall ones last: `{source, rows, median, mean, p90, max, bias,
    fitted, held_out}`. The last two are null or the same figures of a part of the rows. Errors are
    shares of the measured time: 0.05 is 5 %."""
    return [_line(line) for line in (*evaluation.by_source, evaluation.overall)]


def _line(line: Line) -> Document:
    def part(errors: Errors | None) -> Document | None:
        return None if errors is None else dict(errors._asdict())

    return {
        "source": line.name,
        **line.all._asdict(),
        "fitted": part(line.fitted),
        "held_out": part(line.held_out),
    }


def errors_by_source(evaluation: Evaluation) -> Document:
    """`overall` and `by_source` (source → line) as every command gives them."""
    *sources, overall = errors_document(evaluation)
    return {"overall": overall, "by_source": {line["source"]: line for line in sources}}


def show_errors(lines: Sequence[Document], title: str, aside: dict[str, int] | None = None) -> None:
    """Table of errors. By source the rows, and median / mean / p90 / max for fitted and for
    held-out rows where there are both."""
    parts = [p for p in ("fitted", "held_out") if any(line[p] for line in lines)]
    header = ["source", *([] if aside is None else ["set aside"]), *_header_of(parts)]
    rows = [
        [line["source"], *_aside_cells(line["source"], aside), *_cells_of(line, parts)]
        for line in lines
    ]
    show_table(title, header, rows)


def _cells_of(line: Document, parts: Sequence[str]) -> list[str]:
    return [cell for part in parts for cell in _cells(line[part])]


COLUMNS = ("rows", "median", "mean", "p90", "max")
"""Of every part of the rows."""


def _header_of(parts: Sequence[str]) -> list[str]:
    """Columns of the parts below their names; held-out rows alone need none."""
    names = [""] if parts == ["held_out"] else [part.replace("_", " ") for part in parts]
    return [f"{name}\n{column}".strip() for name in names for column in COLUMNS]


def _aside_cells(source: str, aside: dict[str, int] | None) -> list[str]:
    return [] if aside is None else [str(_aside_of(source, aside))]


def _aside_of(source: str, aside: dict[str, int]) -> int:
    return sum(aside.values()) if source == "overall" else aside.get(source, 0)


def _cells(errors: Document | None) -> list[str]:
    if errors is None:
        return ["0", "", "", "", ""]
    return [
        str(errors["rows"]),
        *(percent(errors[name]) for name in ("median", "mean", "p90", "max")),
    ]


def aside_by_source(table: TraceTable, rows: Iterable[int] | None = None) -> dict[str, int]:
    """Rows set aside by their source; rows: that each of them stands for."""
    found: Counter[str] = Counter()
    for row, count in zip(table.aside, rows or [1] * len(table.aside), strict=True):
        found[row.text("source") or row.stack] += count
    return dict(found)


def reasons(table: TraceTable, rows: Iterable[int] | None = None) -> list[Document]:
    """Why rows were set aside, most frequent first, with one example each. Numbers of single rows
    are blurred to group them.

    Args:
      rows: that each row set aside stands for; None = one.
    """
    import re

    groups: dict[str, list[Any]] = {}
    for problem, count in zip(table.problems, rows or [1] * len(table.problems), strict=True):
        kind = re.sub(r"'[^']*'|\b\d[\d.]*\b", "…", problem.reason)
        groups.setdefault(kind, []).append((problem, count))
    found = [
        {
            "reason": p[0][0].reason,
            "rows": sum(count for _, count in p),
            "example": f"{p[0][0].file}:{p[0][0].line}",
        }
        for p in groups.values()
    ]
    return sorted(found, key=lambda d: -d["rows"])


def show_reasons(found: Sequence[Document]) -> None:
    """Table of why rows were set aside."""
    if found:
        rows = [(d["rows"], d["reason"], d["example"].rpartition("/")[2]) for d in found]
        show_table(
            "Rows set aside",
            ("rows", "reason (of the first such row)", "first row"),
            rows,
            right="rows",
        )


def fitted_mask(cases: Cases, used: Sequence[Profile]) -> Any:
    """True for rows that the profile which predicts them was fitted on, `[rows]`."""
    import numpy as np

    profiles = {p.name: p for p in used}
    known = {name: set(p.fitted_rows) for name, p in profiles.items()}
    return np.array(
        [f in known[p.name] for f, p in zip(cases.labels.fingerprint.tolist(), used, strict=True)],
        bool,
    )
