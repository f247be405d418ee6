"""`dmodel solve`: at which value of an input an output of a plan is as wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dmodel.cli.compiled import ready
from dmodel.cli.options import Degrees, Job, Json, takes, token_count
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

if TYPE_CHECKING:
    from dmodel.solve import Solution

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
            "days=30 (to the loss of 20 tokens per parameter, or for --tokens), "
            "dollars_per_token=…, …"
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

Tokens = Annotated[
    float | None,
    typer.Option(
        "--tokens",
        metavar="NUMBER",
        parser=token_count,
        help="Tokens of the run whose days are wanted, e.g. 15T.",
    ),
]


@takes(job=Job, degrees=Degrees)
def command(
    *,
    name: Input,
    such_that: Goal,
    between: Between = None,
    tokens: Tokens = None,
    json: Json = False,
    job: Job,
    degrees: Degrees,
) -> None:
    """Find all values of one input that give a wanted output of the plan. Exit 1, with the reason,
    where there is none."""
    from dmodel.cli.question import question_of

    question = question_of(job, degrees)
    ready()
    from dmodel.asked import ask, laid, provenance
    from dmodel.cli.question import plan_document
    from dmodel.solve import solve

    asked = ask(question, job.profile)
    found = solve(asked, name, _of_run(such_that, tokens), between)
    say(provenance(asked))
    plan = plan_document(laid(asked, {}).plan)
    document: Document = {**asked.document(), "plan": plan, **found.document}
    deliver(document, json, lambda d: _show(d, found))
    if not found.found:
        stop(1)


def _of_run(such_that: str, tokens: float | None) -> str:
    """The goal in words; of a run of so many tokens its rate, failures left out."""
    if tokens is None:
        return such_that
    from dmodel.cli.run_options import check_positive
    from dmodel.errors import InputError
    from dmodel.goodput import DAY_S
    from dmodel.solve.goals import goal

    check_positive("--tokens", tokens)
    name, days = goal(such_that)
    if name != "days":
        raise InputError(f"--tokens: goes with --such-that days=…, got {such_that!r}")
    rate = tokens / (days * DAY_S)
    say(f"{tokens:.4g} tokens in {days:g} days, failures left out: tokens_per_s = {rate:.4g}")
    return f"tokens_per_s={rate!r}"


def _show(d: Document, found: Solution) -> None:
    from dmodel.cli.question import short, title

    low, high = found.between
    show_lines(
        f"{title(d)}: {short(d['plan'])}",
        f"{found.output} = {_output(found.output, found.now)} at {found.input} = "
        f"{digits(found.at, 4)} (SI), as given",
        "",
    )
    if not found.found:
        show_lines(f"None: {found.why_none}.")
        return
    rows = [
        (
            digits(root.value, 6),
            f"{root.value / found.at:.4g}" if found.at else "",
            _output(found.output, root.output),
            "" if root.slope is None else f"{root.slope:+.3f}",
            seconds(root.step_time_s),
            gib(root.memory_bytes),
            "yes" if root.fits else "NO",
        )
        for root in found.roots
    ]
    header = (found.input, "over stated", found.output, "elasticity", "step", "memory", "fits")
    wanted = _output(found.output, found.wanted)
    show_table(
        f"Where {found.output} is {wanted}, between {digits(low)} and {digits(high)}",
        header,
        rows,
        right="|".join(header),
    )
    if any(not root.exact for root in found.roots):
        tried = ", ".join(f"{v:g}: {_output(found.output, y)}" for v, y in found.tried.items())
        show_lines(f"Whole numbers only: the nearest where it passes. Tried: {tried}.")


def _output(name: str, value: float) -> str:
    if name == "mfu":
        return percent(value)
    if name == "memory":
        return gib(value)
    return seconds(value) if name in ("step_time", "time_to_loss") else digits(value, 4)
