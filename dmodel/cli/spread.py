"""Options of what computes: processes of this machine, or a cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from dmodel.cli.output import say, seconds
from dmodel.errors import InputError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from dmodel.parts import State

SPREAD = "Workers (default: threads of this process)"
"""Heading of the options in the help."""

OFTEN_S, SELDOM_S = 1.0, 15.0
"""Time between two lines of progress on a terminal, and elsewhere [s]."""


class Spread(NamedTuple):
    """What computes."""

    workers: Annotated[
        int | None,
        typer.Option(help="Worker processes, one thread each.", rich_help_panel=SPREAD),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Dask scheduler, such as tcp://127.0.0.1:8786.",
            rich_help_panel=SPREAD,
        ),
    ] = None

    @property
    def given(self) -> list[str]:
        """Options that are given."""
        return [f"--{name}" for name, value in self._asdict().items() if value is not None]


def check_spread(spread: Spread) -> None:
    """Refuse both at once, and a number of processes that is none.

    Raises:
      InputError: with the option.
    """
    if len(spread.given) > 1:
        raise InputError("--workers, --cluster: expected one of the two, got both; leave one")
    if spread.workers is not None and not 1 <= spread.workers <= 1024:
        raise InputError(f"--workers: expected 1 to 1,024 processes; got {spread.workers}")
    if spread.cluster == "":
        raise InputError("--cluster: expected the address of a scheduler; got an empty text")


@contextmanager
def computing(spread: Spread) -> Iterator[Executor | None]:
    """What computes; None where nothing is given: this process."""
    if not spread.given:
        yield None
        return
    from dmodel.parts import opened

    with opened(spread.workers, spread.cluster) as executor:
        yield executor


def told_progress(what: str, total: int, unit: str) -> Callable[[State], None]:
    """What says how far a run is, on stderr: its share, its rate and the time left.

    Args:
      total: of the work, in units of that name.
    """
    shown = sys.stderr.isatty()
    last = time.monotonic()

    def tell(state: State) -> None:
        nonlocal last
        now, done = time.monotonic(), state.size >= total
        if now - last < (OFTEN_S if shown else SELDOM_S) and not done:
            return
        last = now
        text = progress_line(what, state, total, unit)
        if shown:
            sys.stderr.write(f"\r\x1b[K{text}" + ("\n" if done else ""))
            sys.stderr.flush()
        else:
            say(text)

    return tell


def progress_line(what: str, state: State, total: int, unit: str) -> str:
    """How far a run is, in a line."""
    found = f" ({state.found:,} found)" if state.found else ""
    parts = [f"{what}: {100.0 * state.size / max(total, 1):.1f} %, {state.done:,} blocks{found}"]
    left = state.left(total)
    if state.computed:
        parts.append(f"{state.rate:,.0f} {unit}/s")
    if left is not None and state.size < total:
        parts.append(f"{seconds(left)} left")
    return ", ".join(parts)
