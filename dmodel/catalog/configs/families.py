"""Families of models: from which keys of a configuration their layers follow (`families.toml`)."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from dmodel.catalog.configs.formula import names
from dmodel.catalog.loader import fold

Formulas = Mapping[str, Any]

PLAIN = "decoder"
"""The family of model types that no other one has."""

ENDING = re.compile(r"(For(CausalLM|ConditionalGeneration)|LMHeadModel|Model)$")
"""Ending of an architecture's name."""


class Condition(NamedTuple):
    """Something to say, or to refuse for. when: formula, true where it holds. say: in words."""

    when: str
    say: str


class PartFormulas(NamedTuple):
    """A part of a layer. kind: one of `blocks.KINDS`. sizes: its fields."""

    kind: str
    sizes: Formulas


class Family(NamedTuple):
    """How models of a family are read. Values of tables are formulas (`configs.formula`), or
    numbers.

    Attributes:
      name: of the family. names: model types that are of it.
      defaults: key → what an absent key means. assumed: the same, said where it is used.
      let: names that formulas may use beside keys.
      sizes: of the model, by field of `Model`; `layers`, how many layers there are.
      mixer, feed: formulas of the names of a layer's parts, "" for none, by its index `i`.
      mixers, feeds: name → kind and sizes of a part; `like` names another one that it begins as.
      further: parts of the layers of a head of further tokens, as `[[mixer, feed], …]`; "" = those
        of the last layer.
      ignores: keys that say nothing more. notes, refusals: what is said, or refused, where it
        holds.
    """

    name: str
    names: tuple[str, ...]
    defaults: Formulas
    assumed: Formulas
    let: Formulas
    sizes: Formulas
    mixer: str
    feed: str
    mixers: Mapping[str, PartFormulas]
    feeds: Mapping[str, PartFormulas]
    further: str
    ignores: tuple[str, ...]
    notes: tuple[Condition, ...]
    refusals: tuple[Condition, ...]

    @property
    def used(self) -> frozenset[str]:
        """Names that its formulas ask for."""
        parts = [part.sizes for part in (*self.mixers.values(), *self.feeds.values())]
        tables = (self.defaults, self.let, self.sizes, *parts)
        texts = [text for table in tables for text in table.values() if isinstance(text, str)]
        texts += [self.mixer, self.feed, self.further or "0"]
        texts += [each.when for each in (*self.notes, *self.refusals)]
        asked = {name for text in texts for name in names(text)}
        return frozenset(asked | self.defaults.keys() | self.assumed.keys() | {*self.ignores})


class Rules(NamedTuple):
    """What holds for all families.

    Attributes:
      parts: names of parts of a file that hold its language model. towers: words in keys that hold
        parts of other modes. shared: keys that a text part
        takes from around it. spellings: key → other spellings. further: keys of heads of further
        tokens. positive: keys that are whole numbers from 1 on. any_number: keys that need be no
        whole number. harmless: patterns of keys that change no shape.
        structural: words in keys that do. mechanisms: key → why a model that has it is not read.
        types: pattern of model types → why they are not read. encoders: key → what it says.
    """

    parts: tuple[str, ...]
    towers: re.Pattern[str]
    shared: tuple[str, ...]
    spellings: Mapping[str, Sequence[str]]
    further: tuple[str, ...]
    positive: frozenset[str]
    any_number: frozenset[str]
    harmless: re.Pattern[str]
    structural: re.Pattern[str]
    mechanisms: Mapping[str, str]
    types: Mapping[str, str]
    encoders: Mapping[str, str]

    @property
    def others(self) -> frozenset[str]:
        """Keys that are other spellings."""
        return frozenset(each for several in self.spellings.values() for each in several)


@functools.cache
def document() -> Mapping[str, Any]:
    """The table as it is written."""
    text = resources.files(__package__ or "").joinpath("families.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@functools.cache
def rules() -> Rules:
    """What holds for all families."""
    said = document()["rules"]
    return Rules(
        parts=tuple(said["parts"]),
        towers=re.compile("|".join(said["towers"])),
        shared=tuple(said["shared"]),
        spellings=said["spellings"],
        further=tuple(said["further"]),
        positive=frozenset(said["positive"]),
        any_number=frozenset(said["any_number"]),
        harmless=re.compile("|".join(f"(?:{each})" for each in said["harmless"])),
        structural=re.compile("|".join(said["structural"])),
        mechanisms=said["mechanisms"],
        types=said["types"],
        encoders=said["encoders"],
    )


@functools.cache
def families() -> Mapping[str, Family]:
    """All families by name."""
    return {name: _family(name) for name in document()["families"]}


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """A table over another one, tables inside likewise; lists are joined."""
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            found[key] = _merged(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            found[key] = [*old, *value]
        else:
            found[key] = value
    return found


def _said(name: str) -> dict[str, Any]:
    """Tables of a family over those of the one that it is like; names are its own."""
    own = document()["families"][name]
    if "like" not in own:
        return own
    below = {key: value for key, value in _said(own["like"]).items() if key != "names"}
    return _merged(below, own)


def _family(name: str) -> Family:
    said = _said(name)
    return Family(
        name=name,
        names=(name, *said.get("names", ())),
        defaults=said.get("defaults", {}),
        assumed=said.get("assumed", {}),
        let=said.get("let", {}),
        sizes=said["sizes"],
        mixer=said["mixer"],
        feed=said["feed"],
        mixers=dict(_parts(said["mixers"])),
        feeds=dict(_parts(said["feeds"])),
        further=said.get("further", ""),
        ignores=tuple(said.get("ignores", ())),
        notes=tuple(Condition(**each) for each in said.get("notes", ())),
        refusals=tuple(Condition(**each) for each in said.get("refusals", ())),
    )


def _parts(tables: Mapping[str, Formulas]) -> Iterator[tuple[str, PartFormulas]]:
    """Parts with the sizes of those that they are like."""
    for name, own in tables.items():
        found = dict(own)
        while "like" in found:
            found = {**tables[found.pop("like")], **found}
        yield name, PartFormulas(found.pop("kind"), found)


def _by_type() -> dict[str, str]:
    return {fold(each): family.name for family in families().values() for each in family.names}


def family_of(types: Sequence[str]) -> tuple[Family, str]:
    """The family of a model by what its file says that it is, and the word that said so; the plain
    one and "" where no family has any of them."""
    known = _by_type()
    for each in types:
        for word in (each, each.removesuffix("_text"), ENDING.sub("", each)):
            if (name := known.get(fold(word))) is not None:
                return families()[name], each
    return families()[PLAIN], ""


def model_types() -> list[str]:
    """Model types that families name."""
    return [each for family in families().values() for each in family.names if each != PLAIN]
