"""Settings: everything about a configuration that no column holds, by name.

One name space serves the column `set` of trace files, `--set` in the shell, `overrides=` in Python
and the facts of stacks. A name of `dmodel.columns` is that column; any other name is a setting: a
word, or a leaf of the model or the plan (`dmodel.known`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dmodel.catalog import quantities
from dmodel.catalog.loader import nearest, table
from dmodel.columns import BY_NAME, MOST, base_precision, parse_number
from dmodel.errors import InputError
from dmodel.question import Question

NOTHING = "nothing"
"""The empty list."""


class Setting(NamedTuple):
    """What a setting takes.

    Attributes:
      kind: "number", "word", "words" (several, `+` between them) or "quantity" (a number with a
        unit). meaning: for people. allowed: the only words, or () when any will do.
    """

    kind: str
    meaning: str
    allowed: tuple[str, ...] = ()


ADAPTED = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "linear_qkv",
    "linear_proj",
    "linear_fc1",
    "linear_fc2",
)

EVERY_LINEAR = dict.fromkeys(("all", "all-linear"), ADAPTED[:7])
"""Words of trainers for adapters on every product of a layer, and their names."""

SETTINGS = {
    name: Setting(one["kind"], one["meaning"], tuple(one["allowed"]))
    for name, one in table("settings").items()
}
"""All settings, as `dmodel.known` has found them."""

KNOWN = tuple(SETTINGS)
"""Their names."""

ALIASES = {"zero": "zero_stage"}
"""Other names of columns."""


def kind_of(name: str) -> str:
    """ "number", "word", "words" or "quantity"."""
    return _setting(name).kind


def _setting(name: str) -> Setting:
    """A setting; of a column, a number without a meaning."""
    return SETTINGS.get(name, Setting("number", ""))


def value_of(name: str, text: str) -> Any:
    """A setting's value from its text.

    Raises:
      InputError: not of its kind, or none of the allowed words.
    """
    kind = kind_of(name)
    if kind == "quantity":
        return quantities.value_of(name, text)
    if kind == "number":
        return _number(name, text)
    if kind == "word":
        return _word(name, text)
    if not re.fullmatch(r"[\w.-]+(\s*\+\s*[\w.-]+)*", text):
        raise InputError(f"{name}: expected names with + between them, got {text!r}")
    if name == "adapters" and text in EVERY_LINEAR:
        return EVERY_LINEAR[text]
    parts = () if text == NOTHING else tuple(re.split(r"\s*\+\s*", text))
    return tuple(_word(name, part) for part in parts)


def _number(name: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InputError(f"{name}: expected a finite number, got {text!r}")
    if found < 0.0:
        raise InputError(f"{name}: expected a number from 0 on, got {text}")
    if name.endswith(OF_A_NUMBER) and found and not LEAST_BYTES <= found <= MOST_BYTES:
        raise InputError(
            f"{name}: expected 0, or {LEAST_BYTES:g} to {MOST_BYTES:g} bytes, got {text}"
        )
    if found > MOST:
        raise InputError(f"{name}: expected at most {MOST:g}, got {text}")
    if found > 1.0 and described(name)["meaning"].startswith(UP_TO_ONE):
        raise InputError(f"{name}: expected a number from 0 to 1, got {text}")
    return found


OF_A_NUMBER, LEAST_BYTES, MOST_BYTES = "_bytes", 0.1, 1e3
"""How names of bytes of one number end (a parameter with all its states, an operand, a logit), and
what they may be."""

UP_TO_ONE = ("share ", "1 = ")
"""How meanings of shares and of switches begin."""


def _word(name: str, text: str) -> str:
    allowed = _setting(name).allowed
    if allowed and text not in allowed:
        raise InputError(f"{name}: expected one of {', '.join(allowed)}; got {text!r}")
    return text


def described(name: str) -> dict[str, str]:
    """A setting for people: name, kind of its value, what is allowed, meaning."""
    one = _setting(name)
    allowed = ", ".join(one.allowed)
    return {"name": name, "kind_of_value": one.kind, "allowed": allowed, "meaning": one.meaning}


def unknown(name: str) -> str:
    """Text of the error about a name that is neither a column nor a setting."""
    every = [*BY_NAME, *KNOWN]
    close = nearest(name, every)
    hint = f"nearest: {', '.join(close)}" if close else f"known: {', '.join(every)}"
    return f"unknown name {name!r}; {hint}. `dmodel catalog settings` lists all with their meaning"


def parse(text: str) -> dict[str, Any]:
    """Settings of a cell, `name=value; name=value`; words of a list have `+` between them.

    Raises:
      InputError: a part without `=`, a name that is unknown, a column's or said twice, a value of
        another kind.

    >>> parse("graphed=1; adapters=q_proj+v_proj")
    {'graphed': 1.0, 'adapters': ('q_proj', 'v_proj')}
    """
    found: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, _, value = map(str.strip, part.partition("="))
        if not (name and value):
            raise InputError(f"set: expected name=value, `;` between several; got {part!r}")
        if ALIASES.get(name, name) in BY_NAME:
            column = ALIASES.get(name, name)
            raise InputError(f"set: {name} is a column of its own; write {value} into {column}")
        if name not in KNOWN:
            raise InputError(f"set: {unknown(name)}")
        if name in found:
            raise InputError(f"set: expected {name} once, got it twice in {text!r}")
        found[name] = value_of(name, value)
    return found


def text_of(settings: Mapping[str, Any]) -> str:
    """The text of a cell that `parse` reads as these settings."""
    return "; ".join(f"{name}={shown(value)}" for name, value in settings.items())


def shown(value: Any) -> str:
    """A value as `parse` reads it."""
    if isinstance(value, int | float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))
    return value if isinstance(value, str) else "+".join(value) or NOTHING


def by_column(named: Mapping[str, Any]) -> dict[str, Any]:
    """The same under the names that columns have (`ALIASES`).

    Raises:
      InputError: two values for one column.
    """
    found: dict[str, Any] = {}
    for name, value in named.items():
        column = ALIASES.get(name, name)
        if found.setdefault(column, value) != value:
            raise InputError(f"{column}: given as {found[column]} and as {value}; give it once")
    return found


class Overrides(NamedTuple):
    """What names and values set: columns, and settings."""

    columns: dict[str, float | str]
    settings: dict[str, Any]


def overrides(named: Mapping[str, Any]) -> Overrides:
    """Names of the one name space, apart: columns and settings, values checked.

    Args:
      named: name → text as typed, or a value of Python's.
    Raises:
      InputError: an unknown name, or a value that it does not take.
    """
    columns: dict[str, float | str] = {}
    settings: dict[str, Any] = {}
    for name, value in by_column(named).items():
        if name in BY_NAME:
            columns[name] = column_value(name, value)
        elif name in KNOWN:
            settings[name] = value_of(name, shown(value))
        else:
            raise InputError(unknown(name))
    return Overrides(columns, settings)


def column_value(name: str, value: Any) -> float | str:
    """A column's value, checked.

    Raises:
      InputError: not of its kind, or none of its words.
    """
    column, text = BY_NAME[name], shown(value).strip()
    if column.kind != "text":
        try:
            return parse_number(column, text)
        except ValueError as error:
            raise InputError(str(error)) from None
    word = base_precision(text) if name == "precision" else text.lower()
    if column.allowed and word not in column.allowed:
        raise InputError(f"{name}: expected one of {', '.join(column.allowed)}; got {text!r}")
    return text.lower() if column.allowed else text


def typed(pairs: Sequence[str], option: str = "--set") -> dict[str, str]:
    """`name=value` pairs as typed in the shell, each name once, as columns have it.

    Raises:
      InputError: a pair without a value, or two values for one name.
    """
    found: dict[str, str] = {}
    for part in pairs:
        name, _, value = map(str.strip, part.partition("="))
        name = name.removeprefix("--").replace("-", "_")
        name = ALIASES.get(name, name)
        if not (name and value):
            raise InputError(f"{option} {part!r}: expected NAME=VALUE, such as graphed=1 or tp=8")
        if found.setdefault(name, value) != value:
            raise InputError(
                f"{option} {name}: given as {found[name]} and as {value}; give it once"
            )
    return found


def changed(question: Question, named: Mapping[str, Any]) -> Question:
    """The question with names set otherwise."""
    found = overrides(named)
    return question._replace(
        columns={**question.columns, **found.columns},
        settings={**question.settings, **found.settings},
    )


def markdown() -> str:
    """All settings as a Markdown table, for the documentation."""
    lines = ["| setting | kind | meaning |", "| --- | --- | --- |"]
    for each in map(described, KNOWN):
        words = f" ({each['allowed']})" if each["allowed"] else ""
        meaning = each["meaning"].rstrip(".") + words
        lines.append(f"| {each['name']} | {each['kind_of_value']} | {meaning} |")
    return "\n".join(lines)
