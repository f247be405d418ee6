"""What `predict`, `evaluate` and `fit` noticed of the rows in use. Notes of the reader,
measurements that can hardly be right, rows given twice, assumptions.

Nothing here changes a row or leaves one out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dmodel.cli.output import Document, say
from dmodel.cli.rows import SAID

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from calibration.traces import Cases, TraceTable

ASSUMED = 8
"""Texts of assumptions on stderr; the JSON document has all."""


def noticed(
    table: TraceTable, cases: Cases, predicted: np.ndarray, profiles: Sequence[str]
) -> Document:
    """The lists `implausible`, `duplicates`, `notes` (`{file, line, reason}` each) and
    `assumptions` of the rows in use.

    Args:
      predicted: step times [s] by which measured ones are judged, `[rows]`. profiles: names of what
        predicted them, `[rows]`.
    """
    from calibration.far_off import far_off
    from calibration.same import repeated

    return {
        "implausible": [
            *(p._asdict() for p in table.doubts),
            *(p._asdict() for p in far_off(cases, predicted, profiles)),
        ],
        "duplicates": [p._asdict() for p in repeated(cases)],
        "notes": [p._asdict() for p in table.notes],
        "assumptions": assumptions(cases),
    }


def assumptions(cases: Cases) -> list[Document]:
    """What was assumed, the most frequent first: `{assumption, rows, lines}`, the lines by file."""
    found: dict[str, dict[str, list[int]]] = {}
    labels = cases.labels
    for file, line, texts in zip(
        labels.file.tolist(), labels.line.tolist(), labels.assumptions, strict=True
    ):
        for text in dict.fromkeys(texts or ()):
            found.setdefault(text, {}).setdefault(file, []).append(line)
    counted = [
        {"assumption": text, "rows": sum(map(len, lines.values())), "lines": lines}
        for text, lines in found.items()
    ]
    return sorted(counted, key=lambda d: -d["rows"])


def say_noticed(found: Document, table: TraceTable) -> None:
    """Say the lists of `noticed` on stderr. What may be a slip first and row by row, the rest by
    kind; a bounded number of lines each."""
    rows = len(table.rows)
    say_doubted(found["implausible"], table)
    _say_repeated(found["duplicates"], rows)
    say_notes(found["notes"])
    told = found["assumptions"]
    for line in told[:ASSUMED]:
        say(f"assumed for {line['rows']} of {rows} rows: {line['assumption']}")
    if len(told) > ASSUMED:
        say(f"assumed: and {len(told) - ASSUMED} more: see --json, assumptions")


def say_doubted(doubted: Sequence[Document], table: TraceTable) -> None:
    """What can hardly be right, row by row."""
    for p in doubted[:SAID]:
        say(f"WARNING: {p['file']}:{p['line']}: {p['reason']}")
    if len(doubted) > SAID:
        say(f"WARNING: and {len(doubted) - SAID} rows more: see --json, implausible")
    if lines := {(p["file"], p["line"]) for p in doubted}:
        flagged = len({(p.file, p.line) for p in table.doubts})
        say(
            f"WARNING: {len(lines)} of {len(table.rows)} rows can hardly be right: {flagged} "
            "flagged implausible, which no fit takes unless asked (fit --with-implausible); the "
            "others count as they stand. "
            "Check the unit of step_time_s (s), tokens_per_s_per_accel (token/s of one device) or "
            "peak_memory_gib (GiB), global_batch, "
            "seq_len and n_accel"
        )


def _say_repeated(again: Sequence[Document], rows: int) -> None:
    """Rows that are given twice, as one line."""
    if not again:
        return
    first = again[0]
    more = f" (and {len(again) - 1} more: see --json, duplicates)" if len(again) > 1 else ""
    say(
        f"given again: {len(again)} of {rows} rows: {first['file']}:{first['line']}: "
        f"{first['reason']}{more}"
    )


def say_notes(notes: Sequence[Document]) -> None:
    """Notes of one kind, which differ in their numbers, are one line: the first row's. Those of the
    header were said as the file was read."""
    from calibration.traces.table import HEADER

    kinds = _by_kind([note for note in notes if note["line"] != HEADER])
    for first, *others in kinds[:SAID]:
        more = f" (and {len(others)} more like it: see --json, notes)" if others else ""
        say(f"note: {first['file']}:{first['line']}: {first['reason']}{more}")
    left = sum(map(len, kinds[SAID:]))
    if left:
        say(f"note: and {left} more: see --json, notes")


def _by_kind(notes: Sequence[Document]) -> list[list[Document]]:
    """Notes that differ in their numbers alone, together."""
    kinds: dict[str, list[Document]] = {}
    for note in notes:
        kinds.setdefault(re.sub(r"\d[\d.e+-]*", "…", note["reason"]), []).append(note)
    return list(kinds.values())
