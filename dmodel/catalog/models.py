"""Transformers by name, or by the path of a Hugging Face `config.json`.

`python -m dmodel.catalog.models` writes what is counted of the catalog's models, so that it is at
hand without the records.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dmodel.catalog import configs, model_names
from dmodel.catalog.loader import VERSION, Entry, table
from dmodel.catalog.model_names import NOT_SIZES, check, config_of, cut, known_model
from dmodel.catalog.shapes import model_of, shape_of
from dmodel.counts import active_parameters, parameters
from dmodel.records import Model

TABLE = Path(__file__).parent / "data" / "counted.json"


def shortened(model: Model, layers: float | None) -> Model:
    """A model of so many layers, its kinds in the shares that they had; None = as it is."""
    if layers is None or layers == float(model.n_layers):
        return model
    return model.replace(n_layers=np.float64(layers), order=())


def reading(name_or_path: str, seq_len: float | None = None) -> configs.Reading | None:
    """What a `config.json` says, with what was taken for granted; None for a name of the catalog,
    and where there is no file.

    Raises:
      InputError: a file that cannot be used (with the reason).
    """
    path = config_of(name_or_path)
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
    check(text)
    main = str(known_model(text))
    return shortened(model_of(table("models")[main]["shape"], seq_len), cut(text)[1])


def described(name_or_path: str) -> Entry:
    """All that is known of a model of the catalog, or of a `config.json`, as plain data:
    parameters, sizes, blocks (layers, mixer and feed-forward part of each kind), notes, source.

    Raises:
      InputError: unknown name, or a file that cannot be used.
    """
    known = model_names.described(name_or_path)
    if known is not None:
        return known
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


def counted() -> dict[str, Entry]:
    """Parameters, sizes and blocks of every model of the catalog."""
    return {name: _counted(transformer(name)) for name in table("models")}


def main() -> None:
    """Write the table."""
    text = json.dumps({"version": VERSION, "entries": counted()}, indent=1, ensure_ascii=False)
    TABLE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
