"""Logs of collective benchmarks in the layout of nccl-tests (rccl-tests, mscclpp-test, nccom-test
too): one row of the table of collectives for each message size.

Columns as their header names them; without one, by how many there are: NVIDIA/nccl-tests
`src/common.cu` since 2.0 (`redop` and `root` came later, and the last column was an error), AWS
Neuron's guide of nccom-test, microsoft/mscclpp `test/mscclpp-test`.
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

from calibration.collect.convert import BUS_FACTOR
from calibration.importers.found import COLLECTIVES, Result, accelerator_of, count, number
from calibration.importers.layout import Columns, Values, columns, in_columns, read
from calibration.importers.source import Source

NAME, STACK = "nccl-tests", "nccl-tests"

_BARE = (
    r"^[ \t]*\d{1,15}[ \t]+\d{1,15}[ \t]+[a-z]\w{0,15}[ \t]+"
    r"(?:[a-z]{1,10}[ \t]+(?:-?\d{1,5}[ \t]+)?)?[\d.]{1,15}[ \t]+[\d.]{1,15}[ \t]+[\d.]{1,15}[ \t]"
)
"""A line of measurements, whose header may be cut off."""

SIGN = re.compile(
    rf"algbw(?:\(GB/s\))?\s+busbw|\| +Time \(us\) +\| +AlgBW \(GB/s\)|^#\s*nThread |{_BARE}",
    re.MULTILINE,
)

_HEADER = re.compile(r"^#?\s*(?:nThreads?:? \d+ |minBytes \d+ maxBytes)")
_COLUMNS = re.compile(r"\balgbw\b.*\bbusbw\b|\bSize\s+Time\(.*\bAlgBW\b")
_UNITS = re.compile(r"^#?\s*\(B\)\s")
_RANK = re.compile(r"Rank\s+(\d+) .*\bon\s+(\S+) device\s+\d+ \[[^\]]*\] (.+)$")
_WORLD = re.compile(r"\bnranks[ =](\d+)")
_PROGRAM = re.compile(
    r"\b(all_reduce|all_gather|allreduce|allgather|reduce_scatter|alltoallv?|sendrecv|broadcast|"
    r"reduce|gather|scatter|hypercube)_(?:perf|test)(?:_\w+)?\b"
)
_NCCOM = re.compile(
    r"\bnccom-test\b(?=.*\s(allr|allg|redsct|alltoall|all_?reduce|all_?gather|sendrecv)\b)?"
)
_WORKERS = re.compile(r"\bnccom-test\b.*\s(?:-r|--nworkers)[ =](\d+)")
_VERSION = re.compile(r"\b(NCCL|RCCL)(?: version|-library[=:])?\s*:?\s*v?(\d+\.\d+(?:\.\d+)?)")
_BEGUN = re.compile(r"^\s*\d[\d.]*(?:[KMGT]i?)?B?\s+\d[\d.]*(?:\s|$)")
NAMES = {
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "sendrecv": "permute",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allr": "all_reduce",
    "allg": "all_gather",
    "redsct": "reduce_scatter",
}
"""Program → collective, where it is another word."""

AGREES = 0.05
"""Largest relative difference between bandwidths and what follows from time, size and ranks; short
times are rounded."""

RANKS = 4096
"""Ranks that bandwidths are compared with."""


class Test:
    """One test of a log: what its header says. world: ranks, where a line says how many."""

    def __init__(self, collective: str = "", version: str = "") -> None:
        self.collective = collective
        self.version = version
        self.program = ""
        self.ranks: dict[int, str] = {}
        self.devices: set[str] = set()
        self.world: int | None = None
        self.columns: Columns | None = None
        self.rows: list[tuple[int, Values]] = []

    def next(self) -> Test:
        """The test that another header begins; its program may have been named above it."""
        test = Test(self.collective if self.columns is None else "", self.version)
        test.program, test.world = self.program, None
        return test

    def take(self, text: str) -> bool:
        """Take a line of the header; False where it is none."""
        if found := _RANK.search(text):
            self.ranks[int(found[1][:9])] = found[2]
            self.devices.add(found[3].strip())
        elif found := _VERSION.search(text):
            self.version = f"{found[1]} {found[2]}"
        elif found := _WORLD.search(text):
            self.world = count(found[1])
        elif _COLUMNS.search(text):
            self.columns = columns(text)
        elif _UNITS.match(text) and self.columns and "(ms)" in text:
            self.columns = self.columns._replace(micros=1e3)
        elif "MSCCL++" in text:
            self.program = "mscclpp-test"
        else:
            return False
        return True

    @property
    def is_whole(self) -> bool:
        """Whether all ranks up to the last one named are named."""
        return bool(self.ranks) and len(self.ranks) == max(self.ranks) + 1

    @property
    def n_ranks(self) -> int | None:
        """Ranks, where the header says them all."""
        return self.world or (len(self.ranks) if self.is_whole else None)


def named(program: str) -> str:
    """The collective of a program by its path; "" where it is none.

    >>> named("./build/alltoall_perf"), named("gemm")
    ('all_to_all', '')
    """
    found = _PROGRAM.search(program)
    return NAMES.get(found[1], found[1]) if found else ""


def parse(source: Source) -> Result:
    """One row for each line of measurements."""
    result, tests = Result(source.name, COLLECTIVES), [Test()]
    for line, text in source.lines:
        test, text = tests[-1], in_columns(text)
        if found := _PROGRAM.search(text) or _NCCOM.search(text):
            if (named := _named(test, text, found[1])) is not test:
                tests.append(named)
        elif _HEADER.match(text) and (test.ranks or test.rows):
            tests.append(test.next())
        elif not test.take(text):
            _measured(result, test, line, text)
    for test in tests:
        finish(result, test)
    return result


def _named(test: Test, text: str, name: str | None) -> Test:
    """The test that a program's name belongs to: another one, where the last has begun."""
    begun = test.ranks or test.rows
    new = Test(version=test.version) if begun else test
    new.collective = NAMES.get(name or "", name or "")
    if found := _WORKERS.search(text):
        new.world = count(found[1])
    if "nccom-test" in text:
        new.program = "nccom-test"
    return new


