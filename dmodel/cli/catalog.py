"""`dmodel catalog`: what is known by name, every number with its source and date."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dmodel.cli.options import Json
from dmodel.cli.output import Document, deliver, digits, show_lines, show_table
from dmodel.types import InputError

KINDS = ("chips", "systems", "models", "profiles")

Kind = Annotated[
    str | None,
    typer.Argument(
        metavar="[chips|systems|models|profiles]", help="What to list; default: all names."
    ),
]
Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Show every number of this entry.")
]


def command(kind: Kind = None, name: Name = None, json: Json = False) -> None:
    """List chips, systems, models and profiles; with a NAME, every number with its source and
    date."""
    if kind is None:
        deliver({each: _names(each) for each in KINDS}, json, _show_all)
    elif kind not in KINDS:
        raise InputError(
            f"unknown kind of catalog entry {kind!r}; expected one of: {', '.join(KINDS)}"
        )
    elif name is None:
        deliver({kind: _entries(kind)}, json, _show_kind)
    else:
        deliver({"kind": kind, **_one(kind, name)}, json, _show_one)


def _names(kind: str) -> list[str]:
    from dmodel import catalog, profiles

    return profiles.names() if kind == "profiles" else catalog.names(kind)


def _entries(kind: str) -> list[Document]:
    from dmodel import catalog

    return (
        [_profile(name) for name in _names(kind)] if kind == "profiles" else catalog.entries(kind)
    )


def _one(kind: str, name: str) -> Document:
    from dmodel import catalog
    from dmodel.catalog.loader import resolve

    if kind == "profiles":
        return _profile(name)
    main = resolve(kind, name)
    return next(entry for entry in catalog.entries(kind) if entry["name"] == main)


def _profile(name: str) -> Document:
    """A profile as an entry: its coefficients are the fields."""
    from dmodel import profiles

    profile = profiles.load(name)
    return {
        "name": profile.name,
        "aliases": [],
        "about": profile.description,
        "accelerators": list(profile.accelerators),
        "stacks": list(profile.stacks),
        "rows": sum(int(d.get("rows", 0)) for d in profile.data),
        "data": [dict(d) for d in profile.data],
        "versions": dict(profile.versions),
        "fields": profile.describe(),
    }


def _show_all(document: Document) -> None:
    for kind, names in document.items():
        show_lines(f"{kind}: {', '.join(names)}")
    show_lines(
        "`dmodel catalog KIND` lists one kind, `dmodel catalog KIND NAME` shows every number "
        "with "
        "its source and date."
    )


def _show_kind(document: Document) -> None:
    [(kind, entries)] = document.items()
    if kind == "profiles":
        rows = [(e["name"], e["rows"], ", ".join(e["accelerators"]), e["about"]) for e in entries]
        show_table("profiles", ("name", "rows", "accelerators", "about"), rows, right="rows")
        return
    rows = [(e["name"], ", ".join(e["aliases"]), _headline(kind, e), e["about"]) for e in entries]
    show_table(kind, ("name", "also", _HEADLINES[kind], "about"), rows, right="none")


_HEADLINES = {"chips": "peak, memory", "systems": "chip", "models": "parameters"}


def _headline(kind: str, entry: Document) -> str:
    """The one figure by which people know an entry."""
    fields = {f["field"]: f["value"] for f in entry["fields"]}
    if kind == "systems":
        return entry["chip"]
    if kind == "models":
        return f"{digits(fields['published_parameters'] / 1e9)} B"
    rate = fields.get("flops_per_s/bf16", fields.get("flops_per_s/fp16", 0.0))
    return f"{rate / 1e12:.0f} TFLOP/s, {fields['hbm_bytes'] / 2**30:.0f} GiB"


def _show_one(document: Document) -> None:
    if document["kind"] == "profiles":
        show_lines(
            f"{document['name']}: {document['about']}",
            f"accelerators: {', '.join(document['accelerators']) or 'none'}",
        )
        rows = [
            (
                f["name"],
                f"{f['value']:.4g}",
                f["unit"],
                f"{f['standard_error']:.2g}",
                f"{f['prior_value']:g}",
                f["meaning"],
            )
            for f in document["fields"]
        ]
        show_table(
            "coefficients",
            ("name", "value", "unit", "std. error (unconstrained)", "prior", "meaning"),
            rows,
            right="value|prior",
        )
        return
    also = f" (also {', '.join(document['aliases'])})" if document["aliases"] else ""
    show_lines(f"{document['name']}{also}: {document['about'] or document['kind'][:-1]}")
    rows = [
        (f["field"], _value(f["value"]), f["unit"], f["date"], f["source"])
        for f in document["fields"]
    ]
    show_table("", ("number", "value", "unit", "date", "source"), rows, right="value")


def _value(value: Any) -> str:
    return "unbounded" if value is None else f"{value:,.6g}" if abs(value) < 1e6 else f"{value:.6g}"
