"""What is to be measured: a kind of benchmark and its parameters, with a key that is the same
wherever and whenever it is asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from dmodel.errors import InputError

Value = int | float | str | bool

KEY_DIGITS = 16
"""Hexadecimal digits of a key: 64 bits, so that a million tasks collide with a chance of 3e-8."""


class Task(NamedTuple):
    """One measurement to be made. kind: the benchmark. parameters: its sizes, precision and so on,
    as far as they are not the defaults.

    So a benchmark may gain a parameter, whose default is what it did before, and what was measured
    keeps its key.
    """

    kind: str
    parameters: Mapping[str, Value]

    def key(self, identity: str) -> str:
        """Key of the task on one kind of machine: equal tasks have equal keys, whatever the order
        of their parameters.

        Args:
          identity: of the machine and software (`environment.identity`); the same product on
            another chip is another measurement.
        """
        return digest(
            {"kind": self.kind, "parameters": dict(self.parameters), "identity": identity}
        )

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(f'{k}={v}' for k, v in self.parameters.items())})"


def canonical(value: Any) -> str:
    """JSON with sorted keys and no blanks: one text for one value.

    Raises:
      ValueError: a number is not finite.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """`KEY_DIGITS` hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:KEY_DIGITS]


def make(kind: str, record: Any) -> Task:
    """The task of a parameter record (a NamedTuple)."""
    defaults = record._field_defaults
    return Task(
        kind,
        {
            name: value
            for name, value in record._asdict().items()
            if name not in defaults or defaults[name] != value
        },
    )


def parse(
    kind: str, given: Mapping[str, Any], known: Mapping[str, type], where: str = "task"
) -> Any:
    """The parameter record of a task, blanks filled by the benchmark's defaults.

    Args:
      known: parameter record (a NamedTuple class) of each kind. where: place of the task, for
        messages.

    Raises:
      InputError: unknown kind, unknown or missing parameter, or a value of another type.
    """
    if kind not in known:
        raise InputError(
            f"{where}: unknown kind {kind!r}; expected one of {', '.join(sorted(known))}"
        )
    record = known[kind]
    hints, defaults = get_type_hints(record), record._field_defaults  # type: ignore[attr-defined]
    values = _filled(given, hints, defaults, f"{where}: {kind}")
    for name, hint in hints.items():
        least = 0 if defaults.get(name) == 0 and hint is int else 1e-30
        _check(values[name], hint, least, f"{where}: {kind}.{name}")
    floats = {name: float(values[name]) for name, hint in hints.items() if hint is float}
    return record(**{**values, **floats})


def _filled(
    given: Mapping[str, Any], hints: Mapping[str, Any], defaults: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """A value of every parameter; raises where one is unknown, or missing without a default."""
    extra = [name for name in given if name not in hints]
    if extra:
        raise InputError(f"{where} has no parameter {', '.join(extra)}; it has {', '.join(hints)}")
    values = {**defaults, **given}
    lacking = [name for name in hints if name not in values]
    if lacking:
        raise InputError(f"{where} needs {', '.join(lacking)}")
    return values


TYPES = {
    int: "a positive integer",
    float: "a positive number",
    str: "a text",
    bool: "true or false",
}
"""Types that a parameter may have, in words."""


def _check(value: Any, hint: Any, least: float, where: str) -> None:
    """Raise unless a value is of the type that a parameter holds; counts are positive, except where
    0 is the default."""
    fits = isinstance(value, hint) if hint is not float else isinstance(value, int | float)
    if not fits or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{where}: expected {TYPES.get(hint, hint)}, got {value!r}")
    if hint in (int, float) and not least <= value < 2**62:
        raise InputError(f"{where}: expected {TYPES[hint]}, got {value!r}")


def read_plan(path: Path, known: Mapping[str, type]) -> list[Task]:
    """Tasks of a plan file: a JSON list of objects `{"kind": …, parameter: value, …}`, each task
    once, in the order written.

    Raises:
      InputError: no such file, no JSON, no list, or a task that cannot be understood, with its
        place.
    """
    found = _json(path)
    if isinstance(found, dict):
        found = found.get("tasks")
    if not isinstance(found, list) or not found:
        raise InputError(
            f'--plan {path}: expected a list of tasks such as [{{"kind": "matmul", "m": 4096, '
            f'"n": 4096, "k": 4096}}]'
        )
    entries = enumerate(found, 1)
    return unique([_task(entry, known, f"--plan {path}, task {i}") for i, entry in entries])


def _json(path: Path) -> Any:
    """The contents of a plan file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"--plan {path}: cannot be read ({(error.strerror or 'unknown error').lower()})"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"--plan {path}: not a JSON file ({error}); expected a list of tasks"
        ) from None


def _task(entry: Any, known: Mapping[str, type], where: str) -> Task:
    """The task of one entry of a plan file."""
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        raise InputError(f'{where}: expected an object with a "kind", got {entry!r}')
    parameters = {name: value for name, value in entry.items() if name != "kind"}
    return make(entry["kind"], parse(entry["kind"], parameters, known, where))


def unique(tasks: Iterable[Task]) -> list[Task]:
    """Each task once, in the order of their first appearance."""
    return list({task.key(""): task for task in tasks}.values())
