"""`dmodel collect`: measure this machine, so that the model can be fitted to it."""

from __future__ import annotations

import json as json_format
import os
import sys
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dmodel.cli.compiled import ready
from dmodel.cli.options import Json
from dmodel.cli.output import Document, deliver, say, show_lines, show_table, stop
from dmodel.errors import InputError

if TYPE_CHECKING:
    from calibration.collect.driver import Collected
    from calibration.collect.runner import Event

AUTO = "auto"
"""Launcher that is found out."""

ALL = "matmul,attention,memory,elementwise,optimizer,launch,dispatch,collectives,overlap,steps"

What = Annotated[
    str | None,
    typer.Option(metavar="KINDS", help="What to measure, separated by commas; default: all."),
]
Out = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        help="Folder of records and tables; what it already holds is not measured again.",
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(metavar="M", help="Total minutes; the most informative measurements come first."),
]
PlanFile = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="JSON list of measurements, instead of --what."),
]
TablesOnly = Annotated[
    bool,
    typer.Option(
        "--tables-only", help="Measure nothing: rewrite the tables from the records in DIR."
    ),
]
Parquet = Annotated[
    bool, typer.Option("--parquet", help="Write the traces as Parquet instead of CSV.")
]
DryRun = Annotated[
    bool, typer.Option("--list", help="Only list what would be measured, as a file for --plan.")
]
Retry = Annotated[
    bool,
    typer.Option("--retry-failed", help="Repeat measurements that failed or were unavailable."),
]
DeviceTime = Annotated[
    bool,
    typer.Option(
        "--device-time/--no-device-time", help="Also record device time from the profiler."
    ),
]
Launcher = Annotated[
    str,
    typer.Option(
        help="How the processes of a job find each other: auto, none, slurm, tpu, env, torchrun."
    ),
]


def command(
    out: Out,
    what: What = None,
    budget_minutes: Budget = None,
    plan: PlanFile = None,
    dry_run: DryRun = False,
    tables_only: TablesOnly = False,
    parquet: Parquet = False,
    retry_failed: Retry = False,
    device_time: DeviceTime = True,
    launcher: Launcher = AUTO,
    json: Json = False,
) -> None:
    """Measure this machine: micro-benchmarks and training steps. An interrupted collection
    resumes."""
    given = {
        "--what": what is not None,
        "--budget-minutes": budget_minutes is not None,
        "--plan": plan is not None,
        "--retry-failed": retry_failed,
        "--no-device-time": not device_time,
        "--launcher": launcher != AUTO,
        "--parquet": parquet,
    }
    budget_s, kinds = _budget(budget_minutes), _kinds(ALL if what is None else what)
    ready()
    _check_launcher(launcher)
    _check_ways(given, dry_run, tables_only)
    if dry_run:
        _list(kinds, json)
        return
    if tables_only:
        _only_tables(out, parquet, json)
        return
    _own_stdout()
    with redirect_stdout(sys.stderr):
        collected = _collect(
            launcher,
            out,
            kinds,
            plan=plan,
            budget_s=budget_s,
            retry=retry_failed,
            device_time=device_time,
        )
    if collected is None:
        return
    deliver(_document(collected, _tables(out, parquet), out), json, _show)
    _stop_without_measurements(collected)


USED = {"--list": ("--what",), "--tables-only": ("--parquet",)}
"""Options that mean something beside one that measures nothing."""


def _check_ways(given: dict[str, bool], dry_run: bool, tables_only: bool) -> None:
    """Refuse options that would be ignored.

    Raises:
      InputError: with both.
    """
    if dry_run and tables_only:
        raise InputError("--list and --tables-only: both measure nothing; leave one out")
    if given["--plan"] and given["--what"]:
        raise InputError("--plan and --what: a plan names all that is measured; leave one out")
    for way, is_asked in {"--list": dry_run, "--tables-only": tables_only}.items():
        wrong = [name for name, there in given.items() if there and name not in USED[way]]
        if is_asked and wrong:
            raise InputError(f"{', '.join(wrong)}: nothing to do beside {way}; leave it out")


