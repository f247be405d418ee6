"""`dmodel sensitivity`: what a plan's time, memory or cost depends on, the largest first. At the
plan, and when the best plan follows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dmodel.cli.design_risk import MAX_RISK, MaxRisk
from dmodel.cli.options import Degrees, Job, Json, takes
from dmodel.cli.output import Document, deliver, digits, say, show_lines, show_table, stop
from dmodel.cli.spread import Spread
from dmodel.errors import NoPlanFits

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.cli.sensitivity_wanted import Wanted

Output = Annotated[
    str,
    typer.Option(
        help=(
            "step_time, tokens_per_s, mfu, memory, dollars_per_token (cost), joules_per_token "
            "(energy), time_to_loss, dollars (of the run) or largest_run."
        )
    ),
]
Top = Annotated[int, typer.Option(help="Rows to show; 0 = all. JSON always has all.")]
Reoptimize = Annotated[
    bool,
    typer.Option(
        "--reoptimize",
        help=("Search the best plan, and again as inputs change; needs no plan."),
    ),
]
Follow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="INPUT",
        help=(
            "Search the best plan along this input and say where it changes; default: the 6 most "
            "important inputs."
        ),
    ),
]
GlobalBase = Annotated[
    int,
    typer.Option(
        "--global", metavar="N", help="Sobol indices from N base samples, a power of two; 0 = none."
    ),
]
Ranges = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        metavar="INPUT=LOW:HIGH",
        help="Ranges for Sobol indices; default: the 10 most important inputs, ×/÷ 1.25.",
    ),
]
Interact = Annotated[
    int,
    typer.Option("--interactions", metavar="N", help="Second order of the N largest; 0 = none."),
]
Map = Annotated[
    str,
    typer.Option(
        "--map",
        metavar="X,Y",
        help="Regime map: flops, bandwidth, latency, memory, devices, batch, sequence or inputs.",
    ),
]
Loss = Annotated[
    float | None,
    typer.Option(
        help="Loss of time_to_loss, dollars [nat/token]; default: that of 20 tokens per parameter."
    ),
]
Days = Annotated[float, typer.Option("--deadline-days", help="Duration of largest_run [day].")]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help=("Compare with central differences and a new search; exit 1 where they differ."),
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write figures (PNG), text and JSON here."),
]

LEAST = 5e-4
"""Elasticities below this change nothing that is shown."""


@takes(job=Job, degrees=Degrees, spread=Spread)
def command(
    *,
    output: Output = "step_time",
    top: Top = 25,
    reoptimize: Reoptimize = False,
    max_risk: MaxRisk = MAX_RISK,
    follow: Follow = None,
    base: GlobalBase = 0,
    ranges: Ranges = None,
    interact: Interact = 0,
    regime_axes: Map = "",
    loss: Loss = None,
    deadline_days: Days = 90.0,
    check: Check = False,
    report: Report = None,
    json: Json = False,
    job: Job,
    degrees: Degrees,
    spread: Spread,
) -> None:
    """Elasticities: the change of an output [%] when an input grows by 1 %, at one plan, or with
    `--reoptimize` at the best plan."""
    from dmodel.cli.question import check_count, setting
    from dmodel.cli.sensitivity_wanted import Wanted, check_options

    check_count("top", top, 0)
    check_count("global", base, 0)
    check_count("interactions", interact, 0)
    wanted = Wanted(
        output,
        reoptimize,
        max_risk,
        follow,
        base,
        ranges,
        interact,
        regime_axes,
        loss,
        deadline_days,
        check,
        report,
        spread,
    )
    check_options(wanted, degrees)
    _answer(setting(job, degrees), degrees, wanted, top, json)


def _answer(asked: Asked, degrees: Degrees, wanted: Wanted, top: int, json: bool) -> None:
    """Answer what is wanted, and end with 1 where there is no plan or a check is wrong."""
    from dmodel.asked import provenance
    from dmodel.cli.sensitivity_answer import answer
    from dmodel.cli.sensitivity_parts import stop_where_wrong
    from dmodel.cli.sensitivity_shown import write_report
    from dmodel.sensitivity.outputs import output_name

    output = output_name(wanted.output)
    say(provenance(asked))
    begun = time.perf_counter(), time.process_time()
    try:
        document, figures = answer(asked, degrees, wanted)
    except NoPlanFits as no:
        nothing: Document = {
            **asked.document(),
            "output": output,
            "plan": None,
            "message": str(no),
        }
        deliver(nothing, json, lambda d: say(f"dmodel: {d['message']}"))
        stop(1)
    if wanted.report is not None:
        document["files"] = write_report(wanted.report, document, figures)
        say(
            f"report: {time.perf_counter() - begun[0]:.1f} s, "
            f"{time.process_time() - begun[1]:.1f} s of processors"
        )
    deliver(document, json, lambda d: _show(d, top))
    stop_where_wrong(document)


def show_elasticities(d: Document, top: int) -> None:
    """Table of the largest elasticities, and beside them those of the re-optimised plan where they
    are known."""
    large = [e for e in d["elasticities"] if abs(e["elasticity"]) >= LEAST]
    shown = large[: top or None]
    columns = {**_inputs(shown), **_errors(shown), **_following(shown, d.get("reoptimized"))}
    header, rows = list(columns), list(zip(*columns.values(), strict=True))
    title = f"Change of {d['output']} [%] when the input grows by 1 %"
    show_table(title, header, rows, right="at (SI)|elasticity|±|re-optimised")
    rest = len(large) - len(shown)
    more = f"{rest} smaller ones not shown (--top 0 shows all); " if rest else ""
    show_lines(
        f"{more}{len(d['elasticities']) - len(large)} below {LEAST:g}; {len(d['left_out'])} "
        "switches, zeros and infinities have none."
    )


def _inputs(shown: list[Document]) -> dict[str, list[str]]:
    """The columns that every table of elasticities has."""
    return {
        "input": [e["name"] for e in shown],
        "group": [e["group"] for e in shown],
        "at (SI)": [digits(e["at"], 4) for e in shown],
        "elasticity": [f"{e['elasticity']:+.4f}" for e in shown],
    }


def _errors(shown: list[Document]) -> dict[str, list[str]]:
    """The column of the errors, where there are some."""
    if not any("error" in e for e in shown):
        return {}
    return {"±": [f"{e['error']:.4f}" if "error" in e else "" for e in shown]}


def _following(shown: list[Document], found: Document | None) -> dict[str, list[str]]:
    """The column of the plan that follows, where it is known."""
    if not found:
        return {}
    known = found["elasticities"]
    cells = [f"{known[e['name']]:+.4f}" if e["name"] in known else "chosen" for e in shown]
    return {"re-optimised": cells}


def _show(d: Document, top: int) -> None:
    from dmodel.cli.question import short, title
    from dmodel.cli.sensitivity_shown import show_parts

    show_lines(f"{title(d)}: {short(d['plan'])}; {d['output']} = {digits(d['value'], 4)}")
    show_elasticities(d, top)
    if d["output"] == "step_time":
        show_lines(f"Σ rates − Σ times = {d['sum_rates_minus_sum_times']:.9f} (−1 by dimension).")
    show_parts(d)
