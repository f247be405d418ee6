"""The program: its commands, and how mistakes end (exit code 2, one clear message on stderr, no
traceback)."""

from __future__ import annotations

import errno
import io
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dmodel.cli.output import say
from dmodel.errors import InputError

BAD_INPUT = 2
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says when nothing more can be written."""


COMMANDS = {
    "predict": "Predict one plan, or the rows of a trace file.",
    "diagnose": "Is a throughput normal, and if not, why?",
    "solve": "Find the input that gives a wanted output.",
    "watch": "Follow a log as it grows: does the run slow down?",
    "collect": "Measure this machine: micro-benchmarks and steps.",
    "import": "Turn logs and profiles into a table of measurements.",
    "fit": "Fit a profile to measured step times.",
    "evaluate": "Compare predicted with measured step times.",
    "design": "Find the best plan that fits, or the best run.",
    "sweep": "Monte Carlo over coefficients, plans and jobs.",
    "sensitivity": "Elasticities of an output to every input.",
    "next-measurements": "Choose the runs to measure next within a budget.",
    "theory": "Evaluate a study of data movement limits to training.",
    "catalog": "List chips, systems, models, stacks, with sources.",
    "explore": "Write the model as an interactive web page.",
    "mcp": "Serve these commands as tools for agents.",
    "demo": "Predict, fit and design on shipped data: a report.",
    "experiment": "List the studies, or run one.",
}
"""Commands in the order of the help, each in a line; `loaded` has all that they say."""


def loaded(name: str) -> Any:
    """A command with its options, which only its own module knows."""
    place = name.replace("-", "_") + ("_" if name == "import" else "")
    module = import_module(f"dmodel.cli.{place}")
    alone = typer.Typer(**STYLE)
    settings = getattr(module, "PASS_ON", None)
    alone.command(name, context_settings=settings)(module.command)
    return typer.main.get_command(alone)


STYLE: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
"""How the program and its commands look."""


class Commands(TyperGroup):
    """Loads the command that is asked for, and turns a user's mistake, wherever it is found, into a
    message and exit code 2."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word, and the words behind it."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and loaded(str(name)), rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            know_more_machines()
            return super().invoke(ctx)
        except InputError as error:
            say(f"dmodel: {error}")
        except OSError as error:
            say(f"dmodel: {_file_trouble(error)}")
        raise typer.Exit(BAD_INPUT)


def _file_trouble(error: OSError) -> str:
    """What is wrong with a file of the user's.

    Raises:
      OSError: it is none: a closed pipe, which the shell handles, or a defect.
    """
    if error.errno in FULL:
        why = (error.strerror or "the output is full").lower()
        return f"{why}: the answer could not be written; free some space and run the command again"
    if error.filename is None:
        raise error
    why = (error.strerror or "cannot be used").lower()
    return f"{error.filename}: {why}; check the path and its permissions"


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help=(
        "A differentiable model of distributed transformer training: predict, fit, design, explain."
    ),
    epilog="Exit codes: 0 done; 1 the answer is no (nothing feasible, --strict); 2 bad input.",
    **STYLE,
)


def _version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        from dmodel import __version__

        typer.echo(f"dmodel {__version__}")
        raise typer.Exit()


Version = Annotated[
    bool,
    typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end."),
]


@app.callback()
def options(version: Version = False) -> None:
    """Options of the program itself."""


def later() -> None:
    """Stands for a command in the list of all, until it is asked for."""


for _name, _says in COMMANDS.items():
    app.command(_name, help=_says)(later)


def know_more_machines() -> None:
    """Add the machines described in the files of `$DMODEL_CATALOG` to the catalog; `dmodel collect`
    writes such files."""
    files = [name for name in os.environ.get("DMODEL_CATALOG", "").split(os.pathsep) if name]
    if files:
        from dmodel.catalog.own import add

        for name in files:
            add(Path(name))


def speak_where_nobody_listens() -> None:
    """Streams that were closed before the command began take what is said and drop it, as `print`
    does."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def speak_any_encoding() -> None:
    """Let a terminal that knows no "×" or "–" show "?" instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main() -> None:
    """Entry point of the program `dmodel`."""
    speak_where_nobody_listens()
    speak_any_encoding()
    app(prog_name="dmodel")
