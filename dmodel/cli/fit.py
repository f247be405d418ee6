"""`dmodel fit`: a profile from measured step times."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dmodel.cli.compiled import ready, use_one_thread_for_matrices
from dmodel.cli.kept_out import kept_out
from dmodel.cli.options import Json, Seed, Strict, Together, takes
from dmodel.cli.output import (
    Document,
    check_apart,
    deliver,
    progress,
    say,
    show_lines,
    show_table,
    stop,
)
from dmodel.cli.spread import Spread, check_spread, computing
from dmodel.errors import InputError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import numpy as np

    from calibration.traces import Cases, TraceTable
    from dmodel.profiles import Profile

Traces = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACES.csv…",
        help="Measured configurations, CSV or Parquet, or folders of them.",
    ),
]
Base = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="BASE",
        help="Profile to start from, name or file; default: the nearest.",
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        metavar="PROFILE.json",
        help="Where to write the fitted profile: as JSON, packed if the name ends in .npz.",
    ),
]
HoldOut = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="Share of the rows to hold out for evaluation, in whole groups.",
    ),
]


Implausible = Annotated[
    bool,
    typer.Option("--with-implausible", help="Also fit rows flagged as implausible."),
]


Drift = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="How much coefficients of known stacks may have changed since BASE was fitted.",
    ),
]


STACKS = 4
"""Stacks that the closing lines name at most; the document has all."""


@takes(spread=Spread)
def command(
    *,
    traces: Traces,
    out: Out,
    profile: Base = None,
    seed: Seed = 0,
    hold_out: HoldOut = 0.0,
    implausible: Implausible = False,
    drift: Drift = 0.0,
    together: Together = None,
    strict: Strict = False,
    json: Json = False,
    spread: Spread,
) -> None:
    """Fit a profile to measured step times. Coefficients that they do not determine keep the values
    of the base profile."""
    if not 0.0 <= hold_out < 1.0:
        raise InputError(f"--hold-out: expected a share from 0 to below 1, got {hold_out}")
    check_spread(spread)
    if not 0.0 <= drift <= 1.0:
        raise InputError(f"--drift: expected a share from 0 to 1, got {drift}")
    check_apart(out, *traces)
    _check_writable(out)
    use_one_thread_for_matrices()
    ready()
    rows = _rows(traces, together, strict, seed, json)
    with computing(spread) as executor:
        _fit(*rows, out, profile, seed, hold_out, implausible, drift, json, executor)


def _rows(
    traces: list[Path], together: bool | None, strict: bool, seed: int, json: bool
) -> tuple[TraceTable, Cases, Document]:
    """The rows of the files, as cases too, and what is to be said of repeats; what cannot be used
    is said, and ends the command where it is asked to be strict."""
    from calibration.traces import read, to_cases
    from dmodel.cli.fleet import by_configuration, read_fleet, told
    from dmodel.cli.rows import faults, report_problems

    if by_configuration(traces, together):
        fleet = read_fleet(traces)
        table, cases, about = fleet.table, fleet.cases, told(fleet)
    else:
        table, about = read(traces), {}
        cases = partial(to_cases, table)
        report_problems(table)
    if strict and faults(table):
        _refuse(table, about, seed, json)
    return table, cases(), about


def _fit(
    table: TraceTable,
    cases: Cases,
    about: Document,
    out: Path,
    profile: str | None,
    seed: int,
    hold_out: float,
    implausible: bool,
    drift: float,
    json: bool,
    executor: Executor | None,
) -> None:
    from calibration.predict import predict
    from calibration.weights import believed
    from dmodel import profiles
    from dmodel.cli.noticed import noticed, say_noticed
    from dmodel.cli.rows import finite

    base, reason = base_for(cases, profile)
    say(f"starting from profile {base.name}: {reason}")
    table, cases, found = finite(table, cases, predict(cases, base.certain))
    held_out, judged_on = kept_out(cases, base, hold_out, seed)
    seen = noticed(table, cases, found.step_time_s, [base.name] * len(cases))
    say_noticed(seen, table)
    cases = believed(cases) if implausible else cases
    started = time.perf_counter()
    how = {"drift": drift, "executor": executor}
    fitted = fit_with_bar(cases, base, seed, held_out, out.stem, **how)
    profiles.save(fitted, out)
    say(f"wrote {out}: {fitted.description}")
    document = {
        "profile": str(out),
        "description": fitted.description,
        "base": {"name": base.name, "reason": reason},
        "seed": seed,
        "seconds": time.perf_counter() - started,
        "stacks": stacks_of_fit(cases, held_out),
        "held_out": judged_on,
        **summary(table, cases, fitted),
        **seen,
        **about,
    }
    deliver(document, json, _show)


def _refuse(table: TraceTable, about: Document, seed: int, json: bool) -> None:
    """End with 1 and the reasons, as a document where one was asked for. This is for
    rows that cannot be used, where `--strict` fits all or none."""
    from dmodel.cli.rows import aside_by_source, faults, reasons, show_reasons

    said = f"{faults(table)} (--strict); nothing fitted"
    document = {
        "profile": None,
        "description": said,
        "seed": seed,
        "rows_read": table.total,
        "rows_used": len(table.rows),
        "rows_fitted": 0,
        "set_aside": [p._asdict() for p in table.problems],
        "set_aside_by_source": aside_by_source(table),
        "reasons": reasons(table),
        "notes": [p._asdict() for p in table.notes],
        **about,
    }
    deliver(document, json, lambda d: show_reasons(d["reasons"]))
    say(f"dmodel: {said}")
    stop(1)


def stacks_of_fit(cases: Cases, held_out: np.ndarray | None) -> list[str]:
    """Stacks of the rows that are fitted, that of most rows first: names for `--stack` of a
    plan."""
    from calibration.weights import weights_of

    used = weights_of(cases.labels.flag) > 0.0
    if held_out is not None:
        used &= ~held_out
    return [stack for stack, _ in Counter(cases.labels.stack[used].tolist()).most_common()]


def _check_writable(out: Path) -> None:
    """Find out before the fit, not after it."""
    new = not out.exists()
    try:
        out.open("ab").close()
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise InputError(
            f"--out {out}: cannot write there ({reason}); expected a file name in a folder "
            "that "
            "exists"
        ) from None
    if new:
        out.unlink()


def base_for(cases: Cases, name: str | None) -> tuple[Profile, str]:
    """The profile asked for, else the shipped one nearest to most of the rows."""
    from dmodel import profiles

    if name is not None:
        return profiles.load(name), "asked for"
    pairs = Counter(
        zip(cases.labels.accelerator.tolist(), cases.labels.stack.tolist(), strict=True)
    )
    votes: Counter[str] = Counter()
    found: dict[str, tuple[Profile, str]] = {}
    for pair, rows in pairs.items():
        profile, reason = profiles.nearest(*pair)
        votes[profile.name] += rows
        found.setdefault(profile.name, (profile, reason))
    best, rows = votes.most_common(1)[0]
    return found[best][0], f"{found[best][1]}; nearest of {rows} of {len(cases)} rows"


def fit_with_bar(
    cases: Cases,
    base: Profile | None,
    seed: int,
    held_out: np.ndarray | None,
    name: str,
    **how: Any,
) -> Profile:
    """`calibration.fit.fit` with a progress bar on stderr."""
    from calibration.fit import fit

    with progress() as bar:
        task = bar.add_task("fitting", total=1.0, note="making tables of rows")

        def step(done: float, loss: float) -> None:
            bar.update(task, completed=min(done, 1.0), note=f"loss {loss:,.1f}")

        return fit(cases, base, seed=seed, held_out=held_out, progress=step, name=name, **how)


def summary(table: TraceTable, cases: Cases, fitted: Profile) -> Document:
    """What a fit used, left out and reached. Rows, reasons, errors of fitted and of other rows,
    what the data determined."""
    from calibration.evaluate import evaluate, fitted_rows
    from calibration.predict import predict
    from dmodel.cli.evaluate import headline
    from dmodel.cli.rows import aside_by_source, errors_by_source, reasons

    used = fitted_rows(cases, fitted.fitted_rows)
    found = predict(cases, fitted.certain).step_time_s
    judged = errors_by_source(evaluate(cases, found, used))
    coefficients = fitted.describe()
    return {
        "rows_read": table.total,
        "rows_used": int(cases.labels.repeats.sum()),
        "rows_fitted": int(cases.labels.repeats[used].sum()),
        "set_aside": [p._asdict() for p in table.problems],
        "set_aside_by_source": aside_by_source(table),
        "reasons": reasons(table),
        "not_fitted_by_flag": unfitted_flags(cases),
        **judged,
        "dense_16_bit_gpu_without_flags": headline(cases, found, used),
        "coefficients": coefficients,
        "determined": [c["name"] for c in coefficients if c["determined"]],
    }


def unfitted_flags(cases: Cases) -> dict[str, int]:
    """Rows that are read and judged but never fitted, by flag."""
    from calibration.weights import weights_of

    return dict(Counter(cases.labels.flag[weights_of(cases.labels.flag) == 0.0].tolist()))


def _show(d: Document) -> None:
    from dmodel.cli.evaluate import show_headline
    from dmodel.cli.rows import show_errors

    show_errors(
        [*d["by_source"].values(), d["overall"]],
        "|predicted / measured − 1| of step time",
        d["set_aside_by_source"],
    )
    show_headline(d["dense_16_bit_gpu_without_flags"])
    rows = [
        (c["name"], f"{c['value']:.4g}", c["unit"], f"{c['prior_value']:g}", c["meaning"])
        for c in d["coefficients"]
        if c["determined"]
    ]
    known = f"{len(rows)} of {len(d['coefficients'])}"
    title = (
        f"Coefficients that measurements determine ({known}), those behind the base profile "
        "included; the others lean on the prior"
    )
    show_table(
        title,
        ("name", "shared value", "unit", "prior", "meaning"),
        rows,
        right="shared value|prior",
    )
    for flag, n in d["not_fitted_by_flag"].items():
        show_lines(f"{n} rows flagged {flag}: judged, not fitted")
    show_lines(
        f"{d['rows_fitted']} rows fitted in {d['seconds']:.0f} s. Next:",
        *next_steps(d["profile"], d["stacks"]),
    )


def next_steps(profile: str, stacks: list[str]) -> list[str]:
    """How to use a fitted profile, as lines for the shell. On rows, which name their stack, and for
    a plan, by that of most rows."""
    path = shlex.quote(profile)
    others = (
        f"  (or of {', '.join(stacks[1:STACKS])}{', …' if len(stacks) > STACKS else ''})"
        if len(stacks) > 1
        else ""
    )
    return [
        f"  dmodel predict TRACES.csv --profile {path}",
        f"  dmodel evaluate TRACES.csv --profile {path}",
        (
            f"  dmodel predict --system … --devices … --model … --global-batch … --profile {path} "
            f"--stack {shlex.quote(stacks[0])}{others}"
        ),
    ]
