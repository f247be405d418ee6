"""`dmodel fit`: a profile from measured step times."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dmodel.cli.options import Json, Seed, Strict
from dmodel.cli.output import Document, deliver, progress, say, show_lines, show_table, stop
from dmodel.types import InputError

if TYPE_CHECKING:
    import numpy as np

    from calibration.traces import Cases, TraceTable
    from dmodel.profiles import Profile

Traces = Annotated[list[Path], typer.Argument(metavar="TRACES.csv…", help="Measured configurations, CSV or Parquet.")]
Base = Annotated[
    str | None, typer.Option("--profile", metavar="BASE", help="Profile to start from, name or file; default: the nearest to the traces.")
]
Out = Annotated[Path, typer.Option(metavar="PROFILE.json", help="Where to write the fitted profile.")]
HoldOut = Annotated[
    float, typer.Option(metavar="SHARE", help="Share of the rows to keep out of the fit, by whole groups, and judge it on.")
]


def command(
    traces: Traces, out: Out, profile: Base = None, seed: Seed = 0, hold_out: HoldOut = 0.0, strict: Strict = False, json: Json = False
) -> None:
    """Fit a profile to measured step times; what they do not determine stays where the base profile or its rows have it."""
    from calibration.traces import read, split, to_cases
    from dmodel import profiles
    from dmodel.cli.rows import report_problems

    if not 0.0 <= hold_out < 1.0:
        raise InputError(f"--hold-out: expected a share from 0 to below 1, got {hold_out}")
    _check_writable(out)
    table = read(traces)
    report_problems(table)
    if strict and table.problems:
        say(f"dmodel: {len(table.problems)} unusable rows (--strict); nothing fitted")
        stop(1)
    cases = to_cases(table)
    base, reason = base_for(cases, profile)
    say(f"starting from profile {base.name}: {reason}")
    held_out = split(cases, hold_out, seed) if hold_out else None
    started = time.perf_counter()
    fitted = fit_with_bar(cases, base, seed, held_out, out.stem)
    profiles.save(fitted, out)
    say(f"wrote {out}: {fitted.description}")
    document = {
        "profile": str(out),
        "description": fitted.description,
        "base": {"name": base.name, "reason": reason},
        "seed": seed,
        "seconds": time.perf_counter() - started,
        **summary(table, cases, fitted),
    }
    deliver(document, json, _show)


def _check_writable(out: Path) -> None:
    """Find out before the fit, not after it."""
    new = not out.exists()
    try:
        out.open("ab").close()
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise InputError(f"--out {out}: cannot write there ({reason}); expected a file name in a folder that exists") from None
    if new:
        out.unlink()


def base_for(cases: Cases, name: str | None) -> tuple[Profile, str]:
    """The profile asked for, else the shipped one nearest to most of the rows."""
    from dmodel import profiles

    if name is not None:
        return profiles.load(name), "asked for"
    pairs = Counter(zip(cases.labels.accelerator.tolist(), cases.labels.stack.tolist(), strict=True))
    votes: Counter[str] = Counter()
    found: dict[str, tuple[Profile, str]] = {}
    for pair, rows in pairs.items():
        profile, reason = profiles.nearest(*pair)
        votes[profile.name] += rows
        found.setdefault(profile.name, (profile, reason))
    best, rows = votes.most_common(1)[0]
    return found[best][0], f"{found[best][1]}; nearest of {rows} of {len(cases)} rows"


def fit_with_bar(cases: Cases, base: Profile | None, seed: int, held_out: np.ndarray | None, name: str, **how: Any) -> Profile:
    """`calibration.fit.fit` with a progress bar on stderr."""
    from calibration.fit import fit

    with progress() as bar:
        task = bar.add_task("fitting", total=1.0, note="compiling")

        def step(done: float, loss: float) -> None:
            bar.update(task, completed=min(done, 1.0), note=f"loss {loss:,.1f}")

        return fit(cases, base, seed=seed, held_out=held_out, progress=step, name=name, **how)


def summary(table: TraceTable, cases: Cases, fitted: Profile) -> Document:
    """What a fit used, left out and reached: rows, reasons, errors of fitted and of other rows, what the data determined."""
    from calibration.evaluate import evaluate, fitted_rows
    from calibration.predict import predict
    from dmodel.cli.evaluate import headline
    from dmodel.cli.rows import aside_by_source, errors_by_source, reasons

    used = fitted_rows(cases, fitted.fitted_rows)
    found = predict(cases, fitted).step_time_s
    judged = errors_by_source(evaluate(cases, found, used))
    coefficients = fitted.describe()
    return {
        "rows_read": table.total,
        "rows_used": len(cases),
        "rows_fitted": int(used.sum()),
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
    from calibration.fit import weights_of

    return dict(Counter(cases.labels.flag[weights_of(cases.labels.flag) == 0.0].tolist()))


def _show(d: Document) -> None:
    from dmodel.cli.evaluate import show_headline
    from dmodel.cli.rows import show_errors

    show_errors([*d["by_source"].values(), d["overall"]], "|predicted / measured − 1| of step time", d["set_aside_by_source"])
    show_headline(d["dense_16_bit_gpu_without_flags"])
    rows = [
        (c["name"], f"{c['value']:.4g}", c["unit"], f"{c['prior_value']:g}", c["meaning"]) for c in d["coefficients"] if c["determined"]
    ]
    known = f"{len(rows)} of {len(d['coefficients'])}"
    title = f"Coefficients that measurements determine ({known}), those behind the base profile included; the others lean on the prior"
    show_table(title, ("name", "shared value", "unit", "prior", "meaning"), rows, right="shared value|prior")
    for flag, n in d["not_fitted_by_flag"].items():
        show_lines(f"{n} rows flagged {flag}: judged, not fitted")
    show_lines(
        f"{d['rows_fitted']} rows fitted in {d['seconds']:.0f} s. Next: dmodel predict TRACES.csv --profile {d['profile']}, "
        f"dmodel evaluate TRACES.csv --profile {d['profile']}"
    )
