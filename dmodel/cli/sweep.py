"""`dmodel sweep`: coefficients × plans × jobs by Monte Carlo, on as many machines as there are."""

from __future__ import annotations

import csv
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dmodel.cli.design_risk import MAX_RISK, MaxRisk, risk_of
from dmodel.cli.options import Job, Json, takes
from dmodel.cli.output import (
    Document,
    deliver,
    gib,
    percent,
    say,
    seconds,
    show_lines,
    show_table,
    stop,
)
from dmodel.cli.spread import Spread, check_spread, computing, told_progress
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.montecarlo import Ranked, Sweep, Swept

SPACES = ("usual", "everything")

Draws = Annotated[int, typer.Option(help="Draws of the coefficients.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed of the draws.")]
Top = Annotated[int, typer.Option(help="Plans to list for each job.")]
Space = Annotated[
    str | None,
    typer.Option(help="Search space: usual (the default), or everything."),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plans",
        metavar="FILE.csv",
        help="Evaluate these plans instead of the search space: columns such as tp and pp.",
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="NAME=V1,V2,…",
        help="One job per value of a `--set` name; repeat for all combinations.",
    ),
]
PerBlock = Annotated[int | None, typer.Option("--block", help="Evaluations per block of work.")]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Checkpoint here: an interrupted run resumes.",
    ),
]


@takes(job=Job, spread=Spread)
def command(
    *,
    draws: Draws = 256,
    seed: Seed = 0,
    top: Top = 10,
    space: Space = None,
    plans: PlanFile = None,
    max_risk: MaxRisk = MAX_RISK,
    vary: Vary = None,
    block: PerBlock = None,
    out: Out = None,
    json: Json = False,
    job: Job,
    spread: Spread,
) -> None:
    """Propagate the uncertainty of the coefficients through every plan: quantiles of the step
    time, and how likely each plan is the best."""
    check_spread(spread)
    _check_counts(draws=draws, top=top, block=block)
    risk = risk_of(max_risk)
    words = None if plans is None else read_plans(plans)
    _check_space(space, plans)
    jobs = jobs_of(job, vary or [])
    how: dict[str, Any] = {"seed": seed, "top": top, "risk": risk}
    how |= {} if block is None else {"pairs": block}
    sweeps = _sweeps(jobs, words, space == "everything", draws, how)
    found = _run(sweeps, spread, out)
    document = {
        "draws": draws,
        "seed": seed,
        "max_risk": risk,
        "parts": None if out is None else str(out),
        "jobs": [job_document(each) for each in found],
    }
    deliver(document, json, _show)
    if not any(each.fits for each in found):
        say("dmodel: no plan of any job fits; more devices, or a higher --max-risk, may help")
        stop(1)


def _check_counts(**given: int | None) -> None:
    from dmodel.cli.question import check_count

    for name, value in given.items():
        check_count(name, value)


def _check_space(space: str | None, plans: Path | None) -> None:
    """Refuse an unknown space, and one beside a list of plans."""
    from dmodel.cli.question import choice

    if space is None:
        return
    choice("space", space, SPACES)
    if plans is not None:
        raise InputError(f"--space {space}: the plans are those of --plans; leave one of the two")


def jobs_of(job: Job, vary: list[str]) -> list[Job]:
    """A job for each combination of values.

    Raises:
      InputError: a list that says no value, or a name twice.
    """
    from dmodel.cli.design_vary import values_of
    from dmodel.settings import typed

    named = typed(vary, "--vary")
    values = [[f"{name}={v}" for v in values_of(f"--vary {name}", v)] for name, v in named.items()]
    if twice := set(named) & set(typed(job.settings or ())):
        raise InputError(f"--vary {', '.join(sorted(twice))}: also given by --set; leave one")
    return [job._replace(settings=[*(job.settings or []), *each]) for each in product(*values)]


