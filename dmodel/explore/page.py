"""The page: one file with the model's programs, the catalog and a profile, for any browser."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from concurrent.futures import Executor
from importlib import resources
from pathlib import Path
from typing import Any

from dmodel import entries
from dmodel.catalog.models import transformer
from dmodel.coefficients import SPECS
from dmodel.explore import limits
from dmodel.explore.data import document
from dmodel.explore.folded import beside, closest, folded
from dmodel.explore.intervals import intervals, packed
from dmodel.explore.structures import offered, programs
from dmodel.footprint import LEAST, SPREAD
from dmodel.profiles import Profile
from dmodel.profiles.record import VARIANTS

SLIDERS = {
    "peak": "Peak rate",
    "bandwidth.memory": "Memory bandwidth",
    "bandwidth.intra": "Inner bandwidth",
    "bandwidth.inter": "Outer bandwidth",
}
"""Numbers of the machine that the page changes by a factor, and their titles."""

Document = dict[str, Any]


def page(
    profile: Profile,
    tell: Callable[[str], None] = lambda _: None,
    published: Document | None = None,
    executor: Executor | None = None,
) -> str:
    """The text of the page.

    Args:
      profile: whose coefficients it has. tell: takes a line for each structure that is written.
      published: rows that others measured (`calibration.traces.neighbours.compact`). executor:
        writes programs that are not kept; None = this process, one by one.
    """
    scripts = {name: _script(name, made) for name, made in _all_programs(tell, executor).items()}
    for kind, one in limits.programs().items():
        scripts[f"limits {kind}"] = _script(f"limits {kind}", {"evaluated": one._asdict()})
    own = profile_document(profile)
    given = {
        "data": document(),
        "profile": own,
        "packed": _packed(scripts),
        "published": packed(json.dumps(published, separators=(",", ":")).encode()),
        "limits": limits.document(),
        "id": identity(own),
    }
    return written(given, f"{profile.name} ({given['id']})")


def missing() -> list[str]:
    """Structures whose programs are not kept: each takes seconds to write."""
    return [name for name in offered() if _kept(name)[2] is None]


def _kept(name: str) -> tuple[Path | None, str | None, entries.Entry | None]:
    """Where programs of a structure are kept, under which key, and what is kept there."""
    place, source = entries.folder("explorer"), entries.sources("dmodel")
    key = entries.key_of([source, name]) if source else None
    return place, key, entries.read(place, key) if place and key else None


def identity(profile: Document) -> str:
    """Eight digits that stand for the numbers of a profile."""
    return hashlib.sha256(json.dumps(profile, sort_keys=True).encode()).hexdigest()[:8]


def _all_programs(tell: Callable[[str], None], executor: Executor | None) -> dict[str, Document]:
    """Programs of all structures; those that are not kept by an executor."""
    wanted, found = missing(), {}
    each = executor.map(_programs, wanted) if executor else map(_programs, wanted)
    for i, name in enumerate(wanted, 1):
        tell(f"writing the programs of {name} ({i} of {len(wanted)})")
        found[name] = next(each)
    return {name: found.get(name) or _programs(name) for name in offered()}


def _programs(name: str) -> Document:
    """Programs of a structure as plain data, kept for the next time."""
    place, key, known = _kept(name)
    if known is not None:
        return json.loads(known.content)
    of = offered()[name]
    both = programs(transformer(of.model), levels=of.levels)
    made = {key: one._asdict() for key, one in both._asdict().items()}
    if place and key:
        entries.write(place, key, entries.Entry({}, json.dumps(made).encode()))
    return made


def _script(name: str, made: Document) -> str:
    """A script that sets the programs of a structure, folded."""
    pairs = ",".join(f"{json.dumps(key)}:{_object(one)}" for key, one in made.items())
    script = f"dmodelPrograms[{json.dumps(name)}]={{{pairs}}};"
    return folded(script)


def _packed(scripts: dict[str, str]) -> dict[str, list[str]]:
    """Compressed scripts by name, each beside an earlier one: that one's name, and the text."""
    found, names = {}, list(scripts)
    for i, name in enumerate(names):
        base = closest(name, names[:i])
        text = beside(scripts[name], scripts[base]) if base else scripts[name]
        found[name] = [base, packed(text.encode())]
    return found


def _object(program: Document) -> str:
    """A program as an object of JavaScript."""
    words = {key: value for key, value in program.items() if key != "text"}
    return f'{json.dumps(words, separators=(",", ":"))[:-1]},"run":{program["text"]}}}'


def profile_document(profile: Profile) -> Document:
    """A profile's coefficients and footprints, as the page has them."""
    offsets = {
        grouping: {name: _numbers(values) for name, values in of.items()}
        for grouping, of in profile.offsets.items()
    }
    footprints = {name: _fitted(one) for name, one in profile.footprints.items()}
    return {
        "name": profile.name,
        "names": list(SPECS),
        "shares": [spec.bound == "share" for spec in SPECS.values()],
        "center": _numbers(profile.center),
        "offsets": offsets,
        "footprints": footprints,
        "least": {"footprint": _plain(LEAST), "spread": SPREAD},
        "variants": VARIANTS,
        "intervals": intervals(profile),
    }


def _numbers(values: Any) -> list[float]:
    return [float(x) for x in values]


def _fitted(one: Any) -> Document:
    return {"footprint": _plain(one.footprint), "spread": float(one.spread)}


def _plain(record: Any) -> dict[str, float]:
    return {name: float(value) for name, value in vars(record).items()}


def _file(folder: str, name: str) -> str:
    place = resources.files("dmodel.explore") / folder / name
    return place.read_text(encoding="utf-8")


def _sum(text: str) -> str:
    """A text as a content security policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _slider(name: str, title: str) -> str:
    return (
        f'<div class="slider"><label for="{name}">{title}</label>'
        f'<input id="{name}" type="range" min="-3" max="3" step="0.05">'
        f'<output id="{name}-text" for="{name}"></output></div>'
    )


def written(given: Document, profile: str) -> str:
    """The page around its data; only its own style, script and programs may run."""
    style, script = _file("source", "page.css"), _file("bundle", "page.js").strip()
    policy = f"default-src 'none'; script-src {_sum(script)} blob:; style-src {_sum(style)}; "
    policy += "worker-src blob:"
    parts = {
        "policy": policy,
        "style": style,
        "profile": profile,
        "sliders": "\n".join(_slider(*each) for each in SLIDERS.items()),
        "given": json.dumps(given, separators=(",", ":")).replace("<", "\\u003c"),
        "script": script,
    }
    head, *rest = _file("source", "page.html").split("{{")
    return head + "".join(parts[name] + text for name, text in (x.split("}}", 1) for x in rest))
