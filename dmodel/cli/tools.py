"""Commands as tools of an agent: the same words as named arguments, described by a JSON schema.

A tool is what the command's own signature says, without what writes files or changes only what
people see. Its call becomes a command line that ends with `--json`.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import re
import types
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from dmodel.errors import InputError

PLAN = (
    "A plan needs `system` or `chip`, `devices`, `model`, `global_batch`, and degrees where they "
    "are not 1 (dp follows)."
)
READING = (
    "Numbers are SI; `_low` and `_high` are the ends of 90 % intervals; `assumptions` lists what "
    "was taken for inputs that the call leaves open."
)


class Tool(NamedTuple):
    """A command that answers in JSON. when: when to call it, for the one who chooses. without:
    parameters that write a file, open a connection, or change only what people see."""

    when: str
    without: frozenset[str]


TOOLS = {
    "predict": Tool(
        "Step time, throughput, MFU, memory, energy and cost of one training plan, with what they "
        f"consist of; or of every row of a table of traces. {PLAN} {READING} `fits` says whether "
        "memory suffices. With `against`: which of two plans is faster and cheaper, and how "
        "likely. With `tokens`, `loss` or `chinchilla`: days and dollars of the whole run.",
        frozenset({"out", "strict", "emit_out"}),
    ),
    "design": Tool(
        "The best plan for a job on given hardware: degrees, micro-batch, ZeRO, schedule and "
        "recomputation, with a proof that no other valid plan is better by the model. Needs "
        "`system` or `chip`, `devices`, `model`, `global_batch`. With `free`, `loss`, `flop` or a "
        "range of devices also the sizes of the run. `max_risk` bounds the chance to run out of "
        f"memory; `brief` is quicker. {READING}",
        frozenset({"emit_out", "figure", "workers", "cluster"}),
    ),
    "diagnose": Tool(
        "Whether a measured throughput is normal for its plan, and which causes are likely when "
        "it is not, with tests that tell them apart. Needs `measured` and a plan, or a file with "
        f"a measured row. {PLAN} {READING}",
        frozenset({"figure"}),
    ),
    "solve": Tool(
        "The value of one input at which an output of a plan is as wanted, e.g. the bandwidth for "
        f"an MFU of 45 %. {PLAN} {READING}",
        frozenset(),
    ),
    "sensitivity": Tool(
        "What a plan's time, memory or cost depends on: elasticities [% per %], the largest "
        "first. With `reoptimize` around the best plan, which follows the inputs; no degrees are "
        f"needed then. {PLAN} {READING}",
        frozenset({"report", "top", "workers", "cluster"}),
    ),
    "catalog": Tool(
        "What is known by name: chips, systems, models, stacks, settings, profiles. Without "
        "`kind` all names; with `kind` and `name` every number of an entry with its unit, source "
        "and date. Call it first when a name is not certain.",
        frozenset({"toml"}),
    ),
}

KINDS: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Path: {"type": "string"},
}
"""Types of parameters as JSON schemas have them."""


class Parameter(NamedTuple):
    """A parameter of a command. words: the options that say it, of a flag also the one that denies
    it; none of a positional one. kind: a type of `KINDS`, or a list or pair of it (`count`: 0 = any
    number, None = one)."""

    name: str
    words: tuple[str, ...]
    kind: Any
    count: int | None
    required: bool
    default: Any
    says: str
    bounds: dict[str, float]


NOTHING = (None, "", inspect.Parameter.empty)
"""Defaults that say nothing."""


def parameters(command: str) -> dict[str, Parameter]:
    """Parameters of a tool by the names that calls give them."""
    function = import_module(f"dmodel.cli.{command}").command
    hints = get_type_hints(function, include_extras=True)
    left_out = TOOLS[command].without | {"json"}
    signature = inspect.signature(function).parameters
    found = (_parameter(n, p, hints[n]) for n, p in signature.items() if n not in left_out)
    return {each.name: each for each in found}


def _parameter(name: str, parameter: inspect.Parameter, hint: Any) -> Parameter:
    """A parameter by its annotation, which holds its option."""
    bare, info = get_args(hint) if get_origin(hint) is Annotated else (hint, OptionInfo())
    kind, count = _kind(bare)
    words = _words(name, info)
    form = re.sub(r"^\[(.*)\]$", r"\1", info.metavar or "")
    return Parameter(
        words[0].lstrip("-").replace("-", "_") if words else name,
        words,
        kind,
        count,
        parameter.default is inspect.Parameter.empty,
        parameter.default,
        " ".join(filter(None, (info.help, form and f"Form: {form}"))),
        {n: x for n, x in (("minimum", info.min), ("maximum", info.max)) if x is not None},
    )


def _words(name: str, info: ArgumentInfo | OptionInfo) -> tuple[str, ...]:
    """How a command line says a parameter."""
    if isinstance(info, ArgumentInfo):
        return ()
    # of an annotated option, typer keeps the first word as its default
    said = " ".join(map(str, (info.default, *(info.param_decls or ()))))
    declared = re.search(r"--[\w-]+(/--[\w-]+)?", said)
    return tuple(declared[0].split("/")) if declared else (f"--{name.replace('_', '-')}",)


def _kind(hint: Any) -> tuple[Any, int | None]:
    """The type of a parameter's values, and how many there are: None = one, 0 = any number."""
    if get_origin(hint) in (Union, types.UnionType):
        [hint] = [each for each in get_args(hint) if each is not type(None)]
    inside = get_args(hint)
    if get_origin(hint) is list:
        return inside[0], 0
    return (inside[0], len(inside)) if get_origin(hint) is tuple else (hint, None)


