"""What can hardly be right in a finished row: the checks that every reader and importer makes.

`findings` judges a row by itself, each finding with its arithmetic in one line. What is beyond
physics is refused; what is merely hard to believe is flagged (`IMPLAUSIBLE`): it is predicted and
judged, and no fit takes it unless asked. What was read otherwise than written is noted.
Times beside predictions are `calibration.far_off`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calibration.traces import reader
from calibration.traces.questions import completed
from calibration.traces.table import (
    FLAGGED,
    IMPLAUSIBLE,
    NOTED,
    REFUSED,
    Finding,
    Row,
)
from dmodel.catalog.chips import chip, precisions
from dmodel.catalog.loader import canonical, table
from dmodel.catalog.systems import is_host_of_torus
from dmodel.counted import settled
from dmodel.counts import model_flops_per_token, product_flops_per_token
from dmodel.named_shape import FROM_MODEL
from dmodel.named_shape import completed as whole
from dmodel.question import Question
from dmodel.records import Cluster, stacked
from dmodel.resolve import part
from dmodel.shape import OF_PARTS, model
from dmodel.units import GIB

__all__ = ["FLAGGED", "IMPLAUSIBLE", "NOTED", "REFUSED", "Finding", "findings"]

LEAST = 1e-3
"""Utilization below which a time is doubted [1]: of the published rows none is below 0.012."""

USUAL = (0.01, 0.75)
"""Utilization of ordinary runs [1]: what a remedy must lead to."""

ROOM = 1.1
"""Memory over the device's up to which a peak is flagged, beyond it refused: vendors' gigabytes and
tables' roundings differ by less, MiB for GiB is 1,024."""

ROUNDED = 0.02
"""Relative distance of a row's time and rate that roundings explain: of the published rows the
largest is 0.004."""

AGAIN = 4.0 / 3.0
"""Hardware FLOPs over model FLOPs where every layer is done again."""

CONVENTION, PEAK = 2.0, 4.0
"""Times that a published rate of FLOP/s may be outside of what its conventions allow, and that a
published MFU may be, whose peak may be that of another precision or of sparse products."""

TOKENS = 1e9
"""Tokens of a step above which a batch is doubted: the largest published ones are some 1e8."""

SLOW_FLAGS = frozenset({"slow-unexplained", "offload"})
"""Flags by which a table itself says that a row is slow: its utilization is not doubted."""


def findings(row: Row | Mapping[str, str], require_time: bool = True) -> list[Finding]:
    """All that is wrong with a finished row of traces or of collectives, refused, flagged or
    noted; none where it can be believed.

    Args:
      row: of a file, or cells by column. Cells of collectives are known by `collective`.
      require_time: a row of traces without a measured time is refused.
    """
    row = row if isinstance(row, Row) else Row("", 0, row)
    if row.text("collective"):
        return list(_of_collective(row))
    row = row if row.filled else completed(row)
    if wrong := reader.problems(row, require_time):
        return [Finding("unusable", REFUSED, text) for text in wrong]
    return doubts([row])[0]


def doubts(rows: Sequence[Row]) -> list[list[Finding]]:
    """What physics says of each of some rows whose cells make sense."""
    return [[each for check in CHECKS for each in check(run)] for run in runs(rows)]


def runs(rows: Sequence[Row]) -> Iterator[Run]:
    """Some rows whose cells make sense, with what the checks know of each."""
    questions = [row.question for row in rows]
    for row, question, flops in zip(rows, questions, _flops(questions), strict=True):
        yield Run(row, question, part(question, []).system, *flops, reader.measured_time(row))


class Run(NamedTuple):
    """A row, its question and machine, and its measured step time [s], if any. least, most: FLOPs
    of one token, that no implementation can do without and that conventions count at most."""

    row: Row
    question: Question
    machine: Cluster
    least: float
    most: float
    time: float | None

    @property
    def tokens(self) -> float:
        """Of a step [token]."""
        return self.row.known("global_batch") * self.row.known("seq_len")

    @property
    def peak(self) -> float:
        """Of one device, at the row's precision [FLOP/s]."""
        return float(self.machine.chip.flops_per_s)

    @property
    def devices(self) -> float:
        """Of the run [count]."""
        return self.row.known("n_accel")

    @property
    def chips(self) -> str:
        """The devices in words."""
        return f"{self.devices:g} × {self.row.accelerator} at {self.question.precision}"

    @property
    def utilization(self) -> float | None:
        """Share of the peak that the products of a step need at least [1]; None without a time."""
        if self.time is None:
            return None
        return self.least * self.tokens / (self.peak * self.devices * self.time)


OF_SHAPE = frozenset((*FROM_MODEL, "model", "n_params", "seq_len"))
"""Columns that say what a model is."""

OF_MODEL = frozenset((*OF_PARTS, "tuning", "n_mtp"))
"""Settings that do."""


