"""What the model said of every published row when it was frozen, against what it says today.

`python -m tests.oracle` compares and prints what differs, by source and quantity; the exit code is
0 when nothing does, else 1. `--json` prints one document instead, `--freeze` writes the file anew.

It holds a change of how records are made or split to the numbers before it. A difference that is
meant stands in `KNOWN` with its reason; freeze anew only what is right. What is frozen, and `leaf`,
which finds a number in today's records by its name: `tests.answers`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isclose, isfinite
from typing import Any, NamedTuple

import numpy as np

from calibration.traces.published import PUBLISHED
from tests.answers import FROZEN, Answers, answers, load, save

TOLERANCE = 1e-9
"""Relative difference that counts as none: machines and compilers round in other ways."""

ROUNDED = 5e-3
"""How far, relatively, the largest difference of a known kind may be from the listed one."""

SUMS = {
    "term": "step_time_s",
    "perturbed.term": "perturbed.step_time_s",
    "memory": "memory.total",
    "fullest": "fullest.total",
}
"""Parts by the beginning of their names, and the sum that their differences are relative to."""


class Difference(NamedTuple):
    """A value of a row that is not what it was.

    Attributes:
      quantity: its name; `row` where only one side uses the row. line: of the file. heads: of
        further tokens that its model has [count].
      relative: to the larger of both values, or to the larger sum that they are part of [1].
    """

    quantity: str
    source: str
    line: int
    model: str
    stack: str
    heads: float
    was: Any
    now: Any
    relative: float


class Known(NamedTuple):
    """Differences that are meant.

    Attributes:
      reason: why. count: values that differ, by row and quantity. largest: of the differences [1].
      belongs: whether a difference is of this kind.
    """

    reason: str
    count: int
    largest: float
    belongs: Callable[[Difference], bool]


KNOWN: dict[str, Known] = {}
"""Kinds of differences that are meant, by name; each difference belongs to the first that takes it:

    "gathers in 8 bits": Known(
        reason="what the recipe says",
        count=12,
        largest=0.031,
        belongs=lambda d: d.source == "torchtitan" and d.quantity == "plan.gather_bytes",
    )

A changed leaf changes terms, sums and memory of its rows too: let a kind take them by line as well.
"""


def paired(frozen: Answers, now: Answers) -> dict[int, int]:
    """Frozen row → row of today.

    Of the same line and identity; else of the same identity, where lines have moved; else of the
    same line, where a cell that names the row has changed.
    """
    keys: list[Callable[[Answers, int], tuple]] = [
        lambda a, i: (int(a.line[i]), *a.identity(i)),
        lambda a, i: a.identity(i),
        lambda a, i: (int(a.line[i]),),
    ]
    pairs: dict[int, int] = {}
    for key in keys:
        taken = set(pairs.values())
        place = {key(now, j): j for j in range(len(now.line)) if j not in taken}
        left = [i for i in range(len(frozen.line)) if i not in pairs]
        pairs |= {i: place[key(frozen, i)] for i in left if key(frozen, i) in place}
    return pairs


def relative(was: np.ndarray, now: np.ndarray, to: np.ndarray) -> np.ndarray:
    """|was − now| / to, `[rows]`; 0 where both are equal or both no number; 1 where texts differ or
    one alone is finite."""
    if "U" in (was.dtype.kind, now.dtype.kind):
        return (was.astype(str) != now.astype(str)).astype(np.float64)
    alike = (was == now) | (np.isnan(was) & np.isnan(now))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio = np.abs(was - now) / to
    counted = np.isfinite(was) & np.isfinite(now) & np.isfinite(ratio)
    return np.where(alike, 0.0, np.where(counted, ratio, 1.0))


def scale(
    name: str, before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]
) -> np.ndarray:
    """What differences are relative to, `[rows]`: the larger of both values, or of the sums that
    they are part of; 1 for a probability."""
    of = SUMS.get(name.rpartition(".")[0], name)
    was, now = (values.get(of, values[name]) for values in (before, after))
    if name == "oom_probability" or "U" in (was.dtype.kind, now.dtype.kind):
        return np.ones(len(was))
    return np.fmax(np.abs(was), np.abs(now))


def differences(frozen: Answers, now: Answers) -> list[Difference]:
    """Every value that is not what it was, and every row that only one side uses."""
    pairs = paired(frozen, now)
    found = list(_unpaired(frozen, now, pairs))
    old, new = (np.array(list(rows), int) for rows in (pairs.keys(), pairs.values()))
    before, after = (
        {name: values[rows] for name, values in side.values.items()}
        for side, rows in ((frozen, old), (now, new))
    )
    for name, was in before.items():
        if name not in after:
            for value, j in zip(was, new, strict=True):
                found.append(Difference(name, *_label(now, j), value, "none", 1.0))
            continue
        far = relative(was, after[name], scale(name, before, after))
        for k in np.flatnonzero(far > TOLERANCE):
            values = was[k], after[name][k], float(far[k])
            found.append(Difference(name, *_label(now, new[k]), *values))
    return found


def _unpaired(frozen: Answers, now: Answers, pairs: Mapping[int, int]) -> Iterator[Difference]:
    """Rows that only one side uses."""
    for i in range(len(frozen.line)):
        if i not in pairs:
            yield Difference("row", *_label(frozen, i), "used", "not used", 1.0)
    taken = set(pairs.values())
    for j in range(len(now.line)):
        if j not in taken:
            yield Difference("row", *_label(now, j), "not used", "used", 1.0)


def _label(side: Answers, row: int) -> tuple[str, int, str, str, float]:
    """Source, line, model and stack of a row, and its model's heads of further tokens."""
    source, model, stack = (str(side.values[f"row.{n}"][row]) for n in ("source", "model", "stack"))
    return source, int(side.line[row]), model, stack, float(side.values["model.n_mtp"][row])


