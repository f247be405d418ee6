"""Facts about software: what a stack does, read from `stacks/*.toml`.

A fact sets some names when its conditions hold, and says who reports it and when. Conditions are
plain data: equal, one of, not, a range of numbers, a range of releases. Nothing here computes a
time, and nothing here knows a stack by name.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from dmodel.catalog.loader import canonical, nearest
from dmodel.errors import InputError

CONDITIONS: dict[str, str] = {
    "stack": "word",
    "variant": "word",
    "release": "release",
    "model": "models",
    "chip": "chips",
    "generation": "word",
    "tuning": "word",
    "frozen": "word",
    "precision": "word",
    "scaling": "word",
    "attention": "word",
    "recompute": "word",
    "composed": "flag",
    "n_experts": "number",
    "n_layers": "number",
    "stage_layers": "number",
    "devices": "number",
    "accel_per_node": "number",
    "seq_len": "number",
    "micro_batch": "number",
    "dp": "number",
    "tp": "number",
    "pp": "number",
    "cp": "number",
    "ep": "number",
    "zero": "number",
    "shard": "number",
    "replicas": "number",
    "interleave": "number",
}
"""What a condition may ask about a question, and the kind of each. A condition may also name
anything that earlier facts have set.

stack: id of the family. variant: what follows "/" in the stack's name. release: the variant read
as a version. tuning: "none", "lora" or "sft". frozen: "nf4" where frozen weights have 4 bits.
scaling: the precision with its variant ("fp8-rowwise"). stage_layers: layers of a mean stage.
replicas: ranks of dp per sharding group.
"""

NEWEST = (10**6,)
"""Release of a variant that names the head of development."""

HEADS = ("main", "master", "dev", "nightly")
"""Variants that mean the head of development."""

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_RANGE = re.compile(r"^(>=|<=|>|<)\s*(.+)$")

Test = Callable[[Any], bool]


class Rule(NamedTuple):
    """A value that takes arithmetic: the name of a function of `dmodel.layouts`, and arguments."""

    name: str
    arguments: Mapping[str, Any]


class Fact(NamedTuple):
    """One fact.

    Attributes:
      sets: name → value for names that the question leaves open.
      means: name → value that replaces what the question says.
      when: conditions, name → plain data; all must hold.
      source, date, evidence: who says so, when (YYYY or YYYY-MM), and what was measured of it.
      says: the fact in words; "" where names and values say enough.
      tests: the conditions, compiled.
    """

    sets: Mapping[str, Any]
    means: Mapping[str, Any]
    when: Mapping[str, Any]
    source: str
    date: str
    evidence: str
    says: str
    tests: tuple[tuple[str, Test], ...]

    def holds(self, words: Mapping[str, Any]) -> bool:
        """Whether all conditions hold of a question's words."""
        for name, test in self.tests:  # not by `all`: this is asked of every fact and row
            if not test(words.get(name)):
                return False
        return True

    @property
    def text(self) -> str:
        """The fact in words."""
        return self.says or ", ".join(
            f"{n} {shown(v)}" for n, v in {**self.sets, **self.means}.items()
        )


