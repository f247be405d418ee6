"""Causes of a slow or fast run, and tests that tell them apart: data, with reasons and sources."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from dmodel.errors import InputError

GRID = 13
"""Sizes at which the model is asked about a cause whose size is open [count]."""


class Change(NamedTuple):
    """What a cause does to one number of a case.

    Attributes:
      leaf: dotted name, such as `plan.flash` or `network.bytes_per_s[outer]`.
      by: "times", "toward" (a share of the way to `value`), "at most", or "shared" (at most a share
        of it for each device of a node).
      value: but for "toward", what it takes in place of the size; None = the size.
    """

    leaf: str
    by: str
    value: float | None = None


class Size(NamedTuple):
    """How large a cause may be.

    Attributes:
      low, high: ends of the range; scale: "log" or "linear", on which its prior is flat.
      values: the only sizes, alike probable; () = the range. of: what lists them, "" = nothing.
      says: words for a size.
    """

    low: float
    high: float
    scale: str
    values: tuple[float, ...]
    of: str
    says: str

    @property
    def is_listed(self) -> bool:
        """Whether sizes are single values, not a range."""
        return bool(self.values or self.of)

    def grid(self) -> np.ndarray:
        """Sizes at which the model is asked, `[size]`."""
        if self.values:
            return np.array(self.values, float)
        return self.between(GRID)

    def between(self, count: int) -> np.ndarray:
        """So many sizes of the range, evenly on its scale."""
        spaced = np.geomspace if self.scale == "log" else np.linspace
        return spaced(self.low, self.high, count)

    def scaled(self, sizes: np.ndarray) -> np.ndarray:
        """Sizes on the scale on which their prior is flat."""
        return np.log(sizes) if self.scale == "log" else np.asarray(sizes, float)


class Cause(NamedTuple):
    """One explanation.

    Attributes:
      name, title: a short name, and a line for people. family: causes of one kind share it.
      probability: before anything is measured [1]. why: it is as probable as that.
      source, date: of what the reason stands on, "" where it is judged.
      size: how large it may be. changes: what it does. begins: whether it may begin while a run
        goes on. machine: whether it is of the machines: the same run elsewhere does not have it.
      fills: share of a device's memory that must be taken for it to be there; 0 = none.
      stated: whether the run goes as it should, and is only another than the stated one.
    """

    name: str
    family: str
    title: str
    probability: float
    why: str
    source: str
    date: str
    size: Size
    changes: tuple[Change, ...]
    begins: bool
    machine: bool
    fills: float = 0.0
    stated: bool = False


class Read(NamedTuple):
    """A number of the case that a test tells, by its dotted name, and in words."""

    leaf: str
    looks: str


class Test(NamedTuple):
    """Something to do that tells causes apart.

    Attributes:
      name, does: a short name, and what to do. minutes: of work.
      noise: standard deviation of the logarithm of what is seen.
      changes: of the run; reads: numbers of the case that it tells; without: what it takes away;
        parts: of the step that it tells. One of the four is there.
      looks: what to look at, where it tells no number of the case.
    """

    name: str
    does: str
    minutes: float
    noise: float
    changes: tuple[Change, ...] = ()
    reads: tuple[Read, ...] = ()
    without: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    looks: str = ""


class Effect(NamedTuple):
    """How much causes change a step: at least, and usually at most [1]; beyond that a change whose
    logarithm is x times as large is x^−tail times as probable, as nobody leaves a run at that; and
    x^−stated times where the run is only another than the stated one (`Cause.stated`)."""

    least: float
    usual: float
    tail: float
    stated: float = 1.0

    def weight(self, change: np.ndarray, stated: bool = False) -> np.ndarray:
        """Prior of sizes by the change of ln t that they make, up to a factor.

        Args:
          stated: whether the run is only another than the stated one (`Cause.stated`).
        """
        size = np.abs(change)
        beyond = np.maximum(size / np.log1p(self.usual), 1.0)
        tail = self.stated if stated else self.tail
        return np.where(size >= np.log1p(self.least), beyond**-tail, 0.0)


class Beliefs(NamedTuple):
    """All that is held before anything is measured.

    Attributes:
      causes: in the order of the file. nothing, otherwise: probability and title of ordinary
        scatter, and of what is no cause of the list.
      scales: Student-t scales of ln(observable) of the latter.
      reading: Student-t scales of a profiler's readings, and of one run against the same on other
        machines ("elsewhere"). parts: how much more than compute the
        parts of a step may be off. effect: prior of sizes by what they do.
    """

    causes: tuple[Cause, ...]
    nothing: tuple[float, str]
    otherwise: tuple[float, str]
    scales: Mapping[str, float]
    reading: Mapping[str, float]
    parts: Mapping[str, float]
    effect: Effect

    def only(self, probabilities: Mapping[str, float], nothing: float, otherwise: float) -> Beliefs:
        """The same with other probabilities, and only the causes that these name."""
        kept = tuple(
            each._replace(probability=probabilities[each.name])
            for each in self.causes
            if each.name in probabilities
        )
        return self._replace(
            causes=kept,
            nothing=(nothing, self.nothing[1]),
            otherwise=(otherwise, self.otherwise[1]),
        )


@lru_cache
def _table() -> dict[str, Any]:
    text = (resources.files("dmodel.diagnose") / "causes.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@lru_cache
def beliefs() -> Beliefs:
    """What the package holds, as its file has it."""
    table = _table()
    return Beliefs(
        causes=tuple(map(_cause, table["cause"])),
        nothing=(table["nothing"]["probability"], table["nothing"]["title"]),
        otherwise=(table["otherwise"]["probability"], table["otherwise"]["title"]),
        scales=table["otherwise"]["scales"],
        reading={name: table["reading"][name] for name in ("compute", "exposed", "elsewhere")},
        parts=table["reading"]["parts"],
        effect=Effect(*(table["effect"][name] for name in Effect._fields)),
    )


def cause_named(name: str) -> Cause:
    """A cause by its name.

    Raises:
      InputError: there is none of that name.
    """
    found = {each.name: each for each in beliefs().causes}
    if name not in found:
        raise InputError(f"unknown cause {name!r}: expected one of {', '.join(found)}")
    return found[name]


def _cause(entry: Mapping[str, Any]) -> Cause:
    size = entry["size"]
    return Cause(
        name=entry["name"],
        family=entry["family"],
        title=entry["title"],
        probability=entry["probability"],
        why=entry["why"],
        source=entry.get("source", ""),
        date=entry.get("date", ""),
        size=Size(
            size.get("low", 0.0),
            size.get("high", 0.0),
            size.get("scale", "linear"),
            tuple(size.get("values", ())),
            size.get("of", ""),
            size["says"],
        ),
        changes=_changes(entry["changes"]),
        begins=entry.get("begins", False),
        machine=entry.get("machine", entry.get("begins", False)),
        fills=entry.get("fills", 0.0),
        stated=entry.get("stated", False),
    )


def _changes(entries: Sequence[Mapping[str, Any]]) -> tuple[Change, ...]:
    return tuple(Change(e["leaf"], e["by"], e.get("value")) for e in entries)


@lru_cache
def tests() -> tuple[Test, ...]:
    """All tests, as the file has them."""
    return tuple(
        Test(
            *(entry[name] for name in ("name", "does", "minutes", "noise")),
            changes=_changes(entry.get("changes", ())),
            reads=tuple(Read(**each) for each in entry.get("reads", ())),
            **{n: tuple(entry.get(n, ())) for n in ("without", "parts")},
            looks=entry.get("looks", ""),
        )
        for entry in _table()["test"]
    )


def markdown() -> str:
    """All hypotheses as a Markdown table, for the documentation."""
    held, file = beliefs(), _table()
    lines = ["| hypothesis | before | sizes | why |", "| --- | --- | --- | --- |"]
    for name in ("nothing", "otherwise"):
        one = file[name]
        lines.append(f"| {name}: {one['title']} | {one['probability']:.0%} | | {one['why']} |")
    for each in held.causes:
        source = f" ({each.source}, {each.date})" if each.source else ""
        lines.append(
            f"| {each.name}: {each.title} | {each.probability:.0%} | {_range(each.size)} | "
            f"{each.why}{source} |"
        )
    return "\n".join(lines)


def _range(size: Size) -> str:
    if size.of:
        return f"each of the {size.of}"
    if size.values:
        return ", ".join(f"{x:g}" for x in size.values)
    return f"{size.low:g} to {size.high:g}, {size.scale}"