def _flops(questions: Sequence[Question]) -> list[tuple[float, float]]:
    """FLOPs of one token of each question: that no implementation can do without, and that
    conventions count at most (full attention, every layer done again)."""
    if not questions:
        return []
    shapes = [_shape(question) for question in questions]
    different = list(dict.fromkeys(shapes))
    asked = [whole(Question(dict(columns), dict(words)))[0] for columns, words in different]
    found = settled(stacked([model(q, q.settings, []) for q in asked]), asked, [[] for _ in asked])
    most = AGAIN * np.asarray(model_flops_per_token(found, "6N+12Lhs"))
    least, most = (
        np.broadcast_to(x, len(asked)).tolist() for x in (product_flops_per_token(found), most)
    )
    known = dict(zip(different, zip(least, most, strict=True), strict=True))
    return [known[shape] for shape in shapes]


def _shape(question: Question) -> tuple[tuple[tuple[str, Any], ...], ...]:
    """What says the model of a question, as a key."""
    pairs = ((question.columns, OF_SHAPE), (question.settings, OF_MODEL))
    return tuple(tuple((n, v) for n, v in of.items() if n in names) for of, names in pairs)


# --- the checks of a run


def _too_fast_or_slow(run: Run) -> Iterator[Finding]:
    """Times that ask for more than the chips' peak, or next to nothing of it."""
    share = run.utilization
    if share is None or run.time is None:
        return
    slow = share < LEAST and SLOW_FLAGS.isdisjoint(run.row.flags)
    if share <= 1.0 and not slow:
        return
    text = (
        f"measured time {run.time:.6g} s: {run.least:.4g} FLOP × {run.tokens:.4g} tokens of a "
        f"step at least, over {run.peak:.4g} FLOP/s of {run.chips}, is {_shown(share)}"
    )
    kind, severity = ("beyond-peak", REFUSED) if share > 1.0 else ("idle", FLAGGED)
    expected = "expected less than 1" if share > 1.0 else f"expected {LEAST:g} or more"
    yield Finding(kind, severity, f"{text}; {expected}", _of_time(run, share))


def _shown(share: float) -> str:
    return f"{share:.3g} times the peak" if share > 1.0 else f"{share:.2g} of the peak"


def _of_time(run: Run, share: float) -> str:
    """Slips of a unit that would make a time plausible."""
    row, length = run.row, run.row.known("seq_len")
    timed = bool(row.text("step_time_s"))
    slips = {
        "step_time_s is in ms": 1e3 * timed,
        "step_time_s is in us": 1e6 * timed,
        "a rate in sequences was read as tokens": length * (not timed),
        "a rate in thousands of tokens was read as tokens": 1e3 * (not timed),
        "the rate is of the whole run, not of one device": (not timed) / run.devices,
        "a rate in tokens was read as sequences": timed / length,
        "global_batch is in tokens": 1.0 / length,
    }
    if share > 1.0:
        slips |= _of_precision(run)
    return _hints({text: share * factor for text, factor in slips.items() if factor}, USUAL)


def _of_precision(run: Run) -> dict[str, float]:
    """Precisions at which the chip is faster, and what each makes of a utilization."""
    name = run.row.accelerator
    peaks = {p: float(chip(name, p).flops_per_s) for p in precisions(name)}
    faster = {p: run.peak / peak for p, peak in peaks.items() if peak > run.peak}
    return {f"precision is {p}": factor for p, factor in faster.items()}


def _hints(slips: Mapping[str, float], usual: tuple[float, float]) -> str:
    """Slips that lead to a usual value, as advice."""
    likely = [f"{text} ({value:.3g})" for text, value in slips.items() if _within(value, usual)]
    return f"plausible if {' or if '.join(likely)}" if likely else ""


def _within(value: float, ends: tuple[float, float]) -> bool:
    return ends[0] <= value <= ends[1]


def _memory(run: Run) -> Iterator[Finding]:
    """Peaks of more memory than the device has."""
    peak, has = run.row.number("peak_memory_gib"), float(run.machine.chip.hbm_bytes) / GIB
    if peak is None or peak <= has * (1.0 + 1e-3):
        return
    slips = {
        "it is in GB": peak * 1e9 / GIB,
        "it is in MiB": peak / 1024.0,
        "it is in bytes": peak / GIB,
        "it is of all devices together": peak / run.devices,
    }
    yield Finding(
        "memory",
        REFUSED if peak > ROOM * has else FLAGGED,
        f"measured peak of memory {peak:.6g} GiB: {run.row.accelerator} has {has:.4g}; expected "
        "less",
        _hints(slips, (0.05 * has, has)),
    )


def _time_and_rate(run: Run) -> Iterator[Finding]:
    """A time and a throughput of one row that contradict each other."""
    given, derived = run.row.number("step_time_s"), reader.derived_time(run.row)
    if not given or not derived or abs(given / derived - 1.0) <= ROUNDED:
        return
    length, ratio = run.row.known("seq_len"), given / derived
    slips = {
        "step_time_s is in ms": ratio / 1e3,
        "tokens_per_s_per_accel is in thousands": ratio * 1e-3,
        "tokens_per_s_per_accel is of all devices": ratio / run.devices,
        "tokens_per_s_per_accel is in sequences": ratio * length,
        "global_batch is in tokens": ratio * length,
    }
    yield Finding(
        "contradiction",
        FLAGGED,
        f"step_time_s = {given:g} but the throughput says {derived:.5g} s "
        f"({run.tokens:.4g} tokens over {run.devices:g} × "
        f"{run.row.known('tokens_per_s_per_accel'):g} a second); step_time_s counts",
        _hints(slips, (0.8, 1.25)),
    )


