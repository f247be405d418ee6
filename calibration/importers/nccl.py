"""Logs of nccl-tests and rccl-tests: one row of the table of collectives for each message size,
from the out-of-place columns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from calibration.collect.convert import BUS_FACTOR
from calibration.importers.found import COLLECTIVES, Result, accelerator_of, count, number
from calibration.importers.source import Source

NAME, STACK = "nccl-tests", "nccl-tests"
SIGN = re.compile(r"algbw\s+busbw|^#\s*nThread ", re.MULTILINE)

_HEADER = re.compile(r"^#?\s*nThreads?:? \d+ ")
_COLUMNS = re.compile(r"algbw\s+busbw")
_RANK = re.compile(r"Rank\s+(\d+) .*\bon\s+(\S+) device\s+\d+ \[[^\]]*\] (.+)$")
_PROGRAM = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoallv?|sendrecv|broadcast|reduce|gather|"
    r"scatter|"
    r"hypercube)_perf\b"
)
_VERSION = re.compile(r"\b(NCCL|RCCL)(?: version|-library[=:])?\s*:?\s*v?(\d+\.\d+(?:\.\d+)?)")
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[a-z]\w*\s+\S+")
_BEGUN = re.compile(r"^\s*\d+\s+\d+")

NAMES = {"alltoall": "all_to_all", "alltoallv": "all_to_all", "sendrecv": "permute"}
"""Program → collective, where it is another word."""

AGREES = 0.05
"""Largest relative difference between bandwidths and what follows from time, size and ranks; short
times are rounded."""


class _Test:
    """One test of a log: what its header says."""

    def __init__(self, collective: str = "", version: str = "") -> None:
        self.collective = collective
        self.version = version
        self.ranks: dict[int, str] = {}
        self.devices: set[str] = set()
        self.named = False

    def next(self) -> _Test:
        """The test that another header begins; its program may have been named above it."""
        return _Test(self.collective if not self.named else "", self.version)

    def of_program(self, name: str) -> _Test:
        """The test that a program's name belongs to: another one, where ranks are told."""
        test = _Test(version=self.version) if self.ranks else self
        test.collective = NAMES.get(name, name)
        return test

    def take(self, text: str) -> bool:
        """Take a line of the header; False where it is none."""
        if found := _RANK.search(text):
            self.ranks[int(found[1][:9])] = found[2]
            self.devices.add(found[3].strip())
        elif found := _VERSION.search(text):
            self.version = f"{found[1]} {found[2]}"
        elif _COLUMNS.search(text):
            self.named = True
        else:
            return False
        return True


def parse(source: Source) -> Result:
    """One row for each line of measurements."""
    result, test = Result(source.name, COLLECTIVES), _Test()
    for line, text in source.lines:
        if found := _PROGRAM.search(text):
            test = test.of_program(found[1])
        elif _HEADER.match(text) and test.ranks:
            test = test.next()
        elif not test.take(text):
            _measured(result, test, line, text)
    return result


def _measured(result: Result, test: _Test, line: int, text: str) -> None:
    """Take a line of measurements; others are passed over."""
    if _ROW.match(text):
        _row(result, test, line, text.split())
    elif test.named and _BEGUN.match(text):
        result.bad_line(line, "a line of measurements that is cut short, or damaged; left out")


def _row(result: Result, test: _Test, line: int, fields: list[str]) -> None:
    """size count type redop [root] | time algbw busbw #wrong | the same in place."""
    at = 5 if len(fields) in (9, 13) else 4
    values = _figures([fields[0], *fields[at : at + 3]])
    if values is None:
        result.bad_line(
            line,
            "size, time, algbw and busbw expected; the line is cut short, or damaged; left out",
        )
        return
    fault = _fault(values, fields[at + 3] if len(fields) > at + 3 else "N/A")
    if fault:
        result.bad_line(line, f"{fault}; left out")
        return
    cells = _described(result, test, fields[3], values)
    sizes = {
        "message_bytes": values.nbytes,
        "time_us": values.time_us,
        "algbw_GBs": values.algorithm or None,
        "busbw_GBs": values.bus or None,
    }
    result.add(line, cells | sizes)


class _Values(NamedTuple):
    """Figures of a line. algorithm, bus: bandwidths in GB/s."""

    nbytes: float
    time_us: float
    algorithm: float
    bus: float


def _figures(fields: list[str]) -> _Values | None:
    """Four figures that are not negative; None where they are not."""
    values = [v for field in fields if (v := number(field)) is not None and v >= 0.0]
    return _Values(*values) if len(values) == 4 else None


def _fault(values: _Values, wrong: str) -> str:
    """Why a line is of no use; "" where it is."""
    nbytes, time_us, algorithm, _ = values
    if nbytes == 0.0 or time_us == 0.0:
        return "a message of no bytes, or no time"
    if (number(wrong) or 0.0) > 1e-3:  # old versions print the largest error here, new ones a count
        return f"the test found {wrong} wrong values: such a time is worth nothing"
    if algorithm > 1.0 and abs(nbytes / (1e3 * time_us) / algorithm - 1.0) > AGREES:
        return f"{nbytes:g} bytes in {time_us:g} us are not {algorithm:g} GB/s: the line is damaged"
    return ""


def _described(result: Result, test: _Test, operation: str, values: _Values) -> dict[str, Any]:
    program = "rccl-tests" if test.version.startswith("RCCL") else STACK
    ranks = len(test.ranks) or None
    return {
        "source": f"{program} {Path(result.file).name}",
        "collective": test.collective or _guess(operation, ranks, values),
        "accelerator": accelerator_of(test.devices),
        "link": test.version or None,
        "n_accel": count(ranks),
        "nodes": count(len(set(test.ranks.values()))),
    }


def _guess(operation: str, ranks: int | None, values: _Values) -> str | None:
    """The collective of a log without the name of its program: by its operation, and bus over
    algorithm bandwidth.

    Gathers and all-to-all look the same, so that they have to be named.
    """
    if operation in ("none", "-1") or not ranks or ranks < 3 or values.algorithm < 1.0:
        return None
    share = values.bus / values.algorithm
    likely = ("all_reduce", "reduce_scatter")
    fits = [k for k in likely if abs(share / BUS_FACTOR[k](ranks) - 1.0) < AGREES]
    return fits[0] if len(fits) == 1 else None