def _check_launcher(name: str) -> None:
    from calibration.collect.hosts import check

    check(name)


def _budget(minutes: float | None) -> float | None:
    """Seconds that there are; None for as many as it takes."""
    if minutes is None:
        return None
    if not 0.0 < minutes < 1e6:
        raise InputError(f"--budget-minutes: expected a positive number of minutes, got {minutes}")
    return 60.0 * minutes


def _kinds(what: str) -> list[str]:
    """Kinds of measurements that are asked for."""
    kinds = [stripped for word in what.split(",") if (stripped := word.strip())]
    if not kinds:
        raise InputError(f"--what {what!r}: names nothing to measure; expected some of {ALL}")
    return kinds


def _stop_without_measurements(collected: Collected) -> None:
    """Exit code 1 when nothing was measured."""
    outcome = collected.outcome
    if len(outcome.finished) == len(outcome.failed):
        why = "the reasons are above" if outcome.failed else "give it more minutes"
        say(f"dmodel: nothing was measured; {why}")
        stop(1)


def _only_tables(out: Path, parquet: bool, json: bool) -> None:
    """Write the tables of what is there already; exit code 1 when there is nothing to write."""
    from calibration.collect import store
    from calibration.collect.convert import left_out

    found = store.read(out)
    if not any(out.glob(f"*{store.SUFFIX}")):
        raise InputError(
            f"{out}: no records (*{store.SUFFIX}) in this folder; expected one that `dmodel "
            "collect --out` wrote"
        )
    document = {
        "folder": str(out),
        "files": _tables(out, parquet),
        "damaged_lines": [str(d) for d in found.damage],
    }
    document["left_out"] = left_out(found)
    deliver(document, json, _show_only)
    if not document["files"]:
        say(f"dmodel: {out}: no measurement that a table could show")
        stop(1)


def _collect(
    launcher: str, out: Path, kinds: list[str], *, device_time: bool, **how: Any
) -> Collected | None:
    """Collect with the other processes of the job; None in those that are not the first."""
    from calibration.collect.hosts import join

    job = join(launcher)  # before anything asks for the devices
    from calibration.collect.driver import collect
    from calibration.collect.program import Options

    found = collect(
        out, kinds, options=Options(device_time=device_time), job=job, report=_tell, say=say, **how
    )
    return found if job.process == 0 else None


def _own_stdout() -> None:
    """From here on only what Python prints goes to stdout. Libraries of collectives print below it,
    from threads of theirs and at any time: to stderr."""
    if sys.stdout is not sys.__stdout__:
        return  # somebody listens to Python alone
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(own, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)


def _tables(out: Path, parquet: bool) -> dict[str, int]:
    """Write the tables; rows by file."""
    from calibration.collect.convert import convert

    return {str(path): rows for path, rows in convert(out, parquet).items()}


def _list(kinds: list[str], json: bool) -> None:
    """Print the measurements worth making here, as a plan."""
    from calibration.collect.machine import machine
    from calibration.collect.measure import grid

    tasks = [{"kind": task.kind, **task.parameters} for task in grid(kinds, machine())]
    if json:
        deliver({"tasks": tasks}, True, lambda d: None)
    else:
        show_lines(
            "[",
            *(
                f" {json_format.dumps(t)}{',' if i + 1 < len(tasks) else ''}"
                for i, t in enumerate(tasks)
            ),
            "]",
        )


def _tell(event: Event) -> None:
    """One line on stderr for each task that ended."""
    from dmodel.cli.output import seconds

    head = f"[{event.done}/{event.total}] {event.task}"
    if event.what == "ok":
        time = event.record["time"]
        half = 50.0 * (time["high_s"] - time["low_s"]) / time["median_s"]
        say(
            f"{head}: {seconds(time['median_s'])} ± {half:.1f} % of "
            f"{time['samples']}{'' if time['settled'] else ', not settled'}"
        )
    elif event.what in ("failed", "unavailable"):
        say(f"{head}: {event.what}: {str(event.record['reason']).splitlines()[0][:200]}")


