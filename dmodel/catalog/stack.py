"""Stacks by name, or by the path of a user's own file: families of training software."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from dmodel.catalog.facts import NEWEST, Fact, fact, release_of
from dmodel.catalog.loader import fold, nearest
from dmodel.errors import InputError

FOLDER = "stacks"
EVERY, AFTER = "_every", "_after"
"""Files whose facts hold for every stack: before its own, and as consequences of them."""

KEYS = ("about", "lineage", "emits", "extends", "members", "aliases", "runs", "fact")


RUNS = ("zero", "schedules", "degrees", "uneven")
"""What a file may say of searches: ZeRO stages, schedules of pipelines, degrees beside dp, and
whether stages may hold different numbers of layers."""


class Stack(NamedTuple):
    """One family of software, or an unknown one.

    Attributes:
      id: canonical name of the family. variant: what follows "/" in the name asked for.
      lineage: code base that it grew from, whose fits it shares. emits: format of launch settings.
      runs: what a search may propose for it. facts: what it does, in order of precedence.
      known: whether a file describes it. about: one line.
      basis: family that conditions of facts see: of a user's file the one that it extends.
      own: facts of its own file. path: of a user's file, "" of a shipped one.
    """

    id: str
    variant: str
    lineage: str
    emits: str
    runs: Mapping[str, Any]
    facts: tuple[Fact, ...]
    known: bool
    about: str
    basis: str
    own: tuple[Fact, ...] = ()
    path: str = ""

    @property
    def name(self) -> str:
        """Family and variant: "megatron-bridge/26.06"."""
        return f"{self.id}/{self.variant}" if self.variant else self.id

    @property
    def release(self) -> tuple[int, ...] | None:
        """The variant as a release; the newest without a variant, None where it is no release."""
        return release_of(self.variant) if self.variant else NEWEST

    def asks(self, name: str) -> set[str]:
        """Words of a setting that conditions of its facts ask for, such as its policies of
        recomputation."""
        asked = [fact.when.get(name, ()) for fact in self.facts]
        return {word for each in asked for word in ([each] if isinstance(each, str) else each)}


class File(NamedTuple):
    """One file of facts as it is read."""

    id: str
    about: str
    lineage: str
    emits: str
    extends: tuple[str, ...]
    members: tuple[str, ...]
    aliases: tuple[str, ...]
    runs: Mapping[str, Any]
    facts: tuple[Fact, ...]
    path: str = ""


def read(text: str, name: str, where: str, path: str = "") -> File:
    """A file of facts.

    Args:
      path: of a user's file, beside which those lie that it extends.
    Raises:
      InputError: it is no TOML, or has keys that such files do not have.
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: not readable as TOML ({error})") from None
    _refuse_unknown(found, where)
    entries = found.get("fact", [])
    return File(
        id=name,
        about=found.get("about", ""),
        lineage=found.get("lineage", ""),
        emits=found.get("emits", ""),
        extends=tuple(found.get("extends", ())),
        members=tuple(found.get("members", ())),
        aliases=tuple(found.get("aliases", ())),
        runs=found.get("runs", {}),
        facts=tuple(fact(e, f"{where}, fact {i + 1}") for i, e in enumerate(entries)),
        path=path,
    )


def _refuse_unknown(found: Mapping[str, Any], where: str) -> None:
    """Refuse keys that files of facts do not have."""
    for keys, known in ((found, KEYS), (found.get("runs", {}), RUNS)):
        if unknown := [key for key in keys if key not in known]:
            close = nearest(unknown[0], list(known), 1)
            hint = f"; nearest: {close[0]}" if close else ""
            raise InputError(
                f"{where}: unknown key {unknown[0]!r}{hint}. Keys are {', '.join(known)}"
            )


@functools.cache
def _texts() -> dict[str, str]:
    """Texts of the shipped files by name."""
    folder = resources.files("dmodel.catalog").joinpath(FOLDER)
    paths = sorted((p for p in folder.iterdir() if p.name.endswith(".toml")), key=lambda p: p.name)
    return {p.name.removesuffix(".toml"): p.read_text(encoding="utf-8") for p in paths}


@functools.cache
def files() -> dict[str, File]:
    """The shipped files by name."""
    return {
        name: read(text, name, f"catalog, {FOLDER}/{name}.toml") for name, text in _texts().items()
    }


def names() -> list[str]:
    """Families that the catalog describes, members of each file among them. Facts are not read."""
    heads = {name: text.partition("\n[[fact]]")[0] for name, text in _texts().items()}
    found = [
        (name, *tomllib.loads(head).get("members", ()))
        for name, head in heads.items()
        if not name.startswith("_")
    ]
    return [name for group in found for name in group if not name.endswith("*")]


@functools.cache
def _spellings() -> dict[str, tuple[str, str]]:
    """Folded spelling → (family, file); one that two files claim is an error of the data."""
    found: dict[str, tuple[str, str]] = {}
    for file in files().values():
        for spelling, family in _own_spellings(file):
            if found.setdefault(fold(spelling), (family, file.id)) != (family, file.id):
                raise InputError(f"catalog, stacks: {spelling!r} names two stacks")
    return found


