"""Finished rows against physics: what cannot be is left out, what can hardly be is kept with its
flag and the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from calibration.importers.found import COLLECTIVES, number
from calibration.plausible import (
    FLAGGED,
    IMPLAUSIBLE,
    NOTED,
    REFUSED,
    ROOM,
    Finding,
    doubts,
    findings,
)
from calibration.traces.table import Row
from dmodel.catalog.chips import chip, precisions
from dmodel.catalog.loader import known_name, table
from dmodel.units import GIB


class Doubt(NamedTuple):
    """What is wrong with a row. left_out: whether it is not in the table; else it is flagged."""

    file: str
    line: int
    reason: str
    left_out: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}" + "; left out" * self.left_out


class Judgement(NamedTuple):
    """kept: rows that stay, by number. doubts: of all rows."""

    kept: list[int]
    doubts: list[Doubt]


def judge(
    rows: Sequence[dict[str, str]],
    origin: Sequence[tuple[str, int]],
    table: str,
    unusable: Mapping[int, str],
) -> Judgement:
    """Judge rows, and flag those that are hard to believe.

    Of rows that lack something only single figures are judged: what they lack is asked for, and the
    whole is judged then.
    """
    found = Judgement([], [])
    all_wrong = _wrong_collectives if table == COLLECTIVES else _wrong_runs
    for i, wrong in enumerate(all_wrong(rows, origin, unusable)):
        refused = [each for each in wrong if each.severity == REFUSED]
        for each in refused or wrong:
            found.doubts.append(Doubt(*origin[i], str(each), bool(refused)))
        if not refused:
            _flag(rows[i], wrong)
            found.kept.append(i)
    return found


def _wrong_runs(
    rows: Sequence[dict[str, str]], origin: Sequence[tuple[str, int]], unusable: Mapping[int, str]
) -> list[list[Finding]]:
    """What is wrong with each row of traces by physics."""
    whole = [i for i in range(len(rows)) if i not in unusable]
    found: list[list[Finding]] = [[] for _ in rows]
    judged = doubts([Row(*origin[i], rows[i]) for i in whole])
    for i, wrong in zip(whole, judged, strict=True):
        found[i] = [_asking(each, rows[i]) for each in wrong if each.severity != NOTED]
    for i in unusable:
        found[i] = list(_alone(rows[i]))
    return found


def _alone(row: Mapping[str, str]) -> Iterator[Finding]:
    """What single figures of a row that lacks others say against it: a utilization above 1, and
    more than its chip has, or the largest of the catalog."""
    share, peak, rate = (
        number(row.get(name)) for name in ("mfu_reported", "peak_memory_gib", "tflops_reported")
    )
    if share is not None and share > 1.0:
        yield Finding("reported", FLAGGED, f"mfu_reported = {share:g}; expected less than 1")
    known = known_name("chips", row.get("accelerator", ""))
    has, most = _of_chips(known)
    whose = known or "the largest chip of the catalog"
    if peak is not None and peak > ROOM * has:
        text = f"peak of memory {peak:.6g} GiB: {whose} has {has:.4g}; expected less"
        yield Finding("memory", FLAGGED, text)
    if rate is not None and rate > most:
        text = f"tflops_reported = {rate:g}: {whose} has {most:.6g} at most; expected less"
        yield Finding("reported", FLAGGED, text)


@lru_cache(maxsize=128)
def _of_chips(known: str | None) -> tuple[float, float]:
    """Memory [GiB] and highest rate of products [TFLOP/s] of a chip, or the largest of all."""
    names = [known] if known else list(table("chips"))
    has = max(float(chip(name, precisions(name)[0]).hbm_bytes) / GIB for name in names)
    return has, max(float(chip(n, p).flops_per_s) for n in names for p in precisions(n)) / 1e12


def _wrong_collectives(
    rows: Sequence[dict[str, str]], origin: Sequence[tuple[str, int]], unusable: Mapping[int, str]
) -> list[list[Finding]]:
    """What is wrong with each row of collectives by physics."""
    named = ({"collective": "collective", **row} for row in rows)
    return [findings(Row(*at, row)) for at, row in zip(origin, named, strict=True)]


def _asking(found: Finding, row: Mapping[str, str]) -> Finding:
    """A finding, with the precision asked for where the peak is that of an assumed one."""
    if found.kind != "beyond-peak" or row.get("precision"):
        return found
    asks = (
        "precision is blank and taken as bf16, or fp16 on a chip without it: if it was another, "
        "--set precision=fp8 (or nvfp4…)"
    )
    return found._replace(advice="; ".join(filter(None, [found.advice, asks])))


def _flag(row: dict[str, str], wrong: Sequence[Finding]) -> None:
    """Keep in the row that it is hard to believe, and why."""
    if not wrong:
        return
    row["flag"] = "; ".join(filter(None, [row.get("flag"), IMPLAUSIBLE]))
    row["flag_reason"] = "; ".join(map(str, wrong))
