"""Tables with more rows than configurations in the shell: repeats are judged together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmodel.cli.output import Document, deliver, say, show_lines, show_table, stop
from dmodel.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from calibration.fleets import Fleet
    from calibration.fleets.fleet import Repeats
    from calibration.traces import TraceTable

PERIODS = ("month", "release")
"""By what drift is told."""


def by_configuration(paths: Sequence[Path], asked: bool | None) -> bool:
    """Whether repeats of a configuration are judged together: as asked, else where a table is
    large.

    Raises:
      InputError: a folder is to be read row by row.
    """
    from calibration.fleets import is_large

    if asked is False and (folder := next((p for p in paths if p.is_dir()), None)):
        raise InputError(f"--rows: {folder} is a folder, read by configuration alone; name files")
    return is_large(paths) if asked is None else asked


def read_fleet(paths: Sequence[Path], require_time: bool = True) -> Fleet:
    """The rows of files and folders by configuration; what is set aside is said."""
    from calibration.fleets import read
    from dmodel.cli.rows import SAID

    fleet = read(paths, require_time)
    table = fleet.table
    for note in table.misspelled:
        say(f"warning: {note}")
    most = SAID if table.rows else len(table.problems)
    for problem in table.problems[:most]:
        say(f"set aside: {problem}")
    if len(table.problems) > most:
        say(f"set aside: {len(table.problems) - most} configurations more; --json lists all")
    if table.problems:
        used, aside = int(fleet.repeats.rows.sum()), int(fleet.aside.sum())
        say(f"{aside:,} of {fleet.total:,} rows set aside, {used:,} used")
    say(
        f"{int(fleet.repeats.rows.sum()):,} rows of {len(table.rows):,} configurations; below, a "
        "row is a configuration, by the level of its repeats"
    )
    return fleet


def told(fleet: Fleet) -> Document:
    """What documents of fleets say of rows in place of those of tables."""
    from dmodel.cli.rows import aside_by_source, reasons

    problems = zip(fleet.table.problems, fleet.aside.tolist(), strict=True)
    return {
        "each": "configuration",
        "rows_read": fleet.total,
        "configurations_used": len(fleet.table.rows),
        "set_aside": [p._asdict() | {"rows": n} for p, n in problems],
        "set_aside_by_source": aside_by_source(fleet.table, fleet.aside.tolist()),
        "reasons": reasons(fleet.table, fleet.aside.tolist()),
    }


def evaluate_fleet(paths: Sequence[Path], profile: str | None, strict: bool, json: bool) -> None:
    """`dmodel evaluate` of a fleet."""
    from dmodel.cli.evaluate import judged, show
    from dmodel.cli.rows import faults

    fleet = read_fleet(paths)
    table, found, document = judged(fleet.table, fleet.cases(), profile)
    fleet = _left(fleet, table)
    columns = {
        "predicted_step_time_s": found.step_time_s,
        "ratio": _ratio(fleet, found.step_time_s),
        "profile": found.profile,
    }
    document |= told(fleet) | {
        "drift": drifts(fleet, found.step_time_s),
        "configurations": configurations(fleet, columns),
    }

    def shown(d: Document) -> None:
        show(d)
        show_drifts(d["drift"])

    deliver(document, json, shown)
    if strict and (wrong := faults(table)):
        say(f"dmodel: {wrong} (--strict)")
        stop(1)


def predict_fleet(
    path: Path, profile: str | None, out: Path | None, strict: bool, json: bool
) -> None:
    """`dmodel predict FILE` of a fleet."""
    from calibration.fleets.out import write
    from dmodel.cli.noticed import say_doubted, say_notes
    from dmodel.cli.predict import row_documents, stop_where_wrong
    from dmodel.cli.rows import faults, predicted

    fleet = read_fleet([path], require_time=False)
    table, cases, found, columns = predicted(fleet.table, fleet.cases(), profile)
    fleet = _left(fleet, table)
    doubted = [p._asdict() for p in table.doubts]
    say_doubted(doubted, table)
    say_notes([note._asdict() for note in table.notes])
    if out is not None:
        write(fleet, columns, out)
        say(f"wrote {fleet.total:,} rows to {out}, those set aside as they were")
    rows, too_large = fleet.repeats.rows, columns["headroom_bytes"] < 0.0
    each = zip(row_documents(table, cases, columns), configurations(fleet, {}), strict=True)
    document = {
        "file": str(path),
        **told(fleet),
        "rows_used": int(rows.sum()),
        "implausible": doubted,
        "notes": [p._asdict() for p in table.notes],
        "does_not_fit": int(rows[too_large].sum()),
        "mfu_convention": found.convention,
        "configurations": [repeats | row for row, repeats in each],
    }
    deliver(document, json, _show_predicted)
    if strict:
        stop_where_wrong(faults(table), document["does_not_fit"])


def _show_predicted(d: Document) -> None:
    from dmodel.cli.predict import show_rows

    show_rows({**d, "rows": d["configurations"]})


def _left(fleet: Fleet, table: TraceTable) -> Fleet:
    """A fleet without configurations that a table no longer has, and with its findings."""
    import numpy as np

    kept = {(row.file, row.line) for row in table.rows}
    mask = np.array([(row.file, row.line) in kept for row in fleet.table.rows], bool)
    rows = fleet.repeats.rows[~mask]
    return fleet.select(mask, table, np.concatenate([fleet.aside, rows]))


def _ratio(fleet: Fleet, predicted: np.ndarray) -> np.ndarray:
    """Measured over predicted time of configurations; the times of one that is no more than a row
    are as written."""
    import numpy as np

    return np.exp(fleet.repeats.level) / predicted


def configurations(fleet: Fleet, columns: dict[str, Any]) -> list[Document]:
    """One document for each usable configuration, with columns of them. `scatter`: standard
    deviation of ln t of its repeats; `quantiles` of their times [s]; null where none is known."""
    lists = {name: list(values) for name, values in columns.items()}
    return [
        {
            "file": row.file,
            "line": row.line,
            "source": row.text("source"),
            "model": row.text("model"),
            "stack": row.stack,
            "accelerator": row.accelerator,
            "devices": int(row.known("n_accel")),
            "flag": row.flag,
            **_measured(fleet.repeats, i),
            **{name: values[i] for name, values in lists.items()},
        }
        for i, row in enumerate(fleet.table.rows)
    ]


def _measured(known: Repeats, i: int) -> Document:
    """What was measured of one configuration."""
    import numpy as np

    from calibration.fleets.statistics import QUANTILES

    found: Document = {"rows": int(known.rows[i]), "times": int(known.times[i])}
    found |= dict.fromkeys(("measured_step_time_s", "scatter", "quantiles"))
    if found["times"]:
        found["measured_step_time_s"] = float(np.exp(known.level[i]))
        shares = zip(QUANTILES, np.exp(known.quantiles[:, i]).tolist(), strict=True)
        found["quantiles"] = {f"p{round(100 * q)}": value for q, value in shares}
    if found["times"] > 1:
        found["scatter"] = float(np.sqrt(known.variance[i]))
    return found | {"first": str(known.first[i]) or None, "last": str(known.last[i]) or None}


def drifts(fleet: Fleet, predicted: np.ndarray) -> Document:
    """How measured over predicted times move, by `PERIODS`; of one that the rows do not say, none.
    A blank release is the one in the name of the row's stack."""
    import numpy as np

    from calibration.fleets.drift import cells, drift

    found, log = {}, np.log(predicted)
    for name in PERIODS:
        said = _said(fleet, name)
        wanted = said != ""
        dated = type(fleet.dated)(*(x[wanted] for x in fleet.dated))
        names = _in_order(said[wanted], dated.month)
        place = {each: i for i, each in enumerate(names)}
        period = np.array([place[each] for each in said[wanted].tolist()], int)
        sums = cells(dated.group, period, dated.count, dated.total, log)
        found[name] = [p._asdict() for p in drift(sums, names)]
    return found


