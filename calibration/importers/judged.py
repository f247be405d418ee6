"""Finished rows against physics: what cannot be is left out, what can hardly be is kept with its flag
and the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from calibration.importers.found import COLLECTIVES
from calibration.plausible import IMPLAUSIBLE, REFUSED, Finding, findings
from calibration.traces.table import Row


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

    Rows that lack something are not judged: what they lack is asked for, and they are judged then.
    """
    found = Judgement([], [])
    for i, row in enumerate(rows):
        wrong = _wrong(row, origin[i], table, i in unusable)
        refused = [each for each in wrong if each.severity == REFUSED]
        for each in refused or wrong:
            found.doubts.append(Doubt(*origin[i], str(each), bool(refused)))
        if not refused:
            _flag(row, wrong)
            found.kept.append(i)
    return found


def _wrong(
    row: Mapping[str, str], origin: tuple[str, int], table: str, lacking: bool
) -> list[Finding]:
    """What is wrong with a row by physics."""
    if table == COLLECTIVES:
        whole = {"collective": "collective", **row}
        return [f for f in findings(Row(*origin, whole)) if f.severity != "noted"]
    if lacking:
        return []
    return [_asking(f, row) for f in findings(Row(*origin, row)) if f.severity != "noted"]


def _asking(found: Finding, row: Mapping[str, str]) -> Finding:
    """A finding, with the precision asked for where the peak is that of an assumed one."""
    if found.kind != "beyond-peak" or row.get("precision"):
        return found
    asks = "precision is blank and taken as bf16: if it was another, --set precision=fp8 (or nvfp4…)"
    return found._replace(advice="; ".join(filter(None, [found.advice, asks])))


def _flag(row: dict[str, str], wrong: Sequence[Finding]) -> None:
    """Keep in the row that it is hard to believe, and why."""
    if not wrong:
        return
    row["flag"] = "; ".join(filter(None, [row.get("flag"), IMPLAUSIBLE]))
    row["flag_reason"] = "; ".join(map(str, wrong))
