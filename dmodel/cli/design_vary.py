"""`dmodel design` of a list of values: which option varies, and the job of each value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dmodel.cli.design_options import TOP, DesignJob
from dmodel.cli.options import Job
from dmodel.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = tuple(name for name in Job._fields if name != "settings")
"""Options of a job that may vary; any other name is one of `--set`."""

Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="NAME=V1,V2,…",
        help=(
            f"One search per value: {', '.join(n for n in OPTIONS if n != 'profile')}, or a "
            "name of `--set`."
        ),
    ),
]


class Varied(NamedTuple):
    """What varies: the option or name of `--set`, and its values as typed."""

    name: str
    values: tuple[str, ...]

    @property
    def typed(self) -> str:
        """The name as an option of the shell where it is one."""
        return f"--{self.name.replace('_', '-')}" if self.name in OPTIONS else f"--set {self.name}"


def varied_of(job: DesignJob, vary: list[str]) -> Varied | None:
    """What varies in a job: its list of devices, or what `--vary` names; None where nothing does.

    Raises:
      InputError: several lists, a value given twice, or an option given beside its list.
    """
    listed = [Varied("devices", values_of("--devices", job.devices))] if _is_list(job) else []
    found = listed + [_named(text) for text in vary]
    if len(found) > 1:
        names = ", ".join(["--devices"] * len(listed) + [f"--vary {text}" for text in vary])
        raise InputError(f"expected one list of values, got {len(found)}: {names}; leave one")
    if not found:
        return None
    _check_alone(found[0], job, bool(listed))
    return found[0]


def _is_list(job: DesignJob) -> bool:
    return "," in (job.devices or "")


def _named(text: str) -> Varied:
    """What one `--vary` says."""
    from dmodel.cli.question import COLUMNS
    from dmodel.settings import typed

    option_of = {column: option for option, column in COLUMNS.items()}
    [(name, values)] = typed([text], "--vary").items()
    return Varied(option_of.get(name, name), values_of(f"--vary {name}", values))


def values_of(option: str, text: str | None) -> tuple[str, ...]:
    """Values between commas, each once.

    Raises:
      InputError: an empty one, or one twice.
    """
    values = tuple(map(str.strip, (text or "").split(",")))
    if not all(values):
        raise InputError(f"{option}: expected values with commas between, got {text!r}")
    if len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise InputError(f"{option}: expected each value once, got {twice} several times")
    return values


def _check_alone(varied: Varied, job: DesignJob, is_devices: bool) -> None:
    """Refuse what says a value of its own for what varies.

    Raises:
      InputError: with both options.
    """
    from dmodel.cli.question import COLUMNS
    from dmodel.settings import typed

    name = varied.name
    default = DesignJob._field_defaults.get(name)
    said = typed(job.settings or ())
    also = [f"--set {n}" for n in (name, COLUMNS.get(name, name)) if n in said]
    if name in OPTIONS and not is_devices and getattr(job, name) != default:
        also.insert(0, varied.typed)
    if also:
        raise InputError(
            f"{name}: expected its values in one place, got a list and {also[0]} besides; leave "
            "one of the two"
        )


def jobs_of(job: DesignJob, varied: Varied | None) -> list[DesignJob]:
    """The job of each value; the job itself where nothing varies.

    Raises:
      InputError: a value that is none of its option.
    """
    if varied is None:
        return [job]
    return [_with(job, varied.name, value) for value in varied.values]


def _with(job: DesignJob, name: str, value: str) -> DesignJob:
    """A job with one value."""
    if name not in OPTIONS:
        return job._replace(settings=[*(job.settings or []), f"{name}={value}"])
    return job._replace(**{name: _integer(name, value) if name == "seq_len" else value})


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--vary {name}: expected integers, got {text!r}") from None


def check_one(figure: Path | None) -> None:
    """Refuse a figure of a single answer.

    Raises:
      InputError: there is one.
    """
    if figure is not None:
        raise InputError(
            f"--figure {figure}: expected several values to draw, got one; list them, such as "
            "--devices 8,16,32 or --vary NAME=V1,V2"
        )


def check_many(jobs: list[DesignJob], ways: Any) -> None:
    """Refuse what a list of values has no answer to.

    Raises:
      InputError: values of which some leave sizes free and others do not, or an option that would
        be ignored.
    """
    if len({job.is_run for job in jobs}) > 1:
        raise InputError(
            "a list of values: expected that all leave sizes of the run free, or none; ask for "
            "the two kinds apart"
        )
    given = {
        "--emit": ways.emit is not None,
        "--top": ways.top != TOP,
        "--pareto": ways.pareto,
    }
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise InputError(
            f"{', '.join(wrong)}: nothing to do here: a list of values shows the best plan of "
            "each. Leave it out, or ask for one value."
        )
