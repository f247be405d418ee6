"""What can be asked of a plan, by name: of one step, of its memory, of the whole run."""

from __future__ import annotations

from collections.abc import Callable

from dmodel import counts, run
from dmodel.breakdown import Breakdown
from dmodel.errors import InputError
from dmodel.sensitivity.case import Point
from dmodel.sensitivity.goal import tokens_of_run, useful_share
from dmodel.step import memory_use
from dmodel.types import Array

Output = Callable[[Point, Breakdown], Array]


def _tokens_per_s(case: Point, time: Breakdown) -> Array:
    return run.tokens_per_s(case.model, case.plan, time)


def _time_to_loss(case: Point, time: Breakdown) -> Array:
    """`tokens of the run / (tokens/s · useful share)` [s]; the batch does not change how many
    tokens are needed."""
    return tokens_of_run(case.model, case.goal) / (
        _tokens_per_s(case, time) * useful_share(case.plan, case.goal)
    )


def _dollars(case: Point, time: Breakdown) -> Array:
    """Rent of all devices for the whole run [dollar]."""
    return case.plan.devices * case.system.chip.price_per_s * _time_to_loss(case, time)


def _largest_run(case: Point, time: Breakdown) -> Array:
    """Model FLOPs (6N+12Lhs) that the plan trains within the deadline: `deadline · useful share ·
    tokens/s · FLOPs per token` [FLOP]."""
    per_token = counts.model_flops_per_token(case.model, run.CONVENTION)
    return (
        case.goal.deadline_s
        * useful_share(case.plan, case.goal)
        * _tokens_per_s(case, time)
        * per_token
    )


OUTPUTS: dict[str, Output] = {
    "step_time": lambda case, time: time.total,
    "tokens_per_s": _tokens_per_s,
    "mfu": lambda case, time: run.mfu(case.system, case.model, case.plan, time),
    "memory": lambda case, time: memory_use(case.model, case.plan, footprint=case.footprint).total,
    "dollars_per_token": lambda case, time: run.dollars_per_token(
        case.system, case.model, case.plan, time
    ),
    "joules_per_token": lambda case, time: run.joules_per_token(
        case.system, case.model, case.plan, time, case.coefficients
    ),
    "time_to_loss": _time_to_loss,
    "dollars": _dollars,
    "largest_run": _largest_run,
}
"""Outputs by name: [s], [token/s], [1] (convention `run.CONVENTION`), [byte], [dollar/token],
[J/token], [s], [dollar], [FLOP]."""

ALIASES = {"cost": "dollars_per_token", "energy": "joules_per_token", "throughput": "tokens_per_s"}

OF_THE_RUN = frozenset(["time_to_loss", "dollars", "largest_run"])
"""Outputs that depend on the goal of the run; inputs named `run.` belong to them alone."""

WORDS = {
    "step_time": "step time",
    "tokens_per_s": "throughput",
    "mfu": "MFU",
    "memory": "memory",
    "dollars_per_token": "cost per token",
    "joules_per_token": "energy per token",
    "time_to_loss": "time to the loss",
    "dollars": "cost of the run",
    "largest_run": "largest run",
}


def output_name(name: str) -> str:
    """The full name of an output; InputError where there is none of that name."""
    full = ALIASES.get(name, name)
    if full not in OUTPUTS:
        raise InputError(
            f"unknown output {name!r}: expected one of {', '.join([*OUTPUTS, *ALIASES])}"
        )
    return full
