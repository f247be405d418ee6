"""Options of a training run as a whole: tokens, price, dates; and its answer in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dmodel.cli.options import token_count
from dmodel.cli.output import Document, digits, percent, say, stop
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.training_run import Wanted

WHOLE = "The whole run"
"""Heading of the options in the help."""


class Amount(NamedTuple):
    """How long a run is."""

    tokens: Annotated[
        float | None,
        typer.Option(
            help="Tokens to train on, e.g. 15T: adds days, cost, energy.",
            metavar="NUMBER",
            parser=token_count,
            rich_help_panel=WHOLE,
        ),
    ] = None
    loss: Annotated[
        float | None,
        typer.Option(
            help="Loss to reach [nat/token]; its tokens follow from the scaling law.",
            rich_help_panel=WHOLE,
        ),
    ] = None


class Terms(NamedTuple):
    """What a run costs, and when it has to be done."""

    chinchilla: Annotated[
        bool,
        typer.Option(
            "--chinchilla", help="Train on 20 tokens per parameter.", rich_help_panel=WHOLE
        ),
    ] = False
    price_per_hour: Annotated[
        float | None,
        typer.Option(
            help="Price of one accelerator [dollar/hour]; default: the catalog's.",
            rich_help_panel=WHOLE,
        ),
    ] = None
    until: Annotated[
        str | None,
        typer.Option(
            metavar="YYYY-MM-DD",
            help="Adds the probability that the run is done by this date.",
            rich_help_panel=WHOLE,
        ),
    ] = None
    start: Annotated[
        str | None,
        typer.Option(
            metavar="YYYY-MM-DD", help="Start of the run; default: today.", rich_help_panel=WHOLE
        ),
    ] = None


Anyway = Annotated[
    bool,
    typer.Option("--anyway", help="Accept an answer ten times beyond every published run."),
]


def add_sense(
    document: Document, asked: Asked, mfu: float, tokens: float | None, loss: float | None = None
) -> None:
    """Say in an answer what it has that published runs do not have; the utilization by the products
    that there are, where the convention counts more (long sequences, frozen weights)."""
    from dmodel import counts
    from dmodel.run import CONVENTION

    products = float(counts.product_flops_per_token(asked.model))
    counted = float(counts.model_flops_per_token(asked.model, CONVENTION))
    mfu *= min(products / counted, 1.0)
    step_tokens = asked.global_batch * float(asked.model.seq_len)
    parameters = float(counts.active_parameters(asked.model))
    add_oddities(document, parameters, step_tokens, mfu, tokens, loss)


def add_oddities(document: Document, *run: float | None) -> None:
    """The same of a run in numbers (`dmodel.sense.oddities`)."""
    from dmodel.sense import oddities

    found = oddities(*run)  # type: ignore[arg-type]
    document["sense"] = [odd._asdict() | {"times": finite(odd.times)} for odd in found]


def finite(x: float) -> float | None:
    """A number as JSON has it: None of infinity."""
    return x if math.isfinite(x) else None


def sense_lines(document: Document) -> list[str]:
    """What is odd, in a line."""
    odd = document.get("sense", ())
    return [f"Unusual: {'; '.join(each['text'] for each in odd)}."] if odd else []


def beyond_sense(document: Document) -> Document | None:
    """What of an answer is far beyond every published run; None where nothing is."""
    from dmodel.sense import BEYOND

    odd = document.get("sense", ())
    return next((o for o in odd if o["times"] is None or o["times"] > BEYOND), None)


def stop_beyond_sense(document: Document, anyway: bool) -> None:
    """Exit code 1 where an answer is far beyond every published run."""
    far = beyond_sense(document)
    if far is not None and not anyway:
        say(f"dmodel: no sane run: {far['text']} (--anyway accepts it)")
        stop(1)


def check_terms(terms: Terms, has_amount: bool) -> None:
    """Refuse numbers that make no sense, and options that nothing is to be done with.

    Args:
      has_amount: whether the tokens are said, as a number or by a law.
    Raises:
      InputError: with the option.
    """
    check_positive("--price-per-hour", terms.price_per_hour)
    without = [] if has_amount else [n for n in ("until", "start") if getattr(terms, n) is not None]
    if without:
        raise InputError(f"--{without[0]}: a date needs a run: say --tokens N or --chinchilla too")
    if terms.start is not None and terms.until is None:
        raise InputError("--start: goes with --until, the date by which the run should be done")


def check_positive(option: str, value: float | None) -> None:
    """Refuse what is no positive number."""
    if value is not None and not (math.isfinite(value) and value > 0.0):
        raise InputError(f"{option}: expected a positive number, got {value:g}")


def check_amount(amount: Amount, terms: Terms) -> None:
    """Refuse several lengths of one run.

    Raises:
      InputError: with the options.
    """
    check_positive("--tokens", amount.tokens)
    check_positive("--loss", amount.loss)
    said = {"--tokens": amount.tokens, "--loss": amount.loss, "--chinchilla": terms.chinchilla}
    given = [option for option, value in said.items() if value]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)}: each says how long the run is; give one")
    check_terms(terms, bool(given))


def priced(settings: list[str] | None, terms: Terms) -> list[str] | None:
    """Settings of a job, with the price that is said."""
    if terms.price_per_hour is None:
        return settings
    return [*(settings or []), f"price={terms.price_per_hour!r} dollar/hour"]


def wanted_of(asked: Asked, amount: Amount, terms: Terms) -> Wanted | None:
    """The run that is asked for; None where nothing says how long it is."""
    from dmodel.tokens import by_data_law, to_loss
    from dmodel.training_run import wanted

    if amount.tokens is not None:
        found = amount.tokens, f"{amount.tokens:.4g} tokens"
    elif amount.loss is not None:
        found = to_loss(asked.model, amount.loss)
    elif terms.chinchilla:
        found = by_data_law(asked.model)
    else:
        return None
    return wanted(*found, terms.start, terms.until)


def run_answer(asked: Asked, answer: Document, amount: Amount, terms: Terms) -> Document | None:
    """What the whole run takes; None where nothing says how long it is."""
    from dmodel.training_run import of_run

    run = wanted_of(asked, amount, terms)
    return None if run is None else of_run(run, answer, asked)


def run_lines(d: Document) -> list[str]:
    """What is said of a whole run."""
    days = f"{digits(d['days'])} days{_ends(d, 'days')}"
    lines = [
        f"Run: {d['tokens_said']}: {d['steps']:,.0f} steps, {days}, of which failures and "
        f"checkpoints take {percent(1.0 - d['goodput'])}",
        f"{digits(d['device_hours'])} device-hours, {digits(d['dollars'])} dollars"
        f"{_ends(d, 'dollars')}, {digits(d['megawatt_hours'])} MWh with hosts and cooling",
    ]
    if deadline := d.get("deadline"):
        lines.append(
            f"Done by {deadline['until']} with a probability of "
            f"{percent(deadline['probability'], 0)}, started on {d['start']}"
        )
    return lines


def _ends(d: Document, name: str) -> str:
    """The 90 % interval of a number in brackets; blank where there is none."""
    if f"{name}_low" not in d:
        return ""
    return f" ({digits(d[f'{name}_low'])} to {digits(d[f'{name}_high'])})"


def flat(d: Document | None) -> dict[str, Any]:
    """The run beside an answer: `days`, `device_hours`, `dollars` by name, and all of it."""
    if d is None:
        return {}
    return {**{name: d[name] for name in ("days", "device_hours", "dollars")}, "run": d}
