"""`dmodel catalog`: what is known by name, every number with its source and date."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dmodel.cli.compiled import ready
from dmodel.cli.options import Json
from dmodel.cli.output import Document, deliver, digits, show_file, show_lines, show_table
from dmodel.errors import InputError

KINDS = ("chips", "systems", "models", "stacks", "settings", "profiles")

Kind = Annotated[
    str | None,
    typer.Argument(
        metavar="[chips|systems|models|stacks|settings|profiles]",
        help="What to list; default: all names.",
    ),
]
Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="Entry to show in full; for models, also a config.json."),
]


Toml = Annotated[
    bool,
    typer.Option(
        "--toml",
        help="Print a chip or system as a template for --chip and --system.",
    ),
]


def command(kind: Kind = None, name: Name = None, toml: Toml = False, json: Json = False) -> None:
    """List chips, systems, models, stacks, settings and profiles. With a NAME, show every number or
    fact with its source and date."""
    if toml:
        _show_toml(kind, name, json)
    elif kind is None:
        deliver({each: _names(each) for each in KINDS}, json, _show_all)
    elif kind not in KINDS:
        raise InputError(
            f"unknown kind of catalog entry {kind!r}; expected one of: {', '.join(KINDS)}"
        )
    elif name is None:
        deliver({kind: _entries(kind, whole=json)}, json, _show_kind)
    else:
        deliver({"kind": kind, **_one(kind, name)}, json, _show_one)


def _show_toml(kind: str | None, name: str | None, json: bool) -> None:
    """Print an entry as a file.

    Raises:
      InputError: no chip nor system is named, or JSON is asked for as well.
    """
    from dmodel.catalog import toml_text

    texts = {"chips": toml_text.of_chip, "systems": toml_text.of_system}
    if kind not in texts or name is None or json:
        raise InputError(
            "--toml: expected `dmodel catalog chips NAME --toml` or `systems NAME`, without --json"
        )
    show_file(texts[kind](name))


def _names(kind: str) -> list[str]:
    from dmodel import catalog, profiles
    from dmodel.catalog.stack import names
    from dmodel.settings import KNOWN

    known = {"profiles": profiles.names, "stacks": names, "settings": lambda: list(KNOWN)}
    return known[kind]() if kind in known else catalog.names(kind)


def _entries(kind: str, whole: bool) -> list[Document]:
    """All entries of a kind; of profiles `whole`, or as much as a line shows."""
    from dmodel import catalog

    single = {
        "profiles": _profile if whole else _profile_line,
        "stacks": _stack_line,
        "settings": _setting,
    }
    if kind in single:
        return [single[kind](name) for name in _names(kind)]
    return catalog.entries(kind)


def _one(kind: str, name: str) -> Document:
    from dmodel import catalog
    from dmodel.catalog.loader import resolve

    single = {"profiles": _profile, "stacks": _stack, "settings": _setting, "models": _model}
    if kind in single:
        return single[kind](name)
    main = resolve(kind, name)
    return next(entry for entry in catalog.entries(kind) if entry["name"] == main)


def _model(name: str) -> Document:
    """A model, or what a configuration file says of one."""
    from dmodel.catalog.model_names import check, described

    check(name)
    return described(name) or _counted(name)


def _counted(name: str) -> Document:
    """A model of a file, or a cut one: its parameters are counted."""
    ready()
    from dmodel.catalog.models import described

    return described(name)


def _stack_line(name: str) -> Document:
    """A stack without its facts."""
    from dmodel.catalog.stack import stack

    found = stack(name)
    return {
        "name": found.id,
        "lineage": found.lineage,
        "emits": found.emits,
        "facts": len(found.facts),
        "about": found.about,
    }


def _stack(name: str) -> Document:
    """A stack, or a user's own file, with its facts in order of precedence.

    Raises:
      InputError: no file describes it; the nearest are named.
    """
    from dmodel.catalog.stack import stack, unknown

    found = stack(name)
    if not found.known:
        raise InputError(unknown(name, []))
    return {
        **_stack_line(name),
        "name": found.name,
        "runs": dict(found.runs),
        "facts": [_fact(each) for each in found.facts],
    }


def _fact(fact: Any) -> Document:
    from dmodel.catalog.facts import shown

    return {
        "says": fact.text,
        "set": {name: shown(value) for name, value in fact.sets.items()},
        "means": {name: shown(value) for name, value in fact.means.items()},
        "when": dict(fact.when),
        "source": fact.source,
        "date": fact.date,
        "evidence": fact.evidence,
    }


def _setting(name: str) -> Document:
    """A setting with its meaning.

    Raises:
      InputError: there is none of that name; the nearest are named.
    """
    from dmodel.settings import KNOWN, described, unknown

    if name not in KNOWN:
        raise InputError(unknown(name))
    return described(name)


def _profile_line(name: str) -> Document:
    """A profile without its coefficients."""
    from dmodel.profiles.shipped import line

    return line(name)


def _profile(name: str) -> Document:
    """A profile as an entry: its coefficients are the fields."""
    from dmodel import profiles
    from dmodel.profiles.shipped import check

    check(name)
    ready()
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
        _show_profiles(entries)
    elif kind in TABLES:
        rows = [tuple(str(e[name]) for name in TABLES[kind]) for e in entries]
        show_table(kind, TABLES[kind], rows, right="facts" if kind == "stacks" else "none")
    else:
        _show_entries(kind, entries)


def _show_profiles(entries: list[Document]) -> None:
    rows = [(e["name"], e["rows"], ", ".join(e["accelerators"]), e["about"]) for e in entries]
    show_table("profiles", ("name", "rows", "accelerators", "about"), rows, right="rows")


def _show_entries(kind: str, entries: list[Document]) -> None:
    """Table of chips, systems or models."""
    rows = [(e["name"], ", ".join(e["aliases"]), _headline(kind, e), e["about"]) for e in entries]
    show_table(kind, ("name", "also", _HEADLINES[kind], "about"), rows, right="none")


TABLES = {
    "stacks": ("name", "lineage", "emits", "facts", "about"),
    "settings": ("name", "kind_of_value", "allowed", "meaning"),
}
"""Columns of kinds whose entries are plain lines."""

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


def _show_stack(d: Document) -> None:
    """Facts of a stack, in order of precedence: the last that holds decides a name."""
    show_lines(f"{d['name']}: {d['about']}", "")
    for fact in d["facts"]:
        when = f"   when {_words(fact['when'])}" if fact["when"] else ""
        show_lines(
            f"* {fact['says']}",
            f"    {_words(fact['set'] | fact['means'])}{when}",
            f"    {fact['source']}, {fact['date']}",
            *([f"    {fact['evidence']}"] if fact["evidence"] else []),
        )


def _words(named: Document) -> str:
    shown = {n: " or ".join(map(str, v)) if isinstance(v, list) else v for n, v in named.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _show_one(document: Document) -> None:
    show = {
        "stacks": _show_stack,
        "settings": _show_setting,
        "profiles": _show_profile,
        "models": _show_model,
    }
    show.get(document["kind"], _show_numbers)(document)


def _show_setting(d: Document) -> None:
    show_lines(f"{d['name']} ({d['kind_of_value']}): {d['meaning']}")


def _show_profile(d: Document) -> None:
    """Coefficients of a profile."""
    show_lines(
        f"{d['name']}: {d['about']}",
        f"accelerators: {', '.join(d['accelerators']) or 'none'}",
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
        for f in d["fields"]
    ]
    show_table(
        "coefficients",
        ("name", "value", "unit", "std. error (unconstrained)", "prior", "meaning"),
        rows,
        right="value|prior",
    )


def _show_model(d: Document) -> None:
    """Parameters, sizes and blocks of a model."""
    also = f" (also {', '.join(d['aliases'])})" if d["aliases"] else ""
    total, active = d["parameters"], d["active_parameters"]
    per_token = "" if active == total else f"; a token uses {active:,} ({digits(active / 1e9)} B)"
    show_lines(
        f"{d['name']}{also}{': ' if d['about'] else ''}{d['about']}",
        f"parameters: {total:,} ({digits(total / 1e9)} B){per_token}",
        f"sizes: {', '.join(f'{name} {size:,}' for name, size in d['sizes'].items())}",
    )
    rows = [
        (str(k), f"{block['layers']:,}", _part(block.get("mixer")), _part(block.get("feed")))
        for k, block in enumerate(d["blocks"])
    ]
    show_table("", ("block", "layers", "mixer", "feed-forward part"), rows, right="block|layers")
    show_lines(
        *([f"block of each layer: {d['order']}"] if d["order"] else []),
        f"a head of further tokens: {', '.join(f'block {k}' for k in d['further'])}",
        *d["notes"],
        f"source: {d['source']}{', ' if d['date'] else ''}{d['date']}",
    )


def _part(part: Document | None) -> str:
    """Kind and sizes of a part."""
    if part is None:
        return "none"
    sizes = (f"{name} {size:,}" for name, size in part.items() if name != "kind")
    return f"{part['kind']}: {', '.join(sizes)}"


def _show_numbers(d: Document) -> None:
    """Every number of a chip or a system."""
    also = f" (also {', '.join(d['aliases'])})" if d["aliases"] else ""
    show_lines(f"{d['name']}{also}: {d['about'] or d['kind'][:-1]}")
    rows = [
        (f["field"], _value(f["value"]), f["unit"], f["date"], f["source"]) for f in d["fields"]
    ]
    show_table("", ("number", "value", "unit", "date", "source"), rows, right="value")
    compared = [f"compared {c['date']}: {c['what']}: {c['with']}" for c in d.get("compared", ())]
    show_lines(*compared, *(f"in doubt: {text}" for text in d.get("doubts", ())))


def _value(value: Any) -> str:
    return "unbounded" if value is None else f"{value:,.6g}" if abs(value) < 1e6 else f"{value:.6g}"
