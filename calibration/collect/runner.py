"""Work through a list of tasks: skip what is finished, record what is measured, stop when the time
is up.

Several processes of one job run the same tasks in the same order: process 0 decides, the others
follow (`Job.agree`).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from calibration.collect import store
from calibration.collect.tasks import Task
from calibration.collect.tasks import digest as digest_of

STOP = -1
"""What process 0 says instead of the next task's place."""


class Unavailable(Exception):
    """This machine or software cannot run the task; the message says why. Recorded, so that it is
    not tried again."""


class Job(NamedTuple):
    """The processes that measure together. agree: process 0's value of an integer, on all of
    them."""

    process: int = 0
    processes: int = 1
    agree: Callable[[int], int] = lambda value: value


class Event(NamedTuple):
    """What the runner tells while it works. what: "start", "ok", "failed", "unavailable" or
    "skipped" (no time left for it)."""

    what: str
    task: Task
    key: str
    done: int
    total: int
    record: Mapping[str, Any]


class Outcome(NamedTuple):
    """How a run of tasks ended: keys by what became of them, and seconds of measuring, earlier runs
    of the same tasks included."""

    finished: tuple[str, ...]
    measured: tuple[str, ...]
    failed: tuple[str, ...]
    skipped: tuple[str, ...]
    spent_s: float


Measure = Callable[[Task], Mapping[str, Any]]


def file_name(process: int) -> str:
    """Name of the file of one process: host and process, so that hosts that share a folder never
    share a file."""
    host = "".join(c if c.isalnum() or c in "-_" else "-" for c in socket.gethostname()) or "host"
    return f"{host}-p{process}"


def run(
    tasks: Sequence[Task],
    folder: Path,
    environment: Mapping[str, Any],
    measure: Measure,
    *,
    job: Job | None = None,
    budget_s: float | None = None,
    estimate: Callable[[Task], float] | None = None,
    report: Callable[[Event], None] = lambda event: None,
    failures: tuple[type[Exception], ...] = (RuntimeError,),
    shared: Callable[[Task], bool] = lambda task: True,
    retry: bool = False,
) -> Outcome:
    """Measure what is not finished yet, in order.

    Args:
      folder: of the measurements. environment: with its `id` and `identity`; written before the
        first measurement.
      measure: gives what is to be recorded of a task: at least `time`. Raises `Unavailable`, or one
        of `failures`.
      job: the processes that measure together; None for one alone.
      budget_s: seconds of measuring in all; tasks whose estimate is more than what is left are
        skipped.
      estimate: seconds that a task will take, corrected by how long the tasks of its kind have
        taken so far.
      failures: exceptions that are results. shared: whether all processes measure a task; the
        others are for process 0 alone.
      retry: measure again what failed or was unavailable.
      report: called before and after each task; after a measurement only once it is on the disk.

    Raises:
      InputError: the folder cannot be used. OSError: the disk is full.
    """
    job = job or Job()
    keys = [task.key(environment["identity"]) for task in tasks]
    with store.Writer(folder, file_name(job.process)) as writer:
        state = _State(folder, writer.path, keys, tasks, budget_s, estimate, retry)
        if environment["id"] not in store.read(folder).environments:
            writer.append({"type": "environment", **environment})
        name = f"{os.getpid()}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        run_of = digest_of(name if job.processes == 1 else "job")
        about = {"environment": environment["id"], "process": job.process, "run": run_of}
        while (at := job.agree(state.next() if job.process == 0 else STOP)) != STOP:
            if job.process and not shared(tasks[at]):
                continue
            report(state.event("start", at))
            record = _measured(tasks[at], keys[at], measure, failures) | about
            writer.append(record)
            report(state.add(at, record))
        for at in state.skipped:
            report(state.event("skipped", at))
        return state.outcome()


