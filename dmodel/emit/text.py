"""Settings as text: flags one a line, YAML and TOML of nested names; comments above."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from dmodel.emit.sheet import Setting


def comments(lines: Iterable[str], width: int = 120) -> str:
    """Comment lines, long ones folded."""
    import textwrap

    folded = [
        part
        for line in lines
        for part in (
            textwrap.wrap(line, width, subsequent_indent="    ", break_on_hyphens=False) or [""]
        )
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in folded)


def flags(settings: Mapping[str, Setting]) -> str:
    """`--name value`, one a line. A setting that is True stands alone, one that is False is left to
    its default."""
    lines = []
    for name, value in settings.items():
        if value is True:
            lines.append(f"--{name}")
        elif value is not False:
            words = " ".join(value) if isinstance(value, list) else str(value)
            lines.append(f"--{name} {words}")
    return "\n".join(lines) + "\n"


def nested(settings: Mapping[str, Setting]) -> dict[str, dict[str, Setting]]:
    """`section.key` → section → key; names without a section stand under ""."""
    found: dict[str, dict[str, Setting]] = {}
    for name, value in settings.items():
        section, _, key = name.rpartition(".")
        found.setdefault(section, {})[key] = value
    return found


def toml(settings: Mapping[str, Setting]) -> str:
    """TOML with one table for each section."""
    parts = []
    for section, pairs in nested(settings).items():
        lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in pairs.items()]
        parts.append("\n".join([f"[{section}]", *lines] if section else lines) + "\n")
    return "\n".join(parts)


def yaml(settings: Mapping[str, Setting]) -> str:
    """YAML with one mapping for each section, nested as the dots say."""
    lines: list[str] = []
    opened: tuple[str, ...] = ()
    for section, pairs in sorted(nested(settings).items(), key=lambda item: item[0].split(".")):
        path = tuple(part for part in section.split(".") if part)
        lines += _opening(path, opened)
        opened = path
        lines += [f"{'  ' * len(path)}{key}: {_scalar(value)}" for key, value in pairs.items()]
    return "\n".join(lines) + "\n"


def _opening(path: tuple[str, ...], opened: tuple[str, ...]) -> list[str]:
    """Lines that open a section, but for those of its parents that are open already."""
    return [
        f"{'  ' * depth}{part}:"
        for depth, part in enumerate(path)
        if opened[: depth + 1] != path[: depth + 1]
    ]


def _scalar(value: Setting) -> str:
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, str) and _is_plain(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _is_plain(text: str) -> bool:
    """Whether YAML takes a text for a text without quotes: letters, digits, "_" and "-"."""
    return text[:1].isalpha() and text.replace("_", "").replace("-", "").isalnum()
