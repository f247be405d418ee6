"""The program: its commands, and how mistakes end (exit code 2, one clear message on stderr, no
traceback)."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dmodel.cli import (
    catalog,
    collect,
    demo,
    design,
    evaluate,
    experiment,
    fit,
    import_,
    next_measurements,
    predict,
    sensitivity,
    theory,
)
from dmodel.cli.compiled import keep_compiled_code
from dmodel.cli.output import say
from dmodel.entries import speak_by
from dmodel.types import InputError, enable_float64

BAD_INPUT = 2
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says when nothing more can be written."""


class Commands(TyperGroup):
    """Turns a user's mistake, wherever it is found, into a message and exit code 2."""

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
        return f"{why}: the answer could not be written; make room and ask again"
    if error.filename is None:
        raise error
    why = (error.strerror or "cannot be used").lower()
    return f"{error.filename}: {why}; check the path and its permissions"


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=(
        "A differentiable model of distributed transformer training: predict, fit, design, explain."
    ),
    epilog="Exit codes: 0 done; 1 no (nothing feasible, or --strict); 2 bad usage or input.",
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


app.command("predict")(predict.command)
app.command("collect")(collect.command)
app.command("import")(import_.command)
app.command("fit")(fit.command)
app.command("evaluate")(evaluate.command)
app.command("design")(design.command)
app.command("sensitivity")(sensitivity.command)
app.command("next-measurements")(next_measurements.command)
app.command("theory")(theory.command)
app.command("catalog")(catalog.command)
app.command("demo")(demo.command)
app.command("experiment", context_settings=experiment.PASS_ON)(experiment.command)


def know_more_machines() -> None:
    """Add the machines described in the files of `$DMODEL_CATALOG` to the catalog; `dmodel collect`
    writes such files."""
    files = [name for name in os.environ.get("DMODEL_CATALOG", "").split(os.pathsep) if name]
    if files:
        from calibration.traces.systems import extend_from

        for name in files:
            extend_from(Path(name))


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
    enable_float64()
    speak_by(lambda words: say(f"dmodel: {words}"))
    keep_compiled_code()
    app(prog_name="dmodel")
