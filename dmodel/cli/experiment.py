"""`dmodel experiment`: list the studies of a checkout, or run one. Each writes at least a table
(CSV) and a figure (PNG)."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from itertools import compress
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

import dmodel
from dmodel.cli.compiled import cache_folder
from dmodel.cli.options import Json
from dmodel.cli.output import show_table, stop
from dmodel.errors import InputError

Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Study to run; without it they are listed.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A small trial run of about a minute.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Output folder for tables and figures.")]

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Options of a study's own are handed to it."""


def command(
    context: typer.Context,
    name: Name = None,
    quick: Quick = False,
    out: Out = Path("out"),
    json: Json = False,
) -> None:
    """List the studies, or run one; further options go to the study (`dmodel experiment NAME
    --help` lists the common ones, and
    `python -m experiments.NAME --help` its own)."""
    folder = studies_folder()
    found = studies(folder)
    if name is None:
        _check_no_options(context.args)
        deliver_list(found, json)
        return
    if name not in found:
        raise InputError(f"no experiment named {name!r}; choose from {', '.join(found)}")
    check_writable(out)
    options = [
        *compress(("--quick", "--json"), (quick, json)),
        "--out",
        str(out.resolve()),
        *map(_absolute, context.args),
    ]
    study = [sys.executable, "-m", f"experiments.{name}", *options]
    done = subprocess.run(
        study,
        cwd=folder.parent,
        env=_environment(),
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        check=False,
    )
    sys.stdout.write(done.stdout)
    if done.returncode:
        stop(done.returncode if done.returncode in (1, 2) else 1)


def _check_no_options(options: list[str]) -> None:
    """Refuse options of a study where none is named."""
    if options:
        raise InputError(
            f"unknown option {options[0]}; expected the name of a study before its own options"
        )


def studies_folder() -> Path:
    """The folder `experiments` of the checkout that this package runs from, or of the one in the
    current folder.

    Raises:
      InputError: there is none: the studies are not part of the installed package.
    """
    for root in (Path(str(dmodel.__file__)).parents[1], Path.cwd()):
        if (root / "experiments" / "study.py").is_file():
            return root / "experiments"
    raise InputError(
        "the experiments are part of a checkout, not of the installed package: no folder "
        "experiments/ beside the package "
        f"({Path(str(dmodel.__file__)).parents[1]}) or in the current folder; clone the "
        "repository and run `dmodel experiment` there"
    )


class Study(NamedTuple):
    """What a study says of itself in a line, and what it needs that a checkout has not. "" for
    nothing."""

    about: str
    needs: str


def studies(folder: Path) -> dict[str, Study]:
    """Every study by name: a module that can be run. None of them is imported."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        if any(
            isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
            for node in tree.body
        ):
            about = (ast.get_docstring(tree) or "").partition("\n")[0]
            found[path.stem] = Study(about, _needs(tree))
    return found


def _needs(tree: ast.Module) -> str:
    """The text that a study assigns to `NEEDS`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NEEDS":
            return ast.literal_eval(node.value)
    return ""


def deliver_list(found: dict[str, Study], as_json: bool) -> None:
    """The studies that run as they are, as a JSON list of names or as a table. Those that need
    more stand below it."""
    ready = {name: study.about for name, study in found.items() if not study.needs}
    if as_json:
        import json

        sys.stdout.write(json.dumps(list(ready)) + "\n")
        return
    show_table("", ("experiment", "what it shows"), ready.items(), right="-")
    others = ((name, study.about, study.needs) for name, study in found.items() if study.needs)
    show_table("", ("needs more", "what it shows", "what it needs"), others, right="-")


def check_writable(out: Path) -> None:
    """Find out before the run, not after it.

    Raises:
      InputError: the folder cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise InputError(
            f"--out {out}: cannot be used as a folder ({reason}); name one that can be made"
        ) from None


def _absolute(argument: str) -> str:
    """The study runs in the checkout: a file of the user's is named in full."""
    return (
        str(Path(argument).resolve())
        if not argument.startswith("-") and Path(argument).is_file()
        else argument
    )


def _environment() -> dict[str, str]:
    """The compiled code of the studies is kept where that of the commands is."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(cache_folder()),
        "PYTHONIOENCODING": "utf-8",
    } | os.environ
