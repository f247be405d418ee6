"""`dmodel watch`: a run is followed while its log grows; it says when the run leaves what such runs
take, or its own level."""

from __future__ import annotations

import json as plain_json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dmodel.cli.compiled import ready
from dmodel.cli.options import ProfileOption
from dmodel.cli.output import Document, percent, plain, say, seconds, show_lines, stop
from dmodel.errors import InputError

if TYPE_CHECKING:
    from calibration.watching.level import Expected
    from calibration.watching.runs import Folder, News, Run

Where = Annotated[
    Path,
    typer.Argument(
        metavar="FILE|DIR",
        help="A training log or a table of traces, or a folder of them; see `dmodel import`.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="What the files lack, as for `dmodel import`."
    ),
]
With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with", metavar="FILE", help="A configuration or launch script of the run. Repeatable."
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="Format of the logs; default: detected."),
]
Least = Annotated[float, typer.Option(help="Smallest relative change to report.")]
Once = Annotated[bool, typer.Option("--once", help="Read what is there, and exit.")]
First = Annotated[bool, typer.Option("--first", help="Exit at the first alarm.")]
Idle = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Exit after this time without new lines.")
]
Every = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Polling interval; default: 2.")
]
Lines = Annotated[
    bool, typer.Option("--json", help="Print one JSON document per line for each event.")
]


class _Asked(NamedTuple):
    """Options of how long to follow."""

    once: bool
    first: bool
    idle: float | None
    every: float


EVERY = 2.0
"""Seconds between two looks, unless said."""


def command(
    where: Where,
    profile: ProfileOption = None,
    set: Set = None,
    with_file: With = None,
    format: Name = None,
    least: Least = 0.02,
    once: Once = False,
    first: First = False,
    idle: Idle = None,
    every: Every = None,
    json: Lines = False,
) -> None:
    """Follow a log or a table as it grows: is the run as fast as predicted, does it slow down?

    Exit 1 when a run is slower than predicted, slows down, or stalls; else 0.
    """
    _check(least, idle, every, once)
    every = EVERY if every is None else every
    ready()
    from calibration.importers import settings
    from calibration.watching.runs import Folder, Known

    known = Known(settings(set or []), tuple(with_file or ()), format, least)
    folder = Folder(where, known)
    teller = _Teller(profile, json)
    try:
        for about in _all(folder, teller, _Asked(once, first, idle, every)):
            teller.tell(about)
    except KeyboardInterrupt:
        say("ended by the keyboard")
    _report(folder, teller)
    if teller.alarms:
        stop(1)


def _check(least: float, idle: float | None, every: float | None, once: bool) -> None:
    if not 0.001 <= least <= 1.0:
        raise InputError(f"--least {least:g}: expected a relative change from 0.001 to 1")
    if every is not None and not 0.05 <= every <= 3600.0:
        raise InputError(f"--every {every:g}: expected 0.05 to 3600 seconds")
    if idle is not None and not 0.0 < idle:
        raise InputError(f"--idle {idle:g}: expected a positive number of seconds")
    if once and (idle is not None or every is not None):
        raise InputError("--once ends at once; leave --idle and --every out")


def _all(folder: Folder, teller: _Teller, asked: _Asked) -> Iterator[Document]:
    """News until there is nothing more to follow."""
    while True:
        for news in folder.read(asked.once):
            yield teller.document(news)
            if asked.first and teller.alarms:
                return
        if asked.once:
            return
        for path, waited in folder.stalled():
            yield {"kind": "stalled", "run": str(path), "seconds": waited, "causes": []}
            if asked.first:
                return
        if asked.idle is not None and time.monotonic() - folder.last > asked.idle:
            return
        time.sleep(asked.every)


class _Teller:
    """Says what is new, and counts alarms."""

    def __init__(self, profile: str | None, as_json: bool):
        self._profile, self._json = profile, as_json
        self._expected: dict[str, Expected | None] = {}
        self.alarms = 0

    def document(self, news: News) -> Document:
        """A piece of news, with what the profile says of it."""
        from calibration.watching.level import document

        return document(news, self._of(news.run))

    def _of(self, run: Run) -> Expected | None:
        """What is expected of a run; None where it is not known well enough."""
        key = run.name
        if key not in self._expected:
            self._expected[key] = self._new(run)
        return self._expected[key]

    def _new(self, run: Run) -> Expected | None:
        from calibration.watching.level import Expected

        if run.row is None:
            say(f"{run.name}: not compared with a profile: {run.lacks}")
            return None
        found = Expected(run.row, self._profile)
        say(f"{run.name}: profile {found.profile}: {found.reason}")
        return found

    def tell(self, about: Document) -> None:
        """Print it; what is an alarm counts."""
        from calibration.watching.level import is_alarm

        about = plain({"alarm": is_alarm(about), **about})
        self.alarms += about["alarm"]
        if self._json:
            line = plain_json.dumps(about, allow_nan=False, ensure_ascii=False)
            sys.stdout.write(line + "\n")
        else:
            show_lines(*_words(about))
        sys.stdout.flush()


def _words(d: dict[str, Any]) -> list[str]:
    if d["kind"] == "stalled":
        return [f"{d['run']}: STANDS STILL, no step for {seconds(d['seconds'])}"]
    if d["kind"] == "level":
        level = "its level is known" if d["seconds"] is None else f"{seconds(d['seconds'])} a step"
        lines = [f"{d['run']}, step {d['step']}: {level}{_against(d)}"]
    else:
        kind = d["kind"].upper() if d["alarm"] else d["kind"]
        lines = [
            f"{d['run']}, step {d['step']}: {kind} since step {d['since']}: {_from_to(d)}"
            f"{100.0 * (d['factor'] - 1.0):+.1f} %"
        ]
    for cause in d["causes"]:
        said = f", {cause['says']}" if cause["says"] else ""
        lines.append(f"  {percent(cause['probability'], 0)} {cause['title']}{said}")
    test = next((c["test"] for c in d["causes"] if c["test"]), None)
    return lines + ([f"  next: {test['does']}"] if test else [])


def _from_to(d: dict[str, Any]) -> str:
    """The levels of a change."""
    if d["seconds"] is None or d["before"] is None:
        return ""
    return f"{seconds(d['before'])} → {seconds(d['seconds'])} a step, "


def _against(d: dict[str, Any]) -> str:
    """How a level compares with the profile."""
    if d["verdict"] is None:
        return ""
    low, high = d["interval"]
    verdict = {"inside": "inside", "slower": "SLOWER than", "faster": "faster than"}[d["verdict"]]
    return (
        f", {verdict} what such runs take ({seconds(low)} to {seconds(high)}, predicted "
        f"{seconds(d['predicted'])})"
    )


def _report(folder: Folder, teller: _Teller) -> None:
    """What was read, and what was not."""
    for path, why in folder.passed.items():
        say(f"passed over: {why if str(path) in why else f'{path}: {why}'}")
    steps = sum(file.steps for file in folder.files.values())
    say(f"{len(folder.files)} files, {steps} steps, {teller.alarms} alarms")
    if not steps:
        raise InputError(
            f"{folder.path}: not one step was read; `dmodel import` says what is there"
        )