def read_plans(path: Path) -> list[dict[str, str]]:
    """Layouts of a file, a row each: name → value of columns and settings that are said.

    Raises:
      InputError: no file of rows with a heading, or a row that is none, with its line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"--plans {path}: expected a CSV file in UTF-8 ({error})") from error
    rows = csv.DictReader(text.splitlines())
    _check_heading(path, [str(name).strip() for name in rows.fieldnames or ()])
    found = [_layout(row, f"--plans {path}, line {rows.line_num}") for row in rows]
    if not found:
        raise InputError(f"--plans {path}: expected a row for each plan, got none")
    return found


def _check_heading(path: Path, names: list[str]) -> None:
    """Refuse a heading without names, or with one twice."""
    if not names or not all(names) or len(set(names)) < len(names):
        raise InputError(
            f"--plans {path}: expected a heading of names, each once, such as tp,pp,micro_batch; "
            f"got {','.join(names)!r}"
        )


def _layout(row: dict[str, Any], where: str) -> dict[str, str]:
    """What a row says; where: it stands."""
    from dmodel.settings import typed

    if None in row or None in row.values():
        raise InputError(f"{where}: expected as many values as names in the heading")
    return typed([f"{name}={value.strip()}" for name, value in row.items() if value.strip()], where)


def _sweeps(
    jobs: list[Job],
    words: list[dict[str, str]] | None,
    everything: bool,
    draws: int,
    how: dict[str, Any],
) -> list[Sweep]:
    """The sweep of each job."""
    from dmodel.asked import provenance
    from dmodel.cli.question import setting
    from dmodel.montecarlo import plans_of, sweep_of

    found = []
    for job in jobs:
        asked: Asked = setting(job)
        say(provenance(asked))
        plans = plans_of(asked, words, everything)
        found.append(sweep_of(asked, plans, draws, **how))
    return found


def _run(sweeps: list[Sweep], spread: Spread, out: Path | None) -> list[Swept]:
    """Compute, and say how far it is."""
    from dmodel.montecarlo import swept
    from dmodel.parts import Folder

    folder = None if out is None else Folder(out, lambda words: say(f"dmodel: {words}"))
    total = sum(each.size for each in sweeps)
    tell = told_progress("sweep", total, "evaluations")
    with computing(spread) as executor:
        found = swept(sweeps, executor=executor, folder=folder, progress=tell)
    kinds = {kind for each in found for kind in each.processors}
    if len(kinds) > 1:
        say(
            f"dmodel: parts come from {len(kinds)} kinds of processors; last bits may differ from "
            "those of one kind"
        )
    return found


def job_document(found: Swept) -> Document:
    """The answer for a job, as plain data."""
    from dmodel.montecarlo.histogram import ERROR

    names = ("considered", "fits", "evaluations", "mean", "deviation", "quantiles")
    whole = {name: getattr(found, name) for name in names}
    spread = {n: whole.pop(n) for n in ("mean", "deviation", "quantiles")}
    return {
        **found.sweep.asked.document(),
        **whole,
        "step_time_s": _levels(spread) if found.fits else None,
        "quantile_error": ERROR,
        "best": [plan_row(each) for each in found.best],
        "front": [plan_row(each) for each in found.front],
        "often": [plan_row(each) for each in found.often],
        "processors": found.processors,
    }


def _levels(spread: Document) -> Document:
    """Quantiles by their share."""
    from dmodel.montecarlo.answer import LEVELS

    by_share = {f"{level:g}": x for level, x in zip(LEVELS, spread["quantiles"], strict=True)}
    return {**spread, "quantiles": by_share}


def plan_row(each: Ranked) -> Document:
    """A plan under all draws, as plain data."""
    from dmodel.cli.question import plan_document

    spread = {"mean": each.mean, "deviation": each.deviation, "quantiles": each.quantiles}
    return {
        "number": each.number,
        "plan": None if each.plan is None else plan_document(each.plan),
        "words": each.words,
        "step_time_s": {**_levels(spread), "at_the_mean": each.center},
        "memory_bytes_per_device": each.memory_bytes,
        "best_in": each.best,
    }


LISTS = {
    "best": "Least mean step time",
    "front": "Pareto front of mean step time and memory",
    "often": "Fastest in some draw, most often first",
}
"""Lists of plans in the answer, with their titles."""

SHOWN = 10
"""Plans shown of the front, and of those that are the fastest in some draw; JSON has all."""


def _show(d: Document) -> None:
    from dmodel.cli.question import title

    for job in d["jobs"]:
        show_lines(
            title(job),
            f"{job['considered']:,} plans, {job['fits']:,} fit, × {d['draws']:,} draws of the "
            f"coefficients: {job['evaluations']:,} evaluations",
        )
        if job["step_time_s"] is None:
            continue
        for name, words in LISTS.items():
            rows = job[name] if name == "best" else job[name][:SHOWN]
            rest = len(job[name]) - len(rows)
            _show_plans(words + (f" ({rest} more in --json)" if rest else ""), rows)


def _show_plans(words: str, rows: list[Document]) -> None:
    from dmodel.cli.question import short

    header = ("plan", "mean", "median", "5 %", "95 %", "memory", "best in")
    cells = []
    for row in rows:
        time = row["step_time_s"]
        low, median, high = (seconds(x) for x in time["quantiles"].values())
        plan = row["words"] or short(row["plan"])
        memory = gib(row["memory_bytes_per_device"])
        cells.append((plan, seconds(time["mean"]), median, low, high, memory))
        cells[-1] += (percent(row["best_in"]),)
    show_table(words, header, cells)