def _reported(run: Run) -> Iterator[Finding]:
    """Published FLOP/s and MFU beyond the peak, or that the time contradicts whatever their
    convention."""
    rate, share = run.row.number("tflops_reported"), run.row.number("mfu_reported")
    if rate is not None:
        at = 1e12 * rate / run.peak
        named = f"tflops_reported = {rate:g}: {at:.3g} of the peak of {run.row.accelerator}"
        slips = {
            "it is in GFLOP/s": at / 1e3,
            "it is of all devices together": at / run.devices,
            "it is in PFLOP/s": at * 1e3,
        }
        yield from _compared(run, named, at, slips, CONVENTION)
    if share is not None:
        named = f"mfu_reported = {share:g}"
        yield from _compared(run, named, share, {"it is in percent": share / 100.0}, PEAK)


def _compared(
    run: Run, named: str, at: float, slips: Mapping[str, float], room: float
) -> Iterator[Finding]:
    """A published utilization beside that of the time."""
    text, low, high = "expected less than 1", 0.0, 1.0
    if (least := run.utilization) is not None:
        most = least * run.most / run.least
        low, high = least / room, min(room * most, 1.0)
        text = f"the time says {least:.2g} to {most:.2g} of the peak by convention"
    if not low <= at <= high:
        advice = _hints({t: x for t, x in slips.items() if x < 1.0}, (max(low, 1e-3), high))
        yield Finding("reported", FLAGGED, f"{named}; {text}", advice)


def _domain(run: Run) -> Iterator[Finding]:
    """Domains that are none of the chip's."""
    size, chip = run.row.number("domain_size"), run.row.accelerator
    if size is None:
        return
    network, most = run.machine.network, _largest_domain(canonical("chips", chip))
    if is_host_of_torus(size, run.devices, network):
        yield _of_a_host(run, size)
    elif most is not None and size > max(most, run.row.number("accel_per_node") or 0.0):
        yield Finding(
            "domain",
            FLAGGED,
            f"domain_size = {size:g}: the largest fast domain of {chip} in the catalog has "
            f"{most:g} devices",
        )


def _of_a_host(run: Run, size: float) -> Finding:
    """A domain that is no more than a host of a torus: as it is read."""
    read = float(run.machine.network.size[0])  # type: ignore[index]
    text = f"domain_size = {size:g} on {run.devices:g} × {run.row.accelerator} is one host, "
    if read == size:
        text += f"and a slice of many hosts is one torus; read as {run.devices / size:g} slices"
        advice = "if it is one slice, leave domain_size blank"
        return Finding("domain", FLAGGED, text, advice)
    text += f"as accel_per_node says; read as {read:g}, the slice as one torus"
    return Finding("domain", NOTED, text, "if slices are single hosts, leave accel_per_node blank")


def _largest_domain(chip: str) -> float | None:
    """Devices of the largest innermost level that the catalog has for a chip; None without one, or
    where it has no end."""
    sizes = [
        entry["levels"][0]["size"]["value"]
        for entry in table("systems").values()
        if entry["chip"] == chip
    ]
    return None if not sizes or None in sizes else float(max(sizes))


def _batch(run: Run) -> Iterator[Finding]:
    """Steps of more tokens than anybody trains."""
    if run.tokens <= TOKENS:
        return
    batch, length = run.row.known("global_batch"), run.row.known("seq_len")
    yield Finding(
        "batch",
        FLAGGED,
        f"global_batch × seq_len = {batch:g} × {length:g} = {run.tokens:.3g} tokens a step; "
        f"expected at most {TOKENS:g}",
        _hints({"global_batch is in tokens": batch / length}, (1.0, TOKENS / length)),
    )


CHECKS: tuple[Callable[[Run], Iterator[Finding]], ...] = (
    _too_fast_or_slow,
    _memory,
    _time_and_rate,
    _reported,
    _domain,
    _batch,
)
"""What is asked of a run, in the order in which it is said."""


# --- collectives


def _of_collective(row: Row) -> Iterator[Finding]:
    """One rank, and rates of nothing: no network was measured."""
    ranks = _figure(row, "n_accel")
    if ranks is not None and ranks < 2.0:
        yield Finding(
            "one-rank",
            REFUSED,
            f"{row.text('collective')} of {ranks:g} rank: it moves no byte over a network",
            "say the ranks of the run; nccl-tests count them in the lines `Rank`",
        )
    for name in ("time_us", "algbw_GBs", "busbw_GBs"):
        value = _figure(row, name)
        if row.text(name) and (value is None or not 0.0 < value < np.inf):
            yield Finding(
                "no-rate", REFUSED, f"{name} = {row.text(name)}: expected a number above 0"
            )


def _figure(row: Row, name: str) -> float | None:
    """A cell of any table as a number; None where it is blank or none."""
    try:
        return float(row.text(name))
    except ValueError:
        return None
