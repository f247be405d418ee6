"""The shipped profiles by name: what their files say in words. No array is read."""

from __future__ import annotations

import difflib
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from dmodel.errors import InputError
from dmodel.profiles import container

EVIDENCE = "held-out"
"""Shipped to be judged, not to be used: fitted without the 20 % of the published rows that
`evaluate` then shows it on."""

PRIOR, FITTED_TO_NOTHING = "prior", "default coefficients, fitted to nothing"
"""Name and description of the profile that no file holds."""

PACKED = ".npz"
"""How the name of a packed file ends."""


class Known(NamedTuple):
    """What a profile was fitted on."""

    accelerators: tuple[str, ...]
    stacks: tuple[str, ...]


@lru_cache
def files() -> dict[str, Any]:
    """Files of the shipped profiles by name."""
    folder = resources.files("dmodel.profiles") / "data"
    return {
        f.name.removesuffix(PACKED): f
        for f in sorted(folder.iterdir(), key=lambda f: f.name)
        if f.name.endswith(PACKED)
    }


def names() -> list[str]:
    """Names of the shipped profiles, `prior` (fitted to nothing) among them."""
    return sorted([*files(), PRIOR])


def unknown(name: str) -> InputError:
    """The error about a name that is neither a shipped profile nor a file."""
    near = difflib.get_close_matches(name.lower(), names(), n=3, cutoff=0.4)
    hint = f"; did you mean {', '.join(near)}?" if near else "."
    return InputError(
        f"no profile named {name!r}, and no such file{hint} Shipped: {', '.join(names())}"
    )


def check(name: str) -> None:
    """Refuse what is neither a shipped profile nor a file."""
    if name not in names() and not Path(name).is_file():
        raise unknown(name)


@lru_cache
def _words(name: str) -> dict[str, Any]:
    return container.words_of(name, files()[name].read_bytes())


@lru_cache
def known(name: str) -> Known:
    """What a shipped profile was fitted on; its arrays stay on the disk."""
    words = _words(name)["document"]
    return Known(tuple(words["accelerators"]), tuple(words["stacks"]))


def of_view(about: str, base: str) -> str:
    """Description of a view of a fit.

    Args:
      base: description of the fit.
    """
    return f"{about}; a view of the pooled fit ({base})"


def line(name: str) -> dict[str, Any]:
    """A shipped profile in a line: name, rows, accelerators, about."""
    if name == PRIOR:
        return {"name": PRIOR, "rows": 0, "accelerators": [], "about": FITTED_TO_NOTHING}
    words = _words(name)
    view = words.get("view")
    whole = _words(view["of"])["document"] if view else words["document"]
    about = whole["description"]
    return {
        "name": name,
        "rows": sum(int(source.get("rows", 0)) for source in whole["data"]),
        "accelerators": list(known(name).accelerators),
        "about": of_view(view["about"], about) if view else about,
    }
