"""What of a sensitivity answer is wanted, and what is wrong with that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dmodel.cli.design_risk import MAX_RISK, risk_of
from dmodel.cli.options import Degrees
from dmodel.cli.output import check_installed
from dmodel.cli.sensitivity_shown import make_folder
from dmodel.cli.spread import Spread, check_spread
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.sensitivity.case import Inputs


DEADLINE_DAYS = 90.0
"""Time of the largest run where none is said [day]."""


class Wanted(NamedTuple):
    """What of the answer is wanted: the options of the command."""

    output: str
    reoptimize: bool = False
    max_risk: str = MAX_RISK
    follow: list[str] | None = None
    base: int = 0
    ranges: list[str] | None = None
    interact: int = 0
    axes: str = ""
    loss: float | None = None
    deadline_days: float = DEADLINE_DAYS
    check: bool = False
    report: Path | None = None
    spread: Spread = Spread()


def check_options(w: Wanted, degrees: Degrees) -> None:
    """Refuse what can be seen to be wrong before anything is searched, and options that would be
    ignored."""
    _check_followed(w, degrees)
    _check_goal(w)
    _check_base(w.base)
    _check_spread(w)
    for text in w.ranges or ():
        range_of(text)
    if w.axes:
        axes_of(w.axes)
    if w.base:
        check_installed("SALib")
    if w.report is not None:
        check_installed("matplotlib")
        make_folder(w.report)


def _check_followed(w: Wanted, degrees: Degrees) -> None:
    """Refuse inputs to follow without a search, and a plan beside it."""
    if w.reoptimize:
        _check_nothing_given(degrees)
        risk_of(w.max_risk)
    elif w.max_risk != MAX_RISK:
        raise InputError(
            "--max-risk is of the plan that is searched: expected --reoptimize with it"
        )
    elif w.follow:
        raise InputError(
            "--follow searches the best plan again along an input: expected --reoptimize with it"
        )


def _check_goal(w: Wanted) -> None:
    """Refuse a loss and a time of outputs that ask for none."""
    given = w.deadline_days != DEADLINE_DAYS
    if w.loss is None and not given:
        return
    from dmodel.sensitivity.outputs import output_name

    output = output_name(w.output)
    if w.loss is not None and output not in ("time_to_loss", "dollars"):
        raise InputError(
            "--loss is of --output time_to_loss or dollars; leave it out, or choose one of them"
        )
    if given and output != "largest_run":
        raise InputError(
            "--deadline-days is of --output largest_run; leave it out, or choose that output"
        )


def _check_spread(w: Wanted) -> None:
    """Refuse workers that would have nothing to do."""
    check_spread(w.spread)
    if w.spread.given and not (w.base or w.ranges):
        raise InputError(
            f"{', '.join(w.spread.given)}: evaluates the samples of Sobol indices: expected "
            "--global N or --range with it"
        )


def _check_base(base: int) -> None:
    if base & (base - 1) or base == 1:
        raise InputError(f"--global: expected a power of two from 2 on, or 0 for none; got {base}")


def _check_nothing_given(degrees: Degrees) -> None:
    """Refuse options of a plan where the best of all is taken."""
    default = degrees._field_defaults
    given = [n for n, value in degrees._asdict().items() if value != default[n]]
    names = ", ".join(f"--{n.replace('_', '-')}" for n in given if n != "attention")
    if names:
        raise InputError(
            f"{names}: --reoptimize takes the best of all plans, whatever is given; leave the "
            "option out, or --reoptimize"
        )


def check_names(known: Inputs, w: Wanted) -> None:
    """Refuse unknown inputs, and those that cannot be followed."""
    from dmodel.sensitivity.flips import place_followed

    for name in w.follow or ():
        place_followed(known, name)
    ranged = [range_of(text)[0] for text in w.ranges or ()]
    for name in (*ranged, *_unknown_axes(known, w.axes)):
        known.index(name)


def _unknown_axes(known: Inputs, text: str) -> list[str]:
    """Axes that are neither named as such nor inputs of all levels."""
    from dmodel.sensitivity.case import base_name
    from dmodel.sensitivity.regimes import AXES

    there = {*AXES, *map(base_name, known.names)}
    return [name for name in axes_of(text) if name not in there] if text else []


def axes_of(text: str) -> tuple[str, str]:
    """The two axes of a map."""
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2:
        raise InputError(
            "--map: expected two axes with a comma between, such as devices,bandwidth; got "
            f"{text!r}"
        )
    return names[0], names[1]


def range_of(text: str) -> tuple[str, float, float]:
    """An input, and the ends of its range."""
    name, _, ends = text.partition("=")
    low, _, high = ends.partition(":")
    try:
        return name, float(low), float(high)
    except ValueError:
        raise InputError(
            f"--range {text!r}: expected INPUT=LOW:HIGH, such as chip.flops_per_s=5e14:2e15"
        ) from None
