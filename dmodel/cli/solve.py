"""`dmodel solve`: at which value of an input an output of a plan is as wanted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from dmodel.cli.compiled import ready
from dmodel.cli.options import Degrees, Job, Json, takes
from dmodel.cli.output import (
    Document,
    deliver,
    digits,
    gib,
    percent,
    say,
    seconds,
    show_lines,
    show_table,
    stop,
)
from dmodel.cli.run_options import Amount, Terms, check_amount, wanted_of

if TYPE_CHECKING:
    from dmodel.solve import Solution
    from dmodel.solve.answer import Root

Input = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="INPUT",
        help=(
            "Input to vary: a name of --set (seq_len, global_batch, recompute_layers, …), a "
            "hardware input as `dmodel sensitivity` lists them (bandwidth.inter, "
            "chip.flops_per_s, …), devices, or a parallel degree."
        ),
    ),
]
Goal = Annotated[
    str,
    typer.Option(
        "--such-that",
        metavar="OUTPUT=VALUE",
        help=(
            "step_time=5s, mfu=45%, tokens_per_s=1e6, tokens_per_s_per_device=900, memory=70GB, "
            "days=30, dollars=1e6 (both of --tokens, else of 20 per parameter), "
            "dollars_per_token=…, …; a bound too, in quotes: 'days<=30'."
        ),
    ),
]
Between = Annotated[
    tuple[float, float] | None,
    typer.Option(
        metavar="LOW HIGH",
        help="Range of the input, SI; default: 1/100 to 100 times its value.",
    ),
]


DEVICES = ("devices", "n_accel")
"""Names of the number of devices, which need not be stated where it is solved for."""

NODE, MOST = 8, 65536
"""Devices that a search for their number starts from at least, and ends at [count]."""


@takes(amount=Amount, job=Job, degrees=Degrees)
def command(
    *,
    name: Input,
    such_that: Goal,
    between: Between = None,
    json: Json = False,
    amount: Amount,
    job: Job,
    degrees: Degrees,
) -> None:
    """Find all values of one input that give a wanted output of the plan. Exit 1, with the reason,
    where there is none."""
    from dmodel.cli.question import question_of

    check_amount(amount, Terms())
    stated = job.devices is not None or name not in DEVICES
    if not stated:
        job, between = job._replace(devices=_start(degrees)), between or (1.0, float(MOST))
    question = question_of(job, degrees)
    ready()
    from dmodel.asked import ask, laid, provenance
    from dmodel.cli.question import plan_document
    from dmodel.solve import solve

    asked = ask(question, job.profile)
    run = wanted_of(asked, amount, Terms())
    found = solve(asked, name, such_that, between, tokens=None if run is None else run.tokens)
    say(provenance(asked))
    plan = plan_document(laid(asked, {}).plan)
    document: Document = {**asked.document(), "plan": plan, **found.document}
    if run is not None:
        document["tokens"] = run.tokens
    deliver(document, json, lambda d: _show(d, found, stated))
    if not (found.found or found.holds_all_over):
        stop(1)


def _start(degrees: Degrees) -> int:
    """The fewest devices that the degrees allow, a node at least."""
    least = math.prod(getattr(degrees, name) or 1 for name in ("tp", "pp", "cp"))
    least *= max(degrees.dp or 1, degrees.ep or 1)
    return least * -(-NODE // least)


def _show(d: Document, found: Solution, stated: bool) -> None:
    from dmodel.cli.question import short, title

    now = (
        f"{found.output} = {_output(found.output, found.now)} at {found.input} = "
        f"{digits(found.at, 4)} (SI), as given"
    )
    show_lines(*([f"{title(d)}: {short(d['plan'])}", now] if stated else [_job(d)]), "")
    if not found.found:
        show_lines(f"{'' if found.holds_all_over else 'None: '}{found.why_none}.")
        return
    rows = [_row(root, found, stated) for root in found.roots]
    header = tuple(name for name in rows[0] if any(row[name] for row in rows))
    low, high = found.between
    wanted = f"{IS[found.relation]} {_output(found.output, found.wanted)}"
    show_table(
        f"Where {found.output} {wanted}, between {digits(low)} and {digits(high)}",
        header,
        [tuple(row[name] for name in header) for row in rows],
        right="|".join(header),
    )
    show_lines(*_tried(found))


def _tried(found: Solution) -> list[str]:
    """What is said of whole numbers that do not give the wanted output itself."""
    if all(root.exact for root in found.roots):
        return []
    tried = ", ".join(f"{v:g}: {_output(found.output, y)}" for v, y in found.tried.items())
    which = "the nearest where it passes" if found.relation == "=" else "the first that keep it"
    return [f"Whole numbers only: {which}. Tried: {tried}."]


def _row(root: Root, found: Solution, stated: bool) -> dict[str, str]:
    """One value by the titles of the table's columns; "" of what is not there."""
    return {
        found.input: f"{root.value:,.0f}" if root.slope is None else digits(root.value, 6),
        "over stated": f"{root.value / found.at:.4g}" if found.at and stated else "",
        found.output: _output(found.output, root.output),
        "elasticity": "" if root.slope is None else f"{root.slope:+.3f}",
        "step": seconds(root.step_time_s),
        "memory": gib(root.memory_bytes),
        "fits": "yes" if root.fits else "NO",
    }


IS = {"=": "is", "<=": "is at most", ">=": "is at least"}


def _job(d: Document) -> str:
    """What is trained on which devices, however many."""
    from dmodel.cli.question import trained

    return f"{trained(d)}, {d['seq_len']} tokens, batch {d['global_batch']}, on {d['accelerator']}"


def _output(name: str, value: float) -> str:
    if name == "mfu":
        return percent(value)
    if name == "memory":
        return gib(value)
    return seconds(value) if name in ("step_time", "time_to_loss") else digits(value, 4)
