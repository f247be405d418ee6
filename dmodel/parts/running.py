"""Blocks computed by an executor, and their parts in the order of the blocks."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from contextlib import contextmanager
from typing import NamedTuple

from dmodel.errors import InputError
from dmodel.parts.block import Block, Part, computed, sources
from dmodel.parts.files import Folder
from dmodel.parts.workers import connection

AHEAD = 4
"""Blocks in flight for each worker: enough that none waits for the next one [count]."""

UNKNOWN = 64
"""Workers of an executor that does not say how many it has [count]."""

LOOK_S = 2.0
"""Time between two looks whether a cluster is still there, while no block is done [s]."""


class State(NamedTuple):
    """How far a run is.

    Attributes:
      done, found: blocks that are there, and those of them that were kept [count].
      size, computed: of all blocks that are there, and of those that were computed, in units of
        the work [count].
      seconds: since the run began [s].
    """

    done: int
    found: int
    size: int
    computed: int
    seconds: float

    @property
    def rate(self) -> float:
        """Units of work a second; 0 before any was computed [1/s]."""
        return self.computed / self.seconds if self.seconds > 0.0 else 0.0

    def left(self, total: int) -> float | None:
        """Time left for a total of work [s]; None before anything was computed."""
        return (total - self.size) / self.rate if self.rate > 0.0 else None


Progress = Callable[[State], None]
"""Called when a block is there."""


def workers_of(executor: Executor) -> int:
    """How many blocks an executor computes at once [count]; `UNKNOWN` where it does not say."""
    client = getattr(executor, "_client", None)
    if client is not None:  # Dask's
        return max(sum(client.nthreads().values()), 1)
    return int(getattr(executor, "_max_workers", UNKNOWN))


def parts(
    blocks: Iterable[Block],
    executor: Executor | None = None,
    folder: Folder | None = None,
    progress: Progress | None = None,
) -> Generator[Part, None, None]:
    """Parts of blocks, in the order of the blocks, whatever the order in which they are done.

    A part is kept as soon as it is there. Blocks are asked for as they are needed, so that there
    may be more of them than fit into memory.

    Args:
      executor: of what computes; None for a thread for each core.
      folder: of parts: those that it has are not computed.
      progress: called when a part is there.

    Raises:
      InputError: a worker of the executor died, or runs other sources; or its cluster is gone.
    """
    if executor is None:
        with ThreadPoolExecutor(os.cpu_count() or 1) as own:
            yield from parts(blocks, own, folder, progress)
        return
    run = _Run(iter(blocks), executor, folder, progress)
    try:
        yield from run.parts()
    finally:
        run.give_up()


class _Run:
    """Blocks in flight, the first of them first."""

    def __init__(
        self,
        blocks: Iterator[Block],
        executor: Executor,
        folder: Folder | None,
        progress: Progress | None,
    ) -> None:
        self.blocks, self.executor, self.folder = blocks, executor, folder
        self.progress, self.connection = progress, connection(executor)
        with self._clear():
            self.most = AHEAD * workers_of(executor)
        self.flying: deque[tuple[Block, Future[Part]]] = deque()
        self.waiting: dict[Future[Part], Block] = {}
        self.begun = time.monotonic()
        self.state = State(0, 0, 0, 0, 0.0)

    def parts(self) -> Iterator[Part]:
        """Parts in order."""
        while self._fill() or self.flying:
            while self.flying and self.flying[0][1].done():
                yield self.flying.popleft()[1].result()
                self._collect(0.0)
                self._fill()
            if self.waiting:
                self._collect(LOOK_S)

    def give_up(self) -> None:
        """Let go of what has not begun."""
        for future in self.waiting:
            future.cancel()

    def _fill(self) -> bool:
        """Ask for blocks until enough are in flight; whether any was asked for."""
        asked = False
        while len(self.flying) < self.most:
            block = next(self.blocks, None)
            if block is None:
                break
            asked = True
            self.flying.append((block, self._asked(block)))
        return asked

    def _asked(self, block: Block) -> Future[Part]:
        """The part of a block, now or later."""
        kept = None if self.folder is None else self.folder.read(block.name)
        if kept is not None:
            there: Future[Part] = Future()
            there.set_result(kept)
            self._count(block, found=1)
            return there
        with self._clear():
            future = self.executor.submit(
                computed, block.function, block.arguments, sources(block.function)
            )
        self.waiting[future] = block
        return future

    def _collect(self, seconds: float) -> None:
        """Keep what is done; wait for the first at most so long where nothing is.

        Raises:
          InputError: a worker died, or the cluster is gone; what else was done is kept.
        """
        done = wait(self.waiting, seconds, FIRST_COMPLETED).done
        failed = [future for future in done if future.cancelled() or future.exception()]
        for future in done - set(failed):
            block, part = self.waiting.pop(future), future.result()
            if self.folder is not None:
                self.folder.write(block.name, part)
            self._count(block, found=0)
        with self._clear():
            for future in failed:
                future.result()
        if not done and self._lost():  # an answer that was on its way when it went never comes
            raise InputError(GONE)

    def _lost(self) -> bool:
        """Whether the cluster is gone, or one that came in its place."""
        return self.connection is not None and connection(self.executor) is not self.connection

    @contextmanager
    def _clear(self) -> Iterator[None]:
        """A dead worker, or a cluster that went away, as a user's mistake.

        Raises:
          InputError: it is one of the two.
        """
        try:
            yield
        except Exception as error:
            name, package = type(error).__name__, type(error).__module__.partition(".")[0]
            dask = package == "distributed"  # need not be installed
            if name == "KilledWorker" or isinstance(error, BrokenExecutor):
                raise InputError(DIED) from error
            if isinstance(error, CancelledError):
                raise InputError(DIED if self.connection is None else GONE) from error
            if dask or self._lost():
                raise InputError(GONE) from error
            raise

    def _count(self, block: Block, found: int) -> None:
        old = self.state
        self.state = State(
            done=old.done + 1,
            found=old.found + found,
            size=old.size + block.size,
            computed=old.computed + (0 if found else block.size),
            seconds=time.monotonic() - self.begun,
        )
        if self.progress is not None:
            self.progress(self.state)


DIED = (
    "a worker process died (killed, or out of memory); what was done is kept where a folder of "
    "parts is given: ask again with fewer workers or more memory"
)

GONE = (
    "the cluster is gone: its scheduler ended (killed, or out of memory) or cannot be reached; "
    "what was done is kept where a folder of parts is given: start a scheduler and workers, "
    "and ask again"
)
