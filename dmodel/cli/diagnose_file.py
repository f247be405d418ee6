"""A run to diagnose out of a file: a row of a trace file, or what a log or profile tells."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmodel.cli.compiled import ready
from dmodel.cli.options import Degrees, Job
from dmodel.cli.output import say
from dmodel.errors import InputError

if TYPE_CHECKING:
    from calibration.traces.table import Row
    from dmodel.diagnose.measured import Measured
    from dmodel.diagnose.subject import Stated


def of_file(
    path: Path, line: int | None, job: Job, degrees: Degrees, texts: list[str] | None
) -> tuple[Stated, Measured]:
    """The run of a row, and what was measured of it: as the row says, or as `--measured` does.

    Raises:
      InputError: no such file or row, several rows without `--line`, options of a plan beside a
        file, nothing measured.
    """
    if texts and not path.exists():
        raise InputError(
            f"{path}: no such file; expected a trace file, a log or a profile. A figure with a "
            f"space is one word in quotes: --measured '{texts[-1]} {path}'"
        )
    _refuse_options(job, degrees)
    ready()
    from calibration.traces.files import is_table

    rows = _of_table(path, job) if is_table(path) else _of_log(path, job)
    row = _chosen(rows, path, line)
    return _stated(row, job.profile), _known(row, texts)


def _refuse_options(job: Job, degrees: Degrees) -> None:
    """Options that a file would override without a word are a mistake."""
    given = [
        name
        for record in (job, degrees)
        for name, value in record._asdict().items()
        if value != record._field_defaults[name] and name not in ("profile", "settings")
    ]
    if given:
        names = ", ".join(f"--{n.replace('_', '-')}" for n in given)
        raise InputError(
            f"{names}: the file says this; leave the option out, or say it as --set NAME=VALUE"
        )


def _of_table(path: Path, job: Job) -> list[Row]:
    from calibration.traces import read
    from dmodel.cli.rows import report_problems

    table = read(path, require_time=False)
    if not table.rows:
        report_problems(table)
        raise InputError(f"{path}: no usable row; see the messages")
    return [_with_settings(row, job.settings or []) for row in table.rows]


def _with_settings(row: Row, pairs: list[str]) -> Row:
    from calibration.importers import settings

    said = settings(pairs)
    joined = "; ".join(filter(None, (row.cells.get("set", ""), said.pop("set", ""))))
    more = {"set": joined} if joined else {}
    return row._replace(cells={**row.cells, **said, **more})


def _of_log(path: Path, job: Job) -> list[Row]:
    from calibration.importers import read, settings
    from calibration.traces.questions import completed
    from calibration.traces.table import Row

    found = read([path], None, settings(job.settings or []))
    for trouble in found.troubles[:10]:
        say(f"warning: {trouble}")
    if found.table != "traces":
        raise InputError(f"{path}: measures collectives, not steps; name a log of a training run")
    if found.needed:
        words = " ".join(f"--set {name}=…" for name in found.needed)
        raise InputError(f"{path}: does not say all that a plan needs; add {words}")
    for i, reason in found.unusable.items():
        say(f"{path}: row {i + 1} cannot be used: {reason}")
    return [
        completed(Row(str(path), found.origin[i][1], cells))
        for i, cells in enumerate(found.rows)
        if i not in found.unusable
    ]


def _chosen(rows: list[Row], path: Path, line: int | None) -> Row:
    """The row of a line, or the only one."""
    if line is None:
        if len(rows) == 1:
            return rows[0]
        raise InputError(
            f"{path}: has {len(rows)} usable rows; expected --line N, such as --line "
            f"{rows[0].line if rows else 2}"
        )
    found = [row for row in rows if row.line == line]
    if not found:
        known = ", ".join(str(row.line) for row in rows[:8])
        raise InputError(
            f"{path}: no usable row on line {line}; there are rows on lines {known}, …"
        )
    return found[0]


def _stated(row: Row, profile: str | None) -> Stated:
    from calibration.watching.level import stated

    found, reason = stated(row, profile)
    say(f"profile {found.profile.name}: {reason}")
    return found


BESIDE = {
    "compute": ("compute_s", 1.0),
    "exposed": ("exposed_communication_s", 1.0),
    "memory": ("peak_memory_gib", 2.0**30),
}
"""What rows tell beside the step → column, and SI units in one of its."""


def _known(row: Row, texts: list[str] | None) -> Measured:
    """What was measured, by the options, else by the row."""
    from calibration.traces.reader import measured_time
    from dmodel.diagnose.measured import Measured, measured

    if texts:
        return measured(texts)
    seconds = measured_time(row)
    if seconds is None:
        raise InputError(
            f"{row.file}:{row.line}: says no step time nor throughput; add --measured 5.2s"
        )
    beside: dict[str, Any] = {}
    for name, (column, unit) in BESIDE.items():
        value = float(row.cells.get(column) or 0.0)
        if value > 0.0:
            beside[name] = unit * value
    return Measured("time", seconds, **beside, text=f"{seconds:.4g} s")
