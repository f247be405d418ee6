"""`dmodel import`: logs and profiles of other programs as a table that `dmodel fit` takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from dmodel.cli.compiled import ready
from dmodel.cli.options import Json
from dmodel.cli.output import (
    Document,
    check_apart,
    deliver,
    say,
    seconds,
    show_lines,
    show_table,
    stop,
)
from dmodel.errors import InputError

if TYPE_CHECKING:
    from calibration.importers import Imported
    from calibration.importers.judged import Doubt

SAID = 10
"""Messages about single places on stderr; the JSON document has all."""

FORMATS = (
    "kineto, mlperf, maxtext, torchtitan, nemo, megatron, megatron-golden, internlm, neuronx, "
    "deepspeed, composer, olmo-core, olmo, lightning, trainer, memory, dllogger, nccl-json, "
    "nccl-tests, xplane"
)

Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE…", help=f"Logs or profiler traces, also gzipped: {FORMATS}."),
]
Out = Annotated[
    Path,
    typer.Option(metavar="TRACES.csv", help="Table to write: training steps, or collectives."),
]
Name = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="Format of all files; default: detected."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help=(
            "A column or setting (`dmodel catalog settings`) of all rows, overrides the files; "
            "model=NAME also fills a blank shape."
        ),
    ),
]
With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        metavar="FILE",
        help=(
            "A file that describes the run and fills blank cells: a config.json of a "
            "model or of DeepSpeed, a launch script, a configuration (YAML, TOML), a memory "
            "snapshot. --set overrides the log, the log overrides this. Repeatable."
        ),
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict", help="Exit 1 when something could not be read, or a row is incomplete."
    ),
]


def command(
    files: Files,
    out: Out,
    format: Name = None,
    set: Set = None,
    with_file: With = None,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Turn training logs, logs of collectives and profiler traces into a table of measurements.

    Exit 1 when a row contradicts physics: it is left out, or kept with a flag and the reason.
    """
    check_apart(out, *files, *(with_file or []))
    ready()
    _import(files, out, _Asked(format, set or [], with_file or [], strict, json))


class _Asked(NamedTuple):
    """Options."""

    format: str | None
    set: list[str]
    with_files: list[Path]
    strict: bool
    json: bool


def _import(files: list[Path], out: Path, asked: _Asked) -> None:
    from calibration.importers import read, save, settings

    found = read(files, asked.format, settings(asked.set), asked.with_files)
    save(found, out)
    _report(found)
    deliver(_document(found, out), asked.json, _show)
    lacking = found.troubles or found.needed or found.unusable
    if found.doubts or asked.strict and lacking:
        stop(1)


def _report(found: Imported) -> None:
    """Say on stderr what could not be read, what contradicts, and what rows lack."""
    _say_some("warning", [str(trouble) for trouble in found.troubles])
    _say_some("conflict", found.conflicts)
    _say_some("error", [_doubted(doubt) for doubt in found.doubts])
    if found.needed:
        say(_needed(found))
    if found.table == "traces":
        _say_of_precision(found)
    for reason, count in Counter(_other_reasons(found)).items():
        say(f"{count} of {len(found.rows)} rows cannot be used: {reason}")


def _say_of_precision(found: Imported) -> None:
    """Say what a blank precision counts as."""
    blank = sum(not row.get("precision") for row in found.rows)
    if blank:
        say(
            f"precision is blank in {blank} of {len(found.rows)} rows, and counts as bf16, or "
            "fp16 on a chip without it; if it was another: --set precision=…"
        )


def _say_some(kind: str, messages: Sequence[str]) -> None:
    """Messages of one kind, and how many more there are."""
    for message in messages[:SAID]:
        say(f"{kind}: {message}")
    if len(messages) > SAID:
        say(f"{kind}: {len(messages) - SAID} more; --json lists all")


def _doubted(doubt: Doubt) -> str:
    return str(doubt) if doubt.left_out else f"{doubt}; flagged implausible"


def _lacking(found: Imported) -> set[int]:
    """Rows that lack a cell."""
    return {i for rows in found.needed.values() for i in rows}


def _other_reasons(found: Imported) -> list[str]:
    """Why rows cannot be used that lack no cell."""
    lacking = _lacking(found)
    return [why for i, why in found.unusable.items() if i not in lacking]


