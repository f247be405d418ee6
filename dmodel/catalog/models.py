"""Transformers by name, or by the path of a Hugging Face `config.json`."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np

from dmodel.catalog import configs
from dmodel.catalog.loader import Entry, canonical, known_name, table, unknown
from dmodel.catalog.shapes import model_of, shape_of
from dmodel.counts import active_parameters, parameters
from dmodel.errors import InputError
from dmodel.records import Model

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


def shortened(model: Model, layers: float | None) -> Model:
    """A model of so many layers, its kinds in the shares that they had; None = as it is."""
    if layers is None or layers == float(model.n_layers):
        return model
    return model.replace(n_layers=np.float64(layers), order=())


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


def _config_path(name_or_path: str) -> Path | None:
    """The file that the argument means, when there is one or it looks like one; a folder stands for
    its `config.json`."""
    if not name_or_path:
        return None
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path / "config.json"
    return path if path.exists() or path.suffix == ".json" else None


def reading(name_or_path: str, seq_len: float | None = None) -> configs.Reading | None:
    """What a `config.json` says, with what was taken for granted; None for a name of the catalog,
    and where there is no file.

    Raises:
      InputError: a file that cannot be used (with the reason).
    """
    path = None if known_name("models", name_or_path) else _config_path(name_or_path)
    return None if path is None else configs.read(path, seq_len)


def from_file(name_or_path: str, seq_len: float | None = None) -> Model | None:
    """The model of a `config.json`, as `reading`."""
    found = reading(name_or_path, seq_len)
    return None if found is None else found.model


def transformer(name_or_path: str, seq_len: float | None = None) -> Model:
    """Build the transformer of a catalog name or of a Hugging Face `config.json`.

    Args:
      name_or_path: a name or alias, case, spaces and hyphens ignored ("llama-3-70b", "Llama 3 70B",
        "llama3-70b"), the path of a `config.json` or of the folder that holds it, or a hub's
        spelling ("meta-llama/Meta-Llama-3-8B"). In this order.
      seq_len: sequence length [token]; by default the length the model was (first) trained at, or
        the file's longest.

    Raises:
      InputError: unknown name (with the nearest ones), or a file that cannot be used (with the
        reason).

    >>> float(transformer("Llama 3 70B").mixers[0].n_kv_heads)
    8.0
    """
    text = str(name_or_path)
    if (found := from_file(text, seq_len)) is not None:
        return found
    main = known_model(text)
    if main is None:
        raise InputError(
            unknown("models", text, "; the path of a Hugging Face config.json is accepted too")
        )
    return shortened(model_of(table("models")[main]["shape"], seq_len), cut(text)[1])


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


def described(name_or_path: str) -> Entry:
    """All that is known of a model of the catalog, or of a `config.json`, as plain data:
    parameters, sizes, blocks (layers, mixer and feed-forward part of each kind), notes, source.

    Raises:
      InputError: unknown name, or a file that cannot be used.
    """
    found = reading(name_or_path)
    if found is not None:
        own = {"name": name_or_path, "aliases": [], "about": "", "source": name_or_path, "date": ""}
        return own | _counted(found.model) | {"notes": list(found.notes)}
    model = transformer(name_or_path)
    main = str(known_model(name_or_path))
    entry = table("models")[main]
    own = {"name": main, "notes": [], **{n: x for n, x in entry.items() if n != "shape"}}
    return own | _counted(model)


def _counted(model: Model) -> Entry:
    """Parameters, sizes and blocks of a model."""
    shape = shape_of(model)
    return {
        "parameters": round(float(parameters(model))),
        "active_parameters": round(float(active_parameters(model))),
        "sizes": {n: x for n, x in shape.items() if n not in NOT_SIZES},
        "blocks": shape["blocks"],
        "order": shape.get("order", ""),
        "further": shape.get("further", [len(shape["blocks"]) - 1]),
    }