def _document(collected: Collected, written: dict[str, int], out: Path) -> Document:
    from calibration.collect import store
    from calibration.collect.convert import left_out

    outcome, found = collected.outcome, store.read(out)
    return {
        "folder": str(out),
        "accelerator": collected.machine.accelerator,
        "in_catalog": collected.machine.known,
        "devices": collected.machine.n_devices,
        "hosts": collected.machine.hosts,
        "environment": collected.environment["id"],
        "tasks": len(collected.tasks),
        "finished": len(outcome.finished),
        "measured_now": len(outcome.measured),
        "failed": [_failure(found.measurements[key]) for key in outcome.failed],
        "skipped_for_time": len(outcome.skipped),
        "skipped": _skipped(collected),
        "seconds": outcome.spent_s,
        "information_nats": _gained(collected),
        "by_kind": _by_kind(collected, found.measurements),
        "damaged_lines": [str(damage) for damage in found.damage if not damage.torn],
        "left_out": left_out(found),
        "files": written,
    }


def _failure(record: dict[str, Any]) -> Document:
    """A task that failed, and why."""
    return {
        "task": record["kind"],
        **record["parameters"],
        "status": record["status"],
        "reason": record["reason"],
    }


def _skipped(collected: Collected) -> list[Document]:
    """Tasks for which there was no time."""
    identity, skipped = collected.environment["identity"], set(collected.outcome.skipped)
    return [
        {"task": task.kind, **task.parameters}
        for task in collected.tasks
        if task.key(identity) in skipped
    ]


def _gained(collected: Collected) -> float | None:
    """Information of what was measured; None where nobody knows what tasks give."""
    gain = collected.gain
    return sum(gain[key] for key in collected.outcome.measured if key in gain) if gain else None


def _by_kind(collected: Collected, measurements: dict[str, Any]) -> dict[str, Document]:
    """Counts of each kind: asked for, measured, settled to the precision asked for; seconds
    spent."""
    lines: dict[str, Document] = {}
    for task in collected.tasks:
        line = lines.setdefault(
            task.kind, {"tasks": 0, "measured": 0, "settled": 0, "seconds": 0.0}
        )
        record = measurements.get(task.key(collected.environment["identity"]))
        line["tasks"] += 1
        if record is not None:
            line["measured"] += record["status"] == "ok"
            line["settled"] += record["status"] == "ok" and record["time"]["settled"]
            line["seconds"] += record["wall_s"]
    return lines


def _show_only(d: Document) -> None:
    _show_files(d)
    _show_lost(d)


def _show_lost(d: Document) -> None:
    """Lines that cannot be read, and measurements that no table can show."""
    for line in d["damaged_lines"]:
        show_lines(f"damaged: {line}")
    for line in d["left_out"]:
        show_lines(f"left out: {line}")


def _show_files(d: Document) -> None:
    for name, count in d["files"].items():
        what = f"{count} rows" if not name.endswith(".toml") else "this machine, for --system"
        show_lines(f"wrote {name} ({what})")


def _show(d: Document) -> None:
    title = (
        f"{d['accelerator']}, {d['devices']} devices, {d['hosts']} hosts: {d['finished']} of "
        f"{d['tasks']} measurements finished"
    )
    rows = [
        (kind, x["tasks"], x["measured"], x["settled"], f"{x['seconds']:.1f}")
        for kind, x in d["by_kind"].items()
    ]
    show_table(title, ("kind", "asked for", "measured", "settled", "seconds"), rows)
    _show_files(d)
    _show_lost(d)
    if d["skipped_for_time"]:
        _show_skipped(d["skipped"])
    traces = next((name for name in d["files"] if Path(name).stem == "traces"), None)
    if traces:
        show_lines(
            f"Next: dmodel fit {traces} --out mine.json, dmodel evaluate {traces} --profile "
            "mine.json"
        )


def _show_skipped(tasks: list[Document]) -> None:
    """How many tasks of each kind there was no time for."""
    kinds = Counter(task["task"] for task in tasks)
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    show_lines(
        f"left out for lack of time: {named}; run again with more minutes to add them (--json "
        "names each)"
    )
