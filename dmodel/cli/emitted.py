"""`--emit`: the chosen plan as launch settings of a framework, as a part of the answer and as a
file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dmodel.cli.output import Document, say, show_lines
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.records import Model, Plan

EmitTo = Annotated[
    str | None,
    typer.Option(
        "--emit",
        metavar="FRAMEWORK",
        help="Show launch settings of the plan: megatron, nemo, torchtitan, maxtext, json.",
    ),
]
EmitFile = Annotated[
    Path | None,
    typer.Option("--emit-out", metavar="FILE", help="Also write the launch settings to this file."),
]


def check_target(target: str | None, file: Path | None) -> None:
    """Find out before the search, not after it.

    Raises:
      InputError: an unknown framework, a file without one, or one that cannot be written.
    """
    if target is not None:
        _check_framework(target)
    if file is not None:
        _check_file(target, file)


def _check_framework(target: str) -> None:
    from dmodel.emit import TARGETS

    if target not in TARGETS:
        raise InputError(f"--emit: expected one of {', '.join(TARGETS)}; got {target!r}")


def _check_file(target: str | None, file: Path) -> None:
    """Refuse a file that nothing is written to, or that cannot be written."""
    if target is None:
        raise InputError(f"--emit-out {file}: nothing to write; name a framework with --emit")
    if not file.parent.is_dir():
        raise InputError(
            f"--emit-out {file}: cannot write, the folder {file.parent} does not exist; make it "
            "first or name another file"
        )


def emit_document(
    asked: Asked, model: Model, plan: Plan, target: str, model_name: str | None = None
) -> Document:
    """The settings, their text, what is left out of them and which rules of the framework the plan
    breaks.

    Args:
      model_name: "" where the model is none of the catalog's; None = as asked for, where its sizes
        are those of that name.
    """
    import math

    import numpy as np

    from dmodel.emit import Job, emit
    from dmodel.named_shape import name_of

    inner = float(np.asarray(asked.cluster.network.size)[0])
    job = Job(
        model=model,
        plan=plan,
        model_name=name_of(model, asked.model_name) if model_name is None else model_name,
        precision=asked.precision,
        accelerator=asked.accelerator,
        per_domain=int(inner) if math.isfinite(inner) else int(float(plan.devices)),
    )
    found = emit(target, job)
    return {
        "target": found.target,
        "checked_against": found.version,
        "file": found.file,
        "text": found.text,
        "settings": found.settings,
        "left_out": [x._asdict() for x in found.left_out],
        "broken_rules": list(found.broken),
        "add": list(found.beside),
    }


def write_emitted(d: Document, file: Path | None) -> None:
    """Write the text where it was asked for, and say what the framework was not told."""
    for rule in d["broken_rules"]:
        say(f"warning: {d['target']} will refuse this plan, or run it worse: {rule}")
    if file is not None:
        file.write_text(d["text"], encoding="utf-8")
        say(
            f"wrote {file} ({len(d['settings'])} settings; {len(d['left_out'])} fields of the "
            "plan could not be told, named in it)"
        )


def show_emitted(d: Document) -> None:
    """The text of the file."""
    show_lines("", f"--- {d['file']}: settings for {d['checked_against']}", d["text"].rstrip())
