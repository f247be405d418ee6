"""One row from what several say of it: a person (`--set`), the log, and files beside it; which
counts, and what they say otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from calibration.importers.beside import Beside
from calibration.importers.found import TRACES, cell, number
from dmodel.recomputation import CHOICES
from dmodel.settings import KNOWN, parse, shown, text_of

AGAIN = ("recompute", "recompute_policy", *CHOICES)
"""Columns and settings of which one says what is recomputed: a given one is in place of all."""


def flat(cells: Mapping[str, str]) -> dict[str, str]:
    """Cells with each setting of `set` under its own name."""
    said = {name: shown(value) for name, value in parse(cells.get("set", "")).items()}
    return {**{name: text for name, text in cells.items() if name != "set"}, **said}


def cells_of(flat: Mapping[str, str]) -> dict[str, str]:
    """Cells again, settings together in `set`."""
    cells = {name: text for name, text in flat.items() if name not in KNOWN}
    said = text_of({name: text for name, text in flat.items() if name in KNOWN})
    return cells | ({"set": said} if said else {})


class Said(NamedTuple):
    """What is said of a row beside its file. given: by a person. known: files beside the log, the
    first of which counts. file: of the row, for messages."""

    given: Mapping[str, str]
    known: Sequence[Beside]
    file: str


def filled(cells: dict[str, str], said: Said, conflicts: list[str]) -> dict[str, str]:
    """A row with blank cells filled from files beside it; what they say otherwise is noted."""
    own, named = flat(cells), flat(said.given)
    conflicts += _against_given(own, named, said.file)
    new: dict[str, str] = {}
    for each in said.known:
        told = flat(each.cells)
        where = dict.fromkeys(own, said.file) | dict.fromkeys(named, "--set")
        conflicts += _conflicts(told, own | named, each, where)
        # what is recomputed is said in one of several ways: where the log says one, all are its
        closed = {*own, *named, *(AGAIN if set(AGAIN) & set(own) else ())}
        new = {n: v for n, v in told.items() if n not in closed} | new
    if not new:
        return cells
    kinds = ", ".join(f"{each.path.name} ({each.kind})" for each in said.known)
    note = "; ".join(filter(None, [own.get("note", ""), f"{', '.join(new)} of {kinds}"]))
    return cells_of(own | new | {"note": note})


def _against_given(own: Mapping[str, str], named: Mapping[str, str], file: str) -> list[str]:
    """What a log says otherwise than is given."""
    return [
        f"{name}: --set says {value}, {file} says {own[name]}; --set counts"
        for name, value in named.items()
        if name in own and not _is_same(own[name], value)
    ]


def _conflicts(
    told: Mapping[str, str], before: Mapping[str, str], each: Beside, where: Mapping[str, str]
) -> list[str]:
    """What a file beside a log says otherwise than what counts before it."""
    return [
        f"{name}: {where[name]} says {before[name]}, {each.path} says {value}; {where[name]} counts"
        for name, value in told.items()
        if name in before and not _is_same(before[name], value)
    ]


def _is_same(one: str, other: str) -> bool:
    """Whether two cells say the same."""
    values = number(one), number(other)
    if None not in values:
        return abs(values[0] - values[1]) <= 1e-6 * abs(values[0])  # type: ignore[operator]
    return one.strip().lower() == other.strip().lower()


def timed(row: dict[str, str], rates: Mapping[str, float]) -> dict[str, str]:
    """A row whose step time follows from a rate, once its batch is known."""
    batch, seq_len = number(row.get("global_batch")), number(row.get("seq_len"))
    if row.get("step_time_s") or not rates or not batch:
        return row
    samples = rates.get("samples_per_s") or rates.get("tokens_per_s", 0.0) / (
        seq_len or float("inf")
    )
    text, why = cell("step_time_s", batch / samples if samples else None)
    if why or not text:
        return row
    rate = f"{samples:.6g} sequences a second of all devices"
    note = "; ".join(filter(None, [row.get("note"), f"step time: global_batch over {rate}"]))
    return row | {"step_time_s": text, "note": note}


def with_given(row: dict[str, str], given: Mapping[str, str], table: str) -> dict[str, str]:
    """A row with the cells and settings that a person gave; where the file says something else, the
    note keeps it."""
    was, now = flat(row), flat(given)
    gone = set(AGAIN) & set(was) - set(now) if set(AGAIN) & set(now) else set()
    other = _otherwise(was, now) + [f"{n} {was[n]} left out" for n in AGAIN if n in gone]
    row = cells_of({name: text for name, text in (was | now).items() if name not in gone})
    if other and table == TRACES:
        row["note"] = "; ".join(filter(None, [row.get("note"), *other]))
    return row


def _otherwise(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What a file says otherwise than is given."""
    return [
        f"{name} given in place of {was[name]}"
        for name, value in now.items()
        if was.get(name, value) != value and name != "note"
    ]
