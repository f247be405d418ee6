"""Kill a collection at random moments, again and again, and check that it lost nothing, broke
nothing and repeated nothing.

    python -m calibration.collect.torture --kills 100

A child process collects with the real runner and the real store, and invented measurements that are
large, so that kills also come in
the middle of a write. It tells, through a pipe, each task that it starts and each that the store
has taken; the parent sends SIGKILL at
a random moment and holds the store to what it was told. After every second kill the parent also
leaves half a line at the end of the file: a write to the page cache is so quick that kills alone
seldom tear one, but a power cut may. Children are forked from a server that has imported everything
already.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import select
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from calibration.collect import runner, store
from calibration.collect.tasks import KEY_DIGITS, Task

ENVIRONMENT = {"id": "torture", "identity": "torture"}
FOLDER = "measurements"


class Verdict(NamedTuple):
    """What the kills did: tasks, kills of a living child, torn ends that writers repaired, and the
    four things that must be 0."""

    tasks: int
    kills: int
    torn: int
    lost: int
    corrupt: int
    repeated: int
    missing: int
    seconds: float

    @property
    def passed(self) -> bool:
        """Nothing lost, corrupt, repeated or missing at the end."""
        return not (self.lost or self.corrupt or self.repeated or self.missing)


def tasks(count: int) -> list[Task]:
    """Invented tasks."""
    return [Task("invented", {"number": i}) for i in range(count)]


def payload(number: int, size: int) -> str:
    """Text of about `size` bytes that only this task has."""
    return hashlib.sha256(str(number).encode()).hexdigest() * (size // 64)


def collect(folder: Path, count: int, size: int, pipe: Connection) -> None:
    """The child: collect, telling each start and each finished record through the pipe."""

    def measure(task: Task) -> dict[str, Any]:
        number = int(task.parameters["number"])
        return {"time": {"median_s": 1.0 + number}, "payload": payload(number, size)}

    def tell(event: runner.Event) -> None:
        os.write(
            pipe.fileno(), f"{'start' if event.what == 'start' else 'done'} {event.key}\n".encode()
        )

    runner.run(tasks(count), folder / FOLDER, ENVIRONMENT, measure, report=tell)


class _Child(NamedTuple):
    """A living child and the end of the pipe that it talks into."""

    process: Any
    pipe: Connection


def _child(folder: Path, count: int, size: int) -> _Child:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["calibration.collect.torture"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=collect, args=(folder, count, size, there))
    process.start()
    there.close()
    return _Child(process, here)


def _told(child: _Child, until: float | None) -> tuple[bytes, bool]:
    """What the child says until a moment (None: until it ends), and whether it ended by itself."""
    said, file = b"", child.pipe.fileno()
    while True:
        wait = None if until is None else max(until - time.monotonic(), 0.0)
        ready, _, _ = select.select([file], [], [], wait)
        if not ready:
            return said, False
        chunk = os.read(file, 65536)
        if not chunk:
            return said, True
        said += chunk


class _Tally:
    """What went wrong so far; done: keys of what was said to be on the disk."""

    def __init__(self) -> None:
        self.done: set[str] = set()
        self.repeated = self.lost = self.corrupt = 0

    def said(self, lines: list[str]) -> None:
        """Take what a child said."""
        for line in lines:
            word, _, key = line.partition(" ")
            self.repeated += word == "start" and key in self.done
            if word == "done" and len(key) == KEY_DIGITS:
                self.done.add(key)

    def stored(self, found: store.Collection, size: int) -> None:
        """Take what is on the disk after a child."""
        self.lost += len(self.done - found.measurements.keys())
        self.corrupt += sum(not damage.torn for damage in found.damage)
        self.corrupt += sum(
            r["payload"] != payload(r["parameters"]["number"], size)
            for r in found.measurements.values()
        )
        self.repeated += found.duplicates


def torture(folder: Path, kills: int, count: int, size: int, seed: int, life_s: float) -> Verdict:
    """Kill a collection `kills` times, then let it finish, and compare what it said with what is on
    the disk.

    Args:
      count: tasks. size: of each record [byte]. life_s: mean life of a child after its first word
        [s].
    """
    draw, began = random.Random(seed), time.monotonic()
    tally, sent, ended = _Tally(), 0, False
    while not ended:
        child = _child(folder, count, size)
        if sent >= kills:
            said, ended = _told(child, None)
        else:
            said, ended = _until_killed(child, draw.expovariate(1.0 / life_s))
        sent += not ended
        child.process.join()
        if not ended and sent % 2:
            _tear(folder, draw)
        tally.said(said.decode().splitlines())
        tally.stored(store.read(folder / FOLDER), size)
    keys = {task.key(ENVIRONMENT["identity"]) for task in tasks(count)}
    torn = sum(path.read_bytes().count(b"\n") for path in (folder / FOLDER).glob("*.torn"))
    return Verdict(
        count,
        sent,
        torn,
        tally.lost,
        tally.corrupt,
        tally.repeated,
        len(keys ^ store.read(folder / FOLDER).measurements.keys()),
        time.monotonic() - began,
    )


def _tear(folder: Path, draw: random.Random) -> None:
    """Leave a record half written, as a power cut may."""
    line = store.encode({"type": "measurement", "key": "torn", "payload": payload(-1, 4096)})
    with (folder / FOLDER / f"{runner.file_name(0)}{store.SUFFIX}").open("ab") as file:
        file.write(line[: draw.randrange(1, len(line) - 2)])


def _until_killed(child: _Child, life_s: float) -> tuple[bytes, bool]:
    """Let the child live for a while after its first word, then kill it; a child that ends before
    is not killed."""
    first = os.read(child.pipe.fileno(), 65536)
    if not first:
        return first, True
    more, ended = _told(child, time.monotonic() + life_s)
    if not ended:
        os.kill(child.process.pid, signal.SIGKILL)
        more += _told(child, None)[0]
    return first + more, ended
