"""Published rows that are most like a run: what others have measured, and who says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import hypot, log
from typing import Any, NamedTuple

from calibration.traces.files import lines
from calibration.traces.published import PUBLISHED
from calibration.traces.questions import completed
from calibration.traces.reader import measured_time
from calibration.traces.table import Row
from dmodel.catalog.chips import generation, usual_precision
from dmodel.catalog.loader import known_name
from dmodel.profiles import family

SIZES = {
    "n_layers": 1.0,
    "d_model": 1.0,
    "n_experts": 0.5,
    "seq_len": 1.0,
    "n_accel": 0.5,
    "tp": 1.0,
    "pp": 1.0,
    "cp": 1.0,
    "ep": 0.5,
    "interleave": 0.5,
    "micro_batch": 1.0,
    "global_batch": 0.5,
}
"""Columns whose logarithms tell runs apart, and how much each counts."""

ONE = ("tp", "pp", "cp", "ep", "interleave", "n_experts")
"""Columns that are 1 where they are blank."""

WORDS = {"accelerator": 1.0, "stack": 0.7, "precision": 1.0, "recompute": 0.5}
"""Columns of words, and how far apart two that differ are."""

NEAR = 2.5
"""Distance within which nine of ten published runs have one of another source."""

BLANK = 0.3
"""Distance of a column that one of the two leaves blank."""


class Neighbour(NamedTuple):
    """A published run.

    Attributes:
      distance: from the run asked about; 1 = a factor of e in one size.
      tokens_per_s_per_device: measured. step_time_s: measured [s].
      mfu: as its source reports it, or None.
      layout: in words. url, license: of the source. differs: columns that are not alike, with both
        values.
    """

    model: str
    accelerator: str
    devices: int
    stack: str
    layout: str
    step_time_s: float
    tokens_per_s_per_device: float
    mfu: float | None
    distance: float
    differs: dict[str, list[Any]]
    source: str
    url: str
    license: str


def neighbours(columns: Mapping[str, Any], count: int = 3) -> list[Neighbour]:
    """The nearest rows of the shipped table on chips of one generation, at most one of a
    configuration.

    Args:
      columns: of the run, by name; degrees that are missing count as 1.
    """
    chip = known_name("chips", str(columns.get("accelerator", "")))
    if chip is None or count < 1:
        return []
    own = _told(columns.get)
    pairs = [(_apart(own, told), row) for row, told in _of_generation(generation(chip))]
    pairs.sort(key=lambda pair: pair[0])
    found, seen = [], set()
    for distance, row in pairs:
        key = (row.text("source"), _layout(row), row.text("model"), row.text("n_accel"))
        if key not in seen:
            seen.add(key)
            found.append(_neighbour(columns, row, distance))
        if len(found) == count:
            break
    return found


class _Told(NamedTuple):
    """What tells a run apart: its `SIZES`, None where one is not known, and its `WORDS`."""

    sizes: tuple[float | None, ...]
    words: tuple[str, ...]


def _told(value: Callable[[str], Any], word: Callable[[str], Any] | None = None) -> _Told:
    """What columns tell by name; word: of those of words, where these are read otherwise."""
    word = word or value
    chip = str(word("accelerator") or "")
    return _Told(
        tuple(_size(value(name), name) for name in SIZES),
        tuple(_word(word(name), name, chip) for name in WORDS),
    )


@cache
def _of_generation(kin: str) -> tuple[tuple[Row, _Told], ...]:
    """Rows of the shipped table that ran on chips of a generation, and are runs, not sums of
    parts."""
    known = cache(_generation)
    rows = [row for row in _runs() if known(row.text("accelerator")) == kin]
    whole = [row for row in map(completed, rows) if _is_whole(row)]
    return tuple((row, _told(row.number, row.text)) for row in whole)


def _generation(chip: str) -> str | None:
    """Generation of a chip; None where the catalog does not know it."""
    return None if known_name("chips", chip) is None else generation(chip)


def _runs() -> list[Row]:
    return [row for row in lines(PUBLISHED).rows if "composed" not in row.flags]


def _is_whole(row: Row) -> bool:
    """Whether it says how much it trained, and how fast."""
    return bool(row.number("global_batch") and row.number("seq_len") and measured_time(row))


def _size(value: Any, name: str) -> float | None:
    if value in (None, ""):
        return 1.0 if name in ONE else None
    return max(float(value), 1e-9)


def _apart(run: _Told, other: _Told) -> float:
    """Distance between two runs."""
    total = 0.0
    for one, its, weight in zip(run.sizes, other.sizes, SIZES.values(), strict=True):
        gap = BLANK if one is None or its is None else log(one / its)
        total = hypot(total, weight * gap)
    for one, its, weight in zip(run.words, other.words, WORDS.values(), strict=True):
        total = hypot(total, 0.0 if one == its else weight)
    return total


def _word(value: Any, name: str, chip: str) -> str:
    text = str(value or "").lower()
    if name == "stack":
        return family(text)
    if name == "accelerator":
        return known_name("chips", text) or text
    return text or (usual_precision(chip) if name == "precision" else "")


def _layout(row: Row) -> str:
    shown = ("tp", "cp", "ep", "pp", "dp", "interleave", "micro_batch", "global_batch")
    parts = [f"{n} {row.number(n):g}" for n in shown if row.number(n) not in (None, 1.0)]
    recompute = row.text("recompute")
    return " · ".join([*parts, *([f"recompute {recompute}"] if recompute else [])])


def _differs(columns: Mapping[str, Any], row: Row) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name in SIZES:
        one, other = _size(columns.get(name), name), _size(row.number(name), name)
        if one is not None and other is not None and abs(log(one / other)) > 1e-6:
            found[name] = [one, other]
    for name in WORDS:
        one, other = (
            _word(value(name), name, value("accelerator") or "")
            for value in (columns.get, row.text)
        )
        if one != other:
            found[name] = [one, other]
    return found


def _neighbour(columns: Mapping[str, Any], row: Row, distance: float) -> Neighbour:
    seconds = measured_time(row) or float("nan")
    tokens = row.known("global_batch") * row.known("seq_len")
    return Neighbour(
        model=row.text("model"),
        accelerator=row.accelerator,
        devices=int(row.known("n_accel")),
        stack=row.stack,
        layout=_layout(row),
        step_time_s=seconds,
        tokens_per_s_per_device=tokens / seconds / row.known("n_accel"),
        mfu=row.number("mfu_reported"),
        distance=distance,
        differs=_differs(columns, row),
        source=row.text("source"),
        url=row.text("url"),
        license=row.text("license"),
    )


TOLD = ("model", "source", "url", "license")
"""Columns of words of `compact`, beside those that tell runs apart."""


def compact() -> dict[str, Any]:
    """All rows among which `neighbours` looks, column by column, with what tells runs apart.

    Words of a column stand once, `words`, and rows have their places, `at`. Step times [s] have
    five digits.
    """
    whole = [row for row in map(completed, _runs()) if _is_whole(row)]
    numbers = ("dp", "interleave", "mfu_reported")
    columns = {name: [row.number(name) for row in whole] for name in (*SIZES, *numbers)}
    times = [float(f"{measured_time(row) or 0.0:.5g}") for row in whole]
    return {
        "sizes": SIZES,
        "words": WORDS,
        "blank": BLANK,
        "ones": ONE,
        "numbers": columns | {"step_time_s": times},
        "texts": {name: _coded([row.text(name) for row in whole]) for name in (*WORDS, *TOLD)},
    }


def _coded(texts: list[str]) -> dict[str, list[Any]]:
    """Texts as places among the ones that there are."""
    known = sorted(set(texts))
    at = {text: i for i, text in enumerate(known)}
    return {"words": known, "at": [at[text] for text in texts]}