def sorted_out(
    found: Iterable[Difference], known: Mapping[str, Known] = KNOWN
) -> tuple[list[Difference], dict[str, list[Difference]]]:
    """Differences that belong to no known kind, and those of each."""
    rest: list[Difference] = []
    kinds: dict[str, list[Difference]] = {name: [] for name in known}
    for each in found:
        name = next((name for name, kind in known.items() if kind.belongs(each)), None)
        (rest if name is None else kinds[name]).append(each)
    return rest, kinds


def largest(found: Iterable[Difference]) -> float:
    """The largest relative difference, 0 of none [1]."""
    return max((d.relative for d in found), default=0.0)


def complaints(found: Iterable[Difference], known: Mapping[str, Known] = KNOWN) -> list[str]:
    """What is not as listed; none when nothing moved but the known kinds, as far as they say."""
    rest, kinds = sorted_out(found, known)
    wrong = [f"{len(rest)} values differ, largest {largest(rest):.3g}"] if rest else []
    for name, some in kinds.items():
        count, most = known[name].count, known[name].largest
        if len(some) != count or not isclose(largest(some), most, rel_tol=ROUNDED):
            here = f"found {len(some)}, largest {largest(some):.3g}"
            wrong.append(f"{name}: listed {count} values, largest {most:.3g}; {here}")
    return wrong


def groups(found: Iterable[Difference]) -> Iterator[dict[str, Any]]:
    """By source and quantity, all sources together first: rows, and the one that differs most."""
    rows: dict[tuple[str, str], list[Difference]] = {}
    for each in found:
        for source in ("", each.source):
            rows.setdefault((source, each.quantity), []).append(each)
    for (source, quantity), some in sorted(rows.items(), key=lambda item: item[0]):
        most = max(some, key=lambda d: d.relative)
        example = {"line": most.line, "model": most.model, "stack": most.stack}
        yield {
            "source": source or "(all)",
            "quantity": quantity,
            "rows": len(some),
            "largest": most.relative,
            "example": {**example, "was": _plain(most.was), "now": _plain(most.now)},
        }


def _plain(value: Any) -> float | str:
    """A number that JSON can hold, or text."""
    return str(value) if isinstance(value, str) or not isfinite(value) else float(value)


def document(frozen: Answers, found: list[Difference]) -> dict[str, Any]:
    """The comparison: whether all is as listed, what differs beside known kinds, and these."""
    rest, kinds = sorted_out(found)
    wrong = complaints(found)
    return {
        "table": PUBLISHED.name,
        "rows": len(frozen.line),
        "quantities": len(frozen.values),
        "tolerance": TOLERANCE,
        "agrees": not wrong,
        "complaints": wrong,
        "differences": list(groups(rest)),
        "known": [
            {"kind": n, "reason": KNOWN[n].reason, "count": len(some), "largest": largest(some)}
            for n, some in kinds.items()
        ],
    }


def show(said: Mapping[str, Any]) -> None:
    """Print the document as text."""
    print(
        f"{said['table']}: {said['rows']} rows, {said['quantities']} quantities of each,"
        f" tolerance {said['tolerance']:g}"
    )
    if said["differences"]:
        _show_table(said["differences"])
    for kind in said["known"]:
        most = f"{kind['count']} values, largest {kind['largest']:.3g}"
        print(f"known: {kind['kind']}: {most}: {kind['reason']}")
    beside = " beside what is known" if said["known"] else ""
    print("; ".join(said["complaints"]) or f"nothing differs{beside}")


def _show_table(found: list[dict[str, Any]]) -> None:
    """Print one line for each source and quantity."""
    lines = [("source", "quantity", "rows", "largest", "the row that differs most")]
    for each in found:
        row = each["example"]
        name = f"line {row['line']}, {row['model']}, {row['stack']}"
        text = f"{name}: {row['was']} → {row['now']}"
        numbers = str(each["rows"]), f"{each['largest']:.3g}"
        lines.append((each["source"], each["quantity"], *numbers, text))
    wide = [max(len(line[column]) for line in lines) for column in range(4)]
    for source, quantity, rows, most, text in lines:
        left = f"{source:{wide[0]}}  {quantity:{wide[1]}}"
        print(f"{left}  {rows:>{wide[2]}}  {most:>{wide[3]}}  {text}")


def freeze(as_json: bool) -> None:
    """Write the frozen answers anew, and say how many there are."""
    found = answers()
    save(found)
    said = {
        "file": FROZEN.name,
        "bytes": FROZEN.stat().st_size,
        "rows": len(found.line),
        "quantities": len(found.values),
    }
    text = f"{said['file']}: {said['rows']} rows, {said['quantities']} quantities of each"
    print(json.dumps(said) if as_json else f"{text}, {said['bytes'] / 1e3:.0f} kB")


def main(arguments: list[str] | None = None) -> int:
    """The command; 0 when all is as frozen but for what is known, else 1."""
    about = "What the model says of the published rows today, against what was frozen."
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=about)
    parser.add_argument("--freeze", action="store_true", help="write the frozen answers anew")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(arguments)
    if given.freeze:
        freeze(given.json)
        return 0
    frozen = load()
    said = document(frozen, differences(frozen, answers(frozen)))
    if given.json:
        print(json.dumps(said, allow_nan=False, ensure_ascii=False))
    else:
        show(said)
    return 0 if said["agrees"] else 1


if __name__ == "__main__":
    sys.exit(main())
