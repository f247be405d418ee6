"""The catalog and the rules' tables as one document of plain data: what the page's interpreter
reads."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

from dmodel.asked import OF_LAYOUT as OPEN
from dmodel.blocks import ALL, KINDS
from dmodel.catalog import systems
from dmodel.catalog.chips import USUAL, maker
from dmodel.catalog.configs import families
from dmodel.catalog.configs.layers import DEEPEST, LARGEST, MAY_BE_BELOW, MAY_BE_ZERO
from dmodel.catalog.facts import CONDITIONS, HEADS, Fact, Rule
from dmodel.catalog.loader import table
from dmodel.catalog.quantities import QUANTITIES
from dmodel.catalog.stack import File, files
from dmodel.counted import FAR, NEAR
from dmodel.deciding import BYTES
from dmodel.deciding import LEAVES as DECIDED
from dmodel.described import FIRST
from dmodel.design import Choices
from dmodel.design.judge import DIGITS
from dmodel.design.rows import PLAINNESS
from dmodel.footprint import RISK
from dmodel.named_shape import FROM_MODEL
from dmodel.recomputation import MODULES
from dmodel.records import LEAVES, MIXED, NEEDS, OF_MODEL, RULES, Model
from dmodel.resolve import NEUTRAL, OPERAND_BYTES, OVERRIDDEN
from dmodel.searching import AGAIN
from dmodel.shape import OF_PARTS
from dmodel.units import HOUR
from dmodel.varying import INPUTS, MEANT, OF_LAYOUT

Document = dict[str, Any]

IN_CHIP = {
    "exponentials_per_s": "exponentials_per_s",
    "hbm_bytes": "hbm_bytes",
    "hbm_bytes_per_s": "hbm_bytes_per_s",
    "kernel_latency": "kernel_latency_s",
    "idle_power": "idle_watts",
    "peak_power": "peak_watts",
    "price": "price_per_s",
}
"""Number of a chip in its file → leaf of the record."""


def document() -> Document:
    """Everything by name; infinite numbers as the text "inf"."""
    return {
        "chips": {name: _chip(name, entry) for name, entry in table("chips").items()},
        "systems": {name: _system(entry) for name, entry in table("systems").items()},
        "models": {
            name: {"aliases": entry["aliases"], "shape": entry["shape"]}
            for name, entry in table("models").items()
        },
        "hosts": {name: _host(entry) for name, entry in table("hosts").items()},
        "stacks": {name: _stack(file) for name, file in files().items()},
        "kinds": {name: _kind(kind) for name, kind in KINDS.items()},
        "sizes": {name: _default(Model, name) for name in OF_MODEL},
        "conditions": CONDITIONS,
        "heads": list(HEADS),
        "first": sorted(FIRST),
        "neutral": NEUTRAL | dict.fromkeys(MIXED, 0.0),
        "leaves": DECIDED,
        "homes": {n: home for n, home in LEAVES.items() if n not in ("schedule", "placement")}
        | dict.fromkeys(MIXED, "layout.mix"),
        "overridden": sorted(OVERRIDDEN),
        "operands": OPERAND_BYTES,
        "usual": list(USUAL),
        "bytes": list(BYTES),
        "modules": MODULES,
        "ofParts": list(OF_PARTS),
        "fromModel": list(FROM_MODEL),
        "quantities": {n: {"part": q.part, "leaf": q.leaf} for n, q in QUANTITIES.items()},
        "constants": {"far": FAR, "near": NEAR, "all": ALL},
        "needs": NEEDS,
        "schedules": {name: rules._asdict() for name, rules in RULES.items()},
        "mixed": MIXED,
        "search": _search(),
        "configs": _configs(),
    }


def _configs() -> Document:
    """The table by which configurations are read, as it is written."""
    return {
        **families.document(),
        "plain": families.PLAIN,
        "largest": float(LARGEST),
        "deepest": float(DEEPEST),
        "free": list(MAY_BE_BELOW),
        "own": list(MAY_BE_ZERO),
    }


def _search() -> Document:
    """What a search over layouts varies, and what facts may ask of a layout."""
    usual = Choices()
    return {
        "zero": list(usual.zero),
        "recompute": list(usual.recompute or ()),
        "schedules": list(usual.schedules),
        "degrees": list(usual.degrees),
        "uneven": usual.uneven,
        "sp": list(usual.sp),
        "risk": RISK,
        "deviations": NormalDist().inv_cdf(RISK),
        "digits": DIGITS,
        "plainness": list(PLAINNESS),
        "open": sorted(OPEN),
        "neutral": list(AGAIN),
        "asked": list(OF_LAYOUT),
        "inputs": {rule: list(names) for rule, names in INPUTS.items()},
        "meant": list(MEANT),
    }


def _chip(name: str, entry: Document) -> Document:
    numbers = {leaf: float(entry[name]["value"]) for name, leaf in IN_CHIP.items()}
    numbers["price_per_s"] /= HOUR
    own = {name: entry[name] for name in ("system", "like") if name in entry}
    return {
        "aliases": entry["aliases"],
        "generation": entry.get("generation", ""),
        "maker": maker(name),
        "rates": {name: float(rate["value"]) for name, rate in entry["flops_per_s"].items()},
        "numbers": numbers,
        **own,
    }


def _host(entry: Document) -> Document:
    return {name: float(entry[name]["value"]) for name in ("link", "memory", "devices")}


def _system(entry: Document) -> Document:
    return {
        "aliases": entry["aliases"],
        "chip": entry["chip"],
        "names": [level["name"] for level in entry["levels"]],
        "levels": [_level(level) for level in entry["levels"]],
    }


def _level(level: Document) -> Document:
    """Numbers of a level by the leaves of the record; without an end, the text "inf"."""
    found = {_leaf(name): level[name]["value"] for name in systems.NUMBERS}
    return found | {"size": "inf" if found["size"] is None else found["size"]}


def _leaf(name: str) -> str:
    return "latency_s" if name == "latency" else name


def _kind(kind: Any) -> Document:
    fields = {name: _default(kind, name) for name in kind.__dataclass_fields__}
    marks = {name.lower(): list(getattr(kind, name)) for name in ("COUNTED", "SPLIT", "COPIED")}
    return {**marks, "fields": fields}


def _default(record: Any, name: str) -> float | None:
    default = record.__dataclass_fields__[name].default
    return float(default) if isinstance(default, int | float) else None


def _stack(file: File) -> Document:
    return {
        "id": file.id,
        "about": file.about,
        "lineage": file.lineage,
        "emits": file.emits,
        "extends": list(file.extends),
        "members": list(file.members),
        "aliases": list(file.aliases),
        "runs": dict(file.runs),
        "fact": [_fact(fact) for fact in file.facts],
    }


def _fact(fact: Fact) -> Document:
    """A fact as its file has it, with what it says in words."""
    return {
        "set": {name: _value(value) for name, value in fact.sets.items()},
        "means": {name: _value(value) for name, value in fact.means.items()},
        "when": dict(fact.when),
        "source": fact.source,
        "date": fact.date,
        "says": fact.text,
    }


def _value(value: Any) -> Any:
    return {"rule": value.name, **value.arguments} if isinstance(value, Rule) else value
