"""Options of `dmodel design`, and what is wrong with them. Devices, batch, shape,
tokens and hardware of a job may be free."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import typer

from dmodel.cli.design_risk import MAX_RISK, MaxRisk, risk_of
from dmodel.cli.options import JOB, Chip, Job, ProfileOption, Settings, System, token_count
from dmodel.cli.run_options import Amount, Terms, check_amount, check_terms
from dmodel.errors import InputError

RUN = "The run (frees its sizes and searches them together with the plan)"
"""Heading of the options in the help."""

OBJECTIVES = ("time", "cost", "energy", "loss", "largest")
FREE = ("shape", "batch", "tokens", "devices", "hardware")
OF_LOSS = ("loss", "largest")
"""Objectives that decide how many tokens are trained on."""
FREE_BATCH = "free"
METHODS, SPACES = ("exact", "gradient", "both"), ("usual", "everything")
METHOD = METHODS[0]
"""How plans are searched where no method was named."""

TOP = 5
"""Plans shown of the exact search where no number was named."""


class DesignJob(NamedTuple):
    """What is to be trained, on what, and what may be chosen."""

    system: System = None
    chip: Chip = None
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="N|MIN:MAX|N1,N2,…",
            help="Accelerators: a number, a range to search, or a list with one search each.",
            rich_help_panel=JOB,
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            help=(
                "Model of the catalog, or the path of a Hugging Face config.json; with --free "
                "shape, its family."
            ),
            rich_help_panel=JOB,
        ),
    ] = None
    seq_len: Annotated[
        int | None,
        typer.Option(help="Tokens per sequence; default: the model's own.", rich_help_panel=JOB),
    ] = None
    global_batch: Annotated[
        str | None,
        typer.Option(
            metavar="B|free",
            help="Sequences per step, or `free` to search it.",
            rich_help_panel=JOB,
        ),
    ] = None
    precision: Annotated[
        str,
        typer.Option(
            help="Matmul precision: bf16, fp16, fp8, mxfp8, nvfp4, int8; default: bf16, or fp16 "
            "on a chip without it.",
            rich_help_panel=JOB,
        ),
    ] = ""
    profile: ProfileOption = None
    stack: Annotated[
        str,
        typer.Option(help="Training software, e.g. llm-foundry: sets defaults and coefficients."),
    ] = ""
    settings: Settings = None
    loss: Annotated[
        float | None, typer.Option(help="Loss to reach [nat/token].", rich_help_panel=RUN)
    ] = None
    flop: Annotated[
        float | None,
        typer.Option(help="Compute budget, 6 N D and attention [FLOP].", rich_help_panel=RUN),
    ] = None
    tokens: Annotated[
        float | None,
        typer.Option(
            help="Tokens to train on, or the most available; e.g. 15T.",
            metavar="NUMBER",
            parser=token_count,
            rich_help_panel=RUN,
        ),
    ] = None
    budget_dollars: Annotated[
        float | None, typer.Option(help="Largest cost [dollar].", rich_help_panel=RUN)
    ] = None
    budget_days: Annotated[
        float | None, typer.Option(help="Longest duration [day].", rich_help_panel=RUN)
    ] = None
    budget_joules: Annotated[
        float | None,
        typer.Option(help="Largest energy, with hosts and cooling [J].", rich_help_panel=RUN),
    ] = None
    max_risk: MaxRisk = MAX_RISK
    free: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help=f"What to search, separated by commas: {', '.join(FREE)}.",
            rich_help_panel=RUN,
        ),
    ] = ""
    objective: Annotated[
        str,
        typer.Option(
            help=f"What to minimize: {', '.join(OBJECTIVES)} (largest: maximize compute).",
            rich_help_panel=RUN,
        ),
    ] = "time"

    @property
    def is_run(self) -> bool:
        """Whether sizes of a run are to be chosen; else its plan alone, within the budgets."""
        ranged = ":" in (self.devices or "") or self.global_batch == FREE_BATCH
        return ranged or bool(self.free) or self.has_target

    @property
    def has_target(self) -> bool:
        """Whether a loss or a compute decides the sizes."""
        return self.loss is not None or self.flop is not None or self.objective in OF_LOSS


def device_range(text: str | None) -> tuple[int, int] | None:
    """Least and most devices; None when none were named.

    Raises:
      InputError: neither a count nor a range of two.
    """
    if text is None:
        return None
    low, colon, high = text.partition(":")
    least, most = _count("devices", low), _count("devices", high if colon else low)
    if least > most:
        raise InputError(f"--devices: expected MIN:MAX with the smaller number first, got {text}")
    return least, most


def batch(text: str | None) -> int | None:
    """Sequences per step; None when free or not named."""
    return None if text is None or text == FREE_BATCH else _count("global-batch", text)


def _count(name: str, text: str) -> int:
    """A count out of an option's text; the bounds are those of all counts."""
    from dmodel.cli.question import largest

    most = largest(name.replace("-", "_"))
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= most:
        kind = " or MIN:MAX" if name == "devices" else " or free"
        raise InputError(f"--{name}: expected an integer from 1 to {most:,}{kind}, got {text!r}")
    return value