def schema(command: str) -> dict[str, Any]:
    """What a call of a tool takes, as a JSON schema: nothing but its parameters."""
    known = parameters(command)
    return {
        "type": "object",
        "properties": {name: _property(each) for name, each in known.items()},
        "required": [name for name, each in known.items() if each.required],
        "additionalProperties": False,
    }


def _property(each: Parameter) -> dict[str, Any]:
    one = KINDS[each.kind] | each.bounds
    if each.count is not None:
        exact = {"minItems": each.count, "maxItems": each.count} if each.count else {}
        one = {"type": "array", "items": one, **exact}
    told = {} if each.default in NOTHING else {"default": each.default}
    return {**one, "description": each.says, **told}


def command_line(command: str, given: dict[str, Any]) -> list[str]:
    """Words of the command line that a call stands for.

    Args:
      given: arguments by name; those that are null are as good as not given.
    Raises:
      InputError: an unknown tool or argument, one that is missing, or a value of another type.
    """
    if command not in TOOLS:
        raise InputError(f"unknown tool {command!r}; expected one of: {', '.join(TOOLS)}")
    known = parameters(command)
    given = {name: value for name, value in given.items() if value is not None}
    for name in given.keys() - known.keys():
        raise InputError(f"{command}: {_unknown(name, known)}")
    _check_missing(command, given, known)
    options = [word for name, value in given.items() for word in _option(known[name], value)]
    # in the order of the command, whatever that of the call
    places = [word for each in known.values() for word in _place(each, given)]
    return [command, *options, "--json", "--", *places]


def _unknown(name: str, known: dict[str, Parameter]) -> str:
    """What is said of an argument that a tool does not have."""
    near = difflib.get_close_matches(name, known, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown argument {name!r}{hint}; it takes: {', '.join(known)}"


def _check_missing(command: str, given: dict[str, Any], known: dict[str, Parameter]) -> None:
    """Refuse a call without an argument that it must have."""
    missing = [each for name, each in known.items() if each.required and name not in given]
    if missing:
        names = ", ".join(each.name for each in missing)
        told = "; ".join(f"{each.name}: {each.says}" for each in missing)
        raise InputError(f"{command}: missing {names}; expected {told}")


def _place(each: Parameter, given: dict[str, Any]) -> list[str]:
    """The word of a positional parameter, where it is given."""
    return [] if each.words or each.name not in given else [_text(each, given[each.name])]


def _option(each: Parameter, value: Any) -> list[str]:
    """Words that say a value of an option; none of a positional parameter."""
    if not each.words:
        return []
    if each.kind is bool:
        return _flag(each, value)
    word, texts = each.words[0], [_text(each, one) for one in _values(each, value)]
    return [word, *texts] if each.count else [f"{word}={text}" for text in texts]


def _values(each: Parameter, value: Any) -> list[Any]:
    """The values that are given, one or several."""
    values = value if each.count is not None and isinstance(value, list) else [value]
    if each.count and len(values) != each.count:
        raise InputError(f"{each.name}: expected {each.count} values, got {len(values)}")
    return values


def _flag(each: Parameter, value: Any) -> list[str]:
    """The option that says yes or no; nothing where a flag without a denial is off."""
    if not isinstance(value, bool):
        raise InputError(f"{each.name}: expected true or false, got {value!r}")
    return [each.words[0]] if value else [*each.words[1:]]


def _whole(value: Any) -> str:
    """A whole number as text; ValueError where it is none."""
    if int(value) != value:
        raise ValueError(value)
    return str(int(value))


TEXTS = {
    int: ((int, float), _whole),
    float: ((int, float), lambda value: repr(float(value))),
    str: ((str, int, float), str),
    Path: ((str,), str),
}
"""What a call may give for a type, and how a command line has it."""


def _text(each: Parameter, value: Any) -> str:
    """A value as a word of the command line.

    Raises:
      InputError: of another type than the parameter's.
    """
    taken, text = TEXTS[each.kind]
    if isinstance(value, taken) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            return text(value)
    raise InputError(
        f"{each.name}: expected a value of type {KINDS[each.kind]['type']}, got {value!r}; "
        f"it means: {each.says}"
    )