def _measured(result: Result, test: Test, line: int, text: str) -> None:
    """Take a line of measurements; others are passed over."""
    if not _BEGUN.match(text):
        return
    values = read(text.split(), test.columns)
    if values is None:
        if test.columns is not None or re.match(_BARE, text):
            result.bad_line(line, "a line of measurements that is cut short, or damaged; left out")
        return
    if why := fault(values):
        result.bad_line(line, f"{why}; left out")
        return
    test.rows.append((line, values))


def fault(values: Values) -> str:
    """Why a line is of no use; "" where it is."""
    if values.nbytes == 0.0 or values.time_us == 0.0:
        return "a message of no bytes, or no time"
    if (number(values.wrong) or 0.0) > 1e-3:  # old versions print an error here, new ones a count
        return f"the test found {values.wrong} wrong values: such a time is worth nothing"
    return _contradiction(values)


def _contradiction(values: Values) -> str:
    """Whether size, time and algorithm bandwidth contradict; old versions count of gathers what a
    rank receives, (n − 1) / n of the whole."""
    rate = values.nbytes / (1e3 * values.time_us)
    if values.algorithm <= 1.0:
        return ""
    share = values.algorithm / rate
    if abs(share - 1.0) <= AGREES or _received(share):
        return ""
    return (
        f"{values.nbytes:g} bytes in {values.time_us:g} us are {rate:.4g} GB/s, not "
        f"{values.algorithm:g}: the line is damaged"
    )


def _received(share: float) -> int | None:
    """Ranks of which all but one make a share of a message; None where there are none such."""
    if not 0.45 <= share < 1.0:
        return None
    ranks = round(1.0 / (1.0 - share))
    return ranks if ranks >= 2 and abs((ranks - 1) / ranks / share - 1.0) <= 0.01 else None


def finish(result: Result, test: Test) -> None:
    """The rows of a test, unless one rank alone was measured."""
    if not test.rows:
        return
    lone = test.n_ranks == 1
    told = test.columns is None or "busbw" in test.columns.each
    silent = told and not test.world and all(values.bus == 0.0 for _, values in test.rows)
    # a bus bandwidth of small messages alone is rounded to 0
    large = any(values.algorithm > 1.0 for _, values in test.rows)
    if lone or (silent and large):
        why = "one rank measures no network" if lone else "a bus bandwidth of 0 is that of one rank"
        result.bad_line(
            test.rows[0][0],
            f"{why}: {len(test.rows)} lines left out. Start all ranks in one job (build with "
            "MPI=1, and mpirun or srun), so that the header names each",
        )
        return
    cells = _described(result, test)
    for line, values in test.rows:
        result.add(line, cells | _sizes(values))