def freed(job: DesignJob) -> tuple[str, ...]:
    """What may be chosen: as asked, and what ranges and `free` say.

    Raises:
      InputError: a word that is none of them.
    """
    words = _words(job.free)
    words += ["batch"] if job.global_batch == FREE_BATCH else []
    words += ["devices"] if _is_ranged(job) else []
    return tuple(dict.fromkeys(words))


def _words(text: str) -> list[str]:
    """Words of a list of what may be chosen.

    Raises:
      InputError: a word that is none of them.
    """
    words = [stripped for word in text.split(",") if (stripped := word.strip())]
    for word in words:
        if word not in FREE:
            raise InputError(
                f"--free: expected some of {', '.join(FREE)}, with commas between; got {word!r}"
            )
    return words


def _is_ranged(job: DesignJob) -> bool:
    """Whether there are devices to choose from."""
    least, most = device_range(job.devices) or (0, 0)
    return least < most


def check(job: DesignJob) -> None:
    """Refuse numbers that make no sense, and options that contradict each other.

    Raises:
      InputError: with the option, what was expected and what was got.
    """
    for name in ("loss", "flop", "tokens", "budget_dollars", "budget_days", "budget_joules"):
        _check_positive(name, getattr(job, name))
    if job.objective not in OBJECTIVES:
        raise InputError(
            f"--objective: expected one of {', '.join(OBJECTIVES)}; got {job.objective!r}"
        )
    if job.flop is not None:
        _check_flop(job)
    if job.loss is not None and job.objective == "loss":
        raise InputError(
            "--loss with --objective loss: the loss is either given or made least; leave one of "
            "the two"
        )
    freed(job)
    risk_of(job.max_risk)


def check_run(job: DesignJob, terms: Terms) -> None:
    """Refuse what contradicts the tokens of a run, or would be ignored.

    Raises:
      InputError: with the option.
    """
    if job.is_run:
        check_terms(terms, True)
        _refuse_of_run(terms)
        return
    check_amount(Amount(job.tokens), terms)


def _refuse_of_run(terms: Terms) -> None:
    """Refuse what a search for the sizes of a run decides by other options."""
    if terms.chinchilla:
        raise InputError(
            "--chinchilla: the tokens of a run whose sizes are searched follow from the data law, "
            "or from --loss, --flop or --free tokens; leave it out"
        )
    if terms.until is not None:
        raise InputError(
            "--until: a run whose sizes are searched has a deadline: --budget-days; leave it out"
        )


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0.0):
        raise InputError(f"--{name.replace('_', '-')}: expected a positive number, got {value:g}")


def _check_flop(job: DesignJob) -> None:
    """Refuse what a compute budget decides already."""
    if job.loss is not None:
        raise InputError(
            "--loss and --flop: give one; a compute budget decides the loss that can be reached, "
            "and a loss the compute"
        )
    if job.tokens is not None or job.objective in OF_LOSS:
        raise InputError(
            "--flop: the compute decides tokens and loss; leave --tokens out, and say what shall "
            "be least: time, cost or energy"
        )


def check_ways(job: DesignJob, ways: Any) -> None:
    """Refuse unknown words, and options that would be ignored.

    Raises:
      InputError: with the option and the searches that it belongs to.
    """
    from dmodel.cli.question import choice

    if ways.method is not None:
        choice("method", ways.method, METHODS)
    choice("space", ways.space, SPACES)
    _check_spread(job, ways)
    if ways.top < 1:
        raise InputError(f"--top: expected at least 1 plan to show, got {ways.top}")
    ignored, reason = _ignored(job, ways)
    if wrong := [name for name, given in ignored.items() if given]:
        raise InputError(f"{', '.join(wrong)}: nothing to do here: {reason}. Leave it out.")


def _check_spread(job: DesignJob, ways: Any) -> None:
    """Refuse workers that would have nothing to do."""
    from dmodel.cli.spread import check_spread

    check_spread(ways.spread)
    if ways.spread.given and (job.is_run or ways.method == "gradient"):
        raise InputError(
            f"{', '.join(ways.spread.given)}: nothing to do here: workers look at all plans of a "
            "job whose sizes are given; leave it out, or use --method exact"
        )


def _ignored(job: DesignJob, ways: Any) -> tuple[dict[str, bool], str]:
    """Options that would be ignored, whether they are given, and why they would be."""
    if job.is_run:
        return {
            "--method exact": ways.method == "exact",
            "--top": ways.top != TOP,
            "--pareto": ways.pareto,
            "--space": ways.space != "usual",
        }, (
            "a run's sizes are searched by gradient, with every plan at each, and have one best "
            "plan"
        )
    if ways.starts is not None and ways.method in (None, METHOD):
        return {"--starts": True}, "plans are all looked at; --method gradient or both has starts"
    return {"--law": bool(ways.law), "--failures": ways.failures}, (
        "the sizes of the run are given, so only its plan is searched; --free, --loss, --flop "
        "or a range search its sizes"
    )


def fixed_job(job: DesignJob) -> Job:
    """The options as a job of fixed sizes, for a search over plans alone."""
    span = device_range(job.devices)
    return Job(
        system=job.system,
        chip=job.chip,
        devices=None if span is None else span[1],
        model=job.model,
        seq_len=job.seq_len,
        global_batch=batch(job.global_batch),
        precision=job.precision,
        profile=job.profile,
        stack=job.stack,
        settings=job.settings,
    )
