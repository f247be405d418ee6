"""`dmodel next-measurements`: which runs to measure next, so that predictions gain most for the
device time."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dmodel.cli.compiled import ready
from dmodel.cli.options import Json, ProfileOption
from dmodel.cli.output import (
    Document,
    check_apart,
    deliver,
    percent,
    say,
    seconds,
    show_lines,
    show_table,
    stop,
)
from dmodel.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from calibration.candidates import Asked
    from calibration.information import Choice, Problem
    from calibration.traces import Cases, TraceTable

MOST = 200
"""Candidates that are made where the file names none, at most."""

Traces = Annotated[
    Path,
    typer.Argument(
        metavar="TRACES.csv",
        help="Rows with a time are known, rows without are candidates; default: other plans.",
    ),
]
Budget = Annotated[
    float,
    typer.Option(
        metavar="M", help="Budget in device-minutes: devices times minutes, over all runs."
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        metavar="PLAN.json",
        help="Where to write the runs: as rows, and as tasks for `collect --plan`.",
    ),
]
Criterion = Annotated[
    str, typer.Option(help="Improve prediction (of candidates) or everything (coefficients).")
]
Steps = Annotated[int, typer.Option(min=1, help="Training steps of one measurement.")]
Startup = Annotated[
    float,
    typer.Option(
        min=0.0, help="Seconds before the first step of a run: scheduling, loading, compiling."
    ),
]
Most = Annotated[
    int | None,
    typer.Option(
        min=1, max=2000, help=f"Most candidates when the file names none; default: {MOST}."
    ),
]


def command(
    traces: Traces,
    budget_minutes: Budget,
    out: Out,
    profile: ProfileOption = None,
    criterion: Criterion = "prediction",
    steps: Steps = 20,
    startup_seconds: Startup = 120.0,
    candidates: Most = None,
    json: Json = False,
) -> None:
    """Choose the most informative runs to measure within a budget of device time, with a bound on
    what any choice could gain."""
    check_apart(out, traces)
    if not 0.0 < budget_minutes < 1e12:
        raise InputError(
            f"--budget-minutes: expected a positive number of device-minutes, got {budget_minutes}"
        )
    if not startup_seconds < 1e9:
        raise InputError(
            "--startup-seconds: expected the seconds that starting a job takes, got "
            f"{startup_seconds}"
        )
    ready()
    _choose(
        traces,
        60.0 * budget_minutes,
        out,
        profile,
        criterion,
        (steps, startup_seconds),
        candidates,
        json,
    )


def _choose(
    traces: Path,
    budget_s: float,
    out: Path,
    profile: str | None,
    criterion: str,
    run: tuple[int, float],
    candidates: int | None,
    json: bool,
) -> None:
    """Write what to measure within a budget [device-second].

    Args:
      run: steps of a run, and seconds that starting it takes.
    """
    from calibration.candidates import Asked
    from calibration.information import CRITERIA
    from calibration.traces import read
    from dmodel.cli.noticed import say_doubted
    from dmodel.cli.question import choice
    from dmodel.cli.rows import report_problems

    choice("criterion", criterion, CRITERIA)
    table = read(traces, require_time=False)
    report_problems(table)
    say_doubted([p._asdict() for p in table.doubts], table)
    if not table.rows:
        raise InputError(
            f"{traces}: no row can be used, so there is no job to measure; correct the rows "
            "named "
            "above"
        )
    document, written = _answer(table, profile, budget_s, criterion, Asked(*run), candidates)
    _write(out, {**document, **written})
    deliver({"file": str(traces), "plan": str(out), **document}, json, _show)
    if not document["chosen"]:
        say(
            f"dmodel: no candidate fits {budget_s / 60.0:g} device-minutes; the least costs "
            f"{document['cheapest_device_minutes']:.3g}"
        )
        stop(1)


def _write(out: Path, document: Document) -> None:
    from dmodel.cli.output import plain

    try:
        out.write_text(
            json_format.dumps(plain(document), indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )
    except OSError as error:
        raise InputError(
            f"--out {out}: cannot write there ({(error.strerror or 'unknown error').lower()}); "
            "name a writable file"
        ) from None
    say(f"wrote {out}")


def _all_runs(table: TraceTable, most: int | None) -> tuple[TraceTable, np.ndarray, bool]:
    """Known runs and candidates as one table, which are candidates, and whether they were made up
    here."""
    import numpy as np

    from calibration.candidates import other_plans, untimed

    own = untimed(table)
    if own.any():
        if most is not None:
            raise InputError("--candidates: the file names candidates of its own; leave it out")
        return table, own, False
    made = other_plans(table, MOST if most is None else most)
    if not made.rows:
        raise InputError(
            "no other plan of these jobs divides their sizes; add rows without a time for the "
            "runs that you could measure"
        )
    return (
        table._replace(rows=table.rows + made.rows),
        np.arange(len(table.rows) + len(made.rows)) >= len(table.rows),
        True,
    )


def _answer(
    table: TraceTable,
    name: str | None,
    budget_s: float,
    criterion: str,
    asked: Asked,
    most: int | None,
) -> tuple[Document, Document]:
    import numpy as np

    from calibration.candidates import cost_s, tasks
    from calibration.information import choose, known, problem, spread
    from calibration.predict import predict
    from calibration.traces import to_cases
    from dmodel import profiles
    from dmodel.cli.fit import base_for

    runs, free, made = _all_runs(table, most)
    cases = to_cases(runs)
    profile, reason = base_for(cases, name) if name is None else (profiles.load(name), "asked for")
    say(f"profile {profile.name}: {reason}")
    found = predict(cases, profile)
    fits = found.headroom_bytes >= 0.0 if made else np.ones(len(cases), bool)
    cost = cost_s(found.step_time_s, cases.labels.n_accel, asked)
    measured, open_runs = np.flatnonzero(~free), np.flatnonzero(free & fits)
    if not len(open_runs):
        raise InputError(
            "none of the candidates fits in memory by this model; name runs to measure as rows "
            "without a time"
        )
    left = known(problem(spread(cases, profile), cost, open_runs, open_runs), measured)
    chosen = choose(left, budget_s, criterion)
    rows = [runs.rows[i] for i in chosen.runs]
    able, unable = tasks(rows)
    document = {
        "profile": {"name": profile.name, "reason": reason},
        "criterion": criterion,
        "budget_device_minutes": budget_s / 60.0,
        "known_runs": len(measured),
        "candidates": len(open_runs),
        "candidates_made_here": made,
        "cheapest_device_minutes": float(cost[open_runs].min() / 60.0),
        "device_minutes": chosen.cost_s / 60.0,
        **_worth(left, chosen, criterion),
        "chosen": _chosen(cases, found, left, chosen),
        "not_separated": _not_separated(cases, profile),
        "not_for_collect": unable,
    }
    return document, {"tasks": able, "rows": [dict(row.cells) for row in rows]}


def _worth(problem: Problem, chosen: Choice, criterion: str) -> Document:
    """What the choice is worth, and at most any. Nats, or the relative error that is left of the
    predictions [1 sd of ln t, geometric
    mean of the candidates]."""
    import numpy as np

    got = chosen.value[-1] if chosen.value else 0.0
    share = got / chosen.bound if chosen.bound > 0.0 else 1.0
    if criterion == "everything":
        return {"nats": got, "nats_bound": chosen.bound, "share_of_bound": share}
    before = float(np.exp(0.5 * np.log(problem.open).mean()))
    return {
        "sd_before": before,
        "sd_after": before * float(np.exp(-got)),
        "sd_bound": before * float(np.exp(-chosen.bound)),
        "share_of_bound": share,
    }


def _chosen(cases: Cases, found: Any, problem: Problem, chosen: Choice) -> list[Document]:
    """One record per run, the most valuable for its cost first."""
    import numpy as np

    from dmodel.records import leaf

    low, high = found.interval()
    labels, plan = cases.labels, cases.plan
    gains = np.diff([0.0, *chosen.value])
    return [
        {
            "model": str(labels.model[i]),
            "accelerator": str(labels.accelerator[i]),
            "devices": int(labels.n_accel[i]),
            **{
                n: float(np.broadcast_to(leaf(plan, n), (len(cases),))[i])
                for n in ("dp", "tp", "pp", "cp", "micro_batch")
            },
            "recompute_layers": float(plan.layout.recompute_layers[i]),  # type: ignore[index]
            "global_batch": float(plan.global_batch[i]),  # type: ignore[index]
            "step_time_s": float(found.step_time_s[i]),
            "step_time_s_low": None if np.isnan(low[i]) else float(low[i]),
            "step_time_s_high": None if np.isnan(high[i]) else float(high[i]),
            "device_minutes": float(problem.cost_s[i] / 60.0),
            "gain": float(gain),
        }
        for i, gain in zip(chosen.runs, gains, strict=True)
    ]


def _not_separated(cases: Cases, profile: Any) -> list[str]:
    """What the data behind the profile leave mixed, for the chip and stack of most rows."""
    from collections import Counter

    from calibration.uncertainty.identify import identify, information

    pair = Counter(
        zip(cases.labels.accelerator.tolist(), cases.labels.stack.tolist(), strict=True)
    ).most_common(1)[0][0]
    found = information(profile, *pair)
    return [] if found is None else [str(mixed) for mixed in identify(found).mixed]


def _plan_words(c: Document) -> str:
    """The plan of a run in a few words."""
    degrees = [f"{n} {c[n]:g}" for n in ("tp", "cp", "pp", "dp") if c[n] != 1 or n in ("tp", "dp")]
    recompute = ["recompute"] if c["recompute_layers"] else []
    return " · ".join([*degrees, f"b {c['micro_batch']:g}", *recompute])


def _half_width(c: Document) -> str:
    """Half of the interval of the expected time; blank where there is none."""
    high = c["step_time_s_high"]
    return "" if high is None else f" ± {percent(high / c['step_time_s'] - 1.0, 0)}"


def _show(d: Document) -> None:
    rows = [
        (
            c["model"],
            c["accelerator"],
            c["devices"],
            _plan_words(c),
            seconds(c["step_time_s"]) + _half_width(c),
            f"{c['device_minutes']:,.0f}",
        )
        for c in d["chosen"]
    ]
    title = (
        f"Measure next, the most for its cost first: {d['device_minutes']:,.0f} of "
        f"{d['budget_device_minutes']:,.0f} device-minutes"
    )
    header = ("model", "accelerator", "devices", "plan", "expected (90 %)", "device-minutes")
    show_table(title, header, rows, right="devices|device-minutes")
    if "nats" in d:
        show_lines(
            f"Worth {d['nats']:.1f} nats; no choice within the budget is worth more than "
            f"{d['nats_bound']:.1f}."
        )
    else:
        show_lines(
            f"Error of the predictions (1 sd): {percent(d['sd_before'])} now, "
            f"{percent(d['sd_after'])} expected after; no choice within "
            f"the budget leaves less than {percent(d['sd_bound'])}."
        )
    show_lines(
        *d["not_separated"][:5],
        (
            f"Runs as rows of traces, and {len(d['chosen']) - len(d['not_for_collect'])} tasks: "
            f"{d['plan']}"
        ),
    )
