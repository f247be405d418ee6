"""Whether facts of a file may be meant: names, words and ranges that there are."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dmodel.catalog.chips import generation, generations
from dmodel.catalog.facts import CONDITIONS, Fact, Rule, condition, kind_of, release
from dmodel.catalog.loader import nearest, table
from dmodel.catalog.stack import names

FEW = 30
"""Words that an error lists in full, at most, where some are near."""


class Vocabulary(NamedTuple):
    """What facts may speak of, beside what the catalog has.

    Attributes:
      sets: names that they may set. words: name → words that there are, of names of words.
      rules: names of rules. precisions: of matmuls, without variants.
    """

    sets: Collection[str]
    words: Mapping[str, Collection[str]]
    rules: Collection[str]
    precisions: Collection[str]


def problems(facts: Sequence[Fact], known: Vocabulary, families: Sequence[str]) -> list[str]:
    """What is wrong with the facts of a file, each with its place and the nearest right word.

    Args:
      families: ids of stacks that no file of the catalog describes, of which facts may ask.
    """
    asked = {
        **known.words,
        "model": table("models"),
        "chip": table("chips"),
        "generation": generations(),
        "stack": [*names(), *families],
        "precision": known.precisions,
        "scaling": known.precisions,
    }
    found = []
    for i, one in enumerate(facts):
        wrong = (*_names(one, known), *_values(one, known), *_conditions(one, asked))
        found += [f"fact {i + 1}: {text}" for text in wrong]
    return [*found, *_contradictions(facts)]


def _hint(word: str, known: Collection[str]) -> str:
    """The nearest words, and all where these are few or none is near."""
    close = nearest(word, list(known))
    near = [f"nearest: {', '.join(close)}"] if close else []
    every = [f"there are: {', '.join(known)}"] if not close or len(known) <= FEW else []
    return "; ".join([*near, *every])


def _names(one: Fact, known: Vocabulary) -> Iterator[str]:
    """Names that nothing has."""
    for name in one.when:
        if name not in CONDITIONS and name not in known.sets:
            every = f"conditions are {', '.join(CONDITIONS)}, and names that facts set"
            near = _near(name, [*CONDITIONS, *known.sets])
            yield f"unknown condition {name!r}; {near}{every}"
    for name in (*one.sets, *one.means):
        if name not in known.sets:
            every = f"facts set {', '.join(known.sets)}"
            yield f"cannot set {name!r}; {_near(name, list(known.sets))}{every}"


def _near(name: str, known: list[str]) -> str:
    """The nearest names as the beginning of a sentence; empty where none is near."""
    close = nearest(name, known)
    return f"nearest: {', '.join(close)}; " if close else ""


def _values(one: Fact, known: Vocabulary) -> Iterator[str]:
    """Rules and words that there are not, and words where numbers belong."""
    for name, value in (*one.sets.items(), *one.means.items()):
        if isinstance(value, Rule):
            yield from _unknown_rule(name, value, known)
        elif name in known.words:
            yield from _unknown_words(name, value, known)
        elif name in known.sets and not isinstance(value, float):
            yield f"{name}: expected a number or a rule, got {value!r}"


def _unknown_rule(name: str, rule: Rule, known: Vocabulary) -> Iterator[str]:
    """A rule that there is not."""
    if rule.name not in known.rules:
        yield f"{name}: no rule {rule.name!r}; {_hint(rule.name, known.rules)}"


def _unknown_words(name: str, value: Any, known: Vocabulary) -> Iterator[str]:
    """Words that a name cannot be."""
    for word in value if isinstance(value, list) else [value]:
        if word not in known.words[name]:
            yield f"{name} = {word!r}; {_hint(str(word), known.words[name])}"


def _flat(wanted: Any) -> list[Any]:
    """Single words and numbers of a condition, without the "!" before them."""
    listed = wanted if isinstance(wanted, list) else [wanted]
    return [w.removeprefix("!") if isinstance(w, str) else w for w in listed]


def _conditions(one: Fact, asked: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Words that there are not, and conditions that never hold."""
    for name, wanted in one.when.items():
        for word in _flat(wanted):
            yield from _never(name, word, asked)
    if {"chip", "generation"} <= {*one.when} and not _is_a_chip(dict(one.tests)):
        yield "when chip and generation: never so, no chip of the catalog is both"


def _never(name: str, word: Any, asked: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Why one word of a condition never holds."""
    if name in asked and not _is_among(name, word, asked[name]):
        yield f"when {name} = {word!r}: never so; {_hint(str(word), asked[name])}"
    elif not _can_hold(name, word):
        yield f"when {name} = {word!r}: never so, its bounds contradict each other"


def _is_a_chip(tests: Mapping[str, Any]) -> bool:
    """Whether some chip meets what is asked of it and of its generation."""
    return any(tests["chip"](c) and tests["generation"](generation(c)) for c in table("chips"))


def _is_among(name: str, word: Any, known: Collection[str]) -> bool:
    """Whether a condition's word is one of some, or begins as one of them."""
    if word == "":
        return True
    if name == "scaling":
        return str(word).partition("-")[0].rstrip("*").lower() in known
    test = condition(name, word, CONDITIONS.get(name, "word"))
    return any(test(each) for each in known)


def _can_hold(name: str, wanted: Any) -> bool:
    """Whether some value meets a range; true of anything else."""
    if not isinstance(wanted, str) or wanted[:1] not in ("<", ">"):
        return True
    kind = kind_of(name, wanted)
    test = condition(name, wanted, kind)
    return any(test(value) for value in _around(wanted, kind))


def _around(wanted: str, kind: str) -> list[Any]:
    """Values at, just under and just over the bounds of a range."""
    edges = re.findall(r"[\w.]+", wanted)
    if kind != "release":
        return [float(edge) + step for edge in edges for step in (-0.5, 0.0, 0.5)]
    return [near for edge in edges for near in _around_release(edge)]


def _around_release(edge: str) -> list[tuple[int, ...]]:
    """Releases at, just before and just after one."""
    at = release(edge) or release(f"{edge}.0")
    return [(*at[:-1], at[-1] - 1, 99), at, (*at, 1)] if at else []


def _contradictions(facts: Sequence[Fact]) -> Iterator[str]:
    """Names that facts with equal conditions set to different values."""
    seen: dict[tuple[str, str], tuple[int, Any]] = {}
    for i, one in enumerate(facts):
        when = repr(sorted((name, _sorted(wanted)) for name, wanted in one.when.items()))
        for name, value in (*one.sets.items(), *one.means.items()):
            first, was = seen.setdefault((when, name), (i, value))
            if was != value:
                yield (
                    f"facts {first + 1} and {i + 1}: conditions are equal, and {name} is {was!r} "
                    f"and {value!r}"
                )


def _sorted(wanted: Any) -> list[str]:
    listed = wanted if isinstance(wanted, list) else [wanted]
    return sorted(map(repr, listed))