def _sizes(values: Values) -> dict[str, Any]:
    """Cells of one line; the algorithm bandwidth is always the whole message over the time."""
    share = values.algorithm * 1e3 * values.time_us / values.nbytes
    whole = values.algorithm if abs(share - 1.0) <= AGREES or values.algorithm <= 1.0 else 0.0
    return {
        "message_bytes": values.nbytes,
        "time_us": values.time_us,
        "algbw_GBs": whole or None,
        "busbw_GBs": values.bus or None,
    }


def _described(result: Result, test: Test) -> dict[str, Any]:
    """Cells of all lines; what they let guess is asked for."""
    program = test.program or ("rccl-tests" if test.version.startswith("RCCL") else STACK)
    ranks = test.n_ranks
    collective = test.collective or _guess(test, ranks)
    _hint(result, test, ranks, collective)
    return {
        "source": f"{program} {Path(result.file).name}",
        "collective": collective,
        "accelerator": accelerator_of(test.devices),
        "link": test.version or None,
        "n_accel": count(ranks),
        "nodes": count(len(set(test.ranks.values()))) if test.is_whole else None,
    }


def _share(test: Test) -> float | None:
    """Bus over algorithm bandwidth, where both are large enough to be told."""
    found = [v.bus / v.algorithm for _, v in test.rows if v.algorithm >= 5.0]
    return statistics.median(found) if found else None


def _guess(test: Test, ranks: int | None) -> str | None:
    """The collective of a log without the name of its program: by its operation, and bus over
    algorithm bandwidth.

    Gathers and all-to-all look the same, so that they have to be named.
    """
    share = _share(test)
    reduces = any(values.operation not in ("", "none", "-1") for _, values in test.rows)
    if not reduces or share is None or not ranks or ranks < 3:
        return None
    likely = ("all_reduce", "reduce_scatter")
    fits = [k for k in likely if abs(share / BUS_FACTOR[k](ranks) - 1.0) < AGREES]
    return fits[0] if len(fits) == 1 else None


def _hint(result: Result, test: Test, ranks: int | None, collective: str | None) -> None:
    """What bandwidths and the ranks that are named let guess, where the header does not say it."""
    named = max(test.ranks, default=-1) + 1
    if ranks is None and named:
        result.hints["n_accel"] = f"{named} (rank {named - 1} is named, the others are not)"
    if ranks is None or not collective:
        found = _of_reductions(test) or _of_gathers(test) or _of_old_gathers(test)
        result.hints |= {n: text for n, text in found.items() if n == "collective" or not ranks}


def _of_reductions(test: Test) -> dict[str, str]:
    """Hints of a share of more than 1, which all-reduce alone has."""
    share = _share(test)
    if share is None or share <= 1.0 + 1e-3:
        return {}
    shown, ranks = f"busbw is {share:.4g} of algbw", _ranks_of(share, "all_reduce")
    hints = {"collective": f"all_reduce ({shown}, more than 1)"}
    return hints | ({"n_accel": f"{ranks} ({shown}: 2 (n - 1) / n)"} if ranks else {})


def _of_gathers(test: Test) -> dict[str, str]:
    """Hints of a share of less than 1."""
    share = _share(test)
    ranks = None if share is None or share >= 1.0 - 1e-3 else _ranks_of(share, "all_gather")
    if not ranks:
        return {}
    why = f"busbw is {share:.4g} of algbw: (n - 1) / n of {ranks} ranks"
    return {"collective": f"… ({GATHERS}: {why})", "n_accel": f"{ranks} ({why})"}


GATHERS = "all_gather, reduce_scatter or all_to_all"


def _of_old_gathers(test: Test) -> dict[str, str]:
    """Hints of old versions, which count of gathers what a rank receives."""
    large = [v for _, v in test.rows if v.algorithm >= 5.0]
    shares = [v.algorithm * 1e3 * v.time_us / v.nbytes for v in large]
    ranks = _received(statistics.median(shares)) if shares else None
    if not ranks:
        return {}
    why = f"algbw is (n - 1) / n of size over time for {ranks} ranks, as old versions count"
    return {
        "collective": f"… (all_gather or reduce_scatter: {why})",
        "n_accel": f"{ranks} ({why})",
    }


def _ranks_of(share: float, collective: str) -> int | None:
    """Ranks whose bus factor is nearest a share."""
    scale = BUS_FACTOR[collective](2) * 2
    left = 1.0 - share / scale
    ranks = round(1.0 / left) if left > 1.0 / RANKS else 0
    return ranks if ranks >= 2 else None
