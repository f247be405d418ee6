"""Profiles on disk: as JSON, or packed; shipped ones by name.

A file whose name ends in `.npz` is packed, any other is JSON; both are read by what they hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from dmodel.errors import InputError
from dmodel.profiles import container, packing, shipped, views
from dmodel.profiles.reading import document_of, from_json, outside_checked
from dmodel.profiles.record import Profile, default_profile
from dmodel.profiles.writing import to_json


def save(profile: Profile, path: str | Path, beside: Profile | None = None) -> None:
    """Write a profile: packed where the name ends in `.npz`, else as JSON.

    Args:
      beside: a shipped profile whose rows a packed one may refer to.

    Raises:
      InputError: the path cannot be written, or a number cannot be packed.
    """
    document = to_json(profile)
    try:
        if Path(path).suffix == shipped.PACKED:
            other = None if beside is None else _rows_of(beside)
            container.write(path, *packing.pack(document, other))
        else:
            Path(path).write_text(_lines(document), encoding="utf-8")
    except OSError as e:
        raise InputError(
            f"cannot write the profile to {path}: {e.strerror}; name a writable file"
        ) from e
    except ValueError as e:
        raise InputError(
            f"cannot write the profile to {path}: {e}; a file named .json takes any finite number"
        ) from e


def _lines(document: Mapping[str, Any]) -> str:
    """A document as JSON, one line for each of its tables and for each row of those."""

    def text(value: Any, depth: int) -> str:
        if depth == 2 or not isinstance(value, dict | list) or not value:
            return json.dumps(value, allow_nan=False)
        named = isinstance(value, dict)
        parts = (
            [f"{json.dumps(k)}: {text(v, depth + 1)}" for k, v in value.items()]
            if named
            else [text(v, depth + 1) for v in value]
        )
        begin, end = "{}" if named else "[]"
        return (
            f"{begin}\n{' ' * (depth + 1)}"
            + f",\n{' ' * (depth + 1)}".join(parts)
            + f"\n{' ' * depth}{end}"
        )

    return text(document, 0) + "\n"


def load(name_or_path: str | Path) -> Profile:
    """A shipped profile by name, or a profile file.

    Raises:
      InputError: neither a shipped name nor a readable, complete profile of this version.

    >>> load("h100-megatron").accelerators
    ('H100-80GB',)
    """
    name = str(name_or_path)
    if name == shipped.PRIOR:
        return default_profile()
    if name in shipped.files():
        return _load_shipped(name)
    path = Path(name)
    if not path.is_file():
        raise shipped.unknown(name)
    try:
        content = path.read_bytes()
        text = "" if content.startswith(container.MAGIC) else content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(
            f"{path}: cannot be read as text ({e}); expected a profile written by `dmodel fit`"
        ) from e
    if content.startswith(container.MAGIC):
        return _unpacked(str(path), content)
    return from_json(document_of(str(path), text), str(path))


@lru_cache
def _load_shipped(name: str) -> Profile:
    return _unpacked(name, shipped.files()[name].read_bytes())


def _rows_of(profile: Profile) -> dict[str, Any]:
    """What another profile's rows may be told by."""
    return {
        "name": profile.name,
        "fitted_rows": list(profile.fitted_rows),
        "seen": {stack: rows.tolist() for stack, rows in profile.seen.items()},
    }


def _unpacked(path: str, content: bytes) -> Profile:
    """The profile of a packed file, checked as one of a JSON file is."""
    words = container.words_of(path, content)
    arrays = container.arrays_of(path, content)
    try:
        if "view" in words:
            base = _base(path, words["view"], "of")
            return views.unpack(words, packing.table_of(arrays, "rounding"), base)
        beside = _rows_of(_base(path, words, "beside")) if words["beside"] else None
        document = packing.unpack(words, arrays, beside)
    except InputError:
        raise
    except container.DAMAGES as e:
        raise container.damaged(path, e) from e
    return from_json(outside_checked(path, document), path)


def _base(path: str, words: Mapping[str, Any], where: str) -> Profile:
    """The shipped profile that a packed one refers to."""
    name = words[where]
    if name not in shipped.files():
        raise InputError(
            f"{path}: refers to the shipped profile {name!r}, which this dmodel does not have; "
            "use the dmodel that wrote it"
        )
    return _load_shipped(name)
