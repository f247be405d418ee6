"""`dmodel design`: the best plan for a job, or for each value of a list; or sizes and plan of a
whole run. With a certificate, prices of limits, launch settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dmodel.cli.design_options import (
    TOP,
    DesignJob,
    check,
    check_run,
    check_ways,
    fixed_job,
)
from dmodel.cli.design_plan import design_document, search, show_design
from dmodel.cli.design_vary import Varied, Vary, check_many, check_one, jobs_of, varied_of
from dmodel.cli.emitted import (
    EmitFile,
    EmitTo,
    check_target,
    emit_document,
    show_emitted,
    write_emitted,
)
from dmodel.cli.options import Json, takes
from dmodel.cli.output import Document, check_figure, deliver, say, stop
from dmodel.cli.run_options import Anyway, Terms, priced, stop_beyond_sense
from dmodel.cli.spread import Spread, computing

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from dmodel.asked import Asked

__all__ = ["command", "design_document", "search", "show_design"]

Method = Annotated[
    str | None,
    typer.Option(
        help=(
            "exact (all valid plans, with a proof; the default), gradient (descent over relaxed "
            "plans), or both, with the gap."
        )
    ),
]
Top = Annotated[int, typer.Option(help="Plans to show (exact search).")]
Attention = Annotated[
    str | None, typer.Option(help="Fused attention: flash, none; default: the stack's, else flash.")
]
Choice = Annotated[
    str,
    typer.Option(
        "--space",
        help="Search space: usual, or everything (placements, sharding groups, schedules).",
    ),
]
Pareto = Annotated[
    bool, typer.Option("--pareto", help="Also the Pareto front of time, memory and energy.")
]
Law = Annotated[
    list[str] | None,
    typer.Option("--law", metavar="KIND=NAME", help="Scaling law for loss, batch, shape or data."),
]
Failures = Annotated[
    bool,
    typer.Option(
        "--failures", help="Include failures (at Llama 3's rate), checkpoints and restarts."
    ),
]
Starts = Annotated[
    int | None,
    typer.Option(min=1, max=4096, help="Starts of the gradient search per discrete choice."),
]
Quick = Annotated[
    bool,
    typer.Option(
        "--brief", help="Only the design and its certificate: no limits' cost, laws, uncertainty."
    ),
]
Figure = Annotated[
    Path | None,
    typer.Option(metavar="FILE.png", help="Plot tokens/s over the values of a list."),
]


class Ways(NamedTuple):
    """How to search and what to say besides; a method of None was not said."""

    method: str | None
    top: int
    attention: str
    space: str
    pareto: bool
    law: list[str]
    failures: bool
    starts: int | None
    brief: bool
    emit: str | None
    emit_out: Path | None
    json: bool
    spread: Spread = Spread()
    executor: Executor | None = None


@takes(job=DesignJob, terms=Terms, spread=Spread)
def command(
    *,
    method: Method = None,
    top: Top = TOP,
    attention: Attention = None,
    space: Choice = "usual",
    pareto: Pareto = False,
    law: Law = None,
    failures: Failures = False,
    starts: Starts = None,
    brief: Quick = False,
    emit: EmitTo = None,
    emit_out: EmitFile = None,
    vary: Vary = None,
    figure: Figure = None,
    anyway: Anyway = False,
    json: Json = False,
    job: DesignJob,
    terms: Terms,
    spread: Spread,
) -> None:
    """Find the best plan that fits, or the best run: sizes, hardware and plan together."""
    check_target(emit, emit_out)
    check_figure(figure)
    ways = Ways(
        method,
        top,
        attention or "",
        space,
        pareto,
        law or [],
        failures,
        starts,
        brief,
        emit,
        emit_out,
        json,
        spread,
    )
    job = job._replace(settings=priced(job.settings, terms))
    varied = varied_of(job, vary or [])
    jobs = jobs_of(job, varied)
    for each in jobs:
        check(each)
        check_run(each, terms)
        check_ways(each, ways)
    many = varied is not None and len(jobs) > 1
    if many:
        check_many(jobs, ways)
    else:
        check_one(figure)
    with computing(spread) as executor:
        ways = ways._replace(executor=executor)
        if varied is not None and many:
            _curve(jobs, varied, ways, terms, anyway, figure)
        else:
            (_run if jobs[0].is_run else _plan)(jobs[0], ways, terms, anyway)


def _curve(
    jobs: list[DesignJob],
    varied: Varied,
    ways: Ways,
    terms: Terms,
    anyway: bool,
    figure: Path | None,
) -> None:
    """The best plan, or run, for each value of a list."""
    from dmodel.cli import design_curve, design_runs

    if jobs[0].is_run:
        way, document = design_runs, design_runs.answered(jobs, varied, ways)
    else:
        way, document = design_curve, design_curve.answered(jobs, varied, ways, terms)
    if figure is not None:
        design_curve.draw(document, figure)
    deliver(document, ways.json, way.show)
    if why := way.why_none(document, anyway):
        say(f"dmodel: {why}")
        stop(1)


def _plan(job: DesignJob, ways: Ways, terms: Terms, anyway: bool) -> None:
    """The best plan of a job whose sizes are given."""
    from dmodel.cli import design_plan
    from dmodel.cli.question import setting

    asked = setting(fixed_job(job))
    _say_profile(asked)
    document, best = design_plan.answered(job, asked, ways, terms)
    if ways.emit is not None and best is not None:
        document["emit"] = emit_document(asked, asked.model, best, ways.emit)
    _deliver(document, ways, show_design)
    if best is None:
        binding = document["binding"] or {"message": "no plan found that fits"}
        say(f"dmodel: {binding['message']}")
        for remedy in document["remedies"]:
            say(f"  would fit: {remedy['message']}")
        stop(1)
    stop_beyond_sense(document, anyway)


def _run(job: DesignJob, ways: Ways, terms: Terms, anyway: bool) -> None:
    """The best run: sizes and plan together."""
    from dmodel.cli import design_run, design_tables

    asked = design_run.run_setting(job)
    _say_profile(asked)
    document, emitted = design_run.answered(job, asked, ways)
    if emitted is not None:
        document["emit"] = emitted
    _deliver(document, ways, design_tables.show_run)
    if document["best"] is None:
        design_tables.say_infeasible(document)
        stop(1)
    stop_beyond_sense(document, anyway)


def _say_profile(asked: Asked) -> None:
    from dmodel.asked import provenance

    say(provenance(asked))


def _deliver(document: Document, ways: Ways, show: Any) -> None:
    """Print the answer, write the launch settings."""

    def whole(d: Document) -> None:
        show(d)
        if "emit" in d and ways.emit_out is None:
            show_emitted(d["emit"])

    deliver(document, ways.json, whole)
    if "emit" in document:
        write_emitted(document["emit"], ways.emit_out)
