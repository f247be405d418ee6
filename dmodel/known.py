"""What settings there are, from the records and rules that have them.

`python -m dmodel.known` writes the table that `dmodel.settings` reads, so that names and meanings
are at hand without the records.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

from dmodel.blocks import KINDS
from dmodel.catalog.loader import VERSION
from dmodel.catalog.quantities import QUANTITIES, unit_of
from dmodel.columns import BY_NAME
from dmodel.layouts import STAGES
from dmodel.question import TUNINGS
from dmodel.recomputation import MODULES, RESULTS, SELECTIVE
from dmodel.records import LEAVES, OF_MODEL, SCHEDULES, Layout, Model, Precision, Software
from dmodel.settings import Setting
from dmodel.shape import OF_PARTS

TABLE = Path(__file__).parent / "catalog" / "data" / "settings.json"

WORDS: dict[str, Setting] = {
    "tuning": Setting(
        "word",
        "lora: the weights are frozen, adapters are trained; qlora: and held in 4 bits",
        TUNINGS,
    ),
    "adapters": Setting("words", "modules with a low-rank adapter"),
    "optimizer": Setting(
        "word",
        "of the update: bytes of its states; adamw where nothing is said",
        ("adamw", "adamw-8bit", "adafactor", "lion", "muon", "sgd"),
    ),
    "packed_window": Setting("number", "window that packed documents cost [token]; 0 = whole"),
    "dispatcher": Setting(
        "word", "how tokens reach their experts", ("alltoall", "deepep", "hybridep")
    ),
    "attention_kernel": Setting(
        "word", "generation of fused attention", ("newest", "flash-2", "flash-triton")
    ),
    "stages": Setting("word", "how layers lie on pipeline stages", tuple(STAGES)),
    "selective": Setting("word", "what selective recomputation means", SELECTIVE),
    "recompute_keeps": Setting(
        "words", "results that a layer keeps; it does the rest again", RESULTS
    ),
    "recompute_policy": Setting("word", "name of a policy of the stack, which says what is kept"),
    "recompute_modules": Setting("words", "modules that are done again", tuple(MODULES)),
    "narrow_activations": Setting("number", "1 = what MLPs keep is held in 8 bits; 0 = off"),
    "offload": Setting(
        "number", "share of what layers keep that waits in host memory [1]; 0 = off"
    ),
    "offload_inputs": Setting(
        "number", "share of layers' inputs that waits in host memory [1]; 0 = off"
    ),
    "offload_results": Setting(
        "number", "share of all else that waits in host memory [1]; 0 = off"
    ),
    "system": Setting("word", "system of the catalog, or the path of a TOML file"),
    "schedule": Setting("word", "of the pipeline", SCHEDULES),
    "placement": Setting("words", "order of the groups on the network, innermost first"),
}
"""Settings that are no leaf of a record."""

OF_MACHINE: dict[str, Setting] = {
    name: Setting("quantity", f"{one.meaning} [{unit_of(name)}]")
    for name, one in QUANTITIES.items()
}
"""Numbers of the machine, in place of those of its chip and its network."""

MODEL_LEAVES = tuple(n for n in (*OF_MODEL, *OF_PARTS) if n not in BY_NAME)
PLAN_LEAVES = tuple(n for n in LEAVES if n not in (*BY_NAME, "zero", "flash"))


def leaf_meanings() -> dict[str, str]:
    """Meaning of every leaf, from its line in the docstring of its record."""
    records = (Model, *KINDS.values(), Layout, Precision, Software)
    text = "\n".join(inspect.getdoc(record) or "" for record in records)
    lines = re.findall(r"^  (\w+(?:, \w+)*): (.+(?:\n    .+)*)", text, re.MULTILINE)
    found: dict[str, str] = {}
    for names, meaning in lines:
        for name in names.split(", "):
            found.setdefault(name, " ".join(meaning.split()))
    return found


def entries() -> dict[str, dict[str, Any]]:
    """All settings by name: kind of value, meaning, the only words."""
    meanings = leaf_meanings()
    names = dict.fromkeys((*WORDS, *PLAN_LEAVES, *MODEL_LEAVES, *OF_MACHINE))
    found = {
        n: (WORDS | OF_MACHINE).get(n) or Setting("number", meanings.get(n, "")) for n in names
    }
    return {name: one._asdict() | {"allowed": list(one.allowed)} for name, one in found.items()}


def main() -> None:
    """Write the table."""
    table = {"version": VERSION, "entries": entries()}
    text = json.dumps(table, indent=1, ensure_ascii=False)
    TABLE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
