"""What all adapters share: rows in, answers out.

An adapter has `answer(job, constant)`, which returns step time [s] and peak memory of a device
[byte], None for what the tool does not say, and raises `NotCovered` for a job that its inputs
cannot express. `constant` is the one that users of the tool tune; None = as the tool comes.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

GIB = 2**30

FIELDS = ("id", "constant", "seconds", "bytes", "reason")


class NotCovered(Exception):
    """A job that the tool's inputs cannot express; the message says why."""


class Answer(NamedTuple):
    """Step time [s] and peak memory of a device [byte]; None for what a tool does not say."""

    seconds: float | None
    bytes: float | None


class Job:
    """One row's inputs, by the columns of `experiments.benchmark.table`."""

    def __init__(self, cells: dict[str, str]):
        self.cells = cells

    def text(self, name: str) -> str:
        """A cell of words."""
        return self.cells[name].strip()

    def real(self, name: str) -> float:
        """A cell with a number."""
        return float(self.cells[name])

    def count(self, name: str) -> int:
        """A cell with a whole number."""
        return round(float(self.cells[name]))

    def flag(self, name: str) -> bool:
        """A cell with 0 or 1."""
        return float(self.cells[name]) != 0.0

    @property
    def experts(self) -> bool:
        """Whether its layers have experts."""
        return "experts" in self.text("blocks").split()

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a data-parallel rank in a step."""
        per_rank, left = divmod(
            self.count("global_batch"), self.count("dp") * self.count("micro_batch")
        )
        require(left == 0 and per_rank > 0, "micro-batches are not a whole number")
        return per_rank


def require(condition: bool, otherwise: str) -> None:
    """Refuse a job where a condition does not hold."""
    if not condition:
        raise NotCovered(otherwise)


def plain_decoder(job: Job, experts: bool = False) -> None:
    """Refuse what few tools have: adapters, operands below 16 bits, layers that are not alike."""
    kinds = ("attention dense", "attention experts") if experts else ("attention dense",)
    require(job.text("blocks") in kinds, f"layers of {job.text('blocks')}")
    require(not job.flag("adapters"), "adapters")
    require(job.count("operand_bytes") == 2, f"operands in {job.text('precision')}")
    require(not job.flag("shared_ff"), "shared experts")


Model = Callable[[Job, "float | None"], Answer]


def answers(model: Model, jobs: list[Job], constants: list[float | None]) -> Iterator[dict]:
    """Lines of answers; a job that the tool refuses has a reason instead."""
    for job in jobs:
        for constant in constants:
            line = {"id": job.text("id"), "constant": "" if constant is None else constant}
            try:
                with quiet():
                    found = model(job, constant)
            except NotCovered as e:
                yield {**line, "reason": str(e)}
                break
            except Exception as e:  # the tool's own refusals come in all kinds
                why = f"{type(e).__name__}: {e}".splitlines()[0]
                yield {**line, "reason": why[:120].rstrip(": ")}
                break
            yield {**line, "seconds": _cell(found.seconds), "bytes": _cell(found.bytes)}
            if found.seconds is None:
                break


def _cell(value: float | None) -> str:
    """A finite positive number as a cell, else a blank."""
    return repr(float(value)) if value is not None and 0.0 < value < float("inf") else ""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep a tool from printing and from warning."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield


def serve(prepare: Callable[[Path | None], tuple[Model, str]]) -> None:
    """Answer the rows of a file.

    Args:
      prepare: gives the model of a checkout (None where there is none), and the tool's version,
        which is printed.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkout", type=Path)
    parser.add_argument("--constants", type=float, nargs="*", default=[])
    options = parser.parse_args()
    with quiet():
        model, version = prepare(options.checkout)
    with options.rows.open(newline="", encoding="utf-8") as file:
        jobs = [Job(cells) for cells in csv.DictReader(file)]
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=FIELDS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(answers(model, jobs, [None, *options.constants]))
    print(version)


def from_checkout(checkout: Path | None, tool: str) -> Path:
    """A checkout that modules can be imported from."""
    if checkout is None or not checkout.is_dir():
        raise SystemExit(f"{tool}: expected --checkout, a folder; got {checkout}")
    sys.path.insert(0, str(checkout))
    return checkout
