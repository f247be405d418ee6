"""A configuration file: its object, its text part, and its keys in one spelling."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dmodel.errors import InputError

Config = dict[str, Any]

WORDS = {"true": True, "false": False}
"""Truth values that some files write as text."""


class Source(NamedTuple):
    """What a file says of its language model.

    Attributes:
      path: of the file. keys: in the spelling of the families, of the text part. written: spelling
        in the file. types: names that may say what it is, the nearest first. nested: name of the
        text part; "" = the file is all text. outside: keys that hold other objects.
    """

    path: Path
    keys: Config
    written: Mapping[str, str]
    types: tuple[str, ...]
    nested: str
    outside: tuple[str, ...]


def load(path: Path) -> Config:
    """The file's object.

    Raises:
      InputError: there is none, with the reason.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such file; expected a catalog name or the path of a Hugging Face "
            "config.json"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: not JSON ({error}); expected a Hugging Face config.json"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if not isinstance(found, dict):
        raise InputError(
            f"{path}: expected a JSON object with the keys of a Hugging Face config.json, got a "
            f"{type(found).__name__}"
        )
    return found


def source(
    path: Path, parts: Sequence[str], spellings: Mapping[str, Sequence[str]], shared: Sequence[str]
) -> Source:
    """The language model of a file.

    Args:
      parts: names of parts that hold it. spellings: key → other spellings, of which the first that
        is there counts. shared: keys that a text part takes from the file around it.
    Raises:
      InputError: there is no such file, or it holds no object.
    """
    config = _plain(load(path))
    types, nested = _types(config, path), ""
    outside = _objects(config)
    while part := next((p for p in parts if isinstance(config.get(p), dict)), ""):
        around, config = config, config[part]
        nested = f"{nested}.{part}" if nested else part
        types = [*_types(config, path), *types]
        outside = [*(name for name in outside if name != part), *_objects(config)]
        missing = [key for key in shared if config.get(key) is None and key in around]
        config = config | {key: around[key] for key in missing}
    keys, written = _spelled(config, spellings)
    return Source(path, keys, written, tuple(dict.fromkeys(types)), nested, tuple(outside))


def _objects(config: Config) -> list[str]:
    """Keys of a part of a file that hold objects."""
    return [key for key, value in config.items() if isinstance(value, dict)]


def _plain(value: Any) -> Any:
    """A value in which truth values are no text."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return WORDS.get(value.lower(), value) if isinstance(value, str) else value


def _types(config: Config, path: Path) -> list[str]:
    """What says which model it is: its model type, then its architectures.

    Raises:
      InputError: a model type that is no text.
    """
    kind, built = config.get("model_type"), config.get("architectures")
    if kind is not None and not isinstance(kind, str):
        raise InputError(f"{path}: 'model_type': expected a name, got {kind!r:.40}; not supported")
    listed = [each for each in built if isinstance(each, str)] if isinstance(built, list) else []
    return [kind, *listed] if kind else listed


def _spelled(
    config: Config, spellings: Mapping[str, Sequence[str]]
) -> tuple[Config, dict[str, str]]:
    """Keys in the spelling of the families, and that of the file."""
    keys, written = dict(config), {}
    for key, others in spellings.items():
        other = next((o for o in others if config.get(o) is not None), None)
        if config.get(key) is None and other is not None:
            keys[key], written[key] = config[other], other
            keys.pop(other)
    return keys, written