def _needed(found: Imported) -> str:
    """One message about all cells without which rows cannot be used, and what to type."""
    words = {name: f"--set {name}=…" for name in found.needed}
    if found.table == "traces":
        words = _with_layout(_with_model(words))
    lines = [
        f"needed besides in {len(_lacking(found))} of {len(found.rows)} rows, where blank: "
        f"{'; '.join(words.values())}{_strangers(found)}",
        *(f"hint: {name}={text}" for name, text in found.hints.items()),
        f"to type: dmodel import … {' '.join(_typed(found, name) for name in words)}"
        + " (or --with FILE: config.json, launch script, configuration)"
        * (found.table == "traces"),
    ]
    return "\n".join(lines)


def _typed(found: Imported, name: str) -> str:
    """What gives a cell, with what files let guess of it."""
    shape = found.table == "traces" and name == "n_layers"
    guessed = found.hints.get(name, "…").partition(" (")[0]
    return "--set model=NAME" if shape else f"--set {name}={guessed}"


def _with_model(words: dict[str, str]) -> dict[str, str]:
    """The cells of a shape as one: the name of a model has them all."""
    from calibration.traces.schema import SHAPE

    shape = [name for name in words if name in SHAPE and name != "seq_len"]
    if not shape:
        return words
    named = {shape[0]: f"--set model=NAME of the catalog (or {', '.join(shape)})"}
    return {name: text for name, text in (words | named).items() if name not in shape[1:]}


def _with_layout(words: dict[str, str]) -> dict[str, str]:
    """What stands for the degrees that multiply to the devices."""
    layout = {"dp": "the layout: --set dp=… (or tp, pp, zero_stage)"}
    return words | layout if "dp" in words else words


def _strangers(found: Imported) -> str:
    """Which models of rows without a shape the catalog has not got."""

    names = [found.rows[i].get("model", "") for i in found.needed.get("n_layers", ())]
    unknown = [name for name in dict.fromkeys(names) if name and not _is_known(name)]
    if not unknown:
        return ""
    named = ", ".join(unknown[:SAID])
    return f". Not in the catalog: {named}; `dmodel catalog models` lists what is"


def _is_known(name: str) -> bool:
    """Whether the catalog has a model of that name."""
    from dmodel.catalog.loader import resolve

    try:
        resolve("models", name.rpartition("/")[2])
    except InputError:
        return False
    return True


def _document(found: Imported, out: Path) -> Document:
    rows = [
        {"file": file, "line": line, "cells": row, "unusable": found.unusable.get(i)}
        for i, ((file, line), row) in enumerate(zip(found.origin, found.rows, strict=True))
    ]
    return {
        "out": str(out),
        "table": found.table,
        "files": found.files,
        "rows": rows,
        "hints": found.hints,
        "conflicts": found.conflicts,
        "doubts": [doubt._asdict() for doubt in found.doubts],
        "needed": {name: len(indices) for name, indices in found.needed.items()},
        "troubles": [trouble._asdict() for trouble in found.troubles],
    }


def _file_cells(f: Document) -> tuple[object, ...]:
    """A file in the table: its warnings only where it was read."""
    warnings = "" if f["format"] is None else f["troubles"]
    return Path(f["file"]).name, f["format"] or "not read", f["rows"], warnings


def _show(d: Document) -> None:
    files = [_file_cells(f) for f in d["files"]]
    show_table("Files", ("file", "format", "rows", "warnings"), files)
    if d["table"] == "traces":
        _show_traces(d["rows"])
    show_lines(f"wrote {d['out']} ({len(d['rows'])} rows)")
    if d["table"] == "traces" and not d["doubts"] and not any(r["unusable"] for r in d["rows"]):
        show_lines(f"Next: dmodel fit {d['out']} --out mine.json")


def _show_traces(found: list[Document]) -> None:
    """Table of the runs."""
    names = ("model", "accelerator", "n_accel", "global_batch", "seq_len")
    rows = [
        (
            Path(r["file"]).name,
            r["line"],
            *(r["cells"].get(n, "") for n in names),
            _time(r["cells"]),
            "" if r["unusable"] else "yes",
        )
        for r in found
    ]
    show_table("Rows", ("file", "line", *names, "step time", "usable"), rows)


def _time(cells: dict[str, str]) -> str:
    return seconds(float(cells["step_time_s"])) if cells.get("step_time_s") else ""