def _measured(
    task: Task, key: str, measure: Measure, failures: tuple[type[Exception], ...]
) -> store.Record:
    """Run one task; what goes wrong on the machine is a result, too."""
    record: store.Record = {
        "type": "measurement",
        "kind": task.kind,
        "parameters": dict(task.parameters),
        "key": key,
    }
    record["started"] = datetime.now(UTC).isoformat(timespec="microseconds")
    began = time.perf_counter()
    try:
        record |= {**measure(task), "status": "ok"}
    except Unavailable as reason:
        record |= {"status": "unavailable", "reason": str(reason)}
    except failures as error:
        record |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:4000]}
    record["wall_s"] = round(time.perf_counter() - began, 6)
    return record


class _State:
    """What is finished and what comes next."""

    def __init__(
        self,
        folder: Path,
        own: Path,
        keys: list[str],
        tasks: Sequence[Task],
        budget_s: float | None,
        estimate: Callable[[Task], float] | None,
        retry: bool,
    ):
        self.folder, self.own, self.keys, self.tasks, self.budget_s, self.estimate = (
            folder,
            own,
            keys,
            tasks,
            budget_s,
            estimate,
        )
        self.wanted = set(keys)
        self.measured: list[str] = []
        self.skipped: list[int] = []
        found = store.read(folder).measurements
        self.finished = {
            key: found[key]
            for key in self.wanted & found.keys()
            if not retry or found[key]["status"] == "ok"
        }
        self.sizes = self._others()

    def _others(self) -> dict[Path, int]:
        """Sizes of the files of other processes."""
        return {
            path: path.stat().st_size
            for path in self.folder.glob(f"*{store.SUFFIX}")
            if path != self.own
        }

    def refresh(self) -> None:
        """Take in what other processes have finished meanwhile."""
        sizes = self._others()
        for path in sizes.keys() - {
            path for path, size in self.sizes.items() if size == sizes.get(path)
        }:
            for record in store.scan(path).records:
                if record.get("key") in self.wanted:
                    self.finished.setdefault(record["key"], record)
        self.sizes = sizes

    def next(self) -> int:
        """Place of the next task, or STOP."""
        self.refresh()
        left = None if self.budget_s is None else self.budget_s - self.spent()
        self.skipped = []
        for at, key in enumerate(self.keys):
            if key in self.finished:
                continue
            if left is None or self._expected(self.tasks[at]) <= left:
                return at
            self.skipped.append(at)
        return STOP

    def event(self, what: str, at: int) -> Event:
        """What is to be told of a task that has no record yet."""
        return Event(what, self.tasks[at], self.keys[at], len(self.finished), len(self.tasks), {})

    def add(self, at: int, record: store.Record) -> Event:
        """Take a record; what is to be told of it."""
        done, total = len(self.finished) + 1, len(self.tasks)
        self.finished[self.keys[at]] = record
        self.measured.append(self.keys[at])
        return Event(record["status"], self.tasks[at], self.keys[at], done, total, record)

    def spent(self) -> float:
        """Seconds that the finished tasks of the list took."""
        return sum(record["wall_s"] for record in self.finished.values())

    def _expected(self, task: Task) -> float:
        """The estimate times how much longer than estimated the finished tasks of the kind took; 0
        without one."""
        if self.estimate is None:
            return 0.0
        alike = [r for r in self.finished.values() if r["kind"] == task.kind]
        foreseen = sum(self.estimate(Task(r["kind"], r["parameters"])) for r in alike)
        ratio = sum(r["wall_s"] for r in alike) / foreseen if foreseen > 0.0 else 1.0
        return self.estimate(task) * ratio

    def outcome(self) -> Outcome:
        """How it ended."""
        finished = tuple(key for key in self.keys if key in self.finished)
        return Outcome(
            finished,
            tuple(self.measured),
            tuple(key for key in finished if self.finished[key]["status"] != "ok"),
            tuple(self.keys[at] for at in self.skipped),
            self.spent(),
        )