def _said(fleet: Fleet, name: str) -> np.ndarray:
    """The period of every sum of times, "" = not said."""
    import numpy as np

    said = getattr(fleet.dated, name)
    if name != "release" or not len(said):
        return said
    stacks = np.array([row.stack.partition("/")[2] for row in fleet.table.rows], np.str_)
    return np.where(said == "", stacks[fleet.dated.group], said)


def _in_order(said: np.ndarray, month: np.ndarray) -> list[str]:
    """Periods by the month in which they first appear, then by name."""
    first: dict[str, str] = {}
    for name, at in sorted(set(zip(said.tolist(), month.tolist(), strict=True))):
        first[name] = min(first.get(name, at), at)
    return sorted(first, key=lambda name: (first[name], name))


SHOWN = 24
"""Periods of a table on the screen, the last ones."""


def show_drifts(found: Document) -> None:
    """Tables of drift, by month and by release."""
    for name in PERIODS:
        if len(found[name]) > 1:
            _show_drift(name, found[name])


def _show_drift(name: str, periods: Sequence[Document]) -> None:
    cells = [
        (
            p["name"],
            f"{p['rows']:,}",
            f"{p['configurations']:,}",
            f"{p['ratio']:.3f}",
            f"{p['low']:.3f} … {p['high']:.3f}",
            "" if p["change"] is None else f"{100 * p['change']:+.2f} ± {100 * p['error']:.2f} %",
        )
        for p in periods[-SHOWN:]
    ]
    header = (name, "rows", "configurations", "measured / predicted", "10 … 90 %", "change")
    show_table(
        f"Drift by {name}; change: of the same configurations since {periods[0]['name']}",
        header,
        cells,
    )
    if len(periods) > SHOWN:
        show_lines(f"… and {len(periods) - SHOWN} earlier ones: see --json, drift")