def shown(value: Any) -> str:
    """A value of a fact, for people."""
    if isinstance(value, Rule):
        return _shown_rule(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _shown_rule(rule: Rule) -> str:
    arguments = ", ".join(f"{k.replace('_', ' ')} {v:g}" for k, v in rule.arguments.items())
    return rule.name.replace("_", " ") + (f" ({arguments})" if arguments else "")


def release(text: str) -> tuple[int, ...] | None:
    """A variant read as a release, numbers most significant first; None where it is none.

    >>> release("26.06"), release("24.05-dgxc"), release("main"), release("pure")
    ((26, 6), (24, 5), (1000000,), None)
    """
    if text.lower() in HEADS:
        return NEWEST
    found = re.match(r"v?(\d+(?:\.\d+)+)", text)
    return tuple(map(int, found[1].split("."))) if found else None


def condition(name: str, wanted: Any, kind: str) -> Test:
    """Compile one condition.

    Args:
      wanted: a word, number or truth; "", which means open; a range such as ">=26.06, <27" or
        ">1"; any of these behind "!", which means not; a word that ends in "*", which means any
        that begins so; or a list, one of which must hold (of "!" ones, all).
    Raises:
      InputError: it is none of these.
    """
    if isinstance(wanted, list):
        return _of_list(name, wanted, kind)
    if isinstance(wanted, bool):
        return lambda value: bool(value) is wanted
    if isinstance(wanted, int | float):
        return lambda value: _is_number(value) and float(value) == float(wanted)
    if not isinstance(wanted, str):
        raise InputError(f"condition {name}: expected words, numbers or a list, got {wanted!r}")
    return _of_text(name, wanted, kind)


def _of_text(name: str, wanted: str, kind: str) -> Test:
    """A condition that is written as text."""
    if not wanted:
        return lambda value: value is None or value == ""
    if wanted.startswith("!"):
        test = condition(name, wanted[1:], kind)
        return lambda value: not test(value)
    if _RANGE.match(wanted):
        return _in_range(name, wanted, kind)
    return _is_word(wanted, kind)


def _of_list(name: str, wanted: list[Any], kind: str) -> Test:
    """One of several conditions; all of them where each says not."""
    tests = [condition(name, each, kind) for each in wanted]
    negative = bool(wanted) and all(str(each).startswith("!") for each in wanted)
    holds = all if negative else any
    return lambda value: holds(test(value) for test in tests)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in_range(name: str, wanted: str, kind: str) -> Test:
    """Bounds of numbers or releases, separated by commas; an unknown value is in no range."""
    bounds = [_bound(part.strip(), kind) for part in wanted.split(",")]
    if None in bounds:
        raise InputError(
            f"condition {name}: expected bounds such as '>=26.06, <27'; got {wanted!r}"
        )
    known = [bound for bound in bounds if bound is not None]
    if kind == "release":
        return lambda value: value is not None and _keeps(tuple(value), known)
    return lambda value: _is_number(value) and _keeps(value, known)


def _bound(text: str, kind: str) -> tuple[Callable[[Any, Any], bool], Any] | None:
    """A comparison and its edge; None where the text is none."""
    found = _RANGE.match(text)
    edge = None if found is None else _edge(found[2], kind)
    return None if found is None or edge is None else (COMPARE[found[1]], edge)


def _keeps(value: Any, bounds: list[tuple[Callable[[Any, Any], bool], Any]]) -> bool:
    return all(ask(value, edge) for ask, edge in bounds)


def _edge(text: str, kind: str) -> Any:
    if kind == "release":
        return (int(text),) if text.isdecimal() else release(text)
    try:
        return float(text)
    except ValueError:
        return None


def _is_word(wanted: str, kind: str) -> Test:
    """Equal after both are canonical, or beginning alike where the wanted word ends in "*"."""
    if kind == "release":
        exact = release(wanted)
        return lambda value: value is not None and tuple(value) == exact
    if wanted.endswith("*"):
        start = wanted[:-1].lower()
        return lambda value: isinstance(value, str) and value.lower().startswith(start)
    name = (canonical(kind, wanted) if kind in ("models", "chips") else wanted).lower()
    return lambda value: _lower(value) == name


def _lower(value: Any) -> str | None:
    return value.lower() if isinstance(value, str) else None


KEYS = ("set", "means", "when", "source", "date", "evidence", "says")
"""Keys of a fact in a file."""


def fact(entry: Mapping[str, Any], where: str) -> Fact:
    """One `[[fact]]` of a file.

    Raises:
      InputError: it sets nothing, lacks source or date, or has a key that facts do not have.
    """
    _refuse_unknown(entry, where)
    sets, means = (_values_of(entry, key) for key in ("set", "means"))
    if not sets and not means:
        raise InputError(f"{where}: a fact must `set` something, or say what a word `means`")
    if not entry.get("source") or not re.fullmatch(r"\d{4}(-\d{2}){0,2}", str(entry.get("date"))):
        raise InputError(f"{where}: a fact needs a source and a date (YYYY or YYYY-MM)")
    when = entry.get("when", {})
    return Fact(
        sets=sets,
        means=means,
        when=when,
        source=entry["source"],
        date=str(entry["date"]),
        evidence=entry.get("evidence", ""),
        says=entry.get("says", ""),
        tests=_compiled(when, where),
    )


def _refuse_unknown(entry: Mapping[str, Any], where: str) -> None:
    """Refuse keys that facts do not have."""
    if unknown := [key for key in entry if key not in KEYS]:
        close = nearest(unknown[0], list(KEYS), 1)
        hint = f"; nearest: {close[0]}" if close else ""
        keys = ", ".join(KEYS)
        raise InputError(f"{where}: a fact has no {unknown[0]!r}{hint}. Its keys are {keys}")


def _values_of(entry: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Names and values under a key of an entry."""
    return {name: _value(value) for name, value in entry.get(key, {}).items()}


def _compiled(when: Mapping[str, Any], where: str) -> tuple[tuple[str, Test], ...]:
    """Conditions by name, ready to ask."""
    try:
        return tuple((n, condition(n, wanted, kind_of(n, wanted))) for n, wanted in when.items())
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def kind_of(name: str, wanted: Any) -> str:
    """Kind of a condition; of a name that facts set, by what is asked of it."""
    if name in CONDITIONS:
        return CONDITIONS[name]
    first = wanted[0] if isinstance(wanted, list) and wanted else wanted
    return "number" if _is_number(first) or _is_range(first) else "word"


def _is_range(wanted: Any) -> bool:
    return isinstance(wanted, str) and _RANGE.match(wanted) is not None


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        arguments = {k: v for k, v in value.items() if k != "rule"}
        return Rule(str(value.get("rule", "")), arguments)
    return float(value) if _is_number(value) or isinstance(value, bool) else value


class Applied(NamedTuple):
    """What facts made of a question: values by name, and the facts that decided them, in order."""

    values: dict[str, Any]
    facts: tuple[Fact, ...]


def apply(
    facts: Iterator[Fact] | tuple[Fact, ...], words: Mapping[str, Any], given: frozenset[str]
) -> Applied:
    """Apply facts in order; the last that holds decides a name.

    Args:
      words: of the question; conditions see these and what facts have set before.
      given: names that the question itself says, which only `means` replaces.
    """
    known, values, by, held = words, {}, {}, []
    for each in facts:
        if not each.holds(known):
            continue
        held.append(each)
        found = _set_by(each, given)
        values |= found
        known = {**words, **values}
        by |= dict.fromkeys(found, each)
    decided = {id(each) for each in by.values()}
    return Applied(values, tuple(each for each in held if id(each) in decided))


def _set_by(fact: Fact, given: frozenset[str]) -> dict[str, Any]:
    """What a fact that holds makes of names, but of those that the question says."""
    return {name: v for name, v in fact.sets.items() if name not in given} | dict(fact.means)


@functools.cache
def release_of(variant: str) -> tuple[int, ...] | None:
    """`release`, remembered."""
    return release(variant)