def _own_spellings(file: File) -> list[tuple[str, str]]:
    """(spelling, family) of one file."""
    own = [] if file.id.startswith("_") else [(file.id, file.id)]
    own += [(member, member) for member in file.members if not member.endswith("*")]
    return own + [(alias, file.id) for alias in file.aliases]


@functools.cache
def _patterns() -> tuple[tuple[str, str], ...]:
    """(beginning of a family's name, file), longest first."""
    found = [(m[:-1], f.id) for f in files().values() for m in f.members if m.endswith("*")]
    return tuple(sorted(found, key=lambda pair: -len(pair[0])))


def known_family(name: str) -> tuple[str, str] | None:
    """(family, file) that a name without its variant means; None where no file has it."""
    if exact := _spellings().get(fold(name)):
        return exact
    low = name.strip().lower()
    return next(((low, file) for start, file in _patterns() if low.startswith(start)), None)


def _chain(file: File, behind: tuple[str, ...] = ()) -> tuple[Fact, ...]:
    """Facts of a file behind those of what it extends.

    Raises:
      InputError: it extends what there is not, or itself by way of others.
    """
    if file.path and file.path in behind:
        raise InputError(f"{file.path}: extends itself")
    seen = (*behind, file.path)
    inherited = [each for name in file.extends for each in _chain(_parent(file, name), seen)]
    return (*inherited, *file.facts)


def _parent(file: File, name: str) -> File:
    """The file that another extends: a shipped one, a family by any spelling, or one beside it."""
    if name in files():
        return files()[name]
    if file.path and is_file(name):
        return _read_file((Path(file.path).parent / name).resolve())
    if found := known_family(name.partition("/")[0]):
        return files()[found[1]]
    raise InputError(
        f"stack {file.path or file.id}: extends {name!r}, which is no stack; {_hint(name)}"
    )


def _hint(name: str) -> str:
    """The nearest families, or all where none is near."""
    close = nearest(name, names())
    return f"nearest: {', '.join(close)}" if close else f"there are: {', '.join(names())}"


def _basis(file: File) -> tuple[str, str]:
    """Family and variant that conditions of a user's file see: of the first that it extends."""
    for name in file.extends:
        if file.path and is_file(name):
            return _basis(_parent(file, name))
        family, _, variant = (part.strip() for part in name.partition("/"))
        if found := known_family(family):
            return found[0], variant
    return file.id, ""


def _inherited(file: File, key: str) -> Any:
    """A key of a file, else of what it extends."""
    value = getattr(file, key)
    found = (_inherited(_parent(file, name), key) for name in file.extends)
    return value or next((each for each in found if each), value)


def is_file(name: str) -> bool:
    """Whether a stack is named by the path of a file."""
    return name.endswith(".toml")


@functools.lru_cache(maxsize=4096)
def stack(name: str) -> Stack:
    """The stack of a name, "family" or "family/variant", or of the path of a TOML file.

    Args:
      name: spelled in any case. A family that no file describes has only the facts of every stack.
    Raises:
      InputError: a file that cannot be read or used.
    """
    if is_file(name):
        return _of_file(Path(name))
    family, _, variant = (part.strip() for part in name.partition("/"))
    found = known_family(family)
    if found is None:
        nobodys = File(family, "", family, "", (), (), (), {}, ())
        return _stack(nobodys, family, variant)._replace(known=False)
    return _stack(files()[found[1]], found[0], variant)


def _stack(file: File, family: str, variant: str) -> Stack:
    return Stack(
        id=family,
        variant=variant,
        facts=(*files()[EVERY].facts, *_chain(file)),
        lineage=_inherited(file, "lineage") or family,
        emits=_inherited(file, "emits"),
        runs=_inherited(file, "runs"),
        known=True,
        about=file.about,
        basis=family,
        own=file.facts,
        path=file.path,
    )


def _of_file(path: Path) -> Stack:
    file = _read_file(path)
    found = _stack(file, path.stem, "")
    basis, variant = _basis(file)
    return found._replace(basis=basis, variant=variant)


def _read_file(path: Path) -> File:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        hint = "name a stack or a TOML file"
        raise InputError(f"--stack {path}: not readable ({error}); {hint}") from None
    return read(text, path.stem, str(path), str(path.resolve()))


def consequences() -> tuple[Fact, ...]:
    """Facts that follow from what a stack does, whatever the stack."""
    return files()[AFTER].facts


def check(name: str, more: Iterable[str] = ()) -> None:
    """Refuse a stack that neither a file nor somebody else knows.

    Args:
      name: "" passes. more: names that others know, with or without their variants.
    Raises:
      InputError: with the nearest names.
    """
    if not name or is_file(name) or known_family(name.partition("/")[0]):
        return
    others = [stack(each).id for each in more]
    if stack(name).id not in others:
        raise InputError(unknown(name, others))


def unknown(name: str, more: list[str]) -> str:
    """Text of the error about a stack that neither a file nor a profile knows."""
    every = list(dict.fromkeys([*names(), *more]))
    close = nearest(name.partition("/")[0], every)
    hint = f"nearest: {', '.join(close)}" if close else f"known: {', '.join(every)}"
    others = "`dmodel catalog stacks` lists all; a TOML file of your own does too"
    return f"unknown stack {name!r}; {hint}. {others}"
