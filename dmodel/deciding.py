"""What facts of a stack make of a question: the layout and the machine first, then all else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from dmodel import layouts
from dmodel.catalog.facts import Applied, Fact, Rule, apply
from dmodel.catalog.stack import consequences
from dmodel.described import FIRST, described
from dmodel.question import Assumption, Question
from dmodel.records import Precision
from dmodel.records import Software as SoftwareRecord

DECIDED = ("flash", "last_kept", "operand_bytes")
"""Leaves that columns, or what is recomputed, decide."""

LEAVES = {
    name: float(field.default)
    for record in (SoftwareRecord, Precision)
    for name, field in record.__dataclass_fields__.items()
    if name not in DECIDED
} | {"reshard": 1.0}
"""Leaves of a plan that facts and settings decide, and what they are without any."""


class Software(NamedTuple):
    """What facts and the question make of everything that no column holds.

    Attributes:
      values: name → number, word or words. facts: those that decided something.
    """

    values: Mapping[str, Any]
    facts: tuple[Fact, ...]


def first_facts(question: Question, known: Mapping[str, Any]) -> Applied:
    """Facts of the layout and the machine, rules evaluated."""
    found = _applied(question, known, _open_facts(question, known)[0])
    return found._replace(values=evaluated(found.values, known))


@lru_cache(maxsize=1024)
def _divided(name: str) -> tuple[tuple[Fact, ...], tuple[Fact, ...]]:
    """Facts of a stack that may hold in its release: of the layout and the machine, and others."""
    of = described(name)
    same = {"stack": of.basis, "variant": of.variant, "release": of.release}
    first: list[Fact] = []
    others: list[Fact] = []
    for fact in of.facts:
        if _holds_of(fact, same):
            (others if FIRST.isdisjoint({*fact.sets, *fact.means}) else first).append(fact)
    return tuple(first), tuple(others)


WORDS = ("model", "chip", "generation", "tuning", "precision", "scaling", "attention")
"""What many questions of a table have in common."""


def _open_facts(
    question: Question, known: Mapping[str, Any]
) -> tuple[tuple[Fact, ...], tuple[Fact, ...]]:
    """As `_divided`, without the facts that `WORDS` of the question rule out."""
    name = question.text("stack")
    return _with_words(name, tuple((word, known[word]) for word in _words_of(name)))


@lru_cache(maxsize=1024)
def _words_of(name: str) -> tuple[str, ...]:
    """Those of `WORDS` that no fact of a stack changes."""
    changed = {n for fact in described(name).facts for n in (*fact.sets, *fact.means)}
    return tuple(word for word in WORDS if word not in changed)


@lru_cache(maxsize=4096)
def _with_words(
    name: str, words: tuple[tuple[str, Any], ...]
) -> tuple[tuple[Fact, ...], tuple[Fact, ...]]:
    """Facts of `_divided` that may hold with some words, and what is left to ask of each."""
    known = dict(words)
    first, others = (
        tuple(
            fact._replace(tests=tuple(test for test in fact.tests if test[0] not in known))
            for fact in facts
            if _holds_of(fact, known)
        )
        for facts in _divided(name)
    )
    return first, others


def _holds_of(fact: Fact, known: Mapping[str, Any]) -> bool:
    """Whether the conditions of a fact that are about some words hold."""
    return all(test(known[name]) for name, test in fact.tests if name in known)


def _applied(question: Question, known: Mapping[str, Any], facts: tuple[Fact, ...]) -> Applied:
    """What facts make of names that the question does not say."""
    given = {*question.settings, *question.columns}
    if "zero_stage" in question.columns:
        given.add("zero")
    return apply(facts, known, frozenset(given))


def evaluated(values: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Values with rules (`dmodel.layouts.RULES`) evaluated; what a rule leaves open is left out."""
    plain = _without_rules(values)
    rules = {n: v for n, v in values.items() if isinstance(v, Rule)}
    asked = {**LEAVES, **known, **plain} if rules else {}
    found = {n: layouts.RULES[r.name](asked, **r.arguments) for n, r in rules.items()}
    return plain | {n: v for n, v in found.items() if v is not None}


def _without_rules(values: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in values.items() if not isinstance(v, Rule)}


def software(question: Question, known: Mapping[str, Any], first: Applied) -> Software:
    """What facts make of everything beside the layout, with what the question sets itself.

    Args:
      known: words of the question, its layout filled. first: facts of the layout.
    """
    own = _applied(question, known, _open_facts(question, known)[1])
    seen = {**known, **_without_rules(own.values)}
    after = apply(consequences(), seen, frozenset(question.settings))
    values = evaluated({**own.values, **after.values}, known)
    facts = (*first.facts, *own.facts, *after.facts)
    return Software({**first.values, **values, **question.settings}, facts)


BYTES = {
    "weight_bytes": "weight",
    "gradient_bytes": "gradient",
    "optimizer_bytes": "fp32 weight and moments",
    "gather_bytes": "gathered weight",
    "reduce_bytes": "reduced gradient",
}
"""Bytes of a parameter that no column holds, and what of it they are."""


def usual_bytes(values: Mapping[str, Any]) -> list[Assumption]:
    """The bytes of a parameter that neither facts nor settings say."""
    left = tuple(name for name in BYTES if name not in values)
    return [_bytes_of(left)] if left else []


@lru_cache(maxsize=64)
def _bytes_of(names: tuple[str, ...]) -> Assumption:
    listed = ", ".join(f"{BYTES[name]} {LEAVES[name]:g}" for name in names)
    return Assumption(f"bytes of a parameter: {listed}", about=names)
