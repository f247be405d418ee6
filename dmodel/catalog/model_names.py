"""Models by name: which one a name means, however it is spelled, and its published numbers."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from dmodel.catalog.loader import Entry, canonical, known_name, table, unknown
from dmodel.errors import InputError

_OF_HUBS = re.compile(r"[-_\s](hf|base|instruct|chat|it|pt|v\d+(\.\d+)*)$", re.IGNORECASE)
"""An ending of hubs' names that is no part of a shape's name."""

_TUNED = re.compile(r"[-_\s]+(sft|lora)$", re.IGNORECASE)
"""Endings of models' names that say how they are tuned."""


_CUT = re.compile(r"[-_\s]+(\d+)[-_\s]?layers?$", re.IGNORECASE)
"""An ending that says of how many layers a model is cut."""


def cut(name: str) -> tuple[str, float | None]:
    """A model's name without the layers that it is cut to, and these; None where it is whole.

    >>> cut("llama4-scout-2layers"), cut("llama-3-8b")
    (('llama4-scout', 2.0), ('llama-3-8b', None))
    """
    found = _CUT.search(name.strip())
    return (name.strip()[: found.start()], float(found[1])) if found else (name, None)


def known_model(name: str) -> str | None:
    """Main name of the catalog's model that a name or a hub's spelling means, else None.

    >>> known_model("meta-llama/Meta-Llama-3-8B-Instruct"), known_model("deepseek-ai/DeepSeek-V3")
    ('llama-3-8b', 'deepseek-v3')
    """
    own = cut(name)[0].strip().rsplit("/", 1)[-1]
    bare = re.sub(r"^meta[-_\s]", "", own, flags=re.IGNORECASE)
    tried = [name, own, bare]
    while (shorter := _OF_HUBS.sub("", tried[-1])) != tried[-1]:
        tried.append(shorter)
    return next((found for each in tried if (found := known_name("models", each))), None)


@functools.lru_cache(maxsize=4096)
def identify(name: str) -> tuple[str, str]:
    """Canonical id of a model and how its name says that it is tuned: "none", "sft" or "lora".

    A name that the catalog does not have keeps its own spelling, folded.

    >>> identify("Llama3-70B-SFT"), identify("meta-llama/Llama-2-7b-hf")
    (('llama-3-70b', 'sft'), ('llama-2-7b', 'none'))
    """
    ending = _TUNED.search(name.strip())
    base = name.strip()[: ending.start()] if ending else name
    return known_model(base) or canonical("models", base), ending[1].lower() if ending else "none"


def check(name_or_path: str) -> None:
    """Refuse what is neither a model's name nor a file.

    Raises:
      InputError: with the nearest names.
    """
    if config_of(name_or_path) is None and known_model(name_or_path) is None:
        raise InputError(
            unknown(
                "models", name_or_path, "; the path of a Hugging Face config.json is accepted too"
            )
        )


def config_of(name_or_path: str) -> Path | None:
    """The `config.json` that a text means; None for a name of the catalog, and without a file."""
    return None if known_name("models", name_or_path) else config_path(name_or_path)


def config_path(name_or_path: str) -> Path | None:
    """The file that the argument means, when there is one or it looks like one; a folder stands for
    its `config.json`."""
    if not name_or_path:
        return None
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path / "config.json"
    return path if path.exists() or path.suffix == ".json" else None


def described(name: str) -> Entry | None:
    """All that is known of a model of the catalog that is not cut, as `models.described` has it;
    None for another."""
    main = known_model(name)
    if main is None or config_of(name) is not None or cut(name)[1] is not None:
        return None
    own = {n: x for n, x in table("models")[main].items() if n != "shape"}
    return {"name": main, "notes": [], **own, **table("counted")[main]}


def fields(entry: Entry) -> list[Entry]:
    """Sizes of one model (its layers' aside) and its published parameters, as rows for display."""
    origin = {"source": entry["source"], "date": entry["date"]}
    sizes = {name: size for name, size in entry["shape"].items() if name not in NOT_SIZES}
    sizes["published_parameters"] = entry["published_parameters"]
    return [
        {"field": name, "value": size, "unit": "count", **origin} for name, size in sizes.items()
    ]


NOT_SIZES = ("blocks", "order", "further")
"""What a shape says beside sizes of the model."""
