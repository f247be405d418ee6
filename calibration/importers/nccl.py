"""Logs of nccl-tests and rccl-tests: one row of the table of collectives for each message size,
from the out-of-place columns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from calibration.collect.convert import BUS_FACTOR
from calibration.collect.machine import accelerator_name
from calibration.importers.found import COLLECTIVES, Result, count, number
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


def parse(source: Source) -> Result:
    """One row for each line of measurements."""
    result, test = Result(source.name, COLLECTIVES), _Test()
    for line, text in source.lines:
        if found := _PROGRAM.search(text):
            if test.ranks:
                test = _Test(version=test.version)
            test.collective = NAMES.get(found[1], found[1])
        elif _HEADER.match(text) and test.ranks:
            test = _Test(test.collective if not test.named else "", test.version)
        elif found := _RANK.search(text):
            test.ranks[int(found[1][:9])] = found[2]
            test.devices.add(found[3].strip())
        elif found := _VERSION.search(text):
            test.version = f"{found[1]} {found[2]}"
        elif _COLUMNS.search(text):
            test.named = True
        elif _ROW.match(text):
            _row(result, test, line, text.split())
        elif re.match(r"^\s*\d+\s+\d+", text) and test.named:
            result.bad_line(line, "a line of measurements that is cut short, or damaged; left out")
    return result


def _row(result: Result, test: _Test, line: int, fields: list[str]) -> None:
    """size count type redop [root] | time algbw busbw #wrong | the same in place."""
    at = 5 if len(fields) in (9, 13) else 4
    values = [number(f) for f in (fields[0], *fields[at : at + 3])]
    if len(fields) < at + 3 or any(v is None or v < 0.0 for v in values):
        result.bad_line(
            line,
            "size, time, algbw and busbw expected; the line is cut short, or damaged; left out",
        )
        return
    nbytes, time_us, algorithm, bus = (v or 0.0 for v in values)
    if nbytes == 0.0 or time_us == 0.0:
        result.bad_line(line, "a message of no bytes, or no time; left out")
        return
    wrong = fields[at + 3] if len(fields) > at + 3 else "N/A"
    if (number(wrong) or 0.0) > 1e-3:  # old versions print the largest error here, new ones a count
        result.bad_line(
            line, f"the test found {wrong} wrong values: such a time is worth nothing; left out"
        )
        return
    if algorithm > 1.0 and abs(nbytes / (1e3 * time_us) / algorithm - 1.0) > AGREES:
        result.bad_line(
            line,
            (
                f"{nbytes:g} bytes in {time_us:g} us are not {algorithm:g} GB/s: the line is "
                "damaged; "
                "left out"
            ),
        )
        return
    cells = _described(result, test, fields[3], algorithm, bus)
    sizes = {
        "message_bytes": nbytes,
        "time_us": time_us,
        "algbw_GBs": algorithm or None,
        "busbw_GBs": bus or None,
    }
    result.add(line, cells | sizes)


def _described(
    result: Result, test: _Test, operation: str, algorithm: float, bus: float
) -> dict[str, Any]:
    program = "rccl-tests" if test.version.startswith("RCCL") else STACK
    names = {accelerator_name(device, "gpu") for device in test.devices}
    known = next((name for name, is_known in names if is_known and len(names) == 1), None)
    ranks = len(test.ranks) or None
    return {
        "source": f"{program} {Path(result.file).name}",
        "collective": test.collective or _guess(operation, ranks, algorithm, bus),
        "accelerator": known,
        "link": test.version or None,
        "n_accel": count(ranks),
        "nodes": count(len(set(test.ranks.values())) or None),
    }


def _guess(operation: str, ranks: int | None, algorithm: float, bus: float) -> str | None:
    """The collective of a log without the name of its program: by its operation, and bus over
    algorithm bandwidth.

    Gathers and all-to-all look the same, so that they have to be named.
    """
    if operation in ("none", "-1") or not ranks or ranks < 3 or algorithm < 1.0:
        return None
    fits = [
        k
        for k in ("all_reduce", "reduce_scatter")
        if abs(bus / algorithm / BUS_FACTOR[k](ranks) - 1.0) < AGREES
    ]
    return fits[0] if len(fits) == 1 else None
