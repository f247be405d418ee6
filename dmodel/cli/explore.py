"""The command that writes the explorer."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from dmodel.cli.output import say


def command(
    profile: Annotated[
        str, typer.Option(help="Profile with the coefficients: a name or a file.")
    ] = "generic",
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("explorer.html"),
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Write the model as an interactive web page that needs no server.

    The first page takes a minute or two of all cores; the generated JavaScript is cached.
    """
    from calibration.traces.neighbours import compact
    from dmodel.errors import InputError
    from dmodel.explore.page import missing, page
    from dmodel.parts import opened
    from dmodel.profiles import load

    processes = min(len(missing()), os.cpu_count() or 1)
    with opened(processes if processes > 1 else None) as executor:
        text = page(load(profile), say, compact(), executor)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror})") from None
    say(f"{out}: {len(text.encode()) / 1e6:.2f} MB")
    if open_:
        webbrowser.open(out.resolve().as_uri())
