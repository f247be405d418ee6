"""Settings that logs print in YAML, TOML or JSON, as a flat dictionary `section.key → text`; only
as much of each language as dumps use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from calibration.importers.source import Line

Settings = dict[str, str]

_YAML = re.compile(r"^( *)(?:- )?([A-Za-z_][\w.\-]*):(?: (.*))?$")
_SECTION = re.compile(r"^\[([\w.\-]+)\]$")
_TOML = re.compile(r"^([A-Za-z_]\w*) = (.+)$")

DEEPEST = 24


def bare(text: str) -> str:
    """A value without a comment behind it and without quotes."""
    text = re.sub(r"\s#.*$", "", text).strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def yaml(lines: Iterable[Line]) -> Settings:
    """Scalars of nested mappings, told by indentation; lines that are none are passed over."""
    found: Settings = {}
    path: list[tuple[int, str]] = []
    for _, text in lines:
        match = _YAML.match(text)
        if not match:
            continue
        indent, key, value = len(match[1]), match[2], match[3] or ""
        while path and path[-1][0] >= indent:
            path.pop()
        if value.strip():
            found[".".join([*(name for _, name in path), key])] = bare(value)
        elif len(path) < DEEPEST:
            path.append((indent, key))
    return found


def toml(lines: Iterable[Line]) -> Settings:
    """`key = value` under `[section]`; lines that are neither are passed over."""
    found: Settings = {}
    section = ""
    for _, text in lines:
        if match := _SECTION.match(text.strip()):
            section = match[1] + "."
        elif section and (match := _TOML.match(text.strip())):
            found[section + match[1]] = bare(match[2])
    return found


def flat(value: Any, prefix: str = "", depth: int = 0) -> Settings:
    """A JSON document as settings; lists as their JSON text."""
    if isinstance(value, dict) and depth < DEEPEST:
        found: Settings = {}
        for key, inner in value.items():
            found |= flat(inner, f"{prefix}.{key}" if prefix else str(key), depth + 1)
        return found
    if value is None:
        return {prefix: "None"}
    return {prefix: value if isinstance(value, str) else json.dumps(value)}


def json_at(lines: list[Line], index: int, start: int, longest: int = 4000) -> Settings | None:
    """The JSON object that begins in a line at a column and may go on over the next ones; None when
    there is no whole one."""
    text, depth = [], 0
    for i in range(index, min(index + longest, len(lines))):
        part = lines[i].text[start:] if i == index else lines[i].text
        text.append(part)
        plain = re.sub(r'"(?:[^"\\]|\\.)*"', '""', part)
        depth += plain.count("{") - plain.count("}")
        if depth <= 0:
            break
    try:
        return flat(json.JSONDecoder().raw_decode("\n".join(text))[0])
    except (ValueError, RecursionError):
        return None
